//! The Kubernetes API at the edge against a real kube-apiserver: the same answers online, while the link is cut, and after a
//! restart without the cloud.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use testlab::causeway::{Cloud, Process, Ran, daemon, finish, get, wait_for};
use testlab::free_port::free_port;
use testlab::relay::Relay;

use crate::here;
use crate::kubectl::{self, Kubectl};

/// Returns the reason why this cannot run here.
pub fn missing() -> Option<String> {
    let built = std::fs::read_dir(kubectl::cache()?)
        .ok()?
        .flatten()
        .any(|folder| folder.path().join("bin/kube-apiserver").exists());
    (!built).then(|| {
        "needs kube-apiserver: `tests/k8s/lab/build-kubernetes kube-apiserver` builds it once".to_owned()
    })
}

/// The API server of the lab; stopped with the test.
pub struct Cluster(pub PathBuf);

impl Cluster {
    /// `more` are further flags of kube-apiserver.
    pub fn start(folder: &Path, more: &[&str]) -> Cluster {
        let cluster = Cluster(folder.join("cluster"));
        let mut up = Command::new(here("lab/kube-apiserver-up"));
        up.arg(&cluster.0).args(more);
        finish(up, None).unwrap().success().unwrap();
        cluster
    }

    /// A client of kube-rs, as the admin.
    pub async fn client(&self) -> kube::Client {
        client_of(&std::fs::read_to_string(self.kubeconfig()).unwrap()).await
    }

    /// Removes the history of etcd up to a revision.
    pub fn compact(&self, revision: u64) {
        let etcd = finish(Command::new(here("lab/install-etcd")), None).unwrap().success().unwrap();
        let log = std::fs::read_to_string(self.0.join("etcd.log")).unwrap();
        let line = log.lines().find(|line| line.contains("serving client traffic")).unwrap();
        let address = line.split("\"address\":\"").nth(1).unwrap().split('"').next().unwrap();
        let mut compact = Command::new(Path::new(etcd.trim()).with_file_name("etcdctl"));
        compact.env("ETCDCTL_API", "3").args(["--endpoints", address, "compact", &revision.to_string()]);
        finish(compact, None).unwrap().success().unwrap();
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    pub fn token(&self) -> String {
        let tokens = std::fs::read_to_string(self.0.join("pki/tokens.csv")).unwrap();
        tokens.split(',').next().unwrap().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new(here("lab/kube-apiserver-down")).arg(&self.0).status();
    }
}

/// A cluster, a cloud, a link that can be cut, and an edge.
pub struct EdgeLab {
    pub edge: Process,
    pub cloud: Cloud,
    pub relay: Relay,
    pub cluster: Cluster,
    listen: SocketAddr,
    /// Variables of the edge.
    settings: &'static [(&'static str, &'static str)],
    program: PathBuf,
    pub folder: tempfile::TempDir,
}

/// A client of kube-rs for the text of a kubeconfig.
pub async fn client_of(kubeconfig: &str) -> kube::Client {
    // Another test in this process may have been first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let file = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

impl EdgeLab {
    pub fn start() -> EdgeLab {
        EdgeLab::start_with(&[])
    }

    /// `settings` are variables of the edge.
    pub fn start_with(settings: &'static [(&'static str, &'static str)]) -> EdgeLab {
        EdgeLab::start_in(tempfile::tempdir().unwrap(), settings, &[], PINNED)
    }

    /// The operator names nothing in `ESite.cache`.
    pub fn start_unpinned() -> EdgeLab {
        EdgeLab::start_in(tempfile::tempdir().unwrap(), &[], &[], "")
    }

    /// The API server writes `cluster/audit.log`.
    pub fn start_audited() -> EdgeLab {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("audit.json");
        let rules =
            json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
        std::fs::write(&policy, rules.to_string()).unwrap();
        let policy = format!("--audit-policy-file={}", policy.display());
        EdgeLab::start_in(folder, &[], &[&policy, "--audit-log-path=audit.log"], PINNED_EVERYWHERE)
    }

    fn start_in(
        folder: tempfile::TempDir,
        settings: &'static [(&'static str, &'static str)],
        flags: &[&str],
        cache: &str,
    ) -> EdgeLab {
        let cluster = Cluster::start(folder.path(), flags);
        let channel = free_port();
        let relay = Relay::start("127.0.0.1:0".parse().unwrap(), channel, 7).unwrap();
        let cloud = start_cloud(folder.path(), channel, &relay, &cluster);
        if !cache.is_empty() {
            let site = format!(
                "{{kind: ESite, apiVersion: causeway.io/v1, metadata: {{name: Tokyo}}, cache: [{cache}]}}\n"
            );
            cloud.apply(&site).unwrap().success().unwrap();
        }
        let listen = free_port();
        let edge = start_edge(folder.path(), listen, Some(&cloud), settings);
        let program = kubectl::programs().remove(0);
        let lab = EdgeLab { edge, cloud, relay, cluster, listen, settings, program, folder };
        lab.await_api();
        lab
    }

    pub fn restart_edge(&mut self) {
        self.edge.kill().unwrap();
        self.start_edge_again();
    }

    /// Starts the edge that was killed.
    pub fn start_edge_again(&mut self) {
        self.edge = start_edge(self.folder.path(), self.listen, None, self.settings);
        self.await_api();
    }

    /// Starts the cloud that was killed, on the same ports.
    pub fn start_cloud_again(&mut self) {
        self.cloud = start_cloud(self.folder.path(), self.cloud.channel, &self.relay, &self.cluster);
    }

    fn await_api(&self) {
        // The port is bound first, then the kubeconfig is written.
        let kubeconfig = self.folder.path().join("edge/kubernetes/kubeconfig");
        let is_written = || std::fs::read_to_string(&kubeconfig).is_ok_and(|text| text.contains("user: {}"));
        let is_up = || std::net::TcpStream::connect(self.listen).ok().filter(|_| is_written());
        wait_for("the edge serves its API", is_up)
            .unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.edge.log(), self.cloud.process.log()));
    }

