//! Bad input at the channel port: tokens that are no good, requests in another's name, bytes that are no protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use causeway_api::management::paths;
use causeway_channel::clock::unix_seconds;
use causeway_channel::tls::{self, TrustAnchors};
use causeway_channel::wire::{
    self, EnrolmentCode, EnrolmentHello, EnrolmentRequest, EnrolmentRequestBody, EnrolmentResponse,
    EnrolmentResponseBody,
};
use causeway_channel::{CertificateFacts, JoinToken, PeerId, PrivateKey, TokenSecret};
use serde_json::{Value, json};
use testlab::causeway::{run, wait_for};
use tokio::io::AsyncWriteExt;
use tokio_rustls::client::TlsStream;

use crate::{Lab, call, join_token, path};

type Link = TlsStream<tokio::net::TcpStream>;

fn token(text: &str) -> JoinToken {
    text.parse().unwrap()
}

/// A connection that has come as far as the cloud's greeting.
async fn dial(token: &JoinToken) -> Link {
    let (config, _) =
        tls::client(TrustAnchors::Pinned(token.authorities.clone()), None, SystemTime::now()).unwrap();
    let endpoint = &token.endpoints[0];
    let tcp = tokio::net::TcpStream::connect((endpoint.host(), endpoint.port())).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from(endpoint.host().to_owned()).unwrap();
    let mut link = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    let hello: EnrolmentHello = wire::read(&mut link).await.unwrap();
    assert_eq!(hello.version, wire::VERSION);
    link
}

async fn ask(token: &JoinToken, ask: Option<EnrolmentRequestBody>) -> EnrolmentResponseBody {
    let mut link = dial(token).await;
    let request = EnrolmentRequest { time: unix_seconds(SystemTime::now()), ask };
    wire::write(&mut link, &request).await.unwrap();
    wire::read::<EnrolmentResponse>(&mut link).await.unwrap().answer.unwrap()
}

fn enrol(secret: &[u8], csr: Vec<u8>) -> Option<EnrolmentRequestBody> {
    Some(EnrolmentRequestBody::Enrol(wire::EnrolMessage { secret: secret.to_vec(), csr }))
}

