//! Signs of life: each rank writes into the store that it is there, and what it does. When an operation fails, what the others
//! wrote tells who is to blame; c10d itself only knows that a connection closed, or that nobody came.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::native::{Said, Store};

/// Beats between the two looks at a rank.
const BEATS_BETWEEN_LOOKS: u32 = 3;

/// What a rank writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sign {
    /// Counted up with each.
    beat: u64,
    host: String,
    process: u32,
    phase: String,
}

#[derive(Debug)]
struct Shared {
    phase: Mutex<String>,
    /// Set when there is no more to be written.
    over: Mutex<bool>,
    wake: Condvar,
}

/// This rank's signs, and the way to read those of the others.
#[derive(Debug)]
pub(super) struct Life {
    rank: usize,
    world_size: usize,
    beat: Duration,
    shared: Arc<Shared>,
    store: Arc<Store>,
    writer: Option<JoinHandle<()>>,
}

impl Life {
    /// Begins to write, every `beat`. `store` is a connection of its own for reading, `writing` one for the signs.
    pub(super) fn begin(store: Store, writing: Store, rank: usize, world_size: usize, beat: Duration) -> Self {
        let shared = Arc::new(Shared { phase: Mutex::default(), over: Mutex::new(false), wake: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let writer = std::thread::Builder::new().name("signs-of-life".to_owned());
        // a rank without this thread is taken for dead once something fails, which is no worse than the failure
        let writer = writer.spawn(move || write_signs(&of_thread, &writing, rank, beat)).ok();
        Self { rank, world_size, beat, shared, store: Arc::new(store), writer }
    }

    pub(super) fn enter(&self, phase: &str) {
        phase.clone_into(&mut lock(&self.shared.phase));
    }

    pub(super) fn phase(&self) -> String {
        lock(&self.shared.phase).clone()
    }

    /// How long [`Self::blame`] takes at most.
    pub(super) fn blame_time(beat: Duration) -> Duration {
        beat * (BEATS_BETWEEN_LOOKS + 2)
    }

    pub(super) fn give_up(&self, reason: &str) {
        let (store, rank, reason) = (Arc::clone(&self.store), self.rank, reason.to_owned());
        let _ = within(self.beat, move || store.set(&format!("gave_up/{rank}"), &reason));
    }

    /// Says that this rank leaves as it should, and waits a little for the others if the store is its own: a store that goes
    /// first leaves the others with errors.
    pub(super) fn leave(&self, hosts_store: bool) {
        let (store, rank, world_size, beat) = (Arc::clone(&self.store), self.rank, self.world_size, self.beat);
        let _ = within(self.beat * 6, move || -> Said<()> {
            store.set(&format!("left/{rank}"), "")?;
            if hosts_store {
                (0..world_size).try_for_each(|other| store.get(&format!("left/{other}"), beat * 5).map(|_| ()))?;
            }
            Ok(())
        });
    }

    /// Which ranks gave up, or gave no sign of life, or do something else; empty if all seem well.
    pub(super) fn blame(&self) -> String {
        let (store, own, world_size, beat) = (Arc::clone(&self.store), self.rank, self.world_size, self.beat);
        let phase = self.phase();
        let found = within(Self::blame_time(self.beat), move || look(&store, own, world_size, beat, &phase));
        match found {
            Some(Ok(peers)) => peers.join("; "),
            // the store is a part of rank 0, or of the launcher beside it
            Some(Err(_)) => "the store on rank 0's host is gone".to_owned(),
            None => "the store on rank 0's host does not answer".to_owned(),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        *lock(&self.shared.over) = true;
        self.shared.wake.notify_all();
        // its last write may wait for a store that never answers: it is left to itself then
        drop(self.writer.take());
    }
}

fn write_signs(shared: &Shared, store: &Store, rank: usize, beat: Duration) {
    let key = format!("life/{rank}");
    let mut sign = Sign { beat: 0, host: host_name(), process: std::process::id(), phase: String::new() };
    loop {
        lock(&shared.phase).clone_into(&mut sign.phase);
        sign.beat += 1;
        let text = serde_json::to_string(&sign).unwrap_or_default();
        // a store that is gone is told by the operation that fails next
        if store.set(&key, &text).is_err() {
            return;
        }
        let over = lock(&shared.over);
        let waited = shared.wake.wait_timeout_while(over, beat, |over| !*over);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
    }
}

fn look(store: &Store, own: usize, world_size: usize, beat: Duration, phase: &str) -> Said<Vec<String>> {
    let read = |key: String| -> Said<Option<String>> {
        if store.has(&key)? { store.get(&key, beat).map(Some) } else { Ok(None) }
    };
    let signs = || -> Said<Vec<Option<Sign>>> {
        let sign = |rank| Ok(read(format!("life/{rank}"))?.and_then(|text| serde_json::from_str(&text).ok()));
        (0..world_size).map(sign).collect()
    };
    let before = signs()?;
    std::thread::sleep(beat * BEATS_BETWEEN_LOOKS);
    let after = signs()?;
    let mut found = Vec::new();
    for rank in (0..world_size).filter(|rank| *rank != own) {
        let who = |sign: &Option<Sign>| match sign {
            Some(sign) => format!("rank {rank} ({}, process {})", sign.host, sign.process),
            None => format!("rank {rank}"),
        };
        let sign = &after[rank];
        let doing = sign.as_ref().map_or("", |sign| sign.phase.as_str());
        if let Some(reason) = read(format!("gave_up/{rank}"))? {
            found.push(format!("{} gave up: {reason}", who(sign)));
        } else if before[rank].as_ref().map(|sign| sign.beat) == sign.as_ref().map(|sign| sign.beat) {
            found.push(format!("{} gives no sign of life, and was last in {doing}", who(sign)));
        } else if doing != phase {
            found.push(format!("{} is in {doing}", who(sign)));
        }
    }
    Ok(found)
}

/// Does something that may never end; none if it does not in time.
pub(super) fn within<T: Send + 'static>(limit: Duration, what: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, receive) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("rendezvous".to_owned());
    // the receiver may have gone when it ends
    thread.spawn(move || drop(send.send(what()))).ok()?;
    receive.recv_timeout(limit).ok()
}

/// This machine's name.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "unknown host".to_owned(), |name| name.trim().to_owned())
}

/// What a thread that panicked left is still a phase or a switch.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_given_up_in_time() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (_keep, never) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || never.recv().is_ok()), None);
    }

    #[test]
    fn a_host_has_a_name() {
        assert!(!host_name().is_empty());
    }
}
