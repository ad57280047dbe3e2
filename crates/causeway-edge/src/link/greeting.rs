//! From nothing to a session: dial, open the control stream, say hello, wait for the cloud's word.
//!
//! The supervisor sets the deadlines; whoever drops the future gives the attempt up, and its link with it.

use std::time::Duration;

use causeway_channel::dial::{DialError, Dialer};
use causeway_channel::link::{Link, LinkClosed, Purpose, RecvStream, SendStream, StreamError, StreamHeader};
use causeway_channel::session::{Attempted, Failure};
use causeway_channel::wire::control::{
    CloudMessage, CloudSays, ControlError, Hello, Reader, Refused, Welcome, Writer, encode_edge,
};

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
        Some(CloudSays::Welcome(welcome)) => Ok(Greeted { link, reader, writer, welcome }),
        Some(CloudSays::Refused(refused)) => Err(GreetError::Refused(refused)),
        _ => Err(GreetError::Answer),
    }
}
