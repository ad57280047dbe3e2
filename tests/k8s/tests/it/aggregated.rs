//! The API of a cloud as an aggregated API of a real kube-apiserver: `kubectl` with the cluster's own kubeconfig, users and RBAC.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testlab::causeway::{Cloud, Ran, finish, wait_for};

use crate::edge_api::{self, Cluster};
use crate::here;
use crate::kubectl::{self, Kubectl};

const NAMES: &str = "front-proxy-client";

/// An address of this host that is not loopback: endpoints of a Service cannot be.
fn own_address() -> Option<SocketAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent. The address is one for documentation; the kernel chooses a route for it.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    let listener = std::net::TcpListener::bind((ip, 0)).ok()?;
    listener.local_addr().ok().filter(|address| !address.ip().is_loopback())
}

fn shell(script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-ec", script]);
    finish(command, None).unwrap().success().unwrap()
}

/// The CA of the front proxy, and two certificates under it: one whose name is allowed, and another.
fn make_front_proxy(folder: &Path) {
    let folder = folder.display();
    shell(&format!(
        "mkdir -p {folder}; cd {folder}
         key() {{ openssl ecparam -name prime256v1 -genkey -noout -out $1.key; }}
         key ca; openssl req -new -x509 -key ca.key -out ca.crt -days 2 -subj /CN=front-ca -addext keyUsage=critical,keyCertSign
         for name in {NAMES} stranger; do
             key $name
             openssl req -new -key $name.key -subj /CN=$name | openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                 -out $name.crt -extfile <(echo extendedKeyUsage=clientAuth) 2>/dev/null
         done"
    ));
}

/// A call of the listener itself, with a certificate of the front proxy's CA and headers.
fn call(
    address: SocketAddr,
    front: &Path,
    name: Option<&str>,
    headers: &[&str],
    path: &str,
) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--insecure",
        "--noproxy",
        "*",
        "--max-time",
        "20",
        "--write-out",
        "\n%{http_code}",
    ]);
    if let Some(name) = name {
        command.arg("--cert").arg(front.join(format!("{name}.crt")));
        command.arg("--key").arg(front.join(format!("{name}.key")));
    }
    for header in headers {
        command.args(["--header", header]);
    }
    command.arg(format!("https://{address}{path}"));
    let Ran { stdout, .. } = finish(command, None).unwrap();
    let (body, code) = stdout.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), body.to_owned())
}

