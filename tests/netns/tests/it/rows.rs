//! Every direction and every protocol, with real programs: rows through one check. Times are printed.
//!
//! An allowed client gets an answer that names the server, a refused one is refused in the words of the protocol, and an allowed one is
//! cut when it no longer is. All of it is found in the audit.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::net::Host;

use crate::programs::{Held, IPERF3_UDP, PROTOCOLS, Protocol, Server, run};
use crate::sites::{PATIENCE, SITES, Sites, address, expose, policy, service};

/// The client, and the site of the service. Between sites with the same addresses both ways, so that a mistake would be seen.
const DIRECTIONS: [(&str, &str); 4] =
    [("cloud", "berlin"), ("berlin", "cloud"), ("berlin", "oslo"), ("oslo", "berlin")];
/// From the end of `kubectl apply` until a client at the other site has an answer.
const BOUND: Duration = Duration::from_secs(1);

/// The longest wait of a refused client. Programs must be started first, and silence has to be waited for.
const AT_ONCE: Duration = Duration::from_secs(2);

impl Sites {
    /// The server of a site, as clients elsewhere know its service.
    pub fn server(&self, protocol: &Protocol, home: &str) -> Server<'_> {
        Server {
            host: format!("server-{home}"),
            name: format!("{}-{home}.lab.test", protocol.name),
            port: protocol.port,
            folder: self.folder.path(),
        }
    }

    /// Exposes a service to another site, and waits until the client there has resolved its name and has an answer that names
    /// the server. Returns how long after `kubectl apply` that was.
    fn check(&self, protocol: &Protocol, user: &str, home: &str) -> Duration {
        let row = format!("{} from {user} to {home}", protocol.name);
        let server = self.server(protocol, home);
        let client = self.host(&format!("client-{user}"));
        let waiting = protocol.wait(&client, &server);
        let applied = self.apply(&[expose(&format!("{}-{home}", protocol.name), user)]);
        let answered = waiting.answer(applied, PATIENCE);
        let Some((answer, took)) = answered else {
            panic!("{row}: no answer; asked once more: {:?}", protocol.ask(&client, &server));
        };
        assert_eq!(answer, protocol.answer(&server.host), "{row}");
        took
    }
}

/// The services of every protocol at every site.
fn services() -> Vec<Value> {
    let at = |home| {
        PROTOCOLS.iter().map(move |protocol| service(protocol.name, home, protocol.speaks, protocol.port))
    };
    SITES.into_iter().flat_map(at).collect()
}

#[test]
fn every_protocol_crosses_in_every_direction_soon_after_it_is_exposed() {
    let test = "every_protocol_crosses_in_every_direction_soon_after_it_is_exposed";
    let Some(sites) = Sites::start(test) else { return };
    sites.apply(&services());
    let mut times = Vec::new();
    for protocol in &PROTOCOLS {
        for (user, home) in DIRECTIONS {
            let took = sites.check(protocol, user, home);
            println!(
                "{:<10} {user:>6} to {home:<6} answered {took:>7.0?} after kubectl apply",
                protocol.name
            );
            times.push(took);
        }
    }
    times.sort();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{} rows: median {median:.0?}, slowest {slowest:.0?}", times.len());
    // Once for all: a machine that is busy with something else delays a row, not half of them.
    assert!(median < BOUND, "{times:?}");
    for (user, home) in DIRECTIONS {
        // A session of datagrams ends when it has been silent for long, so it is not recorded yet.
        for protocol in PROTOCOLS.iter().filter(|protocol| protocol.speaks != "UDP") {
            for gateway in [user, home] {
                sites.check_recorded(protocol, user, home, gateway, &["done"]);
            }
        }
    }
}

