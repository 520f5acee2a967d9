//! Two optimizer rules that know what a trajectory's key is: filters on columns of a trajectory pass below windows that
//! are partitioned by its key, and groups of a key need none of the trajectory's other columns.
//!
//! `WHERE trajectory_id = 'x'` on a view that numbers segments with a window would otherwise number the segments of
//! every trajectory first. If the partition keys determine the filtered columns, then the filter keeps or drops whole
//! partitions. Whether they do is found by following columns down to the scan of `stored.trajectories`, of which one row a
//! key is in force. The engine's own functional dependencies are not used, and the table declares no key: in a projection
//! that computes a column in front of others they name the wrong ones, and groups would be merged.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Aggregate, Expr, Filter, LogicalPlan, Projection, Window};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use dressage_schemas::Table;

use crate::catalog::STORED;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FilterBelowKeyedWindow;

/// The engine's rules.
type Rules = Vec<Arc<dyn OptimizerRule + Send + Sync>>;

impl FilterBelowKeyedWindow {
    /// The rules with this one behind the engine's own filter push-down: at the end of the list, the rule that narrows
    /// columns would have put a projection between filter and window again.
    pub(crate) fn among(mut rules: Rules) -> Rules {
        let after = rules.iter().position(|rule| rule.name() == "push_down_filter").map_or(rules.len(), |i| i + 1);
        rules.insert(after, Arc::new(Self));
        // behind the rule that narrows columns, which puts what is asked for right above a grouping
        rules.push(Arc::new(GroupByKeyAlone));
        rules
    }
}

impl OptimizerRule for FilterBelowKeyedWindow {
    fn name(&self) -> &str {
        "filter_below_keyed_window"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = plan else { return Ok(Transformed::no(plan)) };
        let LogicalPlan::Window(window) = filter.input.as_ref() else {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        };
        let constant = constant_in_partition(window);
        let input = window.input.schema();
        let (below, above): (Vec<_>, Vec<_>) =
            split_conjunction_owned(filter.predicate.clone()).into_iter().partition(|part| {
                !part.is_volatile()
                    && !part.column_refs().is_empty()
                    && part
                        .column_refs()
                        .iter()
                        .all(|c| input.maybe_index_of_column(c).is_some_and(|i| constant.contains(&i)))
            });
        let Some(below) = conjunction(below) else { return Ok(Transformed::no(LogicalPlan::Filter(filter))) };
        let filtered = Filter::try_new(below, Arc::clone(&window.input))?;
        let window = Window::try_new(window.window_expr.clone(), Arc::new(LogicalPlan::Filter(filtered)))?;
        let plan = LogicalPlan::Window(window);
        Ok(Transformed::yes(match conjunction(above) {
            Some(above) => LogicalPlan::Filter(Filter::try_new(above, Arc::new(plan))?),
            None => plan,
        }))
    }
}

/// Takes those columns out of a grouping that its key determines and nobody above asks for, so that they need not be read,
/// sorted and hashed.
#[derive(Debug, Default)]
pub(crate) struct GroupByKeyAlone;

impl OptimizerRule for GroupByKeyAlone {
    fn name(&self) -> &str {
        "group_by_key_alone"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Projection(projection) = plan else { return Ok(Transformed::no(plan)) };
        let LogicalPlan::Aggregate(aggregate) = projection.input.as_ref() else {
            return Ok(Transformed::no(LogicalPlan::Projection(projection)));
        };
        let asked: HashSet<usize> = projection
            .expr
            .iter()
            .flat_map(|expr| expr.column_refs())
            .filter_map(|column| aggregate.schema.maybe_index_of_column(column))
            .collect();
        let origins: Vec<Option<Origin>> = aggregate
            .group_expr
            .iter()
            .map(|expr| same_column(expr, &aggregate.input).and_then(|i| origin(&aggregate.input, i, Vec::new())))
            .collect();
        let is_key = |o: &&Origin| o.column == TRAJECTORY_KEY;
        let keyed: Vec<&[bool]> = origins.iter().flatten().filter(is_key).map(|o| o.path.as_slice()).collect();
        let needed = |index: usize| match &origins[index] {
            Some(o) => asked.contains(&index) || is_key(&o) || !keyed.contains(&o.path.as_slice()),
            None => true,
        };
        let kept: Vec<Expr> =
            aggregate.group_expr.iter().enumerate().filter(|(i, _)| needed(*i)).map(|(_, e)| e.clone()).collect();
        if kept.len() == aggregate.group_expr.len() {
            return Ok(Transformed::no(LogicalPlan::Projection(projection)));
        }
        let aggregate = Aggregate::try_new(Arc::clone(&aggregate.input), kept, aggregate.aggr_expr.clone())?;
        let projection = Projection::try_new(projection.expr, Arc::new(LogicalPlan::Aggregate(aggregate)))?;
        Ok(Transformed::yes(LogicalPlan::Projection(projection)))
    }
}

