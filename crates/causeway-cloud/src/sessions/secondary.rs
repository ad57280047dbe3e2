//! The secondary link of a session: a TCP link that an edge joins to its session over QUIC.
//!
//! A link joins only the session whose certificate, session id and process it shows. It is attached to the session's link, so
//! whatever ends the session ends it too. Its streams are served as those of the session are.

use std::sync::Arc;
use std::time::Duration;

use causeway_api::TransportStats;
use causeway_api::sync::MutexExt;
use causeway_channel::CertificateFacts;
use causeway_channel::link::{Link, LinkStats, ResetCode, StreamPurpose, Transport};
use causeway_channel::wire::control::{
    JoinSession, PathQuery, PathReport, SessionJoined, SessionRefused, SessionRefusedCode, encode_cloud,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::greeting::Control;
use super::services::EdgeStreamHandler;
use super::{Session, Shared};

/// The answer to a join has this long to leave.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// After this many streams the link gets its turn: each stream is a task.
const STREAMS_AT_ONCE: usize = 64;
/// Characters of a reason that an edge tells.
const REASON_MAX: usize = 100;

/// A link that was joined to a session.
pub struct SecondaryLink {
    session: Arc<Session>,
    link: Link,
    streams: Arc<dyn EdgeStreamHandler>,
}

impl Shared {
    /// Answers a join: the link is attached, or told why not.
    pub(super) async fn join(
        self: Arc<Shared>,
        link: Link,
        join: &JoinSession,
        control: Control,
        streams: Arc<dyn EdgeStreamHandler>,
    ) -> Option<SecondaryLink> {
        let session = match self.session_to_join(&link, join) {
            Ok(session) => session,
            Err(message) => {
                let refused = SessionRefused::new(SessionRefusedCode::Other, message, "");
                self.send_refusal(&link, control, refused).await;
                return None;
            }
        };
        let (_, mut writer) = control;
        writer.push(encode_cloud(SessionJoined {}).ok()?);
        link.admit_within(&session.budget);
        if !matches!(timeout(ANSWER_MAX, writer.finish()).await, Ok(Ok(_))) {
            return None;
        }
        // A session that has ended meanwhile closes the link here.
        session.link.attach_secondary(link.clone());
        tracing::debug!(peer = %session.peer, session = session.number, "a secondary TCP link joined the session");
        Some(SecondaryLink { session, link, streams })
    }

    fn session_to_join(&self, link: &Link, join: &JoinSession) -> Result<Arc<Session>, &'static str> {
        let facts = link.certificate().and_then(|shown| CertificateFacts::read(&shown).ok());
        let facts = facts.ok_or("no certificate was shown")?;
        let peer = facts.peer.as_ref().ok_or("the certificate names no gateway")?;
        if self.is_draining() {
            return Err("this replica is being stopped");
        }
        if link.is_port_crowded() {
            return Err("this replica keeps its remaining links for sessions");
        }
        let session = self.table().current(&peer.gateway().to_owned()).map(|entry| entry.session.clone());
        let session = session.ok_or("this replica holds no session of this gateway")?;
        let instance: Option<[u8; 16]> = join.instance.as_ref().try_into().ok();
        let is_this = session.key == facts.key
            && session.peer == *peer
            && join.session_id == format!("{}-{}", self.replica, session.number)
            && session.instance.is_some()
            && session.instance == instance.map(u128::from_be_bytes);
        if !is_this {
            return Err("another session of this gateway is open");
        }
        if link.transport() != Transport::Tcp || session.link.transport() != Transport::Quic {
            return Err("only a TCP link joins a session over QUIC");
        }
        Ok(session)
    }
}

impl SecondaryLink {
    /// Serves the streams of the edge until the link ends.
    pub async fn run(self) {
        let (mut streams, mut accepted) = (JoinSet::new(), 0_usize);
        loop {
            tokio::select! {
                biased;
                Some(_) = streams.join_next() => {}
                next = self.link.accept_stream() => match next {
                    Ok((header, stream)) => match header.purpose() {
                        Some(
                            StreamPurpose::Service
                            | StreamPurpose::Node
                            | StreamPurpose::Diagnose
                            | StreamPurpose::Packets,
                        ) => {
                            streams.spawn(self.streams.serve(&self.session.peer, header, stream));
                            accepted = accepted.wrapping_add(1);
                            if accepted.is_multiple_of(STREAMS_AT_ONCE) {
                                tokio::task::yield_now().await;
                            }
                        }
                        _ => stream.refuse(ResetCode::Malformed),
                    },
                    Err(_) => break,
                },
            }
        }
        self.session.link.remove_secondary(&self.link);
    }
}

impl Session {
    /// The streams and bytes of each transport.
    pub(super) fn carries(&self) -> Vec<TransportStats> {
        let (primary, secondary) = self.link.stats_by_transport();
        let row = |transport: Transport, stats: LinkStats| TransportStats {
            transport: transport.as_str().to_owned(),
            streams: stats.streams_open,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
        };
        let mut rows = vec![row(self.link.transport(), primary)];
        if self.link.has_secondary() || secondary != LinkStats::default() {
            rows.push(row(Transport::Tcp, secondary));
        }
        rows
    }

    pub(super) fn carries_reason(&self) -> Option<String> {
        let reason = self.carries_reason.lock_ignoring_poison();
        reason.as_deref().map(str::to_owned)
    }

    /// Notes how the edge carries new streams, and returns the loss that was measured here.
    pub(super) fn handle_path_query(&self, query: &PathQuery) -> PathReport {
        if query.retire {
            self.link.retire_secondary();
        }
        let reason: String =
            query.reason.chars().filter(|char| !char.is_control()).take(REASON_MAX).collect();
        *self.carries_reason.lock_ignoring_poison() = Some(reason.into());
        let path = self.link.path_stats().unwrap_or_default();
        PathReport { acknowledged_bytes: path.acknowledged_bytes, lost_bytes: path.lost_bytes }
    }
}
