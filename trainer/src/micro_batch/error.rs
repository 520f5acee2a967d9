//! What can be wrong with a micro-batch.

use dressage_schemas::ErrorKind;

use super::place::{Place, SegmentPlace, TokenPlace};
use crate::torch_error::TorchError;

/// Why a micro-batch cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A column is not there.
    #[error("{place}: column `{column}` is missing; stream it too (dressage batches --columns)")]
    MissingColumn {
        /// The micro-batch.
        place: Place,
        /// The column.
        column: &'static str,
    },
    /// A column has another type.
    #[error("{place}: column `{column}` has type {found}, needed is {expected}")]
    ColumnType {
        /// The micro-batch.
        place: Place,
        /// The column.
        column: &'static str,
        /// Its type.
        found: Box<str>,
        /// The type of `docs/batches.md`.
        expected: &'static str,
    },
    /// A cell is null that must not be.
    #[error("{place}: column `{column}` is null in row {row}")]
    NullCell {
        /// The micro-batch.
        place: Place,
        /// The column.
        column: &'static str,
        /// 0-based.
        row: usize,
    },
    /// A token-aligned list has a null item.
    #[error("{at}: `{column}` is null")]
    NullItem {
        /// The first such token.
        at: TokenPlace,
        /// The column.
        column: &'static str,
    },
    /// A token-aligned list is of another length than the segment.
    #[error("{at}: `{column}` has {found} items, the segment has {n_tokens} tokens")]
    ListLength {
        /// The segment.
        at: SegmentPlace,
        /// The column.
        column: &'static str,
        /// Items of the list.
        found: usize,
        /// `n_tokens`.
        n_tokens: i64,
    },
    /// A segment of no tokens.
    #[error("{at}: has no tokens")]
    NoTokens {
        /// The segment.
        at: SegmentPlace,
    },
    /// A segment is longer than the model's positions.
    #[error(
        "{at}: has {n_tokens} tokens, the model has {positions_max} positions; plan with max_segment_tokens={positions_max}"
    )]
    TooLong {
        /// The segment.
        at: SegmentPlace,
        /// Its tokens.
        n_tokens: usize,
        /// Positions of the model.
        positions_max: usize,
    },
    /// A token id that the model's vocabulary does not have.
    #[error(
        "{at}: token id {token_id} is outside of the model's vocabulary of {vocab_size}: was it recorded with another tokenizer?"
    )]
    TokenId {
        /// The first such token.
        at: TokenPlace,
        /// The id.
        token_id: i32,
        /// Ids must be below.
        vocab_size: usize,
    },
    /// Positions do not count up from 0.
    #[error("{at}: its position is {found}")]
    Position {
        /// The first such token.
        at: TokenPlace,
        /// `position_ids` there.
        found: i32,
    },
    /// A mask that is neither 0 nor 1.
    #[error("{at}: loss_mask is {found}, neither 0 nor 1")]
    Mask {
        /// The first such token.
        at: TokenPlace,
        /// `loss_mask` there.
        found: i8,
    },
    /// The loss needs log-probs of the rollout, and the segment has none.
    #[error(
        "{at}: has no logprobs of the rollout, which the loss needs; train with old_logprobs = \"recomputed\" and correction kind = \"none\", or leave it out of the plan"
    )]
    MissingLogprobs {
        /// The first trained token without.
        at: TokenPlace,
    },
    /// A number of a segment is NaN or infinite.
    #[error("{at}: `{column}` is {value}")]
    NotFinite {
        /// The segment.
        at: SegmentPlace,
        /// The column.
        column: &'static str,
        /// The number.
        value: f64,
    },
    /// Router choices of another shape than the model's.
    #[error(
        "{at}: its routed experts are of {layers} layers and {top_k} experts a token, the model has {model_layers} layers, \
         {model_expert_layers} with experts, and {model_top_k} experts a token"
    )]
    RoutesShape {
        /// The segment.
        at: SegmentPlace,
        /// Layers of the choices.
        layers: i32,
        /// Experts a token of the choices.
        top_k: i32,
        /// Layers of the model; 0 for a dense model.
        model_layers: usize,
        /// Of them, layers that have experts.
        model_expert_layers: usize,
        /// Experts a token of the model; 0 for a dense model.
        model_top_k: usize,
    },
    /// Router choices in a type that is none of ours.
    #[error("{at}: routed_experts_dtype is `{found}`, neither uint8 nor uint16")]
    RoutesDtype {
        /// The segment.
        at: SegmentPlace,
        /// What it says.
        found: Box<str>,
    },
    /// Router choices whose bytes are not `[n_tokens − 1, layers, top_k]`.
    #[error("{at}: its routed experts have {found} bytes, {expected} are n_tokens - 1 rows")]
    RoutesLength {
        /// The segment.
        at: SegmentPlace,
        /// Bytes that there are.
        found: usize,
        /// Bytes that there should be.
        expected: usize,
    },
    /// An expert that the model does not have.
    #[error("{at}: layer {layer} was routed to expert {expert_id} (choice {rank}), the model has {n_experts} experts")]
    ExpertId {
        /// The first such token.
        at: TokenPlace,
        /// 0-based.
        layer: usize,
        /// Which of the token's choices, 0-based.
        rank: usize,
        /// The id.
        expert_id: usize,
        /// Ids must be below.
        n_experts: usize,
    },
    /// libtorch refused.
    #[error("{place}: its tensors could not be made")]
    Torch {
        /// The micro-batch.
        place: Place,
        /// What it said.
        source: TorchError,
    },
}

impl BatchError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::MissingColumn { .. }
            | Self::ColumnType { .. }
            | Self::TooLong { .. }
            | Self::TokenId { .. }
            | Self::MissingLogprobs { .. }
            | Self::RoutesShape { .. }
            | Self::ExpertId { .. } => ErrorKind::Invalid,
            Self::NullCell { .. }
            | Self::NullItem { .. }
            | Self::ListLength { .. }
            | Self::NoTokens { .. }
            | Self::Position { .. }
            | Self::Mask { .. }
            | Self::NotFinite { .. }
            | Self::RoutesDtype { .. }
            | Self::RoutesLength { .. } => ErrorKind::Corrupt,
            Self::Torch { source, .. } => source.kind(),
        }
    }
}
