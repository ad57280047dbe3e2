//! Long requests: large bodies, waiting, upgrades, and clients that disconnect.

use std::sync::atomic::Ordering;

use causeway_gateway::audit::ConnectionEnd;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::backend::{self, BIG_BYTES};
use crate::client::{Client, nothing};
use crate::lab::{Lab, Plan, eventually, rule, within};

/// Returns the resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_stream_both_ways_in_little_memory() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let mut client = Client::one(lab.address).await;
    client.ask(Request::get("/x"), nothing()).await;
    let before = resident_bytes();
    let mut most = before;
    let mut response = client.send(Request::get("/big"), nothing()).await;
    let mut received = 0;
    while let Some(frame) = within(response.body_mut().frame()).await {
        received += frame.unwrap().data_ref().map_or(0, |data| data.len() as u64);
        most = most.max(resident_bytes());
    }
    assert_eq!(received, BIG_BYTES);
    let heard = client.ask(Request::post("/count"), backend::Zeros(BIG_BYTES).boxed_unsync()).await;
    assert_eq!(heard.body, BIG_BYTES.to_string());
    most = most.max(resident_bytes());
    assert!(most - before < 32 << 20, "it took {} KiB for {BIG_BYTES} bytes", (most - before) >> 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_holds_up_nobody_else() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let mut slow = Client::two(lab.address).await;
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(slow.send(Request::get("/big"), nothing()).await);
    }
    let mut quick = Client::one(lab.address).await;
    for _ in 0..10 {
        assert_eq!(quick.ask(Request::get("/x"), nothing()).await.body, "GET /x");
    }
    let received = || lab.oslo.context().live.all().iter().map(|entry| entry.meter.received()).max();
    assert!(received().unwrap() < BIG_BYTES / 4, "somebody keeps what nobody reads: {:?}", received());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_waits_until_the_backend_wants_it() {
    // A backend that refuses without reading the body: the client must not get 100 Continue.
    let refusing =
        backend::scripted(b"HTTP/1.1 417 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let wanting = backend::start().await;
    for (backend, expected) in
        [(&refusing, "HTTP/1.1 417"), (&wanting, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")]
    {
        let lab = Lab::new(Plan::new(backend.address)).await;
        let mut socket = TcpStream::connect(lab.address).await.unwrap();
        let head = b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
        socket.write_all(head).await.unwrap();
        let mut heard = Vec::new();
        while !heard.windows(4).any(|window| window == b"\r\n\r\n") {
            assert!(within(socket.read_buf(&mut heard)).await.unwrap() > 0);
        }
        if heard.starts_with(b"HTTP/1.1 100") {
            socket.write_all(b"hello").await.unwrap();
        }
        let _ = within(socket.read_to_end(&mut heard)).await;
        let heard = String::from_utf8(heard).unwrap();
        assert!(heard.starts_with(expected), "{heard}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_becomes_a_tunnel() {
    let backend = backend::start().await;
    let rules = vec![rule(&["GET"], &["/upgrade"])];
    let lab = Lab::new(Plan { rules, ..Plan::new(backend.address) }).await;
    let mut client = Client::one(lab.address).await;
    let request = Request::get("/upgrade")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("x", "y");
    let mut response = client.send(request, nothing()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["upgrade"]),
        (101, &"websocket".parse().unwrap())
    );
    let mut tunnel = TokioIo::new(within(hyper::upgrade::on(&mut response)).await.unwrap());
    for word in [b"one", b"two"] {
        tunnel.write_all(word).await.unwrap();
        let mut echo = [0; 3];
        within(tunnel.read_exact(&mut echo)).await.unwrap();
        assert_eq!(&echo, word);
    }
    tunnel.shutdown().await.unwrap();
    assert_eq!(within(tunnel.read(&mut [0; 8])).await.unwrap(), 0, "the end comes back");
    eventually("recorded at both ends", || lab.at_oslo.len() == 1 && lab.at_berlin.len() == 1).await;
    for record in [lab.at_oslo.records(), lab.at_berlin.records()].concat() {
        assert_eq!((record.status, record.end), (Some(101), ConnectionEnd::Done), "{record:?}");
        assert_eq!((record.sent_bytes, record.received_bytes), (6, 6));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_over_http2_are_tunnels_beside_requests() {
    let backend = backend::start().await;
    let mut lab = Lab::new(Plan::new(backend.address)).await;
    let mut client = Client::two(lab.address).await;
    // The server's settings have arrived with this: extended CONNECT is known.
    assert_eq!(client.ask(Request::get("/x"), nothing()).await.body, "GET /x");
    let websocket = |path: &str| {
        let protocol = hyper::ext::Protocol::from_static("websocket");
        Request::connect(path).extension(protocol).header("sec-websocket-version", "13")
    };
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut response = client.send(websocket("/upgrade"), nothing()).await;
        assert_eq!(response.status().as_u16(), 200);
        assert!(!response.headers().contains_key("upgrade"));
        tunnels.push(TokioIo::new(within(hyper::upgrade::on(&mut response)).await.unwrap()));
    }
    for (tunnel, word) in tunnels.iter_mut().zip([b"one", b"two"]) {
        tunnel.write_all(word).await.unwrap();
    }
    assert_eq!(client.ask(Request::get("/y"), nothing()).await.body, "GET /y", "requests go on beside them");
    for (tunnel, word) in tunnels.iter_mut().zip([b"one", b"two"]) {
        let mut echo = [0; 3];
        within(tunnel.read_exact(&mut echo)).await.unwrap();
        assert_eq!(&echo, word);
    }
    let plain = client.send(websocket("/x"), nothing()).await;
    assert_eq!(plain.status().as_u16(), 502, "a backend that answers and does not switch");
    let mut first = tunnels.remove(0);
    first.shutdown().await.unwrap();
    assert_eq!(within(first.read(&mut [0; 8])).await.unwrap(), 0, "the end comes back");
    let ended = |end: ConnectionEnd| {
        lab.at_oslo.records().iter().filter(|record| record.status == Some(101) && record.end == end).count()
    };
    eventually("the first is recorded", || ended(ConnectionEnd::Done) == 1).await;
    let first = lab.at_oslo.records().into_iter().find(|record| record.status == Some(101)).unwrap();
    assert_eq!((first.method.as_deref(), first.sent_bytes, first.received_bytes), (Some("GET"), 3, 3));

    lab.replan(Plan { allowed: (false, false), ..lab.plan.clone() }, true, true);
    let cut = within(tunnels[0].read(&mut [0; 8])).await;
    assert!(cut.is_err() || cut.is_ok_and(|bytes| bytes == 0));
    eventually("the second is recorded", || {
        lab.at_oslo
            .records()
            .iter()
            .any(|record| record.status == Some(101) && record.end == ConnectionEnd::Revoked)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_is_cut_with_its_right() {
    // Sent to one end alone; the other end learns it through the stream, with the reason.
    for (oslo, berlin) in [(true, false), (false, true)] {
        let backend = backend::start().await;
        let mut lab = Lab::new(Plan::new(backend.address)).await;
        let mut client = Client::one(lab.address).await;
        let request = Request::get("/upgrade").header("connection", "Upgrade").header("upgrade", "websocket");
        let mut response = client.send(request, nothing()).await;
        let mut tunnel = TokioIo::new(within(hyper::upgrade::on(&mut response)).await.unwrap());
        lab.replan(Plan { allowed: (!oslo, !berlin), ..lab.plan.clone() }, oslo, berlin);
        let ended = within(tunnel.read(&mut [0; 8])).await;
        assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0));
        let journal = if oslo { &lab.at_oslo } else { &lab.at_berlin };
        eventually("it is recorded", || journal.len() == 1 && lab.at_oslo.len() == 1).await;
        assert_eq!(lab.at_oslo.records()[0].end, ConnectionEnd::Revoked, "told to oslo: {oslo}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_takes_its_request_along() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    for two in [false, true] {
        let before = backend.seen.requests.load(Ordering::SeqCst);
        let mut client = if two { Client::two(lab.address).await } else { Client::one(lab.address).await };
        let hanging = tokio::spawn(async move {
            let _ = client.try_send(Request::get("/hang"), nothing()).await;
        });
        eventually("it is with the backend", || backend.seen.requests.load(Ordering::SeqCst) > before).await;
        hanging.abort();
        let gone = before + 1;
        eventually("the backend notices", || backend.seen.dropped.load(Ordering::SeqCst) == gone).await;
    }
    eventually("recorded at both ends", || lab.at_oslo.len() == 2 && lab.at_berlin.len() == 2).await;
    for record in lab.at_oslo.records() {
        assert_eq!(record.end, ConnectionEnd::ClientReset, "{record:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_all_its_streams_is_told_so_and_keeps_no_other_out() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan { client_streams_max: 2, ..Plan::new(backend.address) }).await;
    // Each tunnel has a stream of its own.
    let open = async |source: &str| {
        let mut client = Client::one_from(source, lab.address).await;
        let request = Request::get("/upgrade").header("connection", "Upgrade").header("upgrade", "websocket");
        let response = client.send(request, nothing()).await;
        (response.status().as_u16(), client, response)
    };
    let first = open("127.0.0.1").await;
    let second = open("127.0.0.1").await;
    assert_eq!((first.0, second.0), (101, 101));
    let third = open("127.0.0.1").await;
    assert_eq!(third.0, 503);
    assert_eq!(third.2.headers()["causeway-refusal"], "full");
    eventually("the refusal is recorded", || {
        lab.at_oslo.records().iter().any(|record| record.end == ConnectionEnd::Limit)
    })
    .await;
    let mut metrics = prometheus_client::registry::Registry::default();
    lab.oslo.register(&mut metrics);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();
    assert!(text.contains("causeway_gateway_refused_total{reason=\"full\"} 1"), "{text}");
    assert_eq!(open("127.0.0.2").await.0, 101, "another client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_begins_to_drain_ends_its_streams_after_the_requests_on_them() {
    let backend = backend::start().await;
    let mut lab = Lab::new(Plan::new(backend.address)).await;
    let plan = lab.plan.clone();
    let streams = |lab: &Lab| lab.link().stats().streams_open;
    let mut client = Client::one(lab.address).await;
    assert_eq!(client.ask(Request::get("/a"), nothing()).await.status, 200);
    assert_eq!(streams(&lab), 1, "the stream waits for the next request");
    lab.replan(Plan { drain: true, ..plan.clone() }, false, true);
    eventually("the idle stream has ended", || streams(&lab) == 0).await;
    // The cloud has not heard of the drain yet: the gateway goes on serving.
    assert_eq!(client.ask(Request::get("/a"), nothing()).await.status, 200);

    lab.replan(plan.clone(), false, true);
    let busy = client.send(Request::get("/big"), nothing()).await;
    lab.replan(Plan { drain: true, ..plan }, false, true);
    let mut other = Client::one(lab.address).await;
    assert_eq!(other.ask(Request::get("/a"), nothing()).await.status, 200);
    let body = within(busy.into_body().collect()).await.unwrap().to_bytes();
    assert_eq!(body.len(), backend::BIG_BYTES as usize, "a response on its way is not cut");
}
