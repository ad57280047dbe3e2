//! Rows on the actions of an edge when something happens to its link.

use super::super::backoff::DIAL;
use super::super::keepalive::EVERY as KEEPALIVE_EVERY;
use super::*;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A supervisor and a clock. The jitter is always 1: the longest wait.
struct Lab {
    machine: Supervisor,
    start: Instant,
    now: Instant,
}

impl Lab {
    fn new() -> Lab {
        Lab::allowing(AllowedTransports::Both)
    }

    fn allowing(allowed: AllowedTransports) -> Lab {
        let now = Instant::now();
        Lab { machine: Supervisor::new(1000, allowed, now), start: now, now }
    }

    /// With a session over this transport.
    fn ready(transport: Transport) -> Lab {
        let mut lab = Lab::new();
        let link = lab.dials(AttemptedTransports::Both);
        lab.welcome(link, transport);
        lab
    }

    fn actions(&mut self) -> Vec<SupervisorAction> {
        std::iter::from_fn(|| self.machine.next_action()).collect()
    }

    /// Advances time with a silent peer.
    fn pass(&mut self, time: Duration) -> Vec<SupervisorAction> {
        let end = self.now + time;
        while let Some(due) = self.machine.next_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.machine.handle_timeout(self.now, 1.0);
        }
        self.now = end;
        self.actions()
    }

    /// Advances time with a peer that is heard all the time. Pings are left out.
    fn pass_heard(&mut self, time: Duration) -> Vec<SupervisorAction> {
        let (end, mut all) = (self.now + time, Vec::new());
        while self.now < end {
            if let Some(link) = self.machine.current() {
                self.machine.handle_heard(link, self.now, Some(ms(20)));
            }
            all.extend(self.pass(s(1).min(end - self.now)));
        }
        all.retain(|action| !matches!(action, SupervisorAction::Ping { .. }));
        all
    }

    /// Expects a dial of this kind now.
    #[track_caller]
    fn dials(&mut self, expected: AttemptedTransports) -> LinkId {
        match self.pass(Duration::ZERO)[..] {
            [SupervisorAction::Dial { link, transports, .. }] if transports == expected => link,
            ref other => unreachable!("expected a dial of {expected:?}: {other:?}"),
        }
    }

    fn welcome(&mut self, link: LinkId, transport: Transport) {
        let welcomed = WelcomedSession { transport, keepalive: Duration::ZERO, retry_hint: Duration::ZERO };
        self.machine.handle_dialed(self.now, link);
        self.machine.handle_welcome(self.now, link, welcomed);
    }

    fn fail(&mut self, link: LinkId) {
        self.machine.handle_failed(self.now, link, AttemptFailure::Unreachable, 1.0);
    }

    fn refuse(&mut self, link: LinkId, code: SessionRefusedCode, retry_after: Duration, current_epoch: u64) {
        let failure = AttemptFailure::Refused { code, retry_after, current_epoch };
        self.machine.handle_failed(self.now, link, failure, 1.0);
    }

    fn close(&mut self, link: LinkId, code: CloseCode) {
        self.machine.handle_closed(self.now, link, code, 1.0);
    }

    fn current(&self) -> LinkId {
        self.machine.current().unwrap()
    }

    fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Returns the time until the next action, which must be this dial.
    #[track_caller]
    fn until_dial(&mut self, expected: AttemptedTransports) -> (Duration, LinkId) {
        let due = self.machine.next_timeout().unwrap();
        let wait = due.saturating_duration_since(self.now);
        self.now = self.now.max(due);
        (wait, self.dials(expected))
    }
}

#[test]
fn the_first_dial_is_at_once_and_a_welcome_makes_it_ready() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    assert_eq!(lab.machine.state(), SupervisorState::Connecting);
    lab.welcome(link, Transport::Quic);
    assert_eq!(lab.machine.state(), SupervisorState::Ready { probing: false });
    assert_eq!(lab.machine.current(), Some(link));
    assert_eq!(lab.actions(), []);
}

