//! The dial decision for single addresses, row by row, and properties that hold for all of them.

use proptest::prelude::*;

use super::*;

fn rules(allow: &[&str], deny: &[&str]) -> DialRules {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    DialRules { allow: parse(allow), deny: parse(deny) }
}

fn own(listeners: &[(&'static str, SocketProtocol, &str)]) -> OwnListeners {
    let own = OwnListeners::default();
    for (name, transport, address) in listeners {
        own.keep(name, *transport, address.parse().unwrap());
    }
    own
}

/// This host has 10.0.0.2 and fd00::2.
fn here(ip: IpAddr) -> bool {
    ["10.0.0.2", "fd00::2"].iter().any(|own| own.parse() == Ok(ip))
}

#[test]
fn a_gateway_never_dials_its_own_listeners() {
    let own = own(&[
        ("admin", SocketProtocol::Tcp, "127.0.0.1:7445"),
        ("api", SocketProtocol::Tcp, "0.0.0.0:7443"),
        ("channel", SocketProtocol::Udp, "[::]:7444"),
        ("channel", SocketProtocol::Tcp, "[::]:7444"),
        ("presence", SocketProtocol::Tcp, "198.18.0.1:80"),
    ]);
    // Own listeners are denied even when the configuration allows every address.
    let anything = rules(&["0.0.0.0/0", "::/0", "0.0.0.0", "::", "127.0.0.1:7445"], &[]);
    let check = |transport: SocketProtocol, address: &str, expected: Option<&'static str>| {
        let found = check_address(&anything, &own.registered(), here, transport, address.parse().unwrap());
        let expected = expected.map_or(Ok(()), |name| Err(Denied::OwnListener { name }));
        assert_eq!(found, expected, "{transport:?} {address}");
    };
    use SocketProtocol::{Tcp, Udp};
    check(Tcp, "127.0.0.1:7445", Some("admin"));
    check(Tcp, "[::ffff:127.0.0.1]:7445", Some("admin"));
    check(Tcp, "0.0.0.0:7445", Some("admin"));
    check(Udp, "127.0.0.1:7445", None);
    check(Tcp, "127.0.0.2:7445", None);
    check(Tcp, "10.0.0.2:7445", None);
    check(Tcp, "127.0.0.1:7446", None);
    // A listener on all addresses is reached at each address of this host in its family.
    check(Tcp, "127.0.0.1:7443", Some("api"));
    check(Tcp, "127.9.9.9:7443", Some("api"));
    check(Tcp, "10.0.0.2:7443", Some("api"));
    check(Tcp, "0.0.0.0:7443", Some("api"));
    check(Tcp, "10.0.0.3:7443", None);
    check(Tcp, "[::1]:7443", None);
    check(Tcp, "[fd00::2]:7444", Some("channel"));
    check(Udp, "10.0.0.2:7444", Some("channel"));
    check(Udp, "[::]:7444", Some("channel"));
    check(Udp, "[fd00::3]:7444", None);
    check(Tcp, "198.18.0.1:80", Some("presence"));
    check(Tcp, "198.18.0.1:81", None);
    check(Tcp, "198.18.0.2:80", None);
}

#[test]
fn no_address_is_dialled_while_services_are_switched_off() {
    let dialer = BackendDialer::new(DialRules::default(), OwnListeners::default());
    let address = "10.0.0.5:80".parse().unwrap();
    assert_eq!(dialer.check(SocketProtocol::Tcp, address), Ok(()));
    assert_eq!(dialer.switched_off(true).check(SocketProtocol::Tcp, address), Err(Denied::SwitchedOff));
}

#[test]
fn special_addresses_only_when_allowed_and_others_unless_denied() {
    let check = |allow: &[&str], deny: &[&str], address: &str, expected: &str| {
        let found =
            check_address(&rules(allow, deny), &[], here, SocketProtocol::Tcp, address.parse().unwrap());
        let found = match &found {
            Ok(()) => "dialled",
            Err(Denied::Special { kind }) => kind,
            Err(Denied::Configured) => "denied",
            Err(Denied::OwnListener { name }) => name,
            Err(Denied::SwitchedOff) => "switched off",
        };
        assert_eq!(found, expected, "{address} with allow {allow:?}, deny {deny:?}");
    };
    for (address, expected) in [
        ("10.0.0.5:80", "dialled"),
        ("127.0.0.1:8080", "dialled"),
        ("[::1]:8080", "dialled"),
        ("[fd00::5]:80", "dialled"),
        ("8.8.8.8:443", "dialled"),
        ("169.254.169.254:80", "a link-local"),
        ("169.254.0.1:80", "a link-local"),
        ("169.255.0.1:80", "dialled"),
        ("[::ffff:169.254.169.254]:80", "a link-local"),
        ("[::169.254.169.254]:80", "a link-local"),
        ("[64:ff9b::169.254.169.254]:80", "a link-local"),
        ("[64:ff9b::10.0.0.5]:80", "dialled"),
        ("[fe80::1]:80", "a link-local"),
        ("[fe80::1%3]:80", "a link-local"),
        ("[febf:ffff::1]:80", "a link-local"),
        ("[fec0::1]:80", "dialled"),
        ("0.0.0.0:80", "an unspecified"),
        ("0.1.2.3:80", "an unspecified"),
        ("[::]:80", "an unspecified"),
        ("[::ffff:0.0.0.0]:80", "an unspecified"),
        ("224.0.0.251:5353", "a multicast"),
        ("[ff02::fb]:5353", "a multicast"),
        ("255.255.255.255:67", "a broadcast"),
        ("250.0.0.1:80", "a reserved"),
    ] {
        check(&[], &[], address, expected);
    }
    // The most specific rule decides.
    let metadata = "169.254.169.254:80";
    check(&["169.254.169.254"], &[], metadata, "dialled");
    check(&["169.254.169.254:80"], &[], metadata, "dialled");
    check(&["169.254.169.254:81"], &[], metadata, "a link-local");
    check(&["169.254.0.0/16"], &[], metadata, "dialled");
    check(&["::ffff:169.254.0.0/112"], &[], metadata, "dialled");
    check(&["169.254.0.0/16"], &["169.254.169.254"], metadata, "denied");
    check(&["169.254.169.254"], &["169.254.169.254"], metadata, "denied");
    check(&["0.0.0.0/0", "::/0"], &[], metadata, "a link-local");
    check(&["0.0.0.0/0", "::/0"], &[], "[fe80::1]:80", "a link-local");
    check(&[], &["10.0.0.0/8"], "10.0.0.5:80", "denied");
    check(&[], &["10.0.0.0/8:443"], "10.0.0.5:80", "dialled");
    check(&[], &["10.0.0.0/8:1-100"], "10.0.0.5:80", "denied");
    check(&["10.0.0.5"], &["10.0.0.0/8"], "10.0.0.5:80", "dialled");
    check(&["10.0.0.5"], &["10.0.0.0/8"], "10.0.0.6:80", "denied");
    check(&["10.0.0.0/8:80"], &["10.0.0.0/8"], "10.0.0.5:80", "dialled");
    check(&["10.0.0.0/8:80"], &["10.0.0.0/8"], "10.0.0.5:81", "denied");
    check(&[], &["127.0.0.0/8", "::1"], "127.0.0.1:8080", "denied");
    check(&[], &["127.0.0.0/8", "::1"], "[::1]:8080", "denied");
    check(&[], &["10.0.0.0/8"], "[64:ff9b::10.0.0.5]:80", "denied");
    // Deny everything except the named network.
    check(&["10.1.0.0/16"], &["0.0.0.0/0", "::/0"], "10.1.2.3:80", "dialled");
    check(&["10.1.0.0/16"], &["0.0.0.0/0", "::/0"], "10.2.2.3:80", "denied");
    check(&["10.1.0.0/16"], &["0.0.0.0/0", "::/0"], "[fd00::1]:80", "denied");
}

#[test]
fn a_rule_is_read_as_people_write_it_and_written_the_same() {
    for (text, expected) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.0.0.1", "10.0.0.1/32"),
        ("10.0.0.1:80", "10.0.0.1/32:80"),
        ("10.0.0.0/8:8000-8999", "10.0.0.0/8:8000-8999"),
        ("fd00::1", "fd00::1/128"),
        ("fd00::/8", "fd00::/8"),
        ("[fd00::1]", "fd00::1/128"),
        ("[fd00::/8]:443", "[fd00::/8]:443"),
        ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ] {
        let rule: BackendRule = text.parse().unwrap();
        assert_eq!(rule.to_string(), expected);
        assert_eq!(rule.to_string().parse::<BackendRule>().unwrap(), rule);
    }
    for text in [
        "",
        "host",
        "host:80",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:9-8",
        "10.0.0.0/33",
        "[fd00::1]443",
        "fd00::/8:443",
        "[10.0.0.1",
        "*:80",
    ] {
        let error = text.parse::<BackendRule>().unwrap_err();
        assert!(error.contains("write an address or a network"), "{text}: {error}");
    }
}

