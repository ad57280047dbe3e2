//! A node at a site in a cluster with its controllers: kube-controller-manager and kube-scheduler place a pod of a Deployment, its service account's
//! token is in a volume of its own, and the cluster makes the slices of its Service. All of it goes on without the cloud, restarts included.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use testlab::causeway::{finish, wait_for};
use testlab::net::Host;

use crate::edge_kubelet::{EdgeNode, KubeProxy, SERVICE_IP, SLICES, built_program, is_ready};
use crate::nodes::{missing, start_cluster_with};

const BOUND_TOKENS: &str = "--feature-gates=BoundServiceAccountTokenVolume=true";

/// Programs of the control plane; ended with the test.
struct Controllers(Vec<Child>);

impl Controllers {
    fn start(above: &Host, cluster: &Path) -> Controllers {
        let manager = [
            format!("--service-account-private-key-file={}/pki/service-account.key", cluster.display()),
            format!("--root-ca-file={}/pki/ca.crt", cluster.display()),
            BOUND_TOKENS.to_owned(),
        ];
        let start = |name: &str, more: &[String]| {
            let mut command = Command::new(built_program(name).unwrap());
            command.arg(format!("--kubeconfig={}/kubeconfig", cluster.display())).args(more);
            command.args(["--leader-elect=false", "--bind-address=127.0.0.1", "--port=0"]);
            command.arg(format!("--cert-dir={}/{name}", cluster.display()));
            let log = std::fs::File::create(cluster.join(format!("{name}.log"))).unwrap();
            above.wrap(&command).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
        };
        Controllers(vec![start("kube-controller-manager", &manager), start("kube-scheduler", &[])])
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A Deployment whose pod serves the volume of its service account, and its Service.
fn objects() -> [Value; 2] {
    let labels = json!({"app": "till"});
    let container = json!({"name": "till", "image": "causeway.test/busybox:1", "imagePullPolicy": "Never",
        "command": ["httpd", "-f", "-p", "8080", "-h", "/var/run/secrets/kubernetes.io/serviceaccount"]});
    let pod = json!({"terminationGracePeriodSeconds": 0, "dnsPolicy": "Default", "containers": [container]});
    [
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "till"}, "spec": {"replicas": 1,
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "till"}, "spec": {
            "clusterIP": SERVICE_IP, "ports": [{"port": 80, "targetPort": 8080}], "selector": labels}}),
    ]
}

