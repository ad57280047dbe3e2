//! The README, `docs/getting-started.md` and pages of `docs/how-to`, typed word for word (`testlab::typed_page`).
//! The pages of this file are one session, in the order of `README`; `how_to.rs` has pages with other hosts.
//!
//! The hosts are network namespaces: a cloud, an edge behind NAT, another host of the site, and a web server there. `TYPED` says what each
//! block must show, `NOT_TYPED` names the blocks that are marked `example` and why they are not typed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use testlab::causeway::{Process, get, wait_for};
use testlab::net::{Net, Plan};
use testlab::typed_page::{
    Row, Terminal, blocks, check_blocks, missing_program, once, refused, type_pages, until,
};

use crate::build;

/// The pages in the order in which they are typed; each one goes on where the page before it ends.
const README: &str = concat!(
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/getting-started.md"),
    include_str!("../../../../docs/how-to/expose-a-service.md"),
    include_str!("../../../../docs/how-to/troubleshoot.md"),
    include_str!("../../../../docs/how-to/certificates.md"),
    include_str!("../../../../docs/how-to/upgrade.md"),
    include_str!("../../../../docs/how-to/back-up-and-restore.md"),
);
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const HOSTS: [&str; 3] = ["cloud", "edge", "host"];

/// The blocks of getting started up to and with the site that joins; other pages begin there too.
pub const JOIN: [Row; 6] = [
    once("causeway cloud", &[]),
    once("export KUBECONFIG", &["serviceexposes", "ePolicys", "SITE SUBNETS", "no exposures"]),
    once("(umask 077; causeway token create", &[]),
    once("sysctl", &["net.ipv4.ip_forward = 1"]),
    once("causeway edge", &[]),
    until("causeway status", &["hamburg hamburg yes", "ok"]),
];

/// Every other block that is typed, in the order of the pages. Blocks in the background show nothing; their process must become ready.
const TYPED: [Row; 47] = [
    // Getting started.
    once("kubectl apply", &["eservice.causeway.io/panel created", "serviceexpose.causeway.io/panel created"]),
    until("causeway get virtualpresences", &["panel cloud", "\n198.18.0."]),
    once("printf 'nameserver 127.0.0.1", &[]),
    until("curl http://panel", &[PANEL]),
    until("causeway doctor panel@cloud", &["ok", "panel", "office"]),
    once("kubectl apply", &["serviceexpose.causeway.io/stock created"]),
    once("ip route add", &[]),
    until("curl http://stock", &[STOCK]),
    once("causeway apply -f examples/ --dry-run", &["plant-dashboard created"]),
    once("(umask 077; causeway kubeconfig --server", &["hamburg"]),
    // Expose a service.
    once("kubectl apply", &["eserver.causeway.io/line-1 created", "stock patched"]),
    until("curl http://stock", &[STOCK]),
    // For a moment the gateways may have policies of different ages, and then the other end refuses for another reason.
    until("curl --request POST", &["no rule allows POST /", "403"]),
    until("curl --write-out", &["no policy of service stock allows", "403"]),
    until("causeway audit", &["\"decision\":\"deny\"", "line-1-reads", "ok"]),
    once("kubectl delete serviceexpose stock", &["deleted"]),
    until("causeway get virtualpresences", &["panel cloud"]).without(&["stock"]),
    // Troubleshoot.
    until("causeway doctor", &["ok"]),
    once("kubectl patch eservice panel", &["patched"]),
    refused("causeway doctor panel@cloud", &["!!", "10.0.0.10:8081"]),
    once("kubectl patch eservice panel", &["patched"]),
    until("causeway doctor panel@cloud", &["it answers HTTP with 200"]),
    once("causeway doctor", &["ok"]),
    once("curl --silent --request PUT", &["\"netmap\"", "causeway_gateway_"]),
    // Certificates.
    once("curl --silent http://127.0.0.1:7445/metrics", &["gateway=\"hamburg\""]),
    once("causeway kubeconfig --list", &["ann viewer"]),
    once("causeway revoke --certificate", &["revoked"]),
    refused("kubectl --kubeconfig ann.kubeconfig", &["Unauthorized"]),
    once("(umask 077; causeway token create --site hamburg --replace", &[]),
    once("causeway edge", &[]),
    until("causeway status", &["hamburg hamburg yes"]),
    once("causeway ca rotate", &["gateways and users", "this cloud"]),
    once("causeway ca show", &["gateways and users"]),
    until("causeway ca rotate --finish", &["everything"]),
    until("causeway status", &["hamburg hamburg yes"]),
    // Upgrade.
    until("causeway version", &["causeway 0.1.0", "hamburg", "VERSION", "objects", "ok"]),
    once("causeway cloud", &[]),
    until("causeway status", &["hamburg hamburg yes"]),
    once(
        "causeway drain hamburg --force",
        &["egateway/hamburg draining", "egateway/hamburg has no connections left"],
    ),
    once("causeway edge", &[]),
    until("causeway status", &["hamburg hamburg draining", env!("CARGO_PKG_VERSION")]),
    once("causeway drain hamburg --undo", &["egateway/hamburg in service"]),
    until("causeway doctor panel@cloud", &["it answers HTTP with 200"]),
    // Back up and restore.
    once("causeway backup", &["objects", "Copy /var/lib/causeway/seal.key"]),
    once("causeway revoke hamburg", &["egateway/hamburg revoked (1 keys)"]),
    until("causeway status", &["hamburg hamburg no"]),
    once("cp /var/lib/causeway/revocations.jsonl", &[]),
];