#[test]
fn every_attempt_has_a_higher_epoch() {
    let mut lab = Lab::new();
    let mut last = 1000;
    for _ in 0..20 {
        for action in lab.pass(s(6)) {
            if let SupervisorAction::Dial { epoch, link, .. } = action {
                assert!(epoch > last);
                last = epoch;
                lab.fail(link);
            }
        }
    }
    assert!(last > 1010);
}

#[test]
fn a_dial_that_says_nothing_is_abandoned_in_time() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    assert_eq!(lab.pass(DIAL + DIAL_GRACE), [SupervisorAction::Abandon { link }]);
    assert!(matches!(lab.machine.state(), SupervisorState::BackingOff { .. }));
    // A cloud that accepts and never answers hello is left, too.
    let (_, link) = lab.until_dial(AttemptedTransports::Both);
    lab.pass(ms(100));
    lab.machine.handle_dialed(lab.now, link);
    assert_eq!(lab.pass(DIAL), [SupervisorAction::Abandon { link }]);
}

#[test]
fn what_an_abandoned_dial_comes_to_is_closed() {
    let mut lab = Lab::new();
    let old = lab.dials(AttemptedTransports::Both);
    lab.pass(DIAL + DIAL_GRACE);
    let (_, new) = lab.until_dial(AttemptedTransports::Both);
    lab.welcome(old, Transport::Quic);
    assert_eq!(lab.actions(), [SupervisorAction::Close { link: old, code: CloseCode::Done }]);
    lab.fail(old);
    assert_eq!(lab.machine.state(), SupervisorState::Connecting, "the new attempt goes on");
    lab.welcome(new, Transport::Quic);
    assert_eq!(lab.current(), new);
}

#[test]
fn failures_wait_longer_and_never_beyond_the_cap() {
    let mut lab = Lab::new();
    let mut waits = Vec::new();
    for _ in 0..8 {
        let (wait, link) = lab.until_dial(AttemptedTransports::Both);
        waits.push(wait.as_millis());
        lab.fail(link);
    }
    assert_eq!(waits, [0, 250, 500, 1000, 2000, 2000, 2000, 2000]);
}

#[test]
fn who_is_told_when_to_come_comes_then_and_waits_longer() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    let busy = AttemptFailure::Busy { retry_after: s(7) };
    lab.machine.handle_failed(lab.now, link, busy, 1.0);
    assert_eq!(lab.pass(s(7) - ms(1)), [], "before its time nobody is let in");
    let begin = lab.now;
    let (_, link) = lab.until_dial(AttemptedTransports::Quic);
    assert!(lab.now - begin <= ms(250) + ms(1), "{:?}", lab.now - begin);
    let deadline = lab.machine.next_timeout().unwrap();
    assert_eq!(deadline, lab.now + DIAL_MAX + DIAL_GRACE, "somebody is there and at work");
    lab.fail(link);
    assert_eq!(
        lab.until_dial(AttemptedTransports::Both).0,
        ms(250),
        "that was no failure: the first one counts as such"
    );
    assert_eq!(lab.machine.next_timeout().unwrap(), lab.now + DIAL + DIAL_GRACE);
}

#[test]
fn a_hint_of_the_cloud_spreads_the_return() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    let welcomed = WelcomedSession { transport: Transport::Quic, keepalive: ms(0), retry_hint: s(12) };
    lab.machine.handle_welcome(lab.now, link, welcomed);
    lab.pass_heard(s(10));
    lab.close(link, CloseCode::Draining);
    let (wait, link) = lab.until_dial(AttemptedTransports::Quic);
    assert_eq!(wait, s(12));
    assert_eq!(
        lab.machine.next_timeout(),
        Some(lab.now + DIAL_MAX + DIAL_GRACE),
        "QUIC was there a moment ago"
    );
    lab.fail(link);
    lab.until_dial(AttemptedTransports::Both);
    assert_eq!(lab.machine.next_timeout(), Some(lab.now + DIAL + DIAL_GRACE));
}

