//! Bounds: concurrent requests, watches, connections, sizes and times.

use std::time::Duration;

use causeway_apiserver::ApiLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::lab::{GROUP, Lab, PATIENCE, site};

#[tokio::test]
async fn one_identity_cannot_starve_another() {
    let limits = ApiLimits {
        requests_max: 2,
        requests_per_identity_max: 1,
        waiting_per_identity_max: 1,
        ..ApiLimits::default()
    };
    let lab = Lab::with(limits).await;
    // Two requests of the greedy client that never send their bodies: one is read, one waits.
    let mut held = vec![half_sent(&lab, "greedy").await, half_sent(&lab, "greedy").await];
    // The first gets 100 Continue; then the other one waits.
    let mut word = [0; 12];
    let asked = tokio::time::timeout(PATIENCE, async {
        let (left, right) = held.split_at_mut(1);
        tokio::select! {
            read = left[0].read_exact(&mut word) => read.map(|_| ()),
            () = async { let mut other = [0; 12]; right[0].read_exact(&mut other).await.unwrap(); } => Ok(()),
        }
    });
    asked.await.expect("one is served").unwrap();
    let post = async || lab.ask_as("admin:greedy", "POST", &format!("{GROUP}/esites"), json!({}), &[]).await;
    let refused = loop {
        let answer = post().await;
        if answer.code == 429 {
            break answer;
        }
    };
    assert_eq!(
        (refused.header("retry-after"), refused.json["reason"].as_str()),
        ("1", Some("TooManyRequests"))
    );
    lab.ask_as("admin:modest", "GET", &format!("{GROUP}/esites"), (), &[]).await.expect(200);
    drop(held);
    // The held slots are released.
    let served = tokio::time::timeout(PATIENCE, async { while post().await.code == 429 {} });
    served.await.expect("the places are free again");
}

#[tokio::test]
async fn half_a_body_holds_no_seat() {
    let limits = ApiLimits { requests_max: 2, requests_per_identity_max: 1, ..ApiLimits::default() };
    let lab = Lab::with(limits).await;
    // As many as there are slots, each with its own identity, and each got 100 Continue.
    let mut held = Vec::new();
    for name in ["first", "second"] {
        let mut socket = half_sent(&lab, name).await;
        let mut word = [0; 12];
        let asked = tokio::time::timeout(PATIENCE, socket.read_exact(&mut word)).await;
        asked.expect("the body is asked for").unwrap();
        held.push(socket);
    }
    lab.ask_as("admin:third", "GET", &format!("{GROUP}/esites"), (), &[]).await.expect(200);
    lab.ask_as("admin:third", "POST", &format!("{GROUP}/esites"), site("a", "x"), &[]).await.expect(201);
    // It does not prevent its own identity from requests without a body either.
    lab.ask_as("admin:first", "GET", &format!("{GROUP}/esites"), (), &[]).await.expect(200);
}

