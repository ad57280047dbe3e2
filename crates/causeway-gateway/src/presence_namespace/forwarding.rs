//! Checks whether the host forwards packets of other hosts to the presence namespace. The setting is the
//! operator's, so it is only read.
//!
//! `obstacles` is pure; `Forwarding::read` reads /proc. Clients on the host itself reach presences without
//! forwarding.

use std::path::Path;

use ipnet::IpNet;

/// The forwarding settings of the kernel.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Forwarding {
    /// Per interface: whether IPv4 packets that arrive there are forwarded.
    pub v4: Vec<(String, bool)>,
    /// IPv6 has a single effective switch. None: there is no IPv6.
    pub v6: Option<bool>,
}

impl Forwarding {
    pub fn read() -> Forwarding {
        Forwarding::read_from(Path::new("/proc/sys/net"))
    }

    fn read_from(folder: &Path) -> Forwarding {
        let mut v4 = Vec::new();
        for entry in std::fs::read_dir(folder.join("ipv4/conf")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // `all` and `default` are no interfaces, and packets of other hosts arrive by neither of the
            // other two.
            if ["all", "default", "lo"].contains(&name.as_str()) || name.starts_with("causeway") {
                continue;
            }
            v4.extend(is_on(&entry.path().join("forwarding")).map(|is_on| (name, is_on)));
        }
        v4.sort();
        Forwarding { v4, v6: is_on(&folder.join("ipv6/conf/all/forwarding")) }
    }
}

fn is_on(path: &Path) -> Option<bool> {
    Some(std::fs::read_to_string(path).ok()?.trim() != "0")
}

/// Returns the obstacles between other hosts of the site and the presences, one sentence each with the
/// remedy. `interface` is where their packets arrive, if known: the interface with the gateway's address.
pub fn obstacles(forwarding: &Forwarding, interface: Option<&str>, networks: &[IpNet]) -> Vec<String> {
    let mut findings = Vec::new();
    let first = |is_v4: bool| networks.iter().find(|network| network.addr().is_ipv4() == is_v4);
    if let Some(network) = first(true) {
        let mut of_interest =
            forwarding.v4.iter().filter(|(name, _)| interface.is_none_or(|known| known == name)).peekable();
        if of_interest.peek().is_some() && of_interest.all(|(_, is_on)| !is_on) {
            let name = interface.unwrap_or("all");
            findings.push(format!(
                "other hosts cannot reach {network} through this one, because it does not forward IPv4: \
                 sysctl -w net.ipv4.conf.{name}.forwarding=1"
            ));
        }
    }
    if let (Some(network), Some(false)) = (first(false), forwarding.v6) {
        findings.push(format!(
            "other hosts cannot reach {network} through this one, because it does not forward IPv6: \
             sysctl -w net.ipv6.conf.all.forwarding=1"
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        v4: &[(&str, bool)],
        v6: Option<bool>,
        interface: Option<&str>,
        networks: &[&str],
        expected: &[&str],
    ) {
        let v4 = v4.iter().map(|(name, is_on)| ((*name).to_owned(), *is_on)).collect();
        let networks: Vec<IpNet> = networks.iter().map(|network| network.parse().unwrap()).collect();
        let found = obstacles(&Forwarding { v4, v6 }, interface, &networks);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(found, part)| found.contains(part)), "{found:?}");
    }

    #[test]
    fn what_is_not_forwarded_is_said_with_the_remedy() {
        let v4 = &["198.18.0.0/16"][..];
        check(&[("eth0", true)], None, None, v4, &[]);
        check(&[("eth0", false), ("eth1", true)], Some(false), None, v4, &[]);
        check(
            &[("eth0", false), ("eth1", true)],
            None,
            Some("eth0"),
            v4,
            &["net.ipv4.conf.eth0.forwarding=1"],
        );
        check(&[("eth0", false)], None, None, v4, &["net.ipv4.conf.all.forwarding=1"]);
        // Without any other interface there are no other hosts.
        check(&[], None, None, v4, &[]);
        let both = &["198.18.0.0/16", "fd00::/64"][..];
        check(&[("eth0", true)], Some(false), None, both, &["net.ipv6.conf.all.forwarding=1"]);
        check(&[("eth0", false)], Some(true), None, both, &["IPv4"]);
        check(&[("eth0", false)], Some(false), None, &[], &[]);
    }

    #[test]
    fn the_kernel_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (name, text) in
            [("all", "0\n"), ("default", "0"), ("lo", "0"), ("eth1", "1\n"), ("causeway0", "1")]
        {
            write(&format!("ipv4/conf/{name}/forwarding"), text);
        }
        let expected = Forwarding { v4: vec![("eth1".to_owned(), true)], v6: None };
        assert_eq!(Forwarding::read_from(folder.path()), expected);
        write("ipv6/conf/all/forwarding", "0\n");
        assert_eq!(Forwarding::read_from(folder.path()).v6, Some(false));
    }
}
