//! Checks every backend of a service now, for `causeway doctor`: connects, and checks that the answer is in
//! the protocol of the service.
//!
//! `opening` and `judge` are pure: the bytes that a client of the protocol sends first, and the evaluation of
//! the answer. The rest connects and reads, bounded in time and bytes. The result also updates the health of
//! the endpoint, as a connection of a client would.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_daemon::error_chain;
use causeway_netmap::{BackendHealthCheckType, ServiceEntry, ServiceProtocol};
use futures_util::StreamExt;
use futures_util::stream;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::{BackendSelector, Endpoint, connect};
use crate::dial::{BackendDialer, Denied};
use crate::proxy::http::tls::BackendTlsClient;

/// Backends are near: one that takes longer to connect or to answer is a finding.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Inside a site, an ICMP port unreachable message arrives within this time.
const UDP_REFUSAL_TIMEOUT: Duration = Duration::from_millis(400);
/// Enough of an answer to recognise its protocol.
const ANSWER_BYTES_MAX: usize = 1024;
/// The maximum number of backends of one service that are checked, and that are checked concurrently.
const BACKENDS_MAX: usize = 64;
const CONCURRENT_MAX: usize = 8;
/// Characters of a backend's answer that are shown.
const SHOWN_CHARS_MAX: usize = 60;
const KAFKA_CORRELATION: u32 = 0x0ca5_e0a1;

/// The result for one backend.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Examined {
    pub backend: String,
    pub outcome: Outcome,
    /// A description for the operator.
    pub detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It answers in its protocol.
    Answers,
    /// It accepts the connection; its protocol has no harmless request to send.
    Connects,
    /// It cannot be connected to.
    Down,
    /// It is not dialled: the configuration of the gateway's own site does not allow it.
    Denied,
    /// It accepts the connection and does not answer in time.
    Silent,
    /// It answers in another protocol.
    OtherProtocol,
    /// TLS with it fails, or its health check does.
    Unwell,
}

impl Outcome {
    pub fn is_well(self) -> bool {
        matches!(self, Outcome::Answers | Outcome::Connects)
    }
}

impl BackendSelector {
    /// Checks every backend of the service.
    pub async fn examine(&self, service: &ServiceEntry) -> Vec<Examined> {
        let group = self.group(service);
        let endpoints: Vec<_> = group.endpoints.iter().take(BACKENDS_MAX).cloned().collect();
        let examining = endpoints.into_iter().map(|endpoint| async move {
            let (outcome, detail) = examine(&self.dialer, service, &endpoint).await;
            self.remember(&endpoint, outcome, &detail);
            Examined { backend: endpoint.backend.to_string(), outcome, detail }
        });
        stream::iter(examining).buffered(CONCURRENT_MAX).collect().await
    }

    /// A backend that is back is used at once, and one that is down is taken out of use, as after a
    /// connection of a client.
    fn remember(&self, endpoint: &Arc<Endpoint>, outcome: Outcome, detail: &str) {
        let mut health = endpoint.health();
        let was_usable = health.is_usable();
        match outcome {
            Outcome::Down => {
                health.failed(Instant::now());
            }
            outcome if outcome.is_well() => health.connected(),
            _ => return,
        }
        let has_changed = health.is_usable() != was_usable;
        drop(health);
        if outcome == Outcome::Down {
            endpoint.record_error(&io::Error::other(detail.to_owned()));
            self.changed.notify_one();
        }
        if has_changed {
            self.turned();
        }
    }
}

