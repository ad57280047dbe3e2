//! Packets between a client at `oslo` and a server at `rome` through both gateways. Both sites have 10.0.0.0/24 and the
//! same presence range.

use std::sync::Arc;

use causeway_netmap::{
    GatewayEntry, IpProtocol, NetmapView, PolicyEntry, PresenceIp, SubjectEntry, TranslatedExposure,
    TranslatedScope, TranslatedServiceEntry, TunnelCipher, TunnelKey, TunnelPeerEntry,
};
use etherparse::PacketBuilder;

use super::*;
use crate::dial::DialRules;
use crate::tun::admission::OwnSockets;
use crate::tun::checksum::ChecksumState;
use crate::tun::packet::{ParsedPacket, parse};
use crate::tun::plan::PlannedPeer;
use crate::tun::rewrite::rewrite;

const CLIENT: [u8; 4] = [10, 0, 0, 5];
const SERVER: [u8; 4] = [10, 0, 0, 5];
const PRESENCE: [u8; 4] = [198, 18, 0, 1];

struct Side {
    flows: FlowTable,
    translator: ServiceTranslator,
    plan: ForwardPlan,
    peers: PeerTable,
    now: Instant,
}

/// The settings of a test.
#[derive(Clone)]
struct Settings {
    scope: TranslatedScope,
    server_port: u16,
    sites: Vec<SiteName>,
    servers: Vec<&'static str>,
    range: &'static str,
    rules: DialRules,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scope: TranslatedScope::Port(IpProtocol::Tcp, 80),
            server_port: 80,
            sites: vec!["oslo".into()],
            servers: Vec::new(),
            range: "198.18.0.0/16",
            rules: DialRules::default(),
        }
    }
}

fn view(site: &str, settings: &Settings) -> NetmapView {
    let mut view = NetmapView::default();
    view.gateway = Some(GatewayEntry {
        presence_cidrs: vec![settings.range.parse().unwrap()],
        ..GatewayEntry::named(format!("{site}-1").as_str(), site)
    });
    let policy = PolicyEntry {
        name: "p".into(),
        servers: settings.servers.iter().map(|server| (*server).into()).collect(),
        sites: settings.sites.clone(),
        limits: None,
        http: Vec::new(),
        ports: Vec::new(),
    };
    view.policies.insert("p".into(), policy);
    view
}

fn subject(view: &mut NetmapView, server: &str, ip: Option<[u8; 4]>) {
    let ip = ip.map(IpAddr::from);
    let entry = causeway_netmap::NetmapEntry::Subject(SubjectEntry {
        server: server.into(),
        site: "oslo".into(),
        ip,
    });
    let mut entries: Vec<_> = vec![entry.encode()];
    entries.push(causeway_netmap::NetmapEntry::Gateway(view.gateway.clone().unwrap()).encode());
    let netmap = causeway_netmap::Netmap::build(Default::default(), entries, None).unwrap();
    let mut decoded = NetmapView::decode(&netmap);
    decoded.policies = view.policies.clone();
    decoded.translated_presences = view.translated_presences.clone();
    decoded.translated_services = view.translated_services.clone();
    *view = decoded;
}

fn planned(site: &str, gateway: &str, key: u8) -> PlannedPeer {
    let entry = TunnelPeerEntry {
        gateway: gateway.into(),
        site: site.into(),
        public_key: TunnelKey([key; 32]),
        cipher: TunnelCipher::ChaCha20Poly1305,
        endpoints: Vec::new(),
        networks: Vec::new(),
        plain_wireguard: false,
        relay: false,
    };
    PlannedPeer { entry, endpoints: Vec::new() }
}

fn side(view: NetmapView, peers: Vec<PlannedPeer>, rules: DialRules) -> Side {
    let own = OwnSockets { rules: Arc::new(rules), ..OwnSockets::default() };
    let plan = ForwardPlan::new(Arc::new(view), own, peers);
    let (mut peers, now) = (PeerTable::default(), Instant::now());
    peers.follow(&plan, 1420, now);
    let mut translator = ServiceTranslator::new(&[3; 32]);
    translator.follow(&plan, &peers);
    Side { flows: FlowTable::new(64), translator, plan, peers, now }
}

