//! The neighbours that gateways asked for in large communities.
//!
//! The set of a gateway is made of what the gateway itself says: the peers of its persisted netmap when a session
//! begins, and its questions since. Nothing is stored, and replicas need not share it: the other gateway of a pair asks
//! for itself when it is spoken to. Bounded by number and by rate, so that a gateway that was taken over can neither
//! make the cloud grow nor list the members of its communities quickly.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use causeway_api::ObjectSet;
use causeway_channel::wire::control::{NEIGHBOUR_QUESTIONS_MAX, NEIGHBOURS_MAX, NeighbourQuery};
use causeway_gateway::limits::{BucketRate, TokenBucket};

use crate::compile::{networks_around, site_behind, site_named};

/// Questions of one gateway per second, and the seconds of them that may come at once. A host that begins flows to all
/// members of a community of 1,000 has its last peer after 50 seconds.
const QUESTIONS_PER_SECOND: u64 = 20;
const BURST: Duration = Duration::from_secs(3);
/// The longest name of an object.
const NAME_BYTES_MAX: usize = 253;

/// The sites that one gateway asked for.
#[derive(Default, Debug)]
pub struct NeighbourSet {
    sites: BTreeSet<String>,
    /// The one that was asked for longest ago is the first.
    order: VecDeque<String>,
    bucket: TokenBucket,
}

impl NeighbourSet {
    pub fn sites(&self) -> &BTreeSet<String> {
        &self.sites
    }

    /// Adds the neighbours of a persisted netmap. Returns whether the set has changed.
    pub fn restore<'a>(&mut self, sites: impl IntoIterator<Item = &'a String>) -> bool {
        let sites = sites.into_iter().take(NEIGHBOURS_MAX).filter(|site| site.len() <= NAME_BYTES_MAX);
        sites.fold(false, |changed, site| self.add(site) | changed)
    }

    /// Takes the questions of a gateway of `site`. Returns whether the set has changed.
    pub fn ask(&mut self, objects: &ObjectSet, site: &str, query: &NeighbourQuery, now: Instant) -> bool {
        let mut changed = false;
        let rate = BucketRate::new(QUESTIONS_PER_SECOND, BURST);
        // One token for all: a gateway gives up many at once, and seldom.
        if !query.silent.is_empty() && self.bucket.try_take(1, rate, now).is_ok() {
            for silent in query.silent.iter().take(NEIGHBOUR_QUESTIONS_MAX) {
                changed |= self.remove(silent);
            }
        }
        // Made once for all addresses of the query: it takes as long as the community is large.
        let mut networks = None;
        let addresses = query.addresses.iter().map(|bytes| address(bytes).ok_or(""));
        let names = query.sites.iter().map(|name| Err(name.as_str()));
        for question in addresses.chain(names).take(NEIGHBOUR_QUESTIONS_MAX) {
            if self.bucket.try_take(1, rate, now).is_err() {
                break;
            }
            let found = match question {
                Ok(address) => {
                    let networks = networks.get_or_insert_with(|| networks_around(objects, site));
                    site_behind(networks, address)
                }
                Err(name) => site_named(objects, site, name),
            };
            changed |= found.is_some_and(|found| self.add(found));
        }
        changed
    }

    fn add(&mut self, site: &str) -> bool {
        if self.sites.contains(site) {
            // Asked for again: it talks, and is the last to be replaced.
            if let Some(place) = self.order.iter().position(|known| known == site)
                && let Some(known) = self.order.remove(place)
            {
                self.order.push_back(known);
            }
            return false;
        }
        if self.sites.len() >= NEIGHBOURS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.sites.remove(&oldest);
        }
        self.sites.insert(site.to_owned());
        self.order.push_back(site.to_owned());
        true
    }

    fn remove(&mut self, site: &str) -> bool {
        let is_known = self.sites.remove(site);
        if is_known {
            self.order.retain(|known| known != site);
        }
        is_known
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::{Kind, Object};
    use serde_json::{Value, json};

    use super::*;

    fn objects(members: usize) -> ObjectSet {
        let object = |kind, value: Value| Object::decode(kind, value).unwrap().object;
        let name = |index: usize| format!("Site-{index}");
        let mut objects = ObjectSet::default();
        for index in 0..members {
            let subnet = format!("10.{}.{}.0/24", index / 256, index % 256);
            objects
                .insert(object(Kind::ESite, json!({"metadata": {"name": name(index)}, "subnets": [subnet]})));
        }
        let stranger = json!({"metadata": {"name": "stranger"}, "subnets": ["172.16.0.0/24"]});
        objects.insert(object(Kind::ESite, stranger));
        let all: Vec<String> = (0..members).map(name).collect();
        objects.insert(object(Kind::ECommunity, json!({"metadata": {"name": "all"}, "members": all})));
        objects
    }

    fn of_address(address: [u8; 4]) -> NeighbourQuery {
        NeighbourQuery { addresses: vec![address.to_vec().into()], ..NeighbourQuery::default() }
    }

    fn of_site(site: &str) -> NeighbourQuery {
        NeighbourQuery { sites: vec![site.to_owned()], ..NeighbourQuery::default() }
    }

    #[test]
    fn only_members_of_a_common_community_are_found() {
        let (objects, now) = (objects(3), Instant::now());
        let mut set = NeighbourSet::default();
        let mut ask = |query: NeighbourQuery| {
            set.ask(&objects, "Site-0", &query, now);
            set.sites().iter().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ask(of_address([172, 16, 0, 1])), "", "a site without a common community");
        assert_eq!(ask(of_address([10, 0, 0, 1])), "", "the site itself");
        assert_eq!(ask(of_site("stranger")), "");
        assert_eq!(ask(NeighbourQuery { addresses: vec![vec![1; 5].into()], ..Default::default() }), "");
        assert_eq!(ask(of_address([10, 0, 1, 9])), "Site-1");
        assert_eq!(ask(of_site("site-2")), "Site-1 Site-2", "a name of DNS has no capital letters");
        assert_eq!(ask(NeighbourQuery { silent: vec!["Site-1".into()], ..Default::default() }), "Site-2");
    }

    #[test]
    fn questions_above_the_rate_are_dropped_and_the_set_is_bounded() {
        let (objects, mut now) = (objects(1200), Instant::now());
        let mut set = NeighbourSet::default();
        for index in 1..1200_usize {
            set.ask(&objects, "Site-0", &of_site(&format!("Site-{index}")), now);
        }
        assert_eq!(set.sites().len(), 60, "a burst of three seconds");
        for index in 1..1200_usize {
            now += Duration::from_millis(50);
            set.ask(&objects, "Site-0", &of_site(&format!("Site-{index}")), now);
            // One that goes on talking is asked for again.
            now += Duration::from_millis(50);
            set.ask(&objects, "Site-0", &of_site("Site-1"), now);
        }
        assert_eq!((set.sites().len(), set.order.len()), (NEIGHBOURS_MAX, NEIGHBOURS_MAX));
        let has = |index: usize| set.sites().contains(&format!("Site-{index}"));
        assert!(has(1) && has(1199) && !has(2), "the one that was asked for longest ago is replaced");
        let many: Vec<String> = (0..3000).map(|index| format!("n{index}")).collect();
        set.restore(&many);
        assert_eq!(set.sites().len(), NEIGHBOURS_MAX);
    }
}
