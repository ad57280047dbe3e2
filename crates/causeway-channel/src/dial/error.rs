//! Errors of a dial, for every endpoint and route, the most informative first.

use std::fmt;
use std::io;
use std::time::Duration;

use causeway_api::error_chain;

use super::plan::DialRoute;
use super::proxy::ProxyDialError;
use crate::quic::ConnectError;
use crate::tls::TlsError;
use crate::token::ChannelEndpoint;

/// Reason for which one attempt gave no link.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    #[error("the name cannot be resolved")]
    Resolve(#[source] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error("no socket could be opened here")]
    Socket(#[source] io::Error),
    #[error("it cannot be reached")]
    Connect(#[source] io::Error),
    #[error("the proxy {proxy} cannot be reached")]
    ProxyAway { proxy: ChannelEndpoint, source: io::Error },
    #[error("the proxy {proxy} leads nowhere")]
    Proxy { proxy: ChannelEndpoint, source: ProxyDialError },
    #[error("TLS failed")]
    Handshake(#[source] io::Error),
    #[error("QUIC failed")]
    Quic(#[source] ConnectError),
    #[error(
        "it does not speak the channel's protocol: it is not the channel port of a cloud, or an older one"
    )]
    NotChannel,
    #[error(
        "the server is not the cloud that this edge belongs to: its certificate is from another CA \
         (a CA that was replaced since, or an interception in between)"
    )]
    WrongAuthority,
}

impl AttemptError {
    pub(super) fn of_handshake(source: io::Error) -> AttemptError {
        use rustls::{AlertDescription, CertificateError, Error};
        match source.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            // A bad signature: a CA of the same name, but with another key.
            Some(Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => AttemptError::WrongAuthority,
            Some(
                Error::NoApplicationProtocol
                | Error::InvalidMessage(_)
                | Error::AlertReceived(AlertDescription::NoApplicationProtocol),
            ) => AttemptError::NotChannel,
            _ => AttemptError::Handshake(source),
        }
    }

    /// Rank of progress: an attempt that got further is more informative.
    fn distance(&self) -> u8 {
        match self {
            AttemptError::Timeout(_) => 0,
            AttemptError::Resolve(_) | AttemptError::NoAddress | AttemptError::Socket(_) => 1,
            AttemptError::Connect(_) | AttemptError::ProxyAway { .. } => 2,
            AttemptError::Proxy { .. } => 3,
            AttemptError::Handshake(_) | AttemptError::Quic(_) => 4,
            AttemptError::NotChannel => 5,
            AttemptError::WrongAuthority => 6,
        }
    }
}

/// One failed attempt. Without a route, name resolution failed.
#[derive(Debug)]
pub struct FailedAttempt {
    pub endpoint: ChannelEndpoint,
    pub route: Option<DialRoute>,
    pub error: AttemptError,
}

impl fmt::Display for FailedAttempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.endpoint)?;
        match self.route {
            None => {}
            Some(DialRoute::Quic(address)) => write!(formatter, " over QUIC ({address})")?,
            Some(DialRoute::Tcp(address)) => write!(formatter, " over TCP ({address})")?,
            Some(DialRoute::Proxy) => write!(formatter, " over TCP through the proxy")?,
        }
        write!(formatter, ": {}", error_chain(&self.error))
    }
}

/// No link came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No attempt was made: our own certificate or bundle cannot be used.
    #[error("the credentials do not fit TLS")]
    Tls(#[from] TlsError),
    #[error("no endpoint of the cloud is known")]
    NoEndpoint,
    #[error("the cloud cannot be reached: {}", list(.0))]
    Unreachable(Vec<FailedAttempt>),
}

/// A cloud with many dead addresses must not fill a page of the log.
const SHOWN_MAX: usize = 8;

fn list(failed: &[FailedAttempt]) -> String {
    let mut text = failed.iter().take(SHOWN_MAX).map(FailedAttempt::to_string).collect::<Vec<_>>().join("; ");
    if failed.len() > SHOWN_MAX {
        text.push_str(&format!("; and {} more", failed.len() - SHOWN_MAX));
    }
    text
}

impl DialError {
    pub(super) fn new(mut failed: Vec<FailedAttempt>) -> DialError {
        if failed.is_empty() {
            return DialError::NoEndpoint;
        }
        failed.sort_by_key(|failed| std::cmp::Reverse(failed.error.distance()));
        DialError::Unreachable(failed)
    }

    /// Returns whether every attempt timed out and none got any response.
    pub fn is_timeout(&self) -> bool {
        let failed = self.failed();
        !failed.is_empty() && failed.iter().all(|failed| matches!(failed.error, AttemptError::Timeout(_)))
    }

    /// Returns the wait that a busy cloud asked for.
    pub fn busy(&self) -> Option<Duration> {
        let told = self.failed().iter().filter_map(|failed| match &failed.error {
            AttemptError::Quic(ConnectError::Busy(busy)) => Some(busy.wait),
            _ => None,
        });
        told.min()
    }

    /// Returns every attempt, the most informative first.
    pub fn failed(&self) -> &[FailedAttempt] {
        match self {
            DialError::Unreachable(failed) => failed,
            DialError::Tls(_) | DialError::NoEndpoint => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_comes_first_and_all_are_named() {
        let failed =
            |route, error| FailedAttempt { endpoint: "cloud.example:7444".parse().unwrap(), route, error };
        let address = "192.0.2.1:7444".parse().unwrap();
        let error = DialError::new(vec![
            failed(Some(DialRoute::Quic(address)), AttemptError::Timeout(Duration::from_secs(2))),
            failed(None, AttemptError::NoAddress),
            failed(Some(DialRoute::Tcp(address)), AttemptError::WrongAuthority),
        ]);
        let text = error.to_string();
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
        assert!(place("over TCP (192.0.2.1:7444): the server is not the cloud") < place("has no address"));
        assert!(place("has no address") < place("over QUIC (192.0.2.1:7444): no answer within 2000 ms"));
        assert!(matches!(DialError::new(Vec::new()), DialError::NoEndpoint));
    }
}
