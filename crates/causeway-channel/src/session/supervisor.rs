//! Keeps one session between an edge and the cloud, whatever happens to the link.
//!
//! Events come in through `handle_*`, actions go out through `next_action`, and `next_timeout` tells when to
//! call `handle_timeout`. Time and jitter are arguments. A link has one ID from the attempt that dials it to
//! its end, so that events of an old link never affect a new one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::backoff::{Backoff, DIAL_MAX};
use super::keepalive::{Keepalive, KeepaliveAction};
use super::transport_choice::{AllowedTransports, AttemptedTransports, TransportChoice};
use crate::dial::DialError;
use crate::link::{CloseCode, Transport};
use crate::wire::control::SessionRefusedCode;

/// Identifies an attempt, and the link that results from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// Action for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorAction {
    /// Dial, open the control stream, send hello with this epoch. Report `handle_dialed`, then
    /// `handle_welcome`, or `handle_failed`; give up after `patience`.
    Dial {
        link: LinkId,
        epoch: u64,
        transports: AttemptedTransports,
        patience: Duration,
    },
    /// Drop the attempt. Its result is ignored.
    Abandon {
        link: LinkId,
    },
    /// Send a ping on the control stream.
    Ping {
        link: LinkId,
    },
    /// The address of this machine may have changed: let the link move.
    Rebind {
        link: LinkId,
    },
    /// No new streams on this link; close it when the open ones have ended, or at that moment.
    Linger {
        link: LinkId,
        until: Instant,
    },
    Close {
        link: LinkId,
        code: CloseCode,
    },
    /// The cloud rejects the certificate: renew it, or find out that there is nothing to renew.
    Renew,
}

/// State of the supervisor, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorState {
    BackingOff {
        until: Instant,
    },
    /// Waiting for a certificate that the cloud accepts.
    Enrolling,
    Connecting,
    Ready {
        probing: bool,
    },
    /// The cloud asked us to attach elsewhere; the session works until then.
    Draining,
    Stopped,
}

/// Reason for which an attempt gave no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
    /// No cloud responds at any endpoint.
    Unreachable,
    /// No response in time. The cloud may be down or overloaded.
    Unanswered,
    /// The cloud is busy, and named the time of our turn.
    Busy {
        retry_after: Duration,
    },
    Refused {
        code: SessionRefusedCode,
        retry_after: Duration,
        current_epoch: u64,
    },
}

impl AttemptFailure {
    /// Classifies a failed dial.
    pub fn of_dial(error: &DialError) -> AttemptFailure {
        match error.busy() {
            Some(retry_after) => AttemptFailure::Busy { retry_after },
            None if error.is_timeout() => AttemptFailure::Unanswered,
            None => AttemptFailure::Unreachable,
        }
    }
}

/// Content of the cloud's welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WelcomedSession {
    pub transport: Transport,
    /// Zero: the default.
    pub keepalive: Duration,
    pub retry_hint: Duration,
}

/// The dialer reports its own timeout; this covers a dialer that reports nothing.
const DIAL_GRACE: Duration = Duration::from_millis(500);
/// Open streams of a replaced link have this long.
pub const LINGER: Duration = Duration::from_secs(30);
/// A session that lasted this long does not count as a failure for the backoff.
const SETTLED: Duration = Duration::from_secs(5);
/// Sessions are replaced after a renewal over this time; there is no hurry, and a fleet may renew together.
const REPLACE_SPREAD: Duration = Duration::from_secs(10);
/// Events of a changed link come in bursts; an attempt this young has seen them.
const FRESH: Duration = Duration::from_millis(100);
/// Without news of a certificate, ask again: the event may have been lost.
const ENROLLING_MAX: Duration = Duration::from_secs(30);

