//! Decodes entries.
//!
//! The cloud, perhaps a later version, wrote them: an entry that cannot be used is an error, never a guess. A
//! policy that requires an unknown feature allows no client.

use std::net::IpAddr;

use prost::Message;

use super::*;
use crate::wire::{
    BackendMessage, BackendTlsMessage, CommunityMessage, ExposureMessage, GatewayMessage, HealthCheckMessage,
    HostMessage, MappingMessage, NodeMessage, OnDemandMessage, PolicyMessage, PortRuleMessage,
    PresenceMessage, RelayGroupMessage, ServiceMessage, SiteMessage, SubjectMessage,
    TranslatedExposureMessage, TranslatedPresenceMessage, TranslatedServiceMessage, TunnelPeerMessage,
};

type Found<T> = Result<T, &'static str>;

pub fn decode(key: &EntryKey, value: &Bytes) -> Result<Option<NetmapEntry>, NetmapEntryError> {
    let (kind, name) = key.parts();
    let fact = match kind {
        kind::GATEWAY => message(value).and_then(gateway).map(NetmapEntry::Gateway),
        kind::SITE => message(value).and_then(|message| site(name, &message)).map(NetmapEntry::Site),
        kind::PRESENCE => {
            message(value).and_then(|message| presence(name, message)).map(NetmapEntry::Presence)
        }
        kind::SERVICE => message(value).and_then(|message| service(name, message)).map(NetmapEntry::Service),
        kind::POLICY => message(value).map(|message| NetmapEntry::Policy(policy(name, message))),
        kind::SUBJECT => message(value).and_then(|message| subject(name, message)).map(NetmapEntry::Subject),
        kind::NODE => message(value).and_then(|message| node(name, message)).map(NetmapEntry::Node),
        kind::HOST => message(value).and_then(|message| host(name, message)).map(NetmapEntry::Host),
        kind::TRANSLATED_PRESENCE => message(value)
            .and_then(|message| translated_presence(name, message))
            .map(NetmapEntry::TranslatedPresence),
        kind::TRANSLATED_SERVICE => message(value)
            .and_then(|message| translated_service(name, message))
            .map(NetmapEntry::TranslatedService),
        kind::TUNNEL_PEER => {
            message(value).and_then(|message| tunnel_peer(name, message)).map(NetmapEntry::TunnelPeer)
        }
        kind::COMMUNITY => message(value).map(|message| NetmapEntry::Community(community(name, message))),
        kind::RELAY_GROUP => {
            message(value).map(|message| NetmapEntry::RelayGroup(relay_group(name, message)))
        }
        kind::ON_DEMAND => message(value).and_then(on_demand).map(NetmapEntry::OnDemand),
        _ => return Ok(None),
    };
    fact.map(Some).map_err(|why| NetmapEntryError { key: key.clone(), why })
}

fn message<M: Message + Default>(value: &Bytes) -> Found<M> {
    M::decode(value.clone()).map_err(|_| "it is no message of its kind")
}

fn gateway(message: GatewayMessage) -> Found<GatewayEntry> {
    Ok(GatewayEntry {
        name: message.name.into(),
        site: message.site.into(),
        ip: ip_or_none(&message.ip)?,
        presence_cidrs: networks(&message.presence_cidrs)?,
        priority: message.priority,
        relay: message.relay,
        drain: message.drain,
        prefer: match message.prefer {
            1 => CarriagePreference::Speed,
            2 => CarriagePreference::Survival,
            _ => CarriagePreference::Auto,
        },
        tunnel_networks: networks(&message.tunnel_networks)?,
        mappings: message.mappings.iter().map(mapping).collect::<Found<_>>()?,
    })
}

fn site(name: &str, message: &SiteMessage) -> Found<SiteEntry> {
    let active = (!message.active.is_empty()).then(|| message.active.as_str().into());
    Ok(SiteEntry { name: name.into(), subnets: networks(&message.subnets)?, active })
}

fn presence(service: &str, message: PresenceMessage) -> Found<PresenceEntry> {
    let address = |bytes: &Vec<u8>| ip(bytes).map(PresenceIp);
    Ok(PresenceEntry {
        service: service.into(),
        addresses: message.addresses.iter().map(address).collect::<Found<_>>()?,
        port: port(message.port)?,
        protocol: protocol(message.protocol)?,
        brokers: u16::try_from(message.brokers).map_err(|_| "more brokers than there are ports")?,
        names: dns_names(&message.names),
        service_site: message.service_site.into(),
        policies: names(message.policies),
    })
}

