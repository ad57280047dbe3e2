//! Handles signals: an orderly stop, or a reload.
//!
//! The first SIGTERM or SIGINT cancels the token; everything that runs listens to it and drains. A second signal, or a
//! drain that takes too long, ends the process at once. SIGHUP reloads the configuration of a daemon; a program that
//! belongs to a terminal ends with it.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a process that did not drain in time or received a second signal.
const EXIT_NOT_DRAINED: i32 = 1;

/// The meaning of SIGHUP.
pub enum Hangup {
    /// The terminal is gone, and so is the program.
    Stop,
    /// Called for each SIGHUP, on a thread that may block. Calls do not overlap.
    Reload(Box<dyn FnMut() + Send>),
}

/// Installs the handlers and returns the token that the first signal to stop cancels.
///
/// The listening task lives as long as the process: it is the one that ends it.
pub fn watch(drain: Duration, mut hangup: Hangup) -> std::io::Result<CancellationToken> {
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let name = signals.next(&mut hangup).await;
        tracing::info!(signal = name, drain_seconds = drain.as_secs(), "stopping");
        token.cancel();
        tokio::select! {
            name = signals.next(&mut hangup) => tracing::warn!(signal = name, "second signal: the process ends at once"),
            () = tokio::time::sleep(drain) => tracing::warn!("the drain deadline has passed: the process ends now"),
        }
        std::process::exit(EXIT_NOT_DRAINED);
    });
    Ok(stop)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal to stop.
    async fn next(&mut self, hangup: &mut Hangup) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => match hangup {
                    Hangup::Stop => return "SIGHUP",
                    Hangup::Reload(reload) => tokio::task::block_in_place(reload),
                },
            }
        }
    }
}
