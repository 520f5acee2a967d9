//! What the end-to-end tests stand on: a real S3 server, a proxy that breaks things on purpose, a killer of
//! processes, and a maker of rollouts whose every number is known.
//!
//! * **Takes**: a `weed` binary (SeaweedFS 4.47), the `dressage` binary under test, a seed.
//! * **Gives**: endpoints and prefixes to point the command at, faults that can be played again from their seed,
//!   and expectations to compare a store with.
//! * **Refuses**: to know a table, a column or a room. It never looks into a store; the tests do, through the
//!   command.
//!
//! ```text
//!   test ──▶ Dressage (command.rs) ──spawn──▶ dressage ingest ──HTTP──▶ FaultProxy ──HTTP──▶ Weed (SeaweedFS)
//!    │            │ kill -9 after a seeded delay                          │ 503, reset, lost answer,
//!    │            ▼                                                       │ cut body, delay, a lie
//!    │        Workload (workload.rs): what must be in the store           ▼
//!    └───────────────────────────────────────────────────────────▶ FaultPlan (plan.rs), from a Seed
//! ```
//!
//! Read first: [`Weed`], [`FaultProxy`], [`FaultPlan`], [`Dressage`], [`Workload`], [`Seed`].
//!
//! Nothing outlives the test process: the server and its data belong to a watchdog that ends both when the pipe to
//! the test process closes, also when that one is killed.

mod command;
mod http1;
mod plan;
mod ports;
mod proxy;
mod seed;
mod sigv4;
mod watchdog;
mod weed;
mod wire;
mod workload;

pub use command::{Dressage, Finished, Running};
pub use plan::{Fault, FaultPlan, FaultRule};
pub use proxy::{FaultCounts, FaultProxy};
pub use seed::Seed;
pub use sigv4::Credentials;
pub use weed::{S3Place, Weed};
pub use wire::{Answer, Request, send};
pub use workload::{Expected, Workload};
