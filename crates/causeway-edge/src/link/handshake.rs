//! Establishes a session: dials, opens the control stream, sends hello, waits for the welcome of the cloud.
//!
//! The supervisor sets the deadlines. Dropping the future abandons the attempt and its link.

use std::time::Duration;

use causeway_channel::dial::{DialError, LinkDialer};
use causeway_channel::link::{
    CloseCode, ClosedBy, Link, LinkClosed, RecvStream, SendStream, StreamError, StreamHeader, StreamPurpose,
};
use causeway_channel::session::{AttemptFailure, AttemptedTransports};
use causeway_channel::wire::control::{
    CloudMessage, CloudMessageBody, ControlError, ControlReader, ControlWriter, Hello, SessionRefused,
    SessionRefusedCode, Welcome, encode_edge,
};
use tokio::time::timeout;

/// An edge whose key was revoked need not ask often.
const REVOKED_RETRY: Duration = Duration::from_secs(30);
/// The time by which the close reason of a broken link may arrive after the end of its streams.
const CLOSE_GRACE: Duration = Duration::from_millis(200);

/// A link whose session the cloud has accepted.
pub struct EstablishedSession {
    pub link: Link,
    pub reader: ControlReader<RecvStream, CloudMessage>,
    pub writer: ControlWriter<SendStream>,
    pub welcome: Welcome,
}

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the control stream could not be opened")]
    Open(#[from] StreamError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the cloud closed the link before it answered: {0}")]
    Closed(LinkClosed),
    #[error("the cloud ended the control stream before it answered")]
    Ended,
    #[error("the cloud refused the session")]
    Refused(#[source] SessionRefused),
    #[error("the cloud answers hello with something else: edge and cloud may be of different versions")]
    Answer,
}

impl HandshakeError {
    /// The failure in the types of the supervisor.
    pub fn failure(&self) -> AttemptFailure {
        match self {
            HandshakeError::Refused(refused) => AttemptFailure::Refused {
                code: refused.reason(),
                retry_after: Duration::from_millis(refused.retry_after_ms.into()),
                current_epoch: refused.current_epoch,
            },
            HandshakeError::Dial(error) => AttemptFailure::of_dial(error),
            // A cloud that knows the key to be revoked makes no link for it, so there is no refusal to read.
            HandshakeError::Closed(closed)
                if closed.by == ClosedBy::Peer && closed.reason.code == CloseCode::Revoked =>
            {
                let code = SessionRefusedCode::Revoked;
                AttemptFailure::Refused { code, retry_after: REVOKED_RETRY, current_epoch: 0 }
            }
            _ => AttemptFailure::Unreachable,
        }
    }
}

/// One attempt. `dialed` is called when the link is established.
pub async fn establish_session(
    dialer: LinkDialer,
    transports: AttemptedTransports,
    patience: Duration,
    hello: Hello,
    dialed: impl FnOnce() + Send,
) -> Result<EstablishedSession, HandshakeError> {
    let link = dialer.dial_with(transports.transport(), patience).await?;
    dialed();
    match say_hello(&link, hello).await {
        // The link may know more than the stream, a moment later.
        Err(error @ (HandshakeError::Open(_) | HandshakeError::Control(_) | HandshakeError::Ended)) => {
            match timeout(CLOSE_GRACE, link.closed()).await {
                Ok(closed) => Err(HandshakeError::Closed(closed)),
                Err(_) => Err(error),
            }
        }
        other => other,
    }
}

async fn say_hello(link: &Link, hello: Hello) -> Result<EstablishedSession, HandshakeError> {
    let (send, recv) = link.open_stream(StreamHeader::new(StreamPurpose::Control)).await?.split();
    let (mut reader, mut writer) = (ControlReader::of_cloud(recv), ControlWriter::new(send));
    writer.push(encode_edge(hello)?);
    writer.drain().await?;
    let answer = tokio::select! {
        biased;
        answer = reader.next() => answer?.ok_or(HandshakeError::Ended)?,
        closed = link.closed() => return Err(HandshakeError::Closed(closed)),
    };
    match answer.body {
        Some(CloudMessageBody::Welcome(welcome)) => {
            Ok(EstablishedSession { link: link.clone(), reader, writer, welcome })
        }
        Some(CloudMessageBody::Refused(refused)) => Err(HandshakeError::Refused(refused)),
        _ => Err(HandshakeError::Answer),
    }
}
