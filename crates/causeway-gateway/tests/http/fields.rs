//! Header fields that would bypass a policy: other protocols, other methods and paths, and forged client
//! addresses.

use causeway_gateway::proxy::http::ClientEntry;

use crate::backend;
use crate::client::raw;
use crate::lab::{Lab, Plan, rule};

/// Returns the head that the backend received for a request with these lines, in lower case; over HTTP/1.1,
/// because only there a client can send all of them.
async fn seen(lab: &Lab, lines: &str) -> Vec<String> {
    let head = format!("GET /head HTTP/1.1\r\nHost: web.example\r\n{lines}Connection: close\r\n\r\n");
    let heard = raw(lab.address, head.as_bytes()).await;
    assert!(heard.starts_with("HTTP/1.1 200"), "{lines:?}: {heard}");
    let (_, body) = heard.split_once("\r\n\r\n").unwrap();
    body.lines().map(str::to_owned).collect()
}

async fn lab(has_rules: bool, address: std::net::SocketAddr) -> Lab {
    let rules = if has_rules { vec![rule(&["GET"], &["/head", "/upgrade"])] } else { vec![] };
    Lab::at(Plan { rules, ..Plan::new(address) }, ClientEntry::Presence("web".into())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_named_protocols_are_offered_to_a_backend() {
    let backend = backend::start().await;
    let (ruled, free) = (lab(true, backend.address).await, lab(false, backend.address).await);
    // The fields that arrive at the backend under rules, and without.
    for (lines, under_rules, without) in [
        ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n", None, None),
        ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c, x\r\nHTTP2-Settings: AAMA\r\n", None, None),
        ("Connection: Upgrade\r\nUpgrade: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n", None, None),
        ("Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n", None, None),
        ("Connection: Upgrade\r\nUpgrade: vnc\r\n", None, Some("upgrade: vnc")),
        (
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            Some("upgrade: websocket"),
            Some("upgrade: websocket"),
        ),
        (
            "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
            Some("upgrade: SPDY/3.1"),
            Some("upgrade: SPDY/3.1"),
        ),
    ] {
        for (lab, expected) in [(&ruled, under_rules), (&free, without)] {
            let arrived = seen(lab, lines).await;
            let upgrade = arrived.iter().find(|line| line.starts_with("upgrade:"));
            assert_eq!(upgrade.map(String::as_str), expected, "{lines:?}");
            assert!(!arrived.iter().any(|line| line.starts_with("http2-settings")), "{arrived:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_switches_to_something_else_is_not_followed() {
    let switching = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
    let backend = backend::scripted(switching).await;
    let lab = lab(true, backend.address).await;
    let says = b"GET /head HTTP/1.1\r\nHost: web.example\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n";
    let mut heard = raw(lab.address, says).await;
    heard.truncate(12);
    assert_eq!(heard, "HTTP/1.1 502");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_says_of_itself_is_set_or_taken_off() {
    let backend = backend::start().await;
    let (ruled, free) = (lab(true, backend.address).await, lab(false, backend.address).await);
    // Set by the gateway: whatever the client sends, the backend gets only this value under the name.
    for (says, name, expected) in [
        ("X-Real-IP: 6.6.6.6", "x-real-ip", "127.0.0.1"),
        ("X_Real_IP: 6.6.6.6", "x-real-ip", "127.0.0.1"),
        ("Forwarded: for=6.6.6.6;proto=https", "forwarded", "for=127.0.0.1;host=\"web.example\";proto=http"),
        ("X-Forwarded-For: 6.6.6.6", "x-forwarded-for", "6.6.6.6, 127.0.0.1"),
        ("X-Forwarded-Proto: https", "x-forwarded-proto", "http"),
        ("X-Forwarded-Host: other", "x-forwarded-host", "web.example"),
        ("Connection: X-Real-IP", "x-real-ip", "127.0.0.1"),
    ] {
        let arrived = seen(&free, &format!("{says}\r\n")).await;
        let named = |line: &&String| line.replace('_', "-").starts_with(&format!("{name}:"));
        let found: Vec<&String> = arrived.iter().filter(named).collect();
        assert_eq!(found, [&format!("{name}: {expected}")], "{says}: {arrived:?}");
    }
    // Removed: under rules, and without.
    for (name, under_rules, without) in [
        ("x-original-url", false, false),
        ("x-rewrite-url", false, false),
        ("x-forwarded-uri", false, false),
        ("x-client-ip", false, false),
        ("x-http-method-override", false, true),
        ("x-http-method", false, true),
        ("x-method-override", false, true),
        ("x-other", true, true),
    ] {
        for (lab, passes) in [(&ruled, under_rules), (&free, without)] {
            let arrived = seen(lab, &format!("{name}: DELETE\r\n")).await;
            assert_eq!(arrived.contains(&format!("{name}: DELETE")), passes, "{name}: {arrived:?}");
        }
    }
}
