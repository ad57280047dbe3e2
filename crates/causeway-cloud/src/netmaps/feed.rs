//! The netmap updates of one session: encodes them for its gateway and takes its replies.
//!
//! `causeway_netmap::sync::NetmapSendState` decides; this waits for its inputs. Dropping the feed ends the
//! session here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::wire::control::{HeldNetmap, NeighbourQuery, NetmapAck, NetmapRefused};
use causeway_netmap::sync::{NetmapSendState, NetmapSyncState, TargetNetmap};
use causeway_netmap::{Digest, ENCODED_BYTES_MAX, Generation, Netmap, NetmapStamp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::NetmapPublisher;
use super::report::netmap_report;

/// Held by the control loop of a session.
pub struct NetmapFeed {
    publisher: NetmapPublisher,
    gateway: String,
    sender: NetmapSendState,
    targets: watch::Receiver<Option<TargetNetmap>>,
    compiled: watch::Receiver<Generation>,
    started: Instant,
    /// The reason why the held netmap is not on the disk of the gateway. Empty: it is.
    not_persisted: String,
}

impl NetmapFeed {
    pub(super) fn new(
        publisher: NetmapPublisher,
        gateway: &str,
        held: Option<NetmapStamp>,
        known: Vec<Arc<Netmap>>,
        targets: watch::Receiver<Option<TargetNetmap>>,
    ) -> NetmapFeed {
        let compiled = publisher.shared.compiled.subscribe();
        let (sender, started) = (NetmapSendState::new(held, known), Instant::now());
        let not_persisted = String::new();
        NetmapFeed {
            publisher,
            gateway: gateway.to_owned(),
            sender,
            targets,
            compiled,
            started,
            not_persisted,
        }
    }

    /// Waits until there is something to send, and returns it encoded. A returned update counts as sent,
    /// until it is acknowledged or refused. May be dropped while it waits, and called again.
    pub async fn next_update(&mut self) -> Bytes {
        loop {
            self.take_target();
            let now = self.now();
            if let Some(update) = self.sender.next_update(now) {
                let encoded = update.encode();
                if encoded.len() <= ENCODED_BYTES_MAX {
                    self.publisher.shared.metrics.sent(update.is_whole(), encoded.len());
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

    /// The gateway has it in force, and on disk unless it says why not. Said twice of one netmap when the
    /// disk took it later.
    pub fn acknowledged(&mut self, ack: &NetmapAck) {
        let Some(stamp) = ack.held.as_ref().and_then(stamp) else { return };
        if let Some(netmap) = self.sender.handle_acknowledged(stamp) {
            let mut state = self.publisher.lock();
            state.remembered.put(&self.gateway, netmap);
            if let Some(attached) = state.attached.get_mut(&self.gateway) {
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
        self.publisher.shared.metrics.refused.inc();
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

    /// The gateway asks for members of large communities.
    pub fn asked(&self, query: &NeighbourQuery) {
        self.publisher.ask_neighbours(&self.gateway, query);
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
            // Only a feed that waits for the store to be followed further is woken by every move of it.
            _ = self.compiled.changed(), if is_behind => {}
            () = sleep_until(wake) => {}
        }
    }

    fn report(&self) {
        if let Some(report) = netmap_report(&self.sender.standing(), &self.not_persisted) {
            self.publisher.report(&self.gateway, report);
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for NetmapFeed {
    fn drop(&mut self) {
        self.publisher.detach(&self.gateway);
    }
}

/// Returns the stamp of the netmap that a gateway claims to hold. None: it holds none, or the claim is
/// malformed.
pub fn stamp(held: &HeldNetmap) -> Option<NetmapStamp> {
    let generation = Generation { epoch: held.epoch, revision: held.revision };
    Some(NetmapStamp { generation, digest: Digest::from_slice(&held.digest)?, turn: held.turn })
}

/// Returns the text of a gateway without control characters, bounded.
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
