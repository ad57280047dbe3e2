//! Several clouds on one store, acting as one: where each gateway is attached, and streams to it from any
//! replica.
//!
//! `Fleet` is the face: it opens a stream to a gateway, here or through the replica that holds its session. A
//! stream is forwarded once at most: a stream from another replica goes to a session here or nowhere. `table`
//! decides, `directory` keeps it in step with the store, `peers` holds the links between replicas, `relay`
//! joins streams. Sessions are kept by `sessions`, which hands over the attached gateways
//! (`SessionDirectory::set_attached`).

mod active;
mod attach;
mod directory;
mod peers;
mod relay;
mod remote;
mod table;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use causeway_api::GatewayStats;
use causeway_channel::PeerId;
use causeway_channel::link::{
    CloseCode, CloseReason, Link, ResetCode, Stream, StreamError, StreamHeader, StreamOrigin, StreamPurpose,
};
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use active::{ACTIVE_GATEWAYS, ActiveGatewayWriter, ActiveGateways, decode_active, site_of_active};
pub use attach::{EdgeStreamServer, LinkDispatcher, follow};
pub use directory::{ReplicaAddress, SessionDirectory, SupersededSession};
pub use peers::DialPeerError;
pub use table::{GatewayLocation, SessionKey};

use crate::audit::{self, AuditJournal, JournalKind};
use crate::identity::Registrar;
use crate::netmaps::SiteGateways;
use peers::ReplicaLinks;
use relay::Relays;
use remote::RemoteStats;

/// The target of a stream that asks a replica itself for the stats of its sessions.
const STATS_TARGET: &str = "figures";
/// The beginning of the target of a stream that asks a replica for lines of its journal; a query follows.
const AUDIT: &str = "audit?";
/// A replica from before there was one refuses it, and is named as silent.
const ADMIN_AUDIT: &str = "admin-audit?";

/// The sessions that this replica holds itself.
pub trait LocalSessions: Send + Sync + 'static {
    /// The link of a gateway that is attached here; None when it is not.
    fn link(&self, gateway: &str) -> Option<Link>;
    fn is_attached(&self, gateway: &str) -> bool;
    /// The stats of every gateway attached here.
    fn stats(&self) -> Vec<(String, GatewayStats)>;
}

#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("no gateway of site {site} is attached")]
    SiteAway { site: String },
    #[error(
        "site {site} gets no new connections: gateway {gateway} is draining and no other one is attached"
    )]
    SiteDraining { site: String, gateway: String },
    #[error("gateway {gateway} is not attached to any replica")]
    NotAttached { gateway: String },
    #[error("the replica at {address} that holds gateway {gateway} cannot be reached")]
    Unreachable { gateway: String, address: String, source: DialPeerError },
    #[error("no stream can be opened to gateway {gateway}")]
    Stream { gateway: String, source: StreamError },
}

/// All gateways, wherever they are attached.
pub struct Fleet {
    directory: Arc<SessionDirectory>,
    local: Arc<dyn LocalSessions>,
    peers: ReplicaLinks,
    remote: RemoteStats,
    relays: Relays,
    sites: watch::Receiver<Arc<SiteGateways>>,
    /// The journals that other replicas may read; `None`: their requests are refused.
    journals: Option<AuditJournal>,
}

/// Returns the journal that another replica asks for, and the query.
fn asked_journal(target: &str) -> Option<(JournalKind, &str)> {
    let traffic = target.strip_prefix(AUDIT).map(|query| (JournalKind::Traffic, query));
    traffic.or_else(|| target.strip_prefix(ADMIN_AUDIT).map(|query| (JournalKind::Admin, query)))
}

impl Fleet {
    pub fn new(
        directory: Arc<SessionDirectory>,
        local: Arc<dyn LocalSessions>,
        registrar: Arc<Registrar>,
        sites: watch::Receiver<Arc<SiteGateways>>,
        journals: Option<AuditJournal>,
    ) -> Arc<Fleet> {
        let (peers, remote) = (ReplicaLinks::new(registrar), RemoteStats::default());
        Arc::new(Fleet { directory, local, peers, remote, relays: Relays::default(), sites, journals })
    }

    /// Waits until the streams between gateways that are joined now have ended or are idle, at most for
    /// `time`.
    pub async fn finish_in_flight(&self, time: Duration) {
        self.relays.finish_in_flight(tokio::time::Instant::now() + time).await;
    }

    pub fn directory(&self) -> &Arc<SessionDirectory> {
        &self.directory
    }

    /// A stream to `gateway`, wherever it is attached.
    pub async fn open_stream(&self, gateway: &str, header: StreamHeader) -> Result<Stream, FleetError> {
        match self.directory.location_of(gateway) {
            GatewayLocation::Here => self.open_here(gateway, header).await,
            GatewayLocation::There { replica, address, .. } => {
                self.open_there(&replica, &address, gateway, header).await
            }
            // The directory follows the sessions with a delay. A session that was just attached here is
            // served at once.
            GatewayLocation::Nowhere => self.open_here(gateway, header).await,
        }
    }

