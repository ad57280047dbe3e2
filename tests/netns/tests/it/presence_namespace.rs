//! The namespace in which presences listen: who reaches it from where, whom it does not get in the way of, and what is left of it.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_gateway::presence_namespace::PresenceNamespace;
use causeway_gateway::socket_binder::{BinderState, SocketBinder};
use causeway_netmap::{
    GatewayEntry, Generation, NetmapEntry, NetmapView, PresenceEntry, PresenceIp, ServiceProtocol,
};
use testlab::causeway::wait_for;
use testlab::net::{Echo, Host, Net, Plan, reach_tcp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::build;

/// For what must work. Nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two sites with equal plans, as everywhere: a gateway and a client that routes presences to it.
fn two_equal_sites() -> Plan {
    let site = |plan: Plan, gateway: &str, client: &str| {
        plan.router(gateway).host(client).link(client, gateway, &["10.0.0.0/24", "fd00:10::/64"])
    };
    site(site(Plan::new(), "gw-a", "client-a"), "gw-b", "client-b")
}

/// A namespace in a host of the lab. It ends with this value.
struct NamespaceHost {
    netmaps: watch::Sender<Arc<NetmapView>>,
    namespace: PresenceNamespace,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl NamespaceHost {
    fn start(host: &Host, cidrs: &[&str], presences: &[&str]) -> NamespaceHost {
        let (netmaps, netmap) = watch::channel(Arc::new(view(cidrs, presences)));
        let (namespace, stop) = (PresenceNamespace::default(), CancellationToken::new());
        let running = (namespace.clone(), stop.clone());
        let thread = host.start(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(running.0.run(netmap, running.1));
        });
        NamespaceHost { netmaps, namespace, stop, thread: Some(thread.unwrap()) }
    }

    fn wait(&self, what: &str, wanted: impl Fn(&BinderState) -> bool) -> BinderState {
        let state = self.namespace.state();
        let found = wait_for(what, || Some(state.borrow().clone()).filter(|state| wanted(state)));
        found.unwrap_or_else(|error| panic!("{error}: {:?}", state.borrow()))
    }

    fn open(&self) -> BinderState {
        self.wait(
            "the namespace is open",
            |state| matches!(state, BinderState::Open { troubles, .. } if troubles.is_empty()),
        )
    }

    /// Tells every client that connects its own address, and the address that it reached.
    fn serve(&self, address: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let listener = runtime.block_on(self.namespace.listen(address.parse().unwrap())).unwrap();
        listener.set_nonblocking(false).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, client)) = listener.accept() {
                let text = format!("{client} {}", stream.local_addr().unwrap());
                let _ = std::io::Write::write_all(&mut stream, text.as_bytes());
            }
        });
    }
}

impl Drop for NamespaceHost {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.thread.take().unwrap().join();
    }
}

fn view(cidrs: &[&str], presences: &[&str]) -> NetmapView {
    let gateway = NetmapEntry::Gateway(GatewayEntry {
        ip: "10.0.0.1".parse().ok(),
        presence_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        ..GatewayEntry::named("gw", "site")
    });
    let presence = |ip: &&str| {
        NetmapEntry::Presence(PresenceEntry {
            service: (*ip).into(),
            addresses: vec![PresenceIp(ip.parse().unwrap())],
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: vec![],
            service_site: "elsewhere".into(),
            policies: vec![],
        })
    };
    let facts = std::iter::once(gateway).chain(presences.iter().map(presence));
    NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, facts).unwrap()
}

/// The answer that a client gets, or the way in which it is refused.
fn ask(host: &Host, to: &str) -> Result<String, ErrorKind> {
    let to: SocketAddr = to.parse().unwrap();
    let answer = host.inside(|| {
        let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        Ok(asked.map_err(|error| error.kind()))
    });
    answer.unwrap()
}

/// The beginnings of the names that labs, benches and container runtimes give to their namespaces.
const LABS: [&str; 3] = ["cwlab-", "cwb-", "cni-"];

