//! Which presences a site should have, and at which addresses: the allocator.
//!
//! Pure: all objects in, the steps that are missing out; running twice changes nothing, and what others do at the same
//! time is met by the reservation that goes with every address. A presence that the controller made carries a label, so
//! that everybody can see whose it is: without the label it is somebody's own, satisfies its service at its site, and is left alone.

mod freed;
mod pool;
mod steps;

use std::net::IpAddr;

pub use freed::FreedAddresses;
pub use pool::AddressPool;
pub use steps::{AllocationStep, PendingAllocations, steps};

use crate::kinds::VirtualPresence;

/// The label of a presence that the controller made. Taking it off makes the presence one's own: it is then left alone.
pub const MADE_LABEL: &str = "causeway.io/made-by";
/// What the label says.
pub const MADE_BY: &str = "causeway";

/// Did the controller make it?
pub fn is_made(presence: &VirtualPresence) -> bool {
    presence.metadata.labels.get(MADE_LABEL).is_some_and(|by| by == MADE_BY)
}

/// IPv4 or IPv6: a site with ranges of both gives a service one address of each, in a presence of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AddressFamily {
    V4,
    V6,
}

impl AddressFamily {
    pub const ALL: [AddressFamily; 2] = [AddressFamily::V4, AddressFamily::V6];

    pub fn of(ip: IpAddr) -> AddressFamily {
        if ip.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            AddressFamily::V4 => "IPv4",
            AddressFamily::V6 => "IPv6",
        }
    }
}

/// What a presence that the controller makes is called: the same in every replica and at every time. Readable parts first;
/// the sum behind them keeps apart what only capitals, dashes or shortening made equal.
pub fn name(service: &str, site: &str, family: AddressFamily) -> String {
    let suffix = if family == AddressFamily::V6 { "-v6" } else { "" };
    format!("{}-{}-{:08x}{suffix}", part(service), part(site), sum(service, site))
}

/// Lower case, and short enough that two of them fit into a name.
fn part(name: &str) -> String {
    const PART_MAX: usize = 100;
    let short: String = name.chars().take(PART_MAX).collect();
    short.to_ascii_lowercase().trim_matches(['-', '.']).to_owned()
}

/// FNV-1a, folded to 32 bits: names with equal parts are few, and a clash would be a condition, not a mix-up.
fn sum(service: &str, site: &str) -> u32 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let bytes = service.bytes().chain([0]).chain(site.bytes());
    let sum = bytes.fold(BASIS, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME));
    (sum ^ (sum >> 32)) as u32
}

#[cfg(test)]
mod tests;
