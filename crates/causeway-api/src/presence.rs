//! Rules between a presence, the gateways and the other presences.
//!
//! The API server checks them before it stores a VirtualPresence; the reconciler checks again, because ranges
//! change later. Values in, findings out; a missing object is not an error here but a condition.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::field::FieldError;
use crate::kinds::{EGateway, VirtualPresence};

/// The name of an ESite.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteName(pub String);

/// Returns the conflicts of the presence with other objects: its address is outside its site's ranges, is no
/// host address, is the gateway's own, or is taken by another presence at the same site.
pub fn check(
    presence: &VirtualPresence,
    gateways: &[EGateway],
    presences: &[VirtualPresence],
) -> Vec<FieldError> {
    check_refs(presence, &gateways.iter().collect::<Vec<_>>(), &presences.iter().collect::<Vec<_>>())
}

/// The same for callers that keep their objects by reference.
pub fn check_refs(
    presence: &VirtualPresence,
    gateways: &[&EGateway],
    presences: &[&VirtualPresence],
) -> Vec<FieldError> {
    // `validate` has refused an address that cannot be read.
    let Some(ip) = presence.ip_addr() else { return Vec::new() };
    let site = match site_of(presence, gateways) {
        Ok(Some(site)) => site,
        Ok(None) => {
            let allowed = "no gateway's virtualPresenceIPcidr holds this address; correct it, or set eSiteName to the \
                           site it is meant for";
            return vec![FieldError::invalid("virtualIp", presence.virtual_ip.as_str(), allowed)];
        }
        Err(ambiguous) => return vec![ambiguous],
    };
    let address = check_address(ip, &site, gateways);
    let taken = check_taken(presence, ip, &site, gateways, presences);
    address.into_iter().chain(taken).collect()
}

/// Returns the site whose gateway's range contains the address. None: no gateway's range does. An error: the
/// ranges of several sites do, which is usual because every site may use the same range.
pub fn site_for(ip: IpAddr, gateways: &[EGateway]) -> Result<Option<SiteName>, FieldError> {
    site_for_refs(ip, &gateways.iter().collect::<Vec<_>>())
}

fn site_for_refs(ip: IpAddr, gateways: &[&EGateway]) -> Result<Option<SiteName>, FieldError> {
    let holding = gateways.iter().filter(|gateway| range_of(gateway, ip).is_some());
    let sites: BTreeSet<&str> = holding.map(|gateway| gateway.e_site_name.as_str()).collect();
    match sites.len() {
        0 => Ok(None),
        1 => Ok(sites.first().map(|site| SiteName(site.to_string()))),
        several => {
            let some = sites.into_iter().take(5).collect::<Vec<_>>().join(", ");
            let more = if several > 5 { format!(" and {} more", several - 5) } else { String::new() };
            let fix = format!(
                "several sites use a range that holds {ip}: {some}{more}; set eSiteName to one of them"
            );
            Err(FieldError::required("eSiteName", fix))
        }
    }
}

fn site_of(presence: &VirtualPresence, gateways: &[&EGateway]) -> Result<Option<SiteName>, FieldError> {
    match (presence.e_site_name.as_str(), presence.ip_addr()) {
        ("", Some(ip)) => site_for_refs(ip, gateways),
        ("", None) => Ok(None),
        (site, _) => Ok(Some(SiteName(site.into()))),
    }
}

/// Checks that a gateway of the site can use the address. A site without gateways accepts any address.
fn check_address(ip: IpAddr, site: &SiteName, gateways: &[&EGateway]) -> Option<FieldError> {
    let at_site: Vec<&&EGateway> = gateways.iter().filter(|gateway| gateway.e_site_name == site.0).collect();
    if at_site.is_empty() {
        return None;
    }
    let refuse = |allowed: String| Some(FieldError::invalid("virtualIp", ip.to_string(), allowed));
    let Some(range) = at_site.iter().find_map(|gateway| range_of(gateway, ip)) else {
        let ranges: BTreeSet<&str> =
            at_site.iter().map(|gateway| gateway.virtual_presence_ip_cidr.as_str()).collect();
        let ranges = ranges.into_iter().collect::<Vec<_>>().join(", ");
        return refuse(format!("it must lie inside virtualPresenceIPcidr of the site {}: {ranges}", site.0));
    };
    if ip == range.network() {
        return refuse(format!("this is the network address of {range}; choose a host address"));
    }
    if ip.is_ipv4() && ip == range.broadcast() {
        return refuse(format!("this is the broadcast address of {range}; choose a host address"));
    }
    let own = at_site.iter().find(|gateway| gateway.ip.parse() == Ok(ip))?;
    refuse(format!("this is the own address of the gateway {}", own.metadata.name))
}