impl Side {
    fn of_client(settings: &Settings) -> Side {
        let mut view = view("oslo", settings);
        let presence = TranslatedPresenceEntry {
            service: "web".into(),
            addresses: vec![PresenceIp(PRESENCE.into())],
            scope: settings.scope,
            names: Vec::new(),
            service_site: "rome".into(),
            gateway: "rome-1".into(),
            policies: vec!["p".into()],
        };
        view.translated_presences.insert("web".into(), presence);
        if let Some(server) = settings.servers.first() {
            subject(&mut view, server, Some(CLIENT));
        }
        side(view, vec![planned("rome", "rome-1", 1)], DialRules::default())
    }

    fn of_server(settings: &Settings) -> Side {
        let mut view = view("rome", settings);
        let exposures = ["oslo", "bonn"].map(|site| TranslatedExposure {
            site: site.into(),
            addresses: vec![PresenceIp(PRESENCE.into())],
            policies: vec!["p".into()],
        });
        let service = TranslatedServiceEntry {
            service: "web".into(),
            ip: SERVER.into(),
            port: settings.server_port,
            scope: settings.scope,
            exposures: exposures.to_vec(),
        };
        view.translated_services.insert("web".into(), service);
        if let Some(server) = settings.servers.first() {
            subject(&mut view, server, None);
        }
        let peers = vec![planned("oslo", "oslo-1", 2), planned("bonn", "bonn-1", 3)];
        side(view, peers, settings.rules.clone())
    }

    /// Passes a packet, and returns it with its new ends.
    fn pass(&mut self, bytes: &[u8], from: Option<&str>) -> Result<Vec<u8>, String> {
        let packet = parse(bytes).unwrap();
        let from = from.map(|name| self.peers.by_name(&name.into()).unwrap());
        let direction = if from.is_some() { Direction::Inbound } else { Direction::Outbound };
        let arrival = Arrival { bytes, packet: &packet, direction, from, count: 1 };
        let Side { flows, translator, plan, peers, now } = self;
        match admit_service(flows, translator, plan, peers, &arrival, *now) {
            None => Err("no service".to_owned()),
            Some(Err(NotAdmitted::Drop(reason))) => Err(format!("{reason:?}")),
            Some(Err(NotAdmitted::Refuse { refusal, service, .. })) => {
                assert_eq!(service.unwrap().as_str(), "web");
                Err(refusal.word().to_owned())
            }
            Some(Ok(admitted)) => {
                let mut bytes = bytes.to_vec();
                rewrite(&mut bytes, &packet, &admitted.ends.unwrap(), ChecksumState::Full);
                Ok(bytes)
            }
        }
    }
}

fn tcp(source: [u8; 4], destination: [u8; 4], ports: (u16, u16), flags: u8) -> Vec<u8> {
    let mut segment = PacketBuilder::ipv4(source, destination, 64).tcp(ports.0, ports.1, 1, 1000);
    segment = if flags & 0x02 != 0 { segment.syn() } else { segment };
    segment = if flags & 0x10 != 0 { segment.ack(1) } else { segment };
    let mut bytes = Vec::new();
    segment.write(&mut bytes, b"hello").unwrap();
    bytes
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn v4(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("{address}"),
    }
}

/// The ends of a packet as a text, with `N` for a number and `U` for an address of the upper half.
fn shown(bytes: &[u8]) -> String {
    let packet = parse(bytes).unwrap();
    let end = |address: IpAddr| match address {
        _ if is_number(address) => "N".to_owned(),
        IpAddr::V4(address) if address.octets()[..2] == [198, 18] && address.octets()[2] >= 128 => {
            "U".to_owned()
        }
        _ => address.to_string(),
    };
    let ports = match packet.transport {
        TransportHeader::Tcp(tcp) => format!(" {} {}", tcp.source, tcp.destination),
        TransportHeader::Udp { source, destination } => format!(" {source} {destination}"),
        TransportHeader::Echo { id, .. } => format!(" {id}"),
        _ => String::new(),
    };
    format!("{} {}{ports}", end(packet.source), end(packet.destination))
}