impl Sites {
    /// A gateway tells who used what by which rule, and how it ended: in one of these ways.
    fn check_recorded(&self, protocol: &Protocol, user: &str, home: &str, gateway: &str, ends: &[&str]) {
        let service = format!("{}-{home}", protocol.name);
        let client = format!("client-{user}");
        let what = format!("{gateway} records that {client} used {service}, which ended: {ends:?}");
        let filters = ["--service", &service, "--gateway", gateway, "--subject", &client];
        let line = self.await_record(&what, &filters, |line| {
            line["clientSite"] == user && line["end"].as_str().is_some_and(|end| ends.contains(&end))
        });
        assert_eq!(line["decision"], "allow", "{line}");
        assert_eq!(line["rule"], policy(user), "{line}");
    }

    /// The client that no policy names is refused in the protocol's own way, at once, and that is recorded where it was refused.
    fn check_refused(&self, protocol: &Protocol, user: &str, home: &str) -> Duration {
        let row = format!("a stranger's {} from {user} to {home}", protocol.name);
        let asked = protocol.ask(&self.host(&format!("stranger-{user}")), &self.server(protocol, home));
        assert!(asked.ended, "{row}: {asked:?}");
        assert!(!asked.said.contains(&format!("server-{home}")), "{row}: {asked:?}");
        for word in protocol.refused {
            let heard = word.split('|').any(|word| asked.said.contains(word));
            assert!(heard, "{row}: {asked:?}, not {word:?}");
        }
        assert!(asked.took < AT_ONCE, "{row}: {asked:?}");
        let service = format!("{}-{home}", protocol.name);
        let line = self.await_record(&row, &["--service", &service, "--decision", "deny"], |line| {
            line["gateway"] == user && line["clientSite"] == user
        });
        assert_eq!((&line["subject"], &line["end"]), (&Value::Null, &json!("refused")), "{line}");
        assert!(
            line["client"].as_str().unwrap().starts_with(&format!("{}:", address("stranger", user))),
            "{line}"
        );
        assert!(line["reason"].as_str().unwrap().contains("no policy of service"), "{line}");
        asked.took
    }

    /// A client that went on sending after its session was cut was refused, and named.
    fn check_refused_since(&self, protocol: &Protocol, user: &str, home: &str) {
        let (service, client) = (format!("{}-{home}", protocol.name), format!("client-{user}"));
        let row = format!("{client} is refused {service} from then on");
        let filters = ["--service", &service, "--gateway", user, "--decision", "deny"];
        let line = self.await_record(&row, &filters, |line| line["subject"] == client);
        assert_eq!((&line["clientSite"], &line["end"]), (&json!(user), &json!("refused")), "{line}");
    }

    /// The number of connections that have ended at a server, as its own log tells.
    fn ended(&self, protocol: &Protocol, home: &str) -> usize {
        let Some((_, log, word)) = protocol.holds else { return 0 };
        let path = self.folder.path().join(format!("server-{home}-{log}.log"));
        std::fs::read_to_string(path).unwrap_or_default().matches(word).count()
    }

    /// Waits until this number of connections have ended at a server.
    fn await_ended(&self, protocol: &Protocol, home: &str, count: usize) -> Instant {
        let begin = Instant::now();
        while self.ended(protocol, home) < count {
            assert!(begin.elapsed() < PATIENCE, "{} goes on at server-{home}", protocol.name);
            std::thread::sleep(Duration::from_millis(2));
        }
        Instant::now()
    }
}

