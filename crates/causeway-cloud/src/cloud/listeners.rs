//! Binds the sockets of a cloud before anything else is opened, so that a bad address stops the start.
//!
//! Input: the addresses of `CloudConfig`. Output: the bound sockets, their `Addresses`, and the endpoints by which edges and
//! local clients reach them. The servers behind the sockets are built by `start`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use causeway_channel::ChannelEndpoint;
use causeway_channel::port::PortSockets;
use causeway_gateway::dial::{OwnListeners, SocketProtocol};
use serde::Serialize;
use tokio::net::TcpListener;

use super::{CloudConfig, CloudError};

/// The addresses of a running cloud. Written to DATA_DIR/run/addresses.json for tests and local clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    pub api: SocketAddr,
    pub channel: SocketAddr,
    pub admin: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregated: Option<SocketAddr>,
    pub pid: u32,
}

/// The sockets of a cloud.
pub(super) struct Listeners {
    pub(super) api: TcpListener,
    pub(super) channel: PortSockets,
    pub(super) admin: TcpListener,
    pub(super) connect: Option<TcpListener>,
    pub(super) aggregated: Option<TcpListener>,
}

impl Listeners {
    pub(super) async fn bind(config: &CloudConfig) -> Result<Listeners, CloudError> {
        Ok(Listeners {
            api: listen("api", config.api).await?,
            channel: PortSockets::bind(config.channel)
                .await
                .map_err(bind_error("channel", config.channel))?,
            admin: listen("admin", config.admin).await?,
            connect: match config.connect {
                Some(address) => Some(listen("connect", address).await?),
                None => None,
            },
            aggregated: match &config.aggregated_api {
                Some(aggregated) => Some(listen("aggregated", aggregated.listen).await?),
                None => None,
            },
        })
    }

    pub(super) fn addresses(&self, config: &CloudConfig) -> Result<Addresses, CloudError> {
        let connect = self.connect.as_ref().map(TcpListener::local_addr).transpose();
        let aggregated = self.aggregated.as_ref().map(TcpListener::local_addr).transpose();
        Ok(Addresses {
            connect: connect.map_err(bind_error("connect", config.connect.unwrap_or(config.api)))?,
            aggregated: aggregated.map_err(bind_error("aggregated", config.api))?,
            api: self.api.local_addr().map_err(bind_error("api", config.api))?,
            channel: self.channel.local_addr(),
            admin: self.admin.local_addr().map_err(bind_error("admin", config.admin))?,
            pid: std::process::id(),
        })
    }
}

async fn listen(purpose: &'static str, address: SocketAddr) -> Result<TcpListener, CloudError> {
    TcpListener::bind(address).await.map_err(bind_error(purpose, address))
}

/// Registers the listeners, so that the cloud's own gateway never dials them.
pub(super) fn register_listeners(own: &OwnListeners, addresses: &Addresses) {
    own.keep("api", SocketProtocol::Tcp, addresses.api);
    own.keep("admin", SocketProtocol::Tcp, addresses.admin);
    own.keep("channel", SocketProtocol::Tcp, addresses.channel);
    own.keep("channel", SocketProtocol::Udp, addresses.channel);
    if let Some(connect) = addresses.connect {
        own.keep("connect", SocketProtocol::Tcp, connect);
    }
    if let Some(aggregated) = addresses.aggregated {
        own.keep("aggregated", SocketProtocol::Tcp, aggregated);
    }
}

pub(super) fn bind_error(
    purpose: &'static str,
    address: SocketAddr,
) -> impl FnOnce(std::io::Error) -> CloudError {
    move |source| CloudError::Bind { purpose, address, source }
}

/// The address by which a client on this host reaches a listener.
pub(super) fn local(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

/// The channel endpoints for edges when none are configured: the listener's own address, or, for a wildcard listener, the
/// outward addresses of the host, or else the host's name.
pub(super) fn own_endpoints(channel: SocketAddr, outward: &[IpAddr], host: &str) -> Vec<ChannelEndpoint> {
    let ip = channel.ip();
    let listens_for = |other: &&IpAddr| ip.is_ipv6() || other.is_ipv4();
    let mut texts: Vec<String> = match ip.is_unspecified() {
        false => vec![channel.to_string()],
        true => {
            let seen = outward.iter().filter(listens_for);
            seen.map(|ip| SocketAddr::new(*ip, channel.port()).to_string()).collect()
        }
    };
    if texts.is_empty() {
        texts.push(format!("{host}:{}", channel.port()));
    }
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_given_addresses_that_others_see() {
        let check = |channel: &str, outward: &[&str], expected: &[&str]| {
            let outward: Vec<IpAddr> = outward.iter().map(|ip| ip.parse().unwrap()).collect();
            let endpoints = own_endpoints(channel.parse().unwrap(), &outward, "host");
            let texts: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
            assert_eq!(texts, expected, "{channel}");
        };
        check("10.1.2.3:7444", &["192.0.2.7"], &["10.1.2.3:7444"]);
        check("0.0.0.0:7444", &["192.0.2.7", "2001:db8::7"], &["192.0.2.7:7444"]);
        check("[::]:7444", &["192.0.2.7", "2001:db8::7"], &["192.0.2.7:7444", "[2001:db8::7]:7444"]);
        check("0.0.0.0:7444", &[], &["host:7444"]);
    }

    #[test]
    fn a_client_on_this_host_reaches_a_wildcard_listener_on_loopback() {
        for (listener, expected) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(local(listener.parse().unwrap()).to_string(), expected);
        }
    }
}
