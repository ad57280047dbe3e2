//! Peers on demand: members of large communities become peers when packets are exchanged with them, and go when they
//! were silent for long.
//!
//! The first frame to a member waits in `PendingFrames` while the cloud is asked. A packet of a member over the channel may
//! be faster than the plan with its peer, and waits too.

use std::time::{Duration, Instant};

use causeway_netmap::SiteName;

use super::Worker;
use crate::peer_requests::PeerQuestion;
use crate::tun::counters::DropReason;
use crate::tun::offload::FrameHeader;
use crate::tun::packet::{self, ParsedPacket};
use crate::tun::reply::ReplyReason;

/// A peer without a packet for this time is given up.
const SILENT_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Peers beyond this number are given up too, the longest silent first. The cloud keeps 1,024 for a gateway.
const PEERS_MAX: usize = 896;
pub const SILENCE_LOOK: Duration = Duration::from_secs(60);

impl Worker {
    /// Keeps a frame of a host and asks for the member behind which its destination is.
    pub(super) fn await_peer(&mut self, frame: &[u8], packet: &ParsedPacket, now: Instant) {
        let (host, destination) = (packet.source, packet.destination);
        if !self.pending.push(host, destination, frame, now) {
            self.counters.drop(DropReason::NoRoute);
        }
        self.shared.context.peer_requests.ask_for(host, PeerQuestion::Address(destination));
    }

    /// Forwards what waited for peers that the new plan has.
    pub(super) fn take_up_pending(&mut self, now: Instant) {
        let peers = &self.peers;
        for mut frame in self.pending.take_reachable(|address| peers.towards(address).is_some()) {
            self.handle_frame(&mut frame.bytes, now);
        }
        let peers = &self.peers;
        for (gateway, packet) in self.early.take(|gateway| peers.by_name(gateway).is_some()) {
            if let Some(slot) = self.peers.by_name(&gateway) {
                let mut message = packet.to_vec();
                self.handle_message(&mut message, super::inbound::Origin::Channel(slot), now);
            }
        }
        self.joiner.flush(&mut self.device);
        self.flush_train();
    }

    /// Asks again for members that are awaited, answers frames that waited in vain, and gives up silent peers.
    pub(super) fn handle_demand_time(&mut self, now: Instant) {
        for frame in self.pending.take_expired(now) {
            self.counters.drop(DropReason::NoRoute);
            let bytes = frame.bytes.get(FrameHeader::BYTES..).unwrap_or_default();
            if let Ok(parsed) = packet::parse(bytes) {
                self.answer_host(bytes, &parsed, ReplyReason::Unreachable);
            }
        }
        for (host, destination) in self.pending.destinations() {
            self.shared.context.peer_requests.ask_for(host, PeerQuestion::Address(destination));
        }
        if now < self.next_silence_look {
            return;
        }
        self.next_silence_look = now + SILENCE_LOOK;
        let plan = self.plan.clone();
        let is_on_demand = |peer: &super::peers::Peer| {
            peer.planned.entry.networks.iter().any(|network| plan.is_on_demand(network.addr()))
        };
        let last_used = |peer: &super::peers::Peer| peer.used.map_or(peer.since, |used| used.max(peer.since));
        let peers: Vec<(SiteName, Instant)> = self
            .peers
            .iter()
            .filter(|peer| is_on_demand(peer))
            .map(|peer| (peer.planned.entry.site.clone(), last_used(peer)))
            .collect();
        for site in silent_sites(peers, now) {
            self.shared.context.peer_requests.ask(PeerQuestion::Silent(site.to_string()));
        }
    }
}

/// Returns the sites whose gateways need not be peers any more. A site is used when one of its gateways is.
fn silent_sites(peers: Vec<(SiteName, Instant)>, now: Instant) -> Vec<SiteName> {
    let mut sites: std::collections::BTreeMap<SiteName, Instant> = Default::default();
    for (site, used) in peers {
        let last = sites.entry(site).or_insert(used);
        *last = (*last).max(used);
    }
    let mut sites: Vec<(SiteName, Instant)> = sites.into_iter().collect();
    sites.sort_by_key(|(_, used)| *used);
    let beyond = sites.len().saturating_sub(PEERS_MAX);
    let is_silent = |used: Instant| now.saturating_duration_since(used) >= SILENT_AFTER;
    sites
        .into_iter()
        .enumerate()
        .filter(|(place, (_, used))| *place < beyond || is_silent(*used))
        .map(|(_, (site, _))| site)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_go_after_a_day_of_silence_and_the_longest_silent_go_when_there_are_too_many() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let site = |number: usize| SiteName::from(format!("site-{number:04}").as_str());
        let day = SILENT_AFTER.as_secs();
        let peers = vec![(site(1), at(0)), (site(2), at(0)), (site(2), at(9)), (site(3), at(8))];
        assert!(silent_sites(peers.clone(), at(day - 1)).is_empty());
        assert_eq!(silent_sites(peers, at(day)), [site(1)], "another gateway of site-0002 is used");
        let many = (0..PEERS_MAX + 2).map(|number| (site(number), at(2000 - number as u64))).collect();
        assert_eq!(silent_sites(many, at(2001)), [site(PEERS_MAX + 1), site(PEERS_MAX)]);
    }
}