/// What names a trajectory.
const TRAJECTORY_KEY: &str = "trajectory_key";

/// Columns of the window's input (by index) that have one value in each partition of each of its functions.
fn constant_in_partition(window: &Window) -> HashSet<usize> {
    let input = window.input.schema();
    let mut common: Option<HashSet<usize>> = None;
    for expr in &window.window_expr {
        let Expr::WindowFunction(function) = expr.clone().unalias() else { return HashSet::new() };
        let keys: HashSet<usize> = function
            .params
            .partition_by
            .iter()
            .filter_map(|key| match key {
                Expr::Column(column) => input.maybe_index_of_column(column),
                _ => None,
            })
            .collect();
        common = Some(match common {
            Some(before) => before.intersection(&keys).copied().collect(),
            None => keys,
        });
    }
    let mut constant = common.unwrap_or_default();
    let origins: Vec<Option<Origin>> =
        (0..input.fields().len()).map(|i| origin(&window.input, i, Vec::new())).collect();
    let keyed: Vec<&[bool]> = constant
        .iter()
        .filter_map(|i| origins.get(*i)?.as_ref())
        .filter(|origin| origin.column == TRAJECTORY_KEY)
        .map(|origin| origin.path.as_slice())
        .collect();
    let of_keyed = |origin: &Option<Origin>| origin.as_ref().is_some_and(|o| keyed.contains(&o.path.as_slice()));
    let determined: Vec<usize> =
        origins.iter().enumerate().filter(|(_, origin)| of_keyed(origin)).map(|(i, _)| i).collect();
    constant.extend(determined);
    constant
}

/// A column of a scan of `stored.trajectories`; the path says which scan, by the side taken at every join on the way.
#[derive(Debug)]
struct Origin {
    path: Vec<bool>,
    column: String,
}

/// Where a column of a plan (by index) comes from, if it comes from such a scan unchanged.
fn origin(plan: &LogicalPlan, index: usize, mut path: Vec<bool>) -> Option<Origin> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let is_trajectories =
                scan.table_name.schema() == Some(STORED) && scan.table_name.table() == Table::Trajectories.name();
            let column = plan.schema().fields().get(index)?.name().clone();
            is_trajectories.then_some(Origin { path, column })
        }
        LogicalPlan::SubqueryAlias(alias) => origin(&alias.input, index, path),
        LogicalPlan::Filter(filter) => origin(&filter.input, index, path),
        LogicalPlan::Sort(sort) => origin(&sort.input, index, path),
        LogicalPlan::Window(window) if index < window.input.schema().fields().len() => {
            origin(&window.input, index, path)
        }
        LogicalPlan::Projection(projection) => {
            same_column(projection.expr.get(index)?, &projection.input).and_then(|i| origin(&projection.input, i, path))
        }
        LogicalPlan::Aggregate(aggregate) => same_column(aggregate.group_expr.get(index)?, &aggregate.input)
            .and_then(|i| origin(&aggregate.input, i, path)),
        LogicalPlan::Join(join) if matches!(join.join_type, JoinType::Inner | JoinType::Left) => {
            let left = join.left.schema().fields().len();
            path.push(index >= left);
            if index < left { origin(&join.left, index, path) } else { origin(&join.right, index - left, path) }
        }
        _ => None,
    }
}

/// The index of the input's column that an expression gives on as it is.
fn same_column(expr: &Expr, input: &LogicalPlan) -> Option<usize> {
    match expr.clone().unalias() {
        Expr::Column(column) => input.schema().maybe_index_of_column(&column),
        _ => None,
    }
}
