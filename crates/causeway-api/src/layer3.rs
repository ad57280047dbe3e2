//! Layer 3 between sites: which networks are behind which site, under which addresses other sites see them, and
//! which of them collide. Pure.
//!
//! `facts` holds what is stored beside the objects: the tunnel keys of gateways and the allocated ranges.
//! `networks` lists the networks of a site. `overlap` finds collisions and decides who keeps a route. `ranges`
//! allocates mapped networks for `ECommunity.mapFrom`. Conditions and the compiler of netmaps use the same functions.

mod facts;
mod networks;
mod overlap;
mod ranges;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub use facts::{Layer3Facts, MappedRange, TunnelRecord};
pub use networks::{SiteNetwork, map_address, site_networks, wire_address};
pub use overlap::{NetworkOverlap, overlaps_in, overlaps_of, routable};
pub use ranges::{RangePlan, plan_ranges};

/// Decodes a public key of WireGuard: base64 of 32 bytes.
pub fn parse_key(text: &str) -> Option<[u8; 32]> {
    // 44 characters hold 32 bytes; longer text is not decoded.
    let bytes = (text.len() == 44).then(|| STANDARD.decode(text).ok()).flatten()?;
    bytes.try_into().ok()
}

/// Encodes a public key as WireGuard's tools print it.
pub fn show_key(key: &[u8; 32]) -> String {
    STANDARD.encode(key)
}

#[cfg(test)]
mod tests;
