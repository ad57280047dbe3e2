//! A real kubelet at a site with nothing but the edge's kubeconfig and its node certificate: pods run, logs and exec pass through the edge,
//! and the node goes on without the cloud, restarts of kubelet and edge included. Cloud and site are in different network namespaces.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use testlab::causeway::{Ran, finish, wait_for};
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Cut, Host, Net, Plan};

use crate::here;
use crate::kubectl;
use crate::nodes::{Following, Lab, NODE_IP, missing, start_cluster};

const API: &str = "127.0.0.1:6444";
const ADMIN: &str = "127.0.0.1:7445";
/// The address for pods. A test that uses it adds it to the host.
pub const POD_LISTEN: &str = "169.254.20.11:6444";
pub const SERVICE_IP: &str = "10.96.0.50";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1beta1/namespaces/default/endpointslices";

fn objects(public: &str) -> String {
    format!(
        "---\n{{kind: EPolicy, apiVersion: causeway.io/v1, metadata: {{name: control-plane}}, allowedSites: [cloud]}}\n\
         ---\n{{kind: EGateway, apiVersion: causeway.io/v1, metadata: {{name: cloud}}, eSiteName: cloud, ip: {public}}}\n\
         ---\n{{kind: EServer, apiVersion: causeway.io/v1, metadata: {{name: node-a}}, ip: {NODE_IP}, eSiteName: edge-a, \
         ports: [10250], ePolicys: [control-plane]}}\n"
    )
}

fn plan() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud")
        .link("cloud", "internet", &["203.0.113.0/24"])
        .nat("nat-a")
        .link("nat-a", "internet", &["198.51.100.0/24"])
        .host("edge-a")
        .link("edge-a", "nat-a", &["10.0.0.0/24"])
}

/// A kubeconfig of the cloud with the rights of `deploy/kubernetes-access.yaml` only.
fn limited_kubeconfig(above: &Host, cluster: &Path, folder: &Path) -> String {
    let admin = cluster.join("kubeconfig");
    let run = |arguments: &[&str], input: Option<&str>| {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&admin).args(arguments).env("HOME", folder);
        finish(above.wrap(&command), input).unwrap()
    };
    let rights = std::fs::read_to_string(here("../../deploy/kubernetes-access.yaml")).unwrap();
    let rights = rights.replace("NODE-1", "node-a");
    wait_for("the namespace of the rights is there", || {
        run(&["apply", "-f", "-"], Some(&rights)).success().ok()
    })
    .unwrap();
    let account = "--serviceaccount=kube-system:causeway";
    let bind = ["--namespace=kube-system", account];
    for line in [
        &["create", "serviceaccount", "causeway", "--namespace=kube-system"][..],
        &["create", "clusterrolebinding", "causeway-cloud", "--clusterrole=causeway-cloud", account],
        &[&["create", "rolebinding", "causeway-cloud", "--role=causeway-cloud"][..], &bind].concat(),
    ] {
        run(line, None).success().unwrap();
    }
    let request = folder.join("cloud-token-request.json");
    let body = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    std::fs::write(&request, body.to_string()).unwrap();
    let path = "/api/v1/namespaces/kube-system/serviceaccounts/causeway/token";
    let made = run(&["create", "--raw", path, "-f", request.to_str().unwrap()], None).json().unwrap();
    let token = made["status"]["token"].as_str().unwrap();
    let tokens = std::fs::read_to_string(cluster.join("pki/tokens.csv")).unwrap();
    let of_admin = tokens.split(',').next().unwrap();
    let text = std::fs::read_to_string(&admin).unwrap();
    assert!(text.contains(of_admin));
    let path = folder.join("cloud.kubeconfig");
    std::fs::write(&path, text.replace(of_admin, token)).unwrap();
    path.display().to_string()
}

/// A program of Kubernetes, when the lab has built it.
pub fn built_program(name: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir(kubectl::cache()?).ok()?.flatten();
    folders.map(|folder| folder.path().join("bin").join(name)).find(|program| program.exists())
}

/// A kube-proxy in the namespace of the site; ended with the test.
pub struct KubeProxy(Child);