async fn examine(dialer: &BackendDialer, service: &ServiceEntry, endpoint: &Endpoint) -> (Outcome, String) {
    if service.protocol == ServiceProtocol::Udp {
        return examine_udp(dialer, endpoint).await;
    }
    let connecting = timeout(CONNECT_TIMEOUT, connect(dialer, endpoint, service.proxy_protocol, None)).await;
    let mut socket = match connecting {
        Ok(Ok(socket)) => socket,
        Ok(Err(error)) => return not_connected(&error),
        Err(_) => return (Outcome::Down, format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
    };
    let opening = match opening(service, &endpoint.backend.to_string()) {
        Some(opening) => opening,
        None => return (Outcome::Connects, "it accepts connections".to_owned()),
    };
    match &service.backend_tls {
        Some(tls) if matches!(service.protocol, ServiceProtocol::Http | ServiceProtocol::Grpc) => {
            let tls = match BackendTlsClient::new(service, tls, service.protocol == ServiceProtocol::Grpc) {
                Ok(tls) => tls,
                Err(error) => return (Outcome::Unwell, format!("backendTLS cannot be used: {error}")),
            };
            match timeout(ANSWER_TIMEOUT, tls.connect(socket)).await {
                Ok(Ok(mut encrypted)) => exchange(service, &mut encrypted, &opening).await,
                Ok(Err(error)) => judge_tls(&error),
                Err(_) => (Outcome::Silent, "it accepts the connection and does not answer TLS".to_owned()),
            }
        }
        _ => exchange(service, &mut socket, &opening).await,
    }
}

async fn exchange(
    service: &ServiceEntry,
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    opening: &[u8],
) -> (Outcome, String) {
    let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
    let talking = async {
        io.write_all(opening).await?;
        io.flush().await?;
        while answer.len() < ANSWER_BYTES_MAX && !is_enough(service.protocol, &answer) {
            if io.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        Ok::<(), io::Error>(())
    };
    let ended = timeout(ANSWER_TIMEOUT, talking).await;
    match ended {
        Err(_) if answer.is_empty() => {
            let wanted = name(service.protocol);
            (
                Outcome::Silent,
                format!(
                    "it accepts the connection and does not answer {wanted} within {} s",
                    ANSWER_TIMEOUT.as_secs()
                ),
            )
        }
        Ok(Err(error)) if answer.is_empty() => {
            (Outcome::OtherProtocol, format!("it accepts the connection and closes it: {error}"))
        }
        _ => evaluate_answer(service, &answer),
    }
}

async fn examine_udp(dialer: &BackendDialer, endpoint: &Endpoint) -> (Outcome, String) {
    let asking = async {
        let address = endpoint.addresses().await?.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
        let socket = dialer.connect_udp(address).await?;
        // Empty: it has no meaning in any protocol, and a port without a listener still refuses it.
        socket.send(&[]).await?;
        match timeout(UDP_REFUSAL_TIMEOUT, socket.recv(&mut [0; 1])).await {
            Ok(Err(error)) => Err(error),
            _ => Ok(()),
        }
    };
    match timeout(CONNECT_TIMEOUT, asking).await {
        Ok(Ok(())) => {
            let detail =
                "UDP: its host does not refuse datagrams; whether the service answers is not checked";
            (Outcome::Connects, detail.to_owned())
        }
        Ok(Err(error)) => not_connected(&error),
        Err(_) => (Outcome::Down, "its name cannot be resolved: timeout".to_owned()),
    }
}

/// Returns `Down`, or `Denied` if the gateway's own site does not allow the address.
fn not_connected(error: &io::Error) -> (Outcome, String) {
    match Denied::of(error) {
        Some(why) => (Outcome::Denied, why.to_string()),
        None => (Outcome::Down, error_chain(error)),
    }
}

/// Returns the bytes that a client of the service's protocol sends first. None: the server may send first, or
/// the protocol is unknown.
fn opening(service: &ServiceEntry, backend: &str) -> Option<Vec<u8>> {
    match service.protocol {
        ServiceProtocol::Http => {
            let check =
                service.health_check.as_ref().filter(|check| check.kind == BackendHealthCheckType::Http);
            let path = check.map(|check| check.path.as_str()).filter(|path| !path.is_empty()).unwrap_or("/");
            let host = service.domain_name.as_ref().map_or(backend, |name| name.as_str());
            Some(
                format!(
                    "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: causeway-doctor\r\naccept: */*\r\nconnection: close\r\n\r\n"
                )
                .into_bytes(),
            )
        }
        ServiceProtocol::Https => client_hello(service.domain_name.as_ref().map(|name| name.as_str())),
        // RFC 9113 section 3.4: the preface, and a SETTINGS frame without settings.
        ServiceProtocol::Grpc => Some(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
        // ApiVersions in its oldest version, which every broker answers. https://kafka.apache.org/protocol
        ServiceProtocol::Kafka => {
            let mut request = vec![0, 0, 0, 10, 0, 18, 0, 0];
            request.extend(KAFKA_CORRELATION.to_be_bytes());
            request.extend([0xff, 0xff]);
            Some(request)
        }
        ServiceProtocol::Tcp | ServiceProtocol::Udp => None,
    }
}

/// Returns the first flight of a TLS handshake. The certificate of the server is not verified: that is left
/// to the client.
fn client_hello(name: Option<&str>) -> Option<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.unwrap_or("localhost").to_owned()).ok()?;
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).ok()?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello).ok()?;
    Some(hello)
}