#[test]
fn the_spread_follows_the_fleet_and_holds_for_a_drain() {
    let mut lab = Lab::ready(Transport::Quic);
    let link = lab.current();
    lab.pass_heard(s(10));
    lab.machine.handle_hint(LinkId(99), s(40));
    lab.machine.handle_hint(link, s(20));
    lab.close(link, CloseCode::Internal);
    assert_eq!(lab.until_dial(AttemptedTransports::Quic).0, s(20));

    let mut lab = Lab::ready(Transport::Quic);
    let link = lab.current();
    lab.pass_heard(s(10));
    lab.machine.handle_drain(lab.now, link, s(5), s(8), 1.0);
    lab.close(link, CloseCode::Draining);
    assert_eq!(lab.until_dial(AttemptedTransports::Both).0, s(8));
}

#[test]
fn a_silent_link_is_closed_and_replaced_within_eight_seconds() {
    let mut lab = Lab::ready(Transport::Quic);
    lab.pass_heard(s(100));
    let link = lab.current();
    let silent_since = lab.now;
    let mut seen = Vec::new();
    while lab.now - silent_since < s(9)
        && !seen.contains(&SupervisorAction::Close { link, code: CloseCode::Dead })
    {
        seen.extend(lab.pass(ms(10)));
    }
    assert!(lab.now - silent_since <= s(8), "{:?}", lab.now - silent_since);
    let pings = seen.iter().filter(|action| matches!(action, SupervisorAction::Ping { .. })).count();
    assert_eq!(pings, 4);
    assert!(lab.until_dial(AttemptedTransports::Both).0 <= ms(250), "a session that held costs no backoff");
}

#[test]
fn an_idle_link_is_asked_at_its_interval() {
    let mut lab = Lab::ready(Transport::Quic);
    let link = lab.current();
    for _ in 1..10 {
        assert_eq!(lab.pass(KEEPALIVE_EVERY), [SupervisorAction::Ping { link }]);
        lab.now += ms(20);
        lab.machine.handle_heard(link, lab.now, Some(ms(20)));
    }
    assert!(lab.elapsed() > s(45));
}

#[test]
fn a_request_without_progress_starts_the_probing_at_once() {
    let mut lab = Lab::ready(Transport::Quic);
    lab.pass_heard(s(2));
    let link = lab.current();
    lab.machine.handle_suspect(lab.now, link);
    assert!(matches!(lab.pass(Duration::ZERO)[..], [SupervisorAction::Ping { .. }]));
    assert_eq!(lab.machine.state(), SupervisorState::Ready { probing: true });
    let closed = lab.pass(s(3));
    assert!(closed.contains(&SupervisorAction::Close { link, code: CloseCode::Dead }), "{closed:?}");
}

#[test]
fn news_of_an_old_link_change_nothing() {
    let mut lab = Lab::ready(Transport::Tcp);
    let old = lab.current();
    lab.pass_heard(s(14));
    let quic = lab.pass_heard(s(2));
    let [SupervisorAction::Dial { link: new, transports: AttemptedTransports::Quic, .. }] = quic[..] else {
        unreachable!("{quic:?}")
    };
    lab.welcome(new, Transport::Quic);
    assert_eq!(lab.actions(), [SupervisorAction::Linger { link: old, until: lab.now + LINGER }]);
    lab.close(old, CloseCode::Superseded);
    lab.machine.handle_suspect(lab.now, old);
    lab.machine.handle_drain(lab.now, old, s(1), s(1), 1.0);
    lab.fail(old);
    assert_eq!(lab.machine.state(), SupervisorState::Ready { probing: false });
    assert_eq!(lab.current(), new);
    assert_eq!(lab.actions(), []);
}

