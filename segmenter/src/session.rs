//! A SQL session over one consistent view of a store.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::AsArray;
use arrow::datatypes::DataType;
use datafusion::catalog::view::ViewTable;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::Dialect;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::Optimizer;
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use datafusion::sql::parser::Statement as Parsed;
use dressage_storage::Snapshot;
use tokio::runtime::Handle;

use crate::catalog::{CATALOG, Catalog, INTERNAL, Origin, PUBLIC, Planner};
use crate::error::{Error, Limits, Result, unknown_table};
use crate::functions;
use crate::lake::{LakeSource, ResidentLake};
use crate::pushdown::FilterBelowKeyedWindow;
use crate::query::{Clock, Job, QueryStream};
use crate::runtime::CpuRuntime;
use crate::settings::{SessionSettings, Variables};
use crate::statement::{self, Action, Statement};
use crate::stream::StoredPlan;
use crate::training::Role;

/// Keys that an error about a user's estimator or filter names at most.
const KEYS_SHOWN: usize = 5;

/// What a statement did.
#[derive(Debug)]
pub enum Outcome {
    /// A query: its rows.
    Rows(QueryStream),
    /// A change of the session, said in one line.
    Done(String),
}

/// A SQL session: stored tables, views, functions and limits. Read-only and cheap to open. A running query goes on if
/// its session is dropped.
pub struct Session {
    context: SessionContext,
    catalog: Arc<Catalog>,
    cpu: Arc<CpuRuntime>,
    settings: SessionSettings,
    variables: Variables,
    /// Files of the user's whose rows were found right.
    checked: Mutex<HashSet<Role>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Session {
    /// Opens a session over one consistent view of a store.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(snapshot: Snapshot, settings: SessionSettings) -> Result<Self> {
        Self::over(Arc::new(snapshot), settings)
    }

