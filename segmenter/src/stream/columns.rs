//! What a batch holds: one row a sample.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::error::{Error, Result};

/// A column of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchColumn {
    /// The recorder's id.
    TrajectoryId,
    /// The segment within its trajectory.
    SegmentIndex,
    /// Tokens of the sample, after the cap: the length of every token-aligned list.
    NTokens,
    /// Tokens before the first one with gradient.
    ResponseStart,
    /// Token ids.
    TokenIds,
    /// `0 … n_tokens − 1`: samples of a batch may be laid end to end.
    PositionIds,
    /// 1 where a token receives gradient, after version masking.
    LossMask,
    /// Log-probabilities under the policy that sampled; 0 on context, NaN where unknown. Null where the source had none.
    Logprobs,
    /// Weight versions as runs: their names. Null where the source had none.
    WeightVersions,
    /// The tokens of each run of `weight_versions`.
    WeightVersionLengths,
    /// The sample's advantage; the same for each of its tokens.
    Advantage,
    /// What the sample's summed token loss is multiplied with.
    LossWeight,
    /// Whether the segment ended at its length limit.
    Truncated,
    /// Router choices `[n_tokens − 1, layers, topk]`, plain and little-endian. Null unless every step has them.
    RoutedExperts,
    /// The type of an id in `routed_experts`: the same for all rows of a batch.
    RoutedExpertsDtype,
    /// Layers of `routed_experts`.
    RoutedExpertsLayers,
    /// Ids a token and layer of `routed_experts`.
    RoutedExpertsTopk,
}

/// All columns, in order. Those of router choices come only when asked for.
pub const BATCH_COLUMNS: [BatchColumn; 17] = [
    BatchColumn::TrajectoryId,
    BatchColumn::SegmentIndex,
    BatchColumn::NTokens,
    BatchColumn::ResponseStart,
    BatchColumn::TokenIds,
    BatchColumn::PositionIds,
    BatchColumn::LossMask,
    BatchColumn::Logprobs,
    BatchColumn::WeightVersions,
    BatchColumn::WeightVersionLengths,
    BatchColumn::Advantage,
    BatchColumn::LossWeight,
    BatchColumn::Truncated,
    BatchColumn::RoutedExperts,
    BatchColumn::RoutedExpertsDtype,
    BatchColumn::RoutedExpertsLayers,
    BatchColumn::RoutedExpertsTopk,
];

impl BatchColumn {
    /// Its name in a batch.
    pub fn name(self) -> &'static str {
        match self {
            Self::TrajectoryId => "trajectory_id",
            Self::SegmentIndex => "segment_index",
            Self::NTokens => "n_tokens",
            Self::ResponseStart => "response_start",
            Self::TokenIds => "token_ids",
            Self::PositionIds => "position_ids",
            Self::LossMask => "loss_mask",
            Self::Logprobs => "logprobs",
            Self::WeightVersions => "weight_versions",
            Self::WeightVersionLengths => "weight_version_lengths",
            Self::Advantage => "advantage",
            Self::LossWeight => "loss_weight",
            Self::Truncated => "truncated",
            Self::RoutedExperts => "routed_experts",
            Self::RoutedExpertsDtype => "routed_experts_dtype",
            Self::RoutedExpertsLayers => "routed_experts_layers",
            Self::RoutedExpertsTopk => "routed_experts_topk",
        }
    }

    /// The column of that name.
    ///
    /// # Errors
    /// `Invalid` where there is none, naming those that there are.
    pub fn parse(name: &str) -> Result<Self> {
        BATCH_COLUMNS.into_iter().find(|column| column.name() == name).ok_or_else(|| Error::BatchColumn {
            name: name.to_owned(),
            known: BATCH_COLUMNS.map(Self::name).join(", "),
        })
    }

    /// Whether it is read from the routed experts of steps.
    pub fn is_routed(self) -> bool {
        self >= Self::RoutedExperts
    }

    fn field(self) -> Field {
        let list = |item: DataType| DataType::List(Arc::new(Field::new_list_field(item, true)));
        let (data_type, nullable) = match self {
            Self::TrajectoryId => (DataType::Utf8, false),
            Self::SegmentIndex | Self::NTokens | Self::ResponseStart => (DataType::Int32, false),
            Self::TokenIds | Self::PositionIds => (list(DataType::Int32), false),
            Self::LossMask => (list(DataType::Int8), false),
            Self::Logprobs => (list(DataType::Float32), true),
            Self::WeightVersions => (list(DataType::Utf8), true),
            Self::WeightVersionLengths => (list(DataType::Int32), true),
            Self::Advantage | Self::LossWeight => (DataType::Float64, false),
            Self::Truncated => (DataType::Boolean, false),
            Self::RoutedExperts => (DataType::LargeBinary, true),
            Self::RoutedExpertsDtype => (DataType::Utf8, true),
            Self::RoutedExpertsLayers | Self::RoutedExpertsTopk => (DataType::Int32, true),
        };
        Field::new(self.name(), data_type, nullable)
    }
}

impl fmt::Display for BatchColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The columns of a stream: those asked for in the order of [`BATCH_COLUMNS`], or all; router choices only if wanted.
pub(super) fn chosen(asked: Option<&[BatchColumn]>, with_experts: bool) -> Vec<BatchColumn> {
    let wanted = |column: &BatchColumn| match asked {
        Some(asked) => asked.contains(column) || (column.is_routed() && with_experts),
        None => !column.is_routed() || with_experts,
    };
    BATCH_COLUMNS.into_iter().filter(wanted).collect()
}

/// The Arrow schema of these columns.
pub(super) fn schema(columns: &[BatchColumn]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|column| column.field()).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_choices_come_only_when_asked_for() {
        assert!(!chosen(None, false).iter().any(|column| column.is_routed()));
        assert_eq!(chosen(None, true).len(), BATCH_COLUMNS.len());
        assert_eq!(
            chosen(Some(&[BatchColumn::LossMask, BatchColumn::NTokens]), false),
            [BatchColumn::NTokens, BatchColumn::LossMask]
        );
    }

    #[test]
    fn an_unknown_column_is_told_with_those_there_are() {
        let error = BatchColumn::parse("tokens").unwrap_err().to_string();
        assert!(error.contains("tokens") && error.contains("token_ids"), "{error}");
    }
}
