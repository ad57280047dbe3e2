//! What the demo shows, as values: the hosts of three sites, what runs on them, and who asks whom for what.
//!
//! The objects are those of `examples/`. With root every site has a network of its own, with the addresses that stand there;
//! without root all of it happens on the loopback, and the same addresses are looked for in 127.0.0.0/8. Opens nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Where the demo takes place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Every site has a network of its own.
    Networks,
    /// Everything is on the loopback of this machine.
    Loopback,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Site {
    Cloud,
    Berlin,
    Oslo,
}

impl Site {
    pub const ALL: [Site; 3] = [Site::Cloud, Site::Berlin, Site::Oslo];

    pub fn name(self) -> &'static str {
        match self {
            Site::Cloud => "cloud",
            Site::Berlin => "berlin",
            Site::Oslo => "oslo",
        }
    }

    pub fn gateway(self) -> &'static str {
        match self {
            Site::Cloud => "cloud",
            Site::Berlin => "berlin-gateway",
            Site::Oslo => "oslo-gateway",
        }
    }

    /// The network inside the site. Those of Berlin and Oslo are equal, on purpose.
    pub fn network(self) -> [u8; 3] {
        match self {
            Site::Cloud => [172, 20, 0],
            Site::Berlin | Site::Oslo => [10, 0, 0],
        }
    }
}

impl Stage {
    /// A host's address.
    pub fn address(self, site: Site, host: u8) -> Ipv4Addr {
        let [first, second, third] = site.network();
        match self {
            Stage::Networks => Ipv4Addr::new(first, second, third, host),
            Stage::Loopback => Ipv4Addr::new(127, first, third, host),
        }
    }

    /// Where a site's gateway answers names.
    pub fn dns(self, site: Site) -> SocketAddr {
        match self {
            Stage::Networks => (self.address(site, GATEWAY), 53).into(),
            Stage::Loopback => (Ipv4Addr::new(127, presence_block(site), 0, 53), 5353).into(),
        }
    }

    /// A port that stands in `examples/`. Those below 1024 need root.
    pub fn port(self, port: u16) -> u16 {
        match self {
            Stage::Networks => port,
            Stage::Loopback if port < 1024 => port * 10,
            Stage::Loopback => port,
        }
    }

