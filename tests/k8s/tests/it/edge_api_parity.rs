//! kubectl and the requests of CNI agents against the API at the edge and against the API server: the same answers for many kinds of resources,
//! custom ones included. Writes reach the audit log under the caller's own name. Reads go on while the link is cut, and their times are printed.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::{finish, wait_for};

use crate::edge_api::{EdgeLab, Watching, missing};
use crate::kubectl::Kubectl;

/// Plurals as kubectl takes them. The first part of a custom resource is its plural.
pub const RESOURCES: [&str; 30] = [
    "configmaps",
    "secrets",
    "services",
    "endpoints",
    "pods",
    "nodes",
    "namespaces",
    "events",
    "serviceaccounts",
    "limitranges",
    "resourcequotas",
    "persistentvolumes",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "deployments.apps",
    "replicasets.apps",
    "daemonsets.apps",
    "statefulsets.apps",
    "jobs.batch",
    "ingresses.networking.k8s.io",
    "networkpolicies.networking.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "storageclasses.storage.k8s.io",
    "priorityclasses.scheduling.k8s.io",
    "leases.coordination.k8s.io",
    "endpointslices.discovery.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "ippools.crd.projectcalico.org",
];

/// A custom resource as Calico defines its own.
pub fn definition(plural: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.crd.projectcalico.org")},
        "spec": {"group": "crd.projectcalico.org", "scope": "Cluster", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "additionalPrinterColumns": [{"name": "Cidr", "type": "string", "jsonPath": ".spec.cidr"}]}]}})
}

pub fn objects() -> Vec<Value> {
    let named = |name: &str| json!({"name": name, "labels": {"app": "shop"}});
    let template = json!({"metadata": {"labels": {"app": "shop"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let selector = json!({"matchLabels": {"app": "shop"}});
    let set = |kind: &str, more: Value| {
        let mut spec = json!({"selector": selector, "template": template});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": named("shop"), "spec": spec})
    };
    let mut job = template.clone();
    job["spec"]["restartPolicy"] = "Never".into();
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": named("shop"),
            "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": named("shop"),
            "subsets": [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "shop", "namespace": "default"}, "reason": "Test",
            "type": "Normal", "message": "hello", "involvedObject": {"kind": "Pod", "name": "shop-1", "namespace": "default"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named("shop")}),
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": named("shop"),
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}),
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": named("shop"), "spec": {"hard": {"secrets": "100"}}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": named("shop"),
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"}}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named("shop"),
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": named("shop"),
            "spec": {"replicas": 1, "selector": {"app": "shop"}, "template": template}}),
        set("Deployment", json!({})),
        set("ReplicaSet", json!({})),
        set("DaemonSet", json!({})),
        set("StatefulSet", json!({"serviceName": "shop"})),
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": named("shop"), "spec": {"template": job}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": named("shop"), "spec": {"rules": [{"host": "a.example",
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "shop", "port": {"number": 80}}}}]}}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": named("shop"), "spec": {"podSelector": {}}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": named("shop"),
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": named("shop"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "shop"},
            "subjects": [{"kind": "ServiceAccount", "name": "shop", "namespace": "default"}]}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": named("shop"), "provisioner": "example.org/disk"}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": named("shop"), "value": 7}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named("shop"), "spec": {"holderIdentity": "a"}}),
        json!({"apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice", "metadata": named("shop"), "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"port": 80}]}),
    ];
    for number in 0..5 {
        let name = format!("shop-{number}");
        all.push(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named(&name), "data": {"a": "b"}}),
        );
        all.push(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": named(&name), "stringData": {"a": "b"}}),
        );
        all.push(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": named(&name), "spec": {"nodeName": "node-a",
            "containers": [{"name": "a", "image": "a"}]}}),
        );
    }
    all
}

pub fn create(direct: &Kubectl, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    direct.ok_with(&list.to_string(), "create -f -");
}