/// The refusal of one request. `says` is what must be true.
async fn check(says: &str, token: &JoinToken, request: Option<EnrolmentRequestBody>, code: EnrolmentCode) {
    match ask(token, request).await {
        EnrolmentResponseBody::Refused(refusal) => {
            assert_eq!(refusal.reason(), code, "{says}: {refusal}");
            assert!(!refusal.message.is_empty(), "{says}");
        }
        other => panic!("{says}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tokens_and_requests_get_no_certificate() {
    let lab = Lab::start();
    let good = token(&join_token(&lab.admin, "oslo"));
    let key = PrivateKey::generate().unwrap();
    let csr = || key.request(&good.peer).unwrap();
    let secret = good.secret.expose();

    let stranger = TokenSecret::generate();
    check(
        "a secret nobody gave out opens nothing",
        &good,
        enrol(stranger.expose(), csr()),
        EnrolmentCode::TokenUnknown,
    )
    .await;
    check("half a secret opens nothing", &good, enrol(&secret[..16], csr()), EnrolmentCode::Malformed).await;
    check("no secret opens nothing", &good, enrol(&[], csr()), EnrolmentCode::Malformed).await;
    check(
        "a secret needs a request for a certificate",
        &good,
        enrol(secret, Vec::new()),
        EnrolmentCode::BadRequest,
    )
    .await;
    check(
        "garbage is no request for a certificate",
        &good,
        enrol(secret, vec![0x30; 500]),
        EnrolmentCode::BadRequest,
    )
    .await;
    let mut broken = csr();
    let middle = broken.len() - 8;
    broken[middle] ^= 1;
    check("a request must be signed by its key", &good, enrol(secret, broken), EnrolmentCode::BadRequest)
        .await;
    check("nothing asked, nothing given", &good, None, EnrolmentCode::Malformed).await;
    let renew = Some(EnrolmentRequestBody::Renew(wire::RenewMessage { csr: csr() }));
    check("a renewal needs the live certificate", &good, renew, EnrolmentCode::CertificateNeeded).await;
    let reenrol =
        Some(EnrolmentRequestBody::Reenrol(wire::ReenrolMessage { csr: csr(), certificate: vec![1, 2, 3] }));
    check("a re-enrolment needs the old certificate", &good, reenrol, EnrolmentCode::Malformed).await;

    // All of this has used up nothing. The name is the token's, whatever the request says.
    let other = PeerId::new("bergen", "cloud").unwrap();
    let EnrolmentResponseBody::Issued(issued) = ask(&good, enrol(secret, key.request(&other).unwrap())).await
    else {
        panic!("the token is good");
    };
    let facts = CertificateFacts::read(&issued.certificate).unwrap();
    assert_eq!(facts.peer, Some(good.peer.clone()));
    assert_eq!(facts.organizations, ["causeway:gateway"]);

    let thief = PrivateKey::generate().unwrap();
    let second = enrol(secret, thief.request(&good.peer).unwrap());
    check("a used token is used", &good, second, EnrolmentCode::TokenUsed).await;
    let made = call(&lab.admin, "tokens", &json!({"site": "bergen", "ttlSeconds": 1}));
    let short = token(made["token"].as_str().unwrap());
    wait_for("the token expires", || is_expired(&lab, &made["id"]).then_some(())).unwrap();
    let request = enrol(short.secret.expose(), csr());
    check("an expired token is expired", &short, request, EnrolmentCode::TokenExpired).await;
    let gone = call(&lab.admin, "tokens", &json!({"site": "bergen"}));
    let id = gone["id"].as_str().unwrap();
    let delete = testlab::https::Request::new("DELETE", &format!("{}/{id}", paths::TOKENS));
    lab.admin.send(&delete).unwrap().success().unwrap();
    let gone = token(gone["token"].as_str().unwrap());
    let request = enrol(gone.secret.expose(), csr());
    check("a deleted token is gone", &gone, request, EnrolmentCode::TokenDeleted).await;
    assert!(!lab.cloud.process.log().contains("panicked"), "{}", lab.cloud.process.log());
}

fn is_expired(lab: &Lab, id: &Value) -> bool {
    let list = lab.admin.get(paths::TOKENS).unwrap().success().unwrap();
    let tokens = list["tokens"].as_array().unwrap();
    tokens.iter().any(|token| token["id"] == *id && token["expired"] == true)
}

#[test]
fn a_token_that_is_no_token_is_named_before_anything_is_dialled() {
    let lab = Lab::start();
    let text = join_token(&lab.admin, "oslo");
    let truncated = &text[..text.len() - 7];
    let swapped = text.replacen(|letter: char| letter.is_ascii_digit(), "x", 3);
    let folder = lab.path("edge");
    for bad in ["garbage", "", truncated, &swapped, "cwa1.AAAA", "@/no/such/file"] {
        let ran =
            run(&["edge", "--data-dir", folder.to_str().unwrap(), "--admin", "127.0.0.1:0", "--join", bad])
                .unwrap();
        assert!(matches!(ran.code, 1 | 2), "{bad:.20}: {}", ran.stderr);
        assert!(ran.stderr.contains("token"), "{bad:.20}: {}", ran.stderr);
        assert!(!ran.stderr.contains(truncated), "the secret stays out of the log: {}", ran.stderr);
        assert!(!folder.join("identity.pem").exists());
    }
    // The good one still is.
    let mut edge = lab.join("edge", &text);
    assert!(edge.ended().is_none(), "{}", edge.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_protocol_are_answered_or_cut_off() {
    let lab = Lab::start();
    let good = token(&join_token(&lab.admin, "oslo"));

    // Frames: too long, not protobuf, and one that never comes.
    for (frame, answered) in [
        (&[0xff, 0xff, 0xff, 0xff, 0][..], true),
        (&[0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff], true),
        (&[0, 0, 0, 9, 1], false),
    ] {
        let mut link = dial(&good).await;
        link.write_all(frame).await.unwrap();
        link.flush().await.unwrap();
        if answered {
            let response: EnrolmentResponse = wire::read(&mut link).await.unwrap();
            let Some(EnrolmentResponseBody::Refused(refusal)) = response.answer else { panic!("{frame:?}") };
            assert_eq!(refusal.reason(), EnrolmentCode::Malformed);
        }
    }

    // Plain text, and another protocol, at both ports.
    for address in [lab.cloud.api, lab.cloud.channel] {
        for words in [
            &b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..],
            b"SSH-2.0-x\r\n",
            &[0; 600],
            &[0x16, 3, 1, 0xff, 0xff],
        ] {
            let mut plain = TcpStream::connect(address).unwrap();
            plain.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            plain.write_all(words).unwrap();
            // An exchange that was begun and not ended would be waited for.
            plain.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            // Closed, with an alert or without a word; a reset is a way to close.
            let _ = plain.read_to_end(&mut answer);
            assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
        }
    }
    assert!(another_protocol(&good).await.is_err(), "the channel speaks its own protocol only");

    // The door still opens.
    let key = PrivateKey::generate().unwrap();
    let answer = ask(&good, enrol(good.secret.expose(), key.request(&good.peer).unwrap())).await;
    assert!(matches!(answer, EnrolmentResponseBody::Issued(_)), "{answer:?}");
    assert_eq!(lab.admin.get(&path("egateways", "oslo")).unwrap().code, 200);
    wait_for("it is ready", || (lab.admin.get("/readyz").unwrap().code == 200).then_some(())).unwrap();
    assert!(!lab.cloud.process.log().contains("panicked"), "{}", lab.cloud.process.log());
}

/// TLS with the name of a protocol that is not served.
async fn another_protocol(token: &JoinToken) -> std::io::Result<EnrolmentHello> {
    let (mut config, _) =
        tls::client(TrustAnchors::Pinned(token.authorities.clone()), None, SystemTime::now()).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let endpoint = &token.endpoints[0];
    let tcp = tokio::net::TcpStream::connect((endpoint.host(), endpoint.port())).await?;
    let name = rustls::pki_types::ServerName::try_from(endpoint.host().to_owned()).unwrap();
    let mut link = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    wire::read(&mut link).await.map_err(std::io::Error::other)
}