#[test]
fn who_is_not_named_is_refused_and_who_no_longer_is_is_cut() {
    let Some(sites) = Sites::start("who_is_not_named_is_refused_and_who_no_longer_is_is_cut") else { return };
    let exposes = DIRECTIONS.iter().flat_map(|(user, home)| {
        PROTOCOLS.iter().map(move |protocol| expose(&format!("{}-{home}", protocol.name), user))
    });
    sites.apply(&services().into_iter().chain(exposes).collect::<Vec<_>>());
    for (user, home) in DIRECTIONS {
        for protocol in &PROTOCOLS {
            sites.await_name(protocol, user, home);
            if user == "oslo" {
                continue; // As from Berlin, with the same addresses.
            }
            if protocol.name == IPERF3_UDP {
                continue; // Its control connection is refused, as the row of that one tells, before it sends a datagram.
            }
            let took = sites.check_refused(protocol, user, home);
            println!(
                "{:<10} {user:>6} to {home:<6} a stranger was refused after {took:>7.0?}",
                protocol.name
            );
        }
    }
    sites.check_no_name("oslo", "tcp-cloud");
    sites.check_no_name("cloud", "tcp-oslo");

    let mut held: Vec<(&Protocol, &str, &str, Held)> = Vec::new();
    for (user, home) in DIRECTIONS {
        for protocol in &PROTOCOLS {
            let client = sites.host(&format!("client-{user}"));
            if let Some(client) = protocol.hold(&client, &sites.server(protocol, home)) {
                held.push((protocol, user, home, client));
            }
        }
    }
    // Of two kinds of connections that a server cannot tell apart, both are waited for.
    let same = |one: &Protocol, other: &Protocol| {
        let told = |protocol: &Protocol| protocol.holds.as_ref().map(|(_, log, word)| (*log, *word));
        told(one) == told(other)
    };
    let mut counts = Vec::new();
    for (protocol, user, home, client) in &held {
        let row = format!("{} from {user} to {home}", protocol.name);
        assert!(client.is_open(), "{row}");
        let open = held.iter().filter(|(other, _, at, _)| same(protocol, other) && at == home).count();
        counts.push(sites.ended(protocol, home) + open);
    }
    let deleted = sites.delete("epolicy", &SITES.map(policy));
    let ends = held
        .iter()
        .zip(counts)
        .map(|((protocol, _, home, _), count)| sites.await_ended(protocol, home, count));
    let ends: Vec<Instant> = ends.collect();
    for ((protocol, user, home, client), gone) in held.into_iter().zip(ends) {
        let row = format!("{} from {user} to {home}", protocol.name);
        let (ended, words) = client.end(PATIENCE).unwrap_or_else(|| panic!("{row} goes on"));
        let [client, server] = [ended, gone].map(|end| end.saturating_duration_since(deleted));
        println!("{row:<30} cut: client {client:>6.0?}, server {server:>6.0?} after kubectl delete; {words}");
        assert!(client < BOUND && server < BOUND, "{row}: {client:?}, {server:?}");
        sites.check_recorded(protocol, user, home, user, &["revoked"]);
        // Requests of one subject share a stream between gateways: the far one sees one of them given up, and not why.
        let far: &[&str] = if protocol.speaks == "HTTP" || protocol.speaks == "GRPC" {
            &["revoked", "client-reset"]
        } else {
            &["revoked"]
        };
        sites.check_recorded(protocol, user, home, home, far);
        if protocol.speaks == "UDP" {
            sites.check_refused_since(protocol, user, home);
        }
    }
}

impl Sites {
    /// Waits until a name is known at a site. Asked of the gateway by dig.
    fn await_name(&self, protocol: &Protocol, user: &str, home: &str) {
        let server = self.server(protocol, home);
        let begin = Instant::now();
        while !self.dig(&self.host(&format!("stranger-{user}")), &server.name).contains("status: NOERROR") {
            assert!(begin.elapsed() < PATIENCE, "{} is not known at {user}", server.name);
        }
    }

    /// A service that is not exposed to a site has no name there.
    fn check_no_name(&self, user: &str, service: &str) {
        let home = service.rsplit('-').next().unwrap();
        for name in [format!("{service}.{home}.causeway.internal"), format!("{service}.lab.test")] {
            let told = self.dig(&self.host(&format!("client-{user}")), &name);
            assert!(told.contains("status: NXDOMAIN"), "{name} at {user}: {told}");
        }
    }

    pub fn dig(&self, client: &Host, name: &str) -> String {
        let mut command = client.command("dig");
        command.args(["+tries=1", "+timeout=2", name]);
        run(command, Duration::from_secs(5)).said
    }
}