fn service(name: &str, message: ServiceMessage) -> Found<ServiceEntry> {
    let exposure = |exposure: ExposureMessage| ExposureEntry {
        sites: names(exposure.sites),
        policies: names(exposure.policies),
    };
    Ok(ServiceEntry {
        name: name.into(),
        port: port(message.port)?,
        protocol: protocol(message.protocol)?,
        backends: message.backends.iter().map(backend).collect::<Found<_>>()?,
        domain_name: dns_names(&[message.domain_name]).pop(),
        health_check: message.health_check.map(health_check).transpose()?,
        backend_tls: message.backend_tls.map(backend_tls).transpose()?,
        proxy_protocol: message.proxy_protocol,
        exposures: message.exposures.into_iter().map(exposure).collect(),
    })
}

fn backend(message: &BackendMessage) -> Found<BackendEndpoint> {
    let port = port(message.port)?;
    match (ip_or_none(&message.ip)?, message.host.as_str()) {
        (Some(ip), _) => Ok(BackendEndpoint::Address(ip, port)),
        (None, "") => Err("a backend has neither an address nor a name"),
        (None, host) => Ok(BackendEndpoint::Host(DnsName::new(host), port)),
    }
}

fn health_check(message: HealthCheckMessage) -> Found<BackendHealthCheck> {
    let kind = match message.kind {
        1 => BackendHealthCheckType::Tcp,
        2 => BackendHealthCheckType::Http,
        _ => return Err("a health check of an unknown type"),
    };
    Ok(BackendHealthCheck { kind, path: message.path, interval_seconds: message.interval_seconds.max(1) })
}

fn backend_tls(message: BackendTlsMessage) -> Found<BackendTlsSettings> {
    let mode = match message.mode {
        1 => BackendTlsVerification::Verify,
        2 => BackendTlsVerification::Insecure,
        _ => return Err("TLS to the backend in an unknown mode"),
    };
    Ok(BackendTlsSettings { mode, server_name: message.server_name, ca_bundle: message.ca_bundle })
}

fn policy(name: &str, message: PolicyMessage) -> PolicyEntry {
    let ports: Option<Vec<PortRule>> = message.ports.iter().map(port_rule).collect();
    let is_understood =
        ports.is_some() && message.requires.iter().all(|feature| feature.as_str() == PORTS_FEATURE);
    let limits = message.limits.map(|limits| PolicyLimits {
        connections_per_second: limits.connections_per_second,
        connections: limits.connections,
        bytes_per_second_in: limits.bytes_per_second_in,
        bytes_per_second_out: limits.bytes_per_second_out,
        requests_per_second: limits.requests_per_second,
    });
    let rules =
        message.http.into_iter().map(|rule| PolicyHttpRule { methods: rule.methods, paths: rule.paths });
    PolicyEntry {
        name: name.into(),
        servers: if is_understood { names(message.servers) } else { Vec::new() },
        sites: if is_understood { names(message.sites) } else { Vec::new() },
        limits,
        http: rules.collect(),
        ports: ports.unwrap_or_default(),
    }
}

/// None: a rule of a later version. The policy then allows no client.
fn port_rule(message: &PortRuleMessage) -> Option<PortRule> {
    let protocol = match message.protocol {
        1 => IpProtocol::Tcp,
        2 => IpProtocol::Udp,
        3 => IpProtocol::Icmp,
        _ => return None,
    };
    Some(PortRule {
        protocol,
        first: u16::try_from(message.first).ok()?,
        last: u16::try_from(message.last).ok()?,
    })
}

fn mapping(message: &MappingMessage) -> Found<PrefixMapping> {
    let network = |text: &str| text.parse::<IpNet>().map_err(|_| "a network that cannot be read");
    let (subnet, seen_as) = (network(&message.subnet)?, network(&message.seen_as)?);
    let is_alike =
        subnet.prefix_len() == seen_as.prefix_len() && subnet.max_prefix_len() == seen_as.max_prefix_len();
    is_alike.then_some(PrefixMapping { subnet, seen_as }).ok_or("a mapping of networks of different sizes")
}

fn tunnel_peer(gateway: &str, message: TunnelPeerMessage) -> Found<TunnelPeerEntry> {
    Ok(TunnelPeerEntry {
        gateway: gateway.into(),
        site: message.site.into(),
        public_key: <[u8; 32]>::try_from(message.public_key.as_slice())
            .map(TunnelKey)
            .map_err(|_| "a tunnel key does not have 32 bytes")?,
        cipher: match message.cipher {
            1 => TunnelCipher::ChaCha20Poly1305,
            2 => TunnelCipher::Aes256Gcm,
            _ => return Err("a cipher that is not known here"),
        },
        endpoints: message.endpoints,
        networks: networks(&message.networks)?,
        plain_wireguard: message.plain_wireguard,
        relay: message.relay,
    })
}

fn community(name: &str, message: CommunityMessage) -> CommunityEntry {
    let policies = names(message.policies);
    CommunityEntry {
        name: name.into(),
        members: names(message.members),
        policies: (message.is_narrowed || !policies.is_empty()).then_some(policies),
    }
}