#[test]
fn a_connection_crosses_and_no_real_address_does() {
    let settings = Settings { server_port: 8080, ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).unwrap();
    assert_eq!(shown(&wire), "N 198.18.0.1 5000 80");
    let at_server = rome.pass(&wire, Some("oslo-1")).unwrap();
    assert_eq!(shown(&at_server), "U 10.0.0.5 5000 8080");
    let client = v4(parse(&at_server).unwrap().source);
    let wire = rome.pass(&tcp(SERVER, client, (8080, 5000), SYN | ACK), None).unwrap();
    assert_eq!(shown(&wire), "198.18.0.1 N 80 5000");
    let at_client = oslo.pass(&wire, Some("rome-1")).unwrap();
    assert_eq!(shown(&at_client), "198.18.0.1 10.0.0.5 80 5000");
    assert_eq!((oslo.flows.len(), rome.flows.len()), (1, 1));
    // The whole packet is as if it had been written so.
    let mut expected = tcp(PRESENCE, CLIENT, (80, 5000), SYN | ACK);
    expected[4..6].copy_from_slice(&at_client[4..6]);
    assert_eq!(parse(&expected).unwrap().transport, parse(&at_client).unwrap().transport);
    assert_eq!(expected[20..], at_client[20..]);
}

#[test]
fn errors_are_translated_with_the_packet_they_quote() {
    let settings = Settings { server_port: 8080, ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).unwrap();
    let at_server = rome.pass(&wire, Some("oslo-1")).unwrap();
    let client = v4(parse(&at_server).unwrap().source);
    // A router of the server's site, whose real address must not cross.
    let mut error = Vec::new();
    let builder = PacketBuilder::ipv4([10, 0, 0, 254], client, 64);
    builder.icmpv4_raw(11, 0, [0; 4]).write(&mut error, &at_server).unwrap();
    let wire = rome.pass(&error, None).unwrap();
    let at_client = oslo.pass(&wire, Some("rome-1")).unwrap();
    assert_eq!(shown(&at_client), "198.18.0.1 10.0.0.5");
    let quoted: ParsedPacket = packet::parse_quoted(&at_client[28..]).unwrap();
    assert_eq!((quoted.source, quoted.destination), (CLIENT.into(), PRESENCE.into()));
    assert!(
        matches!(quoted.transport, TransportHeader::Tcp(tcp) if (tcp.source, tcp.destination) == (5000, 80))
    );
    let mut error = Vec::new();
    let unknown = tcp(client, SERVER, (6000, 8080), SYN);
    PacketBuilder::ipv4(SERVER, client, 64).icmpv4_raw(3, 3, [0; 4]).write(&mut error, &unknown).unwrap();
    assert_eq!(rome.pass(&error, None), Err("NoFlow".to_owned()));
}

#[test]
fn an_error_of_another_site_neither_passes_nor_takes_over_the_flow() {
    let settings = Settings::default();
    let mut oslo = Side::of_client(&settings);
    // A second service, whose server is at `bonn`.
    let mut view = (*oslo.plan.view).clone();
    let other = [198, 18, 0, 9];
    let first = view.translated_presences.values().next().unwrap().clone();
    let second = TranslatedPresenceEntry {
        service: "other".into(),
        addresses: vec![PresenceIp(other.into())],
        service_site: "bonn".into(),
        gateway: "bonn-1".into(),
        ..first
    };
    view.translated_presences.insert("other".into(), second);
    let peers = vec![planned("rome", "rome-1", 1), planned("bonn", "bonn-1", 2)];
    oslo = side(view, peers, DialRules::default());
    let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).unwrap();
    let number = v4(parse(&wire).unwrap().source);
    let mut error = |presence: [u8; 4], to: [u8; 4], from: &str| {
        let mut bytes = Vec::new();
        PacketBuilder::ipv4(presence, to, 64).icmpv4_raw(3, 3, [0; 4]).write(&mut bytes, &wire).unwrap();
        oslo.pass(&bytes, Some(from)).map(drop)
    };
    assert_eq!(error(other, number, "bonn-1"), Err("IcmpError".to_owned()));
    assert_eq!(error(PRESENCE, number, "rome-1"), Ok(()));
    let [a, b, c, d] = number;
    assert_eq!(error(PRESENCE, [a, b, c, d ^ 1], "rome-1"), Err("IcmpError".to_owned()));
    let (flow, rome) = (oslo.flows.iter().next().unwrap(), oslo.peers.by_name(&"rome-1".into()));
    assert_eq!(Some(flow.peer), rome, "packets of the client go to the site of its server");
}

