//! A real kube-apiserver that reaches a real kubelet through CONNECT: at a site behind a NAT, where another site has a node with
//! the same address. Everything runs in network namespaces; nothing in the cloud has a route to the nodes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::{Ran, finish, wait_for};
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Host, Net, Plan};

use crate::here;
use crate::kubectl;

/// Both nodes have it.
pub const NODE_IP: &str = "10.0.0.2";

fn plan() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud")
        .link("cloud", "internet", &["203.0.113.0/24"])
        .nat("nat-a")
        .link("nat-a", "internet", &["198.51.100.0/24"])
        .host("edge-a")
        .link("edge-a", "nat-a", &["10.0.0.0/24"])
        .nat("nat-b")
        .link("nat-b", "internet", &["192.0.2.0/24"])
        .host("edge-b")
        .link("edge-b", "nat-b", &["10.0.0.0/24"])
}

/// Why this cannot run here.
pub fn missing() -> Option<String> {
    if let Some(reason) = testlab::net::missing() {
        return Some(reason);
    }
    let built = std::fs::read_dir(kubectl::cache()?).ok()?.flatten().any(|folder| {
        let bin = folder.path().join("bin");
        bin.join("kubelet").exists() && bin.join("kube-apiserver").exists()
    });
    if !built {
        return Some(
            "needs a kubelet: `tests/k8s/lab/build-kubernetes kubelet kube-apiserver` builds it once"
                .to_owned(),
        );
    }
    if !Path::new("/sys/fs/cgroup/memory").is_dir() {
        return Some("needs cgroups of version 1 for the kubelet of Kubernetes 1.20".to_owned());
    }
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        return Some("needs kubectl on PATH".to_owned());
    }
    let fetched = finish(Command::new(here("lab/install-node")), None).and_then(Ran::success);
    fetched.err().map(|error| format!("needs Debian's containerd: {error}"))
}

/// A process that a script of the lab started; stopped again, however the test ends.
pub struct Lab {
    pub folder: PathBuf,
    pub down: &'static str,
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["apiserver.log", "kubelet.log"] {
                let text = std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!(
                    "--- the end of {name} ---\n{}",
                    lines[lines.len().saturating_sub(30)..].join("\n")
                );
            }
        }
        let _ = Command::new(here(&format!("lab/{}", self.down))).arg(&self.folder).status();
    }
}

// In the order in which they end.
struct Fleet {
    _node: Lab,
    other: Child,
    cluster: Lab,
    edges: [EdgeHost; 2],
    cloud: CloudHost,
    host: Host,
    folder: tempfile::TempDir,
    _net: Net,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.other.kill();
        let _ = self.other.wait();
    }
}

impl Fleet {
    fn start() -> Fleet {
        let net = Net::build(&plan()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let host = net.host("cloud").unwrap();
        let public = net.ipv4("cloud").unwrap();
        let endpoint = SocketAddr::from((public, CHANNEL_PORT));
        // A client that does not ask through a listener of CONNECT asks for the node's name, and reaches the node's port of the cloud.
        let config = folder.path().join("cloud.toml");
        std::fs::write(&config, format!("[gateway]\nentry-tls = \"{public}:10250\"\n")).unwrap();
        let flags = ["--connect", "127.0.0.1:7447", "--config", config.to_str().unwrap()];
        let cloud = CloudHost::start(&host, folder.path(), &[endpoint], &flags).unwrap();
        let edges = ["edge-a", "edge-b"].map(|name| {
            let token = cloud.token(name).unwrap();
            EdgeHost::join(&net.host(name).unwrap(), folder.path(), name, &token).unwrap()
        });
        cloud.apply(&objects(&public.to_string())).unwrap();
        let cluster = start_cluster(&host, folder.path());
        let port = std::fs::read_to_string(cluster.folder.join("port")).unwrap();
        let server = format!("{public}:{}", port.trim());
        let node = Lab { folder: folder.path().join("node"), down: "kubelet-down" };
        let site = net.host("edge-a").unwrap();
        let mut up = Command::new(here("lab/kubelet-up"));
        up.arg(&node.folder).args([site.namespace(), "node-a", NODE_IP]).arg(&cluster.folder).arg(server);
        finish(up, None).unwrap().success().unwrap();
        let other = start_other(&net.host("edge-b").unwrap(), &cluster.folder, folder.path());
        Fleet { _node: node, other, cluster, edges, cloud, host, folder, _net: net }
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.cluster.folder.join("kubeconfig")).args(arguments);
        command.env("HOME", self.folder.path());
        self.host.wrap(&command)
    }

