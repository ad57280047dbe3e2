//! The audit of a site that is cut off: what crosses and what is refused there is in the cloud's audit afterwards, each once, also
//! when the gateway was killed in between and started again without the cloud.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use testlab::causeway::{get, wait_for};
use testlab::net::{Cut, Host};

use crate::nat_fleet::soak;
use crate::sites::{PATIENCE, Sites, expose, service};

/// Crossings and refusals, each, before the kill and after it.
const EACH: usize = 25;

/// One connection. Returns the client's own address, by which its record is known, and whether it was answered. None: it was
/// reset before it was known to be connected.
fn ask(host: &Host, to: SocketAddr) -> Option<(String, bool)> {
    // The system gives the same ports again within an hour.
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let own = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT.fetch_add(1, Ordering::Relaxed)));
    let asked = host.inside(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&own.into())?;
        socket.connect_timeout(&to.into(), Duration::from_secs(5))?;
        let mut stream = TcpStream::from(socket);
        let own = stream.local_addr()?.to_string();
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut heard = String::new();
        let spoken = stream.write_all(b"hello\n").and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let spoken = spoken.and_then(|()| stream.read_to_string(&mut heard));
        Ok((own, spoken.is_ok() && heard.contains("hello")))
    });
    asked.ok()
}

impl Sites {
    /// The records that wait at an edge for the cloud.
    fn waiting(&self, site: &str) -> Option<usize> {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, 7445));
        let (_, text) = self.host(site).inside(|| get(admin, "/metrics")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("causeway_spool_waiting "))?.to_owned();
        line.trim().parse().ok()
    }

    /// Clients and strangers of Berlin ask for a service of their own site. Returns both kinds of addresses.
    fn cross_at_home(&self, to: SocketAddr) -> (BTreeSet<String>, BTreeSet<String>) {
        let (client, stranger) = (self.host("client-berlin"), self.host("stranger-berlin"));
        let (mut allowed, mut denied) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..EACH {
            let (own, answered) = ask(&client, to).unwrap();
            assert!(answered, "{own} is not answered");
            allowed.insert(own);
            let mut tries = std::iter::repeat_with(|| ask(&stranger, to));
            let (own, answered) = tries.by_ref().take(100).flatten().next().unwrap();
            assert!(!answered, "{own} is answered");
            denied.insert(own);
        }
        (allowed, denied)
    }
}

#[test]
fn the_audit_survives_an_offline_hour_and_a_kill() {
    let Some(mut sites) = Sites::start("the_audit_survives_an_offline_hour_and_a_kill") else { return };
    sites.apply(&[service("tcp", "berlin", "TCP", 7000), expose("tcp-berlin", "berlin")]);
    let to = SocketAddr::new(sites.presence("tcp-berlin", "berlin"), 7000);
    let client = sites.host("client-berlin");
    let listens = || client.connects(to, Duration::from_secs(1)).then_some(());
    wait_for("the service is at home", listens).unwrap();
    let (mut allowed, mut denied) = sites.cross_at_home(to);

    sites.net.cut("nat-berlin", Cut::Silent).unwrap();
    let cut = Instant::now();
    let (more, refused) = sites.cross_at_home(to);
    (allowed, denied) = (&allowed | &more, &denied | &refused);
    if soak() {
        // The length is the test.
        std::thread::sleep(Duration::from_secs(3600));
    }
    wait_for("they are in the queue", || sites.waiting("berlin").filter(|waiting| *waiting >= EACH)).unwrap();
    sites.edge("berlin").unit.kill().unwrap();
    sites.edge("berlin").restart().unwrap();
    let begin = Instant::now();
    wait_for("the presence is back without the cloud", || {
        client.connects(to, Duration::from_secs(1)).then_some(())
    })
    .unwrap();
    println!(
        "kill -9 and restart without the cloud: the presence listens {:?} after the start",
        begin.elapsed()
    );
    let (more, refused) = sites.cross_at_home(to);
    (allowed, denied) = (&allowed | &more, &denied | &refused);
    wait_for("all is in the queue", || sites.waiting("berlin").filter(|waiting| *waiting >= 2 * EACH))
        .unwrap();

    let offline = cut.elapsed();
    sites.net.restore("nat-berlin").unwrap();
    let begin = Instant::now();
    sites.await_connected("berlin");
    let told = |decision: &str, expected: &BTreeSet<String>| {
        let filters = ["--gateway", "berlin", "--service", "tcp-berlin", "--decision", decision];
        wait_for("every record is told", || {
            let lines = sites.audit(&filters);
            let clients = lines.iter().filter_map(|line| line["client"].as_str().map(str::to_owned));
            let mut clients: Vec<String> = clients.filter(|client| expected.contains(client)).collect();
            clients.sort();
            let found: BTreeSet<String> = clients.iter().cloned().collect();
            (found == *expected).then_some(clients.len())
        })
    };
    let count = told("allow", &allowed).unwrap();
    assert_eq!(count, allowed.len(), "each once");
    // Refusals of one client are coalesced. kill -9 loses the counts of a window that had not ended, nothing else.
    let filters = ["--gateway", "berlin", "--service", "tcp-berlin", "--decision", "deny"];
    let refused =
        || sites.audit(&filters).iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum::<u64>();
    wait_for("refusals are told", || (refused() >= 5).then_some(())).unwrap();
    assert!(refused() <= denied.len() as u64, "none twice");
    println!(
        "{} crossings and {} refusals, {offline:.0?} offline with a kill -9: all told, each once, {:?} after the link was back",
        allowed.len(),
        denied.len(),
        begin.elapsed()
    );
    assert!(begin.elapsed() < 2 * PATIENCE);
    let ran = sites.cloud.run(&["audit", "--gateway", "berlin"]).unwrap();
    assert!(ran.stderr.contains(" 0 lost"), "{}", ran.stderr);
}
