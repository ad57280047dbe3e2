//! Rights as kubectl sees them: of the admin, of a viewer with a token, of a stranger.

use std::path::PathBuf;

use crate::kubectl::Expected::{Prints, Refused, Shows};
use crate::kubectl::Kubectl;
use crate::{Lab, each_kubectl, site};

/// A kubeconfig with the admin's cluster and the token of another user, as kubectl itself writes it.
fn kubeconfig(lab: &Lab, kubectl: &Kubectl, token: &str) -> PathBuf {
    let path = lab.path("other.kubeconfig");
    std::fs::copy(lab.cloud.kubeconfig(), &path).unwrap();
    let other = kubectl.with(&path);
    let cluster = other.ok("config view '-ojsonpath={.clusters[0].name}'");
    other.ok(&format!("config set-credentials other --token={token}"));
    other.ok(&format!("config set-context other --cluster={cluster} --user=other"));
    other.ok("config use-context other");
    path
}

fn token(lab: &Lab, role: &str) -> String {
    let text = lab.cloud.run(&["token", "create", "--role", role]).unwrap().success().unwrap();
    text.trim().to_owned()
}

#[test]
fn the_admin_may_do_everything_and_knows_it() {
    each_kubectl(|_, kubectl| {
        if kubectl.minor >= 28 {
            kubectl.row("who am I", "auth whoami", Shows(&["Username", "causeway:admin"]));
        }
        for line in
            ["auth can-i create esites", "auth can-i delete serviceexposes.causeway.io", "auth can-i '*' '*'"]
        {
            kubectl.row("yes", line, Shows(&["yes\n"]));
        }
        kubectl.row("the whole list", "auth can-i --list", Shows(&["*.*"]));
    });
}

#[test]
fn a_viewer_reads_and_does_not_write() {
    each_kubectl(|lab, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let viewer = kubectl.with(&kubeconfig(lab, kubectl, &token(lab, "viewer")));
        viewer.row("reads a list", "get esites -o name", Prints("esite/Oslo\nesite/cloud\n"));
        viewer.row("reads one", "get est Oslo -o name", Prints("esite.causeway.io/Oslo\n"));
        viewer.row("reads the schema", "explain esite.subnets", Shows(&["subnets"]));
        viewer.row("may list", "auth can-i list esites", Shows(&["yes"]));
        let ran = viewer.run("auth can-i create esites");
        assert_eq!((ran.code, ran.stdout.starts_with("no")), (1, true), "may not create: {ran:?}");
        let file = lab.file("bergen.yaml", &site("Bergen", "10.1.0.0/16"));
        for line in [
            &format!("create -f {file}"),
            &format!("apply --server-side -f {file}"),
            r#"patch esite Oslo --type=merge -p '{"subnets":[]}'"#,
            "label esite Oslo a=b",
            "delete esite Oslo",
            "delete esites --all",
        ] {
            viewer.row("is refused", line, Refused(&["Forbidden", "a viewer only reads"]));
        }
        viewer.row("may not see tokens", "get --raw /causeway/v1/tokens", Refused(&["Forbidden", "admin"]));
        if kubectl.minor >= 28 {
            viewer.row("who am I", "auth whoami", Shows(&["causeway:viewer"]));
        }
        kubectl.row("nothing has changed", "get esites -o name", Prints("esite/Oslo\nesite/cloud\n"));
    });
}

#[test]
fn an_admin_asks_and_acts_as_others() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let can = |as_whom: &str, what: &str, allowed: bool| {
            let ran = kubectl.run(&format!("auth can-i {what} {as_whom}"));
            assert_eq!(
                (ran.code == 0, ran.stdout.starts_with("yes")),
                (allowed, allowed),
                "{as_whom}: {ran:?}"
            );
        };
        can("", "delete esites", true);
        can("--as nobody", "delete esites", false);
        can("--as nobody", "get esites", false);
        can("--as nobody --as-group causeway:viewer", "get esites", true);
        can("--as nobody --as-group system:masters", "get esites", false);
        kubectl.row(
            "acts as others",
            "delete esite Oslo --as nobody",
            Refused(&["Forbidden", "\"nobody\" cannot"]),
        );
        kubectl.row(
            "reads as a viewer",
            "get esite Oslo -o name --as nobody --as-group causeway:viewer",
            Shows(&["/Oslo"]),
        );
        if kubectl.minor >= 28 {
            kubectl.row(
                "who would I be",
                "auth whoami --as nobody",
                Shows(&["nobody", "system:authenticated"]),
            );
        }
    });
}

#[test]
fn a_stranger_is_asked_for_a_credential() {
    each_kubectl(|lab, kubectl| {
        let stranger = kubectl.with(&kubeconfig(lab, kubectl, "no-such-token"));
        let refused = stranger.fails("get --raw /api/v1/esites");
        assert!(refused.contains("logged in") || refused.contains("Unauthorized"), "{refused}");
    });
}