/// A line without ages, which differ by the time between two calls.
fn ageless(text: &str) -> String {
    let is_age = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|letter| letter.is_ascii_digit() || "smhd".contains(letter))
    };
    let word = |word: &str| if is_age(word) { "AGE".to_owned() } else { word.to_owned() };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn kubectl_and_cni_agents_see_the_same_at_the_edge() {
    if let Some(reason) = missing() {
        println!("SKIPPED: many resources at the edge: {reason}");
        return;
    }
    let lab = EdgeLab::start_audited();
    let (direct, edge) = (lab.direct(), lab.through_edge(&lab.cluster.token()));
    let defined = [("ippools", "IPPool"), ("blockaffinities", "BlockAffinity")]
        .map(|(plural, kind)| definition(plural, kind));
    create(&direct, &defined);
    create(&direct, &objects());
    for name in ["default-pool", "second-pool"] {
        let pool = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
            "metadata": {"name": name, "labels": {"app": "shop"}}, "spec": {"cidr": "10.9.0.0/16", "natOutgoing": true}});
        wait_for("the custom resource is served", || {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": [pool]});
            finish(direct.command("apply -f -"), Some(&list.to_string())).ok()?.success().ok()
        })
        .unwrap();
    }
    every_resource_prints_the_same(&lab, &direct, &edge);
    agents_get_the_same(&lab);
    writes_carry_the_name_of_the_caller(&lab);
    reads_go_on_while_the_link_is_cut(&lab);
}

fn every_resource_prints_the_same(lab: &EdgeLab, direct: &Kubectl, edge: &Kubectl) {
    for resource in RESOURCES {
        edge.ok(&format!("get {resource} -A"));
    }
    let mut compared = 0;
    for resource in RESOURCES {
        lab.await_live(resource.split('.').next().unwrap());
        for form in [
            "",
            "-o wide",
            "-o yaml",
            "-o name --chunk-size=2",
            "-l app=shop -o name",
            "-l app!=shop --show-labels",
        ] {
            let line = format!("get {resource} -A {form}");
            let both = || (ageless(&edge.ok(&line)), ageless(&direct.ok(&line)));
            // The copy is behind by the time of the link.
            wait_for(&line, || {
                let (ours, theirs) = both();
                (ours == theirs).then_some(())
            })
            .unwrap_or_else(|_| {
                let (ours, theirs) = both();
                panic!("{line}\n--- edge\n{ours}\n--- API server\n{theirs}")
            });
            compared += 1;
        }
    }
    println!("{} resources: {compared} lines of kubectl print the same", RESOURCES.len());
}

/// An endpoint of the API, by curl.
struct Endpoint<'a> {
    server: String,
    ca: std::path::PathBuf,
    token: String,
    folder: &'a Path,
}

impl Endpoint<'_> {
    fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> (String, Value) {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--max-time",
            "20",
            "--noproxy",
            "*",
            "--write-out",
            "\n%{http_code}",
            "--request",
            method,
        ]);
        curl.arg("--cacert")
            .arg(&self.ca)
            .arg("--header")
            .arg(format!("Authorization: Bearer {}", self.token));
        if !body.is_null() {
            let file = self.folder.join("request-body.json");
            std::fs::write(&file, body.to_string()).unwrap();
            curl.arg("--header").arg(format!("Content-Type: {content_type}"));
            curl.arg("--data-binary").arg(format!("@{}", file.display()));
        }
        let out = finish(
            {
                curl.arg(format!("{}{path}", self.server));
                curl
            },
            None,
        )
        .unwrap()
        .stdout;
        let (text, code) = out.rsplit_once('\n').unwrap();
        (code.to_owned(), serde_json::from_str(text).unwrap_or_default())
    }
}

