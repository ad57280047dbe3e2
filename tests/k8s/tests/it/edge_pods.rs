//! A pod that uses the API at the edge by the in-cluster configuration of `docs/edge-api.md`: the address for pods, the CA of the edge in a volume and
//! a token of its own. Its client is kubectl, which finds all three as any client in a cluster does. It goes on without the cloud.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testlab::causeway::{finish, wait_for};

use crate::edge_kubelet::{EdgeNode, POD_LISTEN, built_program};
use crate::nodes::missing;

/// Asks for the word of a ConfigMap again and again, and serves the last answer with its number.
const ASKING: &str = r#"mkdir -p /www; n=0; httpd -p 8080 -h /www
while true; do
  if word=$(/kubectl get configmap settings -o 'jsonpath={.data.word}' 2>/tmp/error); then n=$((n+1)); echo "$n $word" >/www/.new; else echo "error $(cat /tmp/error)" >/www/.new; fi
  mv /www/.new /www/word; sleep 0.2
done"#;

/// The pod of `docs/edge-api.md`, with kubectl of the host.
fn asking_pod(kubectl: &Path) -> Value {
    let (address, port) = POD_LISTEN.rsplit_once(':').unwrap();
    let sources = json!([
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "causeway-edge-ca"}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]);
    let environment = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": address},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port}, {"name": "HOME", "value": "/tmp"}]);
    let mounts = json!([
        {"name": "edge-account", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
        {"name": "kubectl", "mountPath": "/kubectl", "readOnly": true}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box"}, "spec": {
        "nodeName": "node-a", "serviceAccountName": "till", "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 0, "dnsPolicy": "Default", "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "edge-account", "projected": {"sources": sources}},
            {"name": "kubectl", "hostPath": {"path": kubectl, "type": "File"}}],
        "containers": [{"name": "box", "image": "causeway.test/busybox:1", "imagePullPolicy": "Never",
            "command": ["sh", "-c", ASKING], "env": environment, "volumeMounts": mounts}]}})
}

/// The number of answers so far, when the last one was this word.
fn answers(lab: &EdgeNode, address: &str, word: &str) -> Option<u64> {
    let mut curl = Command::new("curl");
    let url = format!("http://{address}:8080/word");
    curl.args(["--silent", "--noproxy", "*", "--max-time", "5", &url]);
    let served = finish(lab.site.wrap(&curl), None).ok()?.stdout;
    let (number, found) = served.trim().split_once(' ')?;
    number.parse().ok().filter(|_| found == word)
}

fn await_answers(lab: &EdgeNode, address: &str, word: &str, more_than: u64, what: &str) -> u64 {
    wait_for(what, || answers(lab, address, word).filter(|number| *number > more_than)).unwrap_or_else(
        |error| {
            let mut curl = Command::new("curl");
            curl.args([
                "--silent",
                "--noproxy",
                "*",
                "--max-time",
                "5",
                &format!("http://{address}:8080/word"),
            ]);
            panic!("{error}: {:?}", finish(lab.site.wrap(&curl), None))
        },
    )
}

#[test]
fn a_pod_uses_the_api_at_the_edge_with_and_without_the_cloud() {
    let kubectl = built_program("kubectl");
    let unbuilt =
        kubectl.is_none().then(|| "`tests/k8s/lab/build-kubernetes kubectl` builds kubectl once".to_owned());
    if let Some(reason) = missing().or(unbuilt) {
        println!("SKIPPED: a pod on the API at the edge: {reason}");
        return;
    }
    let mut lab = EdgeNode::start();
    // The address may come after the edge has started.
    let mut add = Command::new("ip");
    add.args(["address", "add", "169.254.20.11/32", "dev", "lo"]);
    finish(lab.site.wrap(&add), None).unwrap().success().unwrap();
    let ca = lab.edge_file("kubernetes/ca.pem");
    let from_file = format!("--from-file=ca.crt={}", ca.display());
    for line in [
        &["create", "configmap", "causeway-edge-ca", &from_file][..],
        &["create", "configmap", "settings", "--from-literal=word=first"],
        &["create", "serviceaccount", "till"],
        &["create", "role", "reader", "--verb=get", "--resource=configmaps"],
        &["create", "rolebinding", "till", "--role=reader", "--serviceaccount=default:till"],
    ] {
        lab.direct(line, None).success().unwrap();
    }
    lab.create(&asking_pod(&kubectl.unwrap()));
    let address = lab.await_pod("box", "runs");
    let number = await_answers(&lab, &address, "first", 1, "the pod reads through the edge");

    // The edge's certificate is believed by its own CA only, and a pod without a token is no caller.
    let ask = |ca: &Path| {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--noproxy",
            "*",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
            "--cacert",
        ]);
        curl.arg(ca).arg(format!("https://{POD_LISTEN}/api/v1/namespaces/default/configmaps/settings"));
        let ran = finish(lab.site.wrap(&curl), None).unwrap();
        (ran.code, ran.stdout)
    };
    assert_eq!(ask(&ca), (0, "401".into()));
    // 60: the certificate cannot be verified.
    assert_eq!(ask(&lab.cluster_folder().join("pki/ca.crt")), (60, "000".into()));

    lab.cut();
    wait_for("the edge knows that the cloud is away", || (lab.dump()["connected"] == false).then_some(()))
        .unwrap();
    lab.direct(
        &["patch", "configmap", "settings", "--type=merge", "-p", r#"{"data":{"word":"second"}}"#],
        None,
    )
    .success()
    .unwrap();
    let number = answers(&lab, &address, "first").unwrap_or(number);
    let number = await_answers(&lab, &address, "first", number + 2, "the pod reads without the cloud");
    lab.edge.unit.kill().unwrap();
    lab.edge.restart().unwrap();
    lab.await_api();
    let number =
        await_answers(&lab, &address, "first", number + 2, "the pod reads after a restart without the cloud");
    lab.net.restore("nat-a").unwrap();
    let last = await_answers(&lab, &address, "second", number, "the pod reads what has changed");
    println!("kubectl in a pod got {last} answers of the edge, before, during and after a cut");
}
