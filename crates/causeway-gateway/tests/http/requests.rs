//! Forwarded requests: methods, bodies, trailers, versions, reused connections.

use std::sync::atomic::Ordering;

use causeway_gateway::audit::{AuditDecision, ConnectionEnd};
use causeway_gateway::proxy::http::ClientEntry;
use causeway_netmap::ServiceProtocol;
use http::Request;
use http_body_util::BodyExt;

use crate::backend;
use crate::client::{Client, Heard, Sent, nothing, raw, text};
use crate::lab::{Lab, Plan, eventually};

/// One row: over HTTP/1.1 and over HTTP/2 the response is the same.
async fn check(
    lab: &Lab,
    request: fn() -> http::request::Builder,
    body: fn() -> Sent,
    judge: fn(&Heard) -> bool,
) {
    for two in [false, true] {
        let mut client = match two {
            false => Client::one(lab.address).await,
            true => Client::two(lab.address).await,
        };
        let heard = client.ask(request(), body()).await;
        assert!(judge(&heard), "over HTTP/{}: {:?}: {heard:?}", 1 + u8::from(two), request().uri_ref());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_pass_as_they_are() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    check(&lab, || Request::get("/a?b=c"), nothing, |heard| heard.status == 200 && heard.body == "GET /a")
        .await;
    check(
        &lab,
        || Request::head("/a"),
        nothing,
        |heard| heard.body.is_empty() && heard.headers["content-length"] == "7",
    )
    .await;
    check(&lab, || Request::post("/echo"), || text("hello"), |heard| heard.body == "hello").await;
    check(&lab, || Request::put("/count"), || text(vec![0; 300_000]), |heard| heard.body == "300000").await;
    check(&lab, || Request::delete("/x"), nothing, |heard| heard.body == "DELETE /x").await;
    check(&lab, || Request::options("/x"), nothing, |heard| heard.body == "OPTIONS /x").await;
    check(
        &lab,
        || Request::get("/status/204"),
        nothing,
        |heard| heard.status == 204 && heard.body.is_empty(),
    )
    .await;
    check(
        &lab,
        || Request::get("/status/304"),
        nothing,
        |heard| heard.status == 304 && heard.body.is_empty(),
    )
    .await;
    // Without a length: chunked over HTTP/1.1.
    check(
        &lab,
        || Request::post("/count"),
        || backend::Zeros(200_000).boxed_unsync(),
        |heard| heard.body == "200000",
    )
    .await;
    check(
        &lab,
        || Request::post("/early"),
        || text("x"),
        |heard| heard.status == 413 && heard.body == "no more",
    )
    .await;
    // Trailers in both directions.
    let with_te = || Request::get("/trailers").header("te", "trailers");
    check(&lab, with_te, nothing, |heard| {
        heard.body == "body" && heard.trailers.as_ref().is_some_and(|trailers| trailers["x-sum"] == "42")
    })
    .await;
    let post = || Request::post("/echo").header("te", "trailers").header("trailer", "x-mine");
    check(
        &lab,
        post,
        || backend::trailing("x-mine", "7"),
        |heard| {
            let trailers = heard.trailers.as_ref();
            heard.body == "body" && trailers.is_some_and(|trailers| trailers["x-mine"] == "7")
        },
    )
    .await;

    eventually("every request has a record at each end", || {
        lab.at_oslo.len() == 24 && lab.at_berlin.len() == 24
    })
    .await;
    for record in lab.at_oslo.records().iter().chain(&lab.at_berlin.records()) {
        assert_eq!((record.decision, record.end), (AuditDecision::Allow, ConnectionEnd::Done), "{record:?}");
        assert_eq!((record.protocol, record.rule.as_deref()), ("http", Some("p")));
        assert!(record.method.is_some() && record.status.is_some());
        assert!(record.client.as_ref().unwrap().starts_with("127.0.0.1:"), "{record:?}");
        assert!(!record.path.as_ref().unwrap().contains('?'));
    }
    let put = |records: Vec<causeway_gateway::audit::AuditRecord>| {
        records.into_iter().find(|record| record.method.as_deref() == Some("PUT")).unwrap()
    };
    for record in [put(lab.at_oslo.records()), put(lab.at_berlin.records())] {
        assert_eq!((record.sent_bytes, record.received_bytes), (300_000, 6), "{record:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_sees_who_asked_and_nothing_of_the_hops_before() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let request = Request::get("/head?q=1")
        .header("connection", "x-drop, keep-alive")
        .header("x-drop", "1")
        .header("x-keep", "2")
        .header("x-forwarded-for", "6.6.6.6")
        .header("causeway-client", "6.6.6.6:6")
        .header("cookie", "a=1");
    let heard = Client::one(lab.address).await.ask(request, nothing()).await;
    let lines: Vec<&str> = heard.body.lines().collect();
    assert_eq!(lines[0], "GET /head?q=1 HTTP/1.1");
    for line in ["host: web.example", "x-keep: 2", "cookie: a=1", "x-forwarded-for: 6.6.6.6, 127.0.0.1"] {
        assert!(lines.contains(&line), "{line} is not in {lines:?}");
    }
    assert!(lines.contains(&"x-forwarded-proto: http") && lines.contains(&"x-forwarded-host: web.example"));
    assert!(lines.iter().any(|line| line.starts_with("traceparent: 00-")), "{lines:?}");
    for gone in ["x-drop", "causeway-", "connection", "keep-alive"] {
        assert!(!lines.iter().any(|line| line.starts_with(gone)), "{gone} is in {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_used_again() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let mut client = Client::one(lab.address).await;
    for _ in 0..20 {
        assert_eq!(client.ask(Request::get("/x"), nothing()).await.body, "GET /x");
    }
    // Sequential requests need one connection; a second one is allowed for one that was not ready in time.
    let connections = backend.seen.connections.load(Ordering::SeqCst);
    assert!(connections <= 3, "{connections} connections for 20 requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_closes_its_connections_is_asked_on_new_ones() {
    // The backend announces a persistent connection, and closes it.
    let backend = backend::scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let mut client = Client::one(lab.address).await;
    for _ in 0..20 {
        let heard = client.ask(Request::get("/x"), nothing()).await;
        assert_eq!((heard.status.as_u16(), heard.body.as_str()), (200, "ok"));
    }
    assert_eq!(backend.seen.requests.load(Ordering::SeqCst), 20, "none was sent twice for nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_passes_with_its_trailers_and_both_ways_at_once() {
    for protocol in [ServiceProtocol::Grpc, ServiceProtocol::Http] {
        let backend = backend::start().await;
        let lab = Lab::new(Plan { protocol, ..Plan::new(backend.address) }).await;
        let call = || {
            Request::post("/svc.Echo/Call")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
        };
        let mut client = Client::two(lab.address).await;
        let unary = client.ask(call(), text(&b"\0\0\0\0\x02hi"[..])).await;
        assert_eq!(unary.body, "\0\0\0\0\u{2}hi");
        assert_eq!(unary.trailers.unwrap()["grpc-status"], "0");
        // The second message is sent after the first was echoed.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|data: bytes::Bytes| (Ok(hyper::body::Frame::data(data)), receiver))
        });
        let body = http_body_util::StreamBody::new(frames).boxed_unsync();
        let mut response = client.send(call(), body).await;
        for word in ["one", "two", "three"] {
            sender.send(bytes::Bytes::from(word)).await.unwrap();
            let frame = crate::lab::within(response.body_mut().frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), word);
        }
        drop(sender);
        let last = crate::lab::within(response.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(last.into_trailers().unwrap()["grpc-status"], "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_entry_knows_its_names() {
    let backend = backend::start().await;
    let lab = Lab::at(Plan::new(backend.address), ClientEntry::Entry).await;
    let ask = |host: &'static str| {
        let says = format!("GET /x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        async move { raw(lab.address, says.as_bytes()).await }
    };
    let known = ask("WEB.example:8080").await;
    assert!(known.starts_with("HTTP/1.1 200") && known.ends_with("GET /x"), "{known}");
    let unknown = ask("other.example").await;
    assert!(
        unknown.starts_with("HTTP/1.1 404") && unknown.contains("no service has the name other.example"),
        "{unknown}"
    );
}
