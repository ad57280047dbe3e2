//! Datagrams from clients at a presence in Oslo, over a link, to backends in Berlin and back: real sockets, two gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_channel::link::{Link, Stream, StreamHeader, StreamPurpose, Transport};
use causeway_gateway::audit::{AuditDecision, AuditRecord, AuditSink, ConnectionEnd};
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::proxy::udp::UdpOptions;
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::{
    BackendEndpoint, ExposureEntry, Generation, NetmapEntry, NetmapView, PolicyEntry, PresenceEntry,
    PresenceIp, ServiceEntry, ServiceProtocol,
};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::links;

const DEADLINE: Duration = Duration::from_secs(30);
const PORT: u16 = 5353;

/// A loopback address that no other test process uses.
fn presence() -> SocketAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::new(IpAddr::from([127, 18u8.wrapping_add(high), low, 77]), PORT)
}

/// The netmap of the gateway of `site`, when `allowed` may use `echo` and Berlin has these backends.
fn view(revision: u64, site: &str, allowed: &[&str], backends: &[SocketAddr]) -> Arc<NetmapView> {
    let mut facts = vec![
        NetmapEntry::Gateway(causeway_netmap::GatewayEntry::named(format!("{site}-1").as_str(), site)),
        NetmapEntry::Policy(PolicyEntry {
            name: "guests".into(),
            servers: vec![],
            sites: allowed.iter().map(|site| (*site).into()).collect(),
            limits: None,
            http: vec![],
            ports: Vec::new(),
        }),
    ];
    if site == "berlin" {
        facts.push(NetmapEntry::Service(ServiceEntry {
            name: "echo".into(),
            port: PORT,
            protocol: ServiceProtocol::Udp,
            backends: backends
                .iter()
                .map(|address| BackendEndpoint::Address(address.ip(), address.port()))
                .collect(),
            domain_name: None,
            health_check: None,
            backend_tls: None,
            proxy_protocol: false,
            exposures: vec![ExposureEntry { sites: vec!["oslo".into()], policies: vec!["guests".into()] }],
        }));
    } else {
        facts.push(NetmapEntry::Presence(PresenceEntry {
            service: "echo".into(),
            addresses: vec![PresenceIp(presence().ip())],
            port: PORT,
            protocol: ServiceProtocol::Udp,
            brokers: 0,
            names: vec![],
            service_site: "berlin".into(),
            policies: vec!["guests".into()],
        }));
    }
    Arc::new(NetmapView::of_entries(Generation { epoch: 1, revision }, &facts).unwrap())
}

#[derive(Clone, Default)]
struct Book(Arc<Mutex<Vec<AuditRecord>>>);

impl AuditSink for Book {
    fn record(&self, record: AuditRecord) {
        self.0.lock().unwrap().push(record);
    }
}

impl Book {
    fn all(&self) -> Vec<AuditRecord> {
        self.0.lock().unwrap().clone()
    }

    fn ends(&self) -> Vec<ConnectionEnd> {
        self.all().iter().map(|record| record.end).collect()
    }
}

struct OverLink(Option<Link>);

impl GatewayPeers for OverLink {
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>> {
        Box::pin(async move {
            let away = |why: String| PeerError::Away { site: "berlin".into(), why };
            let link = self.0.as_ref().ok_or_else(|| away("no link".to_owned()))?;
            link.open_stream(header).await.map_err(|error| away(error.to_string()))
        })
    }
}

/// A running gateway, and the audit records it has written.
struct Site {
    gateway: Gateway,
    netmaps: watch::Sender<Arc<NetmapView>>,
    book: Book,
    running: JoinHandle<()>,
}

/// Two gateways and the link between them.
struct Lab {
    oslo: Site,
    berlin: Site,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    near: Link,
    _control: Stream,
    _port: Option<AbortOnDropHandle<()>>,
}

fn start(view: Arc<NetmapView>, link: Option<Link>, udp: UdpOptions, stop: &CancellationToken) -> Site {
    let (netmaps, netmap) = watch::channel(view);
    let book = Book::default();
    let options = GatewayOptions { udp, ..GatewayOptions::default() };
    let parts = GatewayParts {
        netmaps: netmap,
        peers: Arc::new(OverLink(link)),
        audit: Arc::new(book.clone()),
        options,
        role_facts: None,
    };
    let gateway = Gateway::new(parts);
    let (run, stop) = (gateway.clone(), stop.clone());
    let running = tokio::spawn(async move { run.run(stop).await });
    Site { gateway, netmaps, book, running }
}

