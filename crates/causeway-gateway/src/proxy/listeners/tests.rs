//! The open listeners, and their changes with the netmap or the binder.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Mutex;

use causeway_netmap::{Generation, NetmapEntry, PresenceEntry, PresenceIp, ServiceProtocol};
use tokio::task::{LocalSet, spawn_local, yield_now};

use super::*;
use crate::peers::BoxedFuture;
use crate::socket_binder;

fn view(presences: &[(&str, &str, u16, ServiceProtocol)]) -> NetmapView {
    let facts = presences.iter().map(|(service, ip, port, protocol)| {
        NetmapEntry::Presence(PresenceEntry {
            service: (*service).into(),
            addresses: vec![PresenceIp(ip.parse().unwrap())],
            port: *port,
            protocol: *protocol,
            brokers: if *protocol == ServiceProtocol::Kafka { 3 } else { 0 },
            names: vec![],
            service_site: "berlin".into(),
            policies: vec![],
        })
    });
    NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, facts).unwrap()
}

#[test]
fn a_presence_stands_where_it_can() {
    let camera = ("camera", "198.18.0.1", 80, ServiceProtocol::Http);
    let dns = ("dns", "198.18.0.2", 53, ServiceProtocol::Udp);
    let local = ("local", "127.18.0.1", 80, ServiceProtocol::Tcp);
    let port: (ServiceName, SocketAddr) = ("camera".into(), "0.0.0.0:8080".parse().unwrap());
    let check = |place: ListenScope, ports: &[(ServiceName, SocketAddr)], expected: &[&str]| {
        let wanted = wanted(&view(&[camera, dns, local]), place, &ports.iter().cloned().collect());
        let mut found: Vec<String> = wanted
            .iter()
            .map(|(key, owner)| {
                format!("{} {} {:?} {}", owner.service, key.scope.word(), key.transport, key.address)
            })
            .collect();
        found.sort();
        assert_eq!(found, expected);
    };
    let local = "local host Tcp 127.18.0.1:80";
    check(
        ListenScope::Namespace,
        &[],
        &["camera namespace Tcp 198.18.0.1:80", "dns namespace Udp 198.18.0.2:53", local],
    );
    check(ListenScope::Host, &[], &["camera host Tcp 198.18.0.1:80", "dns host Udp 198.18.0.2:53", local]);
    let both = [
        "camera host Tcp 0.0.0.0:8080",
        "camera namespace Tcp 198.18.0.1:80",
        "dns namespace Udp 198.18.0.2:53",
        local,
    ];
    check(ListenScope::Namespace, std::slice::from_ref(&port), &both);
    let instead = ["camera host Tcp 0.0.0.0:8080", "dns host Udp 198.18.0.2:53", local];
    check(ListenScope::Host, &[port], &instead);
}