    /// Tells whether the gateway has a session at any replica.
    pub fn is_attached(&self, gateway: &str) -> bool {
        self.directory.location_of(gateway) != GatewayLocation::Nowhere || self.local.is_attached(gateway)
    }

    /// Opens a stream to the gateway that the header names, or, when it names only a site, to the active
    /// gateway there. A gateway that is not attached, or whose link died unnoticed, is passed over for the
    /// next; one that drains is not tried.
    pub async fn open_stream_to(&self, header: StreamHeader) -> Result<Stream, FleetError> {
        if !header.gateway.is_empty() {
            return self.open_stream(&header.gateway.clone(), header).await;
        }
        let sites = self.sites.borrow().clone();
        let mut failed = self.without_route(&sites, &header.site);
        for gateway in sites.gateways(&header.site) {
            if !self.is_attached(gateway) {
                continue;
            }
            match self.open_stream(gateway, header.clone()).await {
                Err(error) if error.code() == ResetCode::NoRoute => failed = error,
                opened => return opened,
            }
        }
        Err(failed)
    }

    /// Returns the reason why a site gets no streams when none of its gateways takes one.
    fn without_route(&self, sites: &SiteGateways, site: &str) -> FleetError {
        let attached = sites.draining(site).find(|gateway| self.is_attached(gateway));
        let site = site.to_owned();
        match attached.cloned() {
            Some(gateway) => FleetError::SiteDraining { site, gateway },
            None => FleetError::SiteAway { site },
        }
    }

    /// Returns the runtime thread of the traffic with a site, when the first attached gateway of the site is
    /// attached here.
    pub fn runtime(&self, site: &str) -> Option<Handle> {
        let sites = self.sites.borrow().clone();
        let attached = |name: &&String| self.is_attached(name);
        self.local.link(sites.gateways(site).find(attached)?)?.traffic_runtime()
    }

    /// Carries a stream that a gateway opened to the gateway or site its header names. Its origin is taken
    /// from the certificate of the session, not from the header.
    pub async fn carry(&self, from: &PeerId, mut header: StreamHeader, stream: Stream) {
        header.origin =
            Some(StreamOrigin { site: from.site().to_owned(), gateway: from.gateway().to_owned() });
        match self.open_stream_to(header.clone()).await {
            Ok(onward) => self.relays.relay(&header, stream, onward).await,
            Err(error) => {
                tracing::debug!(%from, error = &error as &dyn std::error::Error, "a stream was not carried");
                stream.refuse(error.code());
            }
        }
    }

    async fn open_here(&self, gateway: &str, header: StreamHeader) -> Result<Stream, FleetError> {
        let link = self.local.link(gateway);
        let link = link.ok_or_else(|| FleetError::NotAttached { gateway: gateway.to_owned() })?;
        let opened = link.open_stream(header).await;
        opened.map_err(|source| FleetError::Stream { gateway: gateway.to_owned(), source })
    }

    async fn open_there(
        &self,
        replica: &str,
        address: &str,
        gateway: &str,
        header: StreamHeader,
    ) -> Result<Stream, FleetError> {
        let header = StreamHeader { gateway: gateway.to_owned(), ..header };
        let unreachable = |source| FleetError::Unreachable {
            gateway: gateway.to_owned(),
            address: address.to_owned(),
            source,
        };
        let link = self.peers.link(replica, address).await.map_err(unreachable)?;
        match link.open_stream(header.clone()).await {
            Ok(stream) => return Ok(stream),
            Err(StreamError::Closed(_)) => self.peers.forget(replica, &link),
            Err(source) => return Err(FleetError::Stream { gateway: gateway.to_owned(), source }),
        }
        // The link had died unnoticed, as after a restart over there. A new one tells.
        let link = self.peers.link(replica, address).await.map_err(unreachable)?;
        let opened = link.open_stream(header).await;
        opened.map_err(|source| FleetError::Stream { gateway: gateway.to_owned(), source })
    }

