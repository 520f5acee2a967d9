//! An optimizer rule: filters on columns of a trajectory pass below windows that are partitioned by its key.
//!
//! `WHERE trajectory_id = 'x'` on a view that numbers segments with a window would otherwise number the segments of
//! every trajectory first. The rule is sound for any table with a primary key: if the partition keys determine the
//! filtered columns, then the filter keeps or drops whole partitions.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Window};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

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
    for dependency in input.functional_dependencies().iter() {
        if !dependency.nullable && dependency.source_indices.iter().all(|i| constant.contains(i)) {
            constant.extend(dependency.target_indices.iter().copied());
        }
    }
    constant
}
