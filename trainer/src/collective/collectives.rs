//! What ranks do together.

use std::fmt;
use std::time::Duration;

use tch::Tensor;

use super::error::CollectiveError;
use super::process_group::Running;

/// How numbers of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum. Never the mean: weights of a loss are of the whole train step already.
    Sum,
    /// The largest.
    Max,
}

/// Exchanges tensors with the other ranks. All ranks call the same operations in the same order, with tensors of the same shape
/// and kind; what they are called with must be contiguous.
///
/// Every operation that fails gives [`CollectiveError`], which names rank, operation and phase.
pub trait Collectives: fmt::Debug + Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// How long an operation waits for the other ranks before it is an error.
    fn timeout(&self) -> Duration;

    /// Says what this rank does from here on (`train step 7, micro-batch 2`): errors tell it, here and on the other ranks.
    fn enter(&self, phase: &str);

    /// Tells the other ranks why this one will not go on. Their next error repeats it. Does not wait, and cannot fail: a rank
    /// that cannot say it is found dead.
    fn give_up(&self, reason: &str);

    /// Begins to reduce a tensor over all ranks, in place.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn start_all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Pending, CollectiveError>;

    /// Begins to sum `whole` (`[world_size · n]`) over all ranks; `part` (`[n]`) becomes the n numbers of this rank.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn start_reduce_scatter(&self, part: &Tensor, whole: &Tensor) -> Result<Pending, CollectiveError>;

    /// Begins to put every rank's `part` (`[n]`) together as `whole` (`[world_size · n]`), in the order of ranks.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn start_all_gather(&self, whole: &Tensor, part: &Tensor) -> Result<Pending, CollectiveError>;

    /// Begins to copy the tensor of rank `from` to all.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn start_broadcast(&self, tensor: &Tensor, from: usize) -> Result<Pending, CollectiveError>;

    /// Waits until all ranks are here.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// [`Self::start_all_reduce`], waited for.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<(), CollectiveError> {
        self.start_all_reduce(tensor, reduce)?.wait()
    }

    /// [`Self::start_reduce_scatter`], waited for.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn reduce_scatter(&self, part: &Tensor, whole: &Tensor) -> Result<(), CollectiveError> {
        self.start_reduce_scatter(part, whole)?.wait()
    }

    /// [`Self::start_all_gather`], waited for.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn all_gather(&self, whole: &Tensor, part: &Tensor) -> Result<(), CollectiveError> {
        self.start_all_gather(whole, part)?.wait()
    }

    /// [`Self::start_broadcast`], waited for.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`].
    fn broadcast(&self, tensor: &Tensor, from: usize) -> Result<(), CollectiveError> {
        self.start_broadcast(tensor, from)?.wait()
    }
}

/// An operation that was begun. Its tensors must not be read or written before it is waited for.
#[derive(Debug)]
#[must_use = "an operation that nobody waits for may never be over"]
pub struct Pending(Option<Running>);

impl Pending {
    /// One that is over.
    pub(super) fn done() -> Self {
        Self(None)
    }

    pub(super) fn running(running: Running) -> Self {
        Self(Some(running))
    }

    /// Waits until the tensors are what the operation makes of them.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`], also for a rank that did not come in time.
    pub fn wait(self) -> Result<(), CollectiveError> {
        self.0.map_or(Ok(()), Running::wait)
    }
}