impl KubeProxy {
    pub fn program() -> Option<PathBuf> {
        built_program("kube-proxy")
    }

    /// `None` when this machine has no kube-proxy.
    pub fn start(lab: &EdgeNode, kubeconfig: &Path) -> Option<KubeProxy> {
        let program = KubeProxy::program()?;
        let installed = finish(Command::new(here("lab/install-iptables")), None).unwrap().success().unwrap();
        let tables = installed.trim().lines().last().unwrap().to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command.env("PATH", format!("{tables}:{path}"));
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.args(["--hostname-override=node-a", "--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16"]);
        // The namespace has no limits of its own to set.
        command.args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"]);
        command.args(["--conntrack-tcp-timeout-close-wait=0s", "--iptables-min-sync-period=100ms"]);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(lab.proxy_log()).unwrap();
        let mut command = lab.site.wrap(&command);
        Some(KubeProxy(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()))
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// In the order in which they end.
pub struct EdgeNode {
    node: Lab,
    pub edge: EdgeHost,
    cluster: Lab,
    pub cloud: CloudHost,
    /// The namespaces of the cloud and of the site.
    above: Host,
    pub site: Host,
    folder: tempfile::TempDir,
    pub net: Net,
}

impl EdgeNode {
    pub fn start() -> EdgeNode {
        EdgeNode::start_with(|above, folder| (start_cluster(above, folder), ())).0
    }

    /// `start` starts the API server, and what else belongs to the cluster, in the namespace of the cloud.
    pub fn start_with<T>(start: impl FnOnce(&Host, &Path) -> (Lab, T)) -> (EdgeNode, T) {
        let net = Net::build(&plan()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (above, site) = (net.host("cloud").unwrap(), net.host("edge-a").unwrap());
        let public = net.ipv4("cloud").unwrap();
        let (cluster, more) = start(&above, folder.path());
        let kubeconfig = limited_kubeconfig(&above, &cluster.folder, folder.path());
        let flags = ["--kubernetes", &kubeconfig];
        let cloud =
            CloudHost::start(&above, folder.path(), &[SocketAddr::from((public, CHANNEL_PORT))], &flags)
                .unwrap();
        let environment = [
            ("CAUSEWAY_LOG", "info,causeway_apicache=debug"),
            ("CAUSEWAY_DNS", "off"),
            ("CAUSEWAY_KUBERNETES_POD_LISTEN", POD_LISTEN),
        ];
        let token = cloud.token("edge-a").unwrap();
        let edge = EdgeHost::join_with(&site, folder.path(), "edge-a", &token, &environment).unwrap();
        cloud.apply(&objects(&public.to_string())).unwrap();
        let node = Lab { folder: folder.path().join("node"), down: "kubelet-down" };
        let mut lab = EdgeNode { node, edge, cluster, cloud, above, site, folder, net };
        lab.await_api();
        lab.start_node();
        (lab, more)
    }

    pub fn await_api(&self) {
        let address = API.parse().unwrap();
        let within = std::time::Duration::from_secs(1);
        wait_for("the edge serves its API", || self.site.connects(address, within).then_some(())).unwrap();
    }

    fn start_node(&mut self) {
        let mut up = Command::new(here("lab/kubelet-up"));
        up.arg(&self.node.folder).args([self.site.namespace(), "node-a", NODE_IP]);
        up.arg(&self.cluster.folder).arg(API);
        up.env("CAUSEWAY_LAB_API_CA", self.folder.path().join("edge-a/kubernetes/ca.pem"));
        finish(up, None).unwrap().success().unwrap();
    }

    /// kubectl at the API server, in the cloud.
    pub fn direct(&self, arguments: &[&str], input: Option<&str>) -> Ran {
        self.kubectl(&self.above, self.cluster.folder.join("kubeconfig"), arguments, input)
    }

    /// kubectl at the edge, as the kubelet's own user.
    fn as_node(&self, arguments: &[&str]) -> Ran {
        self.kubectl(&self.site, self.node.folder.join("kubelet.kubeconfig"), arguments, None)
    }

    /// kubectl at the edge, as the cluster's admin, by token.
    pub fn as_admin(&self, arguments: &[&str], input: Option<&str>) -> Ran {
        let path = self.folder.path().join("admin-at-edge.kubeconfig");
        if !path.exists() {
            let tokens = std::fs::read_to_string(self.cluster.folder.join("pki/tokens.csv")).unwrap();
            let token = tokens.split(',').next().unwrap();
            let text =
                std::fs::read_to_string(self.folder.path().join("edge-a/kubernetes/kubeconfig")).unwrap();
            std::fs::write(&path, text.replace("user: {}", &format!("user: {{token: \"{token}\"}}")))
                .unwrap();
        }
        self.kubectl(&self.site, path, arguments, input)
    }

    fn kubectl(&self, host: &Host, kubeconfig: PathBuf, arguments: &[&str], input: Option<&str>) -> Ran {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig).args(arguments).env("HOME", self.folder.path());
        finish(host.wrap(&command), input).unwrap()
    }

    pub fn create(&self, object: &Value) {
        self.direct(&["create", "-f", "-"], Some(&object.to_string())).success().unwrap();
    }

    fn pod(&self, at_edge: bool, name: &str) -> Option<Value> {
        let arguments = ["get", "pod", name, "-o", "json"];
        let seen = if at_edge { self.as_admin(&arguments, None) } else { self.direct(&arguments, None) };
        seen.json().ok()
    }

    pub fn kill_kubelet(&self) {
        let pid = std::fs::read_to_string(self.node.folder.join("kubelet.pid")).unwrap();
        let killed = Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
        assert!(killed.success());
    }

    pub fn start_kubelet(&self) {
        assert!(Command::new("bash").arg(self.node.folder.join("start-kubelet")).status().unwrap().success());
    }

    pub fn cut(&mut self) {
        self.net.cut("nat-a", Cut::Silent).unwrap();
    }

    /// Every process of every pod, the sandboxes included.
    pub fn kill_pods(&self) {
        let run = std::fs::read_to_string(self.node.folder.join("run")).unwrap();
        let cgroup = std::path::Path::new(run.trim()).file_name().unwrap().to_owned();
        let script = r#"find /sys/fs/cgroup/memory/"$1" -name cgroup.procs -exec cat {} + | sort -u | xargs -r kill -9"#;
        let killed = Command::new("sh").args(["-c", script, "sh"]).arg(cgroup).status().unwrap();
        assert!(killed.success());
    }

    /// The token of the pod as its volume has it.
    fn token_file(&self, uid: &str) -> String {
        let volume = format!("kubelet/pods/{uid}/volumes/kubernetes.io~projected/token/token");
        std::fs::read_to_string(self.node.folder.join(volume)).unwrap()
    }

    /// The word that the pod at an address serves.
    fn fetch(&self, address: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--fail",
            "--noproxy",
            "*",
            "--max-time",
            "10",
            &format!("http://{address}:8080/word"),
        ]);
        finish(self.site.wrap(&curl), None).unwrap().success().unwrap()
    }

