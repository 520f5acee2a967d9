//! `dressage synth`: rollouts made up to order, as the load of benchmarks, tests and first tries.
//!
//! Takes [`SynthSettings`], writes the dressage JSONL format, Arrow IPC or Parquet (the interchange schema of
//! [`rollout`](dressage_schemas::tables::rollout)) to anything that can be written to. Memory holds one trajectory
//! and one batch, whatever the number of trajectories. Trajectory `i` depends on the seed and `i` alone: a longer
//! load begins with the shorter one, in every format.
//!
//! ```text
//!   seed ─▶ router, popularities ─┐
//!   seed, i ─▶ Maker::trajectory ─┴▶ SynthTrajectory ─▶ jsonl::Lines      ─▶ bytes
//!                                                    └▶ columns::Batches ─▶ IPC or Parquet
//! ```

mod columns;
mod jsonl;
mod maker;

use std::io::{BufWriter, Write};

use dressage_codec::synthetic::RouterShape;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use maker::{Maker, SynthSegment, SynthTrajectory};

/// What to make up. The defaults are a small load without router choices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SynthSettings {
    /// How many trajectories.
    pub trajectories: u64,
    /// Trajectories an instance (and group): rewards of a group are correlated through the instance's difficulty.
    pub group_size: u32,
    /// Segments a trajectory.
    pub segments: u32,
    /// Tokens a trajectory, over all its segments; the mean where `length_spread` is not 0.
    pub tokens: u32,
    /// Standard deviation of the logarithm of a trajectory's length; 0 makes all equally long.
    pub length_spread: f64,
    /// The part of the tokens that is context (mask 0), 0 to 1.
    pub context_share: f64,
    /// Token ids lie below this; small ids are frequent, as in text.
    pub vocabulary: u32,
    /// Layers with router choices; 0 leaves them out.
    pub layers: u32,
    /// Experts a token and layer.
    pub topk: u32,
    /// Experts a layer.
    pub experts: u32,
    /// Skew of expert popularity: standard deviation of its logarithm.
    pub skew: f64,
    /// The part of the choices that follows a cluster of tokens.
    pub cluster_share: f64,
    /// The part of the trajectories that nobody graded, 0 to 1.
    pub ungraded_share: f64,
    /// The part of the trajectories that failed or were aborted, 0 to 1.
    pub dead_share: f64,
    /// How many versions the policy went through; 0 leaves versions out.
    pub weight_versions: u32,
    /// Whether segments have chat messages too.
    pub messages: bool,
    /// The run's id.
    pub run_id: String,
    /// Equal seeds give equal bytes.
    pub seed: u64,
}

impl Default for SynthSettings {
    fn default() -> Self {
        let router = RouterShape::default();
        Self {
            trajectories: 64,
            group_size: 8,
            segments: 2,
            tokens: 4_096,
            length_spread: 0.0,
            context_share: 0.5,
            vocabulary: 151_936,
            layers: 0,
            topk: router.topk as u32,
            experts: router.n_experts,
            skew: router.skew,
            cluster_share: router.cluster_share,
            ungraded_share: 0.0,
            dead_share: 0.0,
            weight_versions: 0,
            messages: true,
            run_id: "synth".to_owned(),
            seed: 0,
        }
    }
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SynthFormat {
    /// The dressage format: one trajectory a line.
    Jsonl,
    /// An Arrow IPC file.
    Arrow,
    /// A Parquet file, zstd level 1.
    Parquet,
}

impl SynthFormat {
    /// By the file name's ending; JSONL where it says nothing.
    pub fn of_name(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        if name.ends_with(".parquet") {
            Self::Parquet
        } else if [".arrow", ".ipc", ".feather"].iter().any(|ending| name.ends_with(ending)) {
            Self::Arrow
        } else {
            Self::Jsonl
        }
    }
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SynthReport {
    /// Trajectories.
    pub trajectories: u64,
    /// Segments.
    pub segments: u64,
    /// Tokens.
    pub tokens: u64,
    /// Bytes of router choices before any encoding.
    pub routed_experts_bytes: u64,
    /// Bytes of the output.
    pub bytes: u64,
}

/// Writes the whole load to `out`.
///
/// # Errors
/// [`Error::BadSetting`] for settings that make no sense, [`Error::Write`] if `out` fails.
pub fn synth(settings: &SynthSettings, format: SynthFormat, out: impl Write + Send) -> Result<SynthReport> {
    let maker = Maker::new(settings)?;
    let mut counted = Counted { out: BufWriter::with_capacity(1 << 20, out), bytes: 0 };
    let mut report = match format {
        SynthFormat::Jsonl => jsonl::write(&maker, &mut counted)?,
        SynthFormat::Arrow => columns::write_ipc(&maker, &mut counted)?,
        SynthFormat::Parquet => columns::write_parquet(&maker, &mut counted)?,
    };
    counted.flush().map_err(write_failed)?;
    report.bytes = counted.bytes;
    Ok(report)
}

impl SynthReport {
    fn count(&mut self, trajectory: &SynthTrajectory) {
        self.trajectories += 1;
        for segment in &trajectory.segments {
            self.segments += 1;
            self.tokens += segment.tokens.len() as u64;
            self.routed_experts_bytes += segment.routed_experts.len() as u64;
        }
    }
}

struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

fn write_failed(source: std::io::Error) -> Error {
    Error::Write { output_name: "the synthetic load".to_owned(), source }
}

#[cfg(test)]
mod tests;
