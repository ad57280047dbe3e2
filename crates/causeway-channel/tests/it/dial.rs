//! The dialer against dead endpoints, blocked UDP, proxies, and another cloud.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use causeway_channel::Transport;
use causeway_channel::dial::{
    AttemptError, ConnectProxy, DialConfig, DialError, DialRoute, DialTransports, LinkDialer, doubt,
};
use causeway_channel::link::{Link, LinkLimits, LinkSide};
use causeway_channel::tcp;
use causeway_channel::tls::TrustAnchors;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::stage::{Authority, Stage, within};

fn config(authority: &Authority, endpoints: &[&str]) -> DialConfig {
    let endpoints = endpoints.iter().map(|text| text.parse().unwrap()).collect();
    DialConfig::new(endpoints, TrustAnchors::Bundle(authority.bundle()), authority.gateway("g1"))
}

fn dialer(stage: &Stage) -> LinkDialer {
    LinkDialer::new(config(&stage.authority, &[&stage.address.to_string()]))
}

/// An address without a listener: it was ours a moment ago.
async fn dead_address() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn where_both_work_quic_wins() {
    let stage = Stage::new().await;
    let dialer = dialer(&stage);
    // On a machine that is very busy the head start may be over before the first packet is read.
    let mut link = within(dialer.dial()).await.unwrap();
    for _ in 0..5 {
        if link.transport() != Transport::Quic {
            link = within(dialer.dial()).await.unwrap();
        }
    }
    assert_eq!(link.transport(), Transport::Quic);
    let now = std::time::SystemTime::now();
    assert_eq!(doubt(&link, now), None);
    assert!(doubt(&link, std::time::UNIX_EPOCH).is_some(), "a clock of 1970 is noticed");
}

#[tokio::test]
async fn a_dead_first_endpoint_is_passed_over() {
    let stage = Stage::new().await;
    let endpoints = [&dead_address().await, &stage.address.to_string()[..]];
    let begin = Instant::now();
    let link = within(LinkDialer::new(config(&stage.authority, &endpoints)).dial()).await.unwrap();
    assert_eq!(link.remote_address(), stage.address);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn where_udp_is_swallowed_tcp_connects() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A firewall drops UDP: the port is bound, and no response comes.
    let _silent = std::net::UdpSocket::bind(address).unwrap();
    let accepted = tokio::spawn(accept(listener, TlsAcceptor::from(authority.server().load_full())));
    let begin = Instant::now();
    let link = within(LinkDialer::new(config(&authority, &[&address.to_string()])).dial()).await.unwrap();
    assert_eq!(link.transport(), Transport::Tcp);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    within(accepted).await.unwrap();
}

#[tokio::test]
async fn an_edge_with_several_addresses_dials_from_the_one_it_is_told() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = tokio::net::UdpSocket::bind(address).await.unwrap();
    let from = Some("127.1.2.3".parse().unwrap());
    let dialer = LinkDialer::new(DialConfig { from, ..config(&authority, &[&address.to_string()]) });
    let dialling = tokio::spawn(async move { dialer.dial().await });
    let (_, by_udp) = within(silent.recv_from(&mut [0; 2048])).await.unwrap();
    let (_, by_tcp) = within(listener.accept()).await.unwrap();
    assert_eq!([Some(by_udp.ip()), Some(by_tcp.ip())], [from, from]);
    dialling.abort();
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor) -> Link {
    let (socket, _) = listener.accept().await.unwrap();
    let connection = acceptor.accept(tcp::prepare(socket, LinkSide::Accepted).unwrap()).await.unwrap();
    tcp::over_tls(connection.into(), LinkSide::Accepted, &LinkLimits::default()).unwrap().into()
}

#[tokio::test]
async fn a_dial_that_fails_names_every_way_it_tried() {
    let authority = Authority::new();
    let endpoint = dead_address().await;
    let attempt_max = Duration::from_millis(300);
    let dialer = LinkDialer::new(DialConfig { attempt_max, ..config(&authority, &[&endpoint]) });
    let error = within(dialer.dial()).await.err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains(&format!("{endpoint} over QUIC")) && text.contains(&format!("{endpoint} over TCP")),
        "{text}"
    );
    assert!(
        matches!(error.failed()[0].error, AttemptError::Connect(_)),
        "the refusal comes before the silence: {text}"
    );
    let nowhere = LinkDialer::new(config(&authority, &[]));
    assert!(matches!(within(nowhere.dial()).await, Err(DialError::NoEndpoint)));
}

#[tokio::test]
async fn another_fleets_cloud_is_recognised() {
    let stage = Stage::new().await;
    let dialer = LinkDialer::new(config(&Authority::new(), &[&stage.address.to_string()]));
    let error = within(dialer.dial()).await.err().unwrap();
    assert!(matches!(error.failed()[0].error, AttemptError::WrongAuthority), "{error}");
    assert!(error.failed().iter().any(|failed| matches!(failed.route, Some(DialRoute::Quic(_)))), "{error}");
}

/// A proxy that implements CONNECT, leads to `cloud` whatever is requested, and requires `authorization`.
async fn proxy(cloud: SocketAddr, authorization: Option<&'static str>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(client, cloud, authorization));
        }
    });
    (address, task)
}

async fn serve(client: TcpStream, cloud: SocketAddr, authorization: Option<&str>) {
    let mut client = BufReader::new(client);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        client.read_line(&mut line).await.unwrap();
        if line.trim_end().is_empty() {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    assert_eq!(head[0], format!("CONNECT cloud.invalid:{} HTTP/1.1", cloud.port()));
    let given = head.iter().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    if given != authorization {
        let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        return client.write_all(answer).await.unwrap();
    }
    let mut server = TcpStream::connect(cloud).await.unwrap();
    client.write_all(b"HTTP/1.1 200 Connection established\r\nVia: a test\r\n\r\n").await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_proxy_leads_to_a_cloud_whose_name_only_the_proxy_knows() {
    let mut stage = Stage::new().await;
    let name = format!("cloud.invalid:{}", stage.address.port());
    // "Basic" and base64 of me:pass@word.
    let (address, task) = proxy(stage.address, Some("Basic bWU6cGFzc0B3b3Jk")).await;
    let config = config(&stage.authority, &[&name]);
    let with = |url: String, transports| {
        let proxy = Some(ConnectProxy::parse(&url).unwrap());
        LinkDialer::new(DialConfig { proxy, transports, ..config.clone() })
    };
    for transports in [DialTransports::TcpOnly, DialTransports::Both] {
        let link = within(with(format!("http://me:pass%40word@{address}"), transports).dial()).await.unwrap();
        assert_eq!(link.transport(), Transport::Tcp);
        within(stage.links.recv()).await.unwrap();
    }
    let error = within(with(format!("http://me:wrong@{address}"), DialTransports::TcpOnly).dial())
        .await
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(text.contains("requires a user and a password") && !text.contains("wrong@"), "{text}");
    task.abort();
}
