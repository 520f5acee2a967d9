//! The memory of the pipeline, in bytes: whoever brings bytes in waits here until others have let go of theirs.
//!
//! A permit is taken before bytes are read and given back when the rows made of them have left for the store. Nobody
//! who holds the key to others' progress waits for ever: a record larger than all of the budget is let in alone, and
//! of those that grow while they are worked on (whole sessions, documents) the oldest is never made to wait.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The ingest is over; whoever waits should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ingest is over")]
pub(crate) struct Stopped;

#[derive(Debug, Default)]
struct State {
    used: u64,
    stopped: bool,
    next_ticket: u64,
    growing: BTreeSet<u64>,
}

/// A number of bytes that are shared by all permits.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// A share of the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    held: Mutex<Held>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Held {
    bytes: u64,
    /// Set while the holder may grow: its place in the order of growing ones.
    ticket: Option<u64>,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::new(State::default()), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // a panic elsewhere leaves only numbers behind, and they are still right
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit for `bytes`; waits until they fit, or nobody else holds any.
    pub(crate) fn acquire(self: &Arc<Self>, bytes: u64) -> Result<Permit, Stopped> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return Err(Stopped);
            }
            if state.used == 0 || state.used + bytes <= self.limit {
                state.used += bytes;
                let held = Mutex::new(Held { bytes, ticket: None });
                return Ok(Permit { budget: Arc::clone(self), held });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all waiting, now and later.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl Permit {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Declares that work on this permit has begun and that it will grow.
    pub(crate) fn begin_growing(&self) {
        let mut state = self.budget.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.growing.insert(ticket);
        self.held().ticket = Some(ticket);
    }

    /// The permit will not grow any more.
    pub(crate) fn end_growing(&self) {
        let mut state = self.budget.lock();
        if let Some(ticket) = self.held().ticket.take() {
            state.growing.remove(&ticket);
            self.budget.changed.notify_all();
        }
    }

    /// Adds bytes. Waits until they fit, unless this is the oldest of the growing ones (or grows alone).
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), Stopped> {
        let mut state = self.budget.lock();
        loop {
            if state.stopped {
                return Err(Stopped);
            }
            let held = *self.held();
            let alone = state.used == held.bytes;
            let oldest = held.ticket.is_some() && state.growing.first() == held.ticket.as_ref();
            if alone || oldest || state.used + bytes <= self.budget.limit {
                state.used += bytes;
                self.held().bytes += bytes;
                return Ok(());
            }
            state = self.budget.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives some of it back.
    pub(crate) fn shrink_to(&self, bytes: u64) {
        let mut state = self.budget.lock();
        let mut held = self.held();
        if bytes < held.bytes {
            state.used -= held.bytes - bytes;
            held.bytes = bytes;
            self.budget.changed.notify_all();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        let held = *self.held();
        state.used -= held.bytes;
        if let Some(ticket) = held.ticket {
            state.growing.remove(&ticket);
        }
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn what_is_held_never_exceeds_the_limit() {
        let budget = Budget::new(100);
        let held = Arc::new(AtomicU64::new(0));
        let peak = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 1..=8_u64 {
                let (budget, held, peak) = (Arc::clone(&budget), Arc::clone(&held), Arc::clone(&peak));
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = (seed * 7 + round) % 60 + 1;
                        let permit = budget.acquire(bytes).unwrap();
                        let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        peak.fetch_max(now, Ordering::SeqCst);
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(peak.load(Ordering::SeqCst) <= 100);
        assert_eq!(budget.lock().used, 0);
    }

    #[test]
    fn a_record_larger_than_the_budget_is_let_in_alone() {
        let budget = Budget::new(10);
        let permit = budget.acquire(1_000).unwrap();
        let waiting = std::thread::spawn({
            let budget = Arc::clone(&budget);
            move || budget.acquire(1).map(|_| ())
        });
        drop(permit);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }

    #[test]
    fn growing_sessions_never_block_each_other_for_ever() {
        let budget = Budget::new(100);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let budget = Arc::clone(&budget);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let permit = budget.acquire(10).unwrap();
                        permit.begin_growing();
                        for _ in 0..8 {
                            permit.grow(10).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(budget.lock().used, 0);
    }

    #[test]
    fn stopping_wakes_those_who_wait() {
        let budget = Budget::new(10);
        let _held = budget.acquire(10).unwrap();
        let waiting = std::thread::spawn({
            let budget = Arc::clone(&budget);
            move || budget.acquire(5).map(|_| ())
        });
        budget.stop();
        assert_eq!(waiting.join().unwrap(), Err(Stopped));
    }
}
