//! What a user tunes about a SQL session: its limits, its scope, and the variables that views read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::training::{self, Role, UserFile};

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
    /// Scalar columns of small tables that a session keeps in memory, in bytes, so that it reads each of them once; 0
    /// reads them for every query.
    pub resident_bytes_max: u64,
    /// Variables that views and `setting('…')` read: `run`, `grader`, `tokenizer`, those of training semantics
    /// (`estimator`, `loss_aggregation`, …: `docs/training-semantics.md`), and any of the user's own.
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
            resident_bytes_max: 32 << 20,
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
pub struct Variables(Arc<RwLock<State>>);

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<String, String>,
    /// The files that `estimator` and `filter` name.
    files: Vec<UserFile>,
}

impl Variables {
    /// Variables with these values.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn new(values: &BTreeMap<String, String>) -> Result<Self> {
        let variables = Self::default();
        for (key, value) in values {
            variables.set(key, Some(value))?;
        }
        Ok(variables)
    }

    /// Variables as a plan stores them. They were right when it was made, and name a file only as `file`.
    pub(crate) fn as_stored(values: &BTreeMap<String, String>) -> Self {
        Self(Arc::new(RwLock::new(State { values: values.clone(), files: Vec::new() })))
    }

    /// The value in force of a variable: as set, or the default of a setting of ours.
    pub fn get(&self, key: &str) -> Option<String> {
        let values = &self.read().values;
        // what constant:c divides by is its c, or the cap
        if key == "loss_constant" {
            let c = values.get("loss_aggregation").and_then(|value| value.split_once(':')).map(|(_, c)| c.to_owned());
            return c.or_else(|| values.get("max_segment_tokens").cloned());
        }
        values.get(key).cloned().or_else(|| training::default_of(key, values))
    }

    /// Sets a variable, or takes it away.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a key that SQL could not name, [`Error::UnknownSetting`] for one that is nearly a
    /// setting of ours, [`Error::NotAVariable`] for a limit of the session, [`Error::InvalidSetting`] for a value that a setting of ours cannot have, and whatever is wrong
    /// with the file that `estimator` or `filter` names.
    pub fn set(&self, key: &str, value: Option<&str>) -> Result<()> {
        if !is_plain_name(key) {
            return Err(Error::InvalidName { what: "setting", name: key.to_owned() });
        }
        let known = training::find(key);
        if known.is_none() {
            training::refuse_limit(key)?;
            training::refuse_near_miss(key)?;
        }
        let role = Role::ALL.into_iter().find(|role| role.setting() == key);
        let path = value.map(str::trim).filter(|path| path.ends_with(".sql"));
        let (value, file) = match (role, path, value, known) {
            (Some(role), Some(path), ..) => (Some(path.to_owned()), Some(UserFile::read(role, path)?)),
            (Some(Role::Filter), None, Some(value), Some(known)) if !value.trim().eq_ignore_ascii_case("none") => {
                return Err(known.refuse(value));
            }
            (Some(Role::Filter), None, ..) => (None, None),
            (_, _, Some(value), Some(known)) => (known.accept(value)?, None),
            (_, _, value, _) => (value.map(str::to_owned), None),
        };
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(role) = role {
            state.files.retain(|file| file.role != role);
            state.files.extend(file);
        }
        match value {
            Some(value) => state.values.insert(key.to_owned(), value),
            None => state.values.remove(key),
        };
        Ok(())
    }

    /// All variables that were set, in order of their names.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.read().values.clone()
    }

    /// All settings of ours that have a value in force, and all variables that were set.
    pub fn in_force(&self) -> BTreeMap<String, String> {
        let mut all = self.all();
        for known in training::KNOWN {
            if let Some(value) = self.get(known.name) {
                all.insert(known.name.to_owned(), value);
            }
        }
        all
    }

    /// The file of an estimator or filter, if one was set.
    pub(crate) fn file(&self, role: Role) -> Option<UserFile> {
        self.read().files.iter().find(|file| file.role == role).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether SQL can name it without quotes.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && name.len() <= 128
}
