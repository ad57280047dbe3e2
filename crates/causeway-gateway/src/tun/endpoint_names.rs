//! The addresses of endpoints that are given by name. Pure.
//!
//! Input: a netmap, and the answers of name servers as they come. Output: peers with the addresses that are known, at once:
//! a plan does not wait for a name server. A name that has no answer keeps its last addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use causeway_netmap::NetmapView;

use super::plan::PlannedPeer;

#[derive(Default, Debug)]
pub struct EndpointNames(BTreeMap<String, Vec<SocketAddr>>);

impl EndpointNames {
    /// Takes the names of a netmap, and forgets those that it does not have. Returns the new ones, which are to be looked up.
    pub fn follow(&mut self, view: &NetmapView) -> Vec<String> {
        let endpoints = view.tunnel_peers.values().flat_map(|peer| &peer.endpoints);
        let names: BTreeSet<&String> =
            endpoints.filter(|endpoint| endpoint.parse::<SocketAddr>().is_err()).collect();
        self.0.retain(|name, _| names.contains(name));
        let new: Vec<String> =
            names.into_iter().filter(|name| !self.0.contains_key(*name)).cloned().collect();
        self.0.extend(new.iter().map(|name| (name.clone(), Vec::new())));
        new
    }

    /// Returns the names to look up: all of them, because their addresses change.
    pub fn to_look_up(&self) -> impl Iterator<Item = String> + use<> {
        self.0.keys().cloned().collect::<Vec<_>>().into_iter()
    }

    /// Takes answers. Returns whether an address has changed.
    pub fn note(&mut self, answers: Vec<(String, Option<Vec<SocketAddr>>)>) -> bool {
        let mut is_changed = false;
        for (name, found) in answers {
            if let (Some(known), Some(mut found)) = (self.0.get_mut(&name), found) {
                // Name servers rotate their answers.
                found.sort_unstable();
                found.dedup();
                is_changed |= *known != found;
                *known = found;
            }
        }
        is_changed
    }

    /// Returns the peers of a netmap with the addresses of their endpoints that are known.
    pub fn peers(&self, view: &NetmapView) -> Vec<PlannedPeer> {
        let addresses = |endpoint: &String| match endpoint.parse() {
            Ok(address) => vec![address],
            Err(_) => self.0.get(endpoint).cloned().unwrap_or_default(),
        };
        let planned = view.tunnel_peers.values().map(|entry| PlannedPeer {
            entry: entry.clone(),
            endpoints: entry.endpoints.iter().flat_map(addresses).collect(),
        });
        planned.collect()
    }
}
