//! DNS over real sockets: UDP and TCP, EDNS, truncated answers, upstream reachable and unreachable, changing
//! addresses.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use causeway_gateway::dns::{DnsOptions, DnsServer, DnsState, ForwardTimeouts};
use causeway_netmap::{
    DnsName, GatewayEntry, Generation, NetmapEntry, NetmapView, PolicyEntry, PresenceEntry, PresenceIp,
    ServiceProtocol,
};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);

/// A site `oslo` that may use `camera`, which has `addresses` addresses.
fn view(addresses: u8, gateway_ip: Option<&str>) -> Arc<NetmapView> {
    let facts = [
        NetmapEntry::Gateway(GatewayEntry {
            ip: gateway_ip.map(|ip| ip.parse().unwrap()),
            presence_cidrs: vec!["198.18.0.0/16".parse().unwrap()],
            ..GatewayEntry::named("oslo-1", "oslo")
        }),
        NetmapEntry::Presence(PresenceEntry {
            service: "camera".into(),
            addresses: (1..=addresses).map(|last| PresenceIp(IpAddr::from([198, 18, 0, last]))).collect(),
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: vec![DnsName::new("camera.berlin.causeway.internal")],
            service_site: "berlin".into(),
            policies: vec!["guests".into()],
        }),
        NetmapEntry::Policy(PolicyEntry {
            name: "guests".into(),
            servers: vec![],
            sites: vec!["oslo".into()],
            limits: None,
            http: vec![],
            ports: Vec::new(),
        }),
    ];
    Arc::new(NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, &facts).unwrap())
}

struct Lab {
    netmaps: watch::Sender<Arc<NetmapView>>,
    state: watch::Receiver<DnsState>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Lab {
    fn start(view: Arc<NetmapView>, options: DnsOptions) -> Lab {
        let (netmaps, receiver) = watch::channel(view);
        let dns = DnsServer::new(receiver, options);
        let (state, stop) = (dns.state(), CancellationToken::new());
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { dns.run(stop).await }
        });
        Lab { netmaps, state, stop, running }
    }

    async fn until(&mut self, fits: impl FnMut(&DnsState) -> bool) -> DnsState {
        timeout(DEADLINE, self.state.wait_for(fits)).await.expect("in time").unwrap().clone()
    }

    async fn address(&mut self) -> SocketAddr {
        self.until(|state| !state.listening.is_empty()).await.listening[0]
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(DEADLINE, self.running).await.expect("it stops").unwrap();
    }
}

fn options(upstreams: Vec<SocketAddr>) -> DnsOptions {
    DnsOptions {
        listen: Some(vec!["127.0.0.1:0".parse().unwrap()]),
        upstreams: Some(upstreams),
        patience: ForwardTimeouts { for_one: Duration::from_millis(400), for_all: Duration::from_secs(1) },
        ..DnsOptions::default()
    }
}

fn question(name: &str, kind: RecordType, edns: Option<u16>) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
    if let Some(payload) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message
}

async fn over_udp(server: SocketAddr, question: &Message) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let length = timeout(DEADLINE, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(
        (answer.metadata.id, answer.metadata.message_type),
        (question.metadata.id, MessageType::Response)
    );
    answer
}

async fn exchange(stream: &mut TcpStream, question: &Message) -> Message {
    let bytes = question.to_vec().unwrap();
    stream.write_u16(bytes.len() as u16).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let length = timeout(DEADLINE, stream.read_u16()).await.expect("an answer").unwrap();
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await.unwrap();
    Message::from_vec(&bytes).unwrap()
}

async fn over_tcp(server: SocketAddr, question: &Message) -> Message {
    exchange(&mut TcpStream::connect(server).await.unwrap(), question).await
}

/// Answers every query with a text, and `big.` with one that fits no datagram.
async fn fake_upstream() -> (SocketAddr, tokio::task::JoinSet<()>) {
    // A port that is free for UDP may be taken for TCP.
    let (socket, listener) = loop {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()).await {
            break (socket, listener);
        }
    };
    let address = socket.local_addr().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let answer = told(&buffer[..length]);
            let answer = if answer.to_vec().unwrap().len() > 512 { answer.truncate() } else { answer };
            // First a datagram for another query: it must be ignored.
            let mut lie = answer.clone();
            lie.metadata.id ^= 0x55;
            socket.send_to(&lie.to_vec().unwrap(), client).await.unwrap();
            socket.send_to(&answer.to_vec().unwrap(), client).await.unwrap();
        }
    });
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut bytes).await.unwrap();
            let answer = told(&bytes).to_vec().unwrap();
            stream.write_u16(answer.len() as u16).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    (address, tasks)
}

