//! The Helm chart: rendered with Go's templates and sprig in place of helm, its configuration files accepted by `check-config`, and its
//! manifests accepted by a real kube-apiserver. The plain manifests in `deploy/kubernetes` are made from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testlab::causeway::{Ran, finish, run, wait_for};

use crate::edge_api::{self, Cluster};
use crate::here;
use crate::kubectl::{self, Kubectl};

/// The folder of Debian's Go packages.
const GOPATH: &str = "/usr/share/gocode";

/// Builds the renderer. None: no Go, or no sprig.
fn renderer(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("render");
    if !Path::new(GOPATH).join("src/github.com/Masterminds/sprig").exists() {
        println!(
            "SKIPPED: needs golang-go, golang-github-masterminds-sprig-dev, golang-gopkg-yaml.v3-dev (.ci/needs test)"
        );
        return None;
    }
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(here("chart/render.go"));
    build.env("GO111MODULE", "off").env("GOPATH", GOPATH).env("GOCACHE", folder.join("go-cache"));
    finish(build, None).unwrap().success().unwrap();
    Some(program)
}

fn render(program: &Path, values: Option<&Path>) -> Ran {
    let mut command = Command::new(program);
    command.arg(here("../../deploy/helm/causeway")).args(["causeway", "causeway-system"]);
    command.args(values);
    finish(command, None).unwrap()
}

fn rendered(program: &Path, values: &str) -> String {
    render(program, Some(Path::new(&here(&format!("chart/{values}.yaml"))))).success().unwrap()
}

#[test]
fn the_plain_manifests_are_those_of_the_chart() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = renderer(folder.path()) else { return };
    for (name, fix) in [
        (
            "cloud",
            "Set `advertise` to the endpoints at which edges reach the Services causeway-channel and causeway-channel-udp, and the image.",
        ),
        (
            "edge",
            "Label one node causeway.io/gateway=true, make the Secret causeway-join with the key join.token, and set the image.",
        ),
        (
            "every-node",
            "Set `join-endpoints`, `join-ca` (kubectl --kubeconfig admin.kubeconfig get --raw /causeway/v1/ca) and the image, label the nodes causeway.io/gateway=true, and name causeway-system/causeway-edge in `join-service-accounts` of the cloud.",
        ),
    ] {
        let head = format!(
            "# Made from deploy/helm/causeway; UPDATE=1 cargo nextest run -p k8s-tests chart writes it anew.\n# {fix}\n\
             # kubectl create namespace causeway-system first.\n"
        );
        let text = head + &rendered(&program, name);
        let file = if name == "every-node" { "edge-every-node" } else { name };
        let path = here(&format!("../../deploy/kubernetes/{file}.yaml"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{path}: UPDATE=1 cargo nextest run -p k8s-tests chart");
    }
}

#[test]
fn the_chart_renders_to_configurations_that_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = renderer(folder.path()) else { return };
    let mut checked = 0;
    for values in ["cloud", "edge", "every-node", "everything", "aggregated"] {
        let text = rendered(&program, values);
        for name in ["cloud.toml", "edge.toml"] {
            let Some((_, after)) = text.split_once(&format!("  {name}: |\n")) else { continue };
            let lines = after.lines().take_while(|line| line.starts_with("    "));
            let config: String = lines.map(|line| format!("{}\n", line.trim_start())).collect();
            let path = folder.path().join(name);
            std::fs::write(&path, &config).unwrap();
            let ran = run(&["check-config", path.to_str().unwrap()]).unwrap();
            assert_eq!(ran.code, 0, "{values} {name}: {}\n{config}", ran.stderr);
            assert!(ran.stdout.contains("# file"), "{config}");
            checked += 1;
        }
    }
    assert_eq!(checked, 6);
    let refused = render(&program, None);
    assert!(refused.code == 1 && refused.stderr.contains("cloud.advertise"), "{refused:?}");
    let few = folder.path().join("few.yaml");
    std::fs::write(&few, "cloud: {advertise: [a:1], replicas: 2}").unwrap();
    let refused = render(&program, Some(&few));
    assert!(refused.code == 1 && refused.stderr.contains("cloud.etcd"), "{refused:?}");
}

#[test]
fn a_kube_apiserver_accepts_the_chart() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(reason) = edge_api::missing() {
        println!("SKIPPED: {reason}");
        return;
    }
    let Some(program) = renderer(folder.path()) else { return };
    let cluster = Cluster(folder.path().join("cluster"));
    let mut up = Command::new(here("lab/kube-apiserver-up"));
    up.arg(&cluster.0);
    finish(up, None).unwrap().success().unwrap();
    let kubeconfig = cluster.0.join("kubeconfig");
    let kubectl = Kubectl::new(&kubectl::programs().remove(0), &kubeconfig, folder.path().join("home"));
    kubectl.ok("create namespace causeway-system");
    for (values, objects) in
        [("cloud", 5), ("edge", 2), ("every-node", 3), ("everything", 11), ("aggregated", 13)]
    {
        let text = kubectl.ok_with(&rendered(&program, values), "apply --dry-run=server -f -");
        assert_eq!(
            text.lines().filter(|line| line.contains("created (server dry run)")).count(),
            objects,
            "{values}: {text}"
        );
    }
    the_roles_of_the_chart_give_what_they_say(&kubectl, &rendered(&program, "aggregated"));
}

/// The roles and bindings of the chart in force: the account of the cloud, and users whom an admin has bound to the roles for people.
fn the_roles_of_the_chart_give_what_they_say(kubectl: &Kubectl, chart: &str) {
    let is_rbac = |part: &&str| {
        part.contains("rbac.authorization.k8s.io/v1") || part.contains("kind: ServiceAccount\n")
    };
    let parts: Vec<&str> = chart.split("\n---\n").filter(is_rbac).collect();
    assert_eq!(parts.len(), 6, "{chart}");
    kubectl.ok_with(&parts.join("\n---\n"), "apply -f -");
    for role in ["view", "edit"] {
        kubectl.ok(&format!("create clusterrolebinding {role} --clusterrole=causeway-{role} --user={role}"));
    }
    let cloud = "system:serviceaccount:causeway-system:causeway-cloud";
    for (user, verb, group, resource, expected) in [
        (cloud, "create", "authorization.k8s.io", "subjectaccessreviews", true),
        (cloud, "create", "authentication.k8s.io", "tokenreviews", true),
        (cloud, "get", "", "pods", true),
        (cloud, "list", "", "pods", false),
        (cloud, "get", "", "secrets", false),
        ("view", "list", "causeway.io", "esites", true),
        ("view", "delete", "causeway.io", "esites", false),
        ("edit", "delete", "causeway.io", "esites", true),
        ("edit", "get", "", "secrets", false),
        ("stranger", "list", "causeway.io", "esites", false),
    ] {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {"verb": verb, "group": group, "resource": resource}}});
        // A role takes effect when the authorizer has seen it.
        let is_expected = || {
            let text = kubectl.ok_with(&review.to_string(), "create -f - -o json");
            let answer: Value = serde_json::from_str(&text).ok()?;
            (answer["status"]["allowed"] == expected).then_some(())
        };
        wait_for(&format!("{user} {verb} {resource}: {expected}"), is_expected).unwrap();
    }
}
