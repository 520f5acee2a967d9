//! What a micro-batch is as tensors, and how it goes to a device.

use tch::{Device, Kind, TchError, Tensor};

use super::error::BatchError;
use super::place::{Place, SegmentPlace, TokenPlace};
use crate::torch_error::TorchError;

/// One segment of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The recorder's id.
    pub trajectory_id: Box<str>,
    /// The segment within its trajectory.
    pub segment_index: i32,
    /// Where it begins in the packed tokens.
    pub start: usize,
    /// Its tokens.
    pub n_tokens: usize,
    /// Its tokens with gradient.
    pub n_trained: usize,
    /// Tokens before the response.
    pub response_start: usize,
    /// The advantage of each of its tokens.
    pub advantage: f64,
    /// What its summed token loss is multiplied with.
    pub loss_weight: f64,
    /// Whether it ended at its length limit.
    pub truncated: bool,
    /// Layers of its recorded router choices: all of the model's, or those that have experts. None if there are no choices.
    pub route_layers: Option<usize>,
}

/// Tensors over all T tokens of a micro-batch, its S segments end to end.
#[derive(Debug)]
pub struct PackedTokens {
    /// `[T]` int64.
    pub token_ids: Tensor,
    /// `[T]` int64: 0 where a segment begins.
    pub position_ids: Tensor,
    /// `[S + 1]` int32: where each segment begins, and T.
    pub cu_seqlens: Tensor,
    /// `[T]` int64: the segment of each token.
    pub segment_of: Tensor,
    /// `[T]` bool: tokens that receive gradient; never the first of a segment.
    pub loss_mask: Tensor,
    /// `[T]` float32: log-probs under the policy that sampled; 0 on context, NaN where unknown. None where
    /// no segment has any and the loss does not need them.
    pub logprobs: Option<Tensor>,
    /// `[T, layers, top_k]` int32: the experts that the router chose while sampling, −1 where the router has to choose itself
    /// (the last token of a segment, and segments without recorded choices). `layers` is the largest [`Segment::route_layers`];
    /// where a segment has fewer, they come first and the rest is −1. None where no segment has any.
    pub routed_experts: Option<Tensor>,
}

/// Tensors over the N trained tokens, in packed order. Losses work on these.
#[derive(Debug)]
pub struct TrainedTokens {
    /// `[N]` int64: their places in the packed tokens.
    pub rows: Tensor,
    /// `[N]` int64: the packed rows whose hidden state predicts them, one before.
    pub predictors: Tensor,
    /// `[N]` int64: their ids, the targets of the prediction.
    pub token_ids: Tensor,
    /// `[N]` int64: their segments.
    pub segment_of: Tensor,
    /// `[N]` float32: log-probs under the policy that sampled, NaN where unknown. None where no segment has any and the loss
    /// does not need them.
    pub logprobs: Option<Tensor>,
}

/// Numbers of the S segments.
#[derive(Debug)]
pub struct SegmentNumbers {
    /// `[S]` float64.
    pub advantages: Tensor,
    /// `[S]` float64.
    pub loss_weights: Tensor,
}

/// A micro-batch of one rank, checked. Of no segments where the rank has nothing to do.
#[derive(Debug)]
pub struct MicroBatch {
    pub(super) place: Place,
    pub(super) segments: Vec<Segment>,
    pub(super) trained_rows: Vec<i64>,
    pub(super) n_unpredicted: usize,
    /// All tokens.
    pub packed: PackedTokens,
    /// Those with gradient.
    pub trained: TrainedTokens,
    /// The segments' advantages and weights.
    pub numbers: SegmentNumbers,
}

impl MicroBatch {
    /// Which micro-batch it is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Its segments, in packed order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Where the N trained tokens stand in the packed ones.
    pub(crate) fn trained_rows(&self) -> &[i64] {
        &self.trained_rows
    }

    /// Whether the rank has nothing to do. It takes part in collectives all the same.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// T: all tokens.
    pub fn n_tokens(&self) -> usize {
        self.segments.last().map_or(0, |last| last.start + last.n_tokens)
    }

    /// N: tokens with gradient.
    pub fn n_trained(&self) -> usize {
        self.trained_rows.len()
    }

    /// Tokens with mask 1 that nothing predicts, because their segment begins with them. They have no loss.
    pub fn n_unpredicted(&self) -> usize {
        self.n_unpredicted
    }

    /// The longest segment.
    pub fn max_seqlen(&self) -> usize {
        self.segments.iter().map(|segment| segment.n_tokens).max().unwrap_or(0)
    }

    /// How messages name the token at a place of the packed tokens (below T).
    pub fn packed_place(&self, row: usize) -> Option<TokenPlace> {
        let after = self.segments.partition_point(|segment| segment.start <= row);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        let token = row - segment.start;
        (token < segment.n_tokens).then(|| TokenPlace {
            segment: SegmentPlace {
                place: self.place,
                trajectory_id: segment.trajectory_id.clone(),
                segment_index: segment.segment_index,
            },
            token,
        })
    }

    /// How messages name one of the N trained tokens.
    pub fn trained_place(&self, at: usize) -> Option<TokenPlace> {
        let row = self.trained_rows.get(at).copied()?;
        self.packed_place(usize::try_from(row).ok()?)
    }

    /// The same on a device. To CUDA it goes through pinned host memory without waiting for the copy.
    ///
    /// # Errors
    /// [`BatchError::Torch`], `Exhausted` where memory runs out.
    pub fn to_device(&self, device: Device) -> Result<Self, BatchError> {
        let to = |tensor: &Tensor| torch(self.place, moved(tensor, device));
        let maybe = |tensor: &Option<Tensor>| tensor.as_ref().map(to).transpose();
        let PackedTokens { token_ids, position_ids, cu_seqlens, segment_of, loss_mask, logprobs, routed_experts } =
            &self.packed;
        Ok(Self {
            place: self.place,
            segments: self.segments.clone(),
            trained_rows: self.trained_rows.clone(),
            n_unpredicted: self.n_unpredicted,
            packed: PackedTokens {
                token_ids: to(token_ids)?,
                position_ids: to(position_ids)?,
                cu_seqlens: to(cu_seqlens)?,
                segment_of: to(segment_of)?,
                loss_mask: to(loss_mask)?,
                logprobs: maybe(logprobs)?,
                routed_experts: maybe(routed_experts)?,
            },
            trained: TrainedTokens {
                rows: to(&self.trained.rows)?,
                predictors: to(&self.trained.predictors)?,
                token_ids: to(&self.trained.token_ids)?,
                segment_of: to(&self.trained.segment_of)?,
                logprobs: maybe(&self.trained.logprobs)?,
            },
            numbers: SegmentNumbers {
                advantages: to(&self.numbers.advantages)?,
                loss_weights: to(&self.numbers.loss_weights)?,
            },
        })
    }
}

fn moved(tensor: &Tensor, device: Device) -> Result<Tensor, TchError> {
    let kind: Kind = tensor.f_kind()?;
    match device {
        // pageable memory would make the copy wait; libtorch keeps the pinned block until the copy is done
        Device::Cuda(_) => tensor.f_pin_memory(device)?.f_to_device_(device, kind, true, false),
        _ => tensor.f_to_device(device),
    }
}

/// libtorch's answer as ours.
pub(super) fn torch<T>(place: Place, answer: Result<T, TchError>) -> Result<T, BatchError> {
    answer.map_err(|error| BatchError::Torch { place, source: TorchError::from(error) })
}
