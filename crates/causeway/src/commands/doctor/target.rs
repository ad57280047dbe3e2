//! Resolves the word on the command line to a service, a name, an address, a site, a gateway or a node.
//!
//! Pure: a word and the objects in, a target out. For an unknown word, the nearest known name.

use std::net::IpAddr;

use causeway_api::{EGateway, EServer, EService, ESite, Kind, ObjectSet, ServiceExpose, VirtualPresence};

use crate::kinds::KindWord;

/// The object that is examined.
#[derive(Debug, PartialEq, Eq)]
pub enum DoctorTarget {
    Service {
        name: String,
        site: Option<String>,
    },
    Site(String),
    /// Packets between two sites.
    Sites {
        from: String,
        to: String,
    },
    Node(String),
    Gateway(String),
    /// A kind that is no hop of a path.
    Unsupported {
        kind: Kind,
        name: String,
    },
    /// Everything there is.
    Fleet,
    Nothing {
        word: String,
        nearest: Option<String>,
    },
}

impl DoctorTarget {
    /// Of several objects with one name: a service, then an exposure, a gateway, a site, a node, a DNS name.
    pub fn find(word: &str, objects: &ObjectSet) -> DoctorTarget {
        let named = |word: &str| word.to_owned();
        match word.split_once('/') {
            Some(("service", name)) => return DoctorTarget::service(name, objects),
            Some(("site", name)) => return DoctorTarget::Site(named(name)),
            Some(("node", name)) => return DoctorTarget::Node(named(name)),
            Some(("gateway", name)) => return DoctorTarget::Gateway(named(name)),
            Some(_) => {
                if let Ok(KindWord { kinds, name: Some(name) }) = KindWord::parse(word)
                    && let [kind] = kinds.as_slice()
                {
                    return DoctorTarget::of_kind(*kind, &name, objects)
                        .unwrap_or_else(|| nothing(word, objects));
                }
            }
            None => {}
        }
        if let Ok(address) = word.parse::<IpAddr>() {
            return DoctorTarget::at(address, objects).unwrap_or_else(|| nothing(word, objects));
        }
        if word.contains('@') || objects.service(word).is_some() {
            DoctorTarget::service(word, objects)
        } else if let Some(expose) = objects.expose(word) {
            DoctorTarget::Service { name: expose.e_service_name.clone(), site: None }
        } else if objects.gateway(word).is_some() {
            DoctorTarget::Gateway(named(word))
        } else if objects.site(word).is_some() {
            DoctorTarget::Site(named(word))
        } else if objects.server(word).is_some() {
            DoctorTarget::Node(named(word))
        } else {
            by_dns_name(word, objects).unwrap_or_else(|| nothing(word, objects))
        }
    }

    /// Packets from one site to another. A site may be written as site/NAME.
    pub fn between(from: &str, to: &str) -> DoctorTarget {
        let name = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
        DoctorTarget::Sites { from: name(from), to: name(to) }
    }

    /// The target that KIND/NAME means. `None`: there is no such exposure or presence, and the name of the service is in it.
    fn of_kind(kind: Kind, name: &str, objects: &ObjectSet) -> Option<DoctorTarget> {
        Some(match kind {
            Kind::EService => DoctorTarget::service(name, objects),
            Kind::ESite => DoctorTarget::Site(name.to_owned()),
            Kind::EServer => DoctorTarget::Node(name.to_owned()),
            Kind::EGateway => DoctorTarget::Gateway(name.to_owned()),
            Kind::ServiceExpose => {
                DoctorTarget::Service { name: objects.expose(name)?.e_service_name.clone(), site: None }
            }
            Kind::VirtualPresence => {
                let presence =
                    objects.all::<VirtualPresence>().find(|presence| presence.metadata.name == name)?;
                let site = Some(presence.e_site_name.clone()).filter(|site| !site.is_empty());
                DoctorTarget::Service { name: presence.e_service_name.clone(), site }
            }
            kind => DoctorTarget::Unsupported { kind, name: name.to_owned() },
        })
    }

    fn service(word: &str, objects: &ObjectSet) -> DoctorTarget {
        let (name, site) = match word.split_once('@') {
            Some((name, site)) => (name, Some(site.to_owned())),
            None => (word, None),
        };
        // Before the @ any name of the service is accepted.
        let name = match DoctorTarget::find_service(name, objects) {
            Some(found) => found,
            None => name.to_owned(),
        };
        DoctorTarget::Service { name, site }
    }

