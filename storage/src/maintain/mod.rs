//! Looking after a store: what is in it, whether it is sound, and making it smaller.
//!
//! Every verb returns a report that serialises; the ones that remove something do nothing under their `dry_run`.

pub mod check;
pub mod column_sizes;
pub mod compact;
pub mod doctor;
pub mod info;
pub mod migrate;
pub mod rm_plan;
pub mod rm_run;
pub mod snapshots;
pub mod versions;

pub use check::{CheckOptions, CheckReport, Problem, Severity, check};
pub use column_sizes::{ColumnSize, column_sizes};
pub use compact::{CompactOptions, CompactReport, compact};
pub use doctor::{Finding, FindingStatus, doctor};
pub use info::{StoreInfo, TableInfo, info};
pub use migrate::{MigrateReport, migrate};
pub use rm_plan::{RmPlanReport, rm_plan};
pub use rm_run::{RmRunReport, rm_run};
pub use versions::{GcOptions, GcReport, VersionInfo, gc, versions};

/// The oldest schema version that this release reads without a migration.
pub(crate) const OLDEST_READABLE_SCHEMA_VERSION: u32 = 1;