    /// A manifest of `examples/`, with the addresses of this stage.
    pub fn adapt(self, text: &str) -> String {
        if self == Stage::Networks {
            return text.to_owned();
        }
        let mut gateway = None;
        let lines = text.lines().map(|line| {
            if let Some(name) = line.trim().strip_prefix("name: ") {
                gateway = Site::ALL.into_iter().find(|site| site.gateway() == name);
            }
            let cidr = line.starts_with("virtualPresenceIPcidr:");
            match gateway {
                Some(site) if cidr => format!("virtualPresenceIPcidr: {}", presences(site)),
                // Left out in `examples/`, where every site may use the same range.
                Some(site) if line.starts_with("eSiteName:") && !text_names_cidr(text, site) => {
                    format!("{line}\nvirtualPresenceIPcidr: {}", presences(site))
                }
                _ => self.adapt_line(line),
            }
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    fn adapt_line(self, line: &str) -> String {
        let line = line
            .replace("10.0.0.", "127.10.0.")
            .replace("172.20.0.0/16", "127.172.0.0/16")
            .replace("172.20.0.", "127.172.0.")
            .replace("198.18.0.80", "127.67.0.80");
        match line.strip_prefix("port: ").and_then(|port| port.parse().ok()) {
            Some(port) => format!("port: {}", self.port(port)),
            None => line,
        }
    }
}

/// The last number of every gateway's address inside its site.
pub const GATEWAY: u8 = 1;

/// On one machine, addresses of presences must differ between sites.
fn presence_block(site: Site) -> u8 {
    match site {
        Site::Cloud => 66,
        Site::Berlin => 67,
        Site::Oslo => 68,
    }
}

fn presences(site: Site) -> String {
    format!("127.{}.0.0/16", presence_block(site))
}

/// Does the manifest of this gateway say a range?
fn text_names_cidr(text: &str, site: Site) -> bool {
    let documents = text.split("\n---");
    let of_gateway = |document: &&str| {
        document.contains("kind: EGateway") && document.contains(&format!("  name: {}\n", site.gateway()))
    };
    documents.filter(of_gateway).any(|document| document.contains("virtualPresenceIPcidr:"))
}

/// What runs on a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// Answers every request with its own name.
    Web(&'static str),
    /// Sends back what it is sent.
    Echo,
    UdpEcho,
}

/// The backends of the services in `examples/`.
pub const SERVERS: [(Site, u8, u16, Server); 5] = [
    (Site::Berlin, 10, 8080, Server::Web("plant-dashboard 1")),
    (Site::Berlin, 11, 8081, Server::Web("plant-dashboard 2")),
    (Site::Berlin, 30, 502, Server::Echo),
    (Site::Oslo, 10, 5683, Server::UdpEcho),
    (Site::Cloud, 10, 8000, Server::Web("orders")),
];

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Get(&'static str),
    Post(&'static str),
    Tcp,
    Udp,
    /// Only asks for the name.
    Name,
}

/// What comes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Answered,
    /// Over HTTP, with a status.
    Status(u16),
    /// The connection was reset, or refused.
    Reset,
    NoSuchName,
    Silence,
    Broken(String),
}

impl Outcome {
    /// Did the request reach a backend and come back?
    pub fn has_passed(&self) -> bool {
        matches!(self, Outcome::Answered | Outcome::Status(200..=399))
    }
}

/// One client asks for one thing.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    pub site: Site,
    /// The last number of the client's address.
    pub host: u8,
    /// As the policies know the client, for people.
    pub client: &'static str,
    pub service: &'static str,
    pub name: &'static str,
    pub port: u16,
    pub deed: Deed,
    pub expected: Expected,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// By this policy.
    Passes(&'static str),
    Refused,
}

impl Crossing {
    /// Is this what was promised?
    pub fn holds(&self, outcome: &Outcome) -> bool {
        match (self.expected, self.deed) {
            (Expected::Passes(_), Deed::Get(_) | Deed::Post(_)) => *outcome == Outcome::Status(200),
            (Expected::Passes(_), _) => *outcome == Outcome::Answered,
            (Expected::Refused, Deed::Get(_) | Deed::Post(_)) => *outcome == Outcome::Status(403),
            (Expected::Refused, Deed::Tcp) => *outcome == Outcome::Reset,
            (Expected::Refused, Deed::Udp) => *outcome == Outcome::Silence,
            (Expected::Refused, Deed::Name) => *outcome == Outcome::NoSuchName,
        }
    }

    pub fn protocol(&self) -> &'static str {
        match self.deed {
            Deed::Get(_) => "GET",
            Deed::Post(_) => "POST",
            Deed::Tcp => "TCP",
            Deed::Udp => "UDP",
            Deed::Name => "DNS",
        }
    }

    pub fn source(&self, stage: Stage) -> IpAddr {
        stage.address(self.site, self.host).into()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Answered => formatter.write_str("answered"),
            Outcome::Status(status) => write!(formatter, "HTTP {status}"),
            Outcome::Reset => formatter.write_str("connection reset"),
            Outcome::NoSuchName => formatter.write_str("no such name"),
            Outcome::Silence => formatter.write_str("no answer"),
            Outcome::Broken(why) => formatter.write_str(why),
        }
    }
}

const DASHBOARD: (&str, &str, u16) = ("plant-dashboard", "dashboard.plant.example", 8080);
const PLC: (&str, &str, u16) = ("plant-plc", "plant-plc.berlin.causeway.internal", 502);
const SENSORS: (&str, &str, u16) = ("depot-sensors", "sensors.depot.example", 5683);
const SENSORS_INSIDE: (&str, &str, u16) = ("depot-sensors", "depot-sensors.oslo.causeway.internal", 5683);
const ORDERS: (&str, &str, u16) = ("orders", "orders.example", 8000);

/// Every crossing and every refusal that the demo promises.
pub fn crossings() -> Vec<Crossing> {
    use Expected::{Passes, Refused};
    let row = |(site, host, client), (service, name, port), deed, expected| Crossing {
        site,
        host,
        client,
        service,
        name,
        port,
        deed,
        expected,
    };
    let office = (Site::Cloud, 50, "cloud-host");
    let forklift = (Site::Oslo, 20, "oslo-forklift");
    let line = (Site::Berlin, 20, "berlin-line-1");
    let stranger_in_oslo = (Site::Oslo, 99, "a stranger");
    let stranger_in_berlin = (Site::Berlin, 99, "a stranger");
    vec![
        row(office, DASHBOARD, Deed::Get("/"), Passes("operators")),
        row(office, PLC, Deed::Tcp, Passes("operators")),
        row(office, SENSORS, Deed::Udp, Passes("operators")),
        row(forklift, DASHBOARD, Deed::Get("/"), Passes("forklift")),
        row(forklift, PLC, Deed::Tcp, Passes("forklift")),
        row(line, ORDERS, Deed::Get("/orders/1"), Passes("read-orders")),
        row(stranger_in_oslo, ORDERS, Deed::Get("/orders/7"), Passes("read-orders")),
        row(line, ORDERS, Deed::Post("/orders/1"), Refused),
        row(line, ORDERS, Deed::Get("/admin"), Refused),
        row(stranger_in_oslo, DASHBOARD, Deed::Get("/"), Refused),
        row(stranger_in_berlin, ORDERS, Deed::Get("/orders/1"), Refused),
        row(stranger_in_oslo, PLC, Deed::Tcp, Refused),
        row(line, SENSORS_INSIDE, Deed::Name, Refused),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_root_the_same_objects_stand_on_the_loopback() {
        let text = "kind: EGateway\nmetadata:\n  name: berlin-gateway\neSiteName: berlin\nip: 10.0.0.1\n\
                    virtualPresenceIPcidr: 198.18.0.0/16,fd00::/112\n---\nkind: EGateway\nmetadata:\n  name: oslo-gateway\n\
                    eSiteName: oslo\n---\nkind: EService\nmetadata:\n  name: plc\nport: 502\n";
        let adapted = Stage::Loopback.adapt(text);
        assert!(adapted.contains("virtualPresenceIPcidr: 127.67.0.0/16\n"), "{adapted}");
        assert!(adapted.contains("eSiteName: oslo\nvirtualPresenceIPcidr: 127.68.0.0/16\n"), "{adapted}");
        assert!(adapted.contains("ip: 127.10.0.1\n") && adapted.contains("port: 5020\n"), "{adapted}");
        assert_eq!(adapted.matches("virtualPresenceIPcidr").count(), 2, "{adapted}");
        assert_eq!(Stage::Networks.adapt(text), text);
    }

    #[test]
    fn two_sites_have_the_same_addresses_in_both_stages() {
        for stage in [Stage::Networks, Stage::Loopback] {
            assert_eq!(stage.address(Site::Berlin, 20), stage.address(Site::Oslo, 20));
            assert_ne!(
                stage.dns(Site::Berlin),
                if stage == Stage::Networks { stage.dns(Site::Cloud) } else { stage.dns(Site::Oslo) }
            );
        }
    }
}
