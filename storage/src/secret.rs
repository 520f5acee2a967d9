//! Keeps credentials out of every message: what was registered here never leaves the crate in an error.

use std::fmt;
use std::sync::RwLock;

use serde::{Deserialize, Serialize};

/// Values that must not be printed. A process-wide list, because a failure deep in a client library carries no
/// settings with it; it only grows with the number of distinct credentials used.
static SECRETS: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// Secrets shorter than this are not searched for: they would blank out ordinary words.
const SECRET_LENGTH_MIN: usize = 6;

/// Makes `scrub` take this value out from now on.
pub(crate) fn remember(value: &str) {
    if value.len() < SECRET_LENGTH_MIN {
        return;
    }
    let mut secrets = SECRETS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !secrets.iter().any(|s| s == value) {
        secrets.push(value.to_owned());
    }
}

/// The text with every registered secret replaced.
pub(crate) fn scrub(text: &str) -> String {
    let secrets = SECRETS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut out = text.to_owned();
    for secret in secrets.iter() {
        if out.contains(secret.as_str()) {
            out = out.replace(secret.as_str(), "[redacted]");
        }
    }
    out
}

/// A string that is not printed by `Debug` and is never serialised.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value and makes error messages leave it out.
    pub fn new(value: impl Into<String>) -> Self {
        let value = value.into();
        remember(&value);
        Self(value)
    }

    /// The value, for the client that signs with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "[empty]" } else { "[redacted]" })
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "[redacted]" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_and_json_show_nothing() {
        let secret = Secret::new("wJalrXUtnFEMI");
        assert_eq!(format!("{secret:?}"), "[redacted]");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"[redacted]\"");
        assert_eq!(scrub("key wJalrXUtnFEMI!"), "key [redacted]!");
    }
}
