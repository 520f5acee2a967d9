//! The names that a query can use: stored tables, built-in views, the user's views and attached files.
//!
//! ```text
//!   stored.*    the tables as they are on disk (LakeTable)
//!   internal.*  parts that views share
//!   public.*    built-in views ▸ user views ▸ attached files      (the default schema)
//! ```
//!
//! Views are planned when a query first names them, so that opening a session costs nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use datafusion::catalog::view::ViewTable;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::config::Dialect;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::TableType;
use datafusion::sql::parser::DFParser;
use datafusion::sql::resolve::resolve_table_references;
use dressage_schemas::Table;
use futures::StreamExt;
use tokio::runtime::Handle;

use crate::error::Error;
use crate::lake::{LakeSource, LakeTable, Rows, ScanRequest};
use crate::settings::Variables;
use crate::training::{Role, UserSql, unrepeatable};
use crate::views::{self, Definition, Given, Question};

/// The catalog's name.
pub(crate) const CATALOG: &str = "dressage";
/// The default schema.
pub(crate) const PUBLIC: &str = "public";
/// The schema of the tables as they are on disk.
pub(crate) const STORED: &str = "stored";
/// The schema of parts that views share.
pub(crate) const INTERNAL: &str = "internal";
/// Views that are made from a user's estimator and filter, which therefore cannot read them.
const AFTER_USER_SQL: [&str; 2] = ["samples", "drops"];
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
    /// `definitions` are texts that stand for those of built-in views, by name; `internal.` is in front of the shared ones.
    pub(crate) fn new(
        source: Arc<dyn LakeSource>,
        variables: Variables,
        definitions: BTreeMap<String, String>,
        io: Handle,
    ) -> Self {
        let tables = Table::ALL
            .into_iter()
            .map(|t| (t.name().to_owned(), t, Rows::Effective))
            .chain([(REVISIONS.to_owned(), Table::Trajectories, Rows::Written)])
            .map(|(name, table, rows)| {
                let table = LakeTable::new(Arc::clone(&source), table, rows, io.clone());
                (name, Arc::new(table) as Arc<dyn TableProvider>)
            })
            .collect();
        let definitions = Arc::new(definitions);
        let answers = Arc::new(Answers { source, variables, io, found: Mutex::default() });
        let planner = Arc::new(OnceLock::new());
        let schema = |internal| {
            let views = ViewSchema {
                internal,
                definitions: Arc::clone(&definitions),
                answers: Arc::clone(&answers),
                planner: Arc::clone(&planner),
                planned: Mutex::default(),
                own: Mutex::default(),
            };
            Arc::new(views)
        };
        Self { stored: Arc::new(StoredSchema { tables }), internal: schema(true), public: schema(false) }
    }

    /// The texts of built-in views, and of those that they are made of, by name.
    pub(crate) async fn texts_behind(&self, names: &[&str]) -> Result<BTreeMap<String, String>> {
        let mut texts = BTreeMap::new();
        let mut wanted: Vec<(bool, String)> = names.iter().map(|name| (false, (*name).to_owned())).collect();
        while let Some((internal, name)) = wanted.pop() {
            let schema = if internal { &self.internal } else { &self.public };
            let shown = shown(internal, &name);
            let Some(text) = schema.definition(&name).await?.filter(|_| !texts.contains_key(&shown)) else { continue };
            for statement in DFParser::parse_sql(&text)? {
                let (tables, _) = resolve_table_references(&statement, true)?;
                let views = tables.iter().filter(|t| matches!(t.schema(), None | Some(PUBLIC | INTERNAL)));
                wanted.extend(views.map(|t| (t.schema() == Some(INTERNAL), t.table().to_owned())));
            }
            texts.insert(shown, text.into_owned());
        }
        Ok(texts)
    }

    /// Whether there is a step whose segment the source did not give.
    pub(crate) async fn steps_recorded(&self) -> Result<bool> {
        self.public.answers.get(Question::StepsRecorded).await
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
    /// Texts that stand for those of built-in views.
    definitions: Arc<BTreeMap<String, String>>,
    answers: Arc<Answers>,
    planner: Arc<OnceLock<Planner>>,
    planned: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
    own: Mutex<BTreeMap<String, Own>>,
}

/// An error of ours on its way through the engine.
fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// What a plan calls a view.
fn shown(internal: bool, name: &str) -> String {
    if internal { format!("{INTERNAL}.{name}") } else { name.to_owned() }
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
    pub(crate) async fn definition(&self, name: &str) -> Result<Option<Cow<'static, str>>> {
        let Some(view) = views::find(name, self.internal) else { return Ok(None) };
        if let Some(text) = self.definitions.get(&shown(self.internal, name)) {
            return Ok(Some(Cow::Owned(text.clone())));
        }
        let sql = match view.definition {
            Definition::One(sql) => Cow::Borrowed(sql),
            Definition::Asked(sql, question, otherwise) => {
                Cow::Borrowed(if self.answers.get(question).await? { otherwise } else { sql })
            }
            Definition::Set(role, choose) => {
                let user = match role {
                    Some(role) => self.user_sql(role).await?,
                    None => None,
                };
                let given = Given { variables: self.answers.variables.clone(), user };
                Cow::Owned(choose(&given).map_err(external)?)
            }
        };
        Ok(Some(sql))
    }

    /// The file that the user brought for a role, its columns checked.
    pub(crate) async fn user_sql(&self, role: Role) -> Result<Option<UserSql>> {
        let Some(file) = self.answers.variables.file(role) else { return Ok(None) };
        let state = self.state(role.setting())?;
        let statement = state.sql_to_statement(&file.query, &Dialect::Generic)?;
        for table in state.resolve_table_references(&statement)? {
            if AFTER_USER_SQL.contains(&table.table()) || table.schema() == Some(INTERNAL) {
                let problem = format!("it reads {table}, which is made from it; read anchors, groups or segments");
                return Err(external(Error::UserSql { what: role.setting(), path: file.path, problem }));
            }
        }
        // boxed: the query reads views, which are planned here too
        let plan = Box::pin(state.statement_to_plan(statement)).await;
        let plan = plan.map_err(|e| e.context(format!("{} {}", role.setting(), file.path)))?;
        if let Some(function) = unrepeatable(&plan)? {
            let problem = format!("it calls {function}(): the same query would give something else the next time");
            return Err(external(Error::UserSql { what: role.setting(), path: file.path, problem }));
        }
        UserSql::of(file, plan.schema().as_arrow()).map(Some).map_err(external)
    }

    fn state(&self, name: &str) -> Result<SessionState> {
        match self.planner.get().and_then(|planner| (planner.0)()) {
            Some(state) => Ok(state),
            None => datafusion::common::internal_err!("view {name} is used after its session was closed"),
        }
    }

    async fn planned(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if let Some(table) = lock(&self.planned).get(name) {
            return Ok(Some(Arc::clone(table)));
        }
        let Some(sql) = self.definition(name).await? else { return Ok(None) };
        let state = self.state(name)?;
        let plan = state.create_logical_plan(&sql).await.map_err(|e| e.context(format!("view {name}")))?;
        let table: Arc<dyn TableProvider> = Arc::new(ViewTable::new(plan, Some(sql.into_owned())));
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
            most_match: false,
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