#[test]
fn packets_of_another_site_that_this_host_forwards_use_no_service_of_this_site() {
    let settings = Settings::default();
    let mut oslo = Side::of_client(&settings);
    let from_bonn = tcp([10, 3, 0, 7], PRESENCE, (5000, 80), SYN);
    assert!(oslo.pass(&from_bonn, None).is_ok(), "a host of this site, behind a router");
    let plan = |oslo: &Side, own: &[&str]| {
        let mut bonn = planned("bonn", "bonn-1", 2);
        bonn.entry.networks = vec!["10.3.0.0/16".parse().unwrap()];
        let mut view = (*oslo.plan.view).clone();
        view.gateway.as_mut().unwrap().tunnel_networks = own.iter().map(|net| net.parse().unwrap()).collect();
        ForwardPlan::new(Arc::new(view), OwnSockets::default(), vec![planned("rome", "rome-1", 1), bonn])
    };
    // Without networks of its own the site may use the addresses of bonn too, and forwards nothing.
    oslo.plan = plan(&oslo, &[]);
    oslo.peers.follow(&oslo.plan, 1420, oslo.now);
    assert!(oslo.pass(&from_bonn, None).is_ok(), "a site that declares no networks");
    oslo.plan = plan(&oslo, &["10.0.0.0/16"]);
    oslo.peers.follow(&oslo.plan, 1420, oslo.now);
    let (plan, peers) = (&oslo.plan, &oslo.peers);
    let mut ended = 0;
    oslo.flows.judge(|flow| super::super::admit::judge_again(plan, peers, flow), |_, _| ended += 1);
    assert_eq!(ended, 1, "the network is that of bonn now");
    assert_eq!(oslo.pass(&from_bonn, None), Err("ForeignSource".to_owned()));
    assert!(oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).is_ok());
}

#[test]
fn only_packets_of_the_service_pass_and_only_clients_begin() {
    let settings = Settings::default();
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    assert_eq!(oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 22), SYN), None), Err("not-served".to_owned()));
    assert_eq!(oslo.pass(&tcp(CLIENT, [198, 18, 0, 2], (5000, 80), SYN), None), Err("no service".to_owned()));
    let foreign = oslo.pass(&tcp([240, 0, 0, 1], PRESENCE, (5000, 80), SYN), None);
    assert_eq!(foreign, Err("ForeignSource".to_owned()));
    let mut echo = Vec::new();
    PacketBuilder::ipv4(CLIENT, PRESENCE, 64).icmpv4_echo_request(7, 1).write(&mut echo, b"ping").unwrap();
    let wire = oslo.pass(&echo, None).unwrap();
    assert_eq!(shown(&rome.pass(&wire, Some("oslo-1")).unwrap()), "U 10.0.0.5 7");
    let number = v4(parse(&wire).unwrap().source);
    // A gateway that does not keep the rules is checked by the other one.
    let wire = tcp(number, PRESENCE, (5000, 22), SYN);
    assert_eq!(rome.pass(&wire, Some("oslo-1")), Err("not-served".to_owned()));
    assert_eq!(rome.pass(&wire, Some("bonn-1")), Err("not-served".to_owned()));
    let wire = tcp(number, PRESENCE, (5000, 80), SYN);
    assert_eq!(rome.pass(&wire, Some("bonn-1")), Err("not-allowed".to_owned()));
    let real = tcp([10, 0, 0, 9], PRESENCE, (5000, 80), SYN);
    assert_eq!(rome.pass(&real, Some("oslo-1")), Err("Spoofed".to_owned()));
    let at_server = rome.pass(&wire, Some("oslo-1")).unwrap();
    let client = v4(parse(&at_server).unwrap().source);
    let begins = tcp(SERVER, client, (80, 5000), SYN);
    assert_eq!(rome.pass(&begins, None), Err("not-allowed".to_owned()), "a server begins nothing");
    assert_eq!(rome.pass(&tcp(SERVER, client, (80, 5001), SYN), None), Err("NoRoute".to_owned()));
    // Another peer with the same number has another flow.
    let reply = tcp(PRESENCE, number, (80, 5000), ACK);
    assert_eq!(oslo.pass(&reply, Some("rome-1")), Err("NoFlow".to_owned()), "this client began nothing");
}

