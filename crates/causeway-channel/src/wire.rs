//! Messages of enrolment, and their encoding.
//!
//! ALPN `causeway-enrol/1`. The cloud sends first (`EnrolmentHello`, with its time), so that a wrong clock is
//! detected before a secret is sent. Then follow one `EnrolmentRequest` and one `EnrolmentResponse`. Each is
//! protobuf behind a length of four bytes, 64 KiB at most (`frame`). An unknown field is ignored; an unknown
//! request or response is an error that names the version; an unknown refusal code is read as `Other`, with
//! its text. The bytes are pinned by `tests/it/wire_fixtures.rs`.

pub mod control;
pub mod datagrams;
mod frame;

use std::fmt;
use std::io;

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub const ALPN: &[u8] = b"causeway-enrol/1";
pub const VERSION: u32 = 1;
/// A bundle of two CAs and a certificate are below 4 KiB.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// First message, sent by the cloud.
#[derive(Clone, PartialEq, Message)]
pub struct EnrolmentHello {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Seconds since 1970, by the cloud's clock.
    #[prost(int64, tag = "2")]
    pub time: i64,
}

/// Request of an edge. `Debug` is not derived, because it would show a secret.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct EnrolmentRequest {
    /// Seconds since 1970, by the edge's clock.
    #[prost(int64, tag = "1")]
    pub time: i64,
    #[prost(oneof = "EnrolmentRequestBody", tags = "2, 3, 4, 5, 6")]
    pub ask: Option<EnrolmentRequestBody>,
}

impl fmt::Debug for EnrolmentRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Request({})", self.ask.as_ref().map_or("nothing", EnrolmentRequestBody::name))
    }
}

#[derive(Clone, PartialEq, prost::Oneof)]
#[prost(skip_debug)]
pub enum EnrolmentRequestBody {
    /// Requests a first certificate, with the secret of a token.
    #[prost(message, tag = "2")]
    Enrol(EnrolMessage),
    /// Requests the next certificate, over mutual TLS with the current one.
    #[prost(message, tag = "3")]
    Renew(RenewMessage),
    /// Requests a new certificate for an expired one.
    #[prost(message, tag = "4")]
    Reenrol(ReenrolMessage),
    /// Asks whether to renew before the regular time. Over mutual TLS.
    #[prost(message, tag = "5")]
    Check(CheckMessage),
    /// Requests a certificate for the gateway of a node, with the service-account token of a pod on it.
    #[prost(message, tag = "6")]
    EnrolNode(EnrolNodeMessage),
}

impl EnrolmentRequestBody {
    pub fn name(&self) -> &'static str {
        match self {
            EnrolmentRequestBody::Enrol(_) => "enrol",
            EnrolmentRequestBody::Renew(_) => "renew",
            EnrolmentRequestBody::Reenrol(_) => "re-enrol",
            EnrolmentRequestBody::Check(_) => "check",
            EnrolmentRequestBody::EnrolNode(_) => "enrol-node",
        }
    }
}

impl fmt::Debug for EnrolmentRequestBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct EnrolMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub secret: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub csr: Vec<u8>,
}

impl fmt::Debug for EnrolMessage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Enrol(…)")
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct RenewMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub csr: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReenrolMessage {
    /// Signed by the key of the expired certificate.
    #[prost(bytes = "vec", tag = "1")]
    pub csr: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub certificate: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CheckMessage {
    /// `bundle_hash` of the CAs the edge trusts.
    #[prost(bytes = "vec", tag = "1")]
    pub bundle: Vec<u8>,
}

/// Longest service-account token that is sent or accepted. Those of Kubernetes have about a kilobyte.
pub const SERVICE_ACCOUNT_TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The request names no gateway: the cloud's cluster tells the node of the pod.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct EnrolNodeMessage {
    /// The token as in its file: a JSON Web Token.
    #[prost(string, tag = "1")]
    pub token: String,
    #[prost(bytes = "vec", tag = "2")]
    pub csr: Vec<u8>,
}

impl fmt::Debug for EnrolNodeMessage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EnrolNode(…)")
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct EnrolmentResponse {
    #[prost(oneof = "EnrolmentResponseBody", tags = "1, 2, 3")]
    pub answer: Option<EnrolmentResponseBody>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum EnrolmentResponseBody {
    #[prost(message, tag = "1")]
    Issued(IssuedMessage),
    #[prost(message, tag = "2")]
    Refused(EnrolmentRefusal),
    #[prost(message, tag = "3")]
    Checked(CheckedMessage),
}

#[derive(Clone, PartialEq, Message)]
pub struct IssuedMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub certificate: Vec<u8>,
    /// All CAs to trust from now on, in DER.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub authorities: Vec<Vec<u8>>,
    /// Endpoints to dial from now on. Empty: unchanged.
    #[prost(string, repeated, tag = "3")]
    pub endpoints: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CheckedMessage {
    /// Renew now, regardless of the certificate's age.
    #[prost(bool, tag = "1")]
    pub renew: bool,
}

/// Reason of a refusal, for the program (`code`) and for people (`message`, `hint`).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EnrolmentRefusal {
    #[prost(enumeration = "EnrolmentCode", tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    /// The action that resolves it.
    #[prost(string, tag = "3")]
    pub hint: String,
    #[prost(uint32, tag = "4")]
    pub retry_after_seconds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum EnrolmentCode {
    Other = 0,
    Malformed = 1,
    RateLimited = 2,
    Unavailable = 3,
    TokenUnknown = 4,
    TokenExpired = 5,
    TokenUsed = 6,
    TokenDeleted = 7,
    BadRequest = 8,
    Revoked = 9,
    /// The key is not, or no longer, the gateway's.
    NotCurrent = 10,
    GraceOver = 11,
    CertificateNeeded = 12,
    CertificateExpired = 13,
    /// The certificate was issued by a CA that is not, or no longer, trusted.
    WrongAuthority = 14,
    Version = 15,
    /// The cluster vouches for the pod, but the cloud's configuration or an earlier enrolment does not admit its node.
    NotPermitted = 16,
}

impl EnrolmentRefusal {
    pub fn new(code: EnrolmentCode, message: impl Into<String>, hint: impl Into<String>) -> EnrolmentRefusal {
        EnrolmentRefusal {
            code: code.into(),
            message: message.into(),
            hint: hint.into(),
            retry_after_seconds: 0,
        }
    }

    pub fn reason(&self) -> EnrolmentCode {
        EnrolmentCode::try_from(self.code).unwrap_or(EnrolmentCode::Other)
    }

    /// Returns whether the same request may succeed later without any action.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self.reason(),
            EnrolmentCode::Other | EnrolmentCode::RateLimited | EnrolmentCode::Unavailable
        )
    }

    /// Returns whether the edge's identity has ended, so that it needs a new token.
    pub fn needs_new_token(&self) -> bool {
        matches!(
            self.reason(),
            EnrolmentCode::Revoked
                | EnrolmentCode::NotCurrent
                | EnrolmentCode::GraceOver
                | EnrolmentCode::WrongAuthority
        )
    }
}

