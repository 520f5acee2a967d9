//! Where in a stream of micro-batches something is, as error messages name it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// 0-based within the plan.
    pub train_step: i32,
    /// The data-parallel rank.
    pub dp_rank: i32,
    /// 0-based within (train step, rank).
    pub micro_batch: i32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "train step {}, micro-batch {} of rank {}", self.train_step, self.micro_batch, self.dp_rank)
    }
}

/// Which segment of a micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPlace {
    /// The micro-batch.
    pub place: Place,
    /// The recorder's id.
    pub trajectory_id: Box<str>,
    /// The segment within its trajectory.
    pub segment_index: i32,
}

impl fmt::Display for SegmentPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: trajectory `{}`, segment {}", self.place, self.trajectory_id, self.segment_index)
    }
}

/// Which token of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPlace {
    /// The segment.
    pub segment: SegmentPlace,
    /// 0-based within the segment.
    pub token: usize,
}

impl fmt::Display for TokenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, token {}", self.segment, self.token)
    }
}
