//! The order in which addresses were freed: the address freed last is allocated last.
//!
//! The store writes one record per freed address, in the commit that frees it; the record's revision
//! determines the order. So the order survives restarts and is the same in every replica, and no clock is
//! needed.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The time at which addresses were last freed, per site.
#[derive(Clone, Default, Debug)]
pub struct FreedAddresses {
    sites: BTreeMap<String, BTreeMap<IpAddr, u64>>,
}

// More than a site frees in months; the records dropped first are those of the addresses that were free the
// longest.
const REMEMBERED_MAX: usize = 4_096;

impl FreedAddresses {
    /// Records an address that was freed at a moment.
    pub fn note(&mut self, site: &str, ip: IpAddr, moment: u64) {
        self.sites.entry(site.to_owned()).or_default().insert(ip, moment);
    }

    pub fn forget(&mut self, site: &str, ip: IpAddr) {
        if let Some(addresses) = self.sites.get_mut(site) {
            addresses.remove(&ip);
            if addresses.is_empty() {
                self.sites.remove(site);
            }
        }
    }

    /// Returns when an address of the site was last freed. None: never, or too long ago to matter.
    pub fn moment(&self, site: &str, ip: IpAddr) -> Option<u64> {
        self.sites.get(site)?.get(&ip).copied()
    }

    /// Returns the addresses of a site in the order in which they were freed.
    pub fn in_order(&self, site: &str) -> Vec<IpAddr> {
        let mut freed: Vec<(u64, IpAddr)> =
            self.sites.get(site).into_iter().flatten().map(|(ip, moment)| (*moment, *ip)).collect();
        freed.sort_unstable();
        freed.into_iter().map(|(_, ip)| ip).collect()
    }

    /// Returns records that need not be kept: those beyond the maximum of a site, and all records of deleted
    /// sites.
    pub fn superfluous(&self, is_site: impl Fn(&str) -> bool) -> Vec<(String, IpAddr)> {
        let of_site = |site: &String| {
            let freed = self.in_order(site);
            let many = if is_site(site) { freed.len().saturating_sub(REMEMBERED_MAX) } else { freed.len() };
            freed.into_iter().take(many).map(|ip| (site.clone(), ip)).collect::<Vec<_>>()
        };
        self.sites.keys().flat_map(of_site).collect()
    }
}