    fn run(&self, arguments: &[&str], input: Option<&str>) -> Ran {
        finish(self.kubectl(arguments), input).unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments, None).success().unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    /// Runs a pod and waits until it does.
    fn pod(&self, name: &str, command: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": "node-a", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "dnsPolicy": "Default", "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "box", "image": "causeway.test/busybox:1", "imagePullPolicy": "Never", "stdin": true,
                "command": ["sh", "-c", command]}]}});
        self.run(&["create", "-f", "-"], Some(&pod.to_string())).success().unwrap();
        self.await_phase(name, "Running");
    }

    fn await_phase(&self, name: &str, phase: &str) {
        let is = || {
            let pod: Value = self.run(&["get", "pod", name, "-o", "json"], None).json().ok()?;
            (pod["status"]["phase"] == phase).then_some(())
        };
        wait_for(&format!("pod {name} is {phase}"), is)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.ok(&["describe", "pod", name])));
    }

    /// Peak memory of the cloud and of the edge of the node so far, in KiB.
    fn memory_peaks(&mut self) -> [u64; 2] {
        let pids = [self.cloud.unit.process().unwrap().pid(), self.edges[0].unit.process().unwrap().pid()];
        pids.map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        })
    }
}

fn objects(public: &str) -> String {
    let mut text = format!(
        "---\n{{kind: EPolicy, apiVersion: causeway.io/v1, metadata: {{name: control-plane}}, allowedSites: [cloud]}}\n\
         ---\n{{kind: EGateway, apiVersion: causeway.io/v1, metadata: {{name: cloud}}, eSiteName: cloud, ip: {public}}}\n"
    );
    for (node, site) in [("node-a", "edge-a"), ("node-b", "edge-b")] {
        text.push_str(&format!(
            "---\n{{kind: EServer, apiVersion: causeway.io/v1, metadata: {{name: {node}}}, ip: {NODE_IP}, eSiteName: {site}, \
             ports: [10250, 9100], ePolicys: [control-plane]}}\n"
        ));
    }
    text
}

/// An API server that goes to nodes through the socket, by name, and checks whom it has reached.
pub fn start_cluster(host: &Host, folder: &Path) -> Lab {
    start_cluster_with(host, folder, &[], &[])
}

/// `flags` are further flags of kube-apiserver, `settings` variables of the script that starts it.
pub fn start_cluster_with(host: &Host, folder: &Path, flags: &[&str], settings: &[(&str, &str)]) -> Lab {
    let cluster = Lab { folder: folder.join("cluster"), down: "kube-apiserver-down" };
    let transport = json!({"uds": {"udsName": folder.join("cloud/run/connect.sock")}});
    start_api_server(host, folder, transport, (flags, settings));
    cluster
}

