//! Takes the tunnels that sessions report, and stores those that changed.
//!
//! The map of reports is bounded by the number of sessions: each gateway has one entry. A store that is away is
//! tried again; the newest report of a gateway replaces an older one that waits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causeway_api::layer3::{TunnelRecord, show_key};
use causeway_channel::clock::unix_seconds;
use causeway_channel::wire::control::TunnelReport;
use causeway_channel::{Clock, KeyHash, PeerId};
use causeway_daemon::sync::MutexExt;
use causeway_store::{ListRange, Op, Store, StoreError};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::TUNNELS;
use crate::identity::Registrar;

/// Addresses of one gateway that its peers are told. A host has one or two that matter.
const ADDRESSES_MAX: usize = 8;
const RETRY: Duration = Duration::from_secs(1);

/// The newest reports that are not stored yet. None as a value: the gateway has no tunnel.
#[derive(Clone, Default)]
pub struct TunnelReports {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<BTreeMap<String, Option<TunnelRecord>>>,
    wake: Notify,
}

impl TunnelReports {
    /// Takes the report in the hello of a gateway. `peer` and `key` are those of its certificate, `seen` is the address its
    /// link comes from.
    pub fn handle(&self, peer: &PeerId, key: &KeyHash, report: Option<&TunnelReport>, seen: IpAddr) {
        let record = report.and_then(|report| record_of(report, seen));
        let of_session =
            |record| TunnelRecord { site: peer.site().to_owned(), identity: key.to_string(), ..record };
        self.put(peer.gateway(), record.map(of_session));
    }

    pub fn put(&self, gateway: &str, record: Option<TunnelRecord>) {
        self.lock().insert(gateway.to_owned(), record);
        self.shared.wake.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<TunnelRecord>>> {
        self.shared.waiting.lock_ignoring_poison()
    }
}

/// Returns the record of a report. It comes from an edge: its addresses are filtered and bounded, and one without a
/// usable key or port is no tunnel.
pub fn record_of(report: &TunnelReport, seen: IpAddr) -> Option<TunnelRecord> {
    let key: [u8; 32] = report.public_key.as_ref().try_into().ok()?;
    let port = u16::try_from(report.port).ok().filter(|port| *port != 0)?;
    let mut addresses = Vec::new();
    let told = report.addresses.iter().filter_map(|bytes| address(bytes));
    for ip in [seen.to_canonical()].into_iter().chain(told) {
        if is_usable(ip) && !addresses.contains(&ip) && addresses.len() < ADDRESSES_MAX {
            addresses.push(ip);
        }
    }
    Some(TunnelRecord {
        public_key: show_key(&key),
        port,
        aes: report.aes,
        addresses,
        ..TunnelRecord::default()
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match <[u8; 4]>::try_from(bytes) {
        Ok(octets) => Some(IpAddr::from(octets)),
        Err(_) => <[u8; 16]>::try_from(bytes).ok().map(|octets| IpAddr::from(octets).to_canonical()),
    }
}

fn is_usable(ip: IpAddr) -> bool {
    let is_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}

/// The loop that stores reports, and removes the tunnels of keys that were revoked: peers would go on to talk to them
/// directly.
pub struct TunnelReportWriter {
    pub reports: TunnelReports,
    pub store: Store,
    pub clock: Clock,
    pub registrar: Arc<Registrar>,
}

impl TunnelReportWriter {
    pub async fn run(self, stop: CancellationToken) {
        let mut revoked = self.registrar.revoked_keys();
        // Keys may have been revoked while no replica ran, as by a restored revocation log.
        let mut must_check = true;
        loop {
            if must_check {
                must_check = self.remove_revoked().await.is_err();
            }
            let retry = async {
                match must_check {
                    true => tokio::time::sleep(RETRY).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(_) | Err(RecvError::Lagged(_)) = revoked.recv() => {
                    must_check = true;
                    continue;
                }
                () = retry => continue,
                () = self.reports.shared.wake.notified() => {}
            }
            let waiting = std::mem::take(&mut *self.reports.lock());
            for (gateway, record) in waiting {
                if let Err(error) = self.write(&gateway, record.clone()).await {
                    // The store logs its outages itself.
                    tracing::debug!(gateway, %error, "cannot store the tunnel of the gateway; trying again");
                    self.reports.lock().entry(gateway).or_insert(record);
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(RETRY) => self.reports.shared.wake.notify_one(),
                    }
                }
            }
        }
    }

    fn is_revoked(&self, record: &TunnelRecord) -> bool {
        KeyHash::from_hex(&record.identity).is_some_and(|key| self.registrar.is_revoked(&key))
    }

    async fn remove_revoked(&self) -> Result<(), StoreError> {
        for held in self.store.list(TUNNELS, ListRange::default()).await?.records {
            let record: TunnelRecord = serde_json::from_slice(&held.value).unwrap_or_default();
            if !self.is_revoked(&record) {
                continue;
            }
            tracing::info!(record = %held.key, "the key of the gateway was revoked: its tunnel ends");
            match self.store.delete(&held.key, Some(held.revision)).await {
                // Another replica was faster, or there is a newer report.
                Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn write(&self, gateway: &str, record: Option<TunnelRecord>) -> Result<(), StoreError> {
        let record = record.filter(|record| !self.is_revoked(record));
        let key = format!("{TUNNELS}{gateway}");
        let held = self.store.get(&key).await?;
        let known: Option<TunnelRecord> =
            held.as_ref().and_then(|held| serde_json::from_slice(&held.value).ok());
        let now = unix_seconds(self.clock.now());
        let op = match next_record(known.as_ref(), record, now) {
            NextRecord::Same => return Ok(()),
            NextRecord::Put(record) => {
                Op::Put { key, value: serde_json::to_vec(&record).unwrap_or_default().into() }
            }
            NextRecord::Delete if held.is_none() => return Ok(()),
            NextRecord::Delete => Op::Delete { key, expected: None },
        };
        match self.store.commit(vec![op]).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextRecord {
    Same,
    Put(TunnelRecord),
    Delete,
}

/// Decides what to store. A gateway that keeps its key keeps the time since when it has it.
pub(super) fn next_record(
    known: Option<&TunnelRecord>,
    report: Option<TunnelRecord>,
    now: i64,
) -> NextRecord {
    let Some(report) = report else {
        return if known.is_some() { NextRecord::Delete } else { NextRecord::Same };
    };
    let since = known.filter(|known| known.public_key == report.public_key).map_or(now, |known| known.since);
    let record = TunnelRecord { since, ..report };
    match known == Some(&record) {
        true => NextRecord::Same,
        false => NextRecord::Put(record),
    }
}
