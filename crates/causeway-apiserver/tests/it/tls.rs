//! TLS: client certificates, HTTP/2, and certificates that change while the server runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use causeway_apiserver::ApiLimits;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::lab::Lab;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn leaf(
    authority: &Authority,
    name: &str,
    user: &str,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, user);
    let certificate = params.signed_by(&key, authority).unwrap();
    (vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    Arc::new(roots)
}

fn server_config(authority: &Authority) -> Arc<ServerConfig> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority), provider())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let (chain, key) = leaf(authority, "localhost", "server");
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Sends a request over HTTP/2; returns the status code, or None when TLS fails.
async fn ask(lab: &Lab, trusted: &Authority, user: Option<(&Authority, &str)>, path: &str) -> Option<u16> {
    ask_from(lab, trusted, user, path, None).await
}

/// The same from a browser that says from where its page comes.
async fn ask_from(
    lab: &Lab,
    trusted: &Authority,
    user: Option<(&Authority, &str)>,
    path: &str,
    origin: Option<&str>,
) -> Option<u16> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(trusted));
    let mut config = match user {
        Some((authority, user)) => {
            let (chain, key) = leaf(authority, "client", user);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(lab.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.ok()?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let mut request = Request::get(format!("https://localhost{path}"));
    if let Some(origin) = origin {
        request = request.header("sec-fetch-site", origin);
    }
    let request = request.body(Full::new(Bytes::new())).unwrap();
    let response = sender.send_request(request).await.ok()?;
    let code = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    Some(code)
}

#[tokio::test]
async fn a_certificate_is_an_identity_and_authorities_change_without_a_restart() {
    let (old, new) = (authority(), authority());
    let tls = Arc::new(ArcSwap::from(server_config(&old)));
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let lab = Lab::open(ApiLimits::default(), folder, Some(tls.clone())).await;
    assert_eq!(ask(&lab, &old, None, "/readyz").await, Some(200));
    assert_eq!(ask(&lab, &old, None, "/api/v1/esites").await, Some(401));
    assert_eq!(ask(&lab, &old, Some((&old, "admin:tls")), "/api/v1/esites").await, Some(200));
    assert_eq!(ask(&lab, &old, Some((&old, "viewer:tls")), "/causeway/v1/tokens").await, Some(403));
    assert_eq!(ask(&lab, &old, Some((&old, "nobody")), "/api/v1/esites").await, Some(401));
    assert_eq!(ask(&lab, &old, Some((&new, "admin:tls")), "/api/v1/esites").await, None, "another authority");
    lab.people.revoke("admin:tls");
    assert_eq!(ask(&lab, &old, Some((&old, "admin:tls")), "/api/v1/esites").await, Some(401));
    tls.store(server_config(&new));
    assert_eq!(ask(&lab, &old, None, "/readyz").await, None);
    assert_eq!(ask(&lab, &new, Some((&new, "viewer:tls")), "/api/v1/esites").await, Some(200));
}

#[tokio::test]
async fn a_certificate_does_not_count_for_the_page_of_another_origin() {
    let ca = authority();
    let tls = Arc::new(ArcSwap::from(server_config(&ca)));
    let lab = Lab::open(ApiLimits::default(), Arc::new(tempfile::tempdir().unwrap()), Some(tls)).await;
    for (origin, expected) in [("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401)] {
        let user = Some((&ca, "admin:tls"));
        let code = ask_from(&lab, &ca, user, "/api/v1/esites", Some(origin)).await;
        assert_eq!(code, Some(expected), "{origin}");
    }
}