#[test]
fn of_two_that_want_one_socket_the_first_by_name_has_it() {
    let view =
        view(&[("b", "198.18.0.1", 80, ServiceProtocol::Tcp), ("a", "198.18.0.1", 80, ServiceProtocol::Tcp)]);
    let wanted = wanted(&view, ListenScope::Namespace, &BTreeMap::new());
    assert_eq!(wanted.values().map(|owner| owner.service.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn brokers_of_kafka_stand_behind_the_port_of_their_service() {
    let listed = |port: u16, others: &[(&str, &str, u16, ServiceProtocol)]| {
        let kafka = ("kafka", "198.18.0.1", port, ServiceProtocol::Kafka);
        let view = view(&[&[kafka][..], others].concat());
        let wanted = wanted(&view, ListenScope::Namespace, &BTreeMap::new());
        let shown = wanted.iter().map(|(key, owner)| {
            let broker = owner.broker.map_or(String::new(), |broker| format!(" {broker}"));
            format!("{} {}{broker}", key.address.port(), owner.service)
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(listed(9092, &[]), ["9092 kafka", "9093 kafka 0", "9094 kafka 1", "9095 kafka 2"]);
    // The port range ends, and the port of a service takes precedence over those of brokers.
    assert_eq!(listed(65534, &[]), ["65534 kafka", "65535 kafka 0"]);
    let web = ("web", "198.18.0.1", 9094, ServiceProtocol::Tcp);
    assert_eq!(listed(9092, &[web]), ["9092 kafka", "9093 kafka 0", "9094 web", "9095 kafka 2"]);
}

/// A namespace that is on the loopback, whatever address is asked for.
struct Pretended {
    state: watch::Sender<BinderState>,
    made: Arc<Mutex<Vec<(SocketAddr, SocketAddr)>>>,
}

impl SocketBinder for Pretended {
    fn listen(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::TcpListener, BinderError>> {
        let is_open = matches!(*self.state.borrow(), BinderState::Open { .. });
        let made = match is_open {
            true => socket_binder::listen(
                "127.0.0.1:0".parse().unwrap(),
                socket_binder::AddressRequirement::MustBeLocal,
            )
            .map_err(|error| BinderError::of(address, error)),
            false => Err(BinderError::NotOpen),
        };
        if let Ok(made) = &made {
            self.made.lock().unwrap().push((address, made.local_addr().unwrap()));
        }
        Box::pin(std::future::ready(made))
    }

    fn bind_udp(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::UdpSocket, BinderError>> {
        Box::pin(std::future::ready(Err(BinderError::Outside { address })))
    }

    fn state(&self) -> watch::Receiver<BinderState> {
        self.state.subscribe()
    }
}

async fn until(
    reports: &mut watch::Receiver<ListenersReport>,
    wanted: impl Fn(&ListenersReport) -> bool,
) -> ListenersReport {
    let waiting = reports.wait_for(wanted);
    tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap().clone()
}

#[tokio::test]
async fn listeners_follow_the_namespace_and_the_netmap() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let state = watch::Sender::new(BinderState::Closed);
    let namespace = Arc::new(Pretended { state: state.clone(), made: made.clone() });
    let policy = ListenPolicy { namespace: Some(namespace), ..ListenPolicy::default() };
    let (netmaps, netmap) = watch::channel(Arc::new(view(&[
        ("camera", "198.18.0.1", 80, ServiceProtocol::Tcp),
        ("dns", "198.18.0.2", 53, ServiceProtocol::Udp),
    ])));
    let (reporting, mut reports) = watch::channel(ListenersReport::default());
    let mut listeners = PresenceListeners::start(netmap, policy, GatewayMetrics::default(), reporting);

    state.send_replace(BinderState::Troubled { why: "no such luck".to_owned() });
    let report = until(&mut reports, |report| !report.troubles.is_empty()).await;
    assert_eq!((report.listening, report.troubles[0].why.as_str()), (0, "no such luck"));
    state.send_replace(BinderState::Open {
        networks: vec![],
        troubles: vec![],
        hints: vec!["look".to_owned()],
    });
    let report = until(&mut reports, |report| report.listening == 1).await;
    assert_eq!(report.troubles.len(), 1, "{report:?}");
    assert_eq!(report.troubles[0].service.as_deref(), Some("dns"));
    assert_eq!((report.place, report.hints), ("namespace", vec!["look".to_owned()]));

    let (asked, real) = made.lock().unwrap()[0];
    assert_eq!(asked, "198.18.0.1:80".parse().unwrap());
    let client = TcpStream::connect(real).await.unwrap();
    let PresenceEvent::Connection(accepted) = listeners.next().await else { panic!("a connection") };
    assert_eq!(accepted.service.as_str(), "camera");
    assert_eq!(accepted.client, client.local_addr().unwrap());
    assert_eq!(accepted.stream.local_addr().unwrap(), real);

    netmaps.send_replace(Arc::new(view(&[])));
    until(&mut reports, |report| report.listening == 0).await;
    let refused = TcpStream::connect(real).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn where_no_namespace_can_be_made_the_host_is_used_and_it_is_said() {
    let free =
        socket_binder::listen("127.0.0.1:0".parse().unwrap(), socket_binder::AddressRequirement::MustBeLocal)
            .unwrap();
    let taken = free.local_addr().unwrap();
    let state = watch::Sender::new(BinderState::Impossible { why: "no rights".to_owned() });
    let namespace = Arc::new(Pretended { state, made: Arc::default() });
    let policy = ListenPolicy { namespace: Some(namespace), host_instead: true, ..ListenPolicy::default() };
    let near = ("near", "127.18.0.1", taken.port(), ServiceProtocol::Udp);
    let busy = ("busy", "127.0.0.1", taken.port(), ServiceProtocol::Tcp);
    let far = ("far", "192.0.2.1", 80, ServiceProtocol::Tcp);
    let (_netmaps, netmap) = watch::channel(Arc::new(view(&[near, busy, far])));
    let (reporting, mut reports) = watch::channel(ListenersReport::default());
    let mut listeners = PresenceListeners::start(netmap, policy, GatewayMetrics::default(), reporting);
    let PresenceEvent::Datagrams(opened) = listeners.next().await else { panic!("datagrams") };
    assert_eq!(opened.socket.local_addr().unwrap().ip(), "127.18.0.1".parse::<IpAddr>().unwrap());

    let report = until(&mut reports, |report| report.listening == 1).await;
    let why = |service: Option<&str>| {
        let found = report.troubles.iter().find(|trouble| trouble.service.as_deref() == service);
        found.map(|trouble| trouble.why.clone()).unwrap_or_default()
    };
    assert_eq!((report.place, why(None).as_str()), ("host", "no rights"));
    assert!(why(Some("busy")).contains("taken by another program"), "{report:?}");
    assert!(why(Some("far")).contains("no address of this host"), "{report:?}");
    // The other program ends.
    drop(free);
    until(&mut reports, |report| report.listening == 2).await;
}

#[tokio::test]
async fn when_no_file_is_left_clients_wait_and_are_served_later() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let listener =
        socket_binder::listen("127.0.0.1:0".parse().unwrap(), socket_binder::AddressRequirement::MustBeLocal)
            .unwrap();
    let address = listener.local_addr().unwrap();
    let (arriving, mut arrivals) = mpsc::channel(8);
    let (metrics, closed) = (GatewayMetrics::default(), CancellationToken::new());
    let listener = TcpListener::from_std(listener).unwrap();
    let owner = ListenerOwner { service: "camera".into(), broker: None };
    // Made before: they need a file of their own.
    let client = tokio::net::TcpSocket::new_v4().unwrap();
    let before = getrlimit(Resource::Nofile);
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    // The next file is one too many. This test has its process for itself, as all have under nextest.
    setrlimit(Resource::Nofile, Rlimit { current: Some(next as u64), ..before }).unwrap();
    let accepting = tokio::spawn(accept_clients(listener, owner, arriving, metrics.clone(), closed.clone()));
    let _client = client.connect(address).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), async {
        while metrics.accept_failures.get() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let (failures, begin) = (metrics.accept_failures.get(), std::time::Instant::now());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let more = metrics.accept_failures.get() - failures;
    assert!(more <= 15 * (1 + begin.elapsed().as_millis() as u64 / 300), "it pauses: {more} more");
    setrlimit(Resource::Nofile, before).unwrap();
    let arrival = tokio::time::timeout(Duration::from_secs(10), arrivals.recv()).await.unwrap();
    assert!(matches!(arrival, Some(PresenceEvent::Connection(_))));
    closed.cancel();
    accepting.await.unwrap();
}

/// Opens ten thousand connections at once, none of which ends. Returns the largest number that were
/// polled for the first time between two polls of a task that existed before.
async fn most_between_turns(limit: Option<StartLimit>) -> usize {
    const CONNECTIONS: usize = 10_000;
    let (started, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (seen, worst) = (started.clone(), most.clone());
    let link = spawn_local(async move {
        while seen.get() < CONNECTIONS {
            let before = seen.get();
            yield_now().await;
            worst.set(worst.get().max(seen.get() - before));
        }
    });
    let accepting = spawn_local(async move {
        for _ in 0..CONNECTIONS {
            let started = started.clone();
            let connection = Box::pin(async move {
                started.set(started.get() + 1);
                std::future::pending::<()>().await;
            });
            match &limit {
                Some(limit) => drop(spawn_local(limit.permit().await.start(connection))),
                None => drop(spawn_local(connection)),
            }
        }
    });
    accepting.await.unwrap();
    link.await.unwrap();
    most.get()
}

#[tokio::test]
async fn a_link_has_its_turn_between_new_connections_however_many_come() {
    LocalSet::new()
        .run_until(async {
            let unlimited = most_between_turns(None).await;
            assert!(unlimited > 10 * STARTING_MAX, "{unlimited}: the test shows nothing");
            let limited = most_between_turns(Some(StartLimit::default())).await;
            assert!(limited <= 2 * STARTING_MAX, "{limited}");
        })
        .await;
}