fn told(question: &[u8]) -> Message {
    let question = Message::from_vec(question).unwrap();
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.queries = question.queries.clone();
    let name = question.queries[0].name().clone();
    let count = if name.to_ascii() == "big." { 30 } else { 1 };
    for number in 0..count {
        let text = TXT::new(vec![format!("{number:0>100}")]);
        answer.add_answer(Record::from_rdata(name.clone(), 60, RData::TXT(text)));
    }
    answer
}

#[tokio::test]
async fn names_are_answered_over_udp_and_tcp() {
    let mut lab = Lab::start(view(2, None), options(vec![]));
    let server = lab.address().await;
    let asked = question("camera.berlin.causeway.internal.", RecordType::A, Some(1232));
    for answer in [over_udp(server, &asked).await, over_tcp(server, &asked).await] {
        let addresses: Vec<String> = answer.answers.iter().map(|record| record.data.to_string()).collect();
        assert_eq!(addresses, ["198.18.0.1", "198.18.0.2"]);
        assert!(answer.metadata.authoritative && answer.edns.is_some());
    }
    // Several queries on one connection.
    let mut stream = TcpStream::connect(server).await.unwrap();
    for name in ["nothing.causeway.internal.", "camera.rome.causeway.internal."] {
        let answer = exchange(&mut stream, &question(name, RecordType::A, None)).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
        assert!(answer.edns.is_none());
    }
    // A change of the netmap applies at once.
    lab.netmaps.send_replace(view(1, None));
    assert_eq!(over_udp(server, &asked).await.answers.len(), 1);
    lab.end().await;
    assert!(TcpStream::connect(server).await.is_err(), "nothing is left behind");
}

#[tokio::test]
async fn what_does_not_fit_is_asked_for_again_over_tcp() {
    let mut lab = Lab::start(view(200, None), options(vec![]));
    let server = lab.address().await;
    for edns in [None, Some(512), Some(4096)] {
        let asked = question("camera.berlin.causeway.internal.", RecordType::A, edns);
        let short = over_udp(server, &asked).await;
        assert!(short.metadata.truncation && short.answers.is_empty());
        let whole = over_tcp(server, &asked).await;
        assert!(!whole.metadata.truncation && whole.answers.len() == 200);
    }
    lab.end().await;
}

#[tokio::test]
async fn other_names_are_asked_for_upstream() {
    let (upstream, mut tasks) = fake_upstream().await;
    // The first upstream is unreachable: it costs its timeout, no more.
    let away = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut lab = Lab::start(view(1, None), options(vec![away.local_addr().unwrap(), upstream]));
    let server = lab.address().await;
    for edns in [None, Some(1232)] {
        let answer = over_udp(server, &question("example.com.", RecordType::TXT, edns)).await;
        assert_eq!((answer.metadata.response_code, answer.answers.len()), (ResponseCode::NoError, 1));
    }
    let big = question("big.", RecordType::TXT, None);
    assert!(over_udp(server, &big).await.metadata.truncation);
    assert_eq!(over_tcp(server, &big).await.answers.len(), 30);
    // Names of the netmap are never forwarded, and are answered without upstream.
    tasks.shutdown().await;
    drop(away);
    let failed = over_udp(server, &question("example.com.", RecordType::A, None)).await;
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    let ours = over_udp(server, &question("camera.berlin.causeway.internal.", RecordType::A, None)).await;
    assert_eq!(ours.answers.len(), 1);
    lab.end().await;
}

#[tokio::test]
async fn a_silent_upstream_is_a_failure_in_time_and_holds_up_nobody() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut lab = Lab::start(view(1, None), options(vec![silent.local_addr().unwrap()]));
    let server = lab.address().await;
    let waiting =
        tokio::spawn(async move { over_udp(server, &question("example.com.", RecordType::A, None)).await });
    let mut buffer = [0; 512];
    timeout(DEADLINE, silent.recv(&mut buffer)).await.expect("it is asked").unwrap();
    let ours = over_udp(server, &question("camera.berlin.causeway.internal.", RecordType::A, None)).await;
    assert_eq!(ours.answers.len(), 1);
    assert_eq!(waiting.await.unwrap().metadata.response_code, ResponseCode::ServFail);
    lab.end().await;
}

#[tokio::test]
async fn we_are_not_our_own_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let resolv_conf: PathBuf = folder.path().join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 127.0.0.1\nnameserver 192.0.2.1\n").unwrap();
    let mut lab = Lab::start(view(1, None), DnsOptions { upstreams: None, resolv_conf, ..options(vec![]) });
    lab.address().await;
    // Port 53 of loopback belongs to another program: we listen on another port.
    let seen: Vec<String> = lab.state.borrow().upstreams.iter().map(ToString::to_string).collect();
    assert_eq!(seen, ["127.0.0.1:53", "192.0.2.1:53"]);
    lab.end().await;

    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut lab = Lab::start(view(1, None), DnsOptions { listen: Some(vec![free]), ..options(vec![free]) });
    lab.address().await;
    assert!(lab.state.borrow().upstreams.is_empty());
    let failed = over_udp(free, &question("example.com.", RecordType::A, None)).await;
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    lab.end().await;
}

