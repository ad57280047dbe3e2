//! Flags and settings of the gateway, for `causeway cloud` and `causeway edge`.

use std::net::SocketAddr;

use causeway_gateway::dial::DialRules;
use causeway_gateway::dns::DnsOptions;
use causeway_gateway::tun::TunnelOptions;
use causeway_gateway::{GatewayOptions, PresenceMode};

use crate::config::{Config, DnsListen, GatewayLayer, PresenceModeSetting, PresencePort, TunnelLayer};

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
    /// UDP address of the tunnel between sites, opened when an ECommunity names the site [default: 0.0.0.0:7446]
    #[arg(long, value_name = "ADDR")]
    tunnel: Option<SocketAddr>,
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

    pub fn tunnel_layer(&self) -> TunnelLayer {
        TunnelLayer { listen: self.tunnel, ..TunnelLayer::default() }
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
            PresenceModeSetting::Namespace => PresenceMode::Namespace,
            PresenceModeSetting::Host => PresenceMode::Host,
        },
        ports: ports.collect(),
        entry_http: gateway.entry_http.value,
        entry_tls: gateway.entry_tls.value,
        dial_rules: dial_rules(config).into(),
        tunnel: tunnel(config),
        ..GatewayOptions::default()
    }
}

/// The key of the tunnel in the data dir.
const TUNNEL_KEY_FILE: &str = "tunnel.key";

fn tunnel(config: &Config) -> Option<TunnelOptions> {
    let tunnel = &config.tunnel;
    (!tunnel.off.value).then(|| TunnelOptions {
        off: false,
        listen: tunnel.listen.value,
        key_file: config.data_dir.value.join(TUNNEL_KEY_FILE),
        device_name: tunnel.device.value.clone(),
        mtu: tunnel.mtu.value,
        ..TunnelOptions::default()
    })
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
