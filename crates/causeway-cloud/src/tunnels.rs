//! Records of layer 3 in the store: the tunnel of every gateway, and the mapped networks of every community.
//!
//! `tunnels/GATEWAY` is written when a session reports another tunnel than the stored one. `mappedranges/COMMUNITY`
//! holds the ranges that were allocated from `mapFrom`; every replica plans the same ones, and the revision of the
//! record lets one of them win. The reconciler puts both into its picture, from which netmaps and conditions are made.

mod holder;
mod ranges;
mod reports;

use causeway_api::ObjectSet;
use causeway_api::layer3::{MappedRange, TunnelRecord};

pub use holder::{TunnelHolder, TunnelLease, without_layer3};
pub use ranges::{RangeWork, RangeWrite};
pub use reports::{TunnelReportWriter, TunnelReports};

pub const TUNNELS: &str = "tunnels/";
pub const MAPPED_RANGES: &str = "mappedranges/";

/// A change of a record, after it was put into the picture.
#[derive(Debug, PartialEq, Eq)]
pub enum Layer3Change {
    Tunnel {
        gateway: String,
        keys: Vec<String>,
    },
    /// Sites whose networks were mapped or are no longer.
    Mapped {
        community: String,
        sites: Vec<String>,
    },
}

/// Puts a record into the picture. None: the key is not one of layer 3, or nothing changed.
pub fn take_record(objects: &mut ObjectSet, key: &str, value: Option<&[u8]>) -> Option<Layer3Change> {
    if let Some(gateway) = key.strip_prefix(TUNNELS) {
        // A record that cannot be read, as one of a newer version, is no tunnel.
        let new: Option<TunnelRecord> = value.and_then(|value| serde_json::from_slice(value).ok());
        let tunnels = &mut objects.layer3.tunnels;
        let old = match new.clone() {
            Some(new) => tunnels.insert(gateway.to_owned(), new),
            None => tunnels.remove(gateway),
        };
        if old == new {
            return None;
        }
        let keys = old.into_iter().chain(new).map(|record| record.public_key).collect();
        return Some(Layer3Change::Tunnel { gateway: gateway.to_owned(), keys });
    }
    let community = key.strip_prefix(MAPPED_RANGES)?;
    let new: Option<Vec<MappedRange>> = value.and_then(|value| serde_json::from_slice(value).ok());
    let ranges = &mut objects.layer3.ranges;
    let old = match new.clone() {
        Some(new) => ranges.insert(community.to_owned(), new),
        None => ranges.remove(community),
    };
    if old == new {
        return None;
    }
    let sites = old.into_iter().chain(new).flatten().map(|range| range.site);
    Some(Layer3Change::Mapped { community: community.to_owned(), sites: sites.collect() })
}

#[cfg(test)]
mod tests;
