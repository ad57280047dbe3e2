//! Decides which replica of the cloud holds the tunnel of the site `cloud`.
//!
//! The record `tunnels/cloud` names the replica. It keeps the tunnel for as long as it is alive in the directory of
//! replicas, whose entries are leases in the store; then the first replica that notices takes over. With one replica
//! there is nothing to decide. A replica that does not hold the tunnel hides layer 3 from its gateway.

use std::sync::Arc;
use std::time::Duration;

use causeway_api::layer3::TunnelRecord;
use causeway_channel::Clock;
use causeway_channel::clock::unix_seconds;
use causeway_netmap::NetmapView;
use causeway_store::{Op, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::TUNNELS;
use super::reports::{NextRecord, next_record};
use crate::bootstrap::CLOUD;
use crate::replicas::SessionDirectory;

/// Interval at which the record is compared: a replica that is gone is noticed within it.
const LOOK: Duration = Duration::from_secs(1);

/// Tells whether this replica holds the tunnel.
pub type TunnelLease = watch::Receiver<bool>;

/// The loop that takes and keeps the tunnel.
pub struct TunnelHolder {
    store: Store,
    directory: Arc<SessionDirectory>,
    /// The tunnel of this replica. None: it is switched off here.
    own: Option<TunnelRecord>,
    clock: Clock,
    holds: watch::Sender<bool>,
}

impl TunnelHolder {
    pub fn new(store: Store, directory: Arc<SessionDirectory>, clock: Clock) -> (TunnelHolder, TunnelLease) {
        let (holds, lease) = watch::channel(false);
        (TunnelHolder { store, directory, own: None, clock, holds }, lease)
    }

    /// Offers the tunnel of this replica. None: it is switched off here.
    pub fn offering(self, own: Option<TunnelRecord>) -> TunnelHolder {
        TunnelHolder { own, ..self }
    }

    pub async fn run(self, stop: CancellationToken) {
        loop {
            match self.look().await {
                Ok(holds) => {
                    self.holds.send_if_modified(|held| std::mem::replace(held, holds) != holds);
                }
                // A replica that cannot read the record keeps what it has: packets go on while the store is away.
                Err(error) => {
                    tracing::debug!(%error, "cannot read which replica holds the tunnel of the cloud")
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn look(&self) -> Result<bool, StoreError> {
        let key = format!("{TUNNELS}{CLOUD}");
        let held = self.store.get(&key).await?;
        let known: Option<TunnelRecord> =
            held.as_ref().and_then(|held| serde_json::from_slice(&held.value).ok());
        let live = self.directory.live_replicas();
        let is_live = |replica: &str| live.as_ref().is_some_and(|live| live.contains_key(replica));
        let me = self.directory.id();
        if known.as_ref().is_some_and(|known| known.replica != me && is_live(&known.replica)) {
            return Ok(false);
        }
        let own = self.own.clone().map(|own| TunnelRecord { replica: me, ..own });
        let holds = own.is_some();
        let now = unix_seconds(self.clock.now());
        let op = match (next_record(known.as_ref(), own, now), held) {
            (NextRecord::Same, _) | (NextRecord::Delete, None) => return Ok(holds),
            (NextRecord::Delete, Some(held)) => Op::Delete { key, expected: Some(held.revision) },
            (NextRecord::Put(record), held) => {
                let value = serde_json::to_vec(&record).unwrap_or_default().into();
                match held {
                    Some(held) => Op::Update { key, value, expected: held.revision },
                    None => Op::Create { key, value },
                }
            }
        };
        match self.store.commit(vec![op]).await {
            Ok(_) => Ok(holds),
            // Another replica was faster; the next look shows who.
            Err(
                StoreError::Conflict { .. } | StoreError::NotFound { .. } | StoreError::AlreadyExists { .. },
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Removes layer 3 from the netmap of a replica that does not hold the tunnel.
pub fn without_layer3(mut view: NetmapView) -> NetmapView {
    view.tunnel_peers.clear();
    view.communities.clear();
    if let Some(gateway) = &mut view.gateway {
        gateway.tunnel_networks.clear();
        gateway.mappings.clear();
    }
    view
}
