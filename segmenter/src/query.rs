//! A running query: its batches, and the limits that end it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Limits, Result};
use crate::runtime::{CpuRuntime, CpuTask};

/// Batches of a result.
pub type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// Batches that wait between the engine and whoever reads the result.
const BATCHES_AHEAD: usize = 2;

/// A running query. Dropping it cancels the query.
///
/// Time spent waiting for the reader of the result does not count towards the time limit.
#[derive(Debug)]
pub struct QueryStream {
    schema: SchemaRef,
    batches: mpsc::Receiver<Result<RecordBatch, DataFusionError>>,
    task: CpuTask<()>,
    retried: Arc<AtomicBool>,
    spilled: Arc<Spilled>,
    /// The threads must outlive the query, also if its session does not.
    _cpu: Arc<CpuRuntime>,
    limits: Limits,
    clock: Clock,
    rows_left: Option<u64>,
    truncated: bool,
    done: bool,
}

/// How long the engine may still take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    limit_ms: Option<u64>,
    used: Duration,
}

impl Clock {
    pub(crate) fn new(limit_ms: Option<u64>) -> Self {
        Self { limit_ms, used: Duration::ZERO }
    }

    /// Waits for a future, no longer than what is left.
    pub(crate) async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T> {
        let Some(limit_ms) = self.limit_ms else { return Ok(future.await) };
        let started = Instant::now();
        let left = Duration::from_millis(limit_ms).saturating_sub(self.used);
        let result = tokio::time::timeout(left, future).await;
        self.used += started.elapsed();
        result.map_err(|_| Error::TimeLimit { limit_ms })
    }
}

/// How a query is to be run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) state: SessionState,
    /// The same session with joins that can spill, for a second try.
    pub(crate) frugal: SessionState,
    pub(crate) plan: LogicalPlan,
    pub(crate) row_limit: Option<u64>,
}

impl QueryStream {
    /// Plans and starts a query; returns when its schema is known.
    pub(crate) async fn start(cpu: &Arc<CpuRuntime>, job: Job, limits: Limits, mut clock: Clock) -> Result<Self> {
        let row_limit = job.row_limit;
        let (send_schema, schema) = oneshot::channel();
        let (send, batches) = mpsc::channel(BATCHES_AHEAD);
        let retried = Arc::new(AtomicBool::new(false));
        let spilled = Arc::new(Spilled::default());
        let task = cpu.spawn(drive(job, send_schema, send, Arc::clone(&retried), Arc::clone(&spilled)));
        let mut stream = Self {
            schema: Arc::new(arrow::datatypes::Schema::empty()),
            batches,
            task,
            retried,
            spilled,
            _cpu: Arc::clone(cpu),
            limits,
            clock,
            rows_left: row_limit,
            truncated: false,
            done: false,
        };
        stream.schema = match clock.wait(schema).await? {
            Ok(Ok(schema)) => schema,
            Ok(Err(error)) => return Err(limits.classify(error)),
            Err(_) => return Err(stream.panicked().await),
        };
        stream.clock = clock;
        Ok(stream)
    }

    /// The columns of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether rows were left out because of the session's row limit; known once the stream has ended.
    pub fn truncated(&self) -> bool {
        self.truncated
    }

    /// Whether the query had to run again with joins that spill, because a hash join did not fit into the memory limit.
    pub fn retried(&self) -> bool {
        self.retried.load(Ordering::Relaxed)
    }

    /// What was written to disk because memory did not suffice, so far.
    pub fn spills(&self) -> Spills {
        self.spilled.so_far()
    }

    /// The next batch; none at the end.
    ///
    /// # Errors
    /// Whatever ended the query early, once; nothing comes after it.
    ///
    /// # Cancel safety
    /// No batch is lost if the future is dropped.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.done {
            return Ok(None);
        }
        let result = self.receive().await;
        if !matches!(result, Ok(Some(_))) {
            self.done = true;
            self.batches.close();
        }
        result
    }

    async fn receive(&mut self) -> Result<Option<RecordBatch>> {
        let batch = match self.clock.wait(self.batches.recv()).await? {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return Err(self.limits.classify(error)),
            None => {
                return match self.task.join().await {
                    Ok(()) => Ok(None),
                    Err(_) => Err(self.panicked().await),
                };
            }
        };
        let Some(left) = self.rows_left else { return Ok(Some(batch)) };
        let rows = batch.num_rows() as u64;
        self.truncated |= rows > left;
        self.rows_left = Some(left.saturating_sub(rows));
        if left == 0 && rows > 0 {
            return Ok(None);
        }
        Ok(Some(if rows > left { batch.slice(0, left as usize) } else { batch }))
    }

    /// All batches.
    ///
    /// # Errors
    /// The first error of the query.
    pub async fn collect(mut self) -> Result<Vec<RecordBatch>> {
        let mut all = Vec::new();
        while let Some(batch) = self.next_batch().await? {
            all.push(batch);
        }
        Ok(all)
    }

    /// The batches as a stream.
    pub fn into_stream(self) -> BatchStream {
        futures::stream::unfold(self, |mut query| async move {
            let next = query.next_batch().await.transpose()?;
            Some((next, query))
        })
        .boxed()
    }

    async fn panicked(&mut self) -> Error {
        let source = match self.task.join().await {
            Err(error) => DataFusionError::ExecutionJoin(Box::new(error)),
            Ok(()) => DataFusionError::Internal("the query ended without a result".to_owned()),
        };
        Error::Internal { source: Box::new(source) }
    }
}

