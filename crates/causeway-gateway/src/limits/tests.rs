//! Limits over simulated time: admitted connections and requests, byte rates, and the order of turns.

use causeway_netmap::{
    DnsName, GatewayEntry, Generation, NetmapEntry, NetmapView, PolicyEntry, PolicyLimits, PresenceEntry,
    ServiceProtocol,
};

use super::*;
use crate::policy::may_use;

const SECOND: Duration = Duration::from_secs(1);

fn policy(name: &str, limits: Option<PolicyLimits>) -> NetmapEntry {
    NetmapEntry::Policy(PolicyEntry {
        name: name.into(),
        servers: vec![],
        sites: vec!["oslo".into()],
        limits,
        http: vec![],
        ports: Vec::new(),
    })
}

/// A permit for all subjects of Oslo, under these limits.
fn permit(limits: &[Option<PolicyLimits>]) -> Permit {
    let names: Vec<String> = (0..limits.len()).map(|number| format!("p{number}")).collect();
    let mut facts: Vec<NetmapEntry> =
        names.iter().zip(limits).map(|(name, limits)| policy(name, *limits)).collect();
    facts.push(NetmapEntry::Gateway(GatewayEntry::named("oslo-1", "oslo")));
    facts.push(NetmapEntry::Presence(PresenceEntry {
        service: "camera".into(),
        addresses: vec![],
        port: 80,
        protocol: ServiceProtocol::Tcp,
        brokers: 0,
        names: vec![DnsName::new("camera")],
        service_site: "berlin".into(),
        policies: names.iter().map(|name| name.as_str().into()).collect(),
    }));
    let view = NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, &facts).unwrap();
    may_use(&view, view.presences.get("camera").unwrap(), &who("anybody")).unwrap()
}

fn who(server: &str) -> Principal {
    Principal { site: "oslo".into(), server: Some(server.into()) }
}

fn connect(
    table: &LimitTable,
    permit: &Permit,
    server: &str,
    now: Instant,
) -> Result<Allowance, PolicyRefusal> {
    table.connect(LimitedEnd::Near, permit, "camera", &who(server), now)
}

fn over(policy: &str, what: &'static str) -> Option<PolicyRefusal> {
    Some(PolicyRefusal::Limit { policy: policy.into(), what, retry_after: None })
}

#[test]
fn connections_are_counted_for_each_subject_while_they_are_open() {
    let (table, now) = (LimitTable::new(100), Instant::now());
    let permit = permit(&[None, Some(PolicyLimits { connections: Some(2), ..PolicyLimits::default() })]);
    let first = connect(&table, &permit, "a", now).ok().unwrap();
    let _second = connect(&table, &permit, "a", now).ok().unwrap();
    assert_eq!(connect(&table, &permit, "a", now).err(), over("p1", "connections"));
    assert!(connect(&table, &permit, "b", now).is_ok(), "another subject has its own share");
    assert!(table.connect(LimitedEnd::Near, &permit, "other", &who("a"), now).is_ok(), "and another service");
    drop(first);
    assert!(connect(&table, &permit, "a", now).is_ok());
}

#[test]
fn a_limit_of_nothing_allows_nothing() {
    let (table, now) = (LimitTable::new(100), Instant::now());
    let check = |limits: PolicyLimits, what: &'static str| {
        assert_eq!(connect(&table, &permit(&[Some(limits)]), "a", now).err(), over("p0", what));
    };
    check(PolicyLimits { connections: Some(0), ..PolicyLimits::default() }, "connections");
    check(
        PolicyLimits { connections_per_second: Some(0), ..PolicyLimits::default() },
        "new connections per second",
    );
    check(PolicyLimits { bytes_per_second_in: Some(0), ..PolicyLimits::default() }, "bytes per second");
    check(PolicyLimits { bytes_per_second_out: Some(0), ..PolicyLimits::default() }, "bytes per second");
    let permit = permit(&[Some(PolicyLimits { requests_per_second: Some(0), ..PolicyLimits::default() })]);
    let refused = table.request(LimitedEnd::Near, &permit, "camera", &who("a"), now).err();
    let (policy, what, retry_after) = ("p0".into(), "requests per second", Some(Duration::from_secs(60)));
    assert_eq!(refused, Some(PolicyRefusal::Limit { policy, what, retry_after }));
}