fn is_enough(protocol: ServiceProtocol, answer: &[u8]) -> bool {
    match protocol {
        // The status line and a part of what follows: some servers write into the body that they require TLS.
        ServiceProtocol::Http => answer.windows(4).any(|part| part == b"\r\n\r\n"),
        _ => answer.len() >= 9,
    }
}

/// Evaluates the first bytes of an answer.
fn evaluate_answer(service: &ServiceEntry, answer: &[u8]) -> (Outcome, String) {
    let wanted = name(service.protocol);
    if answer.is_empty() {
        return (Outcome::OtherProtocol, format!("it closes the connection without an answer to {wanted}"));
    }
    let other = |detail: String| (Outcome::OtherProtocol, detail);
    let recognised_protocol = recognised_protocol(answer);
    match service.protocol {
        ServiceProtocol::Http => match http_status(answer) {
            Some(400) if asks_for_tls(answer) => {
                other("it speaks HTTPS, and the service is of protocol HTTP without backendTLS".to_owned())
            }
            Some(status) if service.health_check.is_some() && status >= 400 => {
                (Outcome::Unwell, format!("its health check is answered with {status}"))
            }
            Some(status) => (Outcome::Answers, format!("it answers HTTP with {status}")),
            None => other(format!("it does not speak HTTP: it answers with {recognised_protocol}")),
        },
        ServiceProtocol::Https if is_tls(answer) => (Outcome::Answers, "it answers TLS".to_owned()),
        ServiceProtocol::Grpc if is_http2(answer) => (Outcome::Answers, "it answers HTTP/2".to_owned()),
        ServiceProtocol::Kafka if answer.get(4..8) == Some(&KAFKA_CORRELATION.to_be_bytes()[..]) => {
            (Outcome::Answers, "it answers as a Kafka broker".to_owned())
        }
        ServiceProtocol::Tcp | ServiceProtocol::Udp => {
            (Outcome::Connects, "it accepts connections".to_owned())
        }
        _ => other(format!("it does not speak {wanted}: it answers with {recognised_protocol}")),
    }
}

fn judge_tls(error: &io::Error) -> (Outcome, String) {
    use rustls::Error;
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidMessage(_)) => {
            (Outcome::OtherProtocol, "it does not speak TLS, and backendTLS asks for it".to_owned())
        }
        _ => (Outcome::Unwell, format!("TLS with it fails: {}", error_chain(error))),
    }
}

fn name(protocol: ServiceProtocol) -> &'static str {
    match protocol {
        ServiceProtocol::Tcp => "TCP",
        ServiceProtocol::Udp => "UDP",
        ServiceProtocol::Http => "HTTP",
        ServiceProtocol::Https => "TLS",
        ServiceProtocol::Grpc => "HTTP/2",
        ServiceProtocol::Kafka => "Kafka",
    }
}

fn http_status(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    words.next()?.starts_with("HTTP/1.").then_some(())?;
    words.next()?.parse().ok()
}

/// The texts of nginx, Go and Apache.
fn asks_for_tls(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    ["sent to HTTPS port", "HTTP request to an HTTPS server", "speaking plain HTTP to an SSL-enabled server"]
        .iter()
        .any(|words| text.contains(words))
}

/// RFC 8446 section 5.1: a handshake or alert record.
fn is_tls(answer: &[u8]) -> bool {
    matches!(answer, [0x15 | 0x16, 0x03, ..])
}

/// RFC 9113 section 3.4: the server's first frame is SETTINGS.
fn is_http2(answer: &[u8]) -> bool {
    matches!(answer, [0, _, _, 0x04, _, 0, 0, 0, 0, ..])
}