    /// A file in the data dir of the edge.
    pub fn edge_file(&self, name: &str) -> PathBuf {
        self.folder.path().join("edge-a").join(name)
    }

    /// The folder of the API server.
    pub fn cluster_folder(&self) -> &Path {
        &self.cluster.folder
    }

    /// Waits until a pod is Running in the view of the edge; returns its address.
    pub fn await_pod(&self, name: &str, what: &str) -> String {
        let runs = || {
            let pod = self.pod(true, name).filter(|pod| pod["status"]["phase"] == "Running")?;
            pod["status"]["podIP"].as_str().map(str::to_owned)
        };
        wait_for(&format!("the pod {what}"), runs)
            .unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", self.pod(true, name), self.dump()))
    }

    fn proxy_log(&self) -> PathBuf {
        self.folder.path().join("kube-proxy.log")
    }

    /// The word that is served under the address of the Service; rules may take a moment.
    fn await_service(&self, what: &str) {
        if KubeProxy::program().is_none() {
            return;
        }
        let url = format!("http://{SERVICE_IP}/word");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--noproxy", "*", "--max-time", "2", &url]);
        let curl = self.site.wrap(&curl);
        let ask = || {
            let mut again = Command::new(curl.get_program());
            again.args(curl.get_args());
            finish(again, None).ok()?.success().ok().filter(|word| word == "open")
        };
        wait_for(what, ask).unwrap_or_else(|error| {
            let log = std::fs::read_to_string(self.proxy_log()).unwrap_or_default();
            panic!("{error}\n{log}")
        });
    }

