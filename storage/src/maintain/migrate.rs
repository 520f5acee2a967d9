//! Bringing an older store to this release's schemas.

use dressage_schemas::SCHEMA_VERSION;
use serde::Serialize;

use crate::error::Result;
use crate::lake::Lake;

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MigrateReport {
    /// Schema version before.
    pub from: u32,
    /// Schema version after.
    pub to: u32,
    /// What was changed, in words.
    pub changes: Vec<String>,
}

/// Migrates a store to [`SCHEMA_VERSION`]. There is one schema version so far, so every store that opens is current;
/// each later version adds its step here, and the golden stores of the tests keep the earlier ones readable.
///
/// # Errors
/// Where a table cannot be read.
pub async fn migrate(lake: &Lake) -> Result<MigrateReport> {
    // opening each table checks its own version
    lake.snapshot(None).await?;
    Ok(MigrateReport { from: lake.record().schema_version, to: SCHEMA_VERSION, changes: Vec::new() })
}
