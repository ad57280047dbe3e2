//! The fields of objects in the words of netmaps.
//!
//! Objects were validated when they were stored; a field that cannot be read nevertheless is left out.

use std::collections::BTreeSet;

use causeway_api::kinds::{
    self, BackendTlsMode as ApiTlsMode, GatewayPrefer, HealthCheckType as ApiCheckType, PortProtocol,
    PortRange,
};
use causeway_api::{EGateway, EPolicy, EServer, EService, ESite, ServiceExpose};
use causeway_netmap::{
    BackendEndpoint, BackendHealthCheck, BackendHealthCheckType, BackendTlsSettings, BackendTlsVerification,
    CarriagePreference, DnsName, GatewayEntry, IpProtocol, PolicyEntry, PolicyHttpRule, PolicyLimits,
    PortRule, ServiceEntry, ServiceProtocol,
};
use ipnet::IpNet;

/// The DNS zone of services and hosts at every site.
const ZONE: &str = "causeway.internal";

pub fn gateway(gateway: &EGateway) -> GatewayEntry {
    GatewayEntry {
        name: gateway.metadata.name.as_str().into(),
        site: gateway.e_site_name.as_str().into(),
        ip: gateway.ip.parse().ok(),
        presence_cidrs: gateway.presence_cidrs(),
        priority: i32::try_from(gateway.priority).unwrap_or_default(),
        relay: gateway.relay,
        drain: gateway.drain,
        prefer: match gateway.prefer.unwrap_or_default() {
            GatewayPrefer::Auto => CarriagePreference::Auto,
            GatewayPrefer::Speed => CarriagePreference::Speed,
            GatewayPrefer::Survival => CarriagePreference::Survival,
        },
        tunnel_networks: Vec::new(),
        mappings: Vec::new(),
    }
}

pub fn subnets(site: &ESite) -> Vec<IpNet> {
    site.subnets.iter().filter_map(|subnet| subnet.parse().ok()).collect()
}

/// A service without its exposures.
pub fn service(service: &EService) -> ServiceEntry {
    let tls = service.backend_tls.as_ref();
    ServiceEntry {
        name: service.metadata.name.as_str().into(),
        port: service.port_number(),
        protocol: protocol(service.protocol),
        backends: backends(service),
        domain_name: (!service.domain_name.is_empty()).then(|| DnsName::new(&service.domain_name)),
        health_check: service.health_check.as_ref().map(|check| BackendHealthCheck {
            kind: match check.kind {
                ApiCheckType::Tcp => BackendHealthCheckType::Tcp,
                ApiCheckType::Http => BackendHealthCheckType::Http,
            },
            path: check.path.clone(),
            interval_seconds: u32::try_from(check.interval_seconds).unwrap_or(1).max(1),
        }),
        backend_tls: tls.and_then(|tls| {
            let mode = match tls.mode {
                ApiTlsMode::Verify => BackendTlsVerification::Verify,
                ApiTlsMode::Insecure => BackendTlsVerification::Insecure,
                ApiTlsMode::Disabled => return None,
            };
            let (server_name, ca_bundle) = (tls.server_name.clone(), tls.ca_bundle.clone());
            Some(BackendTlsSettings { mode, server_name, ca_bundle })
        }),
        proxy_protocol: service.proxy_protocol,
        exposures: Vec::new(),
    }
}

/// Endpoints replace `ip`, and `ip` is dialled before `domainName`.
fn backends(service: &EService) -> Vec<BackendEndpoint> {
    let port = service.port_number();
    let endpoints = service.endpoints.iter().filter_map(|endpoint| {
        let own = u16::try_from(endpoint.port).ok().filter(|port| *port != 0);
        Some(BackendEndpoint::Address(endpoint.ip.parse().ok()?, own.unwrap_or(port)))
    });
    let endpoints: Vec<BackendEndpoint> = endpoints.collect();
    match (endpoints.is_empty(), service.ip_addr(), service.domain_name.as_str()) {
        (false, ..) => endpoints,
        (true, Some(ip), _) => vec![BackendEndpoint::Address(ip, port)],
        (true, None, "") => Vec::new(),
        (true, None, host) => vec![BackendEndpoint::Host(DnsName::new(host), port)],
    }
}