#[test]
fn quic_that_still_fails_leaves_tcp_alone() {
    let mut lab = Lab::ready(Transport::Tcp);
    let tcp = lab.current();
    let mut tried = Vec::new();
    for _ in 0..200 {
        for action in lab.pass_heard(s(1)) {
            if let SupervisorAction::Dial { link, transports, .. } = action {
                assert_eq!(transports, AttemptedTransports::Quic);
                tried.push(lab.elapsed().as_secs());
                lab.fail(link);
            }
        }
    }
    assert_eq!(lab.current(), tcp);
    assert_eq!(tried.len(), 3, "at 15, 45 and 105 seconds: {tried:?}");
}

#[test]
fn tcp_that_dies_while_quic_is_tried_is_replaced_by_whatever_works() {
    let mut lab = Lab::ready(Transport::Tcp);
    let tcp = lab.current();
    let tried = lab.pass_heard(s(16));
    let [SupervisorAction::Dial { link: quic, .. }] = tried[..] else { unreachable!("{tried:?}") };
    lab.close(tcp, CloseCode::Internal);
    assert_eq!(lab.actions(), [SupervisorAction::Abandon { link: quic }]);
    lab.until_dial(AttemptedTransports::Both);
}

#[test]
fn a_link_that_ends_before_the_welcome_of_its_successor_leaves_that_alone() {
    let mut lab = Lab::ready(Transport::Tcp);
    let tcp = lab.current();
    let tried = lab.pass_heard(s(16));
    let [SupervisorAction::Dial { link: quic, .. }] = tried[..] else { unreachable!("{tried:?}") };
    lab.close(tcp, CloseCode::Superseded);
    assert_eq!((lab.machine.state(), lab.actions()), (SupervisorState::Connecting, vec![]));
    lab.welcome(quic, Transport::Quic);
    assert_eq!(lab.current(), quic);
}

#[test]
fn udp_that_dies_young_is_left_for_tcp() {
    let mut lab = Lab::ready(Transport::Quic);
    let dead = lab.pass(s(8));
    assert!(matches!(dead.last(), Some(SupervisorAction::Close { code: CloseCode::Dead, .. })), "{dead:?}");
    let (_, link) = lab.until_dial(AttemptedTransports::Tcp);
    lab.fail(link);
    lab.until_dial(AttemptedTransports::Both);
}

#[test]
fn a_cloud_that_has_forgotten_the_link_is_no_fault_of_udp() {
    let mut lab = Lab::ready(Transport::Quic);
    let link = lab.current();
    lab.pass_heard(s(2));
    lab.close(link, CloseCode::Dead);
    lab.until_dial(AttemptedTransports::Both);
}

#[test]
fn a_link_change_redials_at_once() {
    let mut lab = Lab::new();
    for _ in 0..6 {
        let (_, link) = lab.until_dial(AttemptedTransports::Both);
        lab.fail(link);
    }
    lab.machine.handle_link_change(lab.now);
    let link = lab.dials(AttemptedTransports::Both);
    // A further event of the same change.
    lab.now += ms(20);
    lab.machine.handle_link_change(lab.now);
    assert_eq!(lab.actions(), []);
    // A later event: the attempt may hang on a path that is gone.
    lab.now += ms(500);
    lab.machine.handle_link_change(lab.now);
    assert!(
        matches!(lab.actions()[..], [SupervisorAction::Abandon { link: old }, SupervisorAction::Dial { .. }] if old == link)
    );
}

#[test]
fn a_link_change_moves_a_quic_link_and_doubts_every_link() {
    for (transport, moves) in [(Transport::Quic, true), (Transport::Tcp, false)] {
        let mut lab = Lab::ready(transport);
        let link = lab.current();
        lab.machine.handle_link_change(lab.now);
        let actions = lab.pass(Duration::ZERO);
        assert_eq!(actions.contains(&SupervisorAction::Rebind { link }), moves);
        assert!(actions.iter().any(|action| matches!(action, SupervisorAction::Ping { .. })));
    }
}

