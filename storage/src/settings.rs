//! What a user can set about a store: where it is, how to reach it, and the limits that bound memory and retries.

use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// Where a store is and how it is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSettings {
    /// A folder, `file:///…`, `s3://bucket/prefix`, or `memory://name` (one process, for tests).
    pub uri: String,
    /// How to reach an S3-compatible service.
    pub s3: S3Settings,
    /// Memory for table metadata and index pages kept between calls. Smaller means that a query opens files again.
    pub cache_bytes_max: u64,
    /// How long one commit or request is retried while the store does not answer, before the error reaches the
    /// caller. With many slow writers on one table this also bounds how long one of them may be starved.
    pub retry_timeout_ms: u64,
    /// Bytes read ahead of a consumer by one scan. Must be larger than the largest stored value that is scanned.
    pub read_ahead_bytes_max: u64,
    /// Flush local files to the disk before a commit is acknowledged. Off, an acknowledged commit survives the death
    /// of the process but not of the machine; for tests and scratch stores.
    pub local_fsync: bool,
}

/// How to reach an S3-compatible service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Settings {
    /// Service address; none means AWS.
    pub endpoint: Option<String>,
    /// Region; services other than AWS take any.
    pub region: Option<String>,
    /// Access key id; none means the instance's own credentials.
    pub access_key_id: Option<String>,
    /// Secret key.
    pub secret_access_key: Secret,
    /// Token of temporary credentials.
    pub session_token: Secret,
    /// Whether an `http://` endpoint may be used. Off by default: keys and data would be readable on the network.
    pub allow_http: bool,
    /// `https://host/bucket/key` instead of `https://bucket.host/key`. None: path style where an endpoint is given.
    pub path_style: Option<bool>,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            uri: "./store".to_owned(),
            s3: S3Settings::default(),
            cache_bytes_max: 64 << 20,
            retry_timeout_ms: 120_000,
            read_ahead_bytes_max: 64 << 20,
            local_fsync: true,
        }
    }
}

impl StoreSettings {
    /// Defaults for a place, with what the environment says about S3.
    pub fn from_env(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), s3: S3Settings::from_env(), ..Self::default() }
    }

    /// Defaults for a place, without looking at the environment.
    pub fn at(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), ..Self::default() }
    }
}

impl S3Settings {
    /// What the variables that every S3 tool uses say.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The same over any source of variables.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let get = |names: &[&str]| names.iter().find_map(|n| lookup(n)).filter(|v| !v.is_empty());
        Self {
            endpoint: get(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
            region: get(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
            access_key_id: get(&["AWS_ACCESS_KEY_ID"]),
            secret_access_key: Secret::new(get(&["AWS_SECRET_ACCESS_KEY"]).unwrap_or_default()),
            session_token: Secret::new(get(&["AWS_SESSION_TOKEN"]).unwrap_or_default()),
            allow_http: get(&["AWS_ALLOW_HTTP"])
                .is_some_and(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes")),
            path_style: get(&["AWS_S3_PATH_STYLE", "AWS_S3_FORCE_PATH_STYLE"])
                .map(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes")),
        }
    }

    /// Whether requests name the bucket in the path.
    pub fn uses_path_style(&self) -> bool {
        self.path_style.unwrap_or(self.endpoint.is_some())
    }

    /// The region; a service that has none takes any word.
    pub fn region_or_default(&self) -> &str {
        self.region.as_deref().unwrap_or("us-east-1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned())
    }

    #[test]
    fn the_s3_specific_endpoint_wins_and_brings_path_style() {
        let s3 = S3Settings::from_lookup(lookup(&[
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_ENDPOINT_URL_S3", "http://b"),
            ("AWS_DEFAULT_REGION", "eu-west-1"),
        ]));
        assert_eq!(s3.endpoint.as_deref(), Some("http://b"));
        assert_eq!(s3.region.as_deref(), Some("eu-west-1"));
        assert!(s3.uses_path_style());
        assert!(!s3.allow_http);
    }

    #[test]
    fn settings_never_print_the_secret() {
        let settings = StoreSettings {
            s3: S3Settings { secret_access_key: Secret::new("s3cr3t-s3cr3t"), ..S3Settings::default() },
            ..StoreSettings::default()
        };
        assert!(!format!("{settings:?}").contains("s3cr3t"));
        assert!(!serde_json::to_string(&settings).unwrap().contains("s3cr3t"));
    }
}
