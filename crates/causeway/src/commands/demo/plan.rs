//! The plan of the demo as values: the hosts of three sites, their servers, and the requests of their
//! clients.
//!
//! The objects are those of `examples/`. With root every site has a network of its own, with the addresses of the examples;
//! without root all of it happens on the loopback, and the same addresses are looked for in 127.0.0.0/8. Opens nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The network that the demo runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoNetwork {
    /// Every site has a network of its own.
    Networks,
    /// Everything is on the loopback of this machine.
    Loopback,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DemoSite {
    Cloud,
    Berlin,
    Oslo,
}

impl DemoSite {
    pub const ALL: [DemoSite; 3] = [DemoSite::Cloud, DemoSite::Berlin, DemoSite::Oslo];

    pub fn name(self) -> &'static str {
        match self {
            DemoSite::Cloud => "cloud",
            DemoSite::Berlin => "berlin",
            DemoSite::Oslo => "oslo",
        }
    }

    pub fn gateway(self) -> &'static str {
        match self {
            DemoSite::Cloud => "cloud",
            DemoSite::Berlin => "berlin-gateway",
            DemoSite::Oslo => "oslo-gateway",
        }
    }

    /// The network inside the site. Those of Berlin and Oslo are equal, on purpose.
    pub fn network(self) -> [u8; 3] {
        match self {
            DemoSite::Cloud => [172, 20, 0],
            DemoSite::Berlin | DemoSite::Oslo => [10, 0, 0],
        }
    }
}

impl DemoNetwork {
    /// A host's address.
    pub fn address(self, site: DemoSite, host: u8) -> Ipv4Addr {
        let [first, second, third] = site.network();
        match self {
            DemoNetwork::Networks => Ipv4Addr::new(first, second, third, host),
            DemoNetwork::Loopback => Ipv4Addr::new(127, first, third, host),
        }
    }

    /// The DNS address of a site's gateway.
    pub fn dns(self, site: DemoSite) -> SocketAddr {
        match self {
            DemoNetwork::Networks => (self.address(site, GATEWAY), 53).into(),
            DemoNetwork::Loopback => (Ipv4Addr::new(127, presence_block(site), 0, 53), 5353).into(),
        }
    }

    /// A port of `examples/`. Those below 1024 need root.
    pub fn port(self, port: u16) -> u16 {
        match self {
            DemoNetwork::Networks => port,
            DemoNetwork::Loopback if port < 1024 => port * 10,
            DemoNetwork::Loopback => port,
        }
    }

