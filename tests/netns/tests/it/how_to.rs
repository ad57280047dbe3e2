//! Pages of `docs/how-to` that need other hosts than `readme.rs` has, typed word for word: two sites whose networks are joined, and two
//! replicas of the cloud with two gateways at a site.

use testlab::causeway::{Process, wait_for};
use testlab::net::{Net, Plan};
use testlab::typed_page::{
    Block, Row, Terminal, blocks, check_blocks, missing_program, once, refused, type_pages, until,
};

use crate::build;
use crate::readme::{JOIN, PROGRAMS, serve, terminal};

const GETTING_STARTED: &str = include_str!("../../../../docs/getting-started.md");
const TWO_NETWORKS: &str = include_str!("../../../../docs/how-to/connect-two-networks.md");
const AVAILABILITY: &str = include_str!("../../../../docs/how-to/high-availability.md");

const OSLO: &str = "the page of Oslo";
const HAMBURG: &str = "the page of Hamburg";
const PANEL: &str = "the panel of the machine in Hamburg";

const TWO_NETWORKS_HOSTS: [&str; 5] = ["cloud", "edge", "host", "oslo-edge", "oslo-host"];
const TWO_NETWORKS_TYPED: [Row; 10] = [
    once("(umask 077; causeway token create --site oslo", &[]),
    once("sysctl", &["net.ipv4.ip_forward = 1"]),
    once("causeway edge", &[]),
    once("kubectl apply", &["ecommunity.causeway.io/north serverside-applied"]),
    once("ip route add 10.2.0.0/24", &[]),
    once("ip route add 10.0.0.0/24", &[]),
    until("ping", &["3 received", OSLO]),
    // 7: not connected. A web server listens there, so that nothing but the policy refuses.
    refused("curl --max-time 5", &["curl: (7)"]),
    until("causeway audit", &["ip/10.0.0.2:8080", "deny"]),
    until("causeway status", &["hamburg oslo", "ok"]),
];
const TWO_NETWORKS_NOT_TYPED: [(&str, &str); 1] =
    [("scp token-oslo", "no SSH server in the namespaces; the test copies the file")];

const AVAILABILITY_HOSTS: [&str; 4] = ["cloud-a", "cloud-b", "edge-1", "edge-2"];
const AVAILABILITY_TYPED: [Row; 16] = [
    once("causeway cloud", &[]),
    once("causeway cloud", &[]),
    once("export KUBECONFIG", &[]),
    once("causeway edge", &[]),
    once("causeway edge", &[]),
    once("kubectl apply", &["serviceexpose.causeway.io/panel created"]),
    until("export KUBECONFIG", &["hamburg-1 hamburg yes", "hamburg-2 hamburg yes", PANEL]),
    until("causeway status", &["hamburg-1 hamburg yes", "hamburg-2 hamburg yes"]),
    until("curl", &[PANEL]),
    once("causeway drain", &["egateway/hamburg-1 draining", "egateway/hamburg-1 has no connections left"]),
    until("causeway status", &["hamburg-1 hamburg no", "hamburg-2 hamburg yes"]),
    until("curl", &[PANEL]),
    once("causeway edge", &[]),
    until("causeway status", &["hamburg-1 hamburg draining", "hamburg-2 hamburg yes"]),
    once("causeway drain hamburg-1 --undo", &["egateway/hamburg-1 in service"]),
    until("causeway status", &["hamburg-1 hamburg yes", "hamburg-2 hamburg yes"]),
];
const AVAILABILITY_NOT_TYPED: [(&str, &str); 2] = [
    ("ssh root@cloud-b.example.com", "no SSH server in the namespaces; the test copies the file"),
    ("scp token-1", "no SSH server in the namespaces; the test copies the files"),
];

/// The part of getting started at whose end a site has joined.
fn joined() -> Vec<Block> {
    let end = GETTING_STARTED.find("## Use a service of the site").unwrap();
    let begin = GETTING_STARTED.find("## The two hosts").unwrap();
    blocks(&GETTING_STARTED[begin..end]).unwrap()
}

#[test]
fn every_block_of_the_how_to_pages_is_typed_or_named_with_a_reason() {
    let pages = [
        (TWO_NETWORKS, &TWO_NETWORKS_HOSTS[..], &TWO_NETWORKS_TYPED[..], &TWO_NETWORKS_NOT_TYPED[..]),
        (AVAILABILITY, &AVAILABILITY_HOSTS[..], &AVAILABILITY_TYPED[..], &AVAILABILITY_NOT_TYPED[..]),
    ];
    for (page, hosts, typed, not_typed) in pages {
        let blocks = blocks(page).unwrap();
        assert!(blocks.iter().all(|block| block.language == "sh"), "a block without a language");
        check_blocks(&blocks, hosts, typed, not_typed).unwrap();
    }
}

/// A page that no test types is found here.
#[test]
fn every_how_to_page_is_typed_by_a_test() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to");
    let tests = [
        include_str!("readme.rs"),
        include_str!("how_to.rs"),
        include_str!("../../../k8s/tests/it/how_to.rs"),
    ];
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let included = format!("docs/how-to/{name}\")");
        assert!(tests.iter().any(|test| test.contains(&included)), "no test types docs/how-to/{name}");
    }
}

