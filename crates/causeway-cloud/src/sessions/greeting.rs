//! From a link to a session: the edge's hello, the cloud's judgement, welcome or refusal.
//!
//! Everything until the welcome has one deadline. A refusal is written, given a moment to arrive, counted and
//! audited.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_api::{Kind, Object};
use causeway_channel::PeerId;
use causeway_channel::clock::unix_seconds;
use causeway_channel::link::{
    CloseCode, CloseReason, Link, RecvStream, SendStream, StreamPurpose, Transport,
};
use causeway_channel::port::HandshakeSlot;
use causeway_channel::session::SessionAdmission;
use causeway_channel::wire::control::{
    self, ControlReader, ControlWriter, EdgeMessage, EdgeMessageBody, Hello, JoinSession, SessionRefused,
    SessionRefusedCode, Welcome, encode_cloud,
};
use tokio::time::timeout;

use super::secondary::SecondaryLink;
use super::session_loop::CloudSessionLoop;
use super::{EdgeStreamHandler, Session, Shared};
use crate::identity::AdmittedPeer;

/// From the end of the handshake to hello, and from there to the judgement.
const GREETING: Duration = Duration::from_secs(10);
/// A refusal has this long to reach the edge, which closes the link when it has read it.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// A link that has its answer.
enum GreetedLink {
    Session(Box<CloudSessionLoop>),
    Secondary(SecondaryLink),
}

enum FirstMessage {
    Hello(Box<Hello>),
    Join(JoinSession),
}

pub(super) type Control = (ControlReader<RecvStream, EdgeMessage>, ControlWriter<SendStream>);

impl Shared {
    /// Serves a link from its first byte to its last.
    pub(super) async fn serve(
        self: Arc<Shared>,
        link: Link,
        turn: HandshakeSlot,
        streams: Arc<dyn EdgeStreamHandler>,
    ) {
        // Boxed, and gone when the session begins: an idle session holds nothing of it.
        match Box::pin(self.greet(link, turn, streams)).await {
            Some(GreetedLink::Session(talk)) => talk.run().await,
            Some(GreetedLink::Secondary(secondary)) => Box::pin(secondary.run()).await,
            None => {}
        }
    }

    /// Until the edge has its answer. `None`: it was refused.
    async fn greet(
        self: Arc<Shared>,
        link: Link,
        turn: HandshakeSlot,
        streams: Arc<dyn EdgeStreamHandler>,
    ) -> Option<GreetedLink> {
        let Some(_waiting) = link.certificate().and_then(|shown| self.pending_links.enter(&shown)) else {
            self.metrics.count_refused("too-many-links");
            let text = "too many links of this gateway wait for their hello";
            link.close(CloseReason::new(CloseCode::Limit, text));
            return None;
        };
        let (hello, control) = match timeout(GREETING, hear_first(&link)).await {
            Ok(Some((FirstMessage::Hello(hello), control))) => (hello, control),
            Ok(Some((FirstMessage::Join(join), control))) => {
                drop(turn);
                return self.join(link, &join, control, streams).await.map(GreetedLink::Secondary);
            }
            _ => {
                self.metrics.count_refused("no-hello");
                link.close(CloseReason::new(CloseCode::Malformed, "a session begins with hello"));
                return None;
            }
        };
        let moves = self.moves.load(Ordering::Acquire);
        let judged = timeout(GREETING, self.admit(&link, &hello)).await;
        let admitted = judged.unwrap_or_else(|_| Err(unavailable("the cloud takes too long to decide")));
        self.served.store(turn.served_per_second(), Ordering::Relaxed);
        let seated = admitted.and_then(|admitted| self.entry(&link, &hello, admitted));
        drop(turn);
        match seated {
            Ok((session, welcome)) => {
                self.check_moved(&session, moves).await;
                if let Some(tunnels) = &self.services.tunnels {
                    let seen = link.remote_address().ip();
                    let proof = (&session.key, session.not_after);
                    tunnels.handle(&session.peer, proof, hello.tunnel.as_ref(), seen);
                }
                // From here on the edge may open streams; it does so when it has the welcome.
                link.admit_within(&session.budget);
                let (reader, mut writer) = control;
                writer.push(encode_cloud(welcome).expect("a welcome is small: names and a few endpoints"));
                let talk = CloudSessionLoop::new(self.clone(), session, &hello, (reader, writer), streams);
                Some(GreetedLink::Session(Box::new(talk)))
            }
            Err(refused) => {
                self.refuse(&link, control, refused).await;
                None
            }
        }
    }