/// The state machine.
#[derive(Debug)]
pub struct Supervisor {
    phase: Phase,
    epoch: u64,
    links: u64,
    backoff: Backoff,
    /// Consecutive attempts that timed out.
    unanswered: u32,
    /// The cloud is known to be there, over QUIC, and to be busy: it named our time, or this edge is one of a
    /// large fleet that was told to reconnect. The next attempt waits for it, and does not double its work
    /// with TCP.
    is_patient: bool,
    choice: TransportChoice,
    actions: VecDeque<SupervisorAction>,
}

#[derive(Debug)]
enum Phase {
    /// `not_before` is the time named by the cloud, which no change of the link overrides.
    BackingOff {
        until: Instant,
        not_before: Instant,
    },
    Enrolling {
        until: Instant,
    },
    Connecting(Attempt),
    Ready(Session, PlannedSession),
    Draining(Session, PlannedSession),
    Stopped,
}

#[derive(Debug)]
struct Attempt {
    link: LinkId,
    started: Instant,
    deadline: Instant,
    patience: Duration,
}

#[derive(Debug)]
struct Session {
    link: LinkId,
    transport: Transport,
    since: Instant,
    keepalive: Keepalive,
    /// Set by a drain: how long the cloud keeps the link.
    ends: Option<Instant>,
    /// Set by a drain: time over which the fleet moves.
    drain_hint: Option<Duration>,
}

/// The session after this one.
#[derive(Debug)]
enum PlannedSession {
    Unplanned,
    /// Try QUIC beside TCP.
    BetterAt(Instant),
    Better(Attempt),
    /// This session must be replaced.
    ReplaceAt(Instant),
    Replace(Attempt),
}

impl Supervisor {
    /// `epoch` is unix milliseconds at the start of the process: higher than any epoch of an earlier process.
    pub fn new(epoch: u64, allowed: AllowedTransports, now: Instant) -> Supervisor {
        Supervisor {
            phase: Phase::BackingOff { until: now, not_before: now },
            epoch,
            links: 0,
            backoff: Backoff::default(),
            unanswered: 0,
            is_patient: false,
            choice: TransportChoice::new(allowed),
            actions: VecDeque::new(),
        }
    }

    pub fn next_action(&mut self) -> Option<SupervisorAction> {
        self.actions.pop_front()
    }

