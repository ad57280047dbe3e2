//! One session's side of the desk: what to send to its gateway, and what became of it.
//!
//! `causeway_netmap::sync::NetmapSendState` decides; this waits for what it depends on. Dropping the feed ends the session here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::wire::control::{HeldNetmap, NetmapAck, NetmapRefused};
use causeway_netmap::sync::{NetmapSendState, NetmapSyncState, TargetNetmap};
use causeway_netmap::{Digest, ENCODED_BYTES_MAX, Generation, Netmap, NetmapStamp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::NetmapPublisher;
use super::report::netmap_report;

/// Held by the control loop of a session.
pub struct NetmapFeed {
    desk: NetmapPublisher,
    gateway: String,
    sender: NetmapSendState,
    targets: watch::Receiver<Option<TargetNetmap>>,
    compiled: watch::Receiver<Generation>,
    started: Instant,
    /// Why what the gateway holds is not on its disk. Empty: it is.
    not_persisted: String,
}

impl NetmapFeed {
    pub(super) fn new(
        desk: NetmapPublisher,
        gateway: &str,
        held: Option<NetmapStamp>,
        known: Vec<Arc<Netmap>>,
        targets: watch::Receiver<Option<TargetNetmap>>,
    ) -> NetmapFeed {
        let compiled = desk.shared.compiled.subscribe();
        let (sender, started) = (NetmapSendState::new(held, known), Instant::now());
        let not_persisted = String::new();
        NetmapFeed { desk, gateway: gateway.to_owned(), sender, targets, compiled, started, not_persisted }
    }

    /// Waits until there is something to send, and returns it encoded. What was returned counts as sent, until it is acknowledged or
    /// refused. May be dropped while it waits, and called again.
    pub async fn next_update(&mut self) -> Bytes {
        loop {
            self.take_target();
            let now = self.now();
            if let Some(update) = self.sender.next_update(now) {
                let encoded = update.encode();
                if encoded.len() <= ENCODED_BYTES_MAX {
                    self.desk.shared.figures.sent(update.is_whole(), encoded.len());
                    return encoded;
                }
                let reason = format!("{} bytes are more than a message may have", encoded.len());
                tracing::error!(gateway = self.gateway, reason, "a netmap cannot be sent");
                self.sender.handle_refused(false, &reason, now);
            }
            self.report();
            self.wait().await;
        }
    }

    /// The gateway has it in force, and on disk unless it says why not. Said twice of one netmap when the disk took it later.
    pub fn acknowledged(&mut self, ack: &NetmapAck) {
        let Some(stamp) = ack.held.as_ref().and_then(stamp) else { return };
        if let Some(netmap) = self.sender.handle_acknowledged(stamp) {
            let mut desk = self.desk.lock();
            desk.remembered.put(&self.gateway, netmap);
            if let Some(attached) = desk.attached.get_mut(&self.gateway) {
                attached.held = Some(stamp);
            }
        }
        if self.sender.held() == Some(stamp) {
            self.not_persisted = words(&ack.not_persisted);
        }
        self.take_target();
        self.report();
    }

    /// The gateway could not take it.
    pub fn refused(&mut self, refused: &NetmapRefused) {
        self.desk.shared.figures.refused.inc();
        let reason = words(&refused.reason);
        tracing::warn!(
            gateway = self.gateway,
            reason,
            want_whole = refused.want_whole,
            "a netmap was refused"
        );
        let now = self.now();
        self.sender.handle_refused(refused.want_whole, &reason, now);
        self.report();
    }

    pub fn standing(&self) -> NetmapSyncState {
        self.sender.standing()
    }

    fn take_target(&mut self) {
        let compiled = *self.compiled.borrow_and_update();
        if let Some(target) = self.targets.borrow_and_update().clone() {
            let seen = target.seen.max(compiled);
            self.sender.handle_target(TargetNetmap { seen, ..target });
        }
    }

    async fn wait(&mut self) {
        let is_behind = matches!(self.sender.standing(), NetmapSyncState::Behind { .. });
        let wake = self.sender.wake_at().map(|at| self.started + at);
        tokio::select! {
            changed = self.targets.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
            // Only who waits for the store to be followed further is woken by every move of it.
            _ = self.compiled.changed(), if is_behind => {}
            () = sleep_until(wake) => {}
        }
    }

    fn report(&self) {
        if let Some(report) = netmap_report(&self.sender.standing(), &self.not_persisted) {
            self.desk.report(&self.gateway, report);
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for NetmapFeed {
    fn drop(&mut self) {
        self.desk.leave(&self.gateway);
    }
}

/// What a gateway says it holds. None: nothing, or nothing that could be.
pub fn stamp(held: &HeldNetmap) -> Option<NetmapStamp> {
    let generation = Generation { epoch: held.epoch, revision: held.revision };
    Some(NetmapStamp { generation, digest: Digest::from_slice(&held.digest)? })
}

/// What a gateway says, for people.
fn words(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(WORDS_CHARS_MAX).collect()
}

const WORDS_CHARS_MAX: usize = 400;

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
