//! Merging the layers of settings, remembering where each value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::{Settings, TRAIN_KEYS};
use crate::failure::Failure;

/// Variables named like this set a key: `DRESSAGE__SQL__MEMORY_LIMIT` is `sql.memory_limit`.
const ENV_PREFIX: &str = "DRESSAGE__";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Built in.
    Default,
    /// The settings file.
    File(PathBuf),
    /// An environment variable.
    Env(String),
    /// A flag of this call.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Settings being put together: dotted key to value and origin.
#[derive(Debug)]
pub(crate) struct Layers {
    values: BTreeMap<String, (Value, Origin)>,
    /// What the file says about training, as it says it, and which file that is.
    train: (Table, Option<PathBuf>),
}

impl Layers {
    /// Defaults, then the file, then the environment.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, a key that does not exist, a value of the wrong type.
    pub(crate) fn load(config: Option<&Path>) -> Result<Self> {
        Self::load_from(config, std::env::vars().collect())
    }

    fn load_from(config: Option<&Path>, env: BTreeMap<String, String>) -> Result<Self> {
        let mut layers = Self::defaults()?;
        let named = config.map(Path::to_path_buf).or_else(|| env.get("DRESSAGE_CONFIG").map(PathBuf::from));
        let fallback = PathBuf::from("dressage.toml");
        match named {
            Some(path) => layers.add_file(&path)?,
            None if fallback.is_file() => layers.add_file(&fallback)?,
            None => {}
        }
        for (name, value) in &env {
            if let Some(key) = name.strip_prefix(ENV_PREFIX) {
                let key = key.to_ascii_lowercase().replace("__", ".");
                layers.set_text(&key, value, Origin::Env(name.clone()))?;
            }
        }
        // the one variable that people set by hand; the long form wins over nothing but is there for symmetry
        if let Some(store) = env.get("DRESSAGE_STORE") {
            layers.set_text("store", store, Origin::Env("DRESSAGE_STORE".into()))?;
        }
        Ok(layers)
    }

    fn defaults() -> Result<Self> {
        let table = Table::try_from(Settings::default()).context("the default settings do not serialise")?;
        let mut values = BTreeMap::new();
        flatten("", &table, &mut |key, value| {
            values.insert(key, (value.clone(), Origin::Default));
        });
        Ok(Self { values, train: (Table::new(), None) })
    }

    /// What the settings file says about training: keys that only `dressage train` reads.
    #[allow(dead_code, reason = "for dressage-train")]
    pub(crate) fn train(&self) -> &Table {
        &self.train.0
    }

    /// Where that was read, for messages.
    #[allow(dead_code, reason = "for dressage-train")]
    pub(crate) fn train_place(&self) -> String {
        self.train.1.as_ref().map_or_else(|| "flags".to_owned(), |path| path.display().to_string())
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings file {}", path.display()))?;
        let mut table: Table =
            text.parse().map_err(|e| Failure::invalid(format!("{} is not valid TOML: {e}", path.display())))?;
        self.train.1 = Some(path.to_path_buf());
        for key in TRAIN_KEYS {
            self.train.0.extend(table.remove(key).map(|value| (key.to_owned(), value)));
        }
        let mut pairs = Vec::new();
        flatten("", &table, &mut |key, value| pairs.push((key, value.clone())));
        let origin = Origin::File(path.to_path_buf());
        for (key, value) in pairs {
            self.set(&key, value, origin.clone())?;
        }
        Ok(())
    }

    /// Sets a key from text, read as the type that the key has.
    pub(crate) fn set_text(&mut self, key: &str, text: &str, origin: Origin) -> Result<()> {
        let value = match self.values.get(key) {
            Some((Value::Boolean(_), _)) => {
                text.parse().map(Value::Boolean).map_err(|_| wrong_type(key, text, "true or false", &origin))?
            }
            Some((Value::Integer(_), _)) => {
                text.parse().map(Value::Integer).map_err(|_| wrong_type(key, text, "a whole number", &origin))?
            }
            _ => Value::String(text.to_owned()),
        };
        self.set(key, value, origin)
    }

    /// Sets a key from a flag, if the flag was given.
    pub(crate) fn flag(&mut self, key: &str, flag: &'static str, value: Option<impl ToString>) -> Result<()> {
        match value {
            Some(value) => self.set_text(key, &value.to_string(), Origin::Flag(flag)),
            None => Ok(()),
        }
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) -> Result<()> {
        match self.values.get_mut(key) {
            Some(slot) => {
                *slot = (value, origin);
                Ok(())
            }
            None => {
                let known: Vec<&str> = self.values.keys().map(String::as_str).collect();
                Err(Failure::invalid(format!(
                    "`{key}` (from {origin}) is no setting; the settings are {}, and in a file those of training ({})",
                    known.join(", "),
                    TRAIN_KEYS.join(", ")
                )))
            }
        }
    }

