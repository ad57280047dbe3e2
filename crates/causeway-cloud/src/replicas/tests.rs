//! Replicas on one store, over loopback: edges at one, streams from the other.
//!
//! The store is SQLite, shared within this process; the directory does not know the difference.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use causeway_channel::dial::{DialConfig, DialError, DialTransports, LinkDialer};
use causeway_channel::link::{CHANNEL_ALPN, DatagramFlow, DatagramPath, REPLICA_ALPN, StreamPurpose};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits};
use causeway_channel::quic::{EndpointKeys, LARGE_PACKET_BYTES};
use causeway_channel::wire::datagrams::FramedDatagram;
use causeway_channel::{Clock, PeerId};
use causeway_store::{Store, StoreSpec};
use tokio::io::AsyncReadExt;

use super::*;
use crate::identity::{IdentityConfig, Registrar};

/// Sessions as far as these tests need them: a link per gateway.
#[derive(Default)]
struct Links(Mutex<HashMap<String, Link>>);

impl LocalSessions for Links {
    fn link(&self, gateway: &str) -> Option<Link> {
        self.0.lock().unwrap().get(gateway).cloned()
    }

    fn is_attached(&self, gateway: &str) -> bool {
        self.0.lock().unwrap().contains_key(gateway)
    }

    fn stats(&self) -> Vec<(String, GatewayStats)> {
        let told = GatewayStats { connected: true, sent_bytes: 7, ..GatewayStats::default() };
        self.0.lock().unwrap().keys().map(|gateway| (gateway.clone(), told.clone())).collect()
    }
}

fn key(epoch: u64) -> SessionKey {
    SessionKey { epoch, instance: None }
}

struct Replica {
    registrar: Arc<Registrar>,
    fleet: Arc<Fleet>,
    links: Arc<Links>,
    sites: watch::Sender<Arc<SiteGateways>>,
    address: std::net::SocketAddr,
    stop: CancellationToken,
}

struct Lab {
    folder: tempfile::TempDir,
    store: Store,
}

impl Lab {
    async fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        Lab { folder, store }
    }

    async fn replica(&self, name: &str) -> Replica {
        let data_dir = self.folder.path().join(name);
        causeway_daemon::data_dir::make_folder(&data_dir).unwrap();
        std::fs::write(data_dir.join("seal.key"), "42".repeat(32)).unwrap();
        let mut config = IdentityConfig::new(data_dir, Vec::new(), "https://127.0.0.1:7443");
        config.new_fleet = true;
        let registrar = Registrar::open(self.store.clone(), config).await.unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut port = ChannelPort::bind(
            address,
            registrar.channel_tls(),
            EndpointKeys::generate(),
            PortLimits::default(),
        )
        .await
        .unwrap();
        let address = port.local_addr();
        let place = ReplicaAddress { address: address.to_string(), endpoints: vec![address.to_string()] };
        let directory = SessionDirectory::open(self.store.clone(), place, Clock::system()).await.unwrap();
        let links = Arc::new(Links::default());
        let sites = watch::Sender::<Arc<SiteGateways>>::default();
        // The other replicas have no journal, as a version without an audit.
        let journals = (name == "two").then(|| AuditJournal::new(&self.folder.path().join(name)));
        let fleet =
            Fleet::new(directory.clone(), links.clone(), registrar.clone(), sites.subscribe(), journals);
        let stop = CancellationToken::new();
        let (until, serving, sessions) = (stop.clone(), fleet.clone(), links.clone());
        tokio::spawn(async move { directory.run(until).await });
        let until = stop.clone();
        tokio::spawn(async move {
            loop {
                let incoming = tokio::select! {
                    () = until.cancelled() => return,
                    incoming = port.accept() => incoming,
                };
                match incoming {
                    IncomingLink::Replica(link) => {
                        drop(tokio::spawn(serving.clone().serve(link, until.clone())))
                    }
                    IncomingLink::Channel(link, _) => {
                        link.admit();
                        let facts = causeway_channel::CertificateFacts::read(&link.certificate().unwrap());
                        let gateway = facts.unwrap().peer.unwrap().gateway().to_owned();
                        sessions.0.lock().unwrap().insert(gateway, link);
                        let gateways = sessions.0.lock().unwrap().keys().cloned().collect::<Vec<_>>();
                        let attached = gateways.into_iter().map(|name| (name, key(1))).collect::<Vec<_>>();
                        serving.directory().set_attached(&attached);
                    }
                    IncomingLink::Enrolment(..) => {}
                }
            }
        });
        Replica { registrar, fleet, links, sites, address, stop }
    }
}

