//! From a signal to an orderly end.
//!
//! The first SIGTERM, SIGINT or SIGHUP cancels the token; everything that runs listens to it and
//! drains. A second signal, or a drain that takes too long, ends the process at once.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a process that could not drain in time or was told twice.
const EXIT_NOT_DRAINED: i32 = 1;

/// Installs the handlers and returns the token that the first signal cancels.
///
/// The listening task lives as long as the process: it is the one that ends it.
pub fn watch(drain: Duration) -> std::io::Result<CancellationToken> {
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let name = signals.next().await;
        tracing::info!(signal = name, drain_seconds = drain.as_secs(), "stopping");
        token.cancel();
        tokio::select! {
            name = signals.next() => tracing::warn!(signal = name, "told twice: ending at once"),
            () = tokio::time::sleep(drain) => tracing::warn!("drain took too long: ending now"),
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

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