/// Everything of a host's network that a process could leave behind.
pub fn leftovers(host: &Host) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for arguments in [
        "-o link",
        "-o addr",
        "route show table all",
        "-6 route show table all",
        "rule",
        "-6 rule",
        "neigh",
        "neigh show proxy",
        "netns list",
    ] {
        let output = host.command("ip").args(arguments.split(' ')).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Neighbours come and go by themselves; ours is permanent. And what every interface of the lab does in its first
        // seconds is not what this is about.
        let kept = text.lines().filter(|line| arguments != "neigh" || line.contains("PERMANENT"));
        let kept = kept.filter(|line| !line.contains("fe80:") || line.contains("causeway"));
        // Named namespaces belong to the whole machine, where other labs and benches may run.
        let is_of_lab = |line: &str| LABS.iter().any(|lab| line.starts_with(lab));
        let kept = kept.filter(|line| arguments != "netns list" || !is_of_lab(line));
        found.extend(kept.map(|line| format!("{arguments}: {line}")));
    }
    let sockets = host.command("ss").args(["-Hlntu"]).output();
    if let Ok(sockets) = sockets {
        found.extend(String::from_utf8_lossy(&sockets.stdout).lines().map(str::to_owned));
    }
    found
}

fn route_presences(net: &Net, client: &str) {
    for (network, gateway) in [("198.18.0.0/16", "10.0.0.1"), ("fd00:18::/64", "fd00:10::1")] {
        let command = format!("route replace {network} via {gateway}");
        let status = net.host(client).unwrap().command("ip").args(command.split(' ')).status().unwrap();
        assert!(status.success());
    }
}

#[test]
fn a_presence_is_reached_from_the_site_and_from_the_host_and_nothing_is_in_its_way() {
    let Some(net) = build(
        "a_presence_is_reached_from_the_site_and_from_the_host_and_nothing_is_in_its_way",
        &two_equal_sites(),
    ) else {
        return;
    };
    // As strict as it gets, on every interface that is and will be.
    for gateway in ["gw-a", "gw-b"] {
        let mut command = net.host(gateway).unwrap().command("sysctl");
        command.args(["-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.default.rp_filter=1"]);
        assert!(command.status().unwrap().success());
    }
    let sites = [("gw-a", "client-a", "7"), ("gw-b", "client-b", "8")];
    let hosts: Vec<NamespaceHost> = sites
        .iter()
        .map(|(gateway, client, last)| {
            route_presences(&net, client);
            let (v4, v6) = (format!("198.18.0.{last}"), format!("fd00:18::{last}"));
            let host = net.host(gateway).unwrap();
            let begin = Instant::now();
            let host_namespace = NamespaceHost::start(&host, &["198.18.0.0/16", "fd00:18::/64"], &[&v4, &v6]);
            host_namespace.open();
            println!("the namespace at {gateway} was open after {:?}", begin.elapsed());
            host_namespace.serve(&format!("{v4}:80"));
            host_namespace.serve(&format!("[{v6}]:80"));
            host_namespace
        })
        .collect();
    for (gateway, client, last) in sites {
        let (host, client) = (net.host(gateway).unwrap(), net.host(client).unwrap());
        // The host's own services, on every address it has, with the same port.
        let own = Echo::start(&host, "[::]:80".parse().unwrap()).unwrap();
        let (v4, v6) = (format!("198.18.0.{last}:80"), format!("[fd00:18::{last}]:80"));
        let check = |from: &Host, to: &str, seen_as: &str| {
            let answer = ask(from, to).unwrap_or_else(|error| panic!("{gateway} {to}: {error}"));
            let (seen, reached) = answer.split_once(' ').unwrap();
            let seen: SocketAddr = seen.parse().unwrap();
            assert_eq!((seen.ip(), reached), (seen_as.parse::<IpAddr>().unwrap(), to), "{gateway}");
        };
        check(&client, &v4, "10.0.0.2");
        check(&client, &v6, "fd00:10::2");
        check(&host, &v4, "10.0.0.1");
        check(&host, &v6, "fd00:10::1");
        for unused in ["198.18.200.1:80", "198.18.255.255:80", "[fd00:18::999]:80"] {
            assert_eq!(ask(&client, unused), Err(ErrorKind::ConnectionRefused), "{unused}");
            assert_eq!(ask(&host, unused), Err(ErrorKind::ConnectionRefused), "{unused}");
        }
        reach_tcp(&client, "10.0.0.1:80".parse().unwrap(), PATIENCE).unwrap();
        drop(own);
    }
    drop(hosts);
}

