//! Choice of the transport: QUIC where it works; TCP where UDP is blocked, stalls, or fails soon.
//!
//! An edge on TCP tries QUIC again from time to time, at growing intervals. Values in, values out.

use std::time::{Duration, Instant};

use crate::link::Transport;

/// Transports that the configuration allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllowedTransports {
    #[default]
    Both,
    QuicOnly,
    TcpOnly,
}

/// Transports of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptedTransports {
    /// Both side by side; the first that works is taken.
    Both,
    Quic,
    Tcp,
}

impl AttemptedTransports {
    /// Returns `None` for all configured transports.
    pub fn transport(self) -> Option<Transport> {
        match self {
            AttemptedTransports::Both => None,
            AttemptedTransports::Quic => Some(Transport::Quic),
            AttemptedTransports::Tcp => Some(Transport::Tcp),
        }
    }
}

/// Soon enough to notice that a firewall was opened, rare enough to cost nothing.
const RETRY_FIRST: Duration = Duration::from_secs(15);
const RETRY_MAX: Duration = Duration::from_secs(5 * 60);
/// A QUIC session that falls silent before this age is a sign that UDP passes only for a while: some
/// firewalls let a handshake through and drop later packets.
const YOUNG: Duration = Duration::from_secs(60);

/// Experience with the transports.
#[derive(Debug, Clone)]
pub struct TransportChoice {
    allowed: AllowedTransports,
    /// The next attempt leaves QUIC out.
    avoid_quic: bool,
    retry: Duration,
    /// Time at which an edge on TCP tries QUIC.
    retry_at: Option<Instant>,
}

impl TransportChoice {
    pub fn new(allowed: AllowedTransports) -> TransportChoice {
        TransportChoice { allowed, avoid_quic: false, retry: RETRY_FIRST, retry_at: None }
    }

    /// For an edge without a session.
    pub fn fresh(&self) -> AttemptedTransports {
        match self.allowed {
            AllowedTransports::QuicOnly => AttemptedTransports::Quic,
            AllowedTransports::TcpOnly => AttemptedTransports::Tcp,
            AllowedTransports::Both if self.avoid_quic => AttemptedTransports::Tcp,
            AllowedTransports::Both => AttemptedTransports::Both,
        }
    }

    /// Returns when to try QUIC beside a session over TCP.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    pub fn handle_connected(&mut self, now: Instant, transport: Transport) {
        self.avoid_quic = false;
        let wanted = self.allowed == AllowedTransports::Both && transport == Transport::Tcp;
        self.retry_at = wanted.then(|| now + self.retry);
    }

    /// An attempt gave no session; the next one tries all transports.
    pub fn handle_failed(&mut self) {
        self.avoid_quic = false;
    }

    /// QUIC, tried beside TCP, did not work.
    pub fn handle_retry_failed(&mut self, now: Instant) {
        self.retry = (self.retry * 2).min(RETRY_MAX);
        self.retry_at = Some(now + self.retry);
    }

    /// A session was lost after `life`; `silent` when its link fell silent instead of being closed.
    pub fn handle_lost(&mut self, transport: Transport, life: Duration, silent: bool) {
        self.retry_at = None;
        if transport == Transport::Tcp {
            return;
        }
        if silent && life < YOUNG {
            self.avoid_quic = true;
            self.retry = (self.retry * 2).min(RETRY_MAX);
        } else {
            self.retry = RETRY_FIRST;
        }
    }

    /// Another network may treat UDP differently.
    pub fn handle_link_change(&mut self, now: Instant) {
        self.avoid_quic = false;
        self.retry = RETRY_FIRST;
        self.retry_at = self.retry_at.map(|at| at.min(now + self.retry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_configuration_is_obeyed() {
        let now = Instant::now();
        for (allowed, attempted) in [
            (AllowedTransports::Both, AttemptedTransports::Both),
            (AllowedTransports::QuicOnly, AttemptedTransports::Quic),
            (AllowedTransports::TcpOnly, AttemptedTransports::Tcp),
        ] {
            let mut choice = TransportChoice::new(allowed);
            assert_eq!(choice.fresh(), attempted);
            choice.handle_connected(now, Transport::Tcp);
            assert_eq!(choice.retry_at().is_some(), allowed == AllowedTransports::Both);
        }
    }

    #[test]
    fn on_tcp_quic_is_tried_less_and_less_often() {
        let mut now = Instant::now();
        let mut choice = TransportChoice::new(AllowedTransports::Both);
        choice.handle_connected(now, Transport::Tcp);
        for pause in [15, 30, 60, 120, 240, 300, 300] {
            assert_eq!(choice.retry_at(), Some(now + s(pause)));
            now += s(pause);
            choice.handle_retry_failed(now);
        }
        choice.handle_link_change(now);
        assert_eq!(choice.retry_at(), Some(now + s(15)), "another network, another chance");
        choice.handle_connected(now, Transport::Quic);
        assert_eq!(choice.retry_at(), None);
    }

    #[test]
    fn quic_that_falls_silent_young_is_left_out_once() {
        let now = Instant::now();
        let lost = |life, silent| {
            let mut choice = TransportChoice::new(AllowedTransports::Both);
            choice.handle_connected(now, Transport::Quic);
            choice.handle_lost(Transport::Quic, life, silent);
            choice
        };
        assert_eq!(
            lost(s(8), false).fresh(),
            AttemptedTransports::Both,
            "a cloud that closed is no fault of UDP"
        );
        assert_eq!(
            lost(s(600), true).fresh(),
            AttemptedTransports::Both,
            "an old link says nothing about UDP"
        );
        let mut choice = lost(s(8), true);
        assert_eq!(choice.fresh(), AttemptedTransports::Tcp);
        choice.handle_connected(now, Transport::Tcp);
        assert_eq!(choice.retry_at(), Some(now + s(30)), "a second disappointment costs more");
        let mut choice = lost(s(8), true);
        choice.handle_failed();
        assert_eq!(choice.fresh(), AttemptedTransports::Both, "nothing is left out when nothing works");
    }
}