    /// Opens a session over any source, such as a [`MemoryLake`](crate::MemoryLake). Scans run on the calling runtime, operators on threads of the session's own.
    ///
    /// # Errors
    /// `Invalid` for settings under which nothing could run, `Unavailable` where threads or the spill directory cannot
    /// be had.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn over(source: Arc<dyn LakeSource>, settings: SessionSettings) -> Result<Self> {
        let variables = Variables::new(&settings.set)?;
        Self::start(source, settings, variables, BTreeMap::new())
    }

    /// Opens a session in which the views are those that a plan was made by, over the versions that it pins: what its
    /// `sql` names stands for the built-in definition and for the files of its estimator and filter, and its variables
    /// are set. `settings.set` is not looked at.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn as_planned(plan: &StoredPlan, settings: SessionSettings) -> Result<Self> {
        let variables = Variables::as_stored(plan.variables());
        Self::start(Arc::new(plan.pinned().clone()), settings, variables, plan.sql().clone())
    }

    fn start(
        source: Arc<dyn LakeSource>,
        settings: SessionSettings,
        variables: Variables,
        definitions: BTreeMap<String, String>,
    ) -> Result<Self> {
        settings.check()?;
        let cpu = CpuRuntime::new(settings.partitions())
            .map_err(|e| Error::Start { source: Box::new(DataFusionError::IoError(e)) })?;
        let pool = FairSpillPool::new(usize::try_from(settings.memory_limit_bytes).unwrap_or(usize::MAX));
        let named = NonZeroUsize::new(3).unwrap_or(NonZeroUsize::MIN);
        let mut disk = DiskManagerBuilder::default().with_max_temp_directory_size(settings.spill_limit_bytes);
        if let Some(dir) = &settings.spill_dir {
            disk.set_mode(DiskManagerMode::Directories(vec![dir.clone()]));
        }
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(TrackConsumersPool::new(pool, named)))
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(|e| Error::Start { source: Box::new(e) })?;
        let source = Arc::new(ResidentLake::over(source, settings.resident_bytes_max));
        let catalog = Arc::new(Catalog::new(source, variables.clone(), definitions, Handle::current()));
        let state = SessionStateBuilder::new()
            .with_config(engine_config(&settings))
            .with_runtime_env(runtime)
            .with_default_features()
            .with_optimizer_rules(FilterBelowKeyedWindow::among(Optimizer::new().rules))
            .build();
        let context = SessionContext::new_with_state(state);
        context.register_catalog(CATALOG, Arc::clone(&catalog) as _);
        functions::register(&context, &variables);
        let state = context.state_weak_ref();
        catalog.bind(Planner(Box::new(move || state.upgrade().map(|state| state.read().clone()))));
        Ok(Self { context, catalog, cpu: Arc::new(cpu), settings, variables, checked: Mutex::default() })
    }

    /// The settings it was opened with.
    pub fn settings(&self) -> &SessionSettings {
        &self.settings
    }

    /// The variables in force.
    pub fn variables(&self) -> BTreeMap<String, String> {
        self.variables.all()
    }

    /// Sets a variable that views read (`run`, `grader`, `estimator`, …, or one of the user's), or takes it away.
    ///
    /// # Errors
    /// As [`Variables::set`].
    pub fn set(&self, key: &str, value: Option<&str>) -> Result<()> {
        self.variables.set(key, value)?;
        self.catalog.variables_changed();
        self.checked().clear();
        Ok(())
    }

    /// Settings and variables in force, defaults of ours among them: what a result depends on besides the store.
    pub fn settings_in_force(&self) -> BTreeMap<String, String> {
        self.variables.in_force()
    }

    fn checked(&self) -> MutexGuard<'_, HashSet<Role>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one query. The text may begin with statements that change the session (`CREATE VIEW`, `SET`); exactly one
    /// query must come last.
    ///
    /// # Errors
    /// `Invalid` for text that is no such query; `Exhausted` naming the limit that was reached; else what the store
    /// says.
    pub async fn sql(&self, sql: &str) -> Result<QueryStream> {
        let mut statements = statement::parse_all(sql)?;
        let count = statements.len();
        let Some(Statement(Action::Query(query))) = statements.pop() else {
            return Err(Error::StatementCount { count });
        };
        if statements.iter().any(Statement::is_query) {
            return Err(Error::StatementCount { count });
        }
        for statement in statements {
            self.execute(statement).await?;
        }
        self.query(*query).await
    }

    /// Runs a text of any number of statements, one after the other; `each` takes what every one of them did, and is
    /// called before the next one starts.
    ///
    /// # Errors
    /// As [`sql`](Self::sql), of the first statement that fails; and whatever `each` gives.
    pub async fn script<E: From<Error>>(
        &self,
        sql: &str,
        mut each: impl AsyncFnMut(Outcome) -> Result<(), E>,
    ) -> Result<(), E> {
        for statement in statement::parse_all(sql)? {
            let outcome = self.execute(statement).await?;
            each(outcome).await?;
        }
        Ok(())
    }

    /// The statements of a text, to be executed one by one.
    ///
    /// # Errors
    /// `Invalid` for text that does not parse or a statement that would write.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>> {
        statement::parse_all(sql)
    }

    /// Runs one statement.
    ///
    /// # Errors
    /// As [`sql`](Self::sql).
    pub async fn execute(&self, statement: Statement) -> Result<Outcome> {
        match statement.0 {
            Action::Query(query) => Ok(Outcome::Rows(self.query(*query).await?)),
            Action::CreateView { name, or_replace, query } => {
                self.create_view(&name, or_replace, *query).await?;
                Ok(Outcome::Done(format!("view {name} is there for this session")))
            }
            Action::DropView { names, if_exists } => {
                for name in &names {
                    match self.catalog.public().origin(name) {
                        Some(Origin::View) => {
                            self.catalog.public().remove(name);
                        }
                        None if if_exists => {}
                        _ => return Err(Error::ReadOnly { statement: format!("DROP VIEW {name}") }),
                    }
                }
                Ok(Outcome::Done(format!("dropped {}", names.join(", "))))
            }
            Action::Set { key, value } => {
                self.set(&key, value.as_deref())?;
                Ok(Outcome::Done(match value {
                    Some(value) => format!("{key} is {value}"),
                    None => format!("{key} is not set"),
                }))
            }
        }
    }

    async fn create_view(&self, name: &str, or_replace: bool, query: Parsed) -> Result<()> {
        match self.catalog.public().origin(name) {
            None => {}
            Some(Origin::View) if or_replace => {}
            Some(_) => return Err(Error::NameTaken { name: name.to_owned() }),
        }
        let invalid = |source| Error::View { name: name.to_owned(), source: Box::new(source) };
        let text = query.to_string();
        let plan = self.context.state().statement_to_plan(query).await.map_err(|e| match self.unplanned(e) {
            Error::InvalidQuery { source } => Error::View { name: name.to_owned(), source },
            known => known,
        })?;
        read_only().verify_plan(&plan).map_err(invalid)?;
        self.catalog.public().put(name.to_owned(), Origin::View, Arc::new(ViewTable::new(plan, Some(text))));
        Ok(())
    }

    async fn query(&self, query: Parsed) -> Result<QueryStream> {
        let state = self.context.state();
        let limits = self.limits();
        let mut clock = Clock::new(self.settings.time_limit_ms);
        let plan = clock.wait(state.statement_to_plan(query)).await?.map_err(|e| self.unplanned(e))?;
        read_only().verify_plan(&plan).map_err(|e| limits.classify(e))?;
        self.check_user_sql(&plan).await?;
        let frugal = frugal(&state, &self.settings);
        let job = Job { state, frugal, plan, row_limit: self.settings.row_limit };
        QueryStream::start(&self.cpu, job, limits, clock).await
    }

    /// Why a query does not plan; a table that is not there with the one that may be meant.
    fn unplanned(&self, error: DataFusionError) -> Error {
        let error = self.limits().classify(error);
        match unknown_table(&error, &self.table_names()) {
            Some(unknown) => unknown,
            None => error,
        }
    }

    /// Looks at the rows of the user's estimator and filter, the first time that a query depends on them.
    async fn check_user_sql(&self, plan: &LogicalPlan) -> Result<()> {
        let missing = |role: &Role| self.variables.file(*role).is_some() && !self.checked().contains(role);
        let wanted: Vec<Role> = Role::ALL.into_iter().filter(missing).filter(|role| uses(plan, role.view())).collect();
        for role in wanted {
            let sql = self.catalog.public().user_sql(role).await.map_err(|e| self.limits().classify(e))?;
            let Some(sql) = sql else { continue };
            for check in sql.checks() {
                // boxed: a check is a query, though one that needs no check
                let mut rows = Box::pin(self.sql(&format!("{} LIMIT {}", check.sql, KEYS_SHOWN + 1))).await?;
                let mut keys = Vec::new();
                while let Some(batch) = rows.next_batch().await? {
                    let texts = arrow::compute::cast(batch.column(0), &DataType::Utf8)
                        .map_err(|e| Error::Internal { source: Box::new(e.into()) })?;
                    keys.extend(texts.as_string::<i32>().iter().flatten().map(str::to_owned));
                }
                if !keys.is_empty() {
                    let more = keys.len() > KEYS_SHOWN;
                    keys.truncate(KEYS_SHOWN);
                    return Err(sql.failed(&check, &keys, more));
                }
            }
            self.checked().insert(role);
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            memory_limit_bytes: self.settings.memory_limit_bytes,
            spill_limit_bytes: self.settings.spill_limit_bytes,
        }
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn context(&self) -> &SessionContext {
        &self.context
    }
}

