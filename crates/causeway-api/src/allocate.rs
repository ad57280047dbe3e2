//! Decides which presences a site should have and at which addresses.
//!
//! Pure. Input: all objects. Output: the missing steps. Idempotent; concurrent writers are handled by the
//! reservation that accompanies every address. A presence that the controller created carries a label. A
//! presence without the label belongs to a user: it satisfies its service at its site and is not changed.

mod freed;
mod pool;
mod steps;

use std::net::IpAddr;

pub use freed::FreedAddresses;
pub use pool::AddressPool;
pub use steps::{AllocationStep, PendingAllocations, steps};

use crate::kinds::{ServiceExpose, VirtualPresence};
use crate::object_set::ObjectSet;

/// The label of a presence that the controller created. Removing it hands the presence over to the user: it
/// is then not changed any more.
pub const MADE_LABEL: &str = "causeway.io/made-by";
/// The value of the label.
pub const MADE_BY: &str = "causeway";

/// Tells whether the controller created the presence.
pub fn is_made(presence: &VirtualPresence) -> bool {
    presence.metadata.labels.get(MADE_LABEL).is_some_and(|by| by == MADE_BY)
}

/// The address family. A site with ranges of both families gives a service one address of each, in separate
/// presences.
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

/// Returns the only family in which an exposure has addresses: packets are translated within one. None: in all of them.
pub fn translated_family(objects: &ObjectSet, expose: &ServiceExpose) -> Option<AddressFamily> {
    let service = objects.service(&expose.e_service_name).filter(|_| expose.is_translated())?;
    service.translated_server().map(|(ip, _)| AddressFamily::of(ip))
}

/// Returns the name of a presence that the controller creates: the same in every replica and at every time.
/// It has readable parts first; the hash behind them distinguishes names that differ only in case, dashes or
/// the shortened part.
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

/// FNV-1a, folded to 32 bits: names with equal parts are few, and a collision would be reported as a
/// condition, not cause a mix-up.
fn sum(service: &str, site: &str) -> u32 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let bytes = service.bytes().chain([0]).chain(site.bytes());
    let sum = bytes.fold(BASIS, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME));
    (sum ^ (sum >> 32)) as u32
}

#[cfg(test)]
mod tests;
