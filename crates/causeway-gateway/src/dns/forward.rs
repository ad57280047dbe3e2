//! Asks upstream for names that are not ours.
//!
//! A `DnsQuery` goes in, what an upstream said comes out, over the transport the client chose; or an error, soon enough that the
//! client is still there to hear of it. Nothing is remembered: upstream has a cache, and an answer that is not kept is never stale.
//! Never asks ourselves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::message::{DnsQuery, DnsTransport, ForwardedAnswer, ForwardedQuery};
use crate::slots::{ClientSlot, ClientSlots};

/// Questions over UDP under way at the same time, of all clients. Each holds a socket and some KiB. One client gets at most half.
/// Questions over TCP are bounded by their connections, of which each has one under way.
const DATAGRAMS_MAX: usize = 1024;

/// Programs wait five seconds and ask again: they shall have heard of a failure before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardTimeouts {
    pub for_one: Duration,
    pub for_all: Duration,
}

impl Default for ForwardTimeouts {
    fn default() -> ForwardTimeouts {
        ForwardTimeouts { for_one: Duration::from_millis(1500), for_all: Duration::from_millis(4000) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("no upstream resolver is known")]
    NoUpstream,
    #[error("no upstream resolver answers")]
    Away,
}

impl ForwardError {
    pub fn word(self) -> &'static str {
        match self {
            ForwardError::NoUpstream => "no-upstream",
            ForwardError::Away => "away",
        }
    }
}

pub struct Forwarder {
    upstreams: watch::Receiver<Vec<SocketAddr>>,
    patience: ForwardTimeouts,
    slots: ClientSlots,
    /// Where the last answer came from: one that is away costs its time once, not with every question.
    first: AtomicUsize,
}

impl Forwarder {
    /// `upstreams` are without our own addresses: see `without_ourselves`.
    pub fn new(upstreams: watch::Receiver<Vec<SocketAddr>>, patience: ForwardTimeouts) -> Forwarder {
        let slots = ClientSlots::new(DATAGRAMS_MAX);
        Forwarder { upstreams, patience, slots, first: AtomicUsize::new(0) }
    }

    /// A slot for one question over UDP, to be held while it is under way. None: this client has its share, or all are taken.
    pub fn slot(&self, client: IpAddr) -> Option<ClientSlot> {
        self.slots.take(client)
    }

    /// Asks one after the other until one answers. A server that says it failed is believed only when no other does better.
    pub async fn ask(&self, query: &DnsQuery, over: DnsTransport) -> Result<ForwardedAnswer, ForwardError> {
        let upstreams = self.upstreams.borrow().clone();
        if upstreams.is_empty() {
            return Err(ForwardError::NoUpstream);
        }
        let first = self.first.load(Ordering::Relaxed);
        let deadline = Instant::now() + self.patience.for_all;
        let mut failure = None;
        for turn in (0..upstreams.len()).map(|turn| (first + turn) % upstreams.len()) {
            let until = deadline.min(Instant::now() + self.patience.for_one);
            match timeout_at(until, exchange(upstreams[turn], query, over)).await {
                Ok(Ok(returned)) if !returned.is_failure() => {
                    self.first.store(turn, Ordering::Relaxed);
                    return Ok(returned);
                }
                Ok(Ok(returned)) => failure = Some(returned),
                Ok(Err(error)) => {
                    tracing::debug!(upstream = %upstreams[turn], %error, "upstream did not answer")
                }
                Err(_) => tracing::debug!(upstream = %upstreams[turn], "upstream did not answer in time"),
            }
        }
        failure.ok_or(ForwardError::Away)
    }
}

async fn exchange(
    upstream: SocketAddr,
    query: &DnsQuery,
    over: DnsTransport,
) -> std::io::Result<ForwardedAnswer> {
    // New for each: an answer to an earlier try is not taken for one to this.
    let asked = query.onward();
    match over {
        DnsTransport::Udp => exchange_datagrams(upstream, query, &asked).await,
        DnsTransport::Tcp => exchange_messages(upstream, query, &asked).await,
    }
}

/// A socket of its own for each question: its port is one more number that somebody who lies must guess, and the kernel lets
/// only the server we asked answer.
async fn exchange_datagrams(
    upstream: SocketAddr,
    query: &DnsQuery,
    asked: &ForwardedQuery,
) -> std::io::Result<ForwardedAnswer> {
    let local: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(asked.bytes()).await?;
    // One more than may come: so that what is too long is seen to be, not passed on without its end.
    let mut buffer = vec![0; query.reply_bytes_max(DnsTransport::Udp) + 1];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(returned) = query.returned(asked, buffer[..length].to_vec()) {
            return Ok(returned);
        }
    }
}

async fn exchange_messages(
    upstream: SocketAddr,
    query: &DnsQuery,
    asked: &ForwardedQuery,
) -> std::io::Result<ForwardedAnswer> {
    let mut stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let length = u16::try_from(asked.bytes().len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), asked.bytes()].concat()).await?;
    let length = stream.read_u16().await?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    let odd = || std::io::Error::other("the answer is to another question");
    query.returned(asked, message).ok_or_else(odd)
}

/// Upstreams without the addresses we listen on ourselves: a question must not come back to us.
/// `local` are this host's addresses, for listeners on all of them.
pub fn without_ourselves(
    upstreams: &[SocketAddr],
    listening: &[SocketAddr],
    local: &[IpAddr],
) -> Vec<SocketAddr> {
    let is_ours = |upstream: &SocketAddr| {
        let ip = upstream.ip().to_canonical();
        let is_here = ip.is_loopback() || ip.is_unspecified() || local.contains(&ip);
        listening.iter().filter(|ours| ours.port() == upstream.port()).any(|ours| {
            ours.ip().to_canonical() == ip
                // An unspecified address reaches this host, as a listener on all addresses is reached by each.
                || (is_here && (ours.ip().is_unspecified() || ip.is_unspecified()))
        })
    };
    upstreams.iter().filter(|upstream| !is_ours(upstream)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_never_ask_ourselves() {
        let parse =
            |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let local: Vec<IpAddr> = vec!["10.0.0.2".parse().unwrap()];
        let check = |upstreams: &[&str], listening: &[&str], left: &[&str]| {
            assert_eq!(without_ourselves(&parse(upstreams), &parse(listening), &local), parse(left));
        };
        check(&["127.0.0.1:53", "10.0.0.1:53"], &["127.0.0.1:53"], &["10.0.0.1:53"]);
        check(&["[::ffff:127.0.0.1]:53"], &["127.0.0.1:53"], &[]);
        // Somebody else's port on our address is somebody else.
        check(&["127.0.0.1:5353"], &["127.0.0.1:53"], &["127.0.0.1:5353"]);
        check(&["127.0.0.53:53"], &["127.0.0.1:53", "[::1]:53"], &["127.0.0.53:53"]);
        check(&["10.0.0.2:53", "127.0.0.9:53", "10.0.0.1:53"], &["0.0.0.0:53"], &["10.0.0.1:53"]);
        check(&["0.0.0.0:53"], &["127.0.0.1:53"], &[]);
        check(&["127.0.0.1:53"], &[], &["127.0.0.1:53"]);
    }
}
