//! An edge enrols as the gateway of its node with a service-account token that a real kube-apiserver issued for a pod and reviews.

use std::path::Path;

use serde_json::{Value, json};
use testlab::causeway::{Cloud, Process, daemon, finish, wait_for};

use crate::edge_api::{Cluster, missing};
use crate::kubectl::{self, Kubectl};

const NAMESPACE: &str = "causeway-system";
const AUDIENCE: &str = "causeway.io/join";

struct NodeLab {
    cloud: Cloud,
    direct: Kubectl,
    ca: String,
    _cluster: Cluster,
    folder: tempfile::TempDir,
}

impl NodeLab {
    fn start() -> NodeLab {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(folder.path(), &[]);
        let config = folder.path().join("cloud.toml");
        let text = format!(
            "[cloud]\nkubernetes = {:?}\njoin-service-accounts = [\"{NAMESPACE}/causeway-edge\"]\n",
            cluster.kubeconfig()
        );
        std::fs::write(&config, text).unwrap();
        let cloud =
            Cloud::start_with(&folder.path().join("cloud"), &["--config", config.to_str().unwrap()]).unwrap();
        let program = kubectl::programs().remove(0);
        let direct = Kubectl::new(&program, &cluster.kubeconfig(), folder.path().join("home-direct"));
        let of_cloud = Kubectl::new(&program, &cloud.kubeconfig(), folder.path().join("home-cloud"));
        let view: Value = serde_json::from_str(&of_cloud.ok("get --raw /causeway/v1/ca")).unwrap();
        let ca = view["authorities"][0]["id"].as_str().unwrap().to_owned();
        NodeLab { cloud, direct, ca, _cluster: cluster, folder }
    }

    fn pod(&self, name: &str, account: &str, node: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "edge", "image": "none"}]},
        });
        self.direct.ok_with(&pod.to_string(), "create -f -");
    }

    /// A token of an account for an audience, bound to a pod or to nothing; into a file.
    fn token(&self, account: &str, audience: &str, pod: Option<&str>) {
        let mut spec = json!({"audiences": [audience], "expirationSeconds": 600});
        if let Some(pod) = pod {
            spec["boundObjectRef"] = json!({"kind": "Pod", "apiVersion": "v1", "name": pod});
        }
        let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec});
        let file = self.folder.path().join("request.json");
        std::fs::write(&file, request.to_string()).unwrap();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token");
        let answer = self.direct.ok(&format!("create --raw {path} -f {}", file.display()));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        std::fs::write(self.token_file(), answer["status"]["token"].as_str().unwrap()).unwrap();
    }

    fn token_file(&self) -> std::path::PathBuf {
        self.folder.path().join("token")
    }

    fn edge_config(&self, name: &str) -> std::path::PathBuf {
        let (account, channel, ca) = (self.token_file(), &self.cloud.channel, &self.ca);
        let join = format!(
            "join-service-account = {account:?}\njoin-endpoints = [\"{channel}\"]\njoin-ca = [\"{ca}\"]\n"
        );
        self.config(name, &join)
    }

    fn config(&self, name: &str, join: &str) -> std::path::PathBuf {
        let config = self.folder.path().join(format!("{name}.toml"));
        let text = format!(
            "data-dir = {:?}\n[edge]\nadmin = \"127.0.0.1:0\"\n{join}\
             [gateway]\ndns = [\"off\"]\npresence = \"off\"\n[tunnel]\noff = true\n[kubernetes]\nlisten = \"127.0.0.1:0\"\n",
            self.folder.path().join(name),
        );
        std::fs::write(&config, text).unwrap();
        config
    }

    fn edge(&self, name: &str) -> Process {
        let config = self.edge_config(name);
        let command = daemon(&["edge", "--config", config.to_str().unwrap()]).unwrap();
        Process::spawn(command, self.folder.path().join(format!("{name}.log"))).unwrap()
    }

    /// An edge that was enrolled, without a way to enrol again.
    fn returning(&self, name: &str) -> Process {
        let config = self.config(name, "");
        let command = daemon(&["edge", "--config", config.to_str().unwrap()]).unwrap();
        Process::spawn(command, self.folder.path().join(format!("{name}-returning.log"))).unwrap()
    }

    /// An edge that the cloud refuses ends with the reason.
    fn refused(&self, name: &str, part: &str) {
        let config = self.edge_config(name);
        let ran = finish(daemon(&["edge", "--config", config.to_str().unwrap()]).unwrap(), None).unwrap();
        assert!(ran.code != 0 && ran.stderr.contains(part), "{part}: {ran:?}\n{}", self.cloud.process.log());
    }

    /// Tells whether a gateway has a session now.
    fn is_connected(&self, gateway: &str) -> bool {
        let status = self.cloud.run(&["status", "--json"]).unwrap().json().unwrap();
        let mut gateways = status["gateways"].as_array().into_iter().flatten();
        gateways.any(|found| found["name"] == gateway && found["connected"] == true)
    }

    fn await_connected(&self, gateway: &str, edge: &Process) {
        self.cloud
            .wait_condition("egateway", gateway, "Connected", "True")
            .unwrap_or_else(|error| panic!("{error}\n{}\n{}", edge.log(), self.cloud.process.log()));
    }
}

