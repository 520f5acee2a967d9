//! The names that a query can use: stored tables, built-in views, the user's views and attached files.
//!
//! ```text
//!   stored.*    the tables as they are on disk (LakeTable)
//!   internal.*  parts that views share
//!   public.*    built-in views ▸ user views ▸ attached files      (the default schema)
//! ```
//!
//! Views are planned when a query first names them, so that opening a session costs nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use datafusion::catalog::view::ViewTable;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::TableType;
use dressage_schemas::Table;
use futures::StreamExt;
use tokio::runtime::Handle;

use crate::lake::{LakeSource, LakeTable, Rows, ScanRequest};
use crate::settings::Variables;
use crate::views::{self, Question};

/// The catalog's name.
pub(crate) const CATALOG: &str = "dressage";
/// The default schema.
pub(crate) const PUBLIC: &str = "public";
/// The schema of the tables as they are on disk.
pub(crate) const STORED: &str = "stored";
/// The schema of parts that views share.
const INTERNAL: &str = "internal";
/// All copies of all trajectories ever written; `stored.trajectories` has those in force.
const REVISIONS: &str = "trajectory_revisions";

/// Where a name of schema `public` comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// One of our views.
    Builtin,
    /// A view that the user made in this session.
    View,
    /// An attached file.
    Attached,
    /// A table as it is on disk.
    Stored,
}

/// Gives the session's state while the session is there; the session owns the catalog, so this must not own it back.
pub(crate) struct Planner(pub(crate) Box<dyn Fn() -> Option<SessionState> + Send + Sync>);

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Planner")
    }
}

/// The one catalog of a session.
#[derive(Debug)]
pub(crate) struct Catalog {
    stored: Arc<StoredSchema>,
    internal: Arc<ViewSchema>,
    public: Arc<ViewSchema>,
}

impl Catalog {
    pub(crate) fn new(source: Arc<dyn LakeSource>, variables: Variables, io: Handle) -> Self {
        let tables = Table::ALL
            .into_iter()
            .map(|t| (t.name().to_owned(), t, Rows::Effective))
            .chain([(REVISIONS.to_owned(), Table::Trajectories, Rows::Written)])
            .map(|(name, table, rows)| {
                let table = LakeTable::new(Arc::clone(&source), table, rows, io.clone());
                (name, Arc::new(table) as Arc<dyn TableProvider>)
            })
            .collect();
        let answers = Arc::new(Answers { source, variables, io, found: Mutex::default() });
        let planner = Arc::new(OnceLock::new());
        let schema = |internal| {
            let views = ViewSchema {
                internal,
                answers: Arc::clone(&answers),
                planner: Arc::clone(&planner),
                planned: Mutex::default(),
                own: Mutex::default(),
            };
            Arc::new(views)
        };
        Self { stored: Arc::new(StoredSchema { tables }), internal: schema(true), public: schema(false) }
    }

    /// Gives the views the planner that they are planned with.
    pub(crate) fn bind(&self, planner: Planner) {
        // a catalog belongs to one session, which binds it once
        let _ = self.public.planner.set(planner);
    }

    /// The names of schema `public`, with their origin.
    pub(crate) fn public(&self) -> &Arc<ViewSchema> {
        &self.public
    }

    /// Forgets plans and answers that a changed variable may have made wrong.
    pub(crate) fn variables_changed(&self) {
        for schema in [&self.public, &self.internal] {
            lock(&schema.planned).clear();
        }
    }
}

impl CatalogProvider for Catalog {
    fn schema_names(&self) -> Vec<String> {
        // `internal` is left out: it resolves by name but is not shown
        vec![PUBLIC.to_owned(), STORED.to_owned()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        match name {
            PUBLIC => Some(Arc::clone(&self.public) as _),
            STORED => Some(Arc::clone(&self.stored) as _),
            INTERNAL => Some(Arc::clone(&self.internal) as _),
            _ => None,
        }
    }
}

/// The tables as they are on disk.
#[derive(Debug)]
struct StoredSchema {
    tables: BTreeMap<String, Arc<dyn TableProvider>>,
}

#[async_trait]
impl SchemaProvider for StoredSchema {
    fn table_names(&self) -> Vec<String> {
        self.tables.keys().cloned().collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.tables.get(name).cloned())
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.contains_key(name)
    }
}

/// A name that the user brought.
#[derive(Debug, Clone)]
struct Own {
    origin: Origin,
    table: Arc<dyn TableProvider>,
}