    /// Checks that this link may hold a session.
    async fn admit(&self, link: &Link, hello: &Hello) -> Result<AdmittedPeer, SessionRefused> {
        if self.is_draining() {
            let message = "this replica is being stopped";
            let refused =
                SessionRefused::new(SessionRefusedCode::Draining, message, "another one will take you");
            return Err(SessionRefused { retry_after_ms: 250, ..refused });
        }
        if hello.version != control::VERSION {
            let message = format!("version {} of the channel is not spoken here", hello.version);
            return Err(SessionRefused::new(
                SessionRefusedCode::Version,
                message,
                "use the same causeway at both ends",
            ));
        }
        let Some(certificate) = link.certificate() else {
            return Err(SessionRefused::new(
                SessionRefusedCode::NotCurrent,
                "no certificate was shown",
                "enrol first",
            ));
        };
        let admitted = self.registrar.admit(&certificate, &hello.bundle_hash).await?;
        self.check_gateway(&admitted.peer).await?;
        Ok(admitted)
    }

    async fn check_gateway(&self, peer: &PeerId) -> Result<(), SessionRefused> {
        let found = self.registry.object(Kind::EGateway, peer.gateway()).await;
        match found.map_err(|error| unavailable(&error.to_string()))?.map(|found| found.object) {
            // A finalizer delays the removal of the object, not the loss of access.
            Some(object) if object.metadata().deletion_timestamp.is_some() => {
                let message = format!("EGateway {} is being deleted", peer.gateway());
                let hint = "when it is gone, create a new token";
                let refused = SessionRefused::new(SessionRefusedCode::UnknownGateway, message, hint);
                Err(SessionRefused { retry_after_ms: 5000, ..refused })
            }
            Some(Object::EGateway(gateway)) if gateway.e_site_name != peer.site() => {
                Err(wrong_site(peer, &gateway.e_site_name))
            }
            Some(_) => Ok(()),
            None => {
                let message = format!("there is no EGateway {}", peer.gateway());
                let hint = "create it again, or create a new token";
                let refused = SessionRefused::new(SessionRefusedCode::UnknownGateway, message, hint);
                Err(SessionRefused { retry_after_ms: 5000, ..refused })
            }
        }
    }

    /// The object may have moved to another site while the link was being judged, before the session could be
    /// found.
    async fn check_moved(&self, session: &Session, moves: u64) {
        if self.moves.load(Ordering::Acquire) == moves {
            return;
        }
        if let Err(refused) = self.check_gateway(&session.peer).await {
            session.link.close(CloseReason::new(CloseCode::NotAdmitted, refused.to_string()));
        }
    }

    /// Gives the session its entry in the table, and the one before its notice.
    fn entry(
        &self,
        link: &Link,
        hello: &Hello,
        admitted: AdmittedPeer,
    ) -> Result<(Arc<Session>, Welcome), SessionRefused> {
        let gateway = admitted.peer.gateway().to_owned();
        let renew = admitted.renew;
        let mut made = None;
        let mut table = self.table();
        let other = table.all_of(&gateway).next().map(|entry| entry.session.budget.clone());
        let links = (link.clone(), other.unwrap_or_default());
        let make = |number| Arc::new(Session::new(number, links, hello, admitted, self.now()));
        let admission =
            table.admit(&gateway, hello.epoch, hello.instance(), |number| made.insert(make(number)).clone());
        drop(table);
        match (admission, made) {
            (SessionAdmission::Taken { number, superseded, evicted, orphaned }, Some(session)) => {
                orphaned.iter().for_each(|old| old.session.orphan());
                if let Some(old) = superseded {
                    old.session.linger();
                }
                if let Some(old) = evicted {
                    old.session.close(CloseReason::new(CloseCode::Superseded, "a newer session took over"));
                }
                self.handle_attached(&session);
                // The key may have been revoked while it was being judged, before the session could be found
                // here.
                if self.registrar.is_revoked(&session.key) {
                    session.link.close(CloseReason::new(CloseCode::Revoked, "this gateway was revoked"));
                }
                Ok((session, self.welcome(number, link.transport(), renew)))
            }
            (SessionAdmission::Older { current_epoch }, _) => {
                let message = "a newer session of this gateway is open";
                let refused = SessionRefused::new(SessionRefusedCode::OlderEpoch, message, "");
                Err(SessionRefused { current_epoch, ..refused })
            }
            _ => {
                let message = "this replica holds as many sessions as it may";
                let refused = SessionRefused::new(
                    SessionRefusedCode::Full,
                    message,
                    "add a replica, or raise the limit",
                );
                Err(SessionRefused { retry_after_ms: 5000, ..refused })
            }
        }
    }

