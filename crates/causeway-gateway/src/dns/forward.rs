//! Forwards queries for names that are not ours to upstream resolvers.
//!
//! Input: a `DnsQuery`. Output: the reply of an upstream, over the transport the client chose, or an error
//! before the client has timed out. Nothing is cached: upstream has a cache, and an answer that is not stored
//! cannot become stale. Our own addresses are never asked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::message::{DnsQuery, DnsTransport, ForwardedAnswer, ForwardedQuery};
use crate::slots::{ClientSlot, ClientSlots};

/// The maximum number of forwarded UDP queries in flight, over all clients. Each holds a socket and some KiB.
/// One client gets at most half. Queries over TCP are bounded by their connections, which have one query in
/// flight each.
const DATAGRAMS_MAX: usize = 1024;

/// Client resolvers time out after five seconds and retry: a failure must reach them before that.
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
    /// The index of the upstream that answered last. It is asked first, so that an unreachable resolver costs
    /// its timeout once and not with every query.
    first: AtomicUsize,
}

impl Forwarder {
    /// `upstreams` must not contain our own addresses: see `without_ourselves`.
    pub fn new(upstreams: watch::Receiver<Vec<SocketAddr>>, patience: ForwardTimeouts) -> Forwarder {
        let slots = ClientSlots::new(DATAGRAMS_MAX);
        Forwarder { upstreams, patience, slots, first: AtomicUsize::new(0) }
    }

    /// Takes a slot for one UDP query, to be held while it is in flight. None: this client has used its
    /// share, or all slots are taken.
    pub fn slot(&self, client: IpAddr) -> Option<ClientSlot> {
        self.slots.take(client)
    }

    /// Asks one upstream after the other until one answers. A reply with a server failure is used only if no
    /// other upstream answers better.
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
                    tracing::debug!(upstream = %upstreams[turn], %error, "upstream resolver failed")
                }
                Err(_) => tracing::debug!(upstream = %upstreams[turn], "upstream resolver timed out"),
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
    // New for each try: a late answer to an earlier try is not accepted for this one.
    let asked = query.onward();
    match over {
        DnsTransport::Udp => exchange_datagrams(upstream, query, &asked).await,
        DnsTransport::Tcp => exchange_messages(upstream, query, &asked).await,
    }
}

/// Uses a new socket for each query: its port is one more number that an off-path attacker must guess, and
/// the kernel accepts datagrams only from the server we asked.
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
    // One byte more than the maximum, so that an oversized answer is detected and not forwarded without its
    // end.
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
    let mismatch = || std::io::Error::other("the upstream answered another question");
    query.returned(asked, message).ok_or_else(mismatch)
}

/// Removes the addresses on which we listen from the upstreams: a query must not come back to us. `local` are
/// this host's addresses, for listeners on all of them.
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
                // An unspecified address reaches this host, and a listener on all addresses is reached by
                // each of them.
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
        // Another port on our address belongs to another program.
        check(&["127.0.0.1:5353"], &["127.0.0.1:53"], &["127.0.0.1:5353"]);
        check(&["127.0.0.53:53"], &["127.0.0.1:53", "[::1]:53"], &["127.0.0.53:53"]);
        check(&["10.0.0.2:53", "127.0.0.9:53", "10.0.0.1:53"], &["0.0.0.0:53"], &["10.0.0.1:53"]);
        check(&["0.0.0.0:53"], &["127.0.0.1:53"], &[]);
        check(&["127.0.0.1:53"], &[], &["127.0.0.1:53"]);
    }
}
