//! The scan of one stored table: one partition for each group of fragments, read on the I/O runtime.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
};
use dressage_schemas::Table;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::dynamic::{Lowered, dynamic_predicate, refers_to};
use super::source::{ExcludedRows, Fragment, LakeSource, ROW_ADDRESS, ScanRequest, SourceError};

/// Batches that wait between the I/O runtime and the engine, for each partition.
const BATCHES_AHEAD: usize = 2;

/// How a scan of a table that is in memory filters: by itself.
#[derive(Debug, Clone)]
pub(super) struct OwnFilter {
    /// The columns that are read: those that come out, then those that only the filter needs.
    pub(super) read: SchemaRef,
    /// Over those; none where every row comes out.
    pub(super) filter: Option<Arc<dyn PhysicalExpr>>,
}

/// What a scan reads, apart from what the optimizer still adds.
#[derive(Debug, Clone)]
pub(super) struct ScanPlan {
    pub(super) table: Table,
    /// The columns that come out.
    pub(super) schema: SchemaRef,
    pub(super) filter: Option<String>,
    /// Set where the table is in memory: `filter` is then only shown.
    pub(super) own_filter: Option<OwnFilter>,
    /// Whether the filter is of the kind that most rows pass.
    pub(super) most_match: bool,
    pub(super) batch_rows: usize,
    pub(super) partitions: Vec<Vec<Fragment>>,
    pub(super) excluded: ExcludedRows,
    /// Bytes of a row in memory, about.
    pub(super) row_bytes: usize,
    /// Rows that come out, before a limit.
    pub(super) rows: Precision<usize>,
}

/// The physical scan.
#[derive(Debug, Clone)]
pub(super) struct LakeScan {
    source: Arc<dyn LakeSource>,
    io: Handle,
    plan: Arc<ScanPlan>,
    fetch: Option<usize>,
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl LakeScan {
    pub(super) fn new(source: Arc<dyn LakeSource>, io: Handle, plan: ScanPlan, fetch: Option<usize>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&plan.schema)),
            Partitioning::UnknownPartitioning(plan.partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Self {
            source,
            io,
            plan: Arc::new(plan),
            fetch,
            dynamic: Vec::new(),
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// What to ask the source for, at the moment of the first poll: only then do dynamic filters say
    /// anything. None where they say that no row can match.
    fn request(&self, partition: usize) -> Option<ScanRequest> {
        let plan = &self.plan;
        let mut columns: Vec<String> = plan.read().fields().iter().map(|f| f.name().clone()).collect();
        if columns.is_empty() {
            // rows are counted, no value is wanted: read the cheapest column that every table has first
            columns.push(plan.table.schema().field(0).name().clone());
        }
        if let Some(own) = &plan.own_filter {
            let all = plan.excluded.is_empty() && own.filter.is_none();
            return Some(ScanRequest {
                table: plan.table,
                columns,
                filter: None,
                limit: self.fetch.filter(|_| all).map(|n| n as u64),
                fragments: None,
                batch_rows: plan.batch_rows,
                row_address: !plan.excluded.is_empty(),
                most_match: true,
            });
        }
        let mut most_match = plan.most_match;
        let filter = match (plan.filter.clone(), dynamic_predicate(&self.dynamic, &plan.schema)) {
            (_, Lowered::Nothing) => return None,
            (fixed, Lowered::Sql(dynamic)) => {
                most_match = false;
                Some(match fixed {
                    Some(fixed) => format!("{fixed} AND {dynamic}"),
                    None => dynamic,
                })
            }
            (fixed, Lowered::Anything) => fixed,
        };
        Some(ScanRequest {
            table: plan.table,
            columns,
            filter,
            // with hidden rows the first n stored ones need not hold n visible ones
            limit: if plan.excluded.is_empty() { self.fetch.map(|n| n as u64) } else { None },
            // an index look-up over all fragments is cheaper than one that is told all of them
            fragments: (plan.partitions.len() > 1).then(|| plan.partitions[partition].iter().map(|f| f.id).collect()),
            batch_rows: plan.batch_rows,
            row_address: !plan.excluded.is_empty(),
            most_match,
        })
    }
}

impl DisplayAs for LakeScan {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        let columns: Vec<_> = plan.schema.fields().iter().map(|c| c.name().as_str()).collect();
        let (equals, comma) = match format {
            DisplayFormatType::TreeRender => ("=", "\n"),
            _ => {
                write!(f, "LakeScan: ")?;
                ("=", ", ")
            }
        };
        write!(f, "table{equals}{}{comma}columns{equals}[{}]", plan.table, columns.join(", "))?;
        if let Some(filter) = &plan.filter {
            write!(f, "{comma}filter{equals}{filter}")?;
        }
        if !self.dynamic.is_empty() {
            write!(f, "{comma}dynamic_filters{equals}{}", self.dynamic.len())?;
        }
        if let Some(fetch) = self.fetch {
            write!(f, "{comma}limit{equals}{fetch}")?;
        }
        if !plan.excluded.is_empty() {
            write!(f, "{comma}hidden_rows{equals}{}", plan.excluded.len())?;
        }
        Ok(())
    }
}

impl ExecutionPlan for LakeScan {
    fn name(&self) -> &'static str {
        "LakeScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("a LakeScan has no children") }
    }

