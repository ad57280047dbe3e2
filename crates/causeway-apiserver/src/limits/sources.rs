//! Counts open connections by source address, so that one client cannot take all of them.
//!
//! An IPv6 network of 64 bits counts as one source. At the limit a connection is closed at once and counted
//! in `causeway_api_rejected`; nothing is sent, because before TLS there is no form in which a client would
//! read it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use causeway_api::sync::MutexExt;

/// The open connections of every source. Holds at most one entry per open connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Sources {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    per_source_max: usize,
    loopback_max: usize,
}

/// One open connection; given back when dropped.
#[derive(Debug)]
pub struct SourceConnection {
    sources: Sources,
    source: IpAddr,
}

impl Sources {
    pub fn new(per_source_max: usize, loopback_max: usize) -> Sources {
        Sources { open: Arc::default(), per_source_max, loopback_max }
    }

    /// Counts a connection. `None`: the source has reached its limit.
    pub fn enter(&self, address: IpAddr) -> Option<SourceConnection> {
        let source = source(address);
        // Programs on this host are the operator's own; a proxy in front of the API is one of them.
        let max = if address.to_canonical().is_loopback() { self.loopback_max } else { self.per_source_max };
        let mut open = self.open.lock_ignoring_poison();
        let count = open.get(&source).copied().unwrap_or_default();
        if count >= max {
            return None;
        }
        open.insert(source, count + 1);
        Some(SourceConnection { sources: self.clone(), source })
    }
}

impl Drop for SourceConnection {
    fn drop(&mut self) {
        let mut open = self.sources.open.lock_ignoring_poison();
        if let Some(count) = open.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.source);
            }
        }
    }
}

/// Returns the source of an address: a subscriber with IPv6 has a whole /64, and one host has IPv4 in two
/// spellings.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        // All of ::/64 but loopback is unassigned; loopback counts as itself.
        v6 if v6.is_loopback() => v6,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_share_and_gives_it_back() {
        let sources = Sources::new(2, 3);
        let enter = |text: &str| sources.enter(text.parse().unwrap());
        let first = enter("192.0.2.1");
        let _mapped = enter("::ffff:192.0.2.1");
        assert!(first.is_some() && enter("192.0.2.1").is_none(), "full");
        assert!(enter("192.0.2.2").is_some(), "another address has its own");
        drop(first);
        assert!(enter("192.0.2.1").is_some(), "a closed connection is given back");

        let _network = [enter("2001:db8::1"), enter("2001:db8::2")];
        assert!(enter("2001:db8::3").is_none(), "the same /64");
        assert!(enter("2001:db8:0:1::1").is_some());

        let local: Vec<_> = (0..3).map(|_| enter("127.0.0.1")).collect();
        assert!(local.iter().all(Option::is_some) && enter("127.0.0.1").is_none(), "this host has more");
        drop((local, _mapped, _network));
        assert!(sources.open.lock().unwrap().is_empty());
    }
}