const RESTORED: [Row; 3] = [
    once("causeway restore", &["restored", "the store is as it was at", "1 gateways revoked: hamburg"]),
    once("causeway cloud", &[]),
    until("export KUBECONFIG", &["hamburg hamburg no", "panel panel panel.hamburg.example"]),
];

/// Every block that is marked `example`, and why.
const NOT_TYPED: [(&str, &str); 6] = [
    ("make demo", "builds and runs everything; the demo and the tests have tests of their own"),
    (".ci/needs build", "a release build; the binary of this test run is put on PATH instead"),
    ("scp token", "no SSH server in the namespaces; the test copies the file"),
    ("mkdir -p /etc/systemd", "no systemd in the namespaces; the form with resolv.conf is typed"),
    ("scp token", "no SSH server in the namespaces; the test copies the file"),
    ("install -m 755 causeway-new", "there is one version; old_versions.rs has two"),
];

const PANEL: &str = "the panel of the machine in Hamburg";
const STOCK: &str = "the stock of the warehouse";

fn rows() -> Vec<Row> {
    JOIN.into_iter().chain(TYPED).chain(RESTORED).collect()
}

#[test]
fn every_block_of_the_readme_is_typed_or_named_with_a_reason() {
    let blocks = blocks(README).unwrap();
    let plain: Vec<_> = blocks.iter().filter(|block| block.language != "sh").collect();
    assert!(plain.len() == 1 && plain[0].text.contains("causeway cloud │"), "the picture alone: {plain:?}");
    check_blocks(&blocks, &HOSTS, &rows(), &NOT_TYPED).unwrap();
}