/// Makes the service account that the manifest names, with the rights of the manifest alone, and a kubeconfig with its token: a file that
/// the kubeconfig names, as in a pod of the chart.
fn account_of_the_cloud(kubectl: &Kubectl, manifest: &str, folder: &Path) -> PathBuf {
    let namespace = "causeway-system";
    // The APIService needs the CA of a cloud that has not started yet.
    let parts: Vec<&str> =
        manifest.split("\n---\n").filter(|part| !part.contains("kind: APIService")).collect();
    kubectl.ok_with(&parts.join("\n---\n"), "apply -f -");
    kubectl.ok(&format!("create serviceaccount causeway-cloud --namespace {namespace}"));
    let request = folder.join("token-request.json");
    let text = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "spec": {"audiences": null, "expirationSeconds": 3600}});
    std::fs::write(&request, text.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/causeway-cloud/token");
    let answer = kubectl.ok(&format!("create --raw {path} -f {}", request.display()));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let token = folder.join("cluster.token");
    std::fs::write(&token, answer["status"]["token"].as_str().unwrap()).unwrap();
    let mut config: Value =
        serde_json::from_str(&kubectl.ok("config view --raw --flatten --minify -o json")).unwrap();
    config["users"][0]["user"] = json!({"tokenFile": token});
    let path = folder.join("cloud-of-cluster.kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn kubectl_of_the_cluster_uses_the_api_and_the_cluster_decides() {
    if let Some(reason) = edge_api::missing() {
        println!("SKIPPED: {reason}");
        return;
    }
    let Some(address) = own_address() else {
        println!("SKIPPED: this host has no address but loopback");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster(folder.path().join("cluster"));
    let front = cluster.0.join("front");
    make_front_proxy(&front);
    let mut up = Command::new(here("lab/kube-apiserver-up"));
    up.arg(&cluster.0).args([
        "--requestheader-client-ca-file=front/ca.crt",
        &format!("--requestheader-allowed-names={NAMES}"),
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        &format!("--proxy-client-cert-file=front/{NAMES}.crt"),
        &format!("--proxy-client-key-file=front/{NAMES}.key"),
        "--enable-aggregator-routing=true",
    ]);
    finish(up, None).unwrap().success().unwrap();

    let config = folder.path().join("cloud.toml");
    let kubeconfig = cluster.0.join("kubeconfig");
    let kubectl = Kubectl::new(&kubectl::programs().remove(0), &kubeconfig, folder.path().join("home"));
    let manifest = std::fs::read_to_string(here("../../deploy/kubernetes/aggregated-api.yaml")).unwrap();
    let of_cloud = account_of_the_cloud(&kubectl, &manifest, folder.path());
    let settings = format!(
        "[cloud]\naggregated = \"{address}\"\nrequestheader-ca = {:?}\nrequestheader-names = [\"{NAMES}\"]\n\
         kubernetes = {of_cloud:?}\napi-names = [\"causeway.causeway-system.svc\"]\n",
        front.join("ca.crt")
    );
    std::fs::write(&config, settings).unwrap();
    let cloud =
        Cloud::start_with(&folder.path().join("cloud"), &["--config", config.to_str().unwrap()]).unwrap();
    cloud.run(&["token", "create", "--site", "oslo"]).unwrap().success().unwrap();

    // The listener itself: the certificate of the front proxy, its name, and a user in the headers are all needed.
    let sites = "/apis/causeway.io/v1/esites";
    let masters = ["X-Remote-User: root", "X-Remote-Group: system:masters"];
    // The binding of the cloud's account takes effect when the authorizer of the cluster has seen it.
    let is_served = || (call(address, &front, Some(NAMES), &masters, sites).0 == 200).then_some(());
    wait_for("the cluster answers the cloud", is_served)
        .unwrap_or_else(|error| panic!("{error}\n{}", cloud.process.log()));
    assert_eq!(call(address, &front, None, &masters, sites).0, 0, "no certificate, no TLS");
    assert_eq!(call(address, &front, Some("stranger"), &masters, sites).0, 401);
    assert_eq!(call(address, &front, Some(NAMES), &[], sites).0, 401);
    assert_eq!(call(address, &front, Some(NAMES), &["X-Remote-User: ann"], sites).0, 403);
    for path in ["/causeway/v1/status", "/causeway/v1/backup"] {
        assert_eq!(
            call(address, &front, Some(NAMES), &masters, path).0,
            403,
            "{path}: actions are not objects"
        );
    }
    assert_eq!(call(address, &front, Some(NAMES), &masters, "/console").0, 404);
    // The API itself does not believe these headers.
    assert_eq!(call(cloud.api, &front, None, &masters, sites).0, 401);

    let own = std::fs::read_to_string(cloud.kubeconfig()).unwrap();
    let bundle =
        own.lines().find_map(|line| line.trim().strip_prefix("certificate-authority-data: ")).unwrap();
    kubectl.ok_with(&manifest.replace("CA_BUNDLE", bundle.trim_matches('"')), "apply -f -");
    // No controller makes endpoints in the lab.
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "causeway", "namespace": "causeway-system"},
        "subsets": [{"addresses": [{"ip": address.ip()}], "ports": [{"port": address.port()}]}]});
    kubectl.ok_with(&endpoints.to_string(), "apply -f -");
    let available = || {
        let text = kubectl.ok("get apiservice v1.causeway.io -o json");
        let service: Value = serde_json::from_str(&text).ok()?;
        let conditions = service["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|one| one["type"] == "Available" && one["status"] == "True").then_some(())
    };
    wait_for("the aggregated API is available", available).unwrap_or_else(|error| {
        panic!("{error}\n{}\n{}", kubectl.ok("get apiservice v1.causeway.io -o yaml"), cloud.process.log())
    });

    // The cluster's admin uses it as every other API. kube-apiserver forwards requests some seconds after it has said that the API is available.
    let try_ok = |line: &str| Some(kubectl.run(line)).filter(|ran| ran.code == 0).map(|ran| ran.stdout);
    let sees_sites = || try_ok("get esites").filter(|text| text.contains("oslo"));
    wait_for("kubectl of the cluster sees the sites", sees_sites)
        .unwrap_or_else(|error| panic!("{error}\n{}", cloud.process.log()));
    assert!(kubectl.ok("api-resources --api-group=causeway.io").contains("serviceexposes"));
    let site = |name: &str| {
        json!({"apiVersion": "causeway.io/v1", "kind": "ESite", "metadata": {"name": name}}).to_string()
    };
    kubectl.ok_with(&site("rome"), "apply -f -");
    assert!(cloud.run(&["get", "esites"]).unwrap().success().unwrap().contains("rome"));
    let audit = cloud.run(&["audit", "--admin", "--kind", "ESite", "--json"]).unwrap().success().unwrap();
    assert!(
        audit.lines().any(|line| line.contains("\"rome\"") && line.contains("\"user\":\"admin\"")),
        "{audit}"
    );

    // Other users have the rights that RBAC of the cluster gives them.
    let refused = |line: &str| kubectl.fails(line);
    assert!(refused("get esites --as=ann").contains("forbidden"));
    kubectl.ok("create clusterrolebinding ann --clusterrole=causeway-view --user=ann");
    let sees = || try_ok("get esites --as=ann").filter(|text| text.contains("rome"));
    wait_for("ann may read", sees).unwrap();
    assert!(refused("delete esite rome --as=ann").contains("forbidden"));
    kubectl.ok("create clusterrolebinding ops --clusterrole=causeway-edit --group=ops");
    let deletes = || try_ok("delete esite rome --as=bob --as-group=ops");
    wait_for("bob of the group ops may delete", deletes).unwrap();
    kubectl.ok("delete clusterrolebinding ann");
    wait_for("ann may not read any more", || try_ok("get esites --as=ann").is_none().then_some(())).unwrap();
}