impl Lab {
    async fn start(backends: &[SocketAddr], udp: UdpOptions) -> Lab {
        Lab::over(Transport::Tcp, backends, udp).await
    }

    async fn over(transport: Transport, backends: &[SocketAddr], udp: UdpOptions) -> Lab {
        let (near, far, port) = links::pair(transport).await;
        // Every link begins with this stream.
        let control = near.open_stream(StreamHeader::new(StreamPurpose::Control)).await.unwrap();
        let begun = far.accept_stream().await.unwrap();
        let stop = CancellationToken::new();
        let berlin = start(view(1, "berlin", &["oslo"], backends), None, udp.clone(), &stop);
        let oslo = start(view(1, "oslo", &["oslo"], &[]), Some(near.clone()), udp, &stop);
        let gateway = berlin.gateway.clone();
        let serving = tokio::spawn(async move {
            let _begun = begun;
            while let Ok((header, stream)) = far.accept_stream().await {
                gateway.serve("oslo".into(), header, stream);
            }
        });
        let lab = Lab { oslo, berlin, stop, serving, near, _control: control, _port: port };
        let mut report = lab.oslo.gateway.listening();
        tokio::time::timeout(DEADLINE, report.wait_for(|report| report.listening == 1))
            .await
            .unwrap()
            .unwrap();
        lab
    }

    /// Sets the sites that may use the service.
    fn allow(&self, revision: u64, allowed: &[&str], backends: &[SocketAddr]) {
        self.berlin.netmaps.send_replace(view(revision, "berlin", allowed, backends));
        self.oslo.netmaps.send_replace(view(revision, "oslo", allowed, &[]));
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(DEADLINE, self.oslo.running).await.unwrap().unwrap();
        tokio::time::timeout(DEADLINE, self.berlin.running).await.unwrap().unwrap();
        self.serving.abort();
    }
}

/// Echoes every datagram.
async fn backend() -> (SocketAddr, JoinHandle<()>) {
    let (address, serving, _) = backend_that_remembers().await;
    (address, serving)
}

/// The same, and records its clients.
async fn backend_that_remembers() -> (SocketAddr, JoinHandle<()>, Arc<Mutex<BTreeSet<SocketAddr>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    // The kernel's default holds 256 small datagrams; of a thousand sent at once, faster than one task reads,
    // it drops the rest.
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    let address = socket.local_addr().unwrap();
    let heard = Arc::new(Mutex::new(BTreeSet::new()));
    let hearing = heard.clone();
    let serving = tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            if let Ok((count, from)) = socket.recv_from(&mut buffer).await {
                hearing.lock().unwrap().insert(from);
                let _ = socket.send_to(&buffer[..count], from).await;
            }
        }
    });
    (address, serving, heard)
}

/// A client that receives only from the presence's own address.
async fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(presence()).await.unwrap();
    socket
}

/// Sends until it gets an answer, since datagrams may be lost, and returns the number of attempts.
async fn ask(client: &UdpSocket, payload: &[u8]) -> usize {
    let mut buffer = vec![0; 65_536];
    for attempt in 1..=30 {
        client.send(payload).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(1), client.recv(&mut buffer)).await;
        match answer {
            Ok(Ok(count)) if buffer[..count] == *payload => return attempt,
            // The answer to an earlier attempt, or none.
            _ => continue,
        }
    }
    panic!("no answer to {} bytes", payload.len());
}

