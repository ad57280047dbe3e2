//! Selects the netlink messages after which the route to the cloud may have changed. Pure.
//!
//! Namespaces of presences are created while the first dial is in progress and lead only to this host; the device of the
//! tunnel leads to other sites, not to the cloud;
//! link-local addresses and multicast lead to no cloud. Every other message counts as a change, also one that
//! cannot be parsed: a false alarm costs a few packets.

use std::collections::BTreeSet;

/// The prefix of the interface names of a presence namespace, before the number (`causeway-gateway`,
/// `veth.rs`).
const NAMESPACE_INTERFACE_PREFIX: &str = "causeway";
/// The prefix of the device names of the tunnel, before the number (`config/defaults.rs`). Its routes come and go with netmaps.
const TUNNEL_DEVICE_PREFIX: &str = "causeway-l3-";
/// A host has few presence namespaces. The newest removed ones are remembered, because messages about them
/// still arrive.
const NAMESPACE_INTERFACES_MAX: usize = 64;

// linux/rtnetlink.h and linux/if_link.h.
const LINKS: [u16; 2] = [16, 17];
const ADDRESSES: [u16; 2] = [20, 21];
const ROUTES: [u16; 2] = [24, 25];
const IFLA_IFNAME: u16 = 3;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// Scopes of an address: this one and those above stay on the link or on the host.
const SCOPE_LINK: u8 = 253;
/// nlmsghdr: length, type, flags, sequence, port.
const HEAD_BYTES: usize = 16;

/// Knows the interfaces of presence namespaces by their index.
#[derive(Debug, Default)]
pub struct NetworkChangeFilter {
    namespace_interfaces: BTreeSet<u32>,
}

impl NetworkChangeFilter {
    pub fn add_namespace_interface(&mut self, index: u32) {
        self.namespace_interfaces.insert(index);
        if self.namespace_interfaces.len() > NAMESPACE_INTERFACES_MAX {
            self.namespace_interfaces.pop_first();
        }
    }

    /// Returns whether a datagram of the kernel reports a relevant change.
    pub fn is_change(&mut self, mut datagram: &[u8]) -> bool {
        let mut is_changed = false;
        while !datagram.is_empty() {
            let Some((kind, content, rest)) = message(datagram) else { return true };
            // All messages are read: one may name an interface of a presence namespace.
            is_changed |= self.concerns_us(kind, content).unwrap_or(true);
            datagram = rest;
        }
        is_changed
    }

    /// None when it cannot be read.
    fn concerns_us(&mut self, kind: u16, content: &[u8]) -> Option<bool> {
        if LINKS.contains(&kind) {
            // ifinfomsg: family, type, index, flags, change.
            let index = number(content.get(4..8)?)?;
            if attribute(content.get(16..)?, IFLA_IFNAME).is_some_and(is_namespace_interface) {
                self.add_namespace_interface(index);
            }
            return Some(!self.namespace_interfaces.contains(&index));
        }
        if ADDRESSES.contains(&kind) {
            // ifaddrmsg: family, length of the prefix, flags, scope, index.
            let (scope, index) = (*content.get(3)?, number(content.get(4..8)?)?);
            return Some(scope < SCOPE_LINK && !self.namespace_interfaces.contains(&index));
        }
        if ROUTES.contains(&kind) {
            let attributes = content.get(12..)?;
            let leads_to_namespace = attribute(attributes, RTA_OIF)
                .and_then(number)
                .is_some_and(|interface| self.namespace_interfaces.contains(&interface));
            return Some(!leads_to_namespace && !attribute(attributes, RTA_DST).is_some_and(stays_on_link));
        }
        Some(true)
    }
}

