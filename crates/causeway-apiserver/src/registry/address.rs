//! The virtual address of a presence: its site, the range it must be in, and its reservation.
//!
//! Pure. A reservation is a key of its own, `addresses/SITE/IP`, committed in one transaction with the
//! presence that holds it. Two presences can therefore never hold one address, on whichever replica they are
//! written. The same transaction writes `freed/SITE/IP` when an address is released: the revision of that
//! record tells the allocator which was freed first.

use std::net::IpAddr;

use bytes::Bytes;
use causeway_api::{EGateway, FieldError, Object, VirtualPresence, presence};
use causeway_store::Op;

pub const COLLECTION: &str = "addresses/";
/// Key prefix of released addresses.
pub const FREED: &str = "freed/";

/// Returns the key of a presence's reservation; none while it has no usable address or site.
pub fn reservation(object: &Object) -> Option<String> {
    let Object::VirtualPresence(presence) = object else { return None };
    let ip = presence.ip_addr()?;
    (!presence.e_site_name.is_empty()).then(|| format!("{COLLECTION}{}/{ip}", presence.e_site_name))
}

/// Makes the value of a reservation: the name of its presence.
pub fn reservation_value(presence: &str) -> Bytes {
    serde_json::json!({ "presence": presence }).to_string().into()
}

/// Returns the presence that holds a reservation, for the message.
pub fn holder(value: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(value).ok()?;
    Some(value.get("presence")?.as_str()?.to_owned())
}

/// Returns the operations that accompany the change `old` → `new` of one object; `None` is an absent object.
pub fn moves(old: Option<&Object>, new: Option<&Object>) -> Vec<Op> {
    let (from, to) = (old.and_then(reservation), new.and_then(reservation));
    if from == to {
        return Vec::new();
    }
    let name = new.map(|object| object.name().to_owned()).unwrap_or_default();
    let freed =
        from.as_deref().and_then(freed_key).map(|key| Op::Put { key, value: Bytes::from_static(b"{}") });
    let free = from.map(|key| Op::Delete { key, expected: None });
    let take = to.map(|key| Op::Create { key, value: reservation_value(&name) });
    free.into_iter().chain(freed).chain(take).collect()
}

fn freed_key(reservation: &str) -> Option<String> {
    Some(format!("{FREED}{}", reservation.strip_prefix(COLLECTION)?))
}

/// Returns the site and the address of a key under `freed/`.
pub fn freed(key: &str) -> Option<(&str, IpAddr)> {
    let (site, ip) = key.strip_prefix(FREED)?.split_once('/')?;
    Some((site, ip.parse().ok()?))
}

/// Returns true if the address must be checked. Unchanged ones are not: the range may have changed since.
pub fn is_moved(old: Option<&VirtualPresence>, new: &VirtualPresence) -> bool {
    old.is_none_or(|old| (&old.virtual_ip, &old.e_site_name) != (&new.virtual_ip, &new.e_site_name))
}

/// Returns the site of a presence: the one it names, else the only one whose gateway's range holds the
/// address. The error lists everything that is wrong with the address there. A conflict with another object is
/// not checked here: the reservation decides that, without a race.
pub fn site_of(presence: &VirtualPresence, gateways: &[EGateway]) -> Result<String, Vec<FieldError>> {
    let errors = presence::check(presence, gateways, &[]);
    if !errors.is_empty() {
        return Err(errors);
    }
    match presence.ip_addr() {
        Some(ip) if presence.e_site_name.is_empty() => {
            let site = presence::site_for(ip, gateways).map_err(|error| vec![error])?;
            Ok(site.map(|site| site.0).unwrap_or_default())
        }
        _ => Ok(presence.e_site_name.clone()),
    }
}

/// Makes the error for an address that another presence holds.
pub fn address_in_use_error(presence: &VirtualPresence, holder: Option<&str>) -> FieldError {
    let mut error = FieldError::duplicate("virtualIp", presence.virtual_ip.as_str());
    let holder = holder.map(|name| format!(" by VirtualPresence \"{name}\"")).unwrap_or_default();
    error.message = format!(
        "Duplicate value: \"{}\": the address is already used at site \"{}\"{holder}",
        presence.virtual_ip, presence.e_site_name
    );
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(ip: &str, site: &str) -> VirtualPresence {
        let mut presence = VirtualPresence::default();
        presence.metadata.name = "vp".into();
        presence.virtual_ip = ip.into();
        presence.e_site_name = site.into();
        presence
    }

    fn gateway(site: &str, cidr: &str) -> EGateway {
        let mut gateway = EGateway::default();
        gateway.metadata.name = format!("{site}-gw");
        gateway.e_site_name = site.into();
        gateway.virtual_presence_ip_cidr = cidr.into();
        gateway
    }

    #[test]
    fn the_site_follows_from_the_address_when_it_can() {
        let gateways = [
            gateway("tokyo", "192.168.0.0/24"),
            gateway("oslo", "10.0.0.0/8"),
            gateway("bergen", "10.1.0.0/16"),
        ];
        let check = |ip: &str, site: &str, expected: Result<&str, &str>| {
            let found = site_of(&presence(ip, site), &gateways);
            let found = found.as_deref().map_err(|errors| errors[0].path.as_str());
            assert_eq!(found, expected, "{ip} at {site:?}");
        };
        check("192.168.0.10", "", Ok("tokyo"));
        check("10.9.0.1", "", Ok("oslo"));
        check("10.1.0.1", "", Err("eSiteName"));
        check("10.1.0.1", "bergen", Ok("bergen"));
        check("172.16.0.1", "", Err("virtualIp"));
        check("172.16.0.1", "tokyo", Err("virtualIp"));
        check("172.16.0.1", "not-there-yet", Ok("not-there-yet"));
        check("garbage", "tokyo", Ok("tokyo"));
    }

    #[test]
    fn a_reservation_is_taken_moved_and_freed_with_its_presence() {
        let a: Object = presence("10.0.0.1", "oslo").into();
        let b: Object = presence("10.0.0.2", "oslo").into();
        let take = |key: &str| Op::Create { key: key.into(), value: reservation_value("vp") };
        let free = |key: &str| Op::Delete { key: key.into(), expected: None };
        assert_eq!(moves(None, Some(&a)), [take("addresses/oslo/10.0.0.1")]);
        assert_eq!(moves(Some(&a), Some(&a)), []);
        let freed = |key: &str| Op::Put { key: key.into(), value: Bytes::from_static(b"{}") };
        assert_eq!(
            moves(Some(&a), Some(&b)),
            [free("addresses/oslo/10.0.0.1"), freed("freed/oslo/10.0.0.1"), take("addresses/oslo/10.0.0.2")]
        );
        assert_eq!(moves(Some(&b), None), [free("addresses/oslo/10.0.0.2"), freed("freed/oslo/10.0.0.2")]);
        assert_eq!(super::freed("freed/oslo/10.0.0.2"), Some(("oslo", "10.0.0.2".parse().unwrap())));
        assert_eq!(super::freed("freed/oslo/x"), None);
        let site = Object::empty(causeway_api::Kind::ESite);
        assert_eq!(moves(None, Some(&site)), []);
        assert_eq!(holder(&reservation_value("x\"y")).as_deref(), Some("x\"y"));
        // Two spellings of one address are one reservation.
        let (long, short): (Object, Object) =
            (presence("fd00:0::1", "o").into(), presence("fd00::1", "o").into());
        assert_eq!(reservation(&long), reservation(&short));
    }
}
