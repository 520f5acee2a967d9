//! The ids: 64-bit join keys derived from text ids, and the write id that ties the rows of one attempt together.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// Joins the tables: a 64-bit hash of (run_id, trajectory_id), kept as a signed integer because every Arrow tool
/// and SQL dialect has one. The text id is stored once, in `trajectories`, and compared on write, so that a
/// collision is an error and never a mix-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrajectoryKey(pub i64);

impl TrajectoryKey {
    /// The key of a trajectory. The run id's length goes first, so that ("a", "bc") and ("ab", "c") differ.
    pub fn of(run_id: &str, trajectory_id: &str) -> Self {
        let mut bytes = Vec::with_capacity(8 + run_id.len() + trajectory_id.len());
        bytes.extend_from_slice(&(run_id.len() as u64).to_le_bytes());
        bytes.extend_from_slice(run_id.as_bytes());
        bytes.extend_from_slice(trajectory_id.as_bytes());
        Self(xxh3_64(&bytes) as i64)
    }
}

impl fmt::Display for TrajectoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0 as u64)
    }
}

/// One attempt to write one trajectory. Steps and the trajectory row of the same attempt carry the same write id,
/// and views join on it: steps that an interrupted attempt left behind can never be seen under a later row.
/// Unique by construction of the writer (random 63-bit start per process, then counting up).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub i64);

/// The content hash of a message, a tool schema or an inlined file: 32 hex digits (128 bits of BLAKE3 over the
/// canonical bytes). The key of the `contents` table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub String);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_pinned_for_ever() {
        assert_eq!(TrajectoryKey::of("run", "t-1").to_string(), "d0b7e466c6e09161");
    }

    #[test]
    fn run_and_trajectory_are_not_concatenated_blindly() {
        assert_ne!(TrajectoryKey::of("a", "bc"), TrajectoryKey::of("ab", "c"));
    }
}
