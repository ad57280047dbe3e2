//! Order and times of dial attempts: all endpoints, all their addresses, both transports.
//!
//! Pure: resolved names and failures are inputs, due attempts are outputs. The order follows happy eyeballs
//! (RFC 8305): IPv6 and IPv4 alternate, the next address starts a moment after the previous one, or at once
//! when that one failed. Endpoints alternate too, so that a dead one with many addresses does not delay the
//! rest. TCP follows QUIC to the same address after a head start.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time between the starts of two attempts, as RFC 8305 recommends.
pub const STAGGER: Duration = Duration::from_millis(250);

/// Head start of QUIC before TCP: a round trip to anywhere on the continent, so that QUIC wins where it
/// works, and a person does not notice where it does not.
pub const HEAD_START: Duration = Duration::from_millis(250);

/// Bound of addresses per name; more only cost time when all of them are dead.
const ADDRESSES_MAX: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialTransports {
    Both,
    QuicOnly,
    TcpOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DialRoute {
    Quic(SocketAddr),
    Tcp(SocketAddr),
    /// TCP through the proxy, which resolves the name itself.
    Proxy,
}

/// One attempt: an endpoint, by its index, and a route to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DialAttempt {
    pub endpoint: usize,
    pub route: DialRoute,
}

#[derive(Debug)]
pub struct DialPlan {
    transports: DialTransports,
    begin: Instant,
    /// New addresses to try, best first.
    waiting: Vec<(Rank, DialAttempt)>,
    /// TCP to addresses where QUIC has its head start.
    following: Vec<(Instant, DialAttempt)>,
    next_start: Instant,
    /// Endpoints of running attempts.
    running: Vec<usize>,
    unresolved: usize,
}

/// Index of the address within its endpoint, then of the endpoint.
type Rank = (usize, usize);

impl DialPlan {
    /// `is_proxied` tells for each endpoint whether TCP to it uses the proxy.
    pub fn new(is_proxied: &[bool], transports: DialTransports, now: Instant) -> DialPlan {
        let uses_quic = transports != DialTransports::TcpOnly;
        let mut plan = DialPlan {
            transports,
            begin: now,
            waiting: Vec::new(),
            following: Vec::new(),
            next_start: now,
            running: Vec::new(),
            unresolved: 0,
        };
        for (endpoint, is_proxied) in is_proxied.iter().enumerate() {
            if *is_proxied && transports != DialTransports::QuicOnly {
                let attempt = DialAttempt { endpoint, route: DialRoute::Proxy };
                match uses_quic {
                    true => plan.following.push((now + HEAD_START + STAGGER * endpoint as u32, attempt)),
                    false => plan.waiting.push(((0, endpoint), attempt)),
                }
            }
            if uses_quic || !is_proxied {
                plan.unresolved += 1;
            }
        }
        plan
    }

    /// Adds the addresses of an endpoint, in the resolver's order; none when the name does not resolve. With
    /// `is_proxied` they are used by QUIC alone.
    pub fn handle_resolved(
        &mut self,
        endpoint: usize,
        addresses: &[SocketAddr],
        is_proxied: bool,
        now: Instant,
    ) {
        self.unresolved = self.unresolved.saturating_sub(1);
        if addresses.is_empty() && is_proxied {
            self.hurry(now, |attempt| attempt.endpoint == endpoint);
        }
        for (place, address) in in_turn(addresses).into_iter().take(ADDRESSES_MAX).enumerate() {
            let route = match self.transports {
                DialTransports::TcpOnly => DialRoute::Tcp(address),
                _ => DialRoute::Quic(address),
            };
            self.waiting.push(((place, endpoint), DialAttempt { endpoint, route }));
            if self.transports == DialTransports::Both && !is_proxied {
                // Starts after QUIC has started.
                let attempt = DialAttempt { endpoint, route: DialRoute::Tcp(address) };
                self.following.push((self.begin + Duration::from_secs(3600), attempt));
            }
        }
        self.waiting.sort_by_key(|(rank, _)| *rank);
    }