/// Returns the protocol of an answer, if it can be recognised, with a printable excerpt.
fn recognised_protocol(answer: &[u8]) -> String {
    let known = match answer {
        _ if is_tls(answer) => Some("TLS"),
        _ if is_http2(answer) => Some("HTTP/2"),
        _ if answer.starts_with(b"HTTP/") => Some("HTTP"),
        _ if answer.starts_with(b"SSH-") => Some("SSH"),
        _ => None,
    };
    let line = answer.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let printable = !line.is_empty() && line.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let shown = match printable {
        true => {
            format!("\"{}\"", String::from_utf8_lossy(line).chars().take(SHOWN_CHARS_MAX).collect::<String>())
        }
        false => format!("{} bytes that are not text", answer.len()),
    };
    match known {
        Some(known) if printable => format!("{known} ({shown})"),
        Some(known) => known.to_owned(),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::BackendHealthCheck;

    use super::*;

    fn service(protocol: ServiceProtocol) -> ServiceEntry {
        ServiceEntry {
            name: "s".into(),
            port: 80,
            protocol,
            backends: vec![],
            domain_name: None,
            health_check: None,
            backend_tls: None,
            proxy_protocol: false,
            exposures: vec![],
        }
    }

    #[track_caller]
    fn check(protocol: ServiceProtocol, answer: &[u8], outcome: Outcome, part: &str) {
        let (found, detail) = evaluate_answer(&service(protocol), answer);
        assert!(found == outcome && detail.contains(part), "{found:?} {detail}");
    }

    #[test]
    fn what_answers_is_recognised() {
        let kafka = [&[0, 0, 0, 10][..], &KAFKA_CORRELATION.to_be_bytes(), &[0, 0]].concat();
        let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
        check(ServiceProtocol::Http, b"HTTP/1.1 200 OK\r\n\r\n", Outcome::Answers, "HTTP with 200");
        check(ServiceProtocol::Http, b"HTTP/1.1 503 no\r\n\r\n", Outcome::Answers, "503");
        check(
            ServiceProtocol::Http,
            b"SSH-2.0-OpenSSH_9.2\r\n",
            Outcome::OtherProtocol,
            "SSH (\"SSH-2.0-OpenSSH_9.2\")",
        );
        check(
            ServiceProtocol::Http,
            b"\x15\x03\x01\0\x02\x02\x16",
            Outcome::OtherProtocol,
            "answers with TLS",
        );
        check(ServiceProtocol::Http, b"", Outcome::OtherProtocol, "without an answer");
        let wants_tls = b"HTTP/1.1 400 Bad Request\r\n\r\n<p>The plain HTTP request was sent to HTTPS port";
        check(ServiceProtocol::Http, wants_tls, Outcome::OtherProtocol, "HTTPS");
        check(ServiceProtocol::Https, b"\x16\x03\x03\0\x7a\x02", Outcome::Answers, "TLS");
        check(
            ServiceProtocol::Https,
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            Outcome::OtherProtocol,
            "answers with HTTP",
        );
        check(ServiceProtocol::Grpc, settings, Outcome::Answers, "HTTP/2");
        check(
            ServiceProtocol::Grpc,
            b"HTTP/1.1 400 Bad Request\r\n",
            Outcome::OtherProtocol,
            "does not speak HTTP/2",
        );
        check(ServiceProtocol::Http, settings, Outcome::OtherProtocol, "HTTP/2");
        check(ServiceProtocol::Kafka, &kafka, Outcome::Answers, "broker");
        check(ServiceProtocol::Kafka, b"HTTP/1.1 400 Bad Request\r\n", Outcome::OtherProtocol, "Kafka");
        check(ServiceProtocol::Kafka, b"\0\0\0", Outcome::OtherProtocol, "3 bytes that are not text");
        check(ServiceProtocol::Http, "\u{202e}evil\r\n".as_bytes(), Outcome::OtherProtocol, "not text");
    }

    #[test]
    fn a_health_check_says_which_answers_are_good() {
        let check = BackendHealthCheck {
            kind: BackendHealthCheckType::Http,
            path: "/healthz".into(),
            interval_seconds: 5,
        };
        let service = ServiceEntry { health_check: Some(check), ..service(ServiceProtocol::Http) };
        assert_eq!(evaluate_answer(&service, b"HTTP/1.1 500 x\r\n\r\n").0, Outcome::Unwell);
        assert_eq!(evaluate_answer(&service, b"HTTP/1.1 204 x\r\n\r\n").0, Outcome::Answers);
        let opening = opening(&service, "10.0.0.5:80").unwrap();
        assert!(opening.starts_with(b"GET /healthz HTTP/1.1\r\nhost: 10.0.0.5:80\r\n"));
    }

    #[test]
    fn every_opening_is_what_its_protocol_begins_with() {
        for (protocol, start) in [
            (ServiceProtocol::Http, Some(&b"GET / HTTP/1.1\r\n"[..])),
            (ServiceProtocol::Https, Some(&[0x16, 0x03][..])),
            (ServiceProtocol::Grpc, Some(&b"PRI * HTTP/2.0"[..])),
            (ServiceProtocol::Kafka, Some(&[0, 0, 0, 10, 0, 18][..])),
            (ServiceProtocol::Tcp, None),
            (ServiceProtocol::Udp, None),
        ] {
            let opening = opening(&service(protocol), "10.0.0.5:80");
            assert_eq!(
                opening.as_deref().map(|bytes| bytes.starts_with(start.unwrap_or_default())),
                start.map(|_| true)
            );
        }
    }
}