#[test]
fn everything_passes_with_protocol_ip() {
    let settings = Settings { scope: TranslatedScope::Everything, ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let mut sctp = Vec::new();
    let builder = PacketBuilder::ipv4(CLIENT, PRESENCE, 64);
    builder.write(&mut sctp, etherparse::IpNumber::SCTP, &[9; 16]).unwrap();
    let at_server = rome.pass(&oslo.pass(&sctp, None).unwrap(), Some("oslo-1")).unwrap();
    assert_eq!((shown(&at_server).as_str(), &at_server[20..]), ("U 10.0.0.5", &[9; 16][..]));
    let mut udp = Vec::new();
    PacketBuilder::ipv4(CLIENT, PRESENCE, 64).udp(9, 53).write(&mut udp, b"?").unwrap();
    let at_server = rome.pass(&oslo.pass(&udp, None).unwrap(), Some("oslo-1")).unwrap();
    assert_eq!(shown(&at_server), "U 10.0.0.5 9 53");
}

#[test]
fn fragments_follow_the_first_one() {
    let settings = Settings { scope: TranslatedScope::Everything, ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let fragment = |offset: u8, more: bool, id: u8| {
        let mut bytes = Vec::new();
        PacketBuilder::ipv4(CLIENT, PRESENCE, 64).udp(9, 53).write(&mut bytes, &[1; 24]).unwrap();
        bytes[4..8].copy_from_slice(&[0, id, if more { 0x20 } else { 0 }, offset]);
        bytes
    };
    assert_eq!(oslo.pass(&fragment(4, false, 1), None), Err("NoFlow".to_owned()));
    for (offset, more) in [(0, true), (4, false)] {
        let wire = oslo.pass(&fragment(offset, more, 2), None).unwrap();
        let at_server = rome.pass(&wire, Some("oslo-1")).unwrap();
        assert!(shown(&at_server).starts_with("U 10.0.0.5"), "{}", shown(&at_server));
    }
    let wire = oslo.pass(&fragment(4, false, 2), None).unwrap();
    assert_eq!(rome.pass(&wire, Some("bonn-1")), Err("NoFlow".to_owned()), "a fragment of another gateway");
}

#[test]
fn policies_name_servers_at_both_gateways() {
    let settings = Settings { sites: Vec::new(), servers: vec!["camera"], ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).unwrap();
    assert!(rome.pass(&wire, Some("oslo-1")).is_ok());
    let key = rome.flows.iter().next().unwrap();
    assert_eq!(key.right.subject.as_ref().unwrap().as_str(), "camera");
    let other = oslo.pass(&tcp([10, 0, 0, 6], PRESENCE, (5000, 80), SYN), None);
    assert_eq!(other, Err("not-allowed".to_owned()));
    let mut stranger = ClientNumbers::new(&[3; 32]);
    let number = v4(stranger.number_of([10, 0, 0, 6].into(), None).unwrap());
    let wire = tcp(number, PRESENCE, (5000, 80), SYN);
    assert_eq!(rome.pass(&wire, Some("oslo-1")), Err("not-allowed".to_owned()));
}

#[test]
fn clients_share_an_address_when_none_is_free() {
    // The upper half has one address, which is shared.
    let settings = Settings { range: "198.18.0.0/30", ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let mut seen = HashSet::new();
    for host in 5..9_u8 {
        let wire = oslo.pass(&tcp([10, 0, 0, host], PRESENCE, (5000, 80), SYN), None).unwrap();
        let at_server = rome.pass(&wire, Some("oslo-1")).unwrap();
        let packet = parse(&at_server).unwrap();
        let TransportHeader::Tcp(header) = packet.transport else { panic!("{packet:?}") };
        assert_eq!(packet.source, IpAddr::from([198, 18, 0, 2]));
        assert!(seen.insert(header.source), "two clients have port {}", header.source);
        let reply = tcp(SERVER, [198, 18, 0, 2], (80, header.source), SYN | ACK);
        let wire = rome.pass(&reply, None).unwrap();
        let at_client = oslo.pass(&wire, Some("rome-1")).unwrap();
        assert_eq!(shown(&at_client), format!("198.18.0.1 10.0.0.{host} 80 5000"));
    }
}

#[test]
fn the_configuration_of_the_server_site_has_the_last_word() {
    let rules = DialRules { allow: Vec::new(), deny: vec!["10.0.0.0/24".parse().unwrap()] };
    let settings = Settings { rules, ..Settings::default() };
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).unwrap();
    assert_eq!(rome.pass(&wire, Some("oslo-1")), Err("server-denied".to_owned()));
}

#[test]
fn a_flow_ends_with_its_policy_at_either_gateway() {
    let settings = Settings::default();
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), SYN), None).unwrap();
    rome.pass(&wire, Some("oslo-1")).unwrap();
    let revoked = Settings { sites: Vec::new(), ..settings.clone() };
    for (mut side, same, other) in [
        (oslo, Side::of_client(&settings), Side::of_client(&revoked)),
        (rome, Side::of_server(&settings), Side::of_server(&revoked)),
    ] {
        let mut ended = 0;
        let plans = [(same.plan, 0), (other.plan, 1)];
        for (plan, expected) in plans {
            side.peers.follow(&plan, 1420, side.now);
            let peers = &side.peers;
            side.flows.judge(|flow| super::super::admit::judge_again(&plan, peers, flow), |_, _| ended += 1);
            assert_eq!(ended, expected);
        }
    }
}

