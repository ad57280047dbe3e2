//! Flags and settings of the gateway, for `causeway cloud` and `causeway edge`.

use std::net::SocketAddr;

use causeway_daemon::collector::HttpTarget;
use causeway_gateway::dial::DialRules;
use causeway_gateway::dns::DnsOptions;
use causeway_gateway::trace::TraceOptions;
use causeway_gateway::tun::{Datapath, TunnelOptions};
use causeway_gateway::{GatewayOptions, PresenceMode};

use crate::config::mistake::parse_flag;
use crate::config::{
    Config, DatapathSetting, DnsListen, GatewayLayer, PresenceModeSetting, PresencePort, TunnelLayer,
};

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
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    tunnel: Option<SocketAddr>,
    /// Data path to the hosts of the site: tun (routes of the host), or ovs (flows of an Open vSwitch bridge) [default: tun]
    #[arg(long, value_name = "KIND")]
    datapath: Option<DatapathSetting>,
    /// Open vSwitch bridge of --datapath ovs [default: br-causeway]
    #[arg(long, value_name = "NAME")]
    bridge: Option<String>,
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
        TunnelLayer {
            listen: self.tunnel,
            datapath: self.datapath,
            bridge: self.bridge.clone(),
            ..TunnelLayer::default()
        }
    }
}

fn traces(config: &Config) -> Option<TraceOptions> {
    let traces = &config.traces;
    let (token_file, ca) = (traces.token_file.value.clone(), traces.ca.value.clone());
    let target = HttpTarget { url: traces.url.value.clone()?.0, token_file, ca };
    Some(TraceOptions { target, ratio: traces.ratio.value })
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
        services_off: gateway.services_off.value,
        tunnel: Some(tunnel(config)),
        traces: traces(config),
        ..GatewayOptions::default()
    }
}

/// The key of the tunnel in the data dir.
const TUNNEL_KEY_FILE: &str = "tunnel.key";

fn tunnel(config: &Config) -> TunnelOptions {
    let tunnel = &config.tunnel;
    TunnelOptions {
        off: tunnel.off.value,
        listen: tunnel.listen.value,
        datapath: match tunnel.datapath.value {
            DatapathSetting::Tun => Datapath::Tun,
            DatapathSetting::Ovs => Datapath::Ovs { bridge: tunnel.bridge.value.clone() },
        },
        key_file: config.data_dir.value.join(TUNNEL_KEY_FILE),
        device_name: tunnel.device.value.clone(),
        mtu: tunnel.mtu.value,
        relay_bytes_per_second: u64::from(tunnel.relay_mbit_per_second.value.get()) * 125_000,
        ..TunnelOptions::default()
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
