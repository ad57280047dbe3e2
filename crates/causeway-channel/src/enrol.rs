//! The edge's side of enrolment: dials the cloud, compares clocks, sends the request, and checks the
//! response.
//!
//! Stateless: the caller saves its key before the call and the result after it. A secret or a request is sent
//! only after the cloud was verified and the clocks were compared.

use std::time::{Duration, SystemTime};

use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::clock::{self, Clock, ClockSkew, UtcTimestamp, from_unix_seconds, unix_seconds};
use crate::dial::ConnectProxy;
use crate::key::{KeyError, PrivateKey};
use crate::peer::{CertificateFacts, KeyHash, PeerId};
use crate::tls::{self, TlsCredentials, TlsError, TrustAnchors, ValidityNote};
use crate::token::{ChannelEndpoint, JoinToken, TokenSecret};
use crate::wire::{
    self, EnrolmentHello, EnrolmentRefusal, EnrolmentRequestBody, EnrolmentResponse, EnrolmentResponseBody,
    WireError,
};

/// Endpoints of the cloud, and the CAs to trust.
#[derive(Debug, Clone)]
pub struct EnrolmentContact {
    /// Tried in this order.
    pub endpoints: Vec<ChannelEndpoint>,
    pub trust: TrustAnchors,
    pub clock: Clock,
    /// Deadline per endpoint: connecting, the handshake, and the exchange, together.
    pub deadline: Duration,
    /// Proxy for every endpoint that it does not exclude.
    pub proxy: Option<ConnectProxy>,
}

/// Long enough for a satellite link, short enough to try the next endpoint.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The issued certificate, checked: it is for our key and our name, from a CA in the bundle.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    pub certificate: CertificateDer<'static>,
    pub facts: CertificateFacts,
    pub authorities: Vec<CertificateDer<'static>>,
    /// Endpoints to dial from now on. Empty: unchanged.
    pub endpoints: Vec<ChannelEndpoint>,
    pub cloud_time: SystemTime,
}