    /// kubectl at the API server itself.
    pub fn direct(&self) -> Kubectl {
        Kubectl::new(&self.program, &self.cluster.kubeconfig(), self.folder.path().join("home-direct"))
    }

    /// kubectl at the edge, with a token.
    pub fn through_edge(&self, token: &str) -> Kubectl {
        self.kubectl_as("token", &self.edge_kubeconfig(token))
    }

    /// The edge's kubeconfig, with a token.
    pub fn edge_kubeconfig(&self, token: &str) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("edge/kubernetes/kubeconfig")).unwrap();
        text.replace("user: {}", &format!("user: {{token: \"{token}\"}}"))
    }

    /// kubectl at the edge, with a client certificate that the cluster's CA signs.
    pub fn as_certified(&self, common_name: &str, organization: &str) -> Kubectl {
        let pki = self.cluster.0.join("pki");
        let base = self.folder.path().join(common_name.replace(':', "-"));
        let script = format!(
            "set -e; openssl ecparam -name prime256v1 -genkey -noout -out {base}.key; \
             openssl req -new -key {base}.key -subj '/O={organization}/CN={common_name}' | openssl x509 -req -CA {pki}/ca.crt \
             -CAkey {pki}/ca.key -set_serial 77 -days 2 -out {base}.crt -extfile <(echo extendedKeyUsage=clientAuth)",
            base = base.display(),
            pki = pki.display()
        );
        let mut make = Command::new("bash");
        make.args(["-c", &script]);
        finish(make, None).unwrap().success().unwrap();
        let text = std::fs::read_to_string(self.folder.path().join("edge/kubernetes/kubeconfig")).unwrap();
        let user = format!("user: {{client-certificate: {0}.crt, client-key: {0}.key}}", base.display());
        self.kubectl_as(common_name, &text.replace("user: {}", &user))
    }

    /// The address of the API at the edge.
    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    fn kubectl_as(&self, name: &str, kubeconfig: &str) -> Kubectl {
        let mut number = 0;
        let path = loop {
            let path = self.folder.path().join(format!("{}-{number}.kubeconfig", name.replace(':', "-")));
            if !path.exists() {
                break path;
            }
            number += 1;
        };
        std::fs::write(&path, kubeconfig).unwrap();
        Kubectl::new(&self.program, &path, self.folder.path().join("home-edge"))
    }

    /// The API at the edge in the edge's dump.
    pub fn dump(&self) -> Option<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("edge/run/edge.json")).ok()?;
        let admin: Value = serde_json::from_str(&text).ok()?;
        let (_, body) = get(admin["admin"].as_str()?.parse().ok()?, "/debug").ok()?;
        let mut dump: Value = serde_json::from_str(&body).ok()?;
        Some(dump["kubernetes"].take())
    }

    /// The entry of a scope in the edge's dump.
    pub fn resource(&self, plural: &str) -> Option<Value> {
        let all = self.dump()?["resources"].as_array()?.clone();
        all.into_iter().find(|entry| entry["scope"]["resource"]["plural"] == plural)
    }

    pub fn await_live(&self, plural: &str) {
        let is_live = || self.resource(plural).filter(|entry| entry["live"] == true).map(drop);
        wait_for(&format!("{plural} are in the copy and current"), is_live)
            .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", self.resource(plural), self.edge.log()));
    }

    pub fn config_map(&self, name: &str, value: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"tier": "edge"}}, "data": {"value": value}});
        self.direct().ok_with(&object.to_string(), "apply -f -");
    }
}

