//! The threads that a session computes on. I/O and timers stay on the caller's runtime, so a query that keeps every
//! core busy delays neither a read nor the moment at which its time limit strikes.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// A runtime of its own for operators of queries.
#[derive(Debug)]
pub(crate) struct CpuRuntime {
    /// Taken on drop only: a runtime may not be dropped where async code runs, so it is shut down instead.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl CpuRuntime {
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            // plans of deep queries recurse; the default 2 MiB is small for them in builds without optimisation
            .thread_stack_size(16 << 20)
            .thread_name("dressage-sql")
            .enable_time()
            .build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    /// Runs a future there; it is cancelled when the task is dropped.
    pub(crate) fn spawn<F>(&self, future: F) -> CpuTask<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        CpuTask(self.handle.spawn(future))
    }
}

impl Drop for CpuRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs a future on the caller's own runtime, where I/O belongs; it is cancelled when the task is dropped.
///
/// # Panics
/// Outside of a tokio runtime.
pub(crate) fn io_task<F>(future: F) -> CpuTask<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    CpuTask(tokio::spawn(future))
}

/// A running future that ends with its handle.
#[derive(Debug)]
pub(crate) struct CpuTask<T>(JoinHandle<T>);

impl<T> CpuTask<T> {
    /// Waits for the result; an error is a panic of the future.
    pub(crate) async fn join(&mut self) -> Result<T, tokio::task::JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for CpuTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
