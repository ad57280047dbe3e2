//! The dialer against dead endpoints, blocked UDP, proxies, and somebody else's cloud.

use std::time::{Duration, Instant};

use causeway_channel::Transport;
use causeway_channel::dial::{AttemptError, DialConfig, DialError, Dialer, Proxy, Route, Transports, doubt};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::house::{House, soon};

/// An address where nobody listens: it was ours a moment ago.
async fn dead_address() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn where_both_work_quic_wins() {
    let house = House::new();
    let cloud = house.cloud().await;
    let dialer = house.dialer(&cloud);
    // On a machine that is very busy the head start may be over before the first packet is read.
    let mut link = soon(dialer.dial()).await.unwrap();
    for _ in 0..5 {
        if link.transport() != Transport::Quic {
            link = soon(dialer.dial()).await.unwrap();
        }
    }
    assert_eq!(link.transport(), Transport::Quic);
    let now = std::time::SystemTime::now();
    assert_eq!(doubt(&link, now), None);
    assert!(doubt(&link, std::time::UNIX_EPOCH).is_some(), "a clock of 1970 is noticed");
}

#[tokio::test]
async fn a_dead_first_endpoint_is_passed_over() {
    let house = House::new();
    let cloud = house.cloud().await;
    let endpoints = [&dead_address().await, &cloud.address.to_string()[..]];
    let begin = Instant::now();
    let link = soon(Dialer::new(house.dial_config(&endpoints)).dial()).await.unwrap();
    assert_eq!(link.remote_address(), cloud.address);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn where_udp_is_swallowed_tcp_connects() {
    let house = House::new();
    let (mut cloud, _silent) = house.cloud_without_udp().await;
    let begin = Instant::now();
    let link = soon(house.dialer(&cloud).dial()).await.unwrap();
    assert_eq!(link.transport(), Transport::Tcp);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    cloud.accept().await;
}

#[tokio::test]
async fn a_dial_that_fails_names_every_way_it_tried() {
    let house = House::new();
    let endpoint = dead_address().await;
    let mut config = house.dial_config(&[&endpoint]);
    config.attempt_max = Duration::from_millis(300);
    let error = soon(Dialer::new(config).dial()).await.err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains(&format!("{endpoint} over QUIC")) && text.contains(&format!("{endpoint} over TCP")),
        "{text}"
    );
    assert!(
        matches!(error.failed()[0].error, AttemptError::Connect(_)),
        "the refusal comes before the silence: {text}"
    );
    let nowhere = Dialer::new(house.dial_config(&[]));
    assert!(matches!(soon(nowhere.dial()).await, Err(DialError::NoEndpoint)));
}

#[tokio::test]
async fn another_fleets_cloud_is_recognised() {
    let (house, other) = (House::new(), House::new());
    let cloud = other.cloud().await;
    let error = soon(house.dialer(&cloud).dial()).await.err().unwrap();
    assert!(matches!(error.failed()[0].error, AttemptError::WrongAuthority), "{error}");
    assert!(error.failed().iter().any(|failed| matches!(failed.route, Some(Route::Quic(_)))), "{error}");
}

/// A proxy that speaks CONNECT, leads to `cloud` whatever is asked for, and wants to hear `authorization`.
async fn proxy(
    cloud: std::net::SocketAddr,
    authorization: Option<&'static str>,
) -> (String, tokio::task::JoinHandle<()>) {
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

async fn serve(client: TcpStream, cloud: std::net::SocketAddr, authorization: Option<&str>) {
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
    let house = House::new();
    let mut cloud = house.cloud().await;
    let name = format!("cloud.invalid:{}", cloud.address.port());
    // "Basic" and base64 of me:pass@word.
    let (address, task) = proxy(cloud.address, Some("Basic bWU6cGFzc0B3b3Jk")).await;
    let with = |url: String, transports| {
        let proxy = Some(Proxy::parse(&url).unwrap());
        Dialer::new(DialConfig { proxy, transports, ..house.dial_config(&[&name]) })
    };
    for transports in [Transports::TcpOnly, Transports::Both] {
        let link = soon(with(format!("http://me:pass%40word@{address}"), transports).dial()).await.unwrap();
        assert_eq!(link.transport(), Transport::Tcp);
        cloud.accept().await;
    }
    let error =
        soon(with(format!("http://me:wrong@{address}"), Transports::TcpOnly).dial()).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains("wants a user and a password") && !text.contains("wrong@"), "{text}");
    task.abort();
}
