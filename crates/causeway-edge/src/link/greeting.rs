//! From nothing to a session: dial, open the control stream, say hello, wait for the cloud's word.
//!
//! The supervisor sets the deadlines; whoever drops the future gives the attempt up, and its link with it.

use std::time::Duration;

use causeway_channel::dial::{DialError, Dialer};
use causeway_channel::link::{
    CloseCode, ClosedBy, Link, LinkClosed, Purpose, RecvStream, SendStream, StreamError, StreamHeader,
};
use causeway_channel::session::{Attempted, Failure};
use causeway_channel::wire::control::{
    CloudMessage, CloudSays, ControlError, Hello, Reader, Refused, RefusedCode, Welcome, Writer, encode_edge,
};
use tokio::time::timeout;

/// An edge whose key was revoked need not ask often.
const REVOKED_RETRY: Duration = Duration::from_secs(30);
/// How long the reason of a broken link may be behind the end of its streams.
const CLOSE_GRACE: Duration = Duration::from_millis(200);

/// A link whose session the cloud has taken.
pub struct Greeted {
    pub link: Link,
    pub reader: Reader<RecvStream, CloudMessage>,
    pub writer: Writer<SendStream>,
    pub welcome: Welcome,
}

#[derive(Debug, thiserror::Error)]
pub enum GreetError {
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
    Refused(#[source] Refused),
    #[error("the cloud answers hello with something else: edge and cloud may be of different versions")]
    Answer,
}

impl GreetError {
    /// In the words of the supervisor.
    pub fn failure(&self) -> Failure {
        match self {
            GreetError::Refused(refused) => Failure::Refused {
                code: refused.reason(),
                retry_after: Duration::from_millis(refused.retry_after_ms.into()),
                current_epoch: refused.current_epoch,
            },
            GreetError::Dial(error) => Failure::of_dial(error),
            // A cloud that knows the key to be revoked makes no link for it, so there is no refusal to read.
            GreetError::Closed(closed)
                if closed.by == ClosedBy::Peer && closed.reason.code == CloseCode::Revoked =>
            {
                let code = RefusedCode::Revoked;
                Failure::Refused { code, retry_after: REVOKED_RETRY, current_epoch: 0 }
            }
            _ => Failure::Unreachable,
        }
    }
}

/// One attempt. `dialed` is called when the link stands.
pub async fn greet(
    dialer: Dialer,
    transports: Attempted,
    patience: Duration,
    hello: Hello,
    dialed: impl FnOnce() + Send,
) -> Result<Greeted, GreetError> {
    let link = dialer.dial_patiently(transports.transport(), patience).await?;
    dialed();
    match say_hello(&link, hello).await {
        // The link may know more than the stream, a moment later.
        Err(error @ (GreetError::Open(_) | GreetError::Control(_) | GreetError::Ended)) => {
            match timeout(CLOSE_GRACE, link.closed()).await {
                Ok(closed) => Err(GreetError::Closed(closed)),
                Err(_) => Err(error),
            }
        }
        other => other,
    }
}

async fn say_hello(link: &Link, hello: Hello) -> Result<Greeted, GreetError> {
    let (send, recv) = link.open_stream(StreamHeader::new(Purpose::Control)).await?.split();
    let (mut reader, mut writer) = (Reader::of_cloud(recv), Writer::new(send));
    writer.push(encode_edge(hello)?);
    writer.drain().await?;
    let answer = tokio::select! {
        biased;
        answer = reader.next() => answer?.ok_or(GreetError::Ended)?,
        closed = link.closed() => return Err(GreetError::Closed(closed)),
    };
    match answer.says {
        Some(CloudSays::Welcome(welcome)) => Ok(Greeted { link: link.clone(), reader, writer, welcome }),
        Some(CloudSays::Refused(refused)) => Err(GreetError::Refused(refused)),
        _ => Err(GreetError::Answer),
    }
}
