//! `percentile(values, p)`: the exact percentile with interpolation, a shorter name for the engine's
//! `percentile_cont`. (`approx_percentile_cont` is there for columns too large to hold.)

use datafusion::functions_aggregate::percentile_cont::percentile_cont_udaf;
use datafusion::logical_expr::AggregateUDF;

/// The short name.
pub(super) const NAME: &str = "percentile";

pub(super) fn function() -> AggregateUDF {
    percentile_cont_udaf().as_ref().clone().with_aliases([NAME])
}
