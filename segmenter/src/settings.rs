//! What a user tunes about a SQL session: its limits, its scope, and the variables that views read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::RwLock;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Limits and scope of a session. Every bound is checked while a query runs, and the error names the field here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionSettings {
    /// Memory that sorts, joins and aggregates of one session may hold, in bytes. Lower spills earlier; a hash join's
    /// smaller side must fit.
    pub memory_limit_bytes: u64,
    /// Disk that one session may fill with spilled data, in bytes.
    pub spill_limit_bytes: u64,
    /// Where spilled data goes; the system's temporary directory where none is named.
    pub spill_dir: Option<PathBuf>,
    /// Wall-clock time of one query, in milliseconds; none for no limit.
    pub time_limit_ms: Option<u64>,
    /// Rows that one query may give; the rest is cut and the stream says so. None for all.
    pub row_limit: Option<u64>,
    /// Threads and partitions of one query; 0 for one a core.
    pub target_partitions: usize,
    /// Rows of one batch between operators.
    pub batch_rows: usize,
    /// Variables that views and `setting('…')` read: `run`, `grader`, `tokenizer`, and any of the user's own.
    pub set: BTreeMap<String, String>,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            memory_limit_bytes: 512 << 20,
            spill_limit_bytes: 32 << 30,
            spill_dir: None,
            time_limit_ms: Some(600_000),
            row_limit: None,
            target_partitions: 0,
            batch_rows: 8192,
            set: BTreeMap::new(),
        }
    }
}

impl SessionSettings {
    /// The partitions to use: as set, or one a core.
    pub(crate) fn partitions(&self) -> usize {
        match self.target_partitions {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }

    /// Refuses values with which no query could run.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |key: &str, value: u64, expected| Error::InvalidSetting {
            key: key.to_owned(),
            value: value.to_string(),
            expected,
        };
        if self.memory_limit_bytes < 1 << 20 {
            return Err(invalid("memory_limit_bytes", self.memory_limit_bytes, "at least 1 MiB"));
        }
        if self.batch_rows == 0 || self.batch_rows > 1 << 20 {
            return Err(invalid("batch_rows", self.batch_rows as u64, "between 1 and 1048576"));
        }
        if self.time_limit_ms == Some(0) {
            return Err(invalid("time_limit_ms", 0, "at least 1"));
        }
        Ok(())
    }
}

/// The session's variables, shared with the functions that read them.
///
/// A variable is read when a query is planned, so a view needs no new definition after `set`.
#[derive(Debug, Clone, Default)]
pub struct Variables(Arc<RwLock<BTreeMap<String, String>>>);

impl Variables {
    /// Variables with these values.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a key that SQL could not name.
    pub fn new(values: &BTreeMap<String, String>) -> Result<Self> {
        let variables = Self::default();
        for (key, value) in values {
            variables.set(key, Some(value))?;
        }
        Ok(variables)
    }

    /// The value of a variable.
    pub fn get(&self, key: &str) -> Option<String> {
        self.read().get(key).cloned()
    }

    /// Sets a variable, or takes it away.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a key that SQL could not name.
    pub fn set(&self, key: &str, value: Option<&str>) -> Result<()> {
        if !is_plain_name(key) {
            return Err(Error::InvalidName { what: "setting", name: key.to_owned() });
        }
        let mut values = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        match value {
            Some(value) => values.insert(key.to_owned(), value.to_owned()),
            None => values.remove(key),
        };
        Ok(())
    }

    /// All variables, in order of their names.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.read().clone()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, String>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Whether SQL can name it without quotes.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && name.len() <= 128
}
