//! One session: the facts of its gateway, its link, and the commands to its task.
//!
//! Created by `greeting`, kept in the table of `Sessions`. `session_loop` executes the commands.

use std::sync::Mutex;
use std::time::SystemTime;

use causeway_api::sync::MutexExt;
use causeway_api::{GatewayStats, Time};
use causeway_channel::clock::unix_seconds;
use causeway_channel::link::{CloseCode, CloseReason, Link, ReceiveBudget};
use causeway_channel::session::{Instance, LINGER};
use causeway_channel::wire::control::{HeldNetmap, Hello};
use causeway_channel::{KeyHash, PeerId};
use tokio::time::Instant;

use super::mailbox::SessionMailbox;
use super::session_loop::SessionCommand;
use crate::identity::AdmittedPeer;
use crate::replicas::SessionKey;

/// One session.
pub struct Session {
    pub number: u64,
    pub epoch: u64,
    /// The process that holds it; `None` from an edge that does not say.
    pub instance: Option<Instance>,
    pub peer: PeerId,
    pub key: KeyHash,
    pub link: Link,
    pub since: Time,
    pub software: String,
    /// Planes that the configuration of the edge switches off.
    pub(super) switched_off: Vec<String>,
    pub(super) not_after: SystemTime,
    /// The lead of the edge's clock over the cloud's clock at the hello message.
    pub(super) clock_ahead_seconds: i64,
    pub(super) held: Mutex<Option<(u64, u64)>>,
    /// Why new streams go over QUIC or TCP, as the edge last told.
    pub(super) carries_reason: Mutex<Option<Box<str>>>,
    /// The bound of unread bytes over all links of the gateway, shared with its older sessions.
    pub(super) budget: ReceiveBudget,
    pub(super) commands: SessionMailbox,
}

impl Session {
    pub(super) fn new(
        number: u64,
        (link, budget): (Link, ReceiveBudget),
        hello: &Hello,
        admitted: AdmittedPeer,
        since: Time,
    ) -> Session {
        let session = Session {
            number,
            epoch: hello.epoch,
            instance: hello.instance(),
            peer: admitted.peer,
            key: admitted.facts.key,
            link,
            since,
            software: printable(&hello.software),
            switched_off: hello.switched_off.iter().take(PLANES_MAX).map(|plane| printable(plane)).collect(),
            not_after: admitted.facts.not_after,
            clock_ahead_seconds: hello.time.saturating_sub(since.as_second()),
            held: Mutex::new(None),
            carries_reason: Mutex::default(),
            budget,
            commands: SessionMailbox::default(),
        };
        session.set_held(hello.held.as_ref());
        session
    }

    /// Ends the session, and the link with it.
    pub fn close(&self, reason: CloseReason) {
        if !self.commands.put(SessionCommand::Close(reason.clone())) {
            self.link.close(reason);
        }
    }

    /// Returns the identity of this session of its gateway, for other replicas.
    pub fn key_of_session(&self) -> SessionKey {
        SessionKey { epoch: self.epoch, instance: self.instance }
    }

    /// The process at the other end is gone: nothing on this link can finish. Closing the link resets its
    /// streams, and with them those of other gateways that are joined to them.
    pub(super) fn orphan(&self) {
        tracing::info!(peer = %self.peer, session = self.number, "the gateway was restarted: its old session ends");
        // Not through the session's own task: it may be waiting for the dead peer.
        self.link.close(CloseReason::new(CloseCode::Superseded, "a newer process of this gateway took over"));
    }

    pub(super) fn linger(&self) {
        self.command(SessionCommand::Linger(Instant::now() + LINGER));
    }

    /// The newer session is gone already; this one goes on.
    pub(super) fn stay(&self) {
        self.command(SessionCommand::Stay);
    }

    // Full means that the edge takes nothing; it will be called dead, or read on.
    pub(super) fn command(&self, command: SessionCommand) {
        self.commands.put(command);
    }

    pub(super) fn set_held(&self, held: Option<&HeldNetmap>) {
        let mut known = self.held.lock_ignoring_poison();
        *known = held.map(|held| (held.epoch, held.revision)).or(*known);
    }

    pub(crate) fn stats(&self) -> GatewayStats {
        let link = self.link.stats();
        let held = *self.held.lock_ignoring_poison();
        GatewayStats {
            connected: true,
            transport: Some(self.link.transport().as_str().to_owned()),
            rtt_ms: self.link.rtt().map(|rtt| (rtt.as_secs_f64() * 1e6).round() / 1e3),
            sent_bytes: link.sent_bytes,
            received_bytes: link.received_bytes,
            since: Some(self.since),
            last_disconnect_reason: None,
            generation: held.map(|(epoch, revision)| format!("{epoch}.{revision}")),
            clock_ahead_seconds: Some(self.clock_ahead_seconds),
            certificate_expires: Some(Time::from_second(unix_seconds(self.not_after))),
            address: Some(self.link.remote_address().ip().to_canonical().to_string()),
            carries: self.carries(),
            carries_reason: self.carries_reason(),
            software: Some(self.software.clone()).filter(|software| !software.is_empty()),
            switched_off: self.switched_off.clone(),
            ..GatewayStats::default()
        }
    }
}

/// Planes that an edge may report as switched off; there are two.
const PLANES_MAX: usize = 4;

/// Text of an edge, without control characters and bounded.
fn printable(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(80).collect()
}
