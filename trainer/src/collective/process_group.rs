//! Ranks that are processes, over libtorch's c10d.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tch::Tensor;

use super::collectives::{Collectives, Pending, Reduce};
use super::error::{CollectiveError, Operation};
use super::life::Life;
use crate::native::{Group, Said, Store, Work};
use crate::settings::ParallelSettings;

/// How a group is joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOptions {
    /// After how long a rank that does not come is an error, on every other rank. Longer than the longest micro-batch of the
    /// slowest rank, and than it takes one to write a checkpoint.
    pub timeout: Duration,
    /// How long to wait for all ranks at the start: a cluster may start them minutes apart.
    pub join_timeout: Duration,
    /// How far a rank's clock may be from rank 0's: what is decided by time (deadlines, retention) would differ otherwise.
    pub clock_offset_max: Duration,
    /// Network interfaces to use; empty for the one that belongs to this host's name. `GLOO_SOCKET_IFNAME` is where
    /// [`Default`] takes them from, with commas between.
    pub interfaces: Vec<String>,
}

impl Default for GroupOptions {
    fn default() -> Self {
        let names = std::env::var("GLOO_SOCKET_IFNAME").unwrap_or_default();
        let interfaces = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Self {
            timeout: Duration::from_secs(600),
            join_timeout: Duration::from_secs(600),
            clock_offset_max: Duration::from_secs(5),
            interfaces,
        }
    }
}

impl GroupOptions {
    /// With the timeout of the settings.
    pub fn of(settings: &ParallelSettings) -> Self {
        Self { timeout: Duration::from_secs(settings.collective_timeout_s), ..Self::default() }
    }
}

/// Processes on one host or several, one a rank. [`Rendezvous::join`](super::Rendezvous::join) makes it. Operations on tensors of
/// the CPU go over gloo.
#[derive(Debug)]
pub struct ProcessGroup(Arc<Member>);

/// This rank's membership, which operations under way share.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    pub(super) hosts_store: bool,
    /// None once an operation failed.
    group: Mutex<Option<Arc<Group>>>,
    failed: Mutex<Option<CollectiveError>>,
    life: Life,
    /// On the rank that hosts it, the store is served as long as this lives.
    _store: Store,
}

impl ProcessGroup {
    pub(super) fn new(
        rank: usize,
        world_size: usize,
        timeout: Duration,
        hosts_store: bool,
        (group, store): (Group, Store),
        life: Life,
    ) -> Self {
        let group = Mutex::new(Some(Arc::new(group)));
        let failed = Mutex::default();
        Self(Arc::new(Member { rank, world_size, timeout, hosts_store, group, failed, life, _store: store }))
    }

    /// How often ranks give a sign of life, so that who is to blame is found out within a part of the timeout.
    pub(super) fn beat(timeout: Duration) -> Duration {
        (timeout / 20).min(Duration::from_millis(400))
    }

    /// What c10d is given, so that with the search for who is to blame it stays below the timeout.
    pub(super) fn operation_timeout(timeout: Duration) -> Duration {
        let beat = Self::beat(timeout);
        // two beats more, for a machine that is busy
        timeout.saturating_sub(Life::blame_time(beat) + 2 * beat).max(Duration::from_millis(1))
    }

    fn start(
        &self,
        operation: Operation,
        tensors: &[&Tensor],
        begin: impl FnOnce(&Group) -> Said<Work>,
    ) -> Result<Pending, CollectiveError> {
        let started = Instant::now();
        let member = &self.0;
        if let Some(error) = lock(&member.failed).clone() {
            return Err(error);
        }
        if tensors.iter().any(|tensor| !tensor.is_contiguous()) {
            return Err(member.failure(operation, started, "a tensor is not contiguous".to_owned()));
        }
        let group = lock(&member.group).clone();
        let begun = match &group {
            Some(group) => begin(group),
            None => Err("the group is closed".to_owned()),
        };
        match begun {
            Ok(work) => {
                // what is being sent must live as long as the sending
                let tensors = tensors.iter().map(|tensor| tensor.shallow_clone()).collect();
                Ok(Pending::running(Running {
                    work,
                    member: Arc::clone(member),
                    operation,
                    started,
                    _tensors: tensors,
                }))
            }
            Err(said) => Err(member.failure(operation, started, said)),
        }
    }
}

impl Member {
    /// The error of an operation that failed; from here on every other gives the same.
    fn failure(&self, operation: Operation, started: Instant, said: String) -> CollectiveError {
        let after = started.elapsed();
        let mut failed = lock(&self.failed);
        if let Some(error) = &*failed {
            return error.clone();
        }
        // the others of the group see their connections closed, and need not wait; works under way may hold this up
        let group = lock(&self.group).take();
        std::thread::spawn(move || drop(group));
        let error = CollectiveError::Failed {
            rank: self.rank,
            world_size: self.world_size,
            operation,
            phase: self.life.phase().into(),
            after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            peers: self.life.blame().into(),
            said: said.lines().next().unwrap_or_default().into(),
        };
        *failed = Some(error.clone());
        error
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if lock(&self.failed).is_none() {
            self.life.leave(self.hosts_store);
        }
    }
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Running {
    work: Work,
    member: Arc<Member>,
    operation: Operation,
    started: Instant,
    _tensors: Vec<Tensor>,
}

impl Running {
    pub(super) fn wait(self) -> Result<(), CollectiveError> {
        // c10d has its own limit, from when the operation began; this one is for what it does not watch over
        let limit = ProcessGroup::operation_timeout(self.member.timeout);
        let waited = self.work.wait(limit);
        waited.map_err(|said| self.member.failure(self.operation, self.started, said))
    }
}

impl Collectives for ProcessGroup {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn world_size(&self) -> usize {
        self.0.world_size
    }

    fn timeout(&self) -> Duration {
        self.0.timeout
    }

    fn enter(&self, phase: &str) {
        self.0.life.enter(phase);
    }

    fn give_up(&self, reason: &str) {
        self.0.life.give_up(reason);
    }

    fn start_all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Pending, CollectiveError> {
        self.start(Operation::AllReduce, &[tensor], |group| group.all_reduce(tensor, reduce == Reduce::Sum))
    }

    fn start_reduce_scatter(&self, part: &Tensor, whole: &Tensor) -> Result<Pending, CollectiveError> {
        self.start(Operation::ReduceScatter, &[part, whole], |group| group.reduce_scatter(part, whole))
    }

    fn start_all_gather(&self, whole: &Tensor, part: &Tensor) -> Result<Pending, CollectiveError> {
        self.start(Operation::AllGather, &[whole, part], |group| group.all_gather(whole, part))
    }

    fn start_broadcast(&self, tensor: &Tensor, from: usize) -> Result<Pending, CollectiveError> {
        self.start(Operation::Broadcast, &[tensor], |group| group.broadcast(tensor, from))
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.start(Operation::Barrier, &[], Group::barrier)?.wait()
    }
}

/// A switch or a handle is whole whatever a thread that panicked did.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_for_who_is_to_blame_is_a_part_of_the_timeout() {
        for timeout in [Duration::from_secs(2), Duration::from_secs(600)] {
            let operation = ProcessGroup::operation_timeout(timeout);
            assert!(operation >= timeout / 2, "{operation:?}");
            assert!(operation + Life::blame_time(ProcessGroup::beat(timeout)) <= timeout);
        }
    }
}