/// The first message: its type, its content, and what is behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = number(bytes.get(..4)?)? as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let content = bytes.get(HEAD_BYTES..length)?;
    Some((kind, content, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The content of the first attribute of a kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let content = bytes.get(4..length)?;
        if kind == wanted {
            return Some(content);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Presence namespaces and tunnels of another causeway on this host are ignored as well.
pub fn is_namespace_interface(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    [NAMESPACE_INTERFACE_PREFIX, TUNNEL_DEVICE_PREFIX].iter().any(|prefix| {
        name.strip_prefix(prefix.as_bytes())
            .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    })
}

/// fe80::/10, ff00::/8, 169.254.0.0/16, 224.0.0.0/4.
fn stays_on_link(destination: &[u8]) -> bool {
    match destination.len() {
        4 => destination[..2] == [169, 254] || destination[0] & 0xf0 == 224,
        16 => destination[0] == 0xff || (destination[0] == 0xfe && destination[1] & 0xc0 == 0x80),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_attribute(bytes: &mut Vec<u8>, kind: u16, content: &[u8]) {
        bytes.extend(((4 + content.len()) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    fn framed(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEAD_BYTES + content.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEAD_BYTES, 0);
        bytes.extend(content);
        bytes
    }

    fn link(kind: u16, index: u32, name: &str) -> Vec<u8> {
        let mut content = [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat();
        put_attribute(&mut content, 13, &[1, 2, 3]);
        put_attribute(&mut content, IFLA_IFNAME, format!("{name}\0").as_bytes());
        framed(kind, &content)
    }

    fn address(index: u32, scope: u8) -> Vec<u8> {
        framed(20, &[&[2, 24, 0, scope][..], &index.to_ne_bytes()].concat())
    }

    fn route(destination: &[u8], interface: u32) -> Vec<u8> {
        let mut content = vec![0; 12];
        put_attribute(&mut content, RTA_DST, destination);
        put_attribute(&mut content, RTA_OIF, &interface.to_ne_bytes());
        framed(24, &content)
    }

    #[test]
    fn a_room_that_is_made_and_furnished_is_no_news() {
        let mut filter = NetworkChangeFilter::default();
        assert!(!filter.is_change(&link(16, 7, "causeway0")), "made");
        assert!(!filter.is_change(&link(16, 7, "causeway0")), "up");
        assert!(!filter.is_change(&address(7, 0)), "even an address of it");
        assert!(!filter.is_change(&route(&[198, 18, 0, 0], 7)), "the range of presences");
        assert!(!filter.is_change(&link(17, 7, "causeway0")), "gone");
        assert!(!filter.is_change(&route(&[198, 18, 0, 0], 7)), "its route, a moment later");
        // An interface that existed before the listener started.
        filter.add_namespace_interface(9);
        assert!(!filter.is_change(&route(&[198, 19, 0, 0], 9)));
    }

    #[test]
    fn what_stays_on_a_link_is_no_news() {
        let mut filter = NetworkChangeFilter::default();
        let link_local: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
        let everybody: std::net::Ipv6Addr = "ff00::".parse().unwrap();
        assert!(!filter.is_change(&address(2, SCOPE_LINK)));
        assert!(!filter.is_change(&address(1, 254)), "loopback");
        assert!(!filter.is_change(&route(&link_local.octets(), 2)));
        assert!(!filter.is_change(&route(&everybody.octets(), 2)));
        assert!(!filter.is_change(&route(&[169, 254, 0, 0], 2)));
    }

    #[test]
    fn the_rest_is() {
        let mut filter = NetworkChangeFilter::default();
        assert!(filter.is_change(&link(16, 2, "eth0")));
        assert!(filter.is_change(&link(16, 3, "causeway")), "somebody's own name");
        assert!(filter.is_change(&link(16, 4, "causeway-lan")));
        assert!(!filter.is_change(&link(16, 5, "causeway-l3-0")), "the tunnel");
        assert!(filter.is_change(&link(16, 6, "causeway-l3-x")));
        assert!(filter.is_change(&address(2, 0)));
        assert!(filter.is_change(&route(&[10, 0, 0, 0], 2)));
        // The default route has no destination.
        assert!(filter.is_change(&framed(25, &[0; 12])));
        assert!(filter.is_change(&framed(99, &[])));
        let both = [link(16, 7, "causeway0"), address(2, 0)].concat();
        assert!(filter.is_change(&both), "behind something that is none");
        let both = [address(2, 0), link(16, 8, "causeway1")].concat();
        assert!(filter.is_change(&both));
        assert!(!filter.is_change(&address(8, 0)), "learned behind what was news");
    }

    #[test]
    fn what_cannot_be_read_is_news_and_no_panic() {
        for whole in [link(16, 2, "eth0"), address(2, 0), route(&[10, 0, 0, 0], 2)] {
            for end in 1..whole.len() {
                assert!(NetworkChangeFilter::default().is_change(&whole[..end]), "{end} of {whole:?}");
            }
        }
        assert!(NetworkChangeFilter::default().is_change(&[0; 64]), "a message without a length");
        assert!(NetworkChangeFilter::default().is_change(&[0xff; 64]));
    }
}
