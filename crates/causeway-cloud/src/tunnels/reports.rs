//! Takes the tunnels that sessions report, and stores those that changed.
//!
//! The map of reports is bounded by the number of sessions: each gateway has one entry. A store that is away is
//! tried again; the newest report of a gateway replaces an older one that waits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use causeway_api::layer3::{TunnelRecord, show_key};
use causeway_channel::clock::{from_unix_seconds, unix_seconds};
use causeway_channel::wire::control::TunnelReport;
use causeway_channel::{Clock, KeyHash, PeerId};
use causeway_daemon::sync::MutexExt;
use causeway_store::{ListRange, Op, Store, StoreError};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::TUNNELS;
use crate::bootstrap::CLOUD;
use crate::identity::Registrar;

/// Addresses of one gateway that its peers are told. A host has one or two that matter.
const ADDRESSES_MAX: usize = 8;
const RETRY: Duration = Duration::from_secs(1);
/// Time between two writes of the tunnel of one gateway.
const WRITE_PERIOD_MIN: Duration = Duration::from_secs(5);
/// Time after which all records are looked at again: another replica may have written some.
const CHECK_PERIOD: Duration = Duration::from_secs(600);

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
    /// Takes the report in the hello of a gateway. `peer`, `key` and `expires` are those of its certificate, `seen` is the address
    /// its link comes from.
    pub fn handle(
        &self,
        peer: &PeerId,
        (key, expires): (&KeyHash, SystemTime),
        report: Option<&TunnelReport>,
        seen: IpAddr,
    ) {
        let record = report.and_then(|report| record_of(report, seen));
        let of_session = |record| TunnelRecord {
            site: peer.site().to_owned(),
            identity: key.to_string(),
            expires: unix_seconds(expires),
            ..record
        };
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

/// The times at which the tunnels of gateways were written. Each write makes the neighbours of the gateway compile and send
/// netmaps, so that one that reports another tunnel in every session is written every five seconds.
#[derive(Default, Debug)]
pub(super) struct ReportRates {
    written: BTreeMap<String, Instant>,
}

impl ReportRates {
    /// Tells whether the tunnel of a gateway may be written now.
    pub(super) fn is_due(&self, gateway: &str, now: Instant) -> bool {
        self.written.get(gateway).is_none_or(|written| now.duration_since(*written) >= WRITE_PERIOD_MIN)
    }

    pub(super) fn note(&mut self, gateway: String, now: Instant) {
        self.written.retain(|_, written| now.duration_since(*written) < WRITE_PERIOD_MIN);
        self.written.insert(gateway, now);
    }
}

/// The loop that stores reports, and removes the tunnels of keys that were revoked and of certificates that ended: peers would
/// go on to talk to them directly.
pub struct TunnelReportWriter {
    pub reports: TunnelReports,
    pub store: Store,
    pub clock: Clock,
    pub registrar: Arc<Registrar>,
}

impl TunnelReportWriter {
    pub async fn run(self, stop: CancellationToken) {
        let mut revoked = self.registrar.revoked_keys();
        let mut tick = tokio::time::interval(RETRY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Keys may have been revoked while no replica ran, as by a restored revocation log.
        let (mut must_check, mut checked) = (true, Instant::now());
        // The next end of a certificate, among the records that this replica has seen.
        let mut next_end: Option<i64> = None;
        let mut rates = ReportRates::default();
        loop {
            if must_check && let Ok(end) = self.remove_ended().await {
                (must_check, checked, next_end) = (false, Instant::now(), end);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(_) | Err(RecvError::Lagged(_)) = revoked.recv() => {
                    must_check = true;
                    continue;
                }
                _ = tick.tick() => {
                    let now = unix_seconds(self.registrar.time());
                    must_check |= next_end.is_some_and(|end| now > end) || checked.elapsed() >= CHECK_PERIOD;
                }
                () = self.reports.shared.wake.notified() => {}
            }
            let mut waiting = std::mem::take(&mut *self.reports.lock());
            let now = Instant::now();
            let due: Vec<String> =
                waiting.keys().filter(|gateway| rates.is_due(gateway, now)).cloned().collect();
            for gateway in due {
                let Some(record) = waiting.remove(&gateway) else { continue };
                let end = record.as_ref().map(|record| record.expires).filter(|end| *end != 0);
                match self.write(&gateway, record.clone()).await {
                    Ok(true) => {
                        next_end = next_end.into_iter().chain(end).min();
                        rates.note(gateway, now);
                    }
                    Ok(false) => {}
                    Err(error) => {
                        // The store logs its outages itself.
                        tracing::debug!(gateway, %error, "cannot store the tunnel of the gateway; trying again");
                        waiting.insert(gateway, record);
                        break;
                    }
                }
            }
            // They are tried again at the next tick, unless there are newer ones.
            let mut reports = self.reports.lock();
            for (gateway, record) in waiting {
                reports.entry(gateway).or_insert(record);
            }
        }
    }

    /// Tells whether the tunnel of a record has ended: with its key, which was revoked, or with its certificate. The enrolment of
    /// the gateway decides about a record of an older version.
    async fn has_ended(&self, gateway: &str, record: &TunnelRecord) -> Result<bool, StoreError> {
        if gateway == CLOUD {
            return Ok(false);
        }
        let now = self.registrar.time();
        match KeyHash::from_hex(&record.identity) {
            Some(key) if self.registrar.is_revoked(&key) => Ok(true),
            Some(_) if record.expires != 0 => Ok(now > from_unix_seconds(record.expires)),
            _ => Ok(self.registrar.certificate_end(gateway).await?.is_none_or(|end| now > end)),
        }
    }

    /// Removes the records of tunnels that have ended, and returns the next end of a certificate.
    async fn remove_ended(&self) -> Result<Option<i64>, StoreError> {
        let mut next_end: Option<i64> = None;
        for held in self.store.list(TUNNELS, ListRange::default()).await?.records {
            let record: TunnelRecord = serde_json::from_slice(&held.value).unwrap_or_default();
            let gateway = held.key.strip_prefix(TUNNELS).unwrap_or_default();
            if !self.has_ended(gateway, &record).await? {
                let end = Some(record.expires).filter(|end| *end != 0);
                next_end = next_end.into_iter().chain(end).min();
                continue;
            }
            tracing::info!(record = %held.key, "the gateway has no valid certificate any more: its tunnel ends");
            match self.store.delete(&held.key, Some(held.revision)).await {
                // Another replica was faster, or there is a newer report.
                Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(next_end)
    }

    /// Stores the tunnel of a gateway. False: it is stored already.
    async fn write(&self, gateway: &str, record: Option<TunnelRecord>) -> Result<bool, StoreError> {
        let has_ended = match &record {
            Some(record) => self.has_ended(gateway, record).await?,
            None => false,
        };
        let record = record.filter(|_| !has_ended);
        let key = format!("{TUNNELS}{gateway}");
        let held = self.store.get(&key).await?;
        let known: Option<TunnelRecord> =
            held.as_ref().and_then(|held| serde_json::from_slice(&held.value).ok());
        let now = unix_seconds(self.clock.now());
        let op = match next_record(known.as_ref(), record, now) {
            NextRecord::Same => return Ok(false),
            NextRecord::Put(record) => {
                Op::Put { key, value: serde_json::to_vec(&record).unwrap_or_default().into() }
            }
            NextRecord::Delete if held.is_none() => return Ok(false),
            NextRecord::Delete => Op::Delete { key, expected: None },
        };
        match self.store.commit(vec![op]).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
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
