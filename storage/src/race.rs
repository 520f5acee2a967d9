//! Does this place honour conditional writes? Several real servers answer 200 and ignore the condition; two writers
//! then overwrite each other's commits and rows vanish without an error. So it is tried, not believed.
//!
//! Thirty-two clients create one key at once: exactly one may win, and the stored bytes must be the winner's. Then
//! thirty-two replace it under the same ETag: again exactly one. A local folder has no replace-if-unchanged, and
//! nothing here needs it there, so only creation is raced.

use std::sync::Arc;

use futures::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How many clients race.
pub(crate) const RACERS: usize = 32;

/// Rounds of each race; a store that only sometimes lets two win is caught with near certainty.
pub(crate) const ROUNDS: usize = 5;

const CREATED: &str = "created";
const REPLACED: &str = "replaced";

/// What the races showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceOutcome {
    /// Clients per round.
    pub racers: usize,
    /// Rounds of conditional creation.
    pub create_rounds: usize,
    /// Rounds of conditional replacement; 0 where the store has none and none is needed.
    pub update_rounds: usize,
    /// None: every round had exactly one winner, whose bytes were stored. Otherwise what went wrong.
    pub broken: Option<String>,
}

impl RaceOutcome {
    /// Whether many writers may share the store.
    pub fn is_sound(&self) -> bool {
        self.broken.is_none()
    }
}

/// Races `RACERS` clients under `root`. Fails only where the store cannot be reached or written at all.
pub(crate) async fn run(store: &Arc<dyn ObjectStore>, root: &Path, replace: bool) -> Result<RaceOutcome> {
    let mut outcome = RaceOutcome { racers: RACERS, create_rounds: 0, update_rounds: 0, broken: None };
    for round in 0..ROUNDS {
        let key = root.clone().join("_race").join(format!("{}-{round}", uuid::Uuid::new_v4().simple()));
        let verdict = one_round(store, &key, replace, &mut outcome).await;
        // leave nothing behind, whatever happened
        let removed = store.delete(&key).await;
        if let Some(broken) = verdict? {
            outcome.broken = Some(broken);
            break;
        }
        if let Err(e) = removed
            && !matches!(e, object_store::Error::NotFound { .. })
        {
            return Err(Error::object("delete", key.to_string(), e));
        }
    }
    Ok(outcome)
}

async fn one_round(
    store: &Arc<dyn ObjectStore>,
    key: &Path,
    replace: bool,
    outcome: &mut RaceOutcome,
) -> Result<Option<String>> {
    let created = race(store, key, CREATED, |_| PutMode::Create).await;
    outcome.create_rounds += 1;
    if let Some(broken) = judge(store, key, CREATED, "conditional creates of one key", created).await? {
        return Ok(Some(broken));
    }
    if !replace {
        return Ok(None);
    }
    let meta = store.head(key).await.map_err(|e| Error::object("read", key.to_string(), e))?;
    let version = UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() };
    if version.e_tag.is_none() {
        return Ok(Some("objects have no ETag".to_owned()));
    }
    let updated = race(store, key, REPLACED, |_| PutMode::Update(version.clone())).await;
    outcome.update_rounds += 1;
    judge(store, key, REPLACED, "replacements under one ETag", updated).await
}

async fn race(
    store: &Arc<dyn ObjectStore>,
    key: &Path,
    heat: &'static str,
    mode: impl Fn(usize) -> PutMode,
) -> Vec<object_store::Result<()>> {
    let attempts = (0..RACERS).map(|racer| {
        let options = PutOptions { mode: mode(racer), ..PutOptions::default() };
        let (store, key) = (store.clone(), key.clone());
        tokio::spawn(async move {
            let payload = PutPayload::from(racer_bytes(heat, racer).into_bytes());
            store.put_opts(&key, payload, options).await.map(|_| ())
        })
    });
    join_all(attempts)
        .await
        .into_iter()
        .map(|done| done.unwrap_or_else(|lost| Err(object_store::Error::JoinError { source: lost })))
        .collect()
}