#[test]
fn an_older_epoch_is_corrected_by_the_cloud() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    lab.refuse(link, SessionRefusedCode::OlderEpoch, ms(0), 5000);
    let wait = lab.machine.next_timeout().unwrap() - lab.now;
    assert!(wait <= ms(250));
    assert!(matches!(lab.pass(ms(250))[..], [SupervisorAction::Dial { epoch: 5001, .. }]));
}

#[test]
fn a_refusal_names_its_own_time_and_no_link_change_overrides_it() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    lab.refuse(link, SessionRefusedCode::Full, s(20), 0);
    lab.machine.handle_link_change(lab.now);
    assert_eq!(lab.until_dial(AttemptedTransports::Both).0, s(20));
}

#[test]
fn an_expired_certificate_waits_for_a_new_one() {
    let mut lab = Lab::new();
    let link = lab.dials(AttemptedTransports::Both);
    lab.refuse(link, SessionRefusedCode::CertificateExpired, ms(0), 0);
    assert_eq!(lab.actions(), [SupervisorAction::Renew]);
    assert_eq!(lab.machine.state(), SupervisorState::Enrolling);
    assert_eq!(lab.pass(s(20)), []);
    lab.machine.handle_identity(lab.now, 1.0);
    lab.dials(AttemptedTransports::Both);
}

#[test]
fn a_revoked_gateway_asks_its_certificate_and_goes_on_politely() {
    let mut lab = Lab::ready(Transport::Quic);
    let link = lab.current();
    lab.close(link, CloseCode::Revoked);
    assert_eq!(lab.actions(), [SupervisorAction::Renew]);
    let (_, link) = lab.until_dial(AttemptedTransports::Both);
    lab.refuse(link, SessionRefusedCode::Revoked, s(30), 0);
    assert_eq!(lab.actions(), [SupervisorAction::Renew]);
    assert!(lab.until_dial(AttemptedTransports::Both).0 >= s(30));
}

#[test]
fn a_new_certificate_replaces_the_session_in_peace() {
    let mut lab = Lab::ready(Transport::Quic);
    let old = lab.current();
    lab.machine.handle_identity(lab.now, 0.5);
    let dialed = lab.pass_heard(s(6));
    let [SupervisorAction::Dial { link: new, .. }] = dialed[..] else { unreachable!("{dialed:?}") };
    assert_eq!(lab.current(), old, "the old one works until the new one does");
    lab.welcome(new, Transport::Quic);
    assert!(matches!(lab.actions()[..], [SupervisorAction::Linger { link, .. }] if link == old));
}

#[test]
fn an_attempt_under_way_with_the_old_certificate_is_made_anew_with_the_new_one() {
    // A better transport is tried beside the session.
    let mut lab = Lab::ready(Transport::Tcp);
    let dialed = lab.pass_heard(s(16));
    let [SupervisorAction::Dial { link: stale, transports: AttemptedTransports::Quic, .. }] = dialed[..]
    else {
        unreachable!("{dialed:?}")
    };
    lab.machine.handle_identity(lab.now, 0.5);
    assert_eq!(lab.actions(), [SupervisorAction::Abandon { link: stale }]);
    let dialed = lab.pass_heard(ms(10));
    assert!(matches!(dialed[..], [SupervisorAction::Dial { link, .. }] if link != stale), "{dialed:?}");
    // There is no session yet.
    let mut lab = Lab::new();
    let stale = lab.dials(AttemptedTransports::Both);
    lab.machine.handle_identity(lab.now, 0.5);
    let actions = lab.actions();
    let [SupervisorAction::Abandon { link }, SupervisorAction::Dial { link: new, .. }] = actions[..] else {
        unreachable!("{actions:?}")
    };
    assert!(link == stale && new != stale);
}

