//! From gradients to better weights: AdamW, clipping by the global norm, and learning-rate schedules.

mod adamw;
mod parts;
mod schedule;

pub use adamw::{AdamW, NamedState, StepOutcome};
pub use schedule::{Schedule, ScheduleShape};