#[test]
fn an_edge_enrols_as_its_node_with_the_token_of_its_pod() {
    if let Some(reason) = missing() {
        println!("SKIPPED: enrolment of nodes: {reason}");
        return;
    }
    let lab = NodeLab::start();
    lab.direct.ok(&format!("create namespace {NAMESPACE}"));
    for account in ["causeway-edge", "other"] {
        lab.direct.ok(&format!("create serviceaccount {account} -n {NAMESPACE}"));
    }
    lab.pod("edge-1", "causeway-edge", "node-a");
    lab.pod("other-1", "other", "node-a");
    lab.pod("edge-2", "causeway-edge", "node-b");

    lab.token("causeway-edge", "https://kubernetes.default.svc", Some("edge-1"));
    lab.refused("edge-refused", "another audience");
    lab.token("other", AUDIENCE, Some("other-1"));
    lab.refused("edge-refused", "no service account that may enrol");
    lab.token("causeway-edge", AUDIENCE, None);
    lab.refused("edge-refused", "bound to no pod");
    lab.token("causeway-edge", AUDIENCE, Some("edge-1"));
    lab.refused("edge-refused", "there is no EServer node-a");

    let servers = "---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-a}, ip: 10.0.0.2, eSiteName: Tokyo}\n";
    lab.cloud.apply(servers).unwrap();
    let mut edge = lab.edge("edge");
    lab.await_connected("node-a", &edge);
    assert_eq!(lab.cloud.object("egateway", "node-a").unwrap()["eSiteName"], "Tokyo");
    let line = "node node-a, pod causeway-system/edge-1, service account causeway-system/causeway-edge";
    wait_for("the audit log names the node, the pod and the service account", || {
        audit(lab.folder.path()).contains(line).then_some(())
    })
    .unwrap();

    // A pod on another node does not reach this gateway, and a pod that is gone reaches none.
    lab.token("causeway-edge", AUDIENCE, Some("edge-2"));
    lab.refused("edge-refused", "there is no EServer node-b");
    let mut other = second_node_is_a_gateway_of_its_own(&lab, &edge);
    lab.token("causeway-edge", AUDIENCE, Some("edge-1"));
    edge.kill().unwrap();
    // The node lost its data dir: its pod replaces the key.
    let mut again = lab.edge("edge-again");
    wait_for("the edge enrols again", || again.log().contains("enrolled as the gateway").then_some(()))
        .unwrap();
    lab.await_connected("node-a", &again);
    again.kill().unwrap();

    replaced_by_another_pod(&lab);
    revoked_until_its_gateway_is_made_anew(&lab);
    assert!(lab.is_connected("node-b"), "another node was revoked and replaced: {}", other.log());

    lab.direct.ok(&format!("delete pod edge-1 -n {NAMESPACE} --grace-period=0 --force"));
    lab.refused("edge-refused", "is gone");

    let token = std::fs::read_to_string(lab.token_file()).unwrap();
    other.kill().unwrap();
    let logs = [edge.log(), again.log(), other.log(), lab.cloud.process.log(), audit(lab.folder.path())];
    assert!(logs.iter().all(|log| !log.contains(&token)), "no log holds a token");
}

/// The pod of another node of the DaemonSet: both nodes are connected at the same time, each as itself and at its own site.
fn second_node_is_a_gateway_of_its_own(lab: &NodeLab, first: &Process) -> Process {
    let server = "{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-b}, ip: 10.0.0.3, eSiteName: Osaka}";
    lab.cloud.apply(server).unwrap().success().unwrap();
    let second = lab.edge("edge-node-b");
    lab.await_connected("node-b", &second);
    assert!(lab.is_connected("node-a"), "{}", first.log());
    let site = |gateway: &str| lab.cloud.object("egateway", gateway).unwrap()["eSiteName"].clone();
    assert_eq!((site("node-a"), site("node-b")), ("Tokyo".into(), "Osaka".into()));
    let line = "node node-b, pod causeway-system/edge-2, service account causeway-system/causeway-edge";
    wait_for("the audit log names the second node and its pod", || {
        audit(lab.folder.path()).contains(line).then_some(())
    })
    .unwrap();
    second
}

/// A second pod of the node takes the gateway over; the data dir of the pod before it is worth nothing any more.
fn replaced_by_another_pod(lab: &NodeLab) {
    lab.pod("edge-1b", "causeway-edge", "node-a");
    lab.token("causeway-edge", AUDIENCE, Some("edge-1b"));
    let mut second = lab.edge("edge-second");
    wait_for("the second pod enrols", || second.log().contains("enrolled as the gateway").then_some(()))
        .unwrap();
    lab.await_connected("node-a", &second);
    let mut before = lab.returning("edge-again");
    let is_refused = || before.log().contains("this key was replaced").then_some(());
    wait_for("the key before it is refused", is_refused)
        .unwrap_or_else(|error| panic!("{error}\n{}", before.log()));
    before.kill().unwrap();
    second.kill().unwrap();
}

/// The token of a running pod does not bring a revoked gateway back; a new EGateway does.
fn revoked_until_its_gateway_is_made_anew(lab: &NodeLab) {
    lab.cloud.run(&["revoke", "node-a"]).unwrap().success().unwrap();
    lab.refused("edge-refused", "was revoked");
    lab.cloud.run(&["delete", "egateway", "node-a", "--force"]).unwrap().success().unwrap();
    lab.refused("edge-refused", "was revoked");
    let gateway = "{kind: EGateway, apiVersion: causeway.io/v1, metadata: {name: node-a}, eSiteName: Tokyo}";
    lab.cloud.apply(gateway).unwrap().success().unwrap();
    let mut anew = lab.edge("edge-anew");
    lab.await_connected("node-a", &anew);
    anew.kill().unwrap();
    lab.token("causeway-edge", AUDIENCE, Some("edge-1"));
}

/// The text of all audit files of the cloud.
fn audit(folder: &Path) -> String {
    let files = std::fs::read_dir(folder.join("cloud/audit")).unwrap().flatten();
    files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
}