#[tokio::test]
async fn an_address_that_cannot_be_had_is_a_finding_until_it_can() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let foreign: SocketAddr = "192.0.2.1:5353".parse().unwrap();
    let mut lab =
        Lab::start(view(1, None), DnsOptions { listen: Some(vec![address, foreign]), ..options(vec![]) });
    let state = lab.until(|state| state.findings.len() == 2).await;
    assert_eq!(state.findings[0].why, "another program has the port");
    assert_eq!(state.findings[1].why, "this host does not have the address");
    drop(taken);
    lab.until(|state| state.listening == [address]).await;
    lab.end().await;
}

#[tokio::test]
async fn noise_is_survived() {
    let mut lab = Lab::start(view(1, None), options(vec![]));
    let server = lab.address().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for noise in [&b""[..], b"x", &[0xff; 64], &[0; 4096]] {
        socket.send_to(noise, server).await.unwrap();
    }
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(&[0xff; 64]).await.unwrap();
    let mut rest = Vec::new();
    // Closed or reset: both are an end.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("it is over");
    assert!(rest.is_empty());
    let asked = question("camera.berlin.causeway.internal.", RecordType::A, None);
    assert_eq!(over_udp(server, &asked).await.answers.len(), 1);
    lab.end().await;
}

/// Answers the name `good.example` and leaves every other query unanswered.
async fn picky_upstream() -> (SocketAddr, JoinHandle<()>) {
    let (socket, listener) = loop {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()).await {
            break (socket, listener);
        }
    };
    let address = socket.local_addr().unwrap();
    let reply = |bytes: &[u8]| {
        let question = Message::from_vec(bytes).ok()?;
        let asked = question.queries.first()?.clone();
        (asked.name() == &Name::from_str("good.example.").unwrap()).then_some(())?;
        let mut answer = Message::response(question.metadata.id, OpCode::Query);
        answer.metadata.response_code = ResponseCode::NoError;
        answer.add_query(asked);
        answer.to_vec().ok()
    };
    let task = tokio::spawn(async move {
        let datagrams = async {
            let mut buffer = vec![0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                if let Some(answer) = reply(&buffer[..length]) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        };
        let connections = async {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Ok(length) = stream.read_u16().await else { continue };
                let mut message = vec![0; length.into()];
                stream.read_exact(&mut message).await.unwrap();
                if let Some(answer) = reply(&message) {
                    stream.write_u16(answer.len() as u16).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        };
        tokio::join!(datagrams, connections);
    });
    (address, task)
}

#[tokio::test]
async fn a_client_with_all_its_questions_under_way_starves_no_other() {
    let (upstream, task) = picky_upstream().await;
    let patience = ForwardTimeouts { for_one: DEADLINE, for_all: DEADLINE };
    let mut lab = Lab::start(view(1, None), DnsOptions { patience, ..options(vec![upstream]) });
    let server = lab.address().await;
    let ask = async |from: &str, name: &str| {
        let socket = UdpSocket::bind((from, 0)).await.unwrap();
        socket.connect(server).await.unwrap();
        socket.send(&question(name, RecordType::A, None).to_vec().unwrap()).await.unwrap();
        socket
    };
    let answer = async |socket: &UdpSocket| {
        let mut buffer = [0; 4096];
        let length = timeout(DEADLINE, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    };
    // Unanswered queries, until the client has used its share.
    let greedy = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    greedy.connect(server).await.unwrap();
    let hopeless = question("bad.example.", RecordType::A, None).to_vec().unwrap();
    let told = timeout(DEADLINE, async {
        let mut buffer = [0; 4096];
        loop {
            tokio::select! {
                biased;
                length = greedy.recv(&mut buffer) => break Message::from_vec(&buffer[..length.unwrap()]).unwrap(),
                sent = greedy.send(&hopeless) => drop(sent.unwrap()),
            }
        }
    });
    let told = told.await.expect("there is a bound");
    // Another client is not affected.
    let heard = answer(&ask("127.0.0.2", "good.example.").await).await;
    assert_eq!((heard.metadata.response_code, heard.metadata.truncation), (ResponseCode::NoError, false));
    // The first client is told to retry over TCP, where its address is verified: there it is answered.
    assert!(told.metadata.truncation, "{told:?}");
    let heard = over_tcp(server, &question("good.example.", RecordType::A, None)).await;
    assert_eq!(heard.metadata.response_code, ResponseCode::NoError);
    task.abort();
    lab.end().await;
}