fn start_cloud(folder: &Path, channel: SocketAddr, relay: &Relay, cluster: &Cluster) -> Cloud {
    let (channel, advertise) = (channel.to_string(), relay.address().to_string());
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let flags = ["--channel", &channel, "--advertise", &advertise, "--kubernetes", &kubeconfig];
    Cloud::start_with(&folder.join("cloud"), &flags).unwrap()
}

fn start_edge(folder: &Path, listen: SocketAddr, join: Option<&Cloud>, settings: &[(&str, &str)]) -> Process {
    let data_dir = folder.join("edge");
    let data_dir = data_dir.to_str().unwrap();
    let token = join.map(|cloud| {
        let made = cloud.run(&["token", "create", "--site", "Tokyo", "--gateway", "tokyo-1"]);
        made.and_then(Ran::success).unwrap().trim().to_owned()
    });
    let mut arguments = vec!["edge", "--data-dir", data_dir, "--admin", "127.0.0.1:0"];
    if let Some(token) = &token {
        arguments.extend(["--join", token]);
    }
    let mut command = daemon(&arguments).unwrap();
    command.env("CAUSEWAY_KUBERNETES_LISTEN", listen.to_string()).envs(settings.iter().copied());
    command.env("CAUSEWAY_DNS", "off").env("CAUSEWAY_PRESENCE", "off");
    command.env("CAUSEWAY_LOG", "info,causeway_apicache=debug");
    Process::spawn(command, folder.join("edge.log")).unwrap()
}

/// A watch through kubectl, read by a thread.
pub struct Watching {
    child: Child,
    events: mpsc::Receiver<Value>,
}