/// Takes out the fields that differ between two runs.
fn comparable(mut object: Value) -> Value {
    fn clean(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // In lists of custom resources the API server writes an empty `continue`; both mean that there is no more.
                fields.retain(|name, value| name != "continue" || value != "");
                fields.retain(|name, _| {
                    !matches!(
                        name.as_str(),
                        "uid" | "resourceVersion" | "creationTimestamp" | "managedFields" | "time"
                    )
                });
                fields.values_mut().for_each(clean);
            }
            Value::Array(items) => items.iter_mut().for_each(clean),
            _ => {}
        }
    }
    clean(&mut object);
    object
}

/// The requests of flannel (annotations of its node) and of Calico (custom resources), in the order in which the agents make them.
fn agent_script(endpoint: &Endpoint<'_>) -> Vec<(String, String, Value)> {
    let mut seen = Vec::new();
    let pools = "/apis/crd.projectcalico.org/v1/ippools";
    let affinities = "/apis/crd.projectcalico.org/v1/blockaffinities";
    let mut send = |method: &str, path: &str, content: &str, body: Value| {
        let (code, answer) = endpoint.send(method, path, content, &body);
        seen.push((format!("{method} {path}"), code, comparable(answer.clone())));
        answer
    };
    let (json_type, strategic) = ("application/json", "application/strategic-merge-patch+json");
    send("GET", "/api/v1/nodes/node-a", "", Value::Null);
    let annotations = json!({"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/backend-data": "{\"VtepMAC\":\"0a:00:00:00:00:01\"}",
        "flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/public-ip": "10.0.0.2"}}});
    send("PATCH", "/api/v1/nodes/node-a/status", strategic, annotations);
    send("GET", "/api/v1/nodes/node-a", "", Value::Null);
    send("GET", "/api/v1/nodes?resourceVersion=0", "", Value::Null);
    let condition = json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp"}]}});
    send("PATCH", "/api/v1/nodes/node-a/status", strategic, condition);
    send("GET", pools, "", Value::Null);
    send("GET", "/apis/crd.projectcalico.org/v1/ippools/default-pool", "", Value::Null);
    send("GET", "/apis/crd.projectcalico.org/v1/ippools/missing", "", Value::Null);
    let block = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": {"name": "node-a-10-9-1-0-26"},
        "spec": {"cidr": "10.9.1.0/26", "node": "node-a", "state": "pending", "deleted": "false"}});
    send("GET", affinities, "", Value::Null);
    let mut made = send("POST", affinities, json_type, block.clone());
    send("POST", affinities, json_type, block);
    let path = format!("{affinities}/node-a-10-9-1-0-26");
    let stale = made.clone();
    made["spec"]["state"] = "confirmed".into();
    send("PUT", &path, json_type, made);
    send("PUT", &path, json_type, stale);
    // A caller's read waits for its own write.
    send("GET", &path, "", Value::Null);
    send("DELETE", &path, "", Value::Null);
    send("GET", &format!("{path}?resourceVersion="), "", Value::Null);
    let removed = json!({"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": null, "flannel.alpha.coreos.com/backend-data": null,
        "flannel.alpha.coreos.com/kube-subnet-manager": null, "flannel.alpha.coreos.com/public-ip": null}}, "status": {"conditions": null}});
    send("PATCH", "/api/v1/nodes/node-a/status", strategic, removed);
    seen
}

fn agents_get_the_same(lab: &EdgeLab) {
    let port = std::fs::read_to_string(lab.cluster.0.join("port")).unwrap();
    let (token, folder) = (lab.cluster.token(), lab.folder.path());
    let server = format!("https://127.0.0.1:{}", port.trim());
    let direct = Endpoint { server, ca: lab.cluster.0.join("pki/ca.crt"), token: token.clone(), folder };
    let ca = folder.join("edge/kubernetes/ca.pem");
    let edge = Endpoint { server: format!("https://{}", lab.address()), ca, token, folder };
    // Once so that the site holds the resources, then for the comparison.
    agent_script(&edge);
    lab.await_live("blockaffinities");
    let (theirs, ours) = (agent_script(&direct), agent_script(&edge));
    // A deletion reaches the copy after the link; a read that follows at once may still show the object.
    let compared: Vec<_> =
        ours.iter().zip(&theirs).filter(|(ours, _)| !ours.0.ends_with("resourceVersion=")).collect();
    for (ours, theirs) in &compared {
        assert_eq!(ours, theirs, "{}", ours.0);
    }
    println!("{} requests of CNI agents have the same answers", compared.len());
}