/// Whether a plan reads a view that others share.
fn uses(plan: &LogicalPlan, view: &str) -> bool {
    let mut found = false;
    // the closure never fails
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::SubqueryAlias(alias) = node {
            found |= alias.alias.schema() == Some(INTERNAL) && alias.alias.table() == view;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found
}

/// A second fence behind the statement check: the plan must not hold a write either.
fn read_only() -> SQLOptions {
    SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false)
}

fn engine_config(settings: &SessionSettings) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema(CATALOG, PUBLIC)
        .with_information_schema(true)
        .with_target_partitions(settings.partitions())
        .with_batch_size(settings.batch_rows);
    let options = config.options_mut();
    options.sql_parser.dialect = Dialect::Generic;
    // the store has plain text columns: literals of another text type would cast every row
    options.sql_parser.map_string_types_to_utf8view = false;
    options.execution.time_zone = Some("+00:00".to_owned());
    // each sort keeps this much back for its merge, so it must fit several times into a small limit
    options.execution.sort_spill_reservation_bytes = sort_reservation(settings);
    options.execution.parquet.pushdown_filters = true;
    // filters move below one window a pass, and `messages` stacks three
    options.optimizer.max_passes = 8;
    // filters of the views tell exceptions (aborted, empty, not graded): without this, a filtered side of a join would
    // count as a fifth of what it is, and be the one that is held
    options.optimizer.default_filter_selectivity = 90;
    // keys of a join's small side go to the store as an IN list up to this many
    options.optimizer.hash_join_inlist_pushdown_max_distinct_values = 1_000;
    config
}

fn sort_reservation(settings: &SessionSettings) -> usize {
    let share = settings.memory_limit_bytes / (16 * settings.partitions() as u64);
    share.clamp(256 << 10, 10 << 20) as usize
}

/// The session with joins that spill: slower, but bounded.
fn frugal(state: &SessionState, settings: &SessionSettings) -> SessionState {
    let mut state = state.clone();
    let options = state.config_mut().options_mut();
    options.optimizer.prefer_hash_join = false;
    // several sorts at once would each want their share; with one partition the planner knows hash joins only
    options.execution.target_partitions = 2;
    // a merge of spilled runs holds two batches of each run
    options.execution.batch_size = settings.batch_rows.min(1_024);
    options.execution.sort_spill_reservation_bytes = sort_reservation(settings).min(1 << 20);
    state
}