    fn find_service(word: &str, objects: &ObjectSet) -> Option<String> {
        if objects.service(word).is_some() {
            return Some(word.to_owned());
        }
        let by_expose = objects.expose(word).map(|expose| expose.e_service_name.clone());
        by_expose.or_else(|| match by_dns_name(word, objects)? {
            DoctorTarget::Service { name, .. } => Some(name),
            _ => None,
        })
    }

    /// The address of a presence, of a gateway, of a host or of a backend.
    fn at(address: IpAddr, objects: &ObjectSet) -> Option<DoctorTarget> {
        if let Some(presence) = objects.presences_with(address).next() {
            let site = Some(presence.e_site_name.clone()).filter(|site| !site.is_empty());
            return Some(DoctorTarget::Service { name: presence.e_service_name.clone(), site });
        }
        let is = |text: &str| text.parse::<IpAddr>().is_ok_and(|ip| ip == address);
        if let Some(gateway) = objects.all::<EGateway>().find(|gateway| is(&gateway.ip)) {
            return Some(DoctorTarget::Gateway(gateway.metadata.name.clone()));
        }
        if let Some(server) = objects.all::<EServer>().find(|server| is(&server.ip)) {
            return Some(DoctorTarget::Node(server.metadata.name.clone()));
        }
        let of = |service: &&EService| {
            is(&service.ip) || service.endpoints.iter().any(|endpoint| is(&endpoint.ip))
        };
        let service = objects.all::<EService>().find(of)?;
        Some(DoctorTarget::Service { name: service.metadata.name.clone(), site: None })
    }
}

/// A `dnsName`, SERVICE.SITE.causeway.internal, or the name of a node. Capitals and a dot at the end make no difference.
fn by_dns_name(word: &str, objects: &ObjectSet) -> Option<DoctorTarget> {
    let word = word.trim_end_matches('.').to_ascii_lowercase();
    if word.is_empty() {
        return None;
    }
    let same = |name: &str| name.trim_end_matches('.').eq_ignore_ascii_case(&word);
    let expose =
        objects.all::<ServiceExpose>().find(|expose| !expose.dns_name.is_empty() && same(&expose.dns_name));
    if let Some(expose) = expose {
        return Some(DoctorTarget::Service { name: expose.e_service_name.clone(), site: None });
    }
    let own = |service: &&EService| {
        same(&format!("{}.{}.causeway.internal", service.metadata.name, service.e_site_name))
    };
    if let Some(service) = objects.all::<EService>().find(own) {
        return Some(DoctorTarget::Service { name: service.metadata.name.clone(), site: None });
    }
    let node = objects.servers_named(&word).next()?;
    Some(DoctorTarget::Node(node.metadata.name.clone()))
}

fn nothing(word: &str, objects: &ObjectSet) -> DoctorTarget {
    let addresses = objects.all::<VirtualPresence>().map(|presence| presence.virtual_ip.as_str());
    let names = objects
        .all::<EService>()
        .map(|object| object.metadata.name.as_str())
        .chain(
            objects
                .all::<ServiceExpose>()
                .flat_map(|object| [object.metadata.name.as_str(), &object.dns_name]),
        )
        .chain(objects.all::<EGateway>().map(|object| object.metadata.name.as_str()))
        .chain(objects.all::<ESite>().map(|object| object.metadata.name.as_str()))
        .chain(objects.all::<EServer>().map(|object| object.metadata.name.as_str()))
        .chain(addresses);
    DoctorTarget::Nothing { word: word.to_owned(), nearest: nearest(word, names) }
}

/// The candidate with the fewest changed letters, if a third of them or fewer are changed.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let most = (word.chars().count() / 3).max(1);
    let candidates = candidates.into_iter().filter(|candidate| !candidate.is_empty());
    let measured = candidates.map(|candidate| (distance(word, candidate), candidate));
    let best = measured.filter(|(distance, _)| *distance <= most).min()?;
    Some(best.1.to_owned())
}