/// A file of the pod, fetched through the address of the Service.
fn await_served(lab: &EdgeNode, file: &str, what: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--fail",
        "--noproxy",
        "*",
        "--max-time",
        "2",
        &format!("http://{SERVICE_IP}/{file}"),
    ]);
    let curl = lab.site.wrap(&curl);
    wait_for(what, || {
        let mut again = Command::new(curl.get_program());
        again.args(curl.get_args());
        finish(again, None).ok()?.success().ok().filter(|text| !text.is_empty())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", lab.dump()))
}

/// The pod of the Deployment; `wanted` chooses among its states.
fn await_pod(lab: &EdgeNode, at_edge: bool, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let arguments = ["get", "pods", "-l", "app=till", "-o", "json"];
    let list = || if at_edge { lab.as_admin(&arguments, None) } else { lab.direct(&arguments, None) };
    wait_for(&format!("the pod {what}"), || {
        let items = list().json().ok()?["items"].as_array()?.clone();
        items.into_iter().find(|pod| pod["status"]["phase"] == "Running" && is_ready(pod) && wanted(pod))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:?}", list()))
}

#[test]
fn a_scheduled_pod_with_its_token_survives_a_restart_without_the_cloud() {
    let needed = ["kube-controller-manager", "kube-scheduler", "kube-proxy"];
    let unbuilt = needed.iter().find(|name| built_program(name).is_none());
    let unbuilt = unbuilt.map(|name| format!("`tests/k8s/lab/build-kubernetes {name}` builds {name} once"));
    if let Some(reason) = missing().or(unbuilt) {
        println!("SKIPPED: a node at the edge with the controllers of its cluster: {reason}");
        return;
    }
    let begun = Instant::now();
    let (mut lab, _controllers) = EdgeNode::start_with(|above, folder| {
        let flags = [BOUND_TOKENS, "--api-audiences=https://kubernetes.default.svc"];
        let cluster = start_cluster_with(above, folder, &flags, &[("CAUSEWAY_LAB_ADMISSION_OFF", "")]);
        let controllers = Controllers::start(above, &cluster.folder);
        (cluster, controllers)
    });
    for object in objects() {
        lab.create(&object);
    }
    let pod = await_pod(&lab, false, "is placed and runs", |_| true);
    assert_eq!(pod["spec"]["nodeName"], "node-a");
    let volumes = pod["spec"]["volumes"].to_string();
    assert!(volumes.contains("serviceAccountToken") && volumes.contains("kube-root-ca.crt"), "{volumes}");
    println!("a pod of a Deployment is placed and runs after {:?}", begun.elapsed());
    let kubeconfig = lab.proxy_kubeconfig();
    let proxy = KubeProxy::start(&lab, &kubeconfig);
    assert_eq!(await_served(&lab, "namespace", "the Service leads to the pod"), "default");
    let token = await_served(&lab, "token", "the pod serves its token");
    lab.as_admin(&["get", "pods"], None).success().unwrap();
    lab.as_admin(&["get", "--raw", SLICES], None).success().unwrap();
    wait_for("the gateway is ready for offline", || {
        let gateway = lab.cloud.run(&["get", "egateway", "edge-a", "-o", "json"]).ok()?.json().ok()?;
        let conditions = gateway["status"]["conditions"].as_array()?.clone();
        let is = |found: &&Value| found["type"] == "ReadyForOffline" && found["status"] == "True";
        conditions.iter().find(is).map(drop)
    })
    .unwrap_or_else(|error| panic!("{error}: {}", lab.dump()["readyForOffline"]));

    lab.cut();
    wait_for("the edge knows that the cloud is away", || (lab.dump()["connected"] == false).then_some(()))
        .unwrap();
    lab.kill_kubelet();
    drop(proxy);
    lab.edge.unit.kill().unwrap();
    lab.kill_pods();
    lab.edge.restart().unwrap();
    lab.await_api();
    let killed = Instant::now();
    lab.start_kubelet();
    let _proxy = KubeProxy::start(&lab, &kubeconfig);
    let before = pod["status"]["podIP"].clone();
    let moved =
        await_pod(&lab, true, "runs again under another address", |pod| pod["status"]["podIP"] != before);
    assert_eq!(await_served(&lab, "namespace", "the Service leads to the new address"), "default");
    assert_eq!(
        await_served(&lab, "token", "the pod has its token"),
        token,
        "the token that the API server gave"
    );
    println!("without the cloud the pod and its Service are back after {:?}", killed.elapsed());

    lab.net.restore("nat-a").unwrap();
    let returned = Instant::now();
    await_pod(&lab, false, "is known in the cluster", |pod| {
        pod["status"]["podIP"] == moved["status"]["podIP"]
    });
    wait_for("the slice of the cluster is served at the site again", || {
        let listed = lab.as_admin(&["get", "--raw", SLICES], None).json().ok()?;
        let text = listed["items"]
            .as_array()?
            .iter()
            .find(|item| item["metadata"]["labels"]["kubernetes.io/service-name"] == "till")?
            .to_string();
        (!text.contains("-at-site-") && text.contains(moved["status"]["podIP"].as_str()?)).then_some(())
    })
    .unwrap();
    println!("the cluster and its slice follow after {:?}: {}", returned.elapsed(), lab.dump()["writes"]);
    assert_eq!(lab.dump()["writes"]["dropped"], 0, "{}", lab.dump()["writes"]);
}