    /// Returns when `handle_timeout` has something to do, unless another event happens before.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::BackingOff { until, .. } | Phase::Enrolling { until } => Some(*until),
            Phase::Connecting(attempt) => Some(attempt.deadline),
            Phase::Ready(session, next) | Phase::Draining(session, next) => {
                let due = session.keepalive.due();
                Some(next.due().map_or(due, |next| next.min(due)))
            }
            Phase::Stopped => None,
        }
    }

    pub fn state(&self) -> SupervisorState {
        match &self.phase {
            Phase::BackingOff { until, .. } => SupervisorState::BackingOff { until: *until },
            Phase::Enrolling { .. } => SupervisorState::Enrolling,
            Phase::Connecting(_) => SupervisorState::Connecting,
            Phase::Ready(session, _) => SupervisorState::Ready { probing: session.keepalive.is_probing() },
            Phase::Draining(..) => SupervisorState::Draining,
            Phase::Stopped => SupervisorState::Stopped,
        }
    }

    /// The link that new streams use.
    pub fn current(&self) -> Option<LinkId> {
        self.session().map(|session| session.link)
    }

    /// The epoch of the last attempt.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn handle_timeout(&mut self, now: Instant, jitter: f64) {
        match &mut self.phase {
            Phase::BackingOff { until, .. } | Phase::Enrolling { until } if now >= *until => {
                self.connect(now)
            }
            Phase::Connecting(attempt) if now >= attempt.deadline => {
                let link = attempt.link;
                self.actions.push_back(SupervisorAction::Abandon { link });
                self.handle_failed(now, link, AttemptFailure::Unanswered, jitter);
            }
            Phase::Ready(session, _) | Phase::Draining(session, _) => {
                let late = now.saturating_duration_since(session.keepalive.due());
                session.keepalive.handle_late(late);
                match session.keepalive.next(now, jitter) {
                    KeepaliveAction::Wait(_) => self.advance(now, jitter),
                    KeepaliveAction::Ask => {
                        self.actions.push_back(SupervisorAction::Ping { link: session.link });
                        self.advance(now, jitter);
                    }
                    KeepaliveAction::Dead => {
                        self.actions
                            .push_back(SupervisorAction::Close { link: session.link, code: CloseCode::Dead });
                        self.lose(now, CloseCode::Dead, true, jitter);
                    }
                }
            }
            _ => {}
        }
    }

    /// The link is established; hello is in flight.
    pub fn handle_dialed(&mut self, now: Instant, link: LinkId) {
        if let Some(attempt) = self.attempt_mut(link) {
            // From the first byte of hello to the cloud's response.
            attempt.deadline = now + attempt.patience;
        }
    }

    /// The cloud admitted the session.
    pub fn handle_welcome(&mut self, now: Instant, link: LinkId, welcomed: WelcomedSession) {
        if self.attempt_mut(link).is_none() {
            // The attempt was abandoned; its epoch is lower than that of its replacement.
            self.actions.push_back(SupervisorAction::Close { link, code: CloseCode::Done });
            return;
        }
        if let Some(old) = self.session() {
            let until = old.ends.unwrap_or(now + LINGER);
            self.actions.push_back(SupervisorAction::Linger { link: old.link, until });
        }
        self.backoff.handle_hint(welcomed.retry_hint);
        self.unanswered = 0;
        self.is_patient = false;
        self.choice.handle_connected(now, welcomed.transport);
        let keepalive = Keepalive::new(now, interval(welcomed.keepalive));
        let session = Session {
            link,
            transport: welcomed.transport,
            since: now,
            keepalive,
            ends: None,
            drain_hint: None,
        };
        self.phase = Phase::Ready(session, self.better());
    }

    /// The attempt gave no session.
    pub fn handle_failed(&mut self, now: Instant, link: LinkId, failure: AttemptFailure, jitter: f64) {
        if self.attempt_mut(link).is_none() {
            return;
        }
        let mut not_before = Duration::ZERO;
        self.unanswered =
            if failure == AttemptFailure::Unanswered { self.unanswered.saturating_add(1) } else { 0 };
        if let AttemptFailure::Refused { code, retry_after, current_epoch } = failure {
            not_before = retry_after;
            self.epoch = self.epoch.max(current_epoch);
            if doubts_certificate(code) {
                self.actions.push_back(SupervisorAction::Renew);
            }
        }
        let mut pause = self.backoff.pause(not_before, jitter);
        self.is_patient = matches!(failure, AttemptFailure::Busy { .. });
        if let AttemptFailure::Busy { retry_after } = failure {
            not_before = retry_after;
            pause = self.backoff.pause_in_line(retry_after, jitter);
        }
        match &mut self.phase {
            Phase::Ready(_, next @ PlannedSession::Better(_))
            | Phase::Draining(_, next @ PlannedSession::Better(_)) => {
                self.choice.handle_retry_failed(now);
                *next = self.choice.retry_at().map_or(PlannedSession::Unplanned, PlannedSession::BetterAt);
            }
            Phase::Ready(_, next) | Phase::Draining(_, next) => {
                self.backoff.handle_failure();
                *next = PlannedSession::ReplaceAt(now + pause);
            }
            _ if is_expired(failure) => self.phase = Phase::Enrolling { until: now + ENROLLING_MAX },
            // Not a failure: it was not our turn.
            _ if matches!(failure, AttemptFailure::Busy { .. }) => self.back_off(now, not_before, pause),
            _ => {
                self.backoff.handle_failure();
                self.choice.handle_failed();
                self.back_off(now, not_before, pause);
            }
        }
    }

    /// The link has ended, closed by either end or lost.
    pub fn handle_closed(&mut self, now: Instant, link: LinkId, code: CloseCode, jitter: f64) {
        if self.current() == Some(link) {
            // A report of the end, also from a cloud that does not know the link, is no silence.
            self.lose(now, code, false, jitter);
        } else {
            // An attempt whose link broke before the welcome; events of past links are ignored.
            self.handle_failed(now, link, AttemptFailure::Unreachable, jitter);
        }
    }

    /// The peer was last heard at `at`.
    pub fn handle_heard(&mut self, link: LinkId, at: Instant, rtt: Option<Duration>) {
        if let Some(session) = self.session_mut(link) {
            session.keepalive.handle_heard(at, rtt);
        }
    }

    /// This end was busy for `late` before it could ping or read.
    pub fn handle_late(&mut self, link: LinkId, late: Duration) {
        if let Some(session) = self.session_mut(link) {
            session.keepalive.handle_late(late);
        }
    }

    /// A request on this link makes no progress.
    pub fn handle_suspect(&mut self, now: Instant, link: LinkId) {
        if let Some(session) = self.session_mut(link) {
            session.keepalive.handle_suspect(now);
        }
    }

    /// The cloud asks us to attach elsewhere within `hint`, and keeps this link for `deadline`.
    pub fn handle_drain(
        &mut self,
        now: Instant,
        link: LinkId,
        deadline: Duration,
        hint: Duration,
        jitter: f64,
    ) {
        if self.current() != Some(link) {
            return;
        }
        let at = now + hint.min(super::HINT_MAX).mul_f64(jitter.clamp(0.0, 1.0));
        match std::mem::replace(&mut self.phase, Phase::Stopped) {
            Phase::Ready(mut session, next) | Phase::Draining(mut session, next) => {
                session.ends = Some(now + deadline.min(super::HINT_MAX));
                session.drain_hint = Some(hint);
                let next = match next {
                    PlannedSession::Replace(attempt) | PlannedSession::Better(attempt) => {
                        PlannedSession::Replace(attempt)
                    }
                    _ => PlannedSession::ReplaceAt(at),
                };
                self.phase = Phase::Draining(session, next);
            }
            other => self.phase = other,
        }
    }

    /// The fleet has grown since the welcome: when this session is lost, spread the reconnect over this time.
    pub fn handle_hint(&mut self, link: LinkId, hint: Duration) {
        if self.current() == Some(link) {
            self.backoff.handle_hint(hint);
        }
    }

    /// The cloud asks for another keepalive interval; zero: the default. A link over TCP keeps its own.
    pub fn handle_keepalive(&mut self, link: LinkId, every: Duration) {
        if let Some(session) = self.session_mut(link).filter(|session| session.transport == Transport::Quic) {
            session.keepalive.set_interval(interval(every));
        }
    }

    /// Interfaces, addresses or routes of this machine have changed.
    pub fn handle_link_change(&mut self, now: Instant) {
        self.backoff.handle_success();
        self.unanswered = 0;
        self.is_patient = false;
        self.choice.handle_link_change(now);
        match &mut self.phase {
            Phase::BackingOff { until, not_before } => *until = now.max(*not_before),
            Phase::Connecting(attempt) if now.saturating_duration_since(attempt.started) > FRESH => {
                // The attempt may be waiting on a path that is gone.
                self.actions.push_back(SupervisorAction::Abandon { link: attempt.link });
                self.connect(now);
            }
            Phase::Ready(session, _) | Phase::Draining(session, _) => {
                if session.transport == Transport::Quic {
                    self.actions.push_back(SupervisorAction::Rebind { link: session.link });
                }
                session.keepalive.handle_suspect(now);
            }
            _ => {}
        }
    }

    /// There is a new certificate. A session continues under the old one and is replaced without hurry.
    pub fn handle_identity(&mut self, now: Instant, jitter: f64) {
        match &mut self.phase {
            Phase::BackingOff { until, not_before } => *until = now.max(*not_before),
            Phase::Enrolling { until } => *until = now,
            Phase::Ready(_, next @ (PlannedSession::Unplanned | PlannedSession::BetterAt(_))) => {
                *next = PlannedSession::ReplaceAt(now + REPLACE_SPREAD.mul_f64(jitter.clamp(0.0, 1.0)));
            }
            // The running attempt presents the old certificate, and the cloud would end its session with it.
            Phase::Ready(_, next @ (PlannedSession::Better(_) | PlannedSession::Replace(_)))
            | Phase::Draining(_, next @ (PlannedSession::Better(_) | PlannedSession::Replace(_))) => {
                if let Some(attempt) = next.attempt() {
                    self.actions.push_back(SupervisorAction::Abandon { link: attempt.link });
                }
                *next = PlannedSession::ReplaceAt(now);
            }
            Phase::Connecting(attempt) => {
                self.actions.push_back(SupervisorAction::Abandon { link: attempt.link });
                self.connect(now);
            }
            _ => {}
        }
    }

    /// The process ends.
    pub fn handle_stop(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Stopped) {
            Phase::Connecting(attempt) => {
                self.actions.push_back(SupervisorAction::Abandon { link: attempt.link })
            }
            Phase::Ready(session, next) | Phase::Draining(session, next) => {
                self.abandon(next);
                self.actions.push_back(SupervisorAction::Close { link: session.link, code: CloseCode::Done });
            }
            Phase::BackingOff { .. } | Phase::Enrolling { .. } | Phase::Stopped => {}
        }
    }

    // Runs what is planned beside a working session.
    fn advance(&mut self, now: Instant, jitter: f64) {
        let (Phase::Ready(_, next) | Phase::Draining(_, next)) = &mut self.phase else { return };
        if next.due().is_none_or(|due| now < due) {
            return;
        }
        match std::mem::replace(next, PlannedSession::Unplanned) {
            PlannedSession::Unplanned => {}
            PlannedSession::BetterAt(_) => {
                self.set_next(|this| PlannedSession::Better(this.attempt(now, AttemptedTransports::Quic)))
            }
            PlannedSession::ReplaceAt(_) => {
                let transports = self.transports();
                self.set_next(|this| PlannedSession::Replace(this.attempt(now, transports)));
            }
            late @ (PlannedSession::Better(_) | PlannedSession::Replace(_)) => {
                let link = late.attempt().map(|attempt| attempt.link);
                self.set_next(|_| late);
                if let Some(link) = link {
                    self.actions.push_back(SupervisorAction::Abandon { link });
                    self.handle_failed(now, link, AttemptFailure::Unanswered, jitter);
                }
            }
        }
    }

    fn set_next(&mut self, make: impl FnOnce(&mut Supervisor) -> PlannedSession) {
        let made = make(self);
        if let Phase::Ready(_, next) | Phase::Draining(_, next) = &mut self.phase {
            *next = made;
        }
    }

    // The session is gone; the plan for its successor becomes the only plan.
    fn lose(&mut self, now: Instant, code: CloseCode, is_silent: bool, jitter: f64) {
        let (session, next) = match std::mem::replace(&mut self.phase, Phase::Stopped) {
            Phase::Ready(session, next) | Phase::Draining(session, next) => (session, next),
            other => return self.phase = other,
        };
        let life = now.saturating_duration_since(session.since);
        // Our own next attempt has superseded it; its welcome is still in flight.
        let is_by_us = code == CloseCode::Superseded && next.attempt().is_some();
        // Another host that uses our identity would otherwise compete at full speed.
        match is_by_us || life >= SETTLED && code != CloseCode::Superseded {
            true => self.backoff.handle_success(),
            false => self.backoff.handle_failure(),
        }
        self.choice.handle_lost(session.transport, life, is_silent);
        self.is_patient =
            session.transport == Transport::Quic && !is_silent && self.backoff.is_of_large_fleet();
        if let Some(hint) = session.drain_hint {
            // The session ended before another was found, as for all edges of this replica.
            self.backoff.handle_hint(hint);
            self.backoff.handle_announced_stop();
        }
        if matches!(code, CloseCode::Revoked | CloseCode::CertificateExpired | CloseCode::NotAdmitted) {
            self.actions.push_back(SupervisorAction::Renew);
        }
        match next {
            PlannedSession::Replace(attempt) => self.phase = Phase::Connecting(attempt),
            PlannedSession::Better(attempt) if is_by_us => self.phase = Phase::Connecting(attempt),
            other => {
                self.abandon(other);
                let pause = self.backoff.pause_after_loss(jitter);
                self.back_off(now, Duration::ZERO, pause);
            }
        }
    }

    fn connect(&mut self, now: Instant) {
        let attempt = self.attempt(now, self.transports());
        self.phase = Phase::Connecting(attempt);
    }

    fn attempt(&mut self, now: Instant, transports: AttemptedTransports) -> Attempt {
        self.links += 1;
        self.epoch += 1;
        let link = LinkId(self.links);
        let patience = match self.is_patient {
            true => DIAL_MAX,
            false => self.backoff.patience(self.unanswered),
        };
        self.actions.push_back(SupervisorAction::Dial { link, epoch: self.epoch, transports, patience });
        Attempt { link, started: now, deadline: now + patience + DIAL_GRACE, patience }
    }

    fn transports(&self) -> AttemptedTransports {
        match self.choice.fresh() {
            AttemptedTransports::Both if self.is_patient => AttemptedTransports::Quic,
            transports => transports,
        }
    }

    fn abandon(&mut self, next: PlannedSession) {
        if let Some(attempt) = next.attempt() {
            self.actions.push_back(SupervisorAction::Abandon { link: attempt.link });
        }
    }

    fn back_off(&mut self, now: Instant, not_before: Duration, pause: Duration) {
        let not_before = now + not_before.min(super::HINT_MAX);
        self.phase = Phase::BackingOff { until: now + pause, not_before };
    }

    fn better(&self) -> PlannedSession {
        self.choice.retry_at().map_or(PlannedSession::Unplanned, PlannedSession::BetterAt)
    }

    fn session(&self) -> Option<&Session> {
        match &self.phase {
            Phase::Ready(session, _) | Phase::Draining(session, _) => Some(session),
            _ => None,
        }
    }

    fn session_mut(&mut self, link: LinkId) -> Option<&mut Session> {
        match &mut self.phase {
            Phase::Ready(session, _) | Phase::Draining(session, _) => Some(session),
            _ => None,
        }
        .filter(|session| session.link == link)
    }

    fn attempt_mut(&mut self, link: LinkId) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Connecting(attempt) => Some(attempt),
            Phase::Ready(_, PlannedSession::Better(attempt) | PlannedSession::Replace(attempt)) => {
                Some(attempt)
            }
            Phase::Draining(_, PlannedSession::Better(attempt) | PlannedSession::Replace(attempt)) => {
                Some(attempt)
            }
            _ => None,
        }
        .filter(|attempt| attempt.link == link)
    }
}

impl PlannedSession {
    fn due(&self) -> Option<Instant> {
        match self {
            PlannedSession::Unplanned => None,
            PlannedSession::BetterAt(at) | PlannedSession::ReplaceAt(at) => Some(*at),
            PlannedSession::Better(attempt) | PlannedSession::Replace(attempt) => Some(attempt.deadline),
        }
    }

    fn attempt(&self) -> Option<&Attempt> {
        match self {
            PlannedSession::Better(attempt) | PlannedSession::Replace(attempt) => Some(attempt),
            _ => None,
        }
    }
}

/// Zero stands for the default.
fn interval(asked: Duration) -> Duration {
    if asked.is_zero() { super::keepalive::EVERY } else { asked }
}

fn doubts_certificate(code: SessionRefusedCode) -> bool {
    matches!(
        code,
        SessionRefusedCode::Revoked | SessionRefusedCode::NotCurrent | SessionRefusedCode::CertificateExpired
    )
}

fn is_expired(failure: AttemptFailure) -> bool {
    matches!(failure, AttemptFailure::Refused { code: SessionRefusedCode::CertificateExpired, .. })
}

#[cfg(test)]
mod tests;
