//! The gateways of every site in the order in which streams try them: the active one, then the rest by
//! priority and name. A gateway that drains gets no stream that names its site alone.

use std::collections::{BTreeSet, HashMap};

use causeway_api::{EGateway, ObjectSet};

use crate::replicas::ActiveGateways;

/// The gateways of all sites as EGateways name them, and the stored active ones. Attachments
/// are not known here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SiteGateways {
    /// By `EGateway::rank`.
    ordered: HashMap<String, Vec<String>>,
    /// The gateways that get no new streams.
    draining: BTreeSet<String>,
    active: ActiveGateways,
}

impl SiteGateways {
    pub fn of(objects: &ObjectSet, active: &ActiveGateways) -> SiteGateways {
        let mut gateways: Vec<&EGateway> = objects.all().collect();
        gateways.sort_by(|one, other| one.rank().cmp(&other.rank()));
        let draining = gateways.iter().filter(|gateway| gateway.drain);
        let draining = draining.map(|gateway| gateway.metadata.name.clone()).collect();
        let mut sites: HashMap<String, Vec<String>> = HashMap::new();
        for gateway in gateways {
            sites.entry(gateway.e_site_name.clone()).or_default().push(gateway.metadata.name.clone());
        }
        SiteGateways { ordered: sites, draining, active: active.clone() }
    }

    /// Returns the gateways of a site that may get new streams, the active one first, then by priority and name.
    pub fn gateways(&self, site: &str) -> impl Iterator<Item = &String> {
        let ordered = self.at(site).iter().filter(|gateway| !self.draining.contains(*gateway));
        let stored = self.active(site);
        let is_active = move |gateway: &&String| Some(gateway.as_str()) == stored;
        ordered.clone().filter(is_active).chain(ordered.filter(move |gateway| !is_active(gateway)))
    }

    /// Returns the gateways of a site that get no new streams.
    pub fn draining(&self, site: &str) -> impl Iterator<Item = &String> {
        self.at(site).iter().filter(|gateway| self.draining.contains(*gateway))
    }

    fn at(&self, site: &str) -> &[String] {
        self.ordered.get(site).map_or(&[][..], Vec::as_slice)
    }

    /// Returns the stored active gateway of a site.
    pub fn active(&self, site: &str) -> Option<&str> {
        self.active.get(site).map(String::as_str)
    }

    pub fn active_gateways(&self) -> &ActiveGateways {
        &self.active
    }

    /// Returns the sites that have several gateways, with these by `EGateway::rank`.
    pub fn shared(&self) -> impl Iterator<Item = (&str, &[String])> {
        let sites = self.ordered.iter().filter(|(_, gateways)| gateways.len() > 1);
        sites.map(|(site, gateways)| (site.as_str(), gateways.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::ObjectMeta;

    use super::*;

    #[test]
    fn the_highest_priority_goes_first_then_the_name() {
        let mut objects = ObjectSet::default();
        for (name, site, priority) in [("b", "oslo", 1), ("a", "oslo", 1), ("c", "oslo", 7), ("d", "rome", 0)]
        {
            let metadata = ObjectMeta::named(name);
            let gateway = EGateway { metadata, e_site_name: site.into(), priority, ..EGateway::default() };
            objects.insert(gateway.into());
        }
        let of = |active: &ActiveGateways, site: &str| {
            let sites = SiteGateways::of(&objects, active);
            sites.gateways(site).cloned().collect::<Vec<_>>()
        };
        let none = ActiveGateways::default();
        assert_eq!(of(&none, "oslo"), ["c", "a", "b"]);
        assert_eq!(of(&none, "rome"), ["d"]);
        assert!(of(&none, "nowhere").is_empty());
        let stored = ActiveGateways::from([("oslo".into(), "b".into()), ("rome".into(), "a".into())]);
        assert_eq!(of(&stored, "oslo"), ["b", "c", "a"]);
        assert_eq!(of(&stored, "rome"), ["d"], "a is not a gateway of rome");
        let drained = |objects: &ObjectSet, name: &str| {
            let gateway = objects.gateway(name).unwrap();
            EGateway { drain: true, ..gateway.clone() }
        };
        let mut draining = objects.clone();
        draining.insert(drained(&objects, "b").into());
        let sites = SiteGateways::of(&draining, &stored);
        assert_eq!(
            sites.gateways("oslo").collect::<Vec<_>>(),
            ["c", "a"],
            "b drains, although it is stored as active"
        );
        assert_eq!(sites.draining("oslo").collect::<Vec<_>>(), ["b"]);
        let sites = SiteGateways::of(&objects, &stored);
        assert_eq!(sites.shared().map(|(site, _)| site).collect::<Vec<_>>(), ["oslo"]);
    }
}