#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error("no endpoint of the cloud is known")]
    NoEndpoint,
    #[error(
        "the cloud at {endpoint} cannot be reached: check that it runs, that no firewall closes the port, \
         and that the address is right (it is the --advertise of the cloud that made the token)"
    )]
    Unreachable { endpoint: ChannelEndpoint, source: std::io::Error },
    #[error("the cloud at {endpoint} did not answer within {} seconds", deadline.as_secs())]
    Timeout { endpoint: ChannelEndpoint, deadline: Duration },
    #[error(
        "the server at {endpoint} is not the cloud that this edge belongs to: its certificate is from another CA \
         (a token of another cloud, a CA that was replaced since, or an interception in between); \
         check the address, or create a new token"
    )]
    WrongAuthority { endpoint: ChannelEndpoint },
    #[error("TLS with {endpoint} failed")]
    Handshake { endpoint: ChannelEndpoint, source: std::io::Error },
    #[error("{endpoint} does not speak enrolment: it is not the channel port of a cloud")]
    NotEnrolment { endpoint: ChannelEndpoint },
    #[error(
        "the clock of this machine is wrong: it says {} and the cloud says {}; \
         set it (for example with chrony or systemd-timesyncd), then try again", UtcTimestamp(*edge), UtcTimestamp(*cloud)
    )]
    Clock { edge: SystemTime, cloud: SystemTime },
    #[error(
        "the cloud's own certificate is valid from {} to {} and it is {} now: look at the cloud",
        UtcTimestamp(*not_before), UtcTimestamp(*not_after), UtcTimestamp(*now)
    )]
    CloudCertificate { not_before: SystemTime, not_after: SystemTime, now: SystemTime },
    #[error("the cloud refused")]
    Refused(#[source] EnrolmentRefusal),
    #[error("the talk with {endpoint} failed")]
    Wire { endpoint: ChannelEndpoint, source: WireError },
    #[error("the cloud's answer is not usable: {0}")]
    Answer(&'static str),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl EnrolError {
    pub fn refusal(&self) -> Option<&EnrolmentRefusal> {
        match self {
            EnrolError::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Returns whether another endpoint, or another replica behind the same one, may still succeed.
    fn is_of_this_endpoint(&self) -> bool {
        match self {
            EnrolError::Refused(refusal) => refusal.is_temporary(),
            EnrolError::Clock { .. } | EnrolError::Key(_) | EnrolError::Tls(_) => false,
            _ => true,
        }
    }
}

/// Redeems a token. May be repeated with the same key until it succeeds.
pub async fn enrol(
    contact: &EnrolmentContact,
    token: &JoinToken,
    key: &PrivateKey,
) -> Result<IssuedCertificate, EnrolError> {
    let ask = enrol_ask(&token.secret, key.request(&token.peer)?);
    let (answer, time) = exchange(contact, None, ask).await?;
    let issued = check(answer, time, key, &token.peer)?;
    check_pinned(&issued, &token.authorities)?;
    Ok(issued)
}

/// Requests the certificate of the gateway of this pod's node, with the pod's service-account token. The cloud names the gateway.
/// `authorities` are the hashes of the CAs that the edge may trust at first contact.
pub async fn enrol_node(
    contact: &EnrolmentContact,
    service_account_token: &str,
    authorities: &[KeyHash],
    key: &PrivateKey,
) -> Result<(IssuedCertificate, PeerId), EnrolError> {
    let message =
        wire::EnrolNodeMessage { token: service_account_token.to_owned(), csr: key.unnamed_request()? };
    let (answer, time) = exchange(contact, None, EnrolmentRequestBody::EnrolNode(message)).await?;
    let issued = read_issued(answer, time, key)?;
    let peer = issued.facts.peer.clone().ok_or(EnrolError::Answer("its certificate names no gateway"))?;
    check_pinned(&issued, authorities)?;
    Ok((issued, peer))
}

// The CA of the cloud is pinned at first contact; a bundle without it would be another cloud's.
fn check_pinned(issued: &IssuedCertificate, pins: &[KeyHash]) -> Result<(), EnrolError> {
    let is_pinned = |authority: &CertificateDer<'_>| {
        CertificateFacts::read(authority).is_ok_and(|facts| pins.contains(&facts.key))
    };
    match issued.authorities.iter().any(is_pinned) {
        true => Ok(()),
        false => Err(EnrolError::Answer("its bundle lacks the CA that this edge was told to trust")),
    }
}

fn enrol_ask(secret: &TokenSecret, csr: Vec<u8>) -> EnrolmentRequestBody {
    EnrolmentRequestBody::Enrol(wire::EnrolMessage { secret: secret.expose().to_vec(), csr })
}

/// Requests the next certificate with the current one.
pub async fn renew(
    contact: &EnrolmentContact,
    live: TlsCredentials,
    key: &PrivateKey,
    peer: &PeerId,
) -> Result<IssuedCertificate, EnrolError> {
    let ask = EnrolmentRequestBody::Renew(wire::RenewMessage { csr: key.request(peer)? });
    let (answer, time) = exchange(contact, Some(live), ask).await?;
    check(answer, time, key, peer)
}

/// Requests a new certificate after the old one has expired; the key stays the same.
pub async fn reenrol(
    contact: &EnrolmentContact,
    expired: &CertificateDer<'_>,
    key: &PrivateKey,
    peer: &PeerId,
) -> Result<IssuedCertificate, EnrolError> {
    let csr = key.request(peer)?;
    let ask = EnrolmentRequestBody::Reenrol(wire::ReenrolMessage { csr, certificate: expired.to_vec() });
    let (answer, time) = exchange(contact, None, ask).await?;
    check(answer, time, key, peer)
}

/// Asks whether the cloud wants this edge to renew early, because CAs have changed.
pub async fn asks_to_renew(contact: &EnrolmentContact, live: TlsCredentials) -> Result<bool, EnrolError> {
    let bundle = match &contact.trust {
        TrustAnchors::Bundle(bundle) => tls::bundle_hash(bundle).to_vec(),
        TrustAnchors::Pinned(_) => Vec::new(),
    };
    match exchange(contact, Some(live), EnrolmentRequestBody::Check(wire::CheckMessage { bundle })).await? {
        (EnrolmentResponseBody::Checked(checked), _) => Ok(checked.renew),
        _ => Err(EnrolError::Answer("it answers another question")),
    }
}

async fn exchange(
    contact: &EnrolmentContact,
    credentials: Option<TlsCredentials>,
    ask: EnrolmentRequestBody,
) -> Result<(EnrolmentResponseBody, SystemTime), EnrolError> {
    let mut last = EnrolError::NoEndpoint;
    for endpoint in &contact.endpoints {
        let attempt = exchange_at(contact, endpoint, credentials.clone(), &ask);
        last = match timeout(contact.deadline, attempt).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if !error.is_of_this_endpoint() => return Err(error),
            Ok(Err(error)) => more_telling(last, error),
            Err(_) => more_telling(
                last,
                EnrolError::Timeout { endpoint: endpoint.clone(), deadline: contact.deadline },
            ),
        };
        tracing::debug!(%endpoint, error = %last, "this endpoint gave no certificate");
    }
    Err(last)
}

// Of several failures the one that got furthest is reported: a refusal is more informative than a closed
// port.
fn more_telling(before: EnrolError, now: EnrolError) -> EnrolError {
    let distance = |error: &EnrolError| match error {
        EnrolError::NoEndpoint => 0,
        EnrolError::Unreachable { .. } | EnrolError::Timeout { .. } => 1,
        EnrolError::Refused(_) => 3,
        _ => 2,
    };
    if distance(&before) > distance(&now) { before } else { now }
}

async fn exchange_at(
    contact: &EnrolmentContact,
    endpoint: &ChannelEndpoint,
    credentials: Option<TlsCredentials>,
    ask: &EnrolmentRequestBody,
) -> Result<(EnrolmentResponseBody, SystemTime), EnrolError> {
    let wire = |source| EnrolError::Wire { endpoint: endpoint.clone(), source };
    let (mut link, note) = dial(contact, endpoint, credentials).await?;
    let hello: EnrolmentHello = wire::read(&mut link).await.map_err(wire)?;
    let now = contact.clock.now();
    let cloud_time = from_unix_seconds(hello.time);
    compare_clocks(now, cloud_time, &note)?;
    let request = wire::EnrolmentRequest { time: unix_seconds(now), ask: Some(ask.clone()) };
    wire::write(&mut link, &request).await.map_err(wire)?;
    let response: EnrolmentResponse = wire::read(&mut link).await.map_err(wire)?;
    match response.answer {
        Some(EnrolmentResponseBody::Refused(refusal)) => Err(EnrolError::Refused(refusal)),
        Some(answer) => Ok((answer, cloud_time)),
        None => Err(EnrolError::Answer("it is of a kind this program does not know: use a newer causeway")),
    }
}

async fn dial(
    contact: &EnrolmentContact,
    endpoint: &ChannelEndpoint,
    credentials: Option<TlsCredentials>,
) -> Result<(TlsStream<TcpStream>, ValidityNote), EnrolError> {
    let unreachable = |source| EnrolError::Unreachable { endpoint: endpoint.clone(), source };
    let (config, note) = tls::client(contact.trust.clone(), credentials, contact.clock.now())?;
    let tcp = connect(contact.proxy.as_ref(), endpoint).await.map_err(unreachable)?;
    // The server name is only a hint for load balancers; the verifier requires the cloud's own name. A host
    // that is no DNS name (two dots in a row, for example) must not stop the request.
    let name = ServerName::try_from(endpoint.host().to_owned())
        .or_else(|_| ServerName::try_from(tls::CLOUD_NAME.to_owned()))
        .expect("the constant is a DNS name");
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    let link = connector.connect(name, tcp).await.map_err(|error| handshake_error(endpoint, error))?;
    if link.get_ref().1.alpn_protocol() != Some(wire::ALPN) {
        return Err(EnrolError::NotEnrolment { endpoint: endpoint.clone() });
    }
    Ok((link, note))
}

async fn connect(proxy: Option<&ConnectProxy>, endpoint: &ChannelEndpoint) -> std::io::Result<TcpStream> {
    let Some(proxy) = proxy.filter(|proxy| proxy.applies_to(endpoint)) else {
        return TcpStream::connect((endpoint.host(), endpoint.port())).await;
    };
    let mut tcp = TcpStream::connect((proxy.endpoint().host(), proxy.endpoint().port())).await?;
    proxy.ask(&mut tcp, endpoint).await.map_err(std::io::Error::other)?;
    Ok(tcp)
}

fn handshake_error(endpoint: &ChannelEndpoint, source: std::io::Error) -> EnrolError {
    let endpoint = endpoint.clone();
    let cause = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) => {
            EnrolError::WrongAuthority { endpoint }
        }
        Some(rustls::Error::NoApplicationProtocol | rustls::Error::InvalidMessage(_)) => {
            EnrolError::NotEnrolment { endpoint }
        }
        Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)) => {
            EnrolError::NotEnrolment { endpoint }
        }
        _ => EnrolError::Handshake { endpoint, source },
    }
}

