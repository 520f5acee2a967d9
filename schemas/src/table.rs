//! Which tables a store has, and the version of their schemas.

use std::fmt;

use arrow::datatypes::SchemaRef;

use crate::tables;

/// Version of all schemas together, stored in every table's metadata under [`SCHEMA_VERSION_KEY`]. A store with a
/// higher one is refused; with a lower one it opens, or the error names the command that migrates it.
pub const SCHEMA_VERSION: u32 = 1;

/// Metadata key of the schema version.
pub const SCHEMA_VERSION_KEY: &str = "dressage:schema_version";

/// A stored table. The order is the commit order: what makes rows visible comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Messages, tool schemas and inlined files, once each.
    Contents,
    /// Versions of the policy in order of first observation.
    WeightVersions,
    /// One model call each: only what it appended.
    Steps,
    /// One grader's verdict each.
    Rewards,
    /// What could not be read.
    Quarantine,
    /// Where rows came from.
    IngestLog,
    /// One interaction each, written last.
    Trajectories,
    /// Consistent sets of table versions.
    Snapshots,
    /// One sample's place in a plan each.
    Batches,
    /// One plan each, written after its batches.
    Plans,
    /// Micro-batches that were streamed, with their hashes.
    Streamed,
    /// One metric of one train step each.
    TrainMetrics,
    /// The trainer's own log-probs of a segment, one train step each.
    TrainerLogprobs,
    /// One published set of weights each, written after its files.
    Checkpoints,
}

impl Table {
    /// All tables, in commit order.
    pub const ALL: [Self; 14] = [
        Self::Contents,
        Self::WeightVersions,
        Self::Steps,
        Self::Rewards,
        Self::Quarantine,
        Self::IngestLog,
        Self::Trajectories,
        Self::Snapshots,
        Self::Batches,
        Self::Plans,
        Self::Streamed,
        Self::TrainMetrics,
        Self::TrainerLogprobs,
        Self::Checkpoints,
    ];

    /// Tables that a store made by an early release lacks. They read as empty there, and the first write makes them.
    pub const ADDED_LATER: [Self; 6] =
        [Self::Batches, Self::Plans, Self::Streamed, Self::TrainMetrics, Self::TrainerLogprobs, Self::Checkpoints];

    /// The table's name in paths and SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contents => "contents",
            Self::WeightVersions => "weight_versions",
            Self::Steps => "steps",
            Self::Rewards => "rewards",
            Self::Quarantine => "quarantine",
            Self::IngestLog => "ingest_log",
            Self::Trajectories => "trajectories",
            Self::Snapshots => "snapshots",
            Self::Batches => "batches",
            Self::Plans => "plans",
            Self::Streamed => "streamed",
            Self::TrainMetrics => "train_metrics",
            Self::TrainerLogprobs => "trainer_logprobs",
            Self::Checkpoints => "checkpoints",
        }
    }

    /// The table of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The logical schema. Payload columns have their logical type here (`LargeBinary`); how a store lays them out
    /// physically is the storage room's business.
    pub fn schema(self) -> SchemaRef {
        match self {
            Self::Contents => tables::contents::schema(),
            Self::WeightVersions => tables::weight_versions::schema(),
            Self::Steps => tables::steps::schema(),
            Self::Rewards => tables::rewards::schema(),
            Self::Quarantine => tables::quarantine::schema(),
            Self::IngestLog => tables::ingest_log::schema(),
            Self::Trajectories => tables::trajectories::schema(),
            Self::Snapshots => tables::snapshots::schema(),
            Self::Batches => tables::batches::schema(),
            Self::Plans => tables::plans::schema(),
            Self::Streamed => tables::streamed::schema(),
            Self::TrainMetrics => tables::train_metrics::schema(),
            Self::TrainerLogprobs => tables::trainer_logprobs::schema(),
            Self::Checkpoints => tables::checkpoints::schema(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
