//! A packed row: several segments end to end, each with positions from 0 and no sight of the others.

use tch::{Device, Tensor};

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::micro_batch::MicroBatch;
use crate::routing::RoutedExperts;

/// A run of tokens that is seen as one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its tokens.
    pub token_ids: Vec<i32>,
    /// The experts that the router chose when it was sampled, to be chosen again (R3); none lets the router choose.
    pub routed_experts: Option<RoutedExperts>,
}

impl Segment {
    /// Tokens whose experts the router chooses.
    pub fn of(token_ids: Vec<i32>) -> Self {
        Self { token_ids, routed_experts: None }
    }
}

/// The segments of one micro-batch as one row of `T` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedRow {
    token_ids: Vec<i64>,
    lengths: Vec<usize>,
    routed_experts: Vec<Option<RoutedExperts>>,
}

impl PackedRow {
    /// Puts segments end to end.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyRow`] without segments or for one without tokens.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        if segments.is_empty() || segments.iter().any(|s| s.token_ids.is_empty()) {
            return Err(Error::EmptyRow);
        }
        let lengths = segments.iter().map(|s| s.token_ids.len()).collect();
        let token_ids = segments.iter().flat_map(|s| &s.token_ids).map(|t| i64::from(*t)).collect();
        Ok(Self { token_ids, lengths, routed_experts: segments.into_iter().map(|s| s.routed_experts).collect() })
    }

    /// The row of a checked micro-batch. None for one of no segments.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyRow`] for a segment without tokens, [`Error::Torch`] if the tensors cannot be copied from the device.
    pub fn of(batch: &MicroBatch) -> Result<Option<Self>> {
        if batch.is_empty() {
            return Ok(None);
        }
        let to_host = |tensor: &Tensor| tensor.f_to_device(Device::Cpu)?.f_reshape([-1]);
        let token_ids = Vec::<i64>::try_from(to_host(&batch.packed.token_ids)?)?;
        let recorded = match &batch.packed.routed_experts {
            Some(routed) => {
                let (_, n_layers, top_k) = routed.size3()?;
                Some((Vec::<i32>::try_from(to_host(routed)?)?, n_layers as usize, top_k as usize))
            }
            None => None,
        };
        let (mut lengths, mut routed_experts) = (Vec::new(), Vec::new());
        for segment in batch.segments() {
            let Some(n_chosen) = segment.n_tokens.checked_sub(1) else { return Err(Error::EmptyRow) };
            lengths.push(segment.n_tokens);
            routed_experts.push(match (&recorded, segment.route_layers) {
                (Some((ids, n_layers, top_k)), Some(own_layers)) => {
                    let (width, own_width) = (n_layers * top_k, own_layers * top_k);
                    let tokens = ids[segment.start * width..(segment.start + n_chosen) * width].chunks_exact(width);
                    // an expert's number is below that of the model, and fits
                    let own = tokens.flat_map(|token| &token[..own_width]).map(|id| *id as u16).collect();
                    Some(RoutedExperts::new(own, own_layers, *top_k)?)
                }
                _ => None,
            });
        }
        Ok(Some(Self { token_ids, lengths, routed_experts }))
    }

    /// Tokens of all segments.
    pub fn n_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Tokens of each segment.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The tokens, `[T]`.
    pub fn token_ids(&self) -> &[i64] {
        &self.token_ids
    }

    /// The recorded experts of each segment.
    pub fn routed_experts(&self) -> &[Option<RoutedExperts>] {
        &self.routed_experts
    }

    /// The same tokens with other experts, one entry a segment.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`] for another number of segments.
    pub fn with_routed_experts(mut self, routed_experts: Vec<Option<RoutedExperts>>) -> Result<Self> {
        if routed_experts.len() != self.lengths.len() {
            return Err(Error::LengthMismatch {
                what: "routed_experts of a row",
                expected: self.lengths.len(),
                found: routed_experts.len(),
            });
        }
        self.routed_experts = routed_experts;
        Ok(self)
    }

    /// One of its segments as a row of its own.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyRow`] if there is no such segment.
    pub(crate) fn segment_alone(&self, segment: usize) -> Result<Self> {
        let Some(n_tokens) = self.lengths.get(segment) else { return Err(Error::EmptyRow) };
        let start: usize = self.lengths[..segment].iter().sum();
        Ok(Self {
            token_ids: self.token_ids[start..start + n_tokens].to_vec(),
            lengths: vec![*n_tokens],
            routed_experts: vec![self.routed_experts[segment].clone()],
        })
    }

    /// Each token's place in its segment, `[T]`.
    pub fn positions(&self) -> Vec<i64> {
        self.lengths.iter().flat_map(|n| 0..*n as i64).collect()
    }

    /// Whether a token has one before it in its segment, and so a log-prob, `[T]`.
    pub fn has_logprob(&self) -> Vec<bool> {
        self.lengths.iter().flat_map(|n| (0..*n).map(|position| position > 0)).collect()
    }

    /// Checks that a model can see the row.
    ///
    /// # Errors
    ///
    /// [`Error::TokenRange`], [`Error::SegmentTooLong`], [`Error::RoutingShape`] or [`Error::ExpertRange`], each naming
    /// the segment.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        let mut start = 0;
        for (segment, n_tokens) in self.lengths.iter().copied().enumerate() {
            if n_tokens as i64 > config.positions_max {
                return Err(Error::SegmentTooLong { segment, n_tokens, positions_max: config.positions_max });
            }
            let tokens = &self.token_ids[start..start + n_tokens];
            if let Some(position) = tokens.iter().position(|t| !(0..config.vocab_size).contains(t)) {
                let (token_id, vocab_size) = (tokens[position], config.vocab_size);
                return Err(Error::TokenRange { segment, position, token_id, vocab_size });
            }
            if let Some(routed) = &self.routed_experts[segment] {
                routed.check(segment, n_tokens, config)?;
            }
            start += n_tokens;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro_batch::made::{Row, batch};
    use crate::micro_batch::{ModelLimits, Needs, Place, RouterShape};

    fn of(rows: &[Row]) -> Option<PackedRow> {
        let router = Some(RouterShape { layers: 3, expert_layers: 2, top_k: 2, n_experts: 8 });
        let model = ModelLimits { vocab_size: 100, positions_max: 6, router };
        let batch = MicroBatch::read(&batch(rows), Place::default(), &model, Needs::default()).expect("fits the model");
        PackedRow::of(&batch).expect("a row")
    }

    #[test]
    fn positions_begin_anew_with_each_segment() {
        let row = of(&[Row::of("a", &[5, 6, 7]), Row::of("b", &[8, 9])]).expect("some");
        assert_eq!((row.token_ids(), row.lengths()), ([5, 6, 7, 8, 9].as_slice(), [3, 2].as_slice()));
        assert_eq!(row.positions(), [0, 1, 2, 0, 1]);
        assert_eq!(row.has_logprob(), [false, true, true, false, true]);
        assert_eq!(row.routed_experts(), [None, None]);
    }

    #[test]
    fn a_micro_batch_without_samples_has_no_row() {
        assert_eq!(of(&[]), None);
        assert!(matches!(PackedRow::new(vec![Segment::of(Vec::new())]), Err(Error::EmptyRow)));
    }

    #[test]
    fn experts_recorded_for_all_layers_or_only_for_those_that_have_some_may_lie_in_one_row() {
        let narrow = Row { routes: Some((0..8).collect()), ..Row::of("narrow", &[7, 8, 9]) };
        // the first layer is dense, and its server recorded zeros
        let wide = vec![0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 7];
        let wide = Row { routes: Some(wide), route_layers: 3, ..Row::of("wide", &[7, 8, 9]) };
        let row = of(&[narrow, Row::of("free", &[5, 6]), wide.clone()]).expect("some");
        let recorded = |ids: Vec<u8>, layers| {
            Some(RoutedExperts::new(ids.into_iter().map(u16::from).collect(), layers, 2).expect("fits"))
        };
        let expected = [recorded((0..8).collect(), 2), None, recorded(wide.routes.clone().expect("some"), 3)];
        assert_eq!(row.routed_experts(), expected);
        assert_eq!(row.segment_alone(2).expect("there is one"), of(&[wide]).expect("some"));
    }

    #[test]
    fn the_recorded_experts_stay_with_their_segment() {
        let recorded = Row { routes: Some((0..8).collect()), ..Row::of("b", &[7, 8, 9]) };
        let row = of(&[Row::of("a", &[5, 6]), recorded]).expect("some");
        assert_eq!(row.routed_experts(), [None, Some(RoutedExperts::new((0..8).collect(), 2, 2).expect("fits"))]);
    }
}