/// Views, planned when first used, and in schema `public` the user's own tables.
#[derive(Debug)]
pub(crate) struct ViewSchema {
    internal: bool,
    answers: Arc<Answers>,
    planner: Arc<OnceLock<Planner>>,
    planned: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
    own: Mutex<BTreeMap<String, Own>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ViewSchema {
    /// Where the name comes from; none if it is not there.
    pub(crate) fn origin(&self, name: &str) -> Option<Origin> {
        match lock(&self.own).get(name) {
            Some(own) => Some(own.origin),
            None => views::find(name, self.internal).map(|_| Origin::Builtin),
        }
    }

    /// Adds or replaces a user's table.
    pub(crate) fn put(&self, name: String, origin: Origin, table: Arc<dyn TableProvider>) {
        lock(&self.own).insert(name, Own { origin, table });
    }

    /// Takes a user's table away.
    pub(crate) fn remove(&self, name: &str) -> bool {
        lock(&self.own).remove(name).is_some()
    }

    /// The definition in force of a built-in view.
    pub(crate) async fn definition(&self, name: &str) -> Result<Option<&'static str>> {
        let Some(view) = views::find(name, self.internal) else { return Ok(None) };
        match view.otherwise {
            Some((question, sql)) if self.answers.get(question).await? => Ok(Some(sql)),
            _ => Ok(Some(view.sql)),
        }
    }

    async fn planned(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if let Some(table) = lock(&self.planned).get(name) {
            return Ok(Some(Arc::clone(table)));
        }
        let Some(sql) = self.definition(name).await? else { return Ok(None) };
        let state = self.planner.get().and_then(|planner| (planner.0)());
        let Some(state) = state else {
            return datafusion::common::internal_err!("view {name} is used after its session was closed");
        };
        let plan = state.create_logical_plan(sql).await.map_err(|e| e.context(format!("view {name}")))?;
        let table: Arc<dyn TableProvider> = Arc::new(ViewTable::new(plan, Some(sql.to_owned())));
        lock(&self.planned).insert(name.to_owned(), Arc::clone(&table));
        Ok(Some(table))
    }
}

#[async_trait]
impl SchemaProvider for ViewSchema {
    fn table_names(&self) -> Vec<String> {
        let builtin = views::BUILTIN.iter().filter(|v| v.internal == self.internal).map(|v| v.name.to_owned());
        builtin.chain(lock(&self.own).keys().cloned()).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if let Some(own) = lock(&self.own).get(name) {
            return Ok(Some(Arc::clone(&own.table)));
        }
        self.planned(name).await
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        // answered without planning a view only to say that it is one
        Ok(match self.origin(name) {
            None => None,
            Some(Origin::Attached | Origin::Stored) => Some(TableType::Base),
            Some(Origin::Builtin | Origin::View) => Some(TableType::View),
        })
    }

    fn table_exist(&self, name: &str) -> bool {
        self.origin(name).is_some()
    }
}

/// Answers to the questions that choose between view files; each is asked once, and stops at the first row.
#[derive(Debug)]
struct Answers {
    source: Arc<dyn LakeSource>,
    variables: Variables,
    io: Handle,
    found: Mutex<HashMap<Question, bool>>,
}

impl Answers {
    async fn get(&self, question: Question) -> Result<bool> {
        // a chosen grader may differ from the recorded one even if nothing was graded later
        if question == Question::GradedLater && self.variables.get("grader").is_some() {
            return Ok(true);
        }
        if let Some(answer) = lock(&self.found).get(&question) {
            return Ok(*answer);
        }
        let (table, column, filter) = match question {
            Question::GradedLater => (Table::Rewards, "stage", "stage <> 'recorded'"),
            Question::StepsRecorded => (Table::Steps, "route", "route <> 'given' OR segment_index IS NULL"),
        };
        let answer = self.any(table, column, filter).await?;
        lock(&self.found).insert(question, answer);
        Ok(answer)
    }

    async fn any(&self, table: Table, column: &str, filter: &str) -> Result<bool> {
        if self.source.fragments(table).iter().all(|f| f.row_count == 0) {
            return Ok(false);
        }
        let request = ScanRequest {
            table,
            columns: vec![column.to_owned()],
            filter: Some(filter.to_owned()),
            limit: Some(1),
            fragments: None,
            batch_rows: 8192,
            row_address: false,
        };
        let source = Arc::clone(&self.source);
        let task = self.io.spawn(async move {
            let mut batches = source.scan(request).await?;
            while let Some(batch) = batches.next().await {
                if batch?.num_rows() > 0 {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        let found = task.await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?;
        found.map_err(|e: crate::lake::SourceError| DataFusionError::External(Box::new(e)))
    }
}