    /// A manifest of `examples/`, with the addresses of this stage.
    pub fn adapt(self, text: &str) -> String {
        if self == DemoNetwork::Networks {
            return text.to_owned();
        }
        let mut gateway = None;
        let lines = text.lines().map(|line| {
            if let Some(name) = line.trim().strip_prefix("name: ") {
                gateway = DemoSite::ALL.into_iter().find(|site| site.gateway() == name);
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
fn presence_block(site: DemoSite) -> u8 {
    match site {
        DemoSite::Cloud => 66,
        DemoSite::Berlin => 67,
        DemoSite::Oslo => 68,
    }
}

fn presences(site: DemoSite) -> String {
    format!("127.{}.0.0/16", presence_block(site))
}

/// Returns true if the manifest of this gateway has a range.
fn text_names_cidr(text: &str, site: DemoSite) -> bool {
    let documents = text.split("\n---");
    let of_gateway = |document: &&str| {
        document.contains("kind: EGateway") && document.contains(&format!("  name: {}\n", site.gateway()))
    };
    documents.filter(of_gateway).any(|document| document.contains("virtualPresenceIPcidr:"))
}

/// The server on a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoServer {
    /// Answers every request with its own name.
    Web(&'static str),
    /// Sends back what it is sent.
    Echo,
    UdpEcho,
}

/// The backends of the services in `examples/`.
pub const SERVERS: [(DemoSite, u8, u16, DemoServer); 5] = [
    (DemoSite::Berlin, 10, 8080, DemoServer::Web("plant-dashboard 1")),
    (DemoSite::Berlin, 11, 8081, DemoServer::Web("plant-dashboard 2")),
    (DemoSite::Berlin, 30, 502, DemoServer::Echo),
    (DemoSite::Oslo, 10, 5683, DemoServer::UdpEcho),
    (DemoSite::Cloud, 10, 8000, DemoServer::Web("orders")),
];

/// The request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoRequest {
    Get(&'static str),
    Post(&'static str),
    Tcp,
    Udp,
    /// Only asks for the name.
    Name,
}

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DemoOutcome {
    Answered,
    /// Over HTTP, with a status.
    Status(u16),
    /// The connection was reset, or refused.
    Reset,
    NoSuchName,
    Silence,
    Broken(String),
}

impl DemoOutcome {
    /// Returns whether the request reached a backend and was answered.
    pub fn has_passed(&self) -> bool {
        matches!(self, DemoOutcome::Answered | DemoOutcome::Status(200..=399))
    }
}

/// One request of one client.
#[derive(Clone, Copy, Debug)]
pub struct DemoCrossing {
    pub site: DemoSite,
    /// The last number of the client's address.
    pub host: u8,
    /// The name of the client in policies, for display.
    pub client: &'static str,
    pub service: &'static str,
    pub name: &'static str,
    pub port: u16,
    pub deed: DemoRequest,
    pub expected: ExpectedOutcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedOutcome {
    /// By this policy.
    Passes(&'static str),
    Refused,
}

impl DemoCrossing {
    /// Returns true if the result is the expected one.
    pub fn holds(&self, outcome: &DemoOutcome) -> bool {
        match (self.expected, self.deed) {
            (ExpectedOutcome::Passes(_), DemoRequest::Get(_) | DemoRequest::Post(_)) => {
                *outcome == DemoOutcome::Status(200)
            }
            (ExpectedOutcome::Passes(_), _) => *outcome == DemoOutcome::Answered,
            (ExpectedOutcome::Refused, DemoRequest::Get(_) | DemoRequest::Post(_)) => {
                *outcome == DemoOutcome::Status(403)
            }
            (ExpectedOutcome::Refused, DemoRequest::Tcp) => *outcome == DemoOutcome::Reset,
            (ExpectedOutcome::Refused, DemoRequest::Udp) => *outcome == DemoOutcome::Silence,
            (ExpectedOutcome::Refused, DemoRequest::Name) => *outcome == DemoOutcome::NoSuchName,
        }
    }

    pub fn protocol(&self) -> &'static str {
        match self.deed {
            DemoRequest::Get(_) => "GET",
            DemoRequest::Post(_) => "POST",
            DemoRequest::Tcp => "TCP",
            DemoRequest::Udp => "UDP",
            DemoRequest::Name => "DNS",
        }
    }

    pub fn source(&self, stage: DemoNetwork) -> IpAddr {
        stage.address(self.site, self.host).into()
    }
}

impl std::fmt::Display for DemoOutcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DemoOutcome::Answered => formatter.write_str("answered"),
            DemoOutcome::Status(status) => write!(formatter, "HTTP {status}"),
            DemoOutcome::Reset => formatter.write_str("connection reset"),
            DemoOutcome::NoSuchName => formatter.write_str("no such name"),
            DemoOutcome::Silence => formatter.write_str("no answer"),
            DemoOutcome::Broken(why) => formatter.write_str(why),
        }
    }
}

const DASHBOARD: (&str, &str, u16) = ("plant-dashboard", "dashboard.plant.example", 8080);
const PLC: (&str, &str, u16) = ("plant-plc", "plant-plc.berlin.causeway.internal", 502);
const SENSORS: (&str, &str, u16) = ("depot-sensors", "sensors.depot.example", 5683);
const SENSORS_INSIDE: (&str, &str, u16) = ("depot-sensors", "depot-sensors.oslo.causeway.internal", 5683);
const ORDERS: (&str, &str, u16) = ("orders", "orders.example", 8000);

/// Every crossing and every refusal that the demo promises.
pub fn crossings() -> Vec<DemoCrossing> {
    use ExpectedOutcome::{Passes, Refused};
    let row = |(site, host, client), (service, name, port), deed, expected| DemoCrossing {
        site,
        host,
        client,
        service,
        name,
        port,
        deed,
        expected,
    };
    let office = (DemoSite::Cloud, 50, "cloud-host");
    let forklift = (DemoSite::Oslo, 20, "oslo-forklift");
    let line = (DemoSite::Berlin, 20, "berlin-line-1");
    let stranger_in_oslo = (DemoSite::Oslo, 99, "a stranger");
    let stranger_in_berlin = (DemoSite::Berlin, 99, "a stranger");
    vec![
        row(office, DASHBOARD, DemoRequest::Get("/"), Passes("operators")),
        row(office, PLC, DemoRequest::Tcp, Passes("operators")),
        row(office, SENSORS, DemoRequest::Udp, Passes("operators")),
        row(forklift, DASHBOARD, DemoRequest::Get("/"), Passes("forklift")),
        row(forklift, PLC, DemoRequest::Tcp, Passes("forklift")),
        row(line, ORDERS, DemoRequest::Get("/orders/1"), Passes("read-orders")),
        row(stranger_in_oslo, ORDERS, DemoRequest::Get("/orders/7"), Passes("read-orders")),
        row(line, ORDERS, DemoRequest::Post("/orders/1"), Refused),
        row(line, ORDERS, DemoRequest::Get("/admin"), Refused),
        row(stranger_in_oslo, DASHBOARD, DemoRequest::Get("/"), Refused),
        row(stranger_in_berlin, ORDERS, DemoRequest::Get("/orders/1"), Refused),
        row(stranger_in_oslo, PLC, DemoRequest::Tcp, Refused),
        row(line, SENSORS_INSIDE, DemoRequest::Name, Refused),
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
        let adapted = DemoNetwork::Loopback.adapt(text);
        assert!(adapted.contains("virtualPresenceIPcidr: 127.67.0.0/16\n"), "{adapted}");
        assert!(adapted.contains("eSiteName: oslo\nvirtualPresenceIPcidr: 127.68.0.0/16\n"), "{adapted}");
        assert!(adapted.contains("ip: 127.10.0.1\n") && adapted.contains("port: 5020\n"), "{adapted}");
        assert_eq!(adapted.matches("virtualPresenceIPcidr").count(), 2, "{adapted}");
        assert_eq!(DemoNetwork::Networks.adapt(text), text);
    }

    #[test]
    fn two_sites_have_the_same_addresses_in_both_stages() {
        for stage in [DemoNetwork::Networks, DemoNetwork::Loopback] {
            assert_eq!(stage.address(DemoSite::Berlin, 20), stage.address(DemoSite::Oslo, 20));
            assert_ne!(
                stage.dns(DemoSite::Berlin),
                if stage == DemoNetwork::Networks {
                    stage.dns(DemoSite::Cloud)
                } else {
                    stage.dns(DemoSite::Oslo)
                }
            );
        }
    }
}