/// Counts the arrivals, one every millisecond, that are admitted within ten seconds.
fn admitted(mut is_let_in: impl FnMut(Instant) -> bool) -> u64 {
    let begin = Instant::now();
    (0..10_000).map(|passed| u64::from(is_let_in(begin + Duration::from_millis(passed)))).sum()
}

#[test]
fn rates_hold_within_ten_percent_over_ten_seconds() {
    for rate in [1, 5, 20, 100, 400] {
        let table = LimitTable::new(100);
        let limits = PolicyLimits {
            connections_per_second: Some(rate),
            requests_per_second: Some(rate),
            ..PolicyLimits::default()
        };
        let permit =
            permit(&[Some(limits), Some(PolicyLimits { requests_per_second: Some(9999), ..limits })]);
        let near = |count: u64| count >= rate * 10 && count <= rate * 11;
        let count = admitted(|now| connect(&table, &permit, "a", now).is_ok());
        assert!(near(count), "{count} connections at {rate}/s");
        let count =
            admitted(|now| table.request(LimitedEnd::Near, &permit, "camera", &who("a"), now).is_ok());
        assert!(near(count), "{count} requests at {rate}/s");
    }
}

#[test]
fn one_policys_refusal_costs_nothing_of_another() {
    let (table, now) = (LimitTable::new(100), Instant::now());
    let generous = PolicyLimits { connections_per_second: Some(4), ..PolicyLimits::default() };
    let strict = PolicyLimits { connections: Some(1), ..PolicyLimits::default() };
    let both = permit(&[Some(generous), Some(strict)]);
    let held = connect(&table, &both, "a", now).ok().unwrap();
    for _ in 0..100 {
        assert_eq!(connect(&table, &both, "a", now).err(), over("p1", "connections"));
    }
    drop(held);
    assert!(connect(&table, &both, "a", now).is_ok(), "one more of two in this half second");
}

#[test]
fn the_far_gateway_notices_only_those_who_lie() {
    let (table, now) = (LimitTable::new(100), Instant::now());
    let limits =
        PolicyLimits { connections: Some(10), connections_per_second: Some(10), ..PolicyLimits::default() };
    let permit = permit(&[Some(limits)]);
    let mut open = Vec::new();
    // An honest gateway replaces all ten at once, and the ends arrive last.
    let enter = |now| table.connect(LimitedEnd::Far, &permit, "camera", &who("a"), now);
    for _ in 0..10 {
        open.push(enter(now).ok().unwrap());
    }
    let later = now + SECOND;
    open.extend((0..9).map(|_| enter(later).ok().unwrap()));
    assert_eq!(enter(later).err(), over("p0", "connections"));
    drop(open);
    let count = admitted(|passed| enter(later + SECOND * 10 + (passed - now)).is_ok());
    assert!(count <= 125, "{count} in ten seconds");
}

/// Returns the bytes that each connection moved in ten seconds; all have always more to move.
fn move_for_ten_seconds(connections: &[Allowance]) -> Vec<u64> {
    let begin = Instant::now();
    let mut moved = vec![0; connections.len()];
    let mut due: Vec<Instant> = vec![begin; connections.len()];
    loop {
        let (index, now) = due.iter().copied().enumerate().min_by_key(|(_, due)| *due).unwrap();
        if now >= begin + SECOND * 10 {
            return moved;
        }
        let (granted, wait) = connections[index].reserve(ByteDirection::Received, 256 << 10, now).unwrap();
        // Timers are late, and never early.
        due[index] = now + wait + Duration::from_micros(if wait.is_zero() { 30 } else { 1300 });
        if now + wait < begin + SECOND * 10 {
            moved[index] += granted as u64;
        }
    }
}

#[test]
fn bytes_hold_their_rate_and_connections_of_one_subject_share_it() {
    for rate in [100, 10_000, 1_000_000, 20_000_000, 200_000_000] {
        for connections in [1_usize, 2, 7] {
            let table = LimitTable::new(100);
            let permit =
                permit(&[Some(PolicyLimits { bytes_per_second_out: Some(rate), ..PolicyLimits::default() })]);
            let now = Instant::now();
            let open: Vec<_> =
                (0..connections).map(|_| connect(&table, &permit, "a", now).ok().unwrap()).collect();
            let moved = move_for_ten_seconds(&open);
            let total: u64 = moved.iter().sum();
            let row = format!("{rate} B/s over {connections}: {moved:?}");
            assert!(total >= rate * 9 && total <= rate * 11, "{row}");
            // Turns shorter than the resolution of a timer are not shared evenly.
            let (fair, is_fine) = (total / connections as u64, rate > 20_000_000);
            assert!(is_fine || moved.iter().all(|moved| moved.abs_diff(fair) * 10 <= fair), "{row}");
        }
    }
}

