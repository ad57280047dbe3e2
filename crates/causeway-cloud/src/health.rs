//! Health of the store: reachable, and with room to write. Reported in `/readyz`, and in the log when it changes.
//!
//! Reads go on when the disk is full, and the process stays up in any case: this only tells.

use std::path::PathBuf;
use std::time::Duration;

use causeway_daemon::ReadinessCheck;
use causeway_store::Store;
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_secs(1);
/// A store that takes longer for one small read is not available.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Less than this and the next commit may fail: SQLite's log grows in steps of this order.
const ROOM_BYTES_MIN: u64 = 1 << 20;
/// A key that no collection has: the answer is always "not there".
const PROBE_KEY: &str = "health/probe";

pub struct StoreHealth {
    pub store: Store,
    pub check: ReadinessCheck,
    /// The folder of the store; None for a store on another host.
    pub folder: Option<PathBuf>,
}

impl StoreHealth {
    pub async fn run(self, stop: CancellationToken) {
        loop {
            self.update_readiness().await;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    async fn update_readiness(&self) {
        match self.trouble().await {
            None => {
                if self.check.ready() {
                    tracing::info!("the store is ready");
                }
            }
            Some(reason) => {
                if self.check.failing(&reason) {
                    tracing::error!(reason, "the store is not ready");
                }
            }
        }
    }

    async fn trouble(&self) -> Option<String> {
        match tokio::time::timeout(READ_TIMEOUT, self.store.get(PROBE_KEY)).await {
            Err(_) => return Some(format!("no answer within {} s", READ_TIMEOUT.as_secs())),
            Ok(Err(error)) => return Some(error.to_string()),
            Ok(Ok(_)) => {}
        }
        let folder = self.folder.clone()?;
        let filesystem =
            tokio::task::spawn_blocking(move || rustix::fs::statvfs(&folder)).await.ok()?.ok()?;
        let free_bytes = filesystem.f_bavail.saturating_mul(filesystem.f_frsize);
        (free_bytes < ROOM_BYTES_MIN)
            .then(|| format!("the disk is full: {free_bytes} bytes left; reads go on"))
    }
}