fn compare_clocks(edge: SystemTime, cloud: SystemTime, note: &ValidityNote) -> Result<(), EnrolError> {
    match (clock::compare(edge, cloud), note.validity()) {
        (ClockSkew::Unusable, _) => Err(EnrolError::Clock { edge, cloud }),
        // The clocks agree, so the certificate has expired: nothing more is sent to a cloud that presents it.
        (_, Some((not_before, not_after))) => {
            Err(EnrolError::CloudCertificate { not_before, not_after, now: edge })
        }
        (ClockSkew::Noticeable, None) => {
            tracing::warn!(edge = %UtcTimestamp(edge), cloud = %UtcTimestamp(cloud), "this machine's clock is off: look at its time service");
            Ok(())
        }
        (ClockSkew::Fine, None) => Ok(()),
    }
}

fn check(
    answer: EnrolmentResponseBody,
    cloud_time: SystemTime,
    key: &PrivateKey,
    peer: &PeerId,
) -> Result<IssuedCertificate, EnrolError> {
    let issued = read_issued(answer, cloud_time, key)?;
    match issued.facts.peer.as_ref() == Some(peer) {
        true => Ok(issued),
        false => Err(EnrolError::Answer("its certificate is for another gateway")),
    }
}

/// Checks everything but the name in the certificate.
fn read_issued(
    answer: EnrolmentResponseBody,
    cloud_time: SystemTime,
    key: &PrivateKey,
) -> Result<IssuedCertificate, EnrolError> {
    let EnrolmentResponseBody::Issued(issued) = answer else {
        return Err(EnrolError::Answer("it answers another question"));
    };
    let certificate = CertificateDer::from(issued.certificate);
    let facts = CertificateFacts::read(&certificate)
        .map_err(|_| EnrolError::Answer("its certificate cannot be read"))?;
    if facts.key != key.hash() {
        return Err(EnrolError::Answer("its certificate is for another key"));
    }
    let authorities: Vec<_> = issued.authorities.into_iter().map(CertificateDer::from).collect();
    tls::verify_client(&certificate, &authorities)
        .map_err(|_| EnrolError::Answer("its certificate is not from a CA of its bundle"))?;
    let endpoints = issued.endpoints.iter().filter_map(|text| text.parse().ok()).collect();
    Ok(IssuedCertificate { certificate, facts, authorities, endpoints, cloud_time })
}