/// Letters to insert, remove, replace or swap with their neighbour (optimal string alignment). Capitals do not count.
fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (one, other) = (letters(one), letters(other));
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for (row, cells) in rows.iter_mut().enumerate() {
        cells[0] = row;
    }
    for (column, cell) in rows[0].iter_mut().enumerate() {
        *cell = column;
    }
    for row in 1..=one.len() {
        for column in 1..=other.len() {
            let changed = usize::from(one[row - 1] != other[column - 1]);
            let mut cost = (rows[row - 1][column] + 1)
                .min(rows[row][column - 1] + 1)
                .min(rows[row - 1][column - 1] + changed);
            let swapped = row > 1
                && column > 1
                && one[row - 1] == other[column - 2]
                && one[row - 2] == other[column - 1];
            if swapped {
                cost = cost.min(rows[row - 2][column - 2] + 1);
            }
            rows[row][column] = cost;
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use causeway_api::Object;
    use serde_json::{Value, json};

    use super::*;

    fn objects() -> ObjectSet {
        let mut objects = ObjectSet::default();
        let mut put = |kind, name: &str, mut value: Value| {
            value["metadata"] = json!({ "name": name });
            objects.insert(Object::decode(kind, value).unwrap().object);
        };
        put(Kind::ESite, "oslo", json!({}));
        put(Kind::EGateway, "gw-oslo", json!({"eSiteName": "oslo", "ip": "10.0.0.1"}));
        put(Kind::EService, "web", json!({"eSiteName": "oslo", "ip": "10.0.0.5", "port": 80}));
        put(Kind::EServer, "host", json!({"eSiteName": "oslo", "ip": "10.0.0.9"}));
        put(
            Kind::ServiceExpose,
            "web-expose",
            json!({"eServiceName": "web", "dnsName": "web.plant.example", "eSites": ["berlin"]}),
        );
        put(
            Kind::VirtualPresence,
            "vp",
            json!({"eServiceName": "web", "eSiteName": "berlin", "virtualIp": "198.18.0.9"}),
        );
        objects
    }

    #[test]
    fn a_word_means_what_it_names() {
        let check = |word: &str, expected: DoctorTarget| {
            assert_eq!(DoctorTarget::find(word, &objects()), expected, "{word}")
        };
        let service =
            |site: Option<&str>| DoctorTarget::Service { name: "web".into(), site: site.map(Into::into) };
        check("web", service(None));
        check("web@berlin", service(Some("berlin")));
        check("web-expose", service(None));
        check("web-expose@berlin", service(Some("berlin")));
        check("web.plant.example", service(None));
        check("WEB.Plant.Example.", service(None));
        check("web.plant.example@berlin", service(Some("berlin")));
        check("web.oslo.causeway.internal", service(None));
        check("198.18.0.9", service(Some("berlin")));
        check("10.0.0.5", service(None));
        check("10.0.0.1", DoctorTarget::Gateway("gw-oslo".into()));
        check("10.0.0.9", DoctorTarget::Node("host".into()));
        check("oslo", DoctorTarget::Site("oslo".into()));
        check("gw-oslo", DoctorTarget::Gateway("gw-oslo".into()));
        check("node/x", DoctorTarget::Node("x".into()));
        check("egateway/berlin", DoctorTarget::Gateway("berlin".into()));
        check("EGW/gw-oslo", DoctorTarget::Gateway("gw-oslo".into()));
        check("egateways.causeway.io/gw-oslo", DoctorTarget::Gateway("gw-oslo".into()));
        check("esite/oslo", DoctorTarget::Site("oslo".into()));
        check("eserver/host", DoctorTarget::Node("host".into()));
        check("eservice/web@berlin", service(Some("berlin")));
        check("serviceexpose/web-expose", service(None));
        check("virtualpresence/vp", service(Some("berlin")));
        check("epolicy/p", DoctorTarget::Unsupported { kind: Kind::EPolicy, name: "p".into() });
    }

    #[test]
    fn a_typo_gets_the_nearest_name() {
        let check = |word: &str, expected: Option<&str>| {
            let nearest = expected.map(str::to_owned);
            assert_eq!(
                DoctorTarget::find(word, &objects()),
                DoctorTarget::Nothing { word: word.to_owned(), nearest }
            );
        };
        check("olso", Some("oslo"));
        check("wev", Some("web"));
        check("gw-olso", Some("gw-oslo"));
        check("web.plant.exmaple", Some("web.plant.example"));
        check("198.18.0.8", Some("198.18.0.9"));
        check("something-else", None);
        check("serviceexpose/missing", None);
        check("pod/web", None);
        check("", None);
    }
}
