//! Flags and settings of the gateway, for `causeway cloud` and `causeway edge`.

use causeway_gateway::dial::DialRules;
use causeway_gateway::dns::DnsOptions;
use causeway_gateway::{GatewayOptions, PresenceMode};

use crate::config::{Config, DnsListen, GatewayLayer, PresenceModeSetting, PresencePort};

#[derive(Debug, clap::Args)]
pub struct GatewayArgs {
    /// DNS listen address, IP or IP:PORT, or `off`; may be repeated [default: port 53 of loopback and of the gateway's ip]
    #[arg(long, value_name = "ADDR")]
    dns: Vec<DnsListen>,
    /// Network in which presences listen: namespace, host, off, or auto (a namespace if possible, else the host) [default: auto]
    #[arg(long, value_name = "MODE")]
    presence: Option<PresenceModeSetting>,
    /// Additional listen address for the presence of a service; may be repeated
    #[arg(long = "port", value_name = "SERVICE=IP:PORT")]
    ports: Vec<PresencePort>,
}

impl GatewayArgs {
    pub fn layer(&self) -> GatewayLayer {
        GatewayLayer {
            dns: (!self.dns.is_empty()).then(|| self.dns.clone()),
            presence: self.presence,
            ports: (!self.ports.is_empty()).then(|| self.ports.clone()),
            ..GatewayLayer::default()
        }
    }
}

/// The part of the configuration that the gateway needs, in its own types.
pub fn options(config: &Config) -> GatewayOptions {
    let gateway = &config.gateway;
    let ports = gateway.ports.value.iter().map(|port| (port.service.as_str().into(), port.address));
    GatewayOptions {
        dns: dns(config),
        listen: gateway.presence.value != PresenceModeSetting::Off,
        presence_mode: match gateway.presence.value {
            PresenceModeSetting::Auto | PresenceModeSetting::Off => PresenceMode::Auto,
            PresenceModeSetting::Namespace => PresenceMode::Room,
            PresenceModeSetting::Host => PresenceMode::Host,
        },
        ports: ports.collect(),
        entry_http: gateway.entry_http.value,
        entry_tls: gateway.entry_tls.value,
        dial_rules: dial_rules(config).into(),
        ..GatewayOptions::default()
    }
}

pub fn dial_rules(config: &Config) -> DialRules {
    let gateway = &config.gateway;
    DialRules { allow: gateway.backends_allow.value.clone(), deny: gateway.backends_deny.value.clone() }
}

fn dns(config: &Config) -> DnsOptions {
    let gateway = &config.gateway;
    let listen = gateway.dns.value.as_ref().map(|places| {
        let addresses = places.iter().filter_map(|place| match place {
            DnsListen::Off => None,
            DnsListen::At(address) => Some(address.0),
        });
        addresses.collect::<Vec<_>>()
    });
    let upstreams = gateway.dns_upstream.value.as_ref();
    DnsOptions {
        off: listen.as_ref().is_some_and(Vec::is_empty),
        listen,
        upstreams: upstreams.map(|servers| servers.iter().map(|server| server.0).collect()),
        ..DnsOptions::default()
    }
}