/// What a query wrote to disk because memory did not suffice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Spills {
    /// Files.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What the plans of a query spilled: those that ended, and the one that runs, which counts for itself. A plan that
/// ended is let go, because its hash joins hold their memory for as long as it is there: a second try would lack it.
#[derive(Debug, Default)]
struct Spilled(Mutex<(Spills, Option<Arc<dyn ExecutionPlan>>)>);

impl Spilled {
    fn begin(&self, plan: &Arc<dyn ExecutionPlan>) {
        self.lock().1 = Some(Arc::clone(plan));
    }

    fn end(&self) {
        let (ended, running) = &mut *self.lock();
        if let Some(plan) = running.take() {
            add_spills(&plan, ended);
        }
    }

    fn so_far(&self) -> Spills {
        let (ended, running) = &*self.lock();
        let mut spills = *ended;
        if let Some(plan) = running {
            add_spills(plan, &mut spills);
        }
        spills
    }

    fn lock(&self) -> MutexGuard<'_, (Spills, Option<Arc<dyn ExecutionPlan>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add_spills(plan: &Arc<dyn ExecutionPlan>, spills: &mut Spills) {
    if let Some(metrics) = plan.metrics() {
        spills.count += metrics.spill_count().unwrap_or(0) as u64;
        spills.bytes += metrics.spilled_bytes().unwrap_or(0) as u64;
    }
    plan.children().into_iter().for_each(|child| add_spills(child, spills));
}

/// Runs on the session's own threads.
async fn drive(
    job: Job,
    schema: oneshot::Sender<Result<SchemaRef, DataFusionError>>,
    send: mpsc::Sender<Result<RecordBatch, DataFusionError>>,
    retried: Arc<AtomicBool>,
    spilled: Arc<Spilled>,
) {
    let logical = match limited(job.plan, job.row_limit).and_then(|plan| job.state.optimize(&plan)) {
        Ok(logical) => logical,
        Err(error) => {
            let _ = schema.send(Err(error));
            return;
        }
    };
    let physical = match job.state.query_planner().create_physical_plan(&logical, &job.state).await {
        Ok(physical) => physical,
        Err(error) => {
            let _ = schema.send(Err(error));
            return;
        }
    };
    spilled.begin(&physical);
    if schema.send(Ok(physical.schema())).is_err() {
        return;
    }
    let first = pump(physical, &job.state, &send).await;
    spilled.end();
    match first {
        // A hash join holds its smaller side in memory and cannot spill it. If nothing was given out yet, the query
        // may run again with joins that sort, and so spill.
        Err(Stopped { error, sent: false }) if is_hash_join_out_of_memory(&error) => {
            retried.store(true, Ordering::Relaxed);
            let second = match job.frugal.query_planner().create_physical_plan(&logical, &job.frugal).await {
                Ok(physical) => {
                    spilled.begin(&physical);
                    let second = pump(physical, &job.frugal, &send).await;
                    spilled.end();
                    second.map_err(|s| s.error)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = second {
                let _ = send.send(Err(error)).await;
            }
        }
        Err(Stopped { error, .. }) => {
            let _ = send.send(Err(error)).await;
        }
        Ok(()) => {}
    }
}

struct Stopped {
    error: DataFusionError,
    sent: bool,
}

/// Gives the batches of a plan on, until it ends or nobody wants them.
async fn pump(
    plan: Arc<dyn ExecutionPlan>,
    state: &SessionState,
    send: &mpsc::Sender<Result<RecordBatch, DataFusionError>>,
) -> Result<(), Stopped> {
    let mut sent = false;
    let mut batches = execute_stream(plan, state.task_ctx()).map_err(|error| Stopped { error, sent })?;
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(|error| Stopped { error, sent })?;
        if batch.num_rows() == 0 {
            continue;
        }
        sent = true;
        if send.send(Ok(batch)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn is_hash_join_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(text) if text.contains("HashJoinInput"))
}

/// One row more than the limit, so that the reader learns whether there was more.
fn limited(plan: LogicalPlan, row_limit: Option<u64>) -> Result<LogicalPlan, DataFusionError> {
    match (row_limit, &plan) {
        (None, _) | (_, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_)) => Ok(plan),
        (Some(limit), _) => {
            let fetch = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(1);
            LogicalPlanBuilder::from(plan).limit(0, Some(fetch))?.build()
        }
    }
}