/// What a racer writes. No two writes to one key may have the same bytes: an ETag is a hash of them, so the creation's
/// winner, replacing its object by the same bytes, would let a second replacement under the same ETag win by right.
fn racer_bytes(heat: &str, racer: usize) -> String {
    format!("{heat} by racer {racer:02}")
}

async fn judge(
    store: &Arc<dyn ObjectStore>,
    key: &Path,
    heat: &str,
    what: &str,
    results: Vec<object_store::Result<()>>,
) -> Result<Option<String>> {
    let winners: Vec<usize> = results.iter().enumerate().filter(|(_, r)| r.is_ok()).map(|(i, _)| i).collect();
    let unexpected = results.into_iter().find_map(|r| match r {
        Err(e) if !is_lost_race(&e) => Some(e),
        _ => None,
    });
    let [winner] = winners[..] else {
        if winners.is_empty() {
            let error = unexpected.unwrap_or(object_store::Error::NotImplemented {
                operation: what.to_owned(),
                implementer: "the store".to_owned(),
            });
            return Err(Error::object("race conditional writes on", key.to_string(), error));
        }
        return Ok(Some(format!("{} of {RACERS} {what} succeeded", winners.len())));
    };
    let stored = store.get(key).await.map_err(|e| Error::object("read", key.to_string(), e))?;
    let bytes = stored.bytes().await.map_err(|e| Error::object("read", key.to_string(), e))?;
    if bytes.as_ref() != racer_bytes(heat, winner).as_bytes() {
        return Ok(Some(format!("of {RACERS} {what} one succeeded, but another one's bytes were stored")));
    }
    Ok(None)
}

/// The answers a loser may get. A conflict that the client gave up retrying is one, too: it did not win.
fn is_lost_race(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
        || error.to_string().contains("409")
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    /// A server as several are: it takes the condition and overwrites all the same.
    #[derive(Debug)]
    struct Ignoring(InMemory);

    impl std::fmt::Display for Ignoring {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Ignoring")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for Ignoring {
        async fn put_opts(
            &self,
            location: &Path,
            payload: PutPayload,
            _options: PutOptions,
        ) -> object_store::Result<object_store::PutResult> {
            self.0.put_opts(location, payload, PutOptions::default()).await
        }
        async fn put_multipart_opts(
            &self,
            location: &Path,
            options: object_store::PutMultipartOptions,
        ) -> object_store::Result<Box<dyn object_store::MultipartUpload>> {
            self.0.put_multipart_opts(location, options).await
        }
        async fn get_opts(
            &self,
            location: &Path,
            options: object_store::GetOptions,
        ) -> object_store::Result<object_store::GetResult> {
            self.0.get_opts(location, options).await
        }
        fn delete_stream(
            &self,
            locations: futures::stream::BoxStream<'static, object_store::Result<Path>>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<Path>> {
            self.0.delete_stream(locations)
        }
        fn list(
            &self,
            prefix: Option<&Path>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
            self.0.list(prefix)
        }
        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<object_store::ListResult> {
            self.0.list_with_delimiter(prefix).await
        }
        async fn copy_opts(
            &self,
            from: &Path,
            to: &Path,
            options: object_store::CopyOptions,
        ) -> object_store::Result<()> {
            self.0.copy_opts(from, to, options).await
        }
    }

    #[tokio::test]
    async fn a_store_that_honours_conditions_is_sound_and_left_clean() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let outcome = run(&store, &Path::from("s"), true).await.unwrap();
        assert!(outcome.is_sound(), "{outcome:?}");
        assert_eq!((outcome.create_rounds, outcome.update_rounds), (ROUNDS, ROUNDS));
        let left = store.list_with_delimiter(Some(&Path::from("s/_race"))).await.unwrap();
        assert!(left.objects.is_empty());
    }

    #[tokio::test]
    async fn a_store_that_ignores_conditions_is_caught() {
        let store: Arc<dyn ObjectStore> = Arc::new(Ignoring(InMemory::new()));
        let outcome = run(&store, &Path::from("s"), true).await.unwrap();
        assert_eq!(outcome.broken.as_deref(), Some("32 of 32 conditional creates of one key succeeded"));
    }
}
