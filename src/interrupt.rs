//! Ctrl-C (and SIGTERM, the Ctrl-C of service managers): a command that holds something ends in good order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::failure::EXIT_STOPPED;
use crate::output::Output;

/// Whether the command was asked to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
    notify: Arc<Notify>,
}

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Stop {
    /// Returns when it was.
    pub(crate) async fn asked(&self) {
        while !self.asked.load(Ordering::Relaxed) {
            self.notify.notified().await;
        }
    }

    /// Whether it was.
    #[allow(dead_code, reason = "for dressage-train")]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether it was SIGTERM that asked.
    #[allow(dead_code, reason = "for dressage-train")]
    pub(crate) fn by_terminate(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }
}

/// Listens from now on, and says `what_now` when it is asked. Asked twice, or once where `patience` has passed, the
/// process ends at once.
pub(crate) fn listen(output: Output, what_now: &'static str, patience: Option<Duration>) -> Stop {
    let stop = Stop::default();
    let asked = stop.clone();
    tokio::spawn(async move {
        let Some(signal) = signalled().await else { return };
        output.note(what_now);
        asked.terminated.store(signal == Signal::Terminate, Ordering::Relaxed);
        asked.asked.store(true, Ordering::Relaxed);
        asked.notify.notify_one();
        let patience_ends = async {
            match patience {
                Some(patience) => tokio::time::sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = signalled() => {}
            () = patience_ends => {}
        }
        end_at_once();
    });
    stop
}

/// Ends the process without its libraries' destructors: those of libtorch would take away what its threads work on.
fn end_at_once() -> ! {
    // SAFETY: no pointers; what is written is durable by its own commits, never by an exit handler
    unsafe { libc::_exit(i32::from(EXIT_STOPPED)) }
}

/// Waits for the next signal; none where this system has none.
async fn signalled() -> Option<Signal> {
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending();
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.is_ok().then_some(Signal::Interrupt),
        () = terminated => Some(Signal::Terminate),
    }
}
