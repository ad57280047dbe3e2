//! The gateways of every site, first the one that should be active. For whoever looks for a way there.

use std::collections::HashMap;

use causeway_api::{EGateway, ObjectSet};

/// As the objects say; who of them is attached is another matter.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SiteGateways(HashMap<String, Vec<String>>);

impl SiteGateways {
    pub fn of(world: &ObjectSet) -> SiteGateways {
        let mut gateways: Vec<&EGateway> = world.all().collect();
        gateways.sort_by(|one, other| {
            let by_priority = other.priority.cmp(&one.priority);
            by_priority.then_with(|| one.metadata.name.cmp(&other.metadata.name))
        });
        let mut sites: HashMap<String, Vec<String>> = HashMap::new();
        for gateway in gateways {
            sites.entry(gateway.e_site_name.clone()).or_default().push(gateway.metadata.name.clone());
        }
        SiteGateways(sites)
    }

    /// The highest priority first, then by name.
    pub fn gateways(&self, site: &str) -> &[String] {
        self.0.get(site).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::ObjectMeta;

    use super::*;

    #[test]
    fn the_highest_priority_goes_first_then_the_name() {
        let mut world = ObjectSet::default();
        for (name, site, priority) in [("b", "oslo", 1), ("a", "oslo", 1), ("c", "oslo", 7), ("d", "rome", 0)]
        {
            let metadata = ObjectMeta::named(name);
            let gateway = EGateway { metadata, e_site_name: site.into(), priority, ..EGateway::default() };
            world.insert(gateway.into());
        }
        let sites = SiteGateways::of(&world);
        assert_eq!(sites.gateways("oslo"), ["c", "a", "b"]);
        assert_eq!(sites.gateways("rome"), ["d"]);
        assert!(sites.gateways("nowhere").is_empty());
    }
}