/// The newest entry of the audit log about a ConfigMap of this name.
fn audited(lab: &EdgeLab, name: &str) -> Option<Value> {
    let log = std::fs::read_to_string(lab.cluster.0.join("audit.log")).ok()?;
    let mut events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.rfind(|event| event["objectRef"]["name"] == name && event["stage"] == "ResponseComplete")
}

fn writes_carry_the_name_of_the_caller(lab: &EdgeLab) {
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    let file = lab.folder.path().join("token-request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    let path = "/api/v1/namespaces/default/serviceaccounts/shop/token";
    let answer = lab.direct().ok(&format!("create --raw {path} -f {}", file.display()));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let token = answer["status"]["token"].as_str().unwrap();
    lab.through_edge(token).ok("create configmap by-account --validate=false --from-literal=a=b");
    let event = wait_for("the write of the account is audited", || audited(lab, "by-account")).unwrap();
    let account = "system:serviceaccount:default:shop";
    assert_eq!(event["user"]["username"], account, "{event}");
    let server = "---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-a}, ip: 10.0.0.2, eSiteName: Tokyo}\n";
    lab.cloud.apply(server).unwrap();
    let node = lab.as_certified("system:node:node-a", "system:nodes");
    let label = json!({"metadata": {"annotations": {"by": "node"}}}).to_string();
    wait_for("the node writes", || {
        node.run(&format!("patch node node-a --type=merge -p '{label}'")).success().ok()
    })
    .unwrap();
    let event = wait_for("the write of the node is audited", || {
        audited(lab, "node-a").filter(|event| event["verb"] == "patch")
    })
    .unwrap();
    assert_eq!(event["impersonatedUser"]["username"], "system:node:node-a", "{event}");
    println!(
        "audited: {} for a service account, {} for the node",
        account, event["impersonatedUser"]["username"]
    );
}

fn reads_go_on_while_the_link_is_cut(lab: &EdgeLab) {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, ListParams};
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kubeconfig = lab.edge_kubeconfig(&lab.cluster.token());
    let maps: Api<ConfigMap> =
        Api::namespaced(runtime.block_on(crate::edge_api::client_of(&kubeconfig)), "default");
    let edge = lab.through_edge(&lab.cluster.token());
    let list: Value =
        serde_json::from_str(&edge.ok("get --raw /api/v1/namespaces/default/configmaps")).unwrap();
    let at = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={at}");
    let watching = Watching::start(&edge, &path);
    let times = |count: usize| {
        let mut times: Vec<Duration> = (0..count)
            .map(|_| {
                let since = Instant::now();
                runtime.block_on(maps.list(&ListParams::default())).unwrap();
                since.elapsed()
            })
            .collect();
        times.sort();
        (times[count / 2], times[count - 1])
    };
    let before = times(50);
    lab.relay.cut();
    // From the moment of the cut, before anything has noticed it.
    let dying = times(50);
    wait_for("the edge knows that the link is cut", || {
        lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
    })
    .unwrap();
    let during = times(50);
    lab.config_map("while-cut", "now");
    let since = Instant::now();
    lab.relay.restore();
    watching.until("ADDED", "while-cut");
    let synced = since.elapsed();
    let after = times(50);
    println!(
        "list latency, median and most of 50: before {before:?}, from the cut on {dying:?}, without the cloud {during:?}, after {after:?}; \
         the open watch has the change {synced:?} after the link is back"
    );
}