    /// The merged settings.
    ///
    /// # Errors
    /// A value that its key does not take, with its origin.
    pub(crate) fn settings(&self) -> Result<Settings> {
        // one value at a time over the defaults, so that the error can name the origin
        for (key, (value, origin)) in &self.values {
            let mut single = Table::new();
            insert(&mut single, key, value.clone());
            Settings::deserialize_table(single)
                .map_err(|e| Failure::invalid(format!("setting `{key}` (from {origin}): {}", e.message())))?;
        }
        let mut table = Table::new();
        for (key, (value, _)) in &self.values {
            insert(&mut table, key, value.clone());
        }
        Settings::deserialize_table(table).map_err(|e| Failure::invalid(format!("settings: {}", e.message())))
    }

    /// Every key with its value as text and its origin, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, String, &Origin)> {
        self.values.iter().map(|(key, (value, origin))| {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            (key.as_str(), text, origin)
        })
    }
}

impl Settings {
    fn deserialize_table(table: Table) -> Result<Self, toml::de::Error> {
        table.try_into()
    }
}

fn wrong_type(key: &str, text: &str, wanted: &str, origin: &Origin) -> anyhow::Error {
    Failure::invalid(format!("setting `{key}` (from {origin}) is `{text}`, but takes {wanted}"))
}

fn flatten(prefix: &str, table: &Table, emit: &mut impl FnMut(String, &Value)) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) => flatten(&path, inner, emit),
            other => emit(path, other),
        }
    }
}

fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((head, rest)) => {
            let slot = table.entry(head).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = slot {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn origin_of(layers: &Layers, key: &str) -> Origin {
        layers.entries().find(|(k, _, _)| *k == key).map(|(_, _, o)| o.clone()).expect("a known key")
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("d.toml");
        std::fs::write(&file, "store = 'from-file'\n[ingest]\njobs = 3\nmemory_limit = '1GiB'\n").expect("write");
        let vars = env(&[("DRESSAGE__INGEST__JOBS", "5"), ("DRESSAGE__SQL__MEMORY_LIMIT", "64MiB")]);
        let mut layers = Layers::load_from(Some(&file), vars).expect("load");
        layers.flag("ingest.memory_limit", "--memory-limit", Some("2GiB")).expect("flag");
        let settings = layers.settings().expect("valid");
        assert_eq!(settings.store, "from-file");
        assert_eq!(settings.ingest.jobs, 5);
        assert_eq!(settings.ingest.memory_limit.0, 2 << 30);
        assert_eq!(settings.sql.memory_limit.0, 64 << 20);
        assert_eq!(origin_of(&layers, "ingest.jobs"), Origin::Env("DRESSAGE__INGEST__JOBS".into()));
        assert_eq!(origin_of(&layers, "ingest.run"), Origin::Default);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_origin() {
        let error = Layers::load_from(None, env(&[("DRESSAGE__SQL__MEMORY", "1")])).unwrap_err().to_string();
        assert!(error.contains("`sql.memory` (from env DRESSAGE__SQL__MEMORY)"), "{error}");
    }

    #[test]
    fn a_bad_value_names_its_key_and_origin() {
        let layers = Layers::load_from(None, env(&[("DRESSAGE__SQL__TIME_LIMIT", "soon")])).expect("loads");
        let error = layers.settings().unwrap_err().to_string();
        assert!(error.contains("sql.time_limit") && error.contains("DRESSAGE__SQL__TIME_LIMIT"), "{error}");
        assert!(Layers::load_from(None, env(&[("DRESSAGE__S3__ALLOW_HTTP", "perhaps")])).is_err());
    }

    #[test]
    fn sections_of_training_are_set_aside_and_nothing_else_is() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("train.toml");
        std::fs::write(&file, "store = 's'\n[optimizer]\nlearning_rate = 1e-5\n[training]\nestimator = 'rloo'\n")
            .expect("write");
        let layers = Layers::load_from(Some(&file), env(&[])).expect("load");
        assert_eq!(layers.settings().expect("valid").store, "s");
        assert_eq!(layers.train.0.keys().collect::<Vec<_>>(), ["optimizer"]);
        std::fs::write(&file, "[optimiser]\nlearning_rate = 1e-5\n").expect("write");
        let error = Layers::load_from(Some(&file), env(&[])).unwrap_err().to_string();
        assert!(error.contains("optimiser.learning_rate") && error.contains("optimizer"), "{error}");
    }

    #[test]
    fn dressage_store_is_short_for_the_store_setting() {
        let layers = Layers::load_from(None, env(&[("DRESSAGE_STORE", "s3://b/p")])).expect("loads");
        assert_eq!(layers.settings().expect("valid").store, "s3://b/p");
    }
}