/// Dials a replica with the identity in `config`.
async fn dial(replica: &Replica, config: DialConfig, alpn: &'static [u8]) -> Result<Link, DialError> {
    let endpoints = vec![replica.address.to_string().parse().unwrap()];
    LinkDialer::new(DialConfig { endpoints, alpn, ..config }).dial().await
}

/// An edge that says where a stream comes from and echoes the rest; ends a stream with the target `refuse`.
async fn edge(replica: &Replica, gateway: &str) -> Link {
    let peer = PeerId::new("oslo", gateway).unwrap();
    let link = dial(replica, replica.registrar.dial_as_gateway(&peer), CHANNEL_ALPN).await.unwrap();
    let accepting = link.clone();
    tokio::spawn(async move {
        while let Ok((header, mut stream)) = accepting.accept_stream().await {
            tokio::spawn(async move {
                if header.target == "refuse" {
                    return stream.refuse(ResetCode::NotAllowed);
                }
                let origin = header.origin.unwrap_or_default();
                stream.write_all(format!("{}>", origin.gateway).as_bytes()).await.unwrap();
                let (mut send, mut recv) = stream.split();
                let _ = tokio::io::copy(&mut recv, &mut send).await;
                let _ = send.shutdown().await;
            });
        }
    });
    eventually("attached", || replica.fleet.directory().location_of(gateway) == GatewayLocation::Here).await;
    link
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not within twenty seconds");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

async fn echo(fleet: &Fleet, gateway: &str, text: &str) -> std::io::Result<String> {
    let opened = fleet.open_stream(gateway, StreamHeader::new(StreamPurpose::Probe)).await;
    let (mut send, mut recv) = opened.map_err(std::io::Error::other)?.split();
    let mut answer = String::new();
    // Both at once: an echo of more than the windows hold waits for its reader.
    let sending = async {
        send.write_all(text.as_bytes()).await?;
        send.shutdown().await
    };
    let (sent, received) = tokio::join!(sending, recv.read_to_string(&mut answer));
    sent.and(received).map(|_| answer)
}

/// The gateways of the site `oslo`, with their priorities.
fn site_oslo(gateways: &[(&str, i64)]) -> causeway_api::ObjectSet {
    let mut objects = causeway_api::ObjectSet::default();
    for (name, priority) in gateways {
        let (metadata, priority) = (causeway_api::ObjectMeta::named(*name), *priority);
        let gateway =
            causeway_api::EGateway { metadata, e_site_name: "oslo".into(), priority, ..Default::default() };
        objects.insert(gateway.into());
    }
    objects
}

fn is_there(replica: &Replica, gateway: &str) -> bool {
    matches!(replica.fleet.directory().location_of(gateway), GatewayLocation::There { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_directory_does_not_know_yet_is_served() {
    let lab = Lab::new().await;
    let one = lab.replica("one").await;
    let _link = edge(&one, "oslo-1").await;
    one.sites
        .send_replace(Arc::new(SiteGateways::of(&site_oslo(&[("oslo-1", 0)]), &ActiveGateways::default())));
    // The directory follows the sessions with a delay, which grows with the fleet.
    one.fleet.directory().set_attached(&[]);
    assert_eq!(one.fleet.directory().location_of("oslo-1"), GatewayLocation::Nowhere);
    assert_eq!(echo(&one.fleet, "oslo-1", "hello").await.unwrap(), ">hello");
    let header = StreamHeader { site: "oslo".to_owned(), ..StreamHeader::new(StreamPurpose::Probe) };
    assert!(one.fleet.open_stream_to(header).await.is_ok());
    one.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_reaches_an_edge_from_any_replica_and_its_end_comes_back() {
    let lab = Lab::new().await;
    let (one, two) = (lab.replica("one").await, lab.replica("two").await);
    let link = edge(&one, "oslo-1").await;
    eventually("the other replica knows", || is_there(&two, "oslo-1")).await;
    for replica in [&one, &two] {
        assert_eq!(echo(&replica.fleet, "oslo-1", "hello").await.unwrap(), ">hello");
    }
    let large = "x".repeat(3 << 20);
    assert_eq!(echo(&two.fleet, "oslo-1", &large).await.unwrap().len(), large.len() + 1);
    // A refusal keeps its reason on the way back.
    let header = StreamHeader::new(StreamPurpose::Service).target("refuse");
    let mut stream = two.fleet.open_stream("oslo-1", header).await.unwrap();
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(ResetCode::of(&error), Some(ResetCode::NotAllowed), "{error:?}");

    assert!(matches!(two.fleet.open_stream("nobody", StreamHeader::default()).await,
        Err(FleetError::NotAttached { gateway }) if gateway == "nobody"));
    // Stats of the other replica's gateways are told when asked for.
    assert!(two.fleet.remote_stats("oslo-1").unwrap().connected, "known from the directory alone");
    two.fleet.refresh_stats().await;
    assert_eq!(two.fleet.remote_stats("oslo-1").unwrap().sent_bytes, 7);

    one.fleet.directory().set_attached(&[]);
    eventually("the entry goes", || !is_there(&two, "oslo-1")).await;
    drop(link);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_origin_is_what_the_certificate_says() {
    let lab = Lab::new().await;
    let (one, two) = (lab.replica("one").await, lab.replica("two").await);
    let _oslo = edge(&one, "oslo-1").await;
    let tokyo = edge(&two, "tokyo-1").await;
    eventually("known at two", || is_there(&two, "oslo-1")).await;
    // An edge opens a stream to another one and lies about where it comes from.
    let mut header = StreamHeader::new(StreamPurpose::Service).to("oslo", "oslo-1");
    header.origin = Some(StreamOrigin { site: "cloud".into(), gateway: "cloud".into() });
    let mut stream = tokyo.open_stream(header).await.unwrap();
    let session = two.links.0.lock().unwrap()["tokyo-1"].clone();
    let (header, incoming) = session.accept_stream().await.unwrap();
    let fleet = two.fleet.clone();
    let carrying = tokio::spawn(async move {
        fleet.carry(&PeerId::new("tokyo", "tokyo-1").unwrap(), header, incoming).await;
    });
    stream.write_all(b"hi").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "tokyo-1>hi");
    carrying.await.unwrap();
}

/// Fits into a packet of every path. The other size, with its head, fits into none.
const SMALL: usize = 100;

/// A flow from tokyo to oslo through the cloud, each link over its own transport: which way datagrams go on
/// each of them.
async fn check_flow(tokyo: DialTransports, oslo: DialTransports) {
    let lab = Lab::new().await;
    let one = lab.replica("one").await;
    let join = async |gateway: &str, transports| {
        let config = one.registrar.dial_as_gateway(&PeerId::new("site", gateway).unwrap());
        let link = dial(&one, DialConfig { transports, ..config }, CHANNEL_ALPN).await.unwrap();
        eventually("attached", || one.fleet.directory().location_of(gateway) == GatewayLocation::Here).await;
        let here = one.links.0.lock().unwrap()[gateway].clone();
        // As every link begins.
        let control = link.open_stream(StreamHeader::new(StreamPurpose::Control)).await.unwrap();
        let (_, accepted) = here.accept_stream().await.unwrap();
        (link, here, [control, accepted])
    };
    let (near, near_session, _near_control) = join("tokyo-1", tokyo).await;
    let (far, _far_session, _far_control) = join("oslo-1", oslo).await;
    let mut header = StreamHeader::new(StreamPurpose::Service).to("oslo", "oslo-1");
    header.datagrams = true;
    let mut client: DatagramFlow = near.open_stream(header).await.unwrap().into();
    let (header, incoming) = near_session.accept_stream().await.unwrap();
    let fleet = one.fleet.clone();
    let carrying = tokio::spawn(async move {
        fleet.carry(&PeerId::new("tokyo", "tokyo-1").unwrap(), header, incoming).await;
    });
    let (header, stream) = far.accept_stream().await.unwrap();
    assert!(header.datagrams);
    let mut backend = DatagramFlow::from(stream);
    let small = |transports| {
        if transports == DialTransports::QuicOnly { DatagramPath::Beside } else { DatagramPath::OnStream }
    };
    let mut ways = (DatagramPath::OnStream, DatagramPath::OnStream);
    // Each end hears with the first answers what the next one understands; datagrams may be lost, so one is
    // sent until it comes.
    for round in 0..20 {
        for bytes in [SMALL, usize::from(LARGE_PACKET_BYTES)] {
            let asked = FramedDatagram::new(&vec![round; bytes]).unwrap();
            let answered = tokio::time::timeout(Duration::from_secs(20), async {
                let sent = client.send.send(asked.clone()).await.unwrap();
                let heard = backend.recv.recv().await.unwrap().unwrap();
                let answered = backend.send.send(heard).await.unwrap();
                let answer = client.recv.recv().await.unwrap().unwrap();
                assert_eq!(answer, asked);
                (sent, answered)
            });
            let answered = answered.await.unwrap();
            match bytes {
                SMALL => ways = answered,
                _ => assert_eq!(answered, (DatagramPath::OnStream, DatagramPath::OnStream)),
            }
        }
    }
    assert_eq!(ways, (small(tokyo), small(oslo)), "{tokyo:?} {oslo:?}");
    // The end and the reason go through.
    backend.recv.stop(ResetCode::NotAllowed);
    backend.send.reset(ResetCode::NotAllowed);
    let error = client.recv.recv().await.unwrap_err();
    assert_eq!(ResetCode::of(&error), Some(ResetCode::NotAllowed));
    assert_eq!(client.send.stopped().await, ResetCode::NotAllowed);
    carrying.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_go_on_each_link_in_the_way_it_can() {
    check_flow(DialTransports::QuicOnly, DialTransports::QuicOnly).await;
    check_flow(DialTransports::QuicOnly, DialTransports::TcpOnly).await;
    check_flow(DialTransports::TcpOnly, DialTransports::QuicOnly).await;
    check_flow(DialTransports::TcpOnly, DialTransports::TcpOnly).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_link_is_dead_is_passed_over_for_the_next_of_its_site() {
    let lab = Lab::new().await;
    let one = lab.replica("one").await;
    one.sites.send_replace(Arc::new(SiteGateways::of(
        &site_oslo(&[("oslo-1", 7), ("oslo-2", 1)]),
        &ActiveGateways::default(),
    )));
    let ask = async || {
        let header = StreamHeader { site: "oslo".into(), ..StreamHeader::new(StreamPurpose::Probe) };
        one.fleet.open_stream_to(header).await.map(drop)
    };
    assert!(matches!(ask().await, Err(FleetError::SiteAway { site }) if site == "oslo"));
    let (first, _second) = (edge(&one, "oslo-1").await, edge(&one, "oslo-2").await);
    ask().await.unwrap();
    // The directory still says that both are here.
    first.close(CloseReason::new(CloseCode::Done, "gone"));
    let here = one.links.0.lock().unwrap()["oslo-1"].clone();
    here.closed().await;
    ask().await.unwrap();
    one.links.0.lock().unwrap().remove("oslo-2");
    assert!(matches!(ask().await, Err(FleetError::NotAttached { gateway }) if gateway == "oslo-2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_replica_is_believed_and_a_stream_is_forwarded_once() {
    let lab = Lab::new().await;
    let (one, two) = (lab.replica("one").await, lab.replica("two").await);
    let _oslo = edge(&one, "oslo-1").await;
    eventually("known at two", || is_there(&two, "oslo-1")).await;
    let ask = async |link: &Link| {
        let header = StreamHeader::new(StreamPurpose::Probe).to("oslo", "oslo-1");
        let mut stream = link.open_stream(header).await.map_err(std::io::Error::other)?;
        stream.read_u8().await
    };
    // Gateways never get a certificate with the cloud's name, whatever they call themselves.
    let impostor = one.registrar.dial_as_gateway(&PeerId::new("cloud", "cloud").unwrap());
    let link = dial(&one, impostor, REPLICA_ALPN).await.unwrap();
    assert!(ask(&link).await.is_err());
    assert!(link.closed().await.to_string().contains("replica"), "{}", link.closed().await);
    // Replica two would have to forward it once more, and a forwarded stream is never forwarded again.
    let link = dial(&two, one.registrar.dial_config().unwrap(), REPLICA_ALPN).await.unwrap();
    let error = ask(&link).await.unwrap_err();
    assert_eq!(ResetCode::of(&error), Some(ResetCode::NoRoute), "{error:?}");
    let link = dial(&one, two.registrar.dial_config().unwrap(), REPLICA_ALPN).await.unwrap();
    assert_eq!(ask(&link).await.unwrap(), b'>');
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stops_takes_its_entries_along_and_a_newer_session_replaces_an_older_one() {
    let lab = Lab::new().await;
    let (one, two) = (lab.replica("one").await, lab.replica("two").await);
    let mut replaced = one.fleet.directory().replaced();
    one.fleet.directory().set_attached(&[("oslo-1".into(), key(5)), ("bergen-1".into(), key(1))]);
    eventually("known at two", || is_there(&two, "oslo-1") && is_there(&two, "bergen-1")).await;
    // The edge has moved; the old session may still linger at one.
    two.fleet.directory().set_attached(&[("oslo-1".into(), key(6))]);
    let told = tokio::time::timeout(Duration::from_secs(20), replaced.recv()).await.unwrap().unwrap();
    assert_eq!(told, SupersededSession { gateway: "oslo-1".into(), by: key(6) });
    eventually("one follows, although its own session lingers", || is_there(&one, "oslo-1")).await;

    let start = Instant::now();
    one.stop.cancel();
    eventually("its entry is gone", || !is_there(&two, "bergen-1")).await;
    assert!(start.elapsed() < Duration::from_secs(5), "long before anybody could miss its renewals");
    eventually("so is the replica", || two.fleet.directory().other_replicas().is_empty()).await;
    assert_eq!(two.fleet.directory().newest("oslo-1"), Some(key(6)));
}

#[tokio::test]
async fn the_audit_is_asked_of_every_replica_and_who_refuses_is_named() {
    let lab = Lab::new().await;
    let (one, two, three) = (lab.replica("one").await, lab.replica("two").await, lab.replica("three").await);
    let line = r#"{"time":"2026-11-16T00:00:00.000Z","gateway":"gw","site":"oslo","service":"web","decision":"allow"}"#;
    std::fs::write(lab.folder.path().join("two/fleet.jsonl"), format!("{line}\n")).unwrap();
    // The third shows nothing, as a replica from before there was an audit.
    eventually("the others are known", || one.fleet.directory().other_replicas().len() == 2).await;
    let (journals, silent) = one.fleet.ask_audit(JournalKind::Traffic, "service=web").await;
    let mut merge = crate::audit::JournalMerge::new(audit::AuditQuery::default(), journals, silent);
    let mut text = String::new();
    while let Some(piece) = merge.next().await {
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let summary = &lines[1]["summary"];
    let silent = summary["silentReplicas"].as_array().unwrap();
    assert_eq!((summary["records"].as_u64(), silent.len()), (Some(1), 1), "{text}");
    for replica in [one, two, three] {
        replica.stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_drains_gets_no_stream_to_its_site() {
    let lab = Lab::new().await;
    let one = lab.replica("one").await;
    let mut objects = site_oslo(&[("oslo-1", 7)]);
    let _edge = edge(&one, "oslo-1").await;
    let header = || StreamHeader { site: "oslo".into(), ..StreamHeader::new(StreamPurpose::Probe) };
    eventually("the edge is attached", || one.fleet.is_attached("oslo-1")).await;
    one.sites.send_replace(Arc::new(SiteGateways::of(&objects, &ActiveGateways::default())));
    one.fleet.open_stream_to(header()).await.unwrap();
    let gateway = objects.gateway("oslo-1").unwrap().clone();
    objects.insert(causeway_api::EGateway { drain: true, ..gateway }.into());
    one.sites.send_replace(Arc::new(SiteGateways::of(&objects, &ActiveGateways::default())));
    let refused = one.fleet.open_stream_to(header()).await.map(drop);
    assert!(matches!(refused, Err(FleetError::SiteDraining { gateway, .. }) if gateway == "oslo-1"));
    // A stream that names the gateway, as doctor's and those of layer 3, still gets there.
    let named = StreamHeader { gateway: "oslo-1".into(), ..header() };
    one.fleet.open_stream_to(named).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_active_gateway_is_stored_and_streams_to_its_site_go_there() {
    let lab = Lab::new().await;
    let one = lab.replica("one").await;
    let objects = site_oslo(&[("oslo-1", 7), ("oslo-2", 1)]);
    let (changed, sessions) = watch::channel(0);
    let writer =
        ActiveGatewayWriter::new(lab.store.clone(), one.fleet.clone(), one.sites.subscribe(), sessions);
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(writer.run(stop));
    // Publishes what is stored, as the reconciler and the netmap publisher do.
    let published = async |expected: &str| {
        changed.send_modify(|count| *count += 1);
        let is_stored = async || {
            let record = lab.store.get("activegateways/oslo").await.unwrap();
            let stored = record.and_then(|record| decode_active(&record.value));
            let active = stored.clone().map(|gateway| ("oslo".to_owned(), gateway)).into_iter().collect();
            one.sites.send_replace(Arc::new(SiteGateways::of(&objects, &active)));
            stored.as_deref() == Some(expected)
        };
        let stored = async {
            while !is_stored().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), stored).await;
        assert!(waited.is_ok(), "{expected} is not stored as active");
    };
    let ask = async || {
        let header = StreamHeader { site: "oslo".into(), ..StreamHeader::new(StreamPurpose::Probe) };
        one.fleet.open_stream_to(header).await.map(drop)
    };
    one.sites.send_replace(Arc::new(SiteGateways::of(&objects, &ActiveGateways::default())));
    let _second = edge(&one, "oslo-2").await;
    published("oslo-2").await;
    let _first = edge(&one, "oslo-1").await;
    published("oslo-1").await;
    // The record follows; a stream does not wait for it.
    one.links.0.lock().unwrap().remove("oslo-1");
    one.fleet.directory().set_attached(&[("oslo-2".into(), key(1))]);
    ask().await.unwrap();
    published("oslo-2").await;
}
