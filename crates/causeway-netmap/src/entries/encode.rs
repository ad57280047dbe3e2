//! Encodes entries.
//!
//! The same entry always gives the same bytes: callers that build entries from sets sort them.

use std::net::IpAddr;

use bytes::Bytes;
use prost::Message;

use super::*;
use crate::wire::{
    BackendMessage, BackendTlsMessage, CommunityMessage, ExposureMessage, GatewayMessage, HealthCheckMessage,
    HostMessage, HttpRuleMessage, LimitsMessage, MappingMessage, NodeMessage, OnDemandMessage, PolicyMessage,
    PortRuleMessage, PresenceMessage, RelayGroupMessage, ServiceMessage, SiteMessage, SubjectMessage,
    TranslatedExposureMessage, TranslatedPresenceMessage, TranslatedServiceMessage, TunnelPeerMessage,
};

pub fn encode(fact: &NetmapEntry) -> (EntryKey, Bytes) {
    match fact {
        NetmapEntry::Gateway(gateway) => (EntryKey::new(kind::GATEWAY), bytes(&gateway_message(gateway))),
        NetmapEntry::Site(site) => (
            EntryKey::of(kind::SITE, site.name.as_str()),
            bytes(&SiteMessage {
                subnets: texts(&site.subnets),
                active: site.active.as_ref().map(ToString::to_string).unwrap_or_default(),
            }),
        ),
        NetmapEntry::Presence(presence) => {
            (EntryKey::of(kind::PRESENCE, presence.service.as_str()), bytes(&presence_message(presence)))
        }
        NetmapEntry::Service(service) => {
            (EntryKey::of(kind::SERVICE, service.name.as_str()), bytes(&service_message(service)))
        }
        NetmapEntry::Policy(policy) => {
            (NetmapEntry::policy_key(policy.name.as_str()), bytes(&policy_message(policy)))
        }
        NetmapEntry::Subject(subject) => {
            let message = SubjectMessage { site: subject.site.to_string(), ip: ip_bytes(subject.ip) };
            (NetmapEntry::subject_key(subject.server.as_str()), bytes(&message))
        }
        NetmapEntry::Node(node) => (NetmapEntry::node_key(node.server.as_str()), bytes(&node_message(node))),
        NetmapEntry::Host(host) => (
            EntryKey::of(kind::HOST, host.server.as_str()),
            bytes(&HostMessage {
                site: host.site.to_string(),
                ip: ip_bytes(Some(host.ip)),
                names: texts(&host.names),
            }),
        ),
        NetmapEntry::TranslatedPresence(presence) => (
            EntryKey::of(kind::TRANSLATED_PRESENCE, presence.service.as_str()),
            bytes(&translated_presence_message(presence)),
        ),
        NetmapEntry::TranslatedService(service) => (
            EntryKey::of(kind::TRANSLATED_SERVICE, service.service.as_str()),
            bytes(&translated_service_message(service)),
        ),
        NetmapEntry::TunnelPeer(peer) => {
            (EntryKey::of(kind::TUNNEL_PEER, peer.gateway.as_str()), bytes(&tunnel_peer_message(peer)))
        }
        NetmapEntry::Community(community) => (
            EntryKey::of(kind::COMMUNITY, community.name.as_str()),
            bytes(&CommunityMessage {
                members: texts(&community.members),
                policies: texts(community.policies.as_deref().unwrap_or_default()),
                is_narrowed: community.policies.is_some(),
            }),
        ),
        NetmapEntry::RelayGroup(group) => (
            EntryKey::of(kind::RELAY_GROUP, &group.name),
            bytes(&RelayGroupMessage { sites: texts(&group.sites) }),
        ),
        NetmapEntry::OnDemand(entry) => (
            EntryKey::new(kind::ON_DEMAND),
            bytes(&OnDemandMessage { networks: entry.networks.iter().map(network_bytes).collect() }),
        ),
    }
}

fn network_bytes(network: &IpNet) -> Vec<u8> {
    let mut bytes = ip_bytes(Some(network.addr()));
    bytes.push(network.prefix_len());
    bytes
}