    fn execute(&self, partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition >= self.plan.partitions.len() {
            return internal_err!("LakeScan has {} partitions, not {partition}", self.plan.partitions.len());
        }
        let scan = self.clone();
        let schema = Arc::clone(&self.plan.schema);
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let mut left = self.fetch.unwrap_or(usize::MAX);
        // the scan starts on the first poll: a join has then read its other side
        let stream = futures::stream::once(async move { scan.start(partition) }).flatten();
        let stream = stream
            .map_ok(move |batch| {
                let batch = if batch.num_rows() > left { batch.slice(0, left) } else { batch };
                left -= batch.num_rows();
                (batch, left == 0)
            })
            .scan(false, |done, item| {
                let stop = *done;
                *done = matches!(item, Ok((_, true)) | Err(_));
                futures::future::ready((!stop).then_some(item))
            })
            .map(move |item| {
                let (batch, _) = item?;
                metrics.record_output(batch.num_rows());
                Ok(batch)
            });
        let stream = RecordBatchStreamAdapter::new(schema, stream);
        Ok(datafusion::physical_plan::coop::make_cooperative(Box::pin(stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let plan = &self.plan;
        let rows = match partition {
            None => plan.rows,
            Some(i) => {
                let part: u64 = plan.partitions.get(i).map_or(0, |p| p.iter().map(|f| f.row_count).sum());
                let total: u64 = plan.partitions.iter().flatten().map(|f| f.row_count).sum();
                match plan.rows {
                    Precision::Exact(rows) if rows as u64 == total => Precision::Exact(part as usize),
                    Precision::Exact(rows) | Precision::Inexact(rows) if total > 0 => {
                        Precision::Inexact((rows as f64 * part as f64 / total as f64) as usize)
                    }
                    other => other,
                }
            }
        };
        let rows = match self.fetch {
            Some(fetch) => rows.map_at_most(fetch),
            None => rows,
        };
        let column_statistics = plan
            .schema
            .fields()
            .iter()
            .map(|field| {
                let column = ColumnStatistics::new_unknown();
                if field.is_nullable() { column } else { column.with_null_count(Precision::Exact(0)) }
            })
            .collect();
        let total_byte_size = match rows {
            Precision::Exact(n) | Precision::Inexact(n) => Precision::Inexact(n.saturating_mul(plan.row_bytes)),
            Precision::Absent => Precision::Absent,
        };
        Ok(Arc::new(Statistics { num_rows: rows, total_byte_size, column_statistics }))
    }

    fn supports_limit_pushdown(&self) -> bool {
        false
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(Self { fetch: limit, ..self.clone() }))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let filters: Vec<_> = result.parent_filters.into_iter().map(|f| f.filter).collect();
        let answer = FilterPushdownPropagation::with_parent_pushdown_result(vec![PushedDown::No; filters.len()]);
        if !matches!(phase, FilterPushdownPhase::Post) {
            return Ok(answer);
        }
        let hints: Vec<_> = filters
            .into_iter()
            .filter(|f| {
                let f: &dyn Any = f.as_ref();
                f.is::<datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr>()
            })
            .filter(|f| refers_to(f, &self.plan.schema))
            .collect();
        if hints.is_empty() {
            return Ok(answer);
        }
        let mut node = self.clone();
        node.dynamic.extend(hints);
        Ok(answer.with_updated_node(Arc::new(node)))
    }
}

impl LakeScan {
    /// Starts the scan on the I/O runtime and gives its batches.
    fn start(&self, partition: usize) -> BoxStream<'static, Result<RecordBatch>> {
        let Some(request) = self.request(partition) else { return futures::stream::empty().boxed() };
        let source = Arc::clone(&self.source);
        let (send, receive) = mpsc::channel(BATCHES_AHEAD);
        let task = self.io.spawn(async move {
            let mut batches = match source.scan(request).await {
                Ok(batches) => batches,
                Err(error) => {
                    let _ = send.send(Err(error)).await;
                    return;
                }
            };
            while let Some(batch) = batches.next().await {
                // a closed channel means that the query is over
                if send.send(batch).await.is_err() {
                    return;
                }
            }
        });
        let plan = Arc::clone(&self.plan);
        let running = Running { receive, task };
        futures::stream::unfold(running, |mut running| async move {
            match running.receive.recv().await {
                Some(item) => Some((item, running)),
                None => running.failure().await.map(|error| (Err(error), running)),
            }
        })
        .map(move |batch| {
            let batch = batch.map_err(|e| DataFusionError::External(Box::new(e)))?;
            visible(&batch, &plan)
        })
        .boxed()
    }
}

/// A scan that runs on the I/O runtime; dropping it stops the scan.
struct Running {
    receive: mpsc::Receiver<Result<RecordBatch, SourceError>>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    /// The panic of the scan's task, if that is why no more batches come: an end without it would look like success.
    async fn failure(&mut self) -> Option<SourceError> {
        match (&mut self.task).await {
            Ok(()) => None,
            Err(error) if error.is_cancelled() => {
                Some(SourceError::new(dressage_schemas::ErrorKind::Unavailable, "the scan was cancelled"))
            }
            Err(error) => Some(SourceError::new(dressage_schemas::ErrorKind::Internal, error)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ScanPlan {
    /// The columns that the source is asked for.
    fn read(&self) -> &SchemaRef {
        self.own_filter.as_ref().map_or(&self.schema, |own| &own.read)
    }
}

/// Hides superseded rows, puts the columns under the plan's schema, and filters where the source was told no filter.
fn visible(batch: &RecordBatch, plan: &ScanPlan) -> Result<RecordBatch> {
    let kept = if plan.excluded.is_empty() {
        None
    } else {
        let Some(addresses) = batch.column_by_name(ROW_ADDRESS).and_then(|c| c.as_primitive_opt::<UInt64Type>()) else {
            return internal_err!("a scan of {} gave no row addresses", plan.table);
        };
        let keep: BooleanArray = addresses.values().iter().map(|a| Some(!plan.excluded.contains(*a))).collect();
        Some(filter_record_batch(batch, &keep)?)
    };
    let batch = kept.as_ref().unwrap_or(batch);
    let read = plan.read();
    let mut columns = Vec::with_capacity(read.fields().len());
    for field in read.fields() {
        let Some(column) = batch.column_by_name(field.name()) else {
            return internal_err!("a scan of {} gave no column {}", plan.table, field.name());
        };
        if column.data_type() == field.data_type() {
            columns.push(Arc::clone(column));
        } else {
            columns.push(cast(column, field.data_type())?);
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(read), columns, &options)?;
    let Some(OwnFilter { filter: Some(filter), .. }) = &plan.own_filter else { return Ok(batch) };
    let mask = filter.evaluate(&batch)?.into_array(batch.num_rows())?;
    let Some(mask) = mask.as_boolean_opt() else {
        return internal_err!("the filter of {} gives no truth values", plan.table);
    };
    let shown: Vec<usize> = (0..plan.schema.fields().len()).collect();
    Ok(filter_record_batch(&batch.project(&shown)?, mask)?)
}

/// `Precision` has no minimum with a constant that keeps exactness.
trait AtMost {
    fn map_at_most(self, most: usize) -> Self;
}

impl AtMost for Precision<usize> {
    fn map_at_most(self, most: usize) -> Self {
        match self {
            Self::Exact(n) => Self::Exact(n.min(most)),
            Self::Inexact(n) => Self::Inexact(n.min(most)),
            Self::Absent => Self::Inexact(most),
        }
    }
}