#[test]
fn a_greedy_subject_takes_nothing_from_a_polite_one() {
    let (table, rate, now) = (LimitTable::new(100), 1_000_000, Instant::now());
    let permit =
        permit(&[Some(PolicyLimits { bytes_per_second_out: Some(rate), ..PolicyLimits::default() })]);
    let mut open: Vec<_> = (0..20).map(|_| connect(&table, &permit, "greedy", now).ok().unwrap()).collect();
    open.push(connect(&table, &permit, "polite", now).ok().unwrap());
    let moved = move_for_ten_seconds(&open);
    assert!(moved[20] >= rate * 9, "{moved:?}");
    assert!(moved[..20].iter().sum::<u64>() <= rate * 11, "{moved:?}");
}

#[test]
fn the_slowest_of_several_policies_counts() {
    let (table, now) = (LimitTable::new(100), Instant::now());
    let limits = |rate| Some(PolicyLimits { bytes_per_second_out: Some(rate), ..PolicyLimits::default() });
    let open = [connect(&table, &permit(&[limits(50_000), limits(20_000), None]), "a", now).ok().unwrap()];
    let moved = move_for_ten_seconds(&open)[0];
    assert!((180_000..=220_000).contains(&moved), "{moved}");
}

#[test]
fn new_limits_reach_what_is_open() {
    let (table, now) = (LimitTable::new(100), Instant::now());
    let limited = |rate| Some(PolicyLimits { bytes_per_second_out: Some(rate), ..PolicyLimits::default() });
    let open = [connect(&table, &permit(&[None]), "a", now).ok().unwrap()];
    let renew = |permit: &Permit| table.renew(&open[0], permit, &who("a"), now);
    renew(&permit(&[limited(20_000)])).unwrap();
    let moved = move_for_ten_seconds(&open)[0];
    assert!((180_000..=220_000).contains(&moved), "{moved}");
    assert_eq!(renew(&permit(&[limited(0)])).err(), over("p0", "bytes per second"));
    // An open connection counts under a policy that was added later, and no longer under a removed one.
    let one = permit(&[Some(PolicyLimits { connections: Some(1), ..PolicyLimits::default() })]);
    renew(&one).unwrap();
    assert!(connect(&table, &one, "a", now).is_err());
    renew(&permit(&[None])).unwrap();
    assert!(connect(&table, &one, "a", now).is_ok());
    let refused = permit(&[Some(PolicyLimits { connections: Some(0), ..PolicyLimits::default() })]);
    assert_eq!(renew(&refused).err(), over("p0", "connections"));
}

#[test]
fn datagrams_over_the_rate_are_dropped() {
    let (table, begin) = (LimitTable::new(100), Instant::now());
    let permit =
        permit(&[Some(PolicyLimits { bytes_per_second_in: Some(100_000), ..PolicyLimits::default() })]);
    let open = connect(&table, &permit, "a", begin).ok().unwrap();
    let sent = admitted(|now| open.try_take(ByteDirection::Sent, 1000, now)) * 1000;
    assert!((900_000..=1_100_000).contains(&sent), "{sent}");
    assert!(open.try_take(ByteDirection::Received, 1 << 30, begin), "the other way is not limited");
}

#[test]
fn the_table_is_bounded_and_forgets() {
    let (table, now) = (LimitTable::new(SWEEP_MIN * 2), Instant::now());
    let permit = permit(&[Some(PolicyLimits { connections: Some(9), ..PolicyLimits::default() })]);
    let held = connect(&table, &permit, "held", now).ok().unwrap();
    for number in 1..SWEEP_MIN * 2 {
        assert!(connect(&table, &permit, &number.to_string(), now).is_ok());
    }
    assert_eq!(
        connect(&table, &permit, "one more", now).err(),
        Some(PolicyRefusal::Full { what: "subjects under limits" })
    );
    let later = now + SECOND * 60;
    assert!(connect(&table, &permit, "one more", later).is_ok());
    assert_eq!(table.len(), 2);
    drop(held);
    let unlimited = super::tests::permit(&[None]);
    assert!(connect(&table, &unlimited, "x", later).is_ok());
    assert_eq!(table.len(), 2, "who has no limits needs no share");
}
