//! `dressage.json`: what a store says about itself, and the only object that opening one has to read.

use dressage_schemas::SCHEMA_VERSION;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::race::RaceOutcome;

/// The object's name, directly under the store.
pub const RECORD_NAME: &str = "dressage.json";

const FORMAT: &str = "dressage-store";

/// What the store says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRecord {
    /// Always `dressage-store`.
    pub format: String,
    /// Random; the same for the whole life of the store.
    pub store_id: String,
    /// Version of all table schemas.
    pub schema_version: u32,
    /// When, microseconds since 1970.
    pub created_at: i64,
    /// Release that made it.
    pub created_by: String,
    /// Whether many writers may share it, as tried when it was made.
    pub conditional_writes: RaceOutcome,
}

impl StoreRecord {
    pub(crate) fn new(conditional_writes: RaceOutcome, created_at: i64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            store_id: uuid::Uuid::new_v4().to_string(),
            schema_version: SCHEMA_VERSION,
            created_at,
            created_by: format!("dressage {}", env!("CARGO_PKG_VERSION")),
            conditional_writes,
        }
    }

    /// Reads and checks the record; none where there is no store.
    pub(crate) async fn read(store: &dyn ObjectStore, root: &Path, uri: &str) -> Result<Option<Self>> {
        let path = root.clone().join(RECORD_NAME);
        // the place as the user wrote it: a key alone does not say which bucket or folder
        let shown = || format!("{}/{RECORD_NAME}", uri.trim_end_matches('/'));
        let bytes = match store.get(&path).await {
            Ok(found) => found.bytes().await.map_err(|e| Error::object("read", shown(), e))?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(Error::object("read", shown(), e)),
        };
        Self::parse(&bytes, uri).map(Some)
    }

    fn parse(bytes: &[u8], uri: &str) -> Result<Self> {
        let bad = |detail: String| Error::BadRecord { uri: uri.to_owned(), detail };
        // the version first: a newer record may have another shape, and then "newer" is the useful answer
        let raw: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if raw.get("format").and_then(serde_json::Value::as_str) != Some(FORMAT) {
            return Err(bad(format!("its \"format\" is not {FORMAT:?}")));
        }
        let found = raw.get("schema_version").and_then(serde_json::Value::as_u64);
        let found = found.and_then(|v| u32::try_from(v).ok()).ok_or_else(|| bad("it has no schema_version".into()))?;
        if found > SCHEMA_VERSION {
            return Err(Error::SchemaTooNew { uri: uri.to_owned(), found, supported: SCHEMA_VERSION });
        }
        if found < crate::maintain::OLDEST_READABLE_SCHEMA_VERSION {
            return Err(Error::SchemaTooOld { uri: uri.to_owned(), found, supported: SCHEMA_VERSION });
        }
        serde_json::from_value(raw).map_err(|e| bad(e.to_string()))
    }

    /// Writes the record of a new store; false where another `init` was first.
    pub(crate) async fn create(&self, store: &dyn ObjectStore, root: &Path) -> Result<bool> {
        let path = root.clone().join(RECORD_NAME);
        let json = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::BadRecord { uri: path.to_string(), detail: e.to_string() })?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match store.put_opts(&path, json.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(e) => Err(Error::object("write", path.to_string(), e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_store_is_refused_by_version_even_if_its_record_has_another_shape() {
        let bytes = br#"{"format":"dressage-store","schema_version":4000,"shape":"unknown"}"#;
        assert!(matches!(StoreRecord::parse(bytes, "u"), Err(Error::SchemaTooNew { found: 4000, .. })));
    }

    #[test]
    fn other_json_is_not_a_store() {
        let error = StoreRecord::parse(b"{\"hello\":1}", "u").unwrap_err();
        assert!(matches!(error, Error::BadRecord { .. }));
    }
}
