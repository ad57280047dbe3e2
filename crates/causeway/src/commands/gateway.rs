//! What `causeway cloud` and `causeway edge` have in common: flags and settings of the gateway.

use causeway_gateway::Options;
use causeway_gateway::dns::DnsOptions;

use crate::config::{Config, DnsListen, GatewayLayer};

#[derive(Debug, clap::Args)]
pub struct GatewayArgs {
    /// Address where names are answered, IP or IP:PORT, or `off`; may be repeated [default: port 53 of loopback and of the gateway's ip]
    #[arg(long, value_name = "ADDR")]
    dns: Vec<DnsListen>,
}

impl GatewayArgs {
    pub fn layer(&self) -> GatewayLayer {
        GatewayLayer { dns: (!self.dns.is_empty()).then(|| self.dns.clone()), ..GatewayLayer::default() }
    }
}

/// The part of the configuration that the gateway needs, in its own words.
pub fn options(config: &Config) -> Options {
    Options { dns: dns(config), ..Options::default() }
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