/// A request that announces a body and does not send it.
async fn half_sent(lab: &Lab, name: &str) -> TcpStream {
    let mut socket = TcpStream::connect(lab.addr).await.unwrap();
    let head = format!(
        "POST {GROUP}/esites HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin:{name}\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

#[tokio::test]
async fn watches_per_identity_are_bounded() {
    let lab = Lab::with(ApiLimits { watches_per_identity_max: 2, ..ApiLimits::default() }).await;
    let path = format!("{GROUP}/esites?watch=1");
    let first = lab.watch(&path).await;
    let _second = lab.watch(&path).await;
    let refused = lab.ask("GET", &path, ()).await;
    assert_eq!((refused.code, refused.header("retry-after")), (429, "1"));
    let _other = lab.watch_as("viewer:bob", &path, &[]).await;
    drop(first);
    let freed = tokio::time::timeout(PATIENCE, async {
        // The server notices that an idle watcher is gone at its next event.
        let mut n = 0;
        loop {
            lab.site(&format!("s{n}"), "x").await;
            n += 1;
            if lab.metrics.encode().contains("causeway_api_watchers 2\n") {
                break;
            }
        }
    });
    freed.await.expect("the first watch is noticed to be gone");
    let _third = lab.watch(&path).await;
}

#[tokio::test]
async fn bodies_and_objects_have_a_size() {
    let lab = Lab::new().await;
    let sites = format!("{GROUP}/esites");
    let mut large = site("a", "x");
    large["metadata"]["annotations"] = serde_json::json!({"note": "n".repeat(200_000)});
    lab.ask("POST", &sites, large.clone()).await.expect(201);
    // Within the limit of a request, but over that of an object.
    let subnets: Vec<String> =
        (0..120_000).map(|n| format!("10.{}.{}.{}/32", n >> 16, (n >> 8) & 255, n & 255)).collect();
    let mut many = site("b", "x");
    many["subnets"] = subnets.into();
    let refused = lab.ask("POST", &sites, many).await;
    assert!([413, 422].contains(&refused.code), "{}", refused.code);
    let huge = serde_json::json!({"metadata": {"name": "c", "annotations": {"note": "n".repeat(3 << 20)}}});
    assert_eq!(lab.ask("POST", &sites, huge).await.expect(413)["reason"], "RequestEntityTooLarge");
    // Without a length, the body is cut off at the limit.
    let lab = Lab::with(ApiLimits { body_bytes_max: 1_000, ..ApiLimits::default() }).await;
    let mut socket = TcpStream::connect(lab.addr).await.unwrap();
    let endless = format!(
        "POST {sites} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin:ann\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n{}\r\n",
        "x".repeat(0x7d0)
    );
    socket.write_all(endless.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    tokio::time::timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn connections_are_counted_and_slow_ones_closed() {
    let limits = ApiLimits {
        connections_max: 2,
        header_time_max: Duration::from_millis(300),
        body_time_max: Duration::from_millis(300),
        ..ApiLimits::default()
    };
    let lab = Lab::with(limits).await;
    let closed = async |mut socket: TcpStream| {
        let mut rest = Vec::new();
        // Reset or end: both are an end.
        let _ =
            tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("the server closes");
        String::from_utf8_lossy(&rest).into_owned()
    };
    let mut first = TcpStream::connect(lab.addr).await.unwrap();
    first.write_all(b"GET /readyz HTTP/1.1\r\nhost").await.unwrap();
    let mut second = TcpStream::connect(lab.addr).await.unwrap();
    let head = "POST /api/v1/esites HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin:ann\r\ncontent-length: 10\r\nconnection: close\r\n\r\n{";
    second.write_all(head.as_bytes()).await.unwrap();
    let third = TcpStream::connect(lab.addr).await.unwrap();
    assert_eq!(closed(third).await, "", "no place for it");
    assert!(closed(second).await.starts_with("HTTP/1.1 408"));
    let first = closed(first).await;
    assert!(first.is_empty() || first.starts_with("HTTP/1.1 4"), "{first}");
    let back = tokio::time::timeout(PATIENCE, async {
        loop {
            let mut socket = TcpStream::connect(lab.addr).await.unwrap();
            let _ = socket.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
            if closed(socket).await.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    });
    back.await.expect("places come back");
}

#[tokio::test]
async fn an_idle_client_over_http2_does_not_hold_up_the_stop() {
    // The server waits this long for open connections when it stops.
    let lab = Lab::with(ApiLimits { drain_time_max: Duration::from_secs(600), ..ApiLimits::default() }).await;
    let mut client = TcpStream::connect(lab.addr).await.unwrap();
    // The preface and empty settings. After that the client sends nothing, not even the answer to a ping.
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    client.read_exact(&mut [0; 9]).await.unwrap();
    lab.shut_down().await;
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_no_more() {
    let limits = ApiLimits { connections_from_loopback_max: 2, ..ApiLimits::default() };
    let lab = Lab::with(limits).await;
    let open = async || {
        let mut socket = TcpStream::connect(lab.addr).await.unwrap();
        let _ = socket.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut answer = vec![0; 12];
        let read = tokio::time::timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("an end");
        read.is_ok_and(|_| answer == b"HTTP/1.1 200").then_some(socket)
    };
    let (first, second) = (open().await, open().await);
    assert!(first.is_some() && second.is_some());
    assert!(open().await.is_none(), "the third is closed at once");
    assert!(lab.metrics.encode().contains("connections-per-address"));
    drop(first);
    let back = tokio::time::timeout(PATIENCE, async { while open().await.is_none() {} });
    back.await.expect("the place of a closed connection comes back");
}

/// Fills the list of sites with about 10 MB, more than the buffers of a loopback connection hold.
async fn large_list(lab: &Lab) -> usize {
    for n in 0..50 {
        let mut large = site(&format!("s{n}"), "x");
        large["metadata"]["annotations"] = json!({"note": "n".repeat(200_000)});
        lab.ask("POST", &format!("{GROUP}/esites"), large).await.expect(201);
    }
    10_000_000
}

// Longer than a server that stops waits for an idle connection.
const SLOW_READ: Duration = Duration::from_millis(700);

#[tokio::test]
async fn an_answer_that_a_slow_client_reads_is_finished_when_the_server_stops() {
    let lab = Lab::new().await;
    let least = large_list(&lab).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut socket = socket.connect(lab.addr).await.unwrap();
    let head = format!("GET {GROUP}/esites HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin:ann\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 1024];
    socket.read_exact(&mut first).await.unwrap();
    let text = String::from_utf8_lossy(&first).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let length: usize = length.trim().parse().unwrap();
    assert!(length > least, "{length}");
    let head_length = text.find("\r\n\r\n").unwrap() + 4;
    lab.stop.cancel();
    tokio::time::sleep(SLOW_READ).await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("the answer ends");
    read.expect("the connection is not reset");
    assert_eq!(first.len() + rest.len(), head_length + length);
    lab.shut_down().await;
}

#[tokio::test]
async fn an_answer_over_http2_to_a_slow_client_is_finished_when_the_server_stops() {
    use http_body_util::BodyExt;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let lab = Lab::new().await;
    let least = large_list(&lab).await;
    let socket = TcpStream::connect(lab.addr).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(64 << 10)
        .initial_connection_window_size(64 << 10)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(format!("http://{}{GROUP}/esites", lab.addr))
        .header("authorization", "Bearer admin:ann")
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    lab.stop.cancel();
    tokio::time::sleep(SLOW_READ).await;
    let body = tokio::time::timeout(PATIENCE, response.into_body().collect()).await.expect("the answer ends");
    assert!(body.expect("the stream is not reset").to_bytes().len() > least);
    lab.shut_down().await;
}