#[test]
fn both_halves_of_the_range_have_their_routes() {
    let settings = Settings::default();
    let routes = |side: &Side| {
        let mut routes: Vec<String> = side.plan.routes().iter().map(ToString::to_string).collect();
        routes.sort();
        routes
    };
    assert_eq!(routes(&Side::of_client(&settings)), ["198.18.0.1/32"]);
    assert_eq!(routes(&Side::of_server(&settings)), ["198.18.128.0/17"]);
}

#[test]
fn a_connection_goes_on_after_a_restart_of_either_gateway() {
    let settings = Settings::default();
    let (mut oslo, mut rome) = (Side::of_client(&settings), Side::of_server(&settings));
    let cross = |oslo: &mut Side, rome: &mut Side, flags: u8| {
        let wire = oslo.pass(&tcp(CLIENT, PRESENCE, (5000, 80), flags), None).unwrap();
        let at_server = rome.pass(&wire, Some("oslo-1")).unwrap();
        let client = v4(parse(&at_server).unwrap().source);
        let wire = rome.pass(&tcp(SERVER, client, (80, 5000), ACK), None).unwrap();
        assert!(oslo.pass(&wire, Some("rome-1")).is_ok());
        client
    };
    let client = cross(&mut oslo, &mut rome, SYN);
    oslo = Side::of_client(&settings);
    assert_eq!(cross(&mut oslo, &mut rome, ACK), client);
    rome = Side::of_server(&settings);
    assert_eq!(cross(&mut oslo, &mut rome, ACK), client);
}