fn bytes(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn gateway_message(gateway: &GatewayEntry) -> GatewayMessage {
    GatewayMessage {
        name: gateway.name.to_string(),
        site: gateway.site.to_string(),
        ip: ip_bytes(gateway.ip),
        presence_cidrs: texts(&gateway.presence_cidrs),
        priority: gateway.priority,
        relay: gateway.relay,
        prefer: match gateway.prefer {
            CarriagePreference::Auto => 0,
            CarriagePreference::Speed => 1,
            CarriagePreference::Survival => 2,
        },
        tunnel_networks: texts(&gateway.tunnel_networks),
        mappings: gateway.mappings.iter().map(mapping_message).collect(),
        drain: gateway.drain,
    }
}

fn presence_message(presence: &PresenceEntry) -> PresenceMessage {
    PresenceMessage {
        addresses: presence.addresses.iter().map(|address| ip_bytes(Some(address.0))).collect(),
        port: presence.port.into(),
        protocol: protocol_number(presence.protocol),
        brokers: presence.brokers.into(),
        names: texts(&presence.names),
        service_site: presence.service_site.to_string(),
        policies: texts(&presence.policies),
    }
}

fn service_message(service: &ServiceEntry) -> ServiceMessage {
    let exposure = |exposure: &ExposureEntry| ExposureMessage {
        sites: texts(&exposure.sites),
        policies: texts(&exposure.policies),
    };
    ServiceMessage {
        port: service.port.into(),
        protocol: protocol_number(service.protocol),
        backends: service.backends.iter().map(backend_message).collect(),
        domain_name: service.domain_name.as_ref().map(ToString::to_string).unwrap_or_default(),
        health_check: service.health_check.as_ref().map(|check| HealthCheckMessage {
            kind: match check.kind {
                BackendHealthCheckType::Tcp => 1,
                BackendHealthCheckType::Http => 2,
            },
            path: check.path.clone(),
            interval_seconds: check.interval_seconds,
        }),
        backend_tls: service.backend_tls.as_ref().map(|tls| BackendTlsMessage {
            mode: match tls.mode {
                BackendTlsVerification::Verify => 1,
                BackendTlsVerification::Insecure => 2,
            },
            server_name: tls.server_name.clone(),
            ca_bundle: tls.ca_bundle.clone(),
        }),
        proxy_protocol: service.proxy_protocol,
        exposures: service.exposures.iter().map(exposure).collect(),
    }
}

fn backend_message(backend: &BackendEndpoint) -> BackendMessage {
    match backend {
        BackendEndpoint::Address(ip, port) => {
            BackendMessage { ip: ip_bytes(Some(*ip)), host: String::new(), port: (*port).into() }
        }
        BackendEndpoint::Host(host, port) => {
            BackendMessage { ip: Vec::new(), host: host.to_string(), port: (*port).into() }
        }
    }
}

fn policy_message(policy: &PolicyEntry) -> PolicyMessage {
    let rule =
        |rule: &PolicyHttpRule| HttpRuleMessage { methods: rule.methods.clone(), paths: rule.paths.clone() };
    PolicyMessage {
        servers: texts(&policy.servers),
        sites: texts(&policy.sites),
        limits: policy.limits.map(|limits| LimitsMessage {
            connections_per_second: limits.connections_per_second,
            connections: limits.connections,
            bytes_per_second_in: limits.bytes_per_second_in,
            bytes_per_second_out: limits.bytes_per_second_out,
            requests_per_second: limits.requests_per_second,
        }),
        http: policy.http.iter().map(rule).collect(),
        requires: if policy.ports.is_empty() { Vec::new() } else { vec![PORTS_FEATURE.into()] },
        ports: policy.ports.iter().map(port_rule_message).collect(),
    }
}

fn port_rule_message(rule: &PortRule) -> PortRuleMessage {
    PortRuleMessage {
        protocol: match rule.protocol {
            IpProtocol::Tcp => 1,
            IpProtocol::Udp => 2,
            IpProtocol::Icmp => 3,
        },
        first: rule.first.into(),
        last: rule.last.into(),
    }
}

fn mapping_message(mapping: &PrefixMapping) -> MappingMessage {
    MappingMessage { subnet: mapping.subnet.to_string(), seen_as: mapping.seen_as.to_string() }
}

fn tunnel_peer_message(peer: &TunnelPeerEntry) -> TunnelPeerMessage {
    TunnelPeerMessage {
        site: peer.site.to_string(),
        public_key: peer.public_key.0.to_vec(),
        cipher: match peer.cipher {
            TunnelCipher::ChaCha20Poly1305 => 1,
            TunnelCipher::Aes256Gcm => 2,
        },
        endpoints: peer.endpoints.clone(),
        networks: texts(&peer.networks),
        plain_wireguard: peer.plain_wireguard,
        relay: peer.relay,
    }
}

fn node_message(node: &NodeEntry) -> NodeMessage {
    NodeMessage {
        site: node.site.to_string(),
        ip: ip_bytes(node.ip),
        ports: node.ports.iter().map(|port| u32::from(*port)).collect(),
        names: texts(&node.names),
        policies: texts(&node.policies),
    }
}

fn translated_presence_message(presence: &TranslatedPresenceEntry) -> TranslatedPresenceMessage {
    let (protocol, port) = scope_numbers(presence.scope);
    TranslatedPresenceMessage {
        addresses: presence.addresses.iter().map(|address| ip_bytes(Some(address.0))).collect(),
        port,
        protocol,
        names: texts(&presence.names),
        service_site: presence.service_site.to_string(),
        gateway: presence.gateway.to_string(),
        policies: texts(&presence.policies),
    }
}

fn translated_service_message(service: &TranslatedServiceEntry) -> TranslatedServiceMessage {
    let exposure = |exposure: &TranslatedExposure| TranslatedExposureMessage {
        site: exposure.site.to_string(),
        addresses: exposure.addresses.iter().map(|address| ip_bytes(Some(address.0))).collect(),
        policies: texts(&exposure.policies),
    };
    let (protocol, port) = scope_numbers(service.scope);
    TranslatedServiceMessage {
        ip: ip_bytes(Some(service.ip)),
        server_port: service.port.into(),
        port,
        protocol,
        exposures: service.exposures.iter().map(exposure).collect(),
    }
}

/// Returns the numbers of a scope: the protocol as a service has it, and the port.
fn scope_numbers(scope: TranslatedScope) -> (u32, u32) {
    match scope {
        TranslatedScope::Port(IpProtocol::Udp, port) => (2, port.into()),
        TranslatedScope::Port(_, port) => (1, port.into()),
        TranslatedScope::Everything => (7, 0),
    }
}

fn protocol_number(protocol: ServiceProtocol) -> u32 {
    match protocol {
        ServiceProtocol::Tcp => 1,
        ServiceProtocol::Udp => 2,
        ServiceProtocol::Http => 3,
        ServiceProtocol::Https => 4,
        ServiceProtocol::Grpc => 5,
        ServiceProtocol::Kafka => 6,
    }
}

fn ip_bytes(ip: Option<IpAddr>) -> Vec<u8> {
    match ip {
        None => Vec::new(),
        Some(IpAddr::V4(ip)) => ip.octets().to_vec(),
        Some(IpAddr::V6(ip)) => ip.octets().to_vec(),
    }
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