fn relay_group(name: &str, message: RelayGroupMessage) -> RelayGroupEntry {
    RelayGroupEntry { name: name.to_owned(), sites: names(message.sites) }
}

fn on_demand(message: OnDemandMessage) -> Found<OnDemandEntry> {
    let network = |bytes: &Vec<u8>| {
        let (length, address) = bytes.split_last().ok_or("a network without a prefix length")?;
        IpNet::new(ip(address)?, *length).map_err(|_| "a network that cannot be read")
    };
    Ok(OnDemandEntry { networks: message.networks.iter().map(network).collect::<Found<_>>()? })
}

fn subject(server: &str, message: SubjectMessage) -> Found<SubjectEntry> {
    Ok(SubjectEntry { server: server.into(), site: message.site.into(), ip: ip_or_none(&message.ip)? })
}

fn node(server: &str, message: NodeMessage) -> Found<NodeEntry> {
    Ok(NodeEntry {
        server: server.into(),
        site: message.site.into(),
        ip: ip_or_none(&message.ip)?,
        ports: message.ports.into_iter().map(port).collect::<Found<_>>()?,
        names: dns_names(&message.names),
        policies: names(message.policies),
    })
}

fn host(server: &str, message: HostMessage) -> Found<HostEntry> {
    Ok(HostEntry {
        server: server.into(),
        site: message.site.into(),
        ip: ip(&message.ip)?,
        names: dns_names(&message.names),
    })
}

fn translated_presence(service: &str, message: TranslatedPresenceMessage) -> Found<TranslatedPresenceEntry> {
    Ok(TranslatedPresenceEntry {
        service: service.into(),
        addresses: presence_ips(&message.addresses)?,
        scope: scope(message.protocol, message.port)?,
        names: dns_names(&message.names),
        service_site: message.service_site.into(),
        gateway: message.gateway.into(),
        policies: names(message.policies),
    })
}

fn translated_service(service: &str, message: TranslatedServiceMessage) -> Found<TranslatedServiceEntry> {
    let exposure = |exposure: TranslatedExposureMessage| {
        Ok(TranslatedExposure {
            site: exposure.site.into(),
            addresses: presence_ips(&exposure.addresses)?,
            policies: names(exposure.policies),
        })
    };
    Ok(TranslatedServiceEntry {
        service: service.into(),
        ip: ip(&message.ip)?,
        port: u16::try_from(message.server_port).map_err(|_| "a port outside 1 to 65535")?,
        scope: scope(message.protocol, message.port)?,
        exposures: message.exposures.into_iter().map(exposure).collect::<Found<_>>()?,
    })
}

fn presence_ips(addresses: &[Vec<u8>]) -> Found<Vec<PresenceIp>> {
    addresses.iter().map(|bytes| ip(bytes).map(PresenceIp)).collect()
}

fn scope(protocol: u32, number: u32) -> Found<TranslatedScope> {
    match protocol {
        1 => Ok(TranslatedScope::Port(IpProtocol::Tcp, port(number)?)),
        2 => Ok(TranslatedScope::Port(IpProtocol::Udp, port(number)?)),
        7 => Ok(TranslatedScope::Everything),
        _ => Err("a protocol that is not known here"),
    }
}

fn protocol(number: u32) -> Found<ServiceProtocol> {
    match number {
        1 => Ok(ServiceProtocol::Tcp),
        2 => Ok(ServiceProtocol::Udp),
        3 => Ok(ServiceProtocol::Http),
        4 => Ok(ServiceProtocol::Https),
        5 => Ok(ServiceProtocol::Grpc),
        6 => Ok(ServiceProtocol::Kafka),
        _ => Err("a protocol that is not known here"),
    }
}

fn port(number: u32) -> Found<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0).ok_or("a port outside 1 to 65535")
}

fn ip(bytes: &[u8]) -> Found<IpAddr> {
    ip_or_none(bytes)?.ok_or("an address is missing")
}

fn ip_or_none(bytes: &[u8]) -> Found<Option<IpAddr>> {
    match bytes.len() {
        0 => Ok(None),
        4 => Ok(<[u8; 4]>::try_from(bytes).ok().map(IpAddr::from)),
        16 => Ok(<[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)),
        _ => Err("an address has neither 4 nor 16 bytes"),
    }
}

fn networks(texts: &[String]) -> Found<Vec<IpNet>> {
    texts.iter().map(|text| text.parse().map_err(|_| "a network that cannot be read")).collect()
}

fn names<N: From<String>>(texts: Vec<String>) -> Vec<N> {
    texts.into_iter().map(N::from).collect()
}

fn dns_names(texts: &[String]) -> Vec<DnsName> {
    texts.iter().filter(|text| !text.is_empty()).map(|text| DnsName::new(text)).collect()
}