#[tokio::test]
async fn what_is_denied_is_not_dialled_and_the_reason_is_kept() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let own = OwnListeners::default();
    let dialer = BackendDialer::new(DialRules::default(), own.clone());
    dialer.connect_tcp(address).await.unwrap();
    let registered = own.register("admin", SocketProtocol::Tcp, address);
    let error =
        dialer.connect_first([address, "169.254.169.254:80".parse().unwrap(), address]).await.unwrap_err();
    assert_eq!(Denied::of(&error), Some(&Denied::OwnListener { name: "admin" }));
    assert!(dialer.connect_udp(address).await.is_ok(), "another transport is another listener");
    drop(registered);
    dialer.connect_tcp(address).await.unwrap();
    // A listener on all addresses is found at every address of this host.
    let _wild = own.register("api", SocketProtocol::Tcp, ([0, 0, 0, 0], address.port()).into());
    for local in getifaddrs::getifaddrs().unwrap().filter_map(|found| found.address.ip_addr()) {
        let found = dialer.check(SocketProtocol::Tcp, SocketAddr::new(local, address.port()));
        if local.is_ipv4() {
            assert_eq!(found, Err(Denied::OwnListener { name: "api" }), "{local}");
        }
    }
}

/// Code that connects without the dialer bypasses the site's dial rules. DNS is exempt: it asks the resolvers
/// of its configuration.
#[test]
fn no_other_module_connects_to_anything() {
    fn sources(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, found),
                false => found.extend(path.extension().is_some_and(|end| end == "rs").then_some(path)),
            }
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&root, &mut found);
    let exempt = ["dial.rs", "dns/forward.rs"].map(|name| root.join(name));
    let is_test = |path: &std::path::Path| path.ends_with("tests.rs");
    for path in found.into_iter().filter(|path| !exempt.contains(path) && !is_test(path)) {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for call in ["TcpStream::connect", "TcpSocket", "socket.connect("] {
            assert!(
                !code.contains(call),
                "{} calls {call}: dial through `dial::BackendDialer`",
                path.display()
            );
        }
    }
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