impl fmt::Display for EnrolmentRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        frame::write_refusal(formatter, &self.message, &self.hint)
    }
}

impl std::error::Error for EnrolmentRefusal {}

#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("the link broke")]
    Io(#[from] io::Error),
    #[error("a message of {bytes} bytes was announced and {MESSAGE_BYTES_MAX} are allowed")]
    TooLong { bytes: usize },
    #[error("a message cannot be read")]
    Malformed(#[from] prost::DecodeError),
}

impl From<frame::FrameTooLong> for WireError {
    fn from(error: frame::FrameTooLong) -> WireError {
        WireError::TooLong { bytes: error.bytes }
    }
}

/// Reads one message. The caller sets the deadline.
pub async fn read<M: Message + Default>(link: &mut (impl AsyncRead + Unpin)) -> Result<M, WireError> {
    let mut prefix = [0; frame::LENGTH_BYTES];
    link.read_exact(&mut prefix).await?;
    let bytes = frame::length(prefix, MESSAGE_BYTES_MAX)?;
    let mut body = Vec::new();
    // The length is announced by the peer, so memory grows with the bytes that arrive.
    let received = link.take(bytes as u64).read_to_end(&mut body).await?;
    if received < bytes {
        return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(M::decode(&body[..])?)
}

/// Writes one message and flushes it.
pub async fn write(link: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> Result<(), WireError> {
    link.write_all(&frame::encode(message, MESSAGE_BYTES_MAX)?).await?;
    link.flush().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn request() -> EnrolmentRequest {
        let enrol = EnrolMessage { secret: vec![42; 32], csr: vec![1, 2, 3] };
        EnrolmentRequest { time: 5, ask: Some(EnrolmentRequestBody::Enrol(enrol)) }
    }

    #[test]
    fn a_message_survives_the_link() {
        let mut bytes = Vec::new();
        block_on(write(&mut bytes, &request())).unwrap();
        assert_eq!(block_on(read::<EnrolmentRequest>(&mut &bytes[..])).unwrap(), request());
    }

    #[test]
    fn no_debug_shows_the_secret() {
        let shown = format!("{:?} {:?}", request(), request().ask.unwrap());
        assert!(!shown.contains("42"), "{shown}");
        let node = EnrolNodeMessage { token: "eyJ42".into(), csr: Vec::new() };
        let shown = format!("{node:?} {:?}", EnrolmentRequestBody::EnrolNode(node.clone()));
        assert!(!shown.contains("42"), "{shown}");
    }

    #[test]
    fn broken_frames_are_refused() {
        let huge = [0xff, 0xff, 0xff, 0xff, 1];
        assert!(matches!(block_on(read::<EnrolmentRequest>(&mut &huge[..])), Err(WireError::TooLong { .. })));
        let short = [0, 0, 0, 9, 1];
        assert!(matches!(block_on(read::<EnrolmentRequest>(&mut &short[..])), Err(WireError::Io(_))));
        let garbage = [0, 0, 0, 2, 0xff, 0xff];
        assert!(matches!(
            block_on(read::<EnrolmentRequest>(&mut &garbage[..])),
            Err(WireError::Malformed(_))
        ));
        let long = RenewMessage { csr: vec![0; MESSAGE_BYTES_MAX] };
        assert!(matches!(block_on(write(&mut Vec::new(), &long)), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn refusals_of_a_newer_cloud_are_readable() {
        let refusal = EnrolmentRefusal {
            code: 99,
            message: "no".into(),
            hint: "\u{1b}[2Jwait".into(),
            retry_after_seconds: 0,
        };
        assert_eq!(refusal.reason(), EnrolmentCode::Other);
        assert_eq!(refusal.to_string(), "no ([2Jwait)");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = block_on(read::<EnrolmentRequest>(&mut &bytes[..]));
            let _ = block_on(read::<EnrolmentResponse>(&mut &bytes[..]));
            let _ = EnrolmentRequest::decode(&bytes[..]);
            let _ = EnrolmentResponse::decode(&bytes[..]);
            let _ = EnrolmentHello::decode(&bytes[..]);
        }
    }
}