#[test]
fn a_ping_that_waits_for_its_turn_in_a_busy_process_is_no_silence_of_the_cloud() {
    let mut lab = Lab::ready(Transport::Quic);
    let link = lab.current();
    assert_eq!(lab.pass(KEEPALIVE_EVERY).len(), 1, "a ping");
    // It moves three seconds later, when the link would be dead.
    lab.now += s(3);
    lab.machine.handle_late(link, s(3));
    lab.machine.handle_timeout(lab.now, 1.0);
    assert_eq!((lab.actions(), lab.current()), (vec![], link));
    // Then the usual timeouts apply.
    assert!(lab.pass(s(4)).contains(&SupervisorAction::Close { link, code: CloseCode::Dead }));
}

#[test]
fn a_drained_replica_is_left_without_a_gap() {
    let mut lab = Lab::ready(Transport::Quic);
    let old = lab.current();
    lab.machine.handle_drain(lab.now, old, s(60), s(4), 1.0);
    let ends = lab.now + s(60);
    assert_eq!(lab.machine.state(), SupervisorState::Draining);
    lab.pass_heard(s(3));
    let dialed = lab.pass_heard(s(1));
    let [SupervisorAction::Dial { link, transports: AttemptedTransports::Both, .. }] = dialed[..] else {
        unreachable!("{dialed:?}")
    };
    lab.refuse(link, SessionRefusedCode::Draining, ms(500), 0);
    assert_eq!(lab.current(), old, "a refusal costs nothing yet");
    let dialed = lab.pass_heard(s(1));
    let [SupervisorAction::Dial { link: new, .. }] = dialed[..] else { unreachable!("{dialed:?}") };
    lab.welcome(new, Transport::Quic);
    assert_eq!(
        lab.actions(),
        [SupervisorAction::Linger { link: old, until: ends }],
        "streams have the cloud's time"
    );
    assert_eq!(lab.machine.state(), SupervisorState::Ready { probing: false });
}

#[test]
fn a_replica_that_ends_before_the_next_is_found_leaves_the_attempt_alone() {
    let mut lab = Lab::ready(Transport::Quic);
    let old = lab.current();
    lab.machine.handle_drain(lab.now, old, s(60), ms(0), 1.0);
    let new = lab.dials(AttemptedTransports::Both);
    lab.close(old, CloseCode::Draining);
    assert_eq!(lab.machine.state(), SupervisorState::Connecting);
    assert_eq!(lab.actions(), []);
    lab.welcome(new, Transport::Quic);
    assert_eq!(lab.current(), new);
}

#[test]
fn a_double_with_our_identity_is_not_fought_at_full_speed() {
    let mut lab = Lab::new();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let (wait, link) = lab.until_dial(AttemptedTransports::Both);
        waits.push(wait.as_millis());
        lab.welcome(link, Transport::Quic);
        lab.pass_heard(s(10));
        lab.close(link, CloseCode::Superseded);
    }
    assert_eq!(waits, [0, 500, 1000, 2000, 2000, 2000]);
}

#[test]
fn a_stop_leaves_nothing_behind() {
    let mut lab = Lab::ready(Transport::Tcp);
    let tcp = lab.current();
    let dialed = lab.pass_heard(s(16));
    let [SupervisorAction::Dial { link: quic, .. }] = dialed[..] else { unreachable!("{dialed:?}") };
    lab.machine.handle_stop();
    let close = SupervisorAction::Close { link: tcp, code: CloseCode::Done };
    assert_eq!(lab.actions(), [SupervisorAction::Abandon { link: quic }, close]);
    assert_eq!(lab.machine.next_timeout(), None);
    lab.machine.handle_link_change(lab.now);
    lab.machine.handle_identity(lab.now, 1.0);
    assert_eq!(lab.pass(s(100)), []);
}
