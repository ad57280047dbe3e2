//! The demo's fleet: a cloud and two sites, each with a gateway and the hosts behind it.
//!
//! With root each gateway and each site's hosts are machines with networks of their own; otherwise everything runs here. The
//! cloud and the edges are the same code as `causeway cloud` and `causeway edge`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use causeway_channel::JoinToken;
use causeway_edge::JoinCredential;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::machine::DemoMachine;
use super::net::{self, VethEnd};
use super::plan::{self, DemoCrossing, DemoNetwork, DemoOutcome, DemoSite, GATEWAY, SERVERS};
use super::traffic::{self, BoundServer};

pub struct DemoFleet {
    pub stage: DemoNetwork,
    pub folder: PathBuf,
    gateways: BTreeMap<DemoSite, DemoMachine>,
    hosts: BTreeMap<DemoSite, DemoMachine>,
    /// In the order in which they were started; they end the other way round, each when the one before has ended.
    running: Vec<Part>,
    api_listener: Option<TcpListener>,
}

/// A cloud or an edge.
struct Part {
    task: JoinHandle<anyhow::Result<()>>,
    stop: CancellationToken,
}

/// Between the cloud and the sites: two cables with documentation addresses (RFC 5737).
fn wide_area(site: DemoSite) -> (Ipv4Addr, Ipv4Addr) {
    match site {
        DemoSite::Berlin => (Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 2)),
        _ => (Ipv4Addr::new(203, 0, 113, 5), Ipv4Addr::new(203, 0, 113, 6)),
    }
}

impl DemoFleet {
    /// Networks and servers; no cloud and no edge yet.
    pub async fn build(stage: DemoNetwork, folder: &Path) -> anyhow::Result<DemoFleet> {
        let isolated = stage == DemoNetwork::Networks;
        let machines = |what: &str| -> anyhow::Result<BTreeMap<DemoSite, DemoMachine>> {
            let start = |site: DemoSite| {
                Ok((site, DemoMachine::start(&format!("{}-{what}", site.name()), isolated)?))
            };
            DemoSite::ALL.into_iter().map(start).collect()
        };
        let fleet = DemoFleet {
            stage,
            folder: folder.to_owned(),
            gateways: machines("gateway")?,
            hosts: machines("hosts")?,
            running: Vec::new(),
            api_listener: None,
        };
        if isolated {
            fleet.lay_cables().await.context("the networks of the demo cannot be made")?;
        }
        fleet.start_servers().await?;
        Ok(fleet)
    }

    async fn lay_cables(&self) -> anyhow::Result<()> {
        for site in DemoSite::ALL {
            let (gateway, hosts) = (&self.gateways[&site], &self.hosts[&site]);
            net::wake(gateway, true).await?;
            net::wake(hosts, false).await?;
            let inside = |host| self.stage.address(site, host);
            let mut addresses: Vec<u8> =
                SERVERS.iter().filter(|server| server.0 == site).map(|server| server.1).collect();
            addresses.extend(
                plan::crossings()
                    .iter()
                    .filter(|crossing| crossing.site == site)
                    .map(|crossing| crossing.host),
            );
            addresses.sort_unstable();
            addresses.dedup();
            let end = |interface, addresses, prefix, default_by| VethEnd {
                interface,
                addresses,
                prefix,
                default_by,
            };
            let hosts_end =
                end("lan", addresses.into_iter().map(inside).collect(), 24, Some(inside(GATEWAY)));
            net::join(gateway, end("lan", vec![inside(GATEWAY)], 24, None), hosts, hosts_end).await?;
            if site != DemoSite::Cloud {
                let (cloud, edge) = wide_area(site);
                let near = end(if site == DemoSite::Berlin { "wan0" } else { "wan1" }, vec![cloud], 30, None);
                net::join(
                    &self.gateways[&DemoSite::Cloud],
                    near,
                    gateway,
                    end("wan", vec![edge], 30, Some(cloud)),
                )
                .await?;
            }
        }
        Ok(())
    }

