//! The commit that is under way beside the rows that come next. There is at most one, so commits happen in the order
//! in which their rows came: a trajectory row never overtakes its steps.

use std::sync::Arc;

use lance::Dataset;
use tokio::task::JoinHandle;

use super::CommitReceipt;
use super::commit::{Group, commit_group};
use super::fence::Fence;
use crate::error::{Cause, Error, Result};
use crate::lake::Lake;

/// A commit that has happened: what became durable, and the version of `trajectories` that holds its rows.
type Done = (CommitReceipt, Option<Arc<Dataset>>);

/// The commits of one writer.
#[derive(Default)]
pub(super) struct Commits {
    fence: Fence,
    running: Option<JoinHandle<Result<(Done, Fence)>>>,
}

impl Commits {
    /// Begins a commit. The one before must be finished.
    pub(super) fn begin(&mut self, lake: Lake, group: Group) {
        debug_assert!(self.running.is_none(), "commits of a writer happen one after the other");
        let mut fence = std::mem::take(&mut self.fence);
        self.running = Some(tokio::spawn(async move {
            let done = commit_group(&lake, group, &mut fence).await?;
            Ok((done, fence))
        }));
    }

    /// Waits for the commit that is under way; an empty receipt where there is none.
    pub(super) async fn finish(&mut self) -> Result<Done> {
        let Some(task) = self.running.as_mut() else { return Ok(Done::default()) };
        let done = task.await;
        self.running = None;
        let (done, fence) = done.map_err(|lost| Error::TaskLost { what: "a commit", source: Cause::of(&lost) })??;
        self.fence = fence;
        Ok(done)
    }

    /// Looks at the last commit once more.
    pub(super) async fn verify(&self, lake: &Lake) -> Result<()> {
        self.fence.verify(lake).await
    }
}
