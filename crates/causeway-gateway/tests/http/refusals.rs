//! Refused requests: by policy, by form, and because a gateway or backend is unreachable.

use std::sync::atomic::Ordering;

use causeway_gateway::audit::{AuditDecision, ConnectionEnd};
use causeway_netmap::PolicyLimits;
use http::Request;
use http_body_util::BodyExt;
use tokio::net::TcpListener;

use crate::backend;
use crate::client::{Client, nothing, raw, text};
use crate::lab::{Lab, Plan, eventually, rule, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_about_methods_and_paths() {
    let backend = backend::start().await;
    let rules = vec![rule(&["GET"], &["/public/*"]), rule(&["POST"], &["/one"])];
    let lab = Lab::new(Plan { rules, ..Plan::new(backend.address) }).await;
    let mut client = Client::one(lab.address).await;
    for (method, path, expected) in [
        ("GET", "/public/a", Ok("GET /public/a")),
        ("GET", "//public//a", Ok("GET /public/a")),
        ("GET", "/x/../public/%61", Ok("GET /public/a")),
        ("POST", "/one", Ok("POST /one")),
        ("POST", "/public/a", Err(403)),
        ("GET", "/one", Err(403)),
        ("GET", "/public/../admin", Err(403)),
        ("GET", "/public/%2e%2e/admin", Err(403)),
        ("GET", "/public/..%2fadmin", Err(400)),
        ("GET", "/public/..;/admin", Err(400)),
        ("GET", "/public/%00", Err(400)),
    ] {
        let heard = client.ask(Request::builder().method(method).uri(path), nothing()).await;
        match expected {
            Ok(body) => assert_eq!((heard.status.as_u16(), heard.body.as_str()), (200, body), "{path}"),
            Err(status) => assert_eq!(heard.status.as_u16(), status, "{method} {path}: {heard:?}"),
        }
    }
    let requests = backend.seen.requests.load(Ordering::SeqCst);
    assert_eq!(requests, 4, "nothing else came to the backend");
    eventually("every request is recorded", || lab.at_oslo.len() == 11).await;
    let denied = lab.at_oslo.records().into_iter().find(|record| record.status == Some(403)).unwrap();
    assert_eq!((denied.decision, denied.end), (AuditDecision::Deny, ConnectionEnd::Refused));
    assert_eq!((denied.method.as_deref(), denied.path.as_deref()), (Some("POST"), Some("/public/a")));
    assert!(denied.reason.unwrap().contains("no rule allows POST"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_refuse_in_the_protocols_own_way() {
    let backend = backend::start().await;
    for allowed in [(false, true), (true, false)] {
        let lab = Lab::new(Plan { allowed, ..Plan::new(backend.address) }).await;
        let plain = Client::one(lab.address).await.ask(Request::get("/x"), nothing()).await;
        assert_eq!(plain.status.as_u16(), 403, "{plain:?}");
        assert_eq!(plain.headers["content-type"], "text/plain; charset=utf-8");
        assert_eq!(plain.headers["causeway-refusal"], "not-allowed");
        let json = Request::get("/x").header("accept", "application/json");
        let json = Client::two(lab.address).await.ask(json, nothing()).await;
        assert!(json.status == 403 && json.body.contains("\"reason\":\"not-allowed\""), "{json:?}");
        let grpc = Request::post("/svc/M").header("content-type", "application/grpc");
        let grpc = Client::two(lab.address).await.ask(grpc, text("x")).await;
        assert_eq!((grpc.status.as_u16(), &grpc.headers["grpc-status"]), (200, &"7".parse().unwrap()));
        eventually("every refusal is recorded", || lab.at_oslo.len() == 3).await;
        for record in lab.at_oslo.records() {
            assert_eq!(
                (record.decision, record.end),
                (AuditDecision::Deny, ConnectionEnd::Refused),
                "{record:?}"
            );
        }
        assert_eq!(backend.seen.requests.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_away_is_named() {
    // An address without a listener.
    let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let lab = Lab::new(Plan::new(nowhere)).await;
    let mut client = Client::one(lab.address).await;
    let down = client.ask(Request::get("/x"), nothing()).await;
    assert_eq!(
        (down.status.as_u16(), &down.headers["causeway-refusal"]),
        (502, &"backend-down".parse().unwrap())
    );
    eventually("recorded at both ends", || lab.at_oslo.len() == 1 && lab.at_berlin.len() == 1).await;
    for record in [lab.at_oslo.records(), lab.at_berlin.records()].concat() {
        assert_eq!((record.status, record.end), (Some(502), ConnectionEnd::BackendDown), "{record:?}");
    }
    lab.cut_line();
    let mut away = client.ask(Request::get("/x"), nothing()).await;
    // Open connections may still exist for a moment.
    while away.status == 502 {
        away = client.ask(Request::get("/x"), nothing()).await;
    }
    assert_eq!((away.status.as_u16(), &away.headers["retry-after"]), (503, &"1".parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_none_is_a_bad_gateway() {
    for says in [
        &b"nonsense\r\n\r\n"[..],
        b"",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ] {
        let backend = backend::scripted(says).await;
        let lab = Lab::new(Plan::new(backend.address)).await;
        let heard = Client::one(lab.address).await.ask(Request::post("/x"), text("x")).await;
        assert_eq!(heard.status.as_u16(), 502, "{heard:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_with_two_meanings_is_refused() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    for head in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ] {
        let heard = raw(lab.address, head.as_bytes()).await;
        assert!(heard.starts_with("HTTP/1.1 400"), "{head:?}: {heard:?}");
    }
    assert_eq!(backend.seen.requests.load(Ordering::SeqCst), 0, "nothing came through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_longer_allowed_is_cut() {
    // Sent to one end alone, so that each end is tested on its own.
    for (oslo, berlin) in [(true, false), (false, true)] {
        let backend = backend::start().await;
        let mut lab = Lab::new(Plan::new(backend.address)).await;
        let mut client = Client::one(lab.address).await;
        let mut response = client.send(Request::get("/big"), nothing()).await;
        within(response.body_mut().frame()).await.unwrap().unwrap();
        let plan = Plan { allowed: (!oslo, !berlin), ..lab.plan.clone() };
        lab.replan(plan, oslo, berlin);
        let mut broken = false;
        while let Some(frame) = within(response.body_mut().frame()).await {
            broken |= frame.is_err();
        }
        assert!(broken, "the body came to its end");
        eventually("it is recorded", || lab.at_oslo.len() == 1 && lab.at_berlin.len() == 1).await;
        // The gateway of the client gets the reason; the gateway of the service sees a cancelled request,
        // among other requests on the same stream.
        assert_eq!(lab.at_oslo.records()[0].end, ConnectionEnd::Revoked);
        let far = if oslo { ConnectionEnd::ClientReset } else { ConnectionEnd::Revoked };
        assert_eq!(lab.at_berlin.records()[0].end, far);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_taken_back_cuts_its_requests_alone() {
    let backend = backend::start().await;
    let rules = vec![rule(&[], &["/hang", "/x"])];
    let mut lab = Lab::new(Plan { rules, ..Plan::new(backend.address) }).await;
    let mut client = Client::one(lab.address).await;
    let hanging = tokio::spawn(async move { client.try_send(Request::get("/hang"), nothing()).await });
    eventually("it is with the backend", || backend.seen.requests.load(Ordering::SeqCst) == 1).await;
    let plan = Plan { rules: vec![rule(&[], &["/x"])], ..lab.plan.clone() };
    lab.replan(plan, true, false);
    let ended = within(hanging).await.unwrap();
    assert!(ended.is_err(), "it went on: {ended:?}");
    eventually("the backend's request is given up", || backend.seen.dropped.load(Ordering::SeqCst) == 1)
        .await;
    let heard = Client::one(lab.address).await.ask(Request::get("/x"), nothing()).await;
    assert_eq!(heard.body, "GET /x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_requests_are_told_when_to_come_back() {
    let backend = backend::start().await;
    let limits = Some(PolicyLimits { requests_per_second: Some(0), ..PolicyLimits::default() });
    let lab = Lab::new(Plan { limits, ..Plan::new(backend.address) }).await;
    let mut client = Client::one(lab.address).await;
    let heard = client.ask(Request::get("/x"), nothing()).await;
    assert_eq!((heard.status.as_u16(), &heard.headers["causeway-refusal"]), (429, &"limit".parse().unwrap()));
    assert!(heard.headers.contains_key("retry-after"));
    eventually("it is recorded", || lab.at_oslo.len() == 1).await;
    assert_eq!(lab.at_oslo.records()[0].end, ConnectionEnd::Limit);
    assert_eq!(backend.seen.requests.load(Ordering::SeqCst), 0);
}