    /// Serves a link from another replica until it ends. Only a certificate with the cloud's own name is
    /// believed.
    pub async fn serve(self: Arc<Fleet>, link: Link, stop: CancellationToken) {
        if !link.certificate().is_some_and(|certificate| self.peers.admits(&certificate)) {
            tracing::warn!(address = %link.remote_address(), "refused a link of a peer without a replica certificate");
            return link
                .close(CloseReason::new(CloseCode::NotAdmitted, "this is not a replica's certificate"));
        }
        let mut streams = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = streams.join_next(), if !streams.is_empty() => {}
                accepted = link.accept_stream() => match accepted {
                    Ok((header, stream)) => drop(streams.spawn(self.clone().take(header, stream, stop.clone()))),
                    Err(_) => return,
                },
            }
        }
        // Open streams end in their own time: the caller that stops this has a deadline.
        while streams.join_next().await.is_some() {}
    }

    /// One stream from another replica: for a session here, or for us.
    async fn take(self: Arc<Fleet>, header: StreamHeader, mut stream: Stream, stop: CancellationToken) {
        let gateway = header.gateway.clone();
        if gateway.is_empty() {
            match header.target.as_str() {
                STATS_TARGET => {
                    let stats = remote::encode(self.local.stats());
                    // A peer that stopped listening has no use for the rest.
                    let _ = stream.write_all(&stats).await;
                    let _ = stream.shutdown().await;
                }
                target => match asked_journal(target) {
                    Some((journal, query)) => self.show_audit(journal, query, stream, stop).await,
                    None => stream.refuse(ResetCode::Refused),
                },
            }
            return;
        }
        match self.open_here(&gateway, header.clone()).await {
            Ok(session) => self.relays.relay(&header, stream, session).await,
            Err(error) => stream.refuse(error.code()),
        }
    }

    /// Sends lines of the journal to another replica.
    async fn show_audit(
        &self,
        journal: JournalKind,
        query: &str,
        mut stream: Stream,
        stop: CancellationToken,
    ) {
        let query = audit::AuditQuery::parse(journal, Some(query)).ok();
        let lines = query.and_then(|query| self.journals.as_ref()?.read(query));
        let Some(mut lines) = lines else { return stream.refuse(ResetCode::Refused) };
        while let Some(chunk) = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            chunk = lines.recv() => chunk,
        } {
            if stream.write_all(&chunk).await.is_err() {
                return;
            }
        }
        let _ = stream.shutdown().await;
    }

    /// The journals of all other replicas, and the names of those that could not be asked. `query` is as in a
    /// URL.
    pub async fn ask_audit(
        &self,
        journal: JournalKind,
        query: &str,
    ) -> (Vec<audit::JournalChunks>, Vec<String>) {
        let prefix = match journal {
            JournalKind::Traffic => AUDIT,
            JournalKind::Admin => ADMIN_AUDIT,
        };
        let others = self.directory.other_replicas();
        self.peers.retain(&others);
        let asked = others.into_iter().map(|(replica, address)| async move {
            let header = StreamHeader::new(StreamPurpose::Api).target(format!("{prefix}{query}"));
            let opened = self.open_at(&replica, &address, header);
            match tokio::time::timeout(audit::REPLICA_DEADLINE, opened).await.ok().flatten() {
                Some(stream) => Ok(audit::from_stream(replica, stream)),
                None => Err(replica),
            }
        });
        let (mut journals, mut silent) = (Vec::new(), Vec::new());
        for answer in join_all(asked).await {
            match answer {
                Ok(lines) => journals.push(lines),
                Err(replica) => silent.push(replica),
            }
        }
        (journals, silent)
    }

    /// A stream to a replica itself. A link that died unnoticed is made anew once.
    async fn open_at(&self, replica: &str, address: &str, header: StreamHeader) -> Option<Stream> {
        let link = self.peers.link(replica, address).await.ok()?;
        match link.open_stream(header.clone()).await {
            Ok(stream) => return Some(stream),
            Err(StreamError::Closed(_)) => self.peers.forget(replica, &link),
            Err(_) => return None,
        }
        self.peers.link(replica, address).await.ok()?.open_stream(header).await.ok()
    }

    /// Asks the other replicas for the stats of their sessions, unless that was done a moment ago.
    pub async fn refresh_stats(&self) {
        let others = self.directory.other_replicas();
        self.peers.retain(&others);
        let ask = |(replica, address): (String, String)| async move {
            let link = self.peers.link(&replica, &address).await.ok()?;
            match remote::ask(&link).await {
                Ok(stats) => Some(stats),
                Err(error) => {
                    tracing::debug!(%replica, %error, "a replica did not report its statistics");
                    None
                }
            }
        };
        self.remote.refresh(others, ask).await;
    }

    /// The stats of a gateway attached elsewhere, as they were told last.
    pub fn remote_stats(&self, gateway: &str) -> Option<GatewayStats> {
        let GatewayLocation::There { replica, since, .. } = self.directory.location_of(gateway) else {
            return None;
        };
        let told = self.remote.gateway(&replica, gateway);
        Some(told.unwrap_or_else(|| GatewayStats {
            connected: true,
            since: serde_json::from_value(since.into()).ok(),
            ..GatewayStats::default()
        }))
    }
}

impl FleetError {
    pub fn code(&self) -> ResetCode {
        match self {
            FleetError::SiteAway { .. }
            | FleetError::SiteDraining { .. }
            | FleetError::NotAttached { .. }
            | FleetError::Unreachable { .. } => ResetCode::NoRoute,
            FleetError::Stream { source: StreamError::Refused(reset), .. } => reset.0,
            FleetError::Stream { .. } => ResetCode::NoRoute,
        }
    }
}

/// A replica that does not answer within this is left out: people wait for the answer. A replica that is alive answers
/// within it also while its machine is busy; one that is not is out of the directory a few seconds later.
const ASK_DEADLINE: Duration = Duration::from_secs(2);