    /// The kubeconfig of kube-proxy at the edge: the token of a service account with the rights that Kubernetes gives it.
    pub fn proxy_kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("kube-proxy.kubeconfig");
        self.create(
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "kube-proxy"}}),
        );
        let bind = ["create", "clusterrolebinding", "kube-proxy", "--clusterrole=system:node-proxier"];
        self.direct(&[&bind[..], &["--serviceaccount=default:kube-proxy"]].concat(), None).success().unwrap();
        let request = self.folder.path().join("token-request.json");
        std::fs::write(
            &request,
            r#"{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{}}"#,
        )
        .unwrap();
        let account = "/api/v1/namespaces/default/serviceaccounts/kube-proxy/token";
        let answer = self.direct(&["create", "--raw", account, "-f", request.to_str().unwrap()], None);
        let answer = answer.json().unwrap();
        let token = answer["status"]["token"].as_str().unwrap();
        let text = std::fs::read_to_string(self.folder.path().join("edge-a/kubernetes/kubeconfig")).unwrap();
        std::fs::write(&path, text.replace("user: {}", &format!("user: {{token: \"{token}\"}}"))).unwrap();
        path
    }

    /// The part of the edge's dump about its API.
    pub fn dump(&self) -> Value {
        let address = ADMIN.parse().unwrap();
        let asked = self.site.inside(|| testlab::causeway::get(address, "/debug"));
        let dump: Value =
            asked.ok().and_then(|(_, body)| serde_json::from_str(&body).ok()).unwrap_or_default();
        dump["kubernetes"].clone()
    }

    /// Bytes that the edge has received and sent on its link of now.
    fn link_bytes(&self) -> [u64; 2] {
        let (_, metrics) =
            self.site.inside(|| testlab::causeway::get(ADMIN.parse().unwrap(), "/metrics")).unwrap();
        ["received", "sent"].map(|direction| {
            let name = format!("causeway_channel_{direction}_bytes_total");
            let lines = metrics.lines().filter(|line| line.starts_with(&name));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
        })
    }

    /// Waits until every copy of the edge is current. One that the cloud may not read is refused.
    fn await_in_sync(&self) {
        wait_for("every copy is current", || {
            let dump = self.dump();
            let copies = dump["resources"].as_array()?;
            let is_current =
                |copy: &Value| copy["live"] == true && copy["complete"] == true || !copy["refused"].is_null();
            (dump["connected"] == true && !copies.is_empty() && copies.iter().all(is_current)).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {}", self.dump()));
    }

    /// A watch at the edge, as the admin.
    fn watch(&self, path: &str) -> Following {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.folder.path().join("admin-at-edge.kubeconfig"));
        command.args(["get", "--raw", path]).env("HOME", self.folder.path());
        Following::start(self.site.wrap(&command))
    }
}

/// A pod that serves its own token and a file, with a ConfigMap, a Secret and a token in volumes.
fn server_pod() -> Value {
    let volumes = json!([
        {"name": "token", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "settings"}}]}},
        {"name": "secret", "secret": {"secretName": "key"}}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box", "labels": {"app": "box"}}, "spec": {
        "nodeName": "node-a", "serviceAccountName": "till", "terminationGracePeriodSeconds": 0, "dnsPolicy": "Default",
        "restartPolicy": "Always", "tolerations": [{"operator": "Exists"}], "volumes": volumes,
        "containers": [{"name": "box", "image": "causeway.test/busybox:1", "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "token", "mountPath": "/var/token"}, {"name": "secret", "mountPath": "/var/secret"}],
            "command": ["sh", "-c", "echo begun; exec httpd -f -p 8080 -h /var/secret"]}]}})
}