impl Watching {
    pub fn start(kubectl: &Kubectl, path: &str) -> Watching {
        let mut command = kubectl.command(&format!("get --raw '{path}'"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str(&line)
                    && sender.send(event).is_err()
                {
                    return;
                }
            }
        });
        Watching { child, events }
    }

    /// Type, name and revision of the events up to the one about `name` of this type.
    pub fn until(&self, event_type: &str, name: &str) -> Vec<(String, String, String)> {
        let mut seen = Vec::new();
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| {
                panic!("no {event_type} of {name}: {error}; before it came {seen:?}")
            });
            let metadata = &event["object"]["metadata"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let found = (text(&event["type"]), text(&metadata["name"]), text(&metadata["resourceVersion"]));
            let is_last = found.0 == event_type && found.1 == name;
            if found.0 != "BOOKMARK" {
                seen.push(found);
            }
            if is_last {
                return seen;
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tests list the ConfigMaps and Secrets of a namespace, which a site holds only when the operator names them.
pub const PINNED: &str =
    "{resource: v1/configmaps, namespace: default}, {resource: v1/secrets, namespace: default}";
/// The same in all namespaces.
pub const PINNED_EVERYWHERE: &str = "{resource: v1/configmaps}, {resource: v1/secrets}";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn an_edge_answers_as_the_api_server_also_without_the_cloud() {
    if let Some(reason) = missing() {
        println!("SKIPPED: the Kubernetes API at the edge: {reason}");
        return;
    }
    let mut lab = EdgeLab::start();
    let (direct, edge) = (lab.direct(), lab.through_edge(&lab.cluster.token()));
    for number in 0..7 {
        lab.config_map(&format!("map-{number}"), "first");
    }
    lab.config_map("other", "first");

    // The first request passes through and begins a subscription.
    edge.ok("get configmaps");
    lab.await_live("configmaps");
    let version = |kubectl: &Kubectl| {
        let list: Value = serde_json::from_str(&kubectl.ok(&format!("get --raw {MAPS}"))).unwrap();
        list
    };
    // The copy has reached the newest write.
    wait_for("the copy is as new as the cluster", || {
        (version(&edge)["items"] == version(&direct)["items"]).then_some(())
    })
    .unwrap();
    same_answers(&direct, &edge);

    // Watches from the same revision see the same events, before, during and after a cut.
    let at = version(&edge)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={at}");
    let (theirs, ours) = (Watching::start(&direct, &path), Watching::start(&edge, &path));
    lab.config_map("map-1", "second");
    assert_eq!(ours.until("MODIFIED", "map-1"), theirs.until("MODIFIED", "map-1"));

    lab.relay.cut();
    wait_for("the edge knows that the link is cut", || {
        lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
    })
    .unwrap();
    assert_eq!(edge.ok("get configmap map-1 -o 'jsonpath={.data.value}'"), "second");
    let refused = edge.run("create configmap new --validate=false --from-literal=a=b");
    assert!(refused.code != 0 && refused.stderr.contains("cannot be reached from this site"), "{refused:?}");
    lab.config_map("map-2", "during");
    lab.config_map("map-8", "during");
    direct.ok("delete configmap map-3");
    lab.config_map("map-8", "again");
    lab.config_map("last", "during");
    lab.relay.restore();
    assert_eq!(ours.until("ADDED", "last"), theirs.until("ADDED", "last"), "no event is lost or doubled");

    // A restart without the cloud.
    lab.relay.cut();
    lab.restart_edge();
    let edge = lab.through_edge(&lab.cluster.token());
    let names = edge.ok("get configmaps -o name");
    assert_eq!(names, direct.ok("get configmaps -o name"));
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let listed = Watching::start(&edge, &path).until("ADDED", "other");
    assert_eq!(listed.len(), names.lines().count(), "{listed:?}");
    lab.config_map("map-9", "while away");
    lab.relay.restore();
    wait_for("the edge is current again", || edge.run("get configmap map-9").success().ok()).unwrap();
    edge.ok("create configmap written --validate=false --from-literal=a=b");
    assert_eq!(direct.ok("get configmap written -o 'jsonpath={.data.a}'"), "b");
}

/// Lines that print the same at both.
fn same_answers(direct: &Kubectl, edge: &Kubectl) {
    for line in [
        "get configmaps -o name",
        "get configmaps -o json",
        "get configmaps -o 'custom-columns=NAME:.metadata.name,DATA:.data'",
        "get configmaps -l tier=edge -o name",
        "get configmaps -l tier!=edge -o name",
        "get configmaps --field-selector metadata.name=map-3 -o yaml",
        "get configmaps --chunk-size=3 -o name",
        "get configmap map-1 -o json",
        "get --raw '/api/v1/namespaces/default/configmaps/map-1'",
    ] {
        assert_eq!(edge.ok(line), direct.ok(line), "{line}");
    }
    // Ages may differ by a second; the other columns may not.
    let columns = |kubectl: &Kubectl| {
        let text = kubectl.ok("get configmaps");
        let line = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        text.lines().map(line).collect::<Vec<_>>()
    };
    assert_eq!(columns(edge), columns(direct));
    for line in [
        "get configmap nothing",
        "get --raw '/api/v1/namespaces/default/configmaps?fieldSelector=spec.x%3D1'",
    ] {
        let (ours, theirs) = (edge.run(line), direct.run(line));
        assert!(ours.code == theirs.code && ours.code != 0, "{line}: {ours:?} {theirs:?}");
    }
    let unknown = edge.fails("get --raw '/api/v1/namespaces/default/configmaps?shardSelector=x'");
    assert!(unknown.contains("shardSelector"), "{unknown}");
}
