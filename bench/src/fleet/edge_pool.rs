//! Many simulated edges in this process: started at a rate the cloud can follow, watched, stopped.
//!
//! They use many addresses of the loopback, because a cloud bounds the requests of one address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use causeway_channel::dial::{DialConfig, DialTransports, LinkDialer};
use causeway_channel::quic::{ORDINARY_PACKET_BYTES, QuicOptions};
use causeway_channel::session::AllowedTransports;
use causeway_channel::tls::{self, TrustAnchors};
use causeway_channel::{ChannelEndpoint, Transport};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::edge::Edge;
use super::edge_events::EdgeEvents;
use super::identity::FleetIdentity;

/// Edges that share an address, and over QUIC a socket, as behind one NAT.
const EDGES_PER_ADDRESS: usize = 100;
/// The maximum number of edges that attach concurrently when the fleet is started.
const COMING_MAX: usize = 256;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub struct SimulatedEdges {
    pub events: Arc<EdgeEvents>,
    /// One for each edge, in the order in which they were started.
    stops: Vec<CancellationToken>,
    tasks: TaskTracker,
}

impl SimulatedEdges {
    /// Attaches `count` edges to the cloud at `address`, and waits until all are attached.
    pub async fn gather(
        identity: &FleetIdentity,
        address: SocketAddr,
        transport: Transport,
        count: usize,
        within: Duration,
    ) -> Result<SimulatedEdges> {
        let mut edge_pool = SimulatedEdges {
            events: Arc::new(EdgeEvents::new(count)),
            stops: Vec::with_capacity(count),
            tasks: TaskTracker::new(),
        };
        let begin = Instant::now();
        let bundle_hash = bytes::Bytes::copy_from_slice(&tls::bundle_hash(&identity.authorities));
        let mut shared = None;
        for (number, credentials) in identity.credentials.iter().take(count).enumerate() {
            while number - edge_pool.events.attached().min(number) >= COMING_MAX {
                ensure!(begin.elapsed() < within, "{}", edge_pool.lagging());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let endpoint: ChannelEndpoint = address.to_string().parse()?;
            let trust = TrustAnchors::Bundle(identity.authorities.clone());
            let (transports, allowed) = match transport {
                Transport::Quic => (DialTransports::QuicOnly, AllowedTransports::QuicOnly),
                Transport::Tcp => (DialTransports::TcpOnly, AllowedTransports::TcpOnly),
            };
            let config = DialConfig {
                transports,
                from: Some(address_of(number)),
                quic: ordinary_path(),
                ..DialConfig::new(vec![endpoint], trust, credentials.clone())
            };
            let dialer = match &shared {
                Some(shared) if number % EDGES_PER_ADDRESS != 0 => LinkDialer::with_config(shared, config),
                _ => shared.insert(LinkDialer::new(config)).clone(),
            };
            let (events, bundle_hash) = (edge_pool.events.clone(), bundle_hash.clone());
            let stop = CancellationToken::new();
            edge_pool.stops.push(stop.clone());
            edge_pool.tasks.spawn(Edge { number, dialer, bundle_hash, allowed, events }.run(stop));
        }
        edge_pool.wait_for_return(begin, begin + within).await?;
        Ok(edge_pool)
    }

    /// Waits until all edges have attached after `moment`.
    pub async fn wait_for_return(&self, moment: Instant, deadline: Instant) -> Result<()> {
        let expected = self.expected();
        while self.events.attached_since(moment) < expected {
            ensure!(Instant::now() < deadline, "{}", self.lagging());
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// The number of edges that were not stopped.
    pub fn expected(&self) -> usize {
        self.stops.iter().filter(|stop| !stop.is_cancelled()).count()
    }

    /// Stops all edges after the first `count`.
    pub fn shrink(&self, count: usize) {
        self.stops.iter().skip(count).for_each(CancellationToken::cancel);
    }

    pub async fn end(self) {
        self.shrink(0);
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn lagging(&self) -> String {
        let failures = self.events.returned(Instant::now()).failures;
        format!(
            "only {} of {} edges are attached; what failed: {failures:?}",
            self.events.attached(),
            self.expected()
        )
    }
}

/// Real edges are on other hosts, behind Ethernet; the shared host must not affect the result.
fn ordinary_path() -> QuicOptions {
    QuicOptions { packet_bytes_max: ORDINARY_PACKET_BYTES, ..QuicOptions::default() }
}

// 127.1.0.1 and upwards; the cloud has 127.0.0.1.
fn address_of(number: usize) -> IpAddr {
    let group = (number / EDGES_PER_ADDRESS) as u32 + 1;
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + group).into()
}