    /// Returns an attempt to start now, if one is due.
    pub fn next_attempt(&mut self, now: Instant) -> Option<DialAttempt> {
        if let Some(place) = self.following.iter().position(|(due, _)| *due <= now) {
            let (_, attempt) = self.following.remove(place);
            self.running.push(attempt.endpoint);
            return Some(attempt);
        }
        if self.waiting.is_empty() || now < self.next_start {
            return None;
        }
        let (_, attempt) = self.waiting.remove(0);
        if let DialRoute::Quic(address) = attempt.route {
            let follower = DialAttempt { endpoint: attempt.endpoint, route: DialRoute::Tcp(address) };
            for (due, _) in self.following.iter_mut().filter(|(_, other)| *other == follower) {
                *due = now + HEAD_START;
            }
        }
        self.next_start = now + STAGGER;
        self.running.push(attempt.endpoint);
        Some(attempt)
    }

    /// An attempt has failed: attempts that waited for it start at once.
    pub fn handle_failed(&mut self, attempt: DialAttempt, now: Instant) {
        if let Some(place) = self.running.iter().position(|endpoint| *endpoint == attempt.endpoint) {
            self.running.swap_remove(place);
        }
        self.next_start = self.next_start.min(now);
        if let DialRoute::Quic(address) = attempt.route {
            let followers = [DialRoute::Tcp(address), DialRoute::Proxy];
            self.hurry(now, |other| other.endpoint == attempt.endpoint && followers.contains(&other.route));
        }
    }

    /// The endpoint is busy and names a later time: all other routes to it, running ones included, lead to
    /// the same port.
    pub fn handle_busy(&mut self, attempt: DialAttempt, now: Instant) {
        self.next_start = self.next_start.min(now);
        self.running.retain(|endpoint| *endpoint != attempt.endpoint);
        self.waiting.retain(|(_, other)| other.endpoint != attempt.endpoint);
        self.following.retain(|(_, other)| other.endpoint != attempt.endpoint);
    }

    fn hurry(&mut self, now: Instant, is_meant: impl Fn(&DialAttempt) -> bool) {
        for (due, _) in self.following.iter_mut().filter(|(_, attempt)| is_meant(attempt)) {
            *due = (*due).min(now);
        }
    }

    /// Returns the time of the next call, if no other event happens.
    pub fn next_wake(&self) -> Option<Instant> {
        let following = self.following.iter().map(|(due, _)| *due).min();
        let waiting = (!self.waiting.is_empty()).then_some(self.next_start);
        following.into_iter().chain(waiting).min()
    }

    /// Returns whether no attempt runs that is worth waiting for, none waits, and no name is left to resolve.
    pub fn is_over(&self) -> bool {
        self.running.is_empty()
            && self.unresolved == 0
            && self.waiting.is_empty()
            && self.following.is_empty()
    }
}