#[test]
fn the_readme_and_the_examples_name_nothing_alike() {
    let names = |text: &str| -> BTreeSet<String> {
        let values = text.lines().filter_map(|line| {
            let line = line.trim().trim_start_matches("metadata: {").trim_end_matches('}');
            line.strip_prefix("name: ").or_else(|| line.strip_prefix("dnsName: "))
        });
        values.map(|value| value.trim().to_owned()).collect()
    };
    let mut examples = String::new();
    for entry in std::fs::read_dir(EXAMPLES).unwrap() {
        examples.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let (ours, theirs) = (names(README), names(&examples));
    assert!(ours.contains("panel") && ours.contains("stock.hamburg.example"), "{ours:?}");
    assert!(theirs.contains("plant-dashboard") && theirs.contains("orders.example"), "{theirs:?}");
    let both: Vec<_> = ours.intersection(&theirs).collect();
    assert!(both.is_empty() && !theirs.contains("hamburg"), "{both:?}");
}

#[test]
fn the_readme_works_as_it_is_typed() {
    let test = "the_readme_works_as_it_is_typed";
    if let Some(program) = missing_program(&PROGRAMS) {
        println!("skipped: {test} needs {program} (.ci/needs test installs it)");
        return;
    }
    let Some(net) = build(test, &plan()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut hosts = HOSTS.map(|name| terminal(&net, name, folder.path()));
    // The user of the cloud's host has the repository there.
    hosts[0].give(EXAMPLES, "examples").unwrap();
    let pages = [("server", "10.0.0.10:8080", PANEL), ("cloud", "127.0.0.1:9000", STOCK)];
    let _servers = pages.map(|(host, address, page)| serve(&net, host, address, page, folder.path()));
    let blocks = blocks(README).unwrap();
    type_pages(&mut hosts, &blocks, &rows(), |hosts, block, row| {
        if row.begins.contains("causeway token create") {
            // The block with scp.
            hosts[0].copy_to("token", &hosts[1])?;
        }
        if block.text.starts_with("causeway status") && row.shows[0].ends_with("no") {
            revoked_gateway_is_out(hosts);
        }
        Ok(())
    })
    .unwrap();
}

/// The promises of the pages about a revoked gateway beside its line in `status`.
fn revoked_gateway_is_out(hosts: &[Terminal]) {
    let asked =
        hosts[0].type_text("asked", "curl -sS --max-time 5 http://panel.hamburg.example:8080/").unwrap();
    assert!(!asked.stdout.contains(PANEL), "{asked:?}");
    let edge = &hosts[1];
    let log = || edge.running.as_ref().map(Process::log).unwrap_or_default();
    wait_for("the edge says that it is revoked", || log().to_lowercase().contains("revoked").then_some(()))
        .unwrap();
}

/// Programs that the pages use.
pub const PROGRAMS: [&str; 6] = ["kubectl", "dig", "curl", "awk", "/usr/bin/python3", "mount"];

/// A terminal on a host; the hosts file has the name of the cloud.
pub fn terminal(net: &Net, name: &str, folder: &Path) -> Terminal {
    let cloud = net.ipv4("cloud").unwrap();
    let resolver = net.gateway_ipv4("cloud").unwrap();
    Terminal::open(net, name, folder, &format!("{cloud} cloud.example.com\n"), resolver).unwrap()
}

/// The addresses of the README: the gateway's host is 10.0.0.1, the web server 10.0.0.10.
fn plan() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud")
        .link("cloud", "internet", &["203.0.113.0/24"])
        .nat("nat")
        .link("nat", "internet", &["198.51.100.0/24"])
        .host("edge")
        .link("edge", "nat", &["192.168.1.0/24"])
        .host("host")
        .link("host", "edge", &["10.0.0.0/29"])
        .host("server")
        .link("server", "edge", &["10.0.0.8/29"])
}

/// A web server with one page.
pub fn serve(net: &Net, host: &str, address: &str, page: &str, folder: &Path) -> Process {
    let address: SocketAddr = address.parse().unwrap();
    let root = folder.join(format!("pages-{host}"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("index.html"), format!("{page}\n")).unwrap();
    let host = net.host(host).unwrap();
    let mut command = host.command("/usr/bin/python3");
    command.args(["-m", "http.server", &address.port().to_string(), "--bind", &address.ip().to_string()]);
    command.arg("--directory").arg(&root);
    let log = folder.join(format!("server-{}.log", host.name()));
    let server = Process::spawn(command, log).unwrap();
    wait_for("the web server listens", || host.inside(|| get(address, "/")).ok()).unwrap();
    server
}