async fn is_silent(client: &UdpSocket, payload: &[u8]) -> bool {
    client.send(payload).await.unwrap();
    let mut buffer = [0; 64];
    tokio::time::timeout(Duration::from_millis(300), client.recv(&mut buffer)).await.is_err()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_are_answered_each_for_itself() {
    a_thousand_clients(Transport::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_are_answered_each_for_itself_over_quic() {
    a_thousand_clients(Transport::Quic).await;
}

async fn a_thousand_clients(transport: Transport) {
    let (address, serving) = backend().await;
    let lab = Lab::over(transport, &[address], UdpOptions::default()).await;
    let begin = Instant::now();
    let asking: Vec<_> = (0..1000u32)
        .map(|number| {
            tokio::spawn(async move {
                let client = client().await;
                let mut attempts = 0;
                for round in 0..3u32 {
                    let payload = [number.to_be_bytes(), round.to_be_bytes()].concat();
                    attempts += ask(&client, &payload).await;
                }
                (client, attempts)
            })
        })
        .collect();
    let mut clients = Vec::new();
    let mut attempts = 0;
    for asked in asking {
        let (client, tries) = asked.await.unwrap();
        clients.push(client);
        attempts += tries;
    }
    let lost = dropped_by_the_kernel(address);
    println!("{lost} datagrams found the backend's own socket full");
    println!("{transport}: 3000 answers to 1000 clients in {:?}, asked {attempts} times", begin.elapsed());
    assert_eq!(lab.oslo.gateway.context().live.len(), 1000);
    assert_eq!(lab.berlin.gateway.context().live.len(), 1000);
    let (near, far) = (lab.oslo.book.clone(), lab.berlin.book.clone());
    let (there, back) = (carried(&lab.oslo), carried(&lab.berlin));
    println!("beside streams and on them: {there:?} to the service, {back:?} back");
    match transport {
        // A burst may close the gate for QUIC datagrams on a busy machine, and then datagrams go on their streams. One at a
        // time none has to: after the first answer both ends know the session.
        Transport::Quic => {
            assert!(there.0 > 0 && back.0 > 0, "{there:?} {back:?}");
            for client in &clients[..300] {
                ask(client, b"alone").await;
            }
            let (after_there, after_back) = (carried(&lab.oslo), carried(&lab.berlin));
            println!("one at a time: {after_there:?} to the service, {after_back:?} back");
            assert!(after_there.0 >= there.0 + 200 && after_back.0 >= back.0 + 200);
            let stats = lab.near.stats();
            assert_eq!(stats.datagrams_sent, after_there.0);
            assert!(stats.datagrams_received >= after_back.0 - back.0, "{stats:?}");
        }
        Transport::Tcp => assert_eq!((there.0, back.0), (0, 0)),
    }
    lab.stop().await;
    assert_eq!((near.all().len(), far.all().len()), (1000, 1000));
    let record = near.all()[0].clone();
    assert_eq!(
        (record.protocol, record.decision, record.rule.as_deref()),
        ("udp", AuditDecision::Allow, Some("guests"))
    );
    assert!(record.sent_bytes >= 24 && record.received_bytes >= 24, "{record:?}");
    serving.abort();
}

/// Datagrams that the kernel has dropped because this socket's buffer was full.
fn dropped_by_the_kernel(address: SocketAddr) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let port = format!(":{:04X}", address.port());
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = table.lines().map(columns).find(|columns| columns.len() > 12 && columns[1].ends_with(&port));
    found.unwrap()[12].parse().unwrap()
}

/// The datagrams that a gateway has sent to the other: outside streams, and on them.
fn carried(site: &Site) -> (u64, u64) {
    let stats = &site.gateway.context().metrics;
    (stats.datagrams_beside.get(), stats.datagrams_on_streams.get())
}

#[tokio::test]
async fn datagrams_of_every_size_pass_whole() {
    every_size(Transport::Tcp).await;
    every_size(Transport::Quic).await;
}

async fn every_size(transport: Transport) {
    let (address, serving) = backend().await;
    let lab = Lab::over(transport, &[address], UdpOptions::default()).await;
    let client = client().await;
    for size in [1, 0, 2, 512, 1200, 1472, 1473, 9000, 40_000, 65_507] {
        let payload: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        ask(&client, &payload).await;
    }
    assert_eq!(lab.oslo.gateway.context().live.len(), 1);
    lab.stop().await;
    serving.abort();
}

#[tokio::test]
async fn who_is_refused_hears_nothing_until_a_policy_names_them_and_again_after() {
    refusals(Transport::Tcp).await;
    refusals(Transport::Quic).await;
}

async fn refusals(transport: Transport) {
    let (address, serving) = backend().await;
    let lab = Lab::over(transport, &[address], UdpOptions::default()).await;
    lab.allow(2, &[], &[address]);
    let client = client().await;
    for _ in 0..50 {
        client.send(b"let me in").await.unwrap();
    }
    assert!(is_silent(&client, b"please").await);
    let records = lab.oslo.book.all();
    assert_eq!(records.len(), 1, "one record, however often it is tried: {records:?}");
    assert_eq!((records[0].decision, records[0].end), (AuditDecision::Deny, ConnectionEnd::Refused));
    assert!(lab.berlin.book.all().is_empty());

    lab.allow(3, &["oslo"], &[address]);
    // It sends once a second, and a refusal is remembered for ten.
    assert!(ask(&client, b"now").await < 8, "a refusal is forgotten with its netmap");

    lab.allow(4, &[], &[address]);
    let revoked = |book: &Book| book.ends().contains(&ConnectionEnd::Revoked);
    until("both ends cut it", || revoked(&lab.oslo.book) && revoked(&lab.berlin.book)).await;
    assert!(is_silent(&client, b"again").await);
    // Also when only the other end refuses.
    lab.oslo.netmaps.send_replace(view(5, "oslo", &["oslo"], &[]));
    assert!(is_silent(&client, b"once more").await);
    until("the other end refuses", || lab.berlin.book.ends().contains(&ConnectionEnd::Refused)).await;
    until("and it is known here", || {
        lab.oslo.book.ends().iter().filter(|end| **end == ConnectionEnd::Refused).count() > 2
    })
    .await;
    lab.stop().await;
    serving.abort();
}

#[tokio::test]
async fn a_session_ends_when_nothing_is_said_and_the_next_datagram_begins_another() {
    let (address, serving) = backend().await;
    let quick = Duration::from_millis(200);
    let udp = UdpOptions { idle_timeout: quick, settled_timeout: quick, ..UdpOptions::default() };
    let lab = Lab::start(&[address], udp).await;
    let client = client().await;
    for rounds in 1..=2 {
        ask(&client, b"here I am").await;
        let idle =
            |book: &Book| book.ends().iter().filter(|end| **end == ConnectionEnd::Idle).count() == rounds;
        until("it is idle", || idle(&lab.oslo.book) && lab.berlin.book.all().len() == rounds).await;
        assert_eq!(lab.oslo.gateway.proxy().udp_sessions.len(), 0);
    }
    lab.stop().await;
    serving.abort();
}

#[tokio::test]
async fn clients_are_spread_over_backends_and_one_that_is_not_there_is_left_out() {
    let (one, serving_one, heard_by_one) = backend_that_remembers().await;
    let (other, serving_other, heard_by_other) = backend_that_remembers().await;
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lab = Lab::start(&[one, other], UdpOptions::default()).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let client = client().await;
        ask(&client, b"hello").await;
        clients.push(client);
    }
    assert_eq!([&heard_by_one, &heard_by_other].map(|heard| heard.lock().unwrap().len()), [3, 3]);
    serving_one.abort();
    serving_other.abort();
    lab.stop().await;

    let (alive, serving) = backend().await;
    let lab = Lab::start(&[nobody, alive], UdpOptions::default()).await;
    let client = client().await;
    // The first datagram goes to a closed port, which ICMP reports; the next to a backend that works.
    ask(&client, b"anybody?").await;
    assert!(lab.berlin.book.ends().contains(&ConnectionEnd::BackendDown));
    lab.stop().await;
    serving.abort();
}

#[tokio::test]
async fn when_the_table_is_full_the_longest_idle_makes_way() {
    let (address, serving) = backend().await;
    let lab = Lab::start(&[address], UdpOptions { sessions_max: 2, ..UdpOptions::default() }).await;
    let clients = [client().await, client().await, client().await];
    for client in &clients {
        ask(client, b"me").await;
    }
    until("one had to go", || lab.oslo.book.ends() == [ConnectionEnd::Limit]).await;
    let evicted: BTreeMap<String, ConnectionEnd> =
        lab.oslo.book.all().into_iter().filter_map(|record| Some((record.client?, record.end))).collect();
    assert_eq!(evicted.keys().next().unwrap(), &clients[0].local_addr().unwrap().to_string());
    assert_eq!(lab.oslo.gateway.proxy().udp_sessions.len(), 2);
    lab.stop().await;
    serving.abort();
}

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_an_idle_session_over_tcp() {
    memory_of_an_idle_session(Transport::Tcp).await;
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_an_idle_session_over_quic() {
    memory_of_an_idle_session(Transport::Quic).await;
}

async fn memory_of_an_idle_session(transport: Transport) {
    const SESSIONS: usize = 3000;
    let (address, serving) = backend().await;
    let lab = Lab::over(transport, &[address], UdpOptions::default()).await;
    let (mut clients, mut before) = (Vec::new(), 0);
    for round in 0..SESSIONS + 200 {
        let client = client().await;
        ask(&client, b"hello").await;
        clients.push(client);
        // Memory that the first sessions allocate for all later ones.
        if round == 199 {
            before = resident_bytes();
        }
    }
    assert_eq!(lab.berlin.gateway.context().live.len(), SESSIONS + 200);
    let each = (resident_bytes() - before) / SESSIONS;
    println!("{transport}: {each} bytes for each idle session, both gateways and the client");
    lab.stop().await;
    serving.abort();
}