#[test]
fn a_namespace_follows_the_netmap_and_leaves_nothing_behind() {
    let Some(net) = build("a_namespace_follows_the_netmap_and_leaves_nothing_behind", &two_equal_sites())
    else {
        return;
    };
    let host = net.host("gw-a").unwrap();
    let before = leftovers(&host);
    let host_namespace = NamespaceHost::start(&host, &["198.18.0.0/16"], &[]);
    assert_eq!(leftovers(&host), before, "nobody needs it yet");
    host_namespace.netmaps.send_replace(Arc::new(view(&["198.18.0.0/16"], &["198.18.0.1"])));
    host_namespace.open();
    host_namespace.serve("198.18.0.1:80");
    assert!(ask(&host, "198.18.0.1:80").is_ok());

    host_namespace.netmaps.send_replace(Arc::new(view(&["198.19.0.0/24", "fd00:18::/64"], &["198.19.0.1"])));
    host_namespace.wait(
        "the networks are others",
        |state| matches!(state, BinderState::Open { networks, .. } if networks.len() == 2),
    );
    host_namespace.serve("198.19.0.1:80");
    assert!(ask(&host, "198.19.0.1:80").is_ok());
    let routes = || {
        let output = host.command("ip").args(["route"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!routes().contains("198.18.0.0/16"), "{}", routes());

    // The interface is taken away. The listeners stay, the way to them comes back.
    let taken = host.command("ip").args(["link", "del", "causeway0"]).status().unwrap();
    assert!(taken.success());
    wait_for("the namespace is joined again", || ask(&host, "198.19.0.1:80").is_ok().then_some(())).unwrap();

    host_namespace.netmaps.send_replace(Arc::new(view(&["198.19.0.0/24"], &[])));
    wait_for("no route leads there", || (!routes().contains("198.19.0.0/24")).then_some(())).unwrap();
    drop(host_namespace);
    assert_eq!(leftovers(&host), before);
}

#[test]
fn a_network_that_is_taken_is_left_to_who_has_it_until_it_is_free() {
    let Some(net) =
        build("a_network_that_is_taken_is_left_to_who_has_it_until_it_is_free", &two_equal_sites())
    else {
        return;
    };
    let host = net.host("gw-a").unwrap();
    let networks = ["198.18.0.0/16", "fd00:18::/64"];
    let first = NamespaceHost::start(&host, &networks, &["198.18.0.1"]);
    first.open();
    first.serve("198.18.0.1:80");
    let second = NamespaceHost::start(&host, &networks, &["198.18.0.2"]);
    let state = second.wait(
        "the second says what is wrong",
        |state| matches!(state, BinderState::Open { troubles, .. } if troubles.len() == 2),
    );
    assert!(format!("{state:?}").contains("another causeway on this host"), "{state:?}");
    second.serve("198.18.0.2:80");
    assert_eq!(ask(&host, "198.18.0.2:80"), Err(ErrorKind::ConnectionRefused));
    assert!(ask(&host, "198.18.0.1:80").is_ok());
    drop(first);
    second.open();
    assert!(ask(&host, "198.18.0.2:80").is_ok());
}

#[test]
fn a_host_that_does_not_forward_is_told_so() {
    let Some(net) = build("a_host_that_does_not_forward_is_told_so", &two_equal_sites()) else { return };
    let host = net.host("gw-a").unwrap();
    let mut command = host.command("sysctl");
    assert!(command.args(["-qw", "net.ipv4.ip_forward=0"]).status().unwrap().success());
    let host_namespace = NamespaceHost::start(&host, &["198.18.0.0/16"], &["198.18.0.1"]);
    let BinderState::Open { hints, .. } = host_namespace.open() else { panic!("open") };
    assert!(hints[0].contains("net.ipv4.conf.client-a.forwarding=1"), "{hints:?}");
    host_namespace.serve("198.18.0.1:80");
    assert!(ask(&host, "198.18.0.1:80").is_ok());
    // The command in the hint is enough.
    let mut command = host.command("sysctl");
    assert!(command.args(["-qw", "net.ipv4.conf.client-a.forwarding=1"]).status().unwrap().success());
    route_presences(&net, "client-a");
    assert!(ask(&net.host("client-a").unwrap(), "198.18.0.1:80").is_ok());
}