/// Alternates IPv6 and IPv4, beginning with the family the resolver prefers; each address once.
fn in_turn(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut unique: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if !unique.contains(address) {
            unique.push(*address);
        }
    }
    let is_first_v6 = unique.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = unique.into_iter().partition(|a| a.is_ipv6() == is_first_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::new();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            return ordered;
        }
        ordered.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn quic(endpoint: usize, text: &str) -> DialAttempt {
        DialAttempt { endpoint, route: DialRoute::Quic(address(text)) }
    }

    fn tcp(endpoint: usize, text: &str) -> DialAttempt {
        DialAttempt { endpoint, route: DialRoute::Tcp(address(text)) }
    }

    fn proxy(endpoint: usize) -> DialAttempt {
        DialAttempt { endpoint, route: DialRoute::Proxy }
    }

    /// Returns all attempts that start without any response, with their start times in milliseconds.
    fn silent(mut plan: DialPlan, begin: Instant) -> Vec<(u64, DialAttempt)> {
        let (mut now, mut begun) = (begin, Vec::new());
        loop {
            while let Some(attempt) = plan.next_attempt(now) {
                begun.push(((now - begin).as_millis() as u64, attempt));
            }
            let Some(wake) = plan.next_wake() else { return begun };
            assert!(wake > now, "it asks to be woken in the past");
            now = wake;
        }
    }

    #[test]
    fn a_busy_endpoint_is_left_alone_and_the_others_are_tried() {
        let begin = Instant::now();
        let mut plan = DialPlan::new(&[false, false], DialTransports::Both, begin);
        plan.handle_resolved(0, &[address("192.0.2.1:7444")], false, begin);
        plan.handle_resolved(1, &[address("192.0.2.2:7444")], false, begin);
        assert_eq!(plan.next_attempt(begin), Some(quic(0, "192.0.2.1:7444")));
        let later = begin + HEAD_START;
        assert_eq!(
            plan.next_attempt(later),
            Some(tcp(0, "192.0.2.1:7444")),
            "under way when the answer comes"
        );
        plan.handle_busy(quic(0, "192.0.2.1:7444"), later);
        assert_eq!(plan.next_attempt(later), Some(quic(1, "192.0.2.2:7444")));
        plan.handle_failed(tcp(0, "192.0.2.1:7444"), later);
        assert!(!plan.is_over());
        plan.handle_busy(quic(1, "192.0.2.2:7444"), later);
        assert_eq!(plan.next_attempt(later + HEAD_START), None);
        assert!(plan.is_over());
    }

    #[test]
    fn addresses_and_endpoints_take_turns_and_tcp_follows_quic() {
        let now = Instant::now();
        let mut plan = DialPlan::new(&[false, false], DialTransports::Both, now);
        plan.handle_resolved(0, &[address("[::1]:1"), address("[::2]:1"), address("1.1.1.1:1")], false, now);
        plan.handle_resolved(1, &[address("2.2.2.2:2")], false, now);
        let expected = vec![
            (0, quic(0, "[::1]:1")),
            (250, tcp(0, "[::1]:1")),
            (250, quic(1, "2.2.2.2:2")),
            (500, tcp(1, "2.2.2.2:2")),
            (500, quic(0, "1.1.1.1:1")),
            (750, tcp(0, "1.1.1.1:1")),
            (750, quic(0, "[::2]:1")),
            (1000, tcp(0, "[::2]:1")),
        ];
        assert_eq!(silent(plan, now), expected);
    }

    #[test]
    fn a_failure_brings_the_next_one_forward() {
        let now = Instant::now();
        let mut plan = DialPlan::new(&[false], DialTransports::Both, now);
        plan.handle_resolved(0, &[address("1.1.1.1:1"), address("2.2.2.2:1")], false, now);
        assert_eq!(plan.next_attempt(now), Some(quic(0, "1.1.1.1:1")));
        assert_eq!(plan.next_attempt(now), None);
        plan.handle_failed(quic(0, "1.1.1.1:1"), now);
        assert_eq!(plan.next_attempt(now), Some(tcp(0, "1.1.1.1:1")));
        assert_eq!(plan.next_attempt(now), Some(quic(0, "2.2.2.2:1")));
        assert_eq!(plan.next_attempt(now), None);
        plan.handle_failed(quic(0, "2.2.2.2:1"), now);
        assert_eq!(plan.next_attempt(now), Some(tcp(0, "2.2.2.2:1")));
        plan.handle_failed(tcp(0, "1.1.1.1:1"), now);
        assert!(!plan.is_over());
        plan.handle_failed(tcp(0, "2.2.2.2:1"), now);
        assert!(plan.is_over());
    }

    #[test]
    fn one_transport_alone_is_only_that_one() {
        let now = Instant::now();
        let begin = |transports| {
            let mut plan = DialPlan::new(&[false], transports, now);
            plan.handle_resolved(0, &[address("1.1.1.1:1"), address("1.1.1.1:1")], false, now);
            silent(plan, now)
        };
        assert_eq!(begin(DialTransports::QuicOnly), vec![(0, quic(0, "1.1.1.1:1"))]);
        assert_eq!(begin(DialTransports::TcpOnly), vec![(0, tcp(0, "1.1.1.1:1"))]);
    }

    #[test]
    fn through_a_proxy_names_need_not_be_known_here() {
        let now = Instant::now();
        let mut plan = DialPlan::new(&[true], DialTransports::Both, now);
        plan.handle_resolved(0, &[], true, now);
        assert_eq!(plan.next_attempt(now), Some(proxy(0)));
        let plan = DialPlan::new(&[true, false], DialTransports::TcpOnly, now);
        assert_eq!(silent(plan, now), vec![(0, proxy(0))]);

        let mut plan = DialPlan::new(&[true], DialTransports::Both, now);
        plan.handle_resolved(0, &[address("1.1.1.1:1")], true, now);
        assert_eq!(silent(plan, now), vec![(0, quic(0, "1.1.1.1:1")), (250, proxy(0))]);
    }

    #[test]
    fn a_plan_with_a_name_that_is_still_being_resolved_is_not_over() {
        let now = Instant::now();
        let mut plan = DialPlan::new(&[false], DialTransports::Both, now);
        assert!(!plan.is_over() && plan.next_wake().is_none());
        plan.handle_resolved(0, &[], false, now);
        assert!(plan.is_over());
        assert!(DialPlan::new(&[], DialTransports::Both, now).is_over());
    }
}
