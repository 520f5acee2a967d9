//! Training among ranks.

pub(crate) mod checkpoints;
pub(crate) mod memory;
pub(crate) mod parity;
pub(crate) mod together;

#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
#[path = "../../it/training/made.rs"]
pub(crate) mod made;

#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
#[path = "../../../src/micro_batch/made.rs"]
pub(crate) mod rows;