/// `transport` is how it comes to the door.
fn start_api_server(
    host: &Host,
    folder: &Path,
    transport: Value,
    (flags, settings): (&[&str], &[(&str, &str)]),
) {
    let selector = folder.join("egress.yaml");
    let config = json!({"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster",
            "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}]});
    std::fs::write(&selector, config.to_string()).unwrap();
    let mut up = Command::new(here("lab/kube-apiserver-up"));
    up.arg(folder.join("cluster")).arg(format!("--egress-selector-config-file={}", selector.display())).args(
        [
            "--bind-address=0.0.0.0",
            "--kubelet-certificate-authority=pki/ca.crt",
            "--kubelet-preferred-address-types=Hostname",
        ],
    );
    up.args(flags).envs(settings.iter().copied());
    finish(host.wrap(&up), None).unwrap().success().unwrap();
}

/// At the other site a node with the same address and port: it only says that it is well.
fn start_other(host: &Host, cluster: &Path, folder: &Path) -> Child {
    let home = folder.join("other");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("healthz"), "node-b is well").unwrap();
    let script = format!(
        "set -e; cd {home}; openssl ecparam -name prime256v1 -genkey -noout -out key.pem; \
         openssl req -new -key key.pem -subj /CN=node-b | openssl x509 -req -CA {pki}/ca.crt -CAkey {pki}/ca.key \
         -set_serial 77 -days 2 -out cert.pem -extfile <(echo subjectAltName=DNS:node-b)",
        home = home.display(),
        pki = cluster.join("pki").display()
    );
    let mut make = Command::new("bash");
    make.args(["-c", &script]);
    finish(make, None).unwrap().success().unwrap();
    let address = format!("{NODE_IP}:10250");
    let mut server = host.command("openssl");
    server.args(["s_server", "-WWW", "-quiet", "-accept", &address, "-cert", "cert.pem", "-key", "key.pem"]);
    server
        .current_dir(&home)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Lines of a program that goes on.
pub struct Following {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Following {
    pub fn start(mut command: Command) -> Following {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Following { child, lines }
    }

    pub fn await_line(&mut self, part: &str) -> String {
        let found = self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("no line with {part}"))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn kubectl_reaches_a_pod_at_a_site_through_the_egress_selector() {
    if let Some(reason) = missing() {
        println!("SKIPPED: kubectl through the egress selector: {reason}");
        return;
    }
    let begun = Instant::now();
    let mut fleet = Fleet::start();
    println!("cloud, two edges, API server and node are ready after {:?}", begun.elapsed());
    fleet.pod("box", "echo begun; httpd -p 8080 -h /etc; exec cat");
    println!("the pod runs after {:?}", begun.elapsed());

    logs(&fleet);
    exec(&fleet);
    attach(&fleet);
    port_forward(&fleet);
    copy(&fleet);
    equal_addresses(&fleet);
    scrape(&fleet);
    large_log(&mut fleet);
    through_tls(&fleet);
    println!("SKIPPED: kubectl top: needs metrics-server, which Debian does not have");

    let journal = || {
        let files = std::fs::read_dir(fleet.folder.path().join("cloud/audit")).unwrap().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect::<String>()
    };
    for gateway in ["cloud", "edge-a"] {
        let by = format!("\"gateway\":\"{gateway}\"");
        let is_recorded = |line: &str| line.contains("node/node-a:10250") && line.contains(&by);
        // An edge's records come when it gets round to it.
        wait_for("both gateways have recorded it", || journal().lines().any(is_recorded).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {gateway}\n{}", journal()));
    }
}

fn logs(fleet: &Fleet) {
    assert_eq!(fleet.ok(&["logs", "box"]), "begun\n");
    let mut following = Following::start(fleet.kubectl(&["logs", "-f", "box"]));
    following.await_line("begun");
    fleet.ok(&["exec", "box", "--", "sh", "-c", "echo later >/proc/1/fd/1"]);
    following.await_line("later");
}

fn exec(fleet: &Fleet) {
    assert_eq!(fleet.ok(&["exec", "box", "--", "sh", "-c", "echo $((6 * 7))"]), "42\n");
    assert_eq!(fleet.run(&["exec", "box", "--", "sh", "-c", "exit 7"], None).code, 7);
    assert_eq!(
        fleet.run(&["exec", "-i", "box", "--", "wc", "-c"], Some("12345")).success().unwrap().trim(),
        "5"
    );
    // With a terminal at both ends; script(1) has one to lend. Its size comes a moment after the terminal itself; until
    // then stty says nothing, and succeeds.
    let in_terminal =
        "'tty; for i in $(seq 100); do stty size 2>/dev/null | grep . && break; usleep 100000; done'";
    let line = fleet.kubectl(&["exec", "-it", "box", "--", "sh", "-c", in_terminal]);
    let words: Vec<String> = std::iter::once(line.get_program())
        .chain(line.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut script = Command::new("script");
    script.args(["-qec", &format!("stty rows 33 cols 99; {}", words.join(" ")), "/dev/null"]);
    script.env("HOME", fleet.folder.path());
    let seen = finish(script, None).unwrap();
    assert!(seen.stdout.contains("/dev/pts/") && seen.stdout.contains("33 99"), "{seen:?}");
}

fn attach(fleet: &Fleet) {
    let mut command = fleet.kubectl(&["attach", "-i", "box"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    stdin.write_all(b"to the pod and back\n").unwrap();
    assert!(lines.any(|line| line.contains("to the pod and back")));
    // The pod would end with its standard input.
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
}

fn port_forward(fleet: &Fleet) {
    let mut forwarding = Following::start(fleet.kubectl(&["port-forward", "pod/box", ":8080"]));
    let line = forwarding.await_line("Forwarding from 127.0.0.1:");
    let port: u16 = line.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    for _ in 0..3 {
        let answer = fleet.host.inside(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        assert!(answer.unwrap().contains("root:x:0:0"));
    }
}

fn copy(fleet: &Fleet) {
    let (there, back) = (fleet.folder.path().join("there"), fleet.folder.path().join("back"));
    let content: Vec<u8> =
        (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&there, &content).unwrap();
    fleet.ok(&["cp", there.to_str().unwrap(), "box:/tmp/file"]);
    fleet.ok(&["cp", "box:/tmp/file", back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == content);
}

/// The API server asks a node of the same address at the other site, by its name, and checks its certificate.
fn equal_addresses(fleet: &Fleet) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}, "status": {
        "addresses": [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": "node-b"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    fleet.run(&["create", "-f", "-"], Some(&node.to_string())).success().unwrap();
    assert_eq!(fleet.ok(&["get", "--raw", "/api/v1/nodes/node-b/proxy/healthz"]), "node-b is well");
    assert_eq!(fleet.ok(&["get", "--raw", "/api/v1/nodes/node-a/proxy/healthz"]), "ok");
}

/// The API server comes to the door on the network instead, and both show certificates.
fn through_tls(fleet: &Fleet) {
    let down = Command::new(here("lab/kube-apiserver-down")).arg(&fleet.cluster.folder).status().unwrap();
    assert!(down.success());
    let connect = fleet.folder.path().join("cloud/connect");
    let transport = json!({"tcp": {"url": "https://127.0.0.1:7447", "tlsConfig": {"caBundle": connect.join("ca.pem"),
        "clientKey": connect.join("client.pem"), "clientCert": connect.join("client.pem")}}});
    start_api_server(&fleet.host, fleet.folder.path(), transport, (&[], &[]));
    assert!(fleet.ok(&["logs", "box"]).starts_with("begun\n"));
    assert_eq!(fleet.ok(&["exec", "box", "--", "echo", "through TLS"]), "through TLS\n");
    assert_eq!(fleet.ok(&["get", "--raw", "/api/v1/nodes/node-b/proxy/healthz"]), "node-b is well");
}

/// The state that a node reports in plain HTTP, at the other site.
fn start_exporter(host: &Host, folder: &Path) -> Child {
    let home = folder.join("exporter");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("metrics"), "spoken_in_plain_http 1\n").unwrap();
    let mut server = host.command("python3");
    server.args(["-m", "http.server", "--bind", NODE_IP, "9100"]).current_dir(&home);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Prometheus asks in three ways: the kubelet through the door on the network, where both check each other's certificates; a node
/// in plain HTTP through the same door; and the kubelet by its name, which the cloud's DNS answers, at the cloud's entry.
fn scrape(fleet: &Fleet) {
    let Ok(Ok(program)) = finish(Command::new(here("lab/install-prometheus")), None).map(Ran::success) else {
        return println!("SKIPPED: Prometheus through proxy_url: Debian's package cannot be fetched");
    };
    let (folder, connect) = (fleet.folder.path(), fleet.folder.path().join("cloud/connect"));
    // It has one setting for the proxy and for the target.
    let authorities = [connect.join("ca.pem"), fleet.cluster.folder.join("pki/ca.crt")];
    let both: String = authorities.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    std::fs::write(folder.join("both.pem"), both).unwrap();
    let tokens = std::fs::read_to_string(fleet.cluster.folder.join("pki/tokens.csv")).unwrap();
    let client = connect.join("client.pem").display().to_string();
    let certificates = json!({"ca_file": folder.join("both.pem"), "cert_file": client, "key_file": client});
    let authorization = json!({"credentials": tokens.split(',').next().unwrap()});
    let config = json!({"global": {"scrape_interval": "1s"}, "scrape_configs": [
        {"job_name": "door", "scheme": "https", "proxy_url": "https://127.0.0.1:7447", "tls_config": certificates,
            "authorization": authorization, "static_configs": [{"targets": ["node-a:10250"]}]},
        {"job_name": "plain", "scheme": "http", "proxy_url": "https://127.0.0.1:7447", "tls_config": certificates,
            "static_configs": [{"targets": ["node-b:9100"]}]},
        {"job_name": "name", "scheme": "https", "tls_config": {"ca_file": authorities[1]},
            "authorization": authorization, "static_configs": [{"targets": ["node-a:10250"]}]}]});
    std::fs::write(folder.join("prometheus.yml"), config.to_string()).unwrap();
    let mut exporter = start_exporter(&fleet.edges[1].unit.host, folder);
    // Its resolver is the cloud.
    let resolver = folder.join("resolv.conf");
    std::fs::write(&resolver, "nameserver 127.0.0.1\n").unwrap();
    let mut command = fleet.host.command("unshare");
    let script = r#"mount --bind "$1" /etc/resolv.conf && shift && exec "$@""#;
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(resolver).arg(program.trim());
    command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()));
    command.arg("--web.listen-address=127.0.0.1:9090").stdin(Stdio::null()).stdout(Stdio::null());
    let log = std::fs::File::create(folder.join("prometheus.log")).unwrap();
    let mut prometheus = command.stderr(log).spawn().unwrap();
    let ask = |path: &str| {
        let answer = fleet.host.inside(|| testlab::causeway::get(([127, 0, 0, 1], 9090).into(), path));
        answer.map(|(_, body)| body).unwrap_or_default()
    };
    let up = wait_for("Prometheus has scraped in three ways", || {
        let all = ask("/api/v1/query?query=sum(up)").contains("\"3\"]");
        (all && ask("/api/v1/query?query=spoken_in_plain_http").contains("node-b:9100")).then_some(())
    });
    let targets = ask("/api/v1/targets");
    for child in [&mut prometheus, &mut exporter] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    up.unwrap_or_else(|error| panic!("{error}\n{targets}"));
}

/// A large log streams; no process on the path buffers it whole.
fn large_log(fleet: &mut Fleet) {
    let soak = std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1");
    let lines: u64 = if soak { 200_000 } else { 40_000 };
    fleet.pod("big", &format!("yes $(printf '%01023d' 0) | head -n {lines}; exec cat"));
    let before = fleet.memory_peaks();
    let begun = Instant::now();
    let mut command = fleet.kubectl(&["logs", "-f", "big"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut log = child.stdout.take().unwrap().take(lines * 1024);
    let bytes = std::io::copy(&mut log, &mut std::io::sink()).unwrap();
    assert_eq!(bytes, lines * 1024);
    let took = begun.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    let after = fleet.memory_peaks();
    println!(
        "{} MB of log in {took:?}; peaks in KiB, cloud and edge: {before:?} before, {after:?} after",
        bytes >> 20
    );
    for (before, after) in before.into_iter().zip(after) {
        // Windows of a stream or two, and what an allocator keeps; far below the log.
        assert!(after - before < 12 << 10, "{before} KiB before, {after} KiB after");
    }
}
