//! Rows: who may begin a flow to where.

use causeway_netmap::{CommunityEntry, GatewayEntry, PolicyEntry, PortRule, TunnelCipher, TunnelKey};

use super::*;
use crate::dial::OwnListeners;

fn peer() -> TunnelPeerEntry {
    TunnelPeerEntry {
        gateway: "rome-1".into(),
        site: "rome".into(),
        public_key: TunnelKey([1; 32]),
        cipher: TunnelCipher::Aes256Gcm,
        endpoints: Vec::new(),
        networks: vec!["10.2.0.0/16".parse().unwrap()],
        plain_wireguard: false,
        relay: false,
    }
}

fn view(policies: Option<Vec<&str>>) -> NetmapView {
    let mut view = NetmapView::default();
    view.gateway = Some(GatewayEntry {
        tunnel_networks: vec!["10.1.0.0/16".parse().unwrap()],
        ..GatewayEntry::named("oslo-1", "oslo")
    });
    let members = ["oslo", "rome"].map(Into::into).to_vec();
    let policies = policies.map(|names| names.into_iter().map(Into::into).collect());
    view.communities.insert("north".into(), CommunityEntry { name: "north".into(), members, policies });
    let policy = |name: &str, site: &str, ports: Vec<PortRule>| PolicyEntry {
        name: name.into(),
        servers: Vec::new(),
        sites: vec![site.into()],
        limits: None,
        http: Vec::new(),
        ports,
    };
    let web = vec![PortRule { protocol: IpProtocol::Tcp, first: 443, last: 444 }];
    view.policies.insert("web".into(), policy("web", "oslo", web));
    view.policies.insert("all".into(), policy("all", "rome", Vec::new()));
    let mut requests = policy("requests", "oslo", Vec::new());
    requests.http = vec![causeway_netmap::PolicyHttpRule { methods: Vec::new(), paths: Vec::new() }];
    view.policies.insert("requests".into(), requests);
    view
}

fn start(direction: Direction, protocol: u8, port: u16) -> FlowStart {
    let (local, remote) = ("10.1.0.5".parse().unwrap(), "10.2.0.6".parse().unwrap());
    FlowStart { direction, local, remote, protocol, port }
}

fn check(policies: Option<Vec<&str>>, start: FlowStart, expected: Result<&str, FlowRefusal>) {
    let judged = judge(&view(policies), &OwnSockets::default(), &peer(), &start);
    assert_eq!(judged.map(|right| right.rule.to_string()), expected.map(str::to_owned));
}

#[test]
fn membership_permits_and_policies_narrow_it() {
    use Direction::{Inbound, Outbound};
    check(None, start(Outbound, packet::SCTP, 0), Ok("north"));
    check(None, start(Inbound, packet::TCP, 22), Ok("north"));
    check(Some(vec!["web"]), start(Outbound, packet::TCP, 443), Ok("web"));
    check(Some(vec!["web"]), start(Outbound, packet::TCP, 445), Err(FlowRefusal::NotAllowed));
    check(Some(vec!["web"]), start(Outbound, packet::UDP, 443), Err(FlowRefusal::NotAllowed));
    check(Some(vec!["web"]), start(Outbound, packet::SCTP, 443), Err(FlowRefusal::NotAllowed));
    // A policy names who may begin.
    check(Some(vec!["web"]), start(Inbound, packet::TCP, 443), Err(FlowRefusal::NotAllowed));
    check(Some(vec!["web", "all"]), start(Inbound, packet::TCP, 443), Ok("all"));
    check(Some(vec!["missing"]), start(Outbound, packet::TCP, 443), Err(FlowRefusal::NotAllowed));
    check(Some(Vec::new()), start(Outbound, packet::TCP, 443), Err(FlowRefusal::NotAllowed));
    // Requests are not seen at layer 3.
    check(Some(vec!["requests"]), start(Outbound, packet::TCP, 80), Err(FlowRefusal::NotAllowed));
}

#[test]
fn sites_without_a_common_community_exchange_nothing() {
    let mut view = view(None);
    view.communities.get_mut("north").unwrap().members.pop();
    let judged = judge(&view, &OwnSockets::default(), &peer(), &start(Direction::Outbound, packet::TCP, 1));
    assert_eq!(judged, Err(FlowRefusal::NoCommunity));
    let judged =
        judge(&NetmapView::default(), &OwnSockets::default(), &peer(), &start(Direction::Outbound, 6, 1));
    assert_eq!(judged, Err(FlowRefusal::NoNetmap));
}

#[test]
fn listeners_of_the_gateway_itself_are_not_reached_through_the_tunnel() {
    let listeners = OwnListeners::default();
    listeners.keep("admin", SocketProtocol::Tcp, "0.0.0.0:9090".parse().unwrap());
    let own = OwnSockets {
        listeners: listeners.registered(),
        addresses: vec!["10.1.0.5".parse().unwrap()],
        ..OwnSockets::default()
    };
    let judged = |own: &OwnSockets, protocol, port| {
        judge(&view(None), own, &peer(), &start(Direction::Inbound, protocol, port)).map(|_| ())
    };
    assert_eq!(judged(&own, packet::TCP, 9090), Err(FlowRefusal::OwnListener));
    assert_eq!(judged(&own, packet::UDP, 9090), Ok(()));
    assert_eq!(judged(&own, packet::TCP, 9091), Ok(()));
    let elsewhere = OwnSockets { addresses: vec!["10.1.0.1".parse().unwrap()], ..own };
    assert_eq!(judged(&elsewhere, packet::TCP, 9090), Ok(()), "another host of the site");
}