#[test]
fn two_networks_are_connected_as_the_page_says() {
    let test = "two_networks_are_connected_as_the_page_says";
    let Some(net) = network(test, &two_networks_plan()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut hosts = TWO_NETWORKS_HOSTS.map(|name| terminal(&net, name, folder.path()));
    let _pages = [("oslo-host", "10.2.0.2:8080", OSLO), ("host", "10.0.0.2:8080", HAMBURG)]
        .map(|(host, address, page)| serve(&net, host, address, page, folder.path()));
    type_pages(&mut hosts, &joined(), &JOIN, |hosts, _, row| match row.begins {
        "(umask 077; causeway token create" => hosts[0].copy_to("token", &hosts[1]),
        _ => Ok(()),
    })
    .unwrap();
    type_pages(&mut hosts, &blocks(TWO_NETWORKS).unwrap(), &TWO_NETWORKS_TYPED, |hosts, _, row| {
        match row.begins {
            "(umask 077; causeway token create --site oslo" => hosts[0].copy_to("token-oslo", &hosts[3]),
            _ => Ok(()),
        }
    })
    .unwrap();
}

#[test]
fn two_replicas_and_two_gateways_of_the_page_outlive_the_first_of_each() {
    let test = "two_replicas_and_two_gateways_of_the_page_outlive_the_first_of_each";
    let Some(etcd) = testlab::etcd::binary().ok() else {
        println!("skipped: {test} needs Debian's etcd-server (.ci/needs test installs it)");
        return;
    };
    let Some(net) = network(test, &availability_plan()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = ["cloud-a", "cloud-b", "etcd"].map(|name| {
        let address = net.ipv4(name).unwrap();
        format!("{address} {name}.example.com\n")
    });
    let names = names.concat();
    let resolver = net.gateway_ipv4("cloud-a").unwrap();
    let mut hosts =
        AVAILABILITY_HOSTS.map(|name| Terminal::open(&net, name, folder.path(), &names, resolver).unwrap());
    let _page = serve(&net, "server", "10.0.0.10:8080", PANEL, folder.path());
    let _etcd = start_etcd(&net, &etcd, folder.path());
    let blocks = blocks(AVAILABILITY).unwrap();
    let mut typed = 0;
    type_pages(&mut hosts, &blocks, &AVAILABILITY_TYPED, |hosts, _, _| {
        typed += 1;
        match typed {
            1 => {
                let keys = [0, 1].map(|host| hosts[host].root.join("var-lib/causeway"));
                std::fs::create_dir_all(&keys[1])?;
                std::fs::copy(keys[0].join("seal.key"), keys[1].join("seal.key"))?;
                Ok(())
            }
            3 => hosts[0].copy_to("token-1", &hosts[2]).and_then(|()| hosts[0].copy_to("token-2", &hosts[3])),
            // "Stop cloud-a (Ctrl-C)", "Stop the edge on the first gateway host (Ctrl-C)".
            7 => hosts[0].interrupt(),
            10 => hosts[2].interrupt(),
            _ => Ok(()),
        }
    })
    .unwrap();
}

fn network(test: &str, plan: &Plan) -> Option<Net> {
    if let Some(program) = missing_program(&PROGRAMS) {
        println!("skipped: {test} needs {program} (.ci/needs test installs it)");
        return None;
    }
    build(test, plan)
}

/// One member of etcd on its own host, at the address that the page names.
fn start_etcd(net: &Net, program: &std::path::Path, folder: &std::path::Path) -> Process {
    let host = net.host("etcd").unwrap();
    let url = format!("http://{}:2379", net.ipv4("etcd").unwrap());
    let mut command = host.command(program);
    command.arg("--data-dir").arg(folder.join("etcd-data"));
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"]);
    let process = Process::spawn(command, folder.join("etcd.log")).unwrap();
    let address = std::net::SocketAddr::from((net.ipv4("etcd").unwrap(), 2379));
    let within = std::time::Duration::from_secs(1);
    wait_for("etcd listens", || host.connects(address, within).then_some(())).unwrap();
    process
}

/// Hamburg is 10.0.0.0/29 with its gateway 10.0.0.1, Oslo 10.2.0.0/24 with 10.2.0.1.
fn two_networks_plan() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud")
        .link("cloud", "internet", &["203.0.113.0/24"])
        .nat("nat")
        .link("nat", "internet", &["198.51.100.0/24"])
        .host("edge")
        .link("edge", "nat", &["192.168.1.0/24"])
        .host("host")
        .link("host", "edge", &["10.0.0.0/24"])
        .nat("oslo-nat")
        .link("oslo-nat", "internet", &["192.0.2.0/24"])
        .host("oslo-edge")
        .link("oslo-edge", "oslo-nat", &["192.168.1.0/24"])
        .host("oslo-host")
        .link("oslo-host", "oslo-edge", &["10.2.0.0/24"])
}

/// The web server hangs on a router between the two gateway hosts, in networks of its own on both sides.
fn availability_plan() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud-a")
        .link("cloud-a", "internet", &["203.0.113.0/28"])
        .host("cloud-b")
        .link("cloud-b", "internet", &["203.0.113.16/28"])
        .host("etcd")
        .link("etcd", "internet", &["203.0.113.32/28"])
        .nat("nat")
        .link("nat", "internet", &["198.51.100.0/24"])
        .host("edge-1")
        .link("edge-1", "nat", &["10.0.0.0/29"])
        .host("edge-2")
        .link("edge-2", "nat", &["10.0.0.16/29"])
        .host("server")
        .link("server", "nat", &["10.0.0.8/29"])
}