/// Returns the number of Kafka brokers of a presence: one for each backend, as far as there are ports.
pub fn brokers(service: &EService) -> u16 {
    match service.protocol {
        kinds::Protocol::Kafka => u16::try_from(backends(service).len()).unwrap_or(u16::MAX),
        _ => 0,
    }
}

pub fn protocol(protocol: kinds::Protocol) -> ServiceProtocol {
    match protocol {
        // A service of protocol IP is translated, and has another entry.
        kinds::Protocol::Tcp | kinds::Protocol::Ip => ServiceProtocol::Tcp,
        kinds::Protocol::Udp => ServiceProtocol::Udp,
        kinds::Protocol::Http => ServiceProtocol::Http,
        kinds::Protocol::Https => ServiceProtocol::Https,
        kinds::Protocol::Grpc => ServiceProtocol::Grpc,
        kinds::Protocol::Kafka => ServiceProtocol::Kafka,
    }
}

/// The names a service is known by where it is exposed: `SERVICE.SITE.causeway.internal`, and the names in
/// its exposures.
pub fn presence_names<'a>(
    service: &EService,
    exposes: impl Iterator<Item = &'a ServiceExpose>,
) -> Vec<DnsName> {
    let own = format!("{}.{}.{ZONE}", service.metadata.name, service.e_site_name);
    let chosen = exposes.map(|expose| expose.dns_name.as_str()).filter(|name| !name.is_empty());
    let names: BTreeSet<DnsName> = chosen.chain([own.as_str()]).map(DnsName::new).collect();
    names.into_iter().collect()
}

/// Returns the names of a host: its own, by which Kubernetes knows the node, and those under our zone.
pub fn node_names(server: &EServer) -> Vec<DnsName> {
    let names = [server.metadata.name.as_str(), server.e_server_name.as_str()];
    let names = names.into_iter().filter(|name| !name.is_empty()).map(DnsName::new);
    let names: BTreeSet<DnsName> = names.chain([host_name(server)]).collect();
    names.into_iter().collect()
}

/// Returns the name of a host under our zone.
pub fn host_name(server: &EServer) -> DnsName {
    DnsName::new(&format!("{}.{}.{ZONE}", server.metadata.name, server.e_site_name))
}

/// A policy with the servers and sites that matter where it is sent; without one, a policy that allows no
/// subject.
pub fn policy<'a>(
    name: &str,
    servers: impl Iterator<Item = &'a str>,
    sites: &[&str],
    policy: Option<&EPolicy>,
) -> PolicyEntry {
    let rule =
        |rule: &kinds::HttpRule| PolicyHttpRule { methods: rule.methods.clone(), paths: rule.paths.clone() };
    PolicyEntry {
        name: name.into(),
        servers: servers.map(Into::into).collect(),
        sites: sites.iter().map(|site| (*site).into()).collect(),
        limits: policy.and_then(|policy| policy.limits.as_ref()).map(limits),
        http: policy.map(|policy| policy.http.iter().map(rule).collect()).unwrap_or_default(),
        ports: policy.and_then(ports).unwrap_or_default(),
    }
}

/// None: a rule cannot be read. The caller leaves out the subjects of such a policy.
pub fn ports(policy: &EPolicy) -> Option<Vec<PortRule>> {
    let ranges = policy.port_ranges()?.into_iter();
    let rules: BTreeSet<PortRule> = ranges.map(port_rule).collect();
    Some(rules.into_iter().collect())
}

fn port_rule(range: PortRange) -> PortRule {
    let protocol = match range.protocol {
        PortProtocol::Tcp => IpProtocol::Tcp,
        PortProtocol::Udp => IpProtocol::Udp,
        PortProtocol::Icmp => IpProtocol::Icmp,
    };
    PortRule { protocol, first: range.first, last: range.last }
}

fn limits(limits: &kinds::Limits) -> PolicyLimits {
    // A negative number is refused when it is stored; read nevertheless, it allows nothing.
    let number = |limit: Option<i64>| limit.map(|limit| u64::try_from(limit).unwrap_or(0));
    PolicyLimits {
        connections_per_second: number(limits.connections_per_second),
        connections: number(limits.connections),
        bytes_per_second_in: number(limits.bytes_per_second_in),
        bytes_per_second_out: number(limits.bytes_per_second_out),
        requests_per_second: number(limits.requests_per_second),
    }
}
