//! What can go wrong between ranks.

use std::fmt;

use dressage_schemas::ErrorKind;

/// What ranks did together when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A tensor was reduced over all ranks.
    AllReduce,
    /// A tensor was summed and shared out.
    ReduceScatter,
    /// Parts were put together.
    AllGather,
    /// A tensor was copied to all.
    Broadcast,
    /// All waited for all.
    Barrier,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
        })
    }
}

/// Why ranks could not work together.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A variable of the launcher is missing or makes no sense.
    #[error("{variable} {problem}: {launcher} sets it for every rank it starts")]
    Variable {
        /// The variable.
        variable: Box<str>,
        /// What is wrong with it.
        problem: Box<str>,
        /// Whose variable it is.
        launcher: &'static str,
    },
    /// A number of ranks that a setting does not allow.
    #[error("rank {rank} of {world_size}: {problem}")]
    World {
        /// The rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// What does not fit.
        problem: Box<str>,
    },
    /// Ranks did not find each other.
    #[error(
        "rank {rank} of {world_size} cannot meet the others at {place}: {said}; start all ranks, and check that this host \
         reaches that one"
    )]
    Rendezvous {
        /// This rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// Host and port of the store.
        place: Box<str>,
        /// What c10d said.
        said: Box<str>,
    },
    /// A rank that must not train with the others.
    #[error("rank {rank} of {world_size} does not train with the others: {differences}")]
    Refused {
        /// This rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// Which rank differs from rank 0 in what.
        differences: Box<str>,
    },
    /// An operation that did not come to its end.
    #[error(
        "{operation} of rank {rank} of {world_size} failed after {after_ms} ms, during {phase}: {said}{}{peers}",
        if peers.is_empty() { "" } else { "; " }
    )]
    Failed {
        /// This rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// What was being done.
        operation: Operation,
        /// What for: as [`Collectives::enter`](super::Collectives::enter) was told.
        phase: Box<str>,
        /// How long it had been waited for.
        after_ms: u64,
        /// Ranks that gave up, or no sign of life, and where they were last; empty if all seem to live.
        peers: Box<str>,
        /// What c10d said.
        said: Box<str>,
    },
    /// Another rank could not go on, and said so while this one was well.
    #[error("rank {rank} of {world_size} stops, during {phase}: {reasons}")]
    PeerFailed {
        /// This rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// What was being done.
        phase: &'static str,
        /// Which rank says what.
        reasons: Box<str>,
    },
    /// Ranks that are not at the same place of the same step.
    #[error("rank {rank} of {world_size}: {problem}; was every rank given its own rows of the same plan?")]
    OutOfStep {
        /// This rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// What differs.
        problem: Box<str>,
    },
}

impl CollectiveError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Variable { .. } | Self::World { .. } | Self::Refused { .. } | Self::OutOfStep { .. } => {
                ErrorKind::Invalid
            }
            // started again from the last checkpoint, they may get further
            Self::Rendezvous { .. } | Self::Failed { .. } | Self::PeerFailed { .. } => ErrorKind::Unavailable,
        }
    }
}