proptest! {
    #[test]
    fn an_address_and_its_mapped_form_are_judged_alike(octets: [u8; 4], port: u16, deny: bool) {
        let ip = Ipv4Addr::from(octets);
        let rules = if deny { rules(&[], &["128.0.0.0/1"]) } else { rules(&["169.254.0.0/17"], &[]) };
        let check = |ip: IpAddr| check_address(&rules, &[], here, SocketProtocol::Tcp, SocketAddr::new(ip, port));
        prop_assert_eq!(check(ip.into()), check(ip.to_ipv6_mapped().into()));
    }

    #[test]
    fn denied_everywhere_is_denied_and_a_listener_of_ours_is_never_dialled(ip in any_ip(), port in 1u16..) {
        let address = SocketAddr::new(ip, port);
        let everywhere = rules(&[], &["0.0.0.0/0", "::/0"]);
        prop_assert!(check_address(&everywhere, &[], here, SocketProtocol::Tcp, address).is_err());
        let own = OwnListeners::default();
        own.keep("x", SocketProtocol::Tcp, address);
        let anything = rules(&["0.0.0.0/0", "::/0", "169.254.0.0/16", "fe80::/10"], &[]);
        prop_assert_eq!(
            check_address(&anything, &own.registered(), here, SocketProtocol::Tcp, address),
            Err(Denied::OwnListener { name: "x" })
        );
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<BackendRule>();
    }
}