#[test]
fn a_node_runs_on_the_api_at_the_edge() {
    if let Some(reason) = missing() {
        println!("SKIPPED: a kubelet on the API at the edge: {reason}");
        return;
    }
    let begun = Instant::now();
    let mut lab = EdgeNode::start();
    println!("the node is ready after {:?}", begun.elapsed());
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "till"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"word": "open"}}),
        server_pod(),
    ] {
        lab.create(&object);
    }
    let address = await_pod(&lab, true, "runs", |_| true);
    println!("the pod runs after {:?}", begun.elapsed());

    // Logs and exec pass through the edge unread.
    assert_eq!(lab.as_admin(&["logs", "box"], None).success().unwrap(), "begun\n");
    let exec = ["exec", "box", "--", "cat", "/var/secret/word"];
    assert_eq!(lab.as_admin(&exec, None).success().unwrap(), "open");
    let typed = lab.as_admin(&["exec", "-i", "box", "--", "wc", "-c"], Some("12345"));
    assert_eq!(typed.success().unwrap().trim(), "5");
    println!("logs and exec after {:?}", begun.elapsed());

    let uid = lab.pod(false, "box").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    lab.create(&slice(&address, &uid));
    lab.create(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "box"}, "spec": {
        "clusterIP": SERVICE_IP, "ports": [{"port": 80, "targetPort": 8080}], "selector": {"app": "box"}}}));
    let kubeconfig = lab.proxy_kubeconfig();
    let proxy = KubeProxy::start(&lab, &kubeconfig);
    if proxy.is_none() {
        println!(
            "SKIPPED: the Service of the pod: `tests/k8s/lab/build-kubernetes kube-proxy` builds kube-proxy once"
        );
    }
    lab.await_service("the Service leads to the pod");
    println!("the Service answers after {:?}", begun.elapsed());
    lab.as_admin(&["get", "--raw", SLICES], None).success().unwrap();
    lab.as_admin(&["get", "node", "node-a"], None).success().unwrap();
    let mut slices = lab.watch(&format!("{SLICES}?watch=1&resourceVersion=0"));
    slices.await_line("box-1");
    let before = lab.token_file(&uid);
    wait_for("the gateway is ready for offline", || {
        let gateway = lab.cloud.run(&["get", "egateway", "edge-a", "-o", "json"]).ok()?.json().ok()?;
        let conditions = gateway["status"]["conditions"].as_array()?.clone();
        conditions
            .iter()
            .find(|found| found["type"] == "ReadyForOffline" && found["status"] == "True")
            .map(drop)
    })
    .unwrap_or_else(|error| panic!("{error}: {}", lab.dump()["readyForOffline"]));

    // Without the cloud: edge, kubelet and kube-proxy are killed, and every process of the pod.
    lab.cut();
    wait_for("the edge knows that the cloud is away", || (lab.dump()["connected"] == false).then_some(()))
        .unwrap();
    lab.await_service("the Service leads to the pod without the cloud");
    lab.kill_kubelet();
    drop(proxy);
    lab.edge.unit.kill().unwrap();
    lab.kill_pods();
    lab.edge.restart().unwrap();
    lab.await_api();
    let mut slices = lab.watch(&format!("{SLICES}?watch=1&resourceVersion=0"));
    slices.await_line("box-1");
    let killed = Instant::now();
    lab.start_kubelet();
    let _proxy = KubeProxy::start(&lab, &kubeconfig);
    let moved = await_pod(&lab, true, "runs again under another address", |pod| {
        pod["status"]["podIP"] != address.as_str()
            && is_ready(pod)
            && pod["metadata"]["annotations"]["causeway.io/pending"].is_string()
    });
    println!("without the cloud the pod runs again at {moved} after {:?}", killed.elapsed());
    assert_eq!(lab.token_file(&uid), before, "the token that the API server gave for this pod, and no other");
    assert_eq!(lab.fetch(&moved), "open");
    lab.await_service("the Service leads to the new address");
    println!("without the cloud the Service leads there after {:?}", killed.elapsed());
    let line = slices.await_line(&format!("\"{moved}\""));
    let event: Value = serde_json::from_str(&line).unwrap();
    let name = event["object"]["metadata"]["name"].as_str().unwrap();
    assert!(event["type"] == "ADDED" && name.starts_with("box-1-at-site-"), "{line}");
    let listed = lab.as_admin(&["get", "--raw", SLICES], None).json().unwrap();
    let items = listed["items"].as_array().unwrap();
    assert!(items.len() == 1 && items[0]["endpoints"][0]["addresses"][0] == moved.as_str(), "{listed}");
    wait_for("the node is Ready without the cloud", || {
        let node = lab.as_admin(&["get", "node", "node-a", "-o", "json"], None).json().ok()?;
        is_ready(&node).then_some(())
    })
    .unwrap_or_else(|error| {
        panic!("{error}: {:?}", lab.as_admin(&["get", "node", "node-a", "-o", "json"], None))
    });
    println!("without the cloud the node is Ready after {:?}", killed.elapsed());
    let refused = lab.as_admin(&["create", "configmap", "new", "--validate=false"], None);
    assert!(refused.code != 0 && refused.stderr.contains("cannot be reached"), "{refused:?}");
    let upstream = lab.pod(false, "box").unwrap();
    assert_eq!(upstream["status"]["podIP"], address.as_str(), "the cluster does not know yet");

    // On return the cluster learns what happened, under the node's own name.
    lab.net.restore("nat-a").unwrap();
    let returned = Instant::now();
    lab.await_in_sync();
    let (in_sync, [received, sent]) = (returned.elapsed(), lab.link_bytes());
    println!(
        "every copy is current {in_sync:?} after the return of the link: {received} bytes received on the new link and {sent} sent, \
         the handshake and what waited in the log included"
    );
    await_pod(&lab, false, "is known in the cluster", |pod| pod["status"]["podIP"] == moved.as_str());
    wait_for("nothing waits any more", || (lab.dump()["writes"]["pending"] == 0).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", lab.dump()["writes"]));
    println!("the cluster knows after {:?}: {}", returned.elapsed(), lab.dump()["writes"]);
    assert_eq!(lab.dump()["writes"]["dropped"], 0, "{}", lab.dump()["writes"]);
    let events = lab.direct(&["get", "events", "-o", "json"], None).json().unwrap();
    let reasons: Vec<&str> =
        events["items"].as_array().unwrap().iter().filter_map(|event| event["reason"].as_str()).collect();
    assert!(reasons.contains(&"SandboxChanged"), "an event of the time without the cloud: {reasons:?}");
    lab.direct(&["replace", "-f", "-"], Some(&slice(&moved, &uid).to_string())).success().unwrap();
    let line = slices.await_line(r#""name":"box-1""#);
    assert!(line.contains(&moved), "the slice of the cluster: {line}");
    lab.await_service("the Service leads to the pod by the slice of the cluster");
    wait_for("the slice of the site is gone", || {
        let listed = lab.as_admin(&["get", "--raw", SLICES], None).json().ok()?;
        let items = listed["items"].as_array()?.clone();
        (items.len() == 1 && items[0]["metadata"]["name"] == "box-1").then_some(())
    })
    .unwrap();
    let pod = lab.pod(true, "box").unwrap();
    assert!(pod["metadata"]["annotations"]["causeway.io/pending"].is_null(), "{pod}");
    assert_eq!(lab.as_node(&["get", "node", "node-a", "-o", "name"]).success().unwrap(), "node/node-a\n");
}

/// Waits until the pod is Running and as wanted; returns its address.
fn await_pod(lab: &EdgeNode, at_edge: bool, what: &str, wanted: impl Fn(&Value) -> bool) -> String {
    let is = || {
        let pod = lab.pod(at_edge, "box")?;
        let address = pod["status"]["podIP"].as_str()?.to_owned();
        (pod["status"]["phase"] == "Running" && wanted(&pod)).then_some(address)
    };
    wait_for(&format!("the pod {what}"), is)
        .unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", lab.pod(at_edge, "box"), lab.dump()))
}

pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|found| found["type"] == "Ready" && found["status"] == "True")
}

/// The slice of a Service with the pod behind it: the lab has no controller that makes one.
fn slice(address: &str, uid: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "box-1", "labels": {"kubernetes.io/service-name": "box"}},
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "box", "namespace": "default", "uid": uid}}]})
}
