//! Retries of operations on a store that does not answer: exponential backoff with jitter under a named limit.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::error::{Cause, Error, Result};

const FIRST_DELAY_MS: u64 = 50;
const DELAY_MS_MAX: u64 = 5_000;

/// How long to go on.
#[derive(Debug, Clone)]
pub(crate) struct RetryLimit {
    /// The store, for the message.
    pub(crate) uri: String,
    /// The limit.
    pub(crate) timeout_ms: u64,
}

impl RetryLimit {
    /// Runs `attempt` until it succeeds, fails for good, or the limit is reached. Only failures of kind
    /// `Unavailable` are repeated; `attempt` must be safe to repeat after a lost answer.
    pub(crate) async fn run<T, F, Fut>(&self, action: &'static str, mut attempt: F) -> Result<T>
    where
        F: FnMut(u32) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let started = Instant::now();
        let limit = Duration::from_millis(self.timeout_ms);
        let mut tries = 0_u32;
        loop {
            let error = match attempt(tries).await {
                Ok(value) => return Ok(value),
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            let delay = backoff(tries);
            if started.elapsed() + delay >= limit {
                return Err(Error::StillUnavailable {
                    uri: self.uri.clone(),
                    timeout_ms: self.timeout_ms,
                    action,
                    source: Cause::of(&error),
                });
            }
            tokio::time::sleep(delay).await;
            tries += 1;
        }
    }
}

/// Full jitter: somewhere between half and the whole of the exponential delay, so that writers that failed together
/// do not come back together.
fn backoff(tries: u32) -> Duration {
    let full = FIRST_DELAY_MS.saturating_mul(1 << tries.min(16)).min(DELAY_MS_MAX);
    Duration::from_millis(full / 2 + random() % (full / 2 + 1))
}

/// A random number from the system's source. Not a seam of any derived table: it only spreads waits and ids.
pub(crate) fn random() -> u64 {
    let bytes = uuid::Uuid::new_v4().into_bytes();
    let mut low = [0_u8; 8];
    // bytes 8.. hold the variant bits; the first eight less four version bits are random
    low.copy_from_slice(&bytes[..8]);
    let mut high = [0_u8; 8];
    high.copy_from_slice(&bytes[8..]);
    u64::from_le_bytes(low) ^ u64::from_le_bytes(high).rotate_left(17)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn unavailable() -> Error {
        Error::ObjectAccess {
            action: "read",
            object: "x".into(),
            kind: dressage_schemas::ErrorKind::Unavailable,
            source: Cause::words("503"),
        }
    }

    #[tokio::test]
    async fn an_outage_shorter_than_the_limit_is_ridden_out() {
        let calls = AtomicU32::new(0);
        let limit = RetryLimit { uri: "u".into(), timeout_ms: 10_000 };
        let done = limit
            .run("read", |_| async {
                if calls.fetch_add(1, Ordering::SeqCst) < 2 { Err(unavailable()) } else { Ok(7) }
            })
            .await;
        assert_eq!(done.unwrap(), 7);
        assert_eq!(calls.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn the_limit_ends_it_and_is_named() {
        let limit = RetryLimit { uri: "u".into(), timeout_ms: 120 };
        let error = limit.run("read", |_| async { Err::<(), _>(unavailable()) }).await.unwrap_err();
        assert!(error.to_string().contains("retry_timeout_ms = 120"), "{error}");
    }

    #[tokio::test]
    async fn what_a_retry_cannot_cure_is_not_retried() {
        let calls = AtomicU32::new(0);
        let limit = RetryLimit { uri: "u".into(), timeout_ms: 10_000 };
        let done: Result<()> = limit
            .run("read", |_| async {
                calls.fetch_add(1, Ordering::SeqCst);
                Err(Error::WriterBroken)
            })
            .await;
        assert!(done.is_err());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}