fn check_taken(
    presence: &VirtualPresence,
    ip: IpAddr,
    site: &SiteName,
    gateways: &[&EGateway],
    presences: &[&VirtualPresence],
) -> Option<FieldError> {
    let holder = presences.iter().find(|other| {
        other.metadata.name != presence.metadata.name
            && other.ip_addr() == Some(ip)
            && site_of(other, gateways).is_ok_and(|theirs| theirs.as_ref() == Some(site))
    })?;
    let allowed = format!(
        "the address is taken at the site {} by the presence {} of {}",
        site.0, holder.metadata.name, holder.e_service_name
    );
    Some(FieldError::invalid("virtualIp", presence.virtual_ip.as_str(), allowed))
}

/// Returns the gateway's range that contains the address.
fn range_of(gateway: &EGateway, ip: IpAddr) -> Option<IpNet> {
    gateway.presence_cidrs().into_iter().find(|range| range.contains(&ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectMeta;

    #[test]
    fn a_presence_has_a_free_host_address_of_its_sites_range() {
        let fine = "";
        check("192.168.0.10", "tokyo", fine);
        check("192.168.0.10", "", fine);
        check("fd00::5", "tokyo", fine);
        check("10.9.9.9", "nowhere", fine);
        check(
            "192.168.1.10",
            "tokyo",
            "it must lie inside virtualPresenceIPcidr of the site tokyo: 192.168.0.0/24,fd00::/112",
        );
        check("198.18.0.9", "tokyo", "it must lie inside");
        check("192.168.0.0", "tokyo", "network address of 192.168.0.0/24");
        check("192.168.0.255", "tokyo", "broadcast address of 192.168.0.0/24");
        check("fd00::", "tokyo", "network address of fd00::/112");
        check("fd00::ffff", "tokyo", fine);
        check("192.168.0.1", "tokyo", "own address of the gateway tokyo-gw");
        check("192.168.0.77", "tokyo", "taken at the site tokyo by the presence camera of cam");
        check("192.168.0.77", "", "taken at the site tokyo by the presence camera of cam");
        check(
            "198.18.0.9",
            "",
            "several sites use a range that holds 198.18.0.9: berlin, oslo; set eSiteName to one of them",
        );
        check("198.18.0.77", "oslo", fine);
        check("198.18.0.77", "berlin", "taken at the site berlin by the presence lamp of lamp");
        check("172.16.0.1", "", "no gateway's virtualPresenceIPcidr holds this address");
    }

    #[track_caller]
    fn check(ip: &str, site: &str, expected: &str) {
        let gateways = [
            gateway("tokyo-gw", "tokyo", "192.168.0.0/24,fd00::/112", "192.168.0.1"),
            gateway("berlin-a", "berlin", "198.18.0.0/16", ""),
            gateway("berlin-b", "berlin", "198.18.0.0/16", ""),
            gateway("oslo-gw", "oslo", "198.18.0.0/16", ""),
        ];
        let others = [
            presence("camera", "192.168.0.77", "cam", ""),
            presence("lamp", "198.18.0.77", "lamp", "berlin"),
            presence("mine", "192.168.0.10", "web", "tokyo"),
        ];
        let errors = super::check(&presence("mine", ip, "web", site), &gateways, &others);
        match expected {
            "" => assert_eq!(errors, []),
            expected => {
                assert_eq!(errors.len(), 1, "{errors:?}");
                assert!(errors[0].message.contains(expected), "{}", errors[0]);
            }
        }
    }

    #[test]
    fn the_site_follows_from_the_address_when_only_one_can_be_meant() {
        let gateways =
            [gateway("a", "tokyo", "192.168.0.0/24", ""), gateway("b", "tokyo", "192.168.0.0/24", "")];
        let site = |ip: &str| site_for(ip.parse().unwrap(), &gateways).unwrap();
        assert_eq!(site("192.168.0.9"), Some(SiteName("tokyo".into())));
        assert_eq!(site("10.0.0.1"), None);
        assert_eq!(site("fd00::1"), None);
    }

    fn gateway(name: &str, site: &str, cidr: &str, ip: &str) -> EGateway {
        EGateway {
            metadata: ObjectMeta::named(name),
            ip: ip.into(),
            virtual_presence_ip_cidr: cidr.into(),
            e_site_name: site.into(),
            ..EGateway::default()
        }
    }

    fn presence(name: &str, ip: &str, service: &str, site: &str) -> VirtualPresence {
        VirtualPresence {
            metadata: ObjectMeta::named(name),
            virtual_ip: ip.into(),
            e_service_name: service.into(),
            e_site_name: site.into(),
            ..VirtualPresence::default()
        }
    }
}