    fn welcome(&self, number: u64, transport: Transport, renew: bool) -> Welcome {
        Welcome {
            session_id: format!("{}-{number}", self.replica),
            replica: self.replica.clone(),
            time: unix_seconds(self.registrar.time()),
            endpoints: self.endpoints(),
            keepalive_ms: self.keepalive(transport).as_millis() as u32,
            retry_hint_ms: self.retry_hint().as_millis() as u32,
            renew,
            features: vec![control::FEATURE_SECONDARY_LINK.to_owned()],
        }
    }

    async fn refuse(&self, link: &Link, control: Control, refused: SessionRefused) {
        let why = refused.reason();
        self.metrics.count_refused(why.word());
        let peer = link.certificate().and_then(|shown| {
            causeway_channel::CertificateFacts::read(&shown).ok().and_then(|facts| facts.peer)
        });
        // An edge that was away too long corrects its epoch by itself; that is nothing to look at.
        if why != SessionRefusedCode::OlderEpoch && why != SessionRefusedCode::Draining {
            let client = link.remote_address().ip().to_string();
            self.registrar.audit_session("session", peer.as_ref(), &client, Some(&refused.message));
        }
        self.send_refusal(link, control, refused).await;
    }

    /// Writes a refusal, gives it a moment to arrive, and closes the link.
    pub(super) async fn send_refusal(&self, link: &Link, (_, mut writer): Control, refused: SessionRefused) {
        let reason = CloseReason::new(CloseCode::NotAdmitted, refused.message.clone());
        if let Ok(frame) = encode_cloud(refused) {
            writer.push(frame);
            let _ = timeout(REFUSAL_TIMEOUT, async {
                if writer.finish().await.is_ok() {
                    link.closed().await;
                }
            })
            .await;
        }
        link.close(reason);
    }
}

/// An operator may set the field back, so the edge asks again soon.
fn wrong_site(peer: &PeerId, site: &str) -> SessionRefused {
    let message = wrong_site_message(peer.gateway(), peer.site(), site);
    let refused =
        SessionRefused::new(SessionRefusedCode::WrongSite, message, enrol_anew(peer.gateway(), site));
    SessionRefused { retry_after_ms: 5000, ..refused }
}

/// For refusals, closes and the condition of the EGateway.
pub(crate) fn wrong_site_message(gateway: &str, enrolled: &str, site: &str) -> String {
    format!(
        "the certificate of gateway {gateway} names the site {enrolled}, and eSiteName of EGateway {gateway} is {site}"
    )
}

pub(crate) fn enrol_anew(gateway: &str, site: &str) -> String {
    format!(
        "moving a gateway means enrolling it anew: causeway token create --site {site} --gateway {gateway} --replace"
    )
}

fn unavailable(why: &str) -> SessionRefused {
    let refused = SessionRefused::new(SessionRefusedCode::Unavailable, "the cloud cannot decide now", why);
    SessionRefused { retry_after_ms: 1000, ..refused }
}

/// Reads the first message of a link, which stands on its first stream.
async fn hear_first(link: &Link) -> Option<(FirstMessage, Control)> {
    let (header, stream) = link.accept_stream().await.ok()?;
    if header.purpose() != Some(StreamPurpose::Control) {
        return None;
    }
    let (send, recv) = stream.split();
    let mut reader = ControlReader::of_edge(recv);
    let first = match reader.next().await.ok()??.body {
        Some(EdgeMessageBody::Hello(hello)) => FirstMessage::Hello(Box::new(hello)),
        Some(EdgeMessageBody::Join(join)) => FirstMessage::Join(join),
        _ => return None,
    };
    Some((first, (reader, ControlWriter::new(send))))
}