    async fn start_servers(&self) -> anyhow::Result<()> {
        for (site, host, port, server) in SERVERS {
            let address = SocketAddr::from((self.stage.address(site, host), self.stage.port(port)));
            // Bound before anything else starts: a second demo on the same loopback ends here, with the reason.
            let host = &self.hosts[&site];
            let bound = host.run(BoundServer::bind(server, address)).await?;
            let bound = bound.with_context(|| {
                format!(
                    "the demo cannot listen on {address}: another demo or another program uses it; end that one, \
                     or run the demo as root, where every site has a network of its own"
                )
            })?;
            host.spawn(async move {
                if let Err(error) = bound.serve().await {
                    tracing::error!(%error, %address, "a server of the demo ended");
                }
            });
        }
        Ok(())
    }

    /// The address of the channel port of the cloud for edges.
    pub fn advertised(&self, port: u16) -> String {
        match self.stage {
            DemoNetwork::Networks => format!("{}:{port}", wide_area(DemoSite::Berlin).0),
            DemoNetwork::Loopback => format!("127.0.0.1:{port}"),
        }
    }

    /// Runs a cloud at the cloud, or an edge at its site, until the demo ends.
    pub fn run_at<W>(&mut self, site: DemoSite, work: impl FnOnce(CancellationToken) -> W)
    where
        W: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = self.gateways[&site].spawn(work(stop.clone()));
        self.running.push(Part { task, stop });
    }

    /// Runs a future at a gateway and returns its result.
    pub async fn begin_at<T: Send + 'static>(
        &self,
        site: DemoSite,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.gateways[&site].run(work).await?
    }

    /// Starts the edge of a site.
    pub fn start_edge(&mut self, site: DemoSite, token: JoinToken) -> anyhow::Result<()> {
        let config = super::edge_config(self.stage, site, &self.folder.join(site.name()))?;
        let config = crate::commands::edge::edge_config(&config)?;
        self.run_at(site, |stop| {
            crate::commands::edge::run_edge(config, Some(JoinCredential::Token(token)), stop)
        });
        Ok(())
    }

    /// Sends the request of one client from its host.
    pub async fn attempt(&self, crossing: DemoCrossing) -> (DemoOutcome, Option<std::net::IpAddr>) {
        let stage = self.stage;
        let tried =
            self.hosts[&crossing.site].run(async move { traffic::attempt(stage, crossing).await }).await;
        tried.unwrap_or_else(|error| (DemoOutcome::Broken(error.to_string()), None))
    }

    /// The address of the API for the user's own commands: on this host's loopback, the same in the cloud's
    /// network.
    pub async fn api_listener(&mut self) -> anyhow::Result<SocketAddr> {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        if self.stage == DemoNetwork::Loopback {
            return Ok(free);
        }
        let listener = TcpListener::bind(free).await?;
        let address = listener.local_addr()?;
        self.api_listener = Some(listener);
        Ok(address)
    }

    /// Forwards connections to the API.
    pub fn forward_api(&mut self, inside: SocketAddr) {
        let Some(listener) = self.api_listener.take() else { return };
        let cloud = self.gateways[&DemoSite::Cloud].handle();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                // Connected over there, moved here: a socket stays in the network it was made in.
                let connecting = cloud.spawn(TcpStream::connect(inside));
                tokio::spawn(async move {
                    if let Ok(Ok(mut far)) = connecting.await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
    }

    /// The command prefix that runs a command at a host of a site. `None`: no prefix is needed.
    pub fn enter(&self, site: DemoSite) -> Option<String> {
        (self.stage == DemoNetwork::Networks).then(|| {
            format!("nsenter --net=/proc/{}/task/{}/ns/net", std::process::id(), self.hosts[&site].thread_id)
        })
    }

    /// Returns whether a part that should run has ended.
    pub async fn failed_part(&mut self) -> Option<anyhow::Error> {
        let index = self.running.iter().position(|part| part.task.is_finished())?;
        match self.running.remove(index).task.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(error) => Some(error.into()),
        }
    }

    /// Stops all parts and waits for their end: the edges before the cloud, so that no edge loses its cloud.
    pub async fn end(mut self) -> anyhow::Result<()> {
        while let Some(part) = self.running.pop() {
            part.stop.cancel();
            part.task.await.context("a part of the demo broke down")??;
        }
        // The machines wait for their threads; that is no work for an async task.
        Ok(tokio::task::spawn_blocking(move || drop(self)).await?)
    }
}
