//! GitOps: one reconciliation after the other as Flux (server-side) and Argo CD (client-side) do them, with the kubectl of each test.
//!
//! Flux' kustomize-controller makes a server-side dry run of every object, compares it with the live one, applies with force under its own
//! field manager, and deletes objects with its labels that left the repository. Argo CD compares with the last applied annotation, applies, and
//! prunes by label.

use testlab::causeway::wait_for;

use crate::kubectl::Expected::{Prints, Refused, Shows};
use crate::kubectl::Kubectl;
use crate::{Lab, each_kubectl};

const FLUX_LABEL: &str = "kustomize.toolkit.fluxcd.io/name";
const ARGO_LABEL: &str = "app.kubernetes.io/instance";

/// The repository: a site with a gateway and a service that is exposed to the cloud.
fn repository(label: &str, port: u16) -> String {
    let meta = |name: &str| format!("metadata: {{name: {name}, labels: {{{label}: edge}}}}");
    let object = |kind: &str, name: &str, fields: &str| {
        format!("---\n{{apiVersion: causeway.io/v1, kind: {kind}, {}, {fields}}}\n", meta(name))
    };
    [
        object("ESite", "oslo", "subnets: [10.1.0.0/16]"),
        object("EGateway", "oslo-1", "eSiteName: oslo, priority: 10"),
        object("EService", "web", &format!("eSiteName: oslo, ip: 10.1.0.7, port: {port}, protocol: HTTP")),
        object("EPolicy", "from-cloud", "allowedSites: [cloud]"),
        object("ServiceExpose", "web", "eServiceName: web, eSites: [cloud], ePolicys: [from-cloud]"),
    ]
    .concat()
}

/// The cloud has filled in what is its to fill in: defaults, addresses and conditions.
fn reconciled(lab: &Lab) {
    lab.cloud.wait_condition("serviceexpose", "web", "PoliciesResolved", "True").unwrap();
    let presence = || lab.cloud.run(&["get", "virtualpresence", "-o", "name"]).ok()?.success().ok();
    wait_for("the exposure has an address", || presence().filter(|names| !names.is_empty())).unwrap();
}

/// Names of the objects that carry a label, of the kinds that Causeway has.
fn labelled(kubectl: &Kubectl, label: &str) -> String {
    let kinds = ["esites", "egateways", "eservices", "epolicies", "serviceexposes"]
        .map(|kind| format!("{kind}.causeway.io"))
        .join(",");
    kubectl.ok(&format!("get {kinds} -l {label}=edge -o name"))
}

#[test]
fn flux_finds_no_drift_of_ours_and_takes_back_that_of_others() {
    each_kubectl(|lab, kubectl| {
        let file = lab.file("repository.yaml", &repository(FLUX_LABEL, 80));
        let apply =
            |more: &str| format!("apply --server-side --field-manager=kustomize-controller -f {file} {more}");
        kubectl.row(
            "the first apply makes everything",
            &apply(""),
            Shows(&["eservice.causeway.io/web serverside-applied"]),
        );
        reconciled(lab);
        // Status that the cloud writes is no drift: a dry run returns the stored object.
        let shown = "-ojsonpath={range .items[*]}{.metadata.name}{.metadata.generation}{end}";
        let live = kubectl.ok(&format!("get -f {file} '{shown}'"));
        let dry = kubectl.ok(&apply(&format!("--dry-run=server '{shown}'")));
        assert_eq!(dry, live, "the dry run of an unchanged repository");
        // `kubectl diff --server-side` of 1.20 does not know the field manager.
        let diff = (kubectl.minor > 20)
            .then(|| format!("diff --server-side --field-manager=kustomize-controller -f {file}"));
        if let Some(diff) = &diff {
            kubectl.row("and its diff is empty", diff, Prints(""));
        }

        let port = "get eservice web '-ojsonpath={.port}'";
        kubectl.ok("patch eservice web --type=merge --field-manager=operator '-p={\"port\":8080}'");
        if let Some(diff) = &diff {
            let ran = kubectl.run(&format!("{diff} --force-conflicts"));
            assert_eq!(ran.code, 1, "drift is a difference: {ran:?}");
            assert!(ran.stdout.contains("-port: 8080") && ran.stdout.contains("+port: 80"), "{}", ran.stdout);
        }
        kubectl.row(
            "without force the other manager is named",
            &apply(""),
            Refused(&["conflict", "\"operator\"", ".port"]),
        );
        kubectl.row("and nothing was taken", port, Prints("8080"));
        let dry = kubectl.ok(&apply("--force-conflicts --dry-run=server"));
        assert!(dry.contains("server dry run"), "{dry}");
        kubectl.row("a dry run with force takes nothing either", port, Prints("8080"));
        kubectl.row(
            "force takes it back",
            &apply("--force-conflicts"),
            Shows(&["eservice.causeway.io/web serverside-applied"]),
        );
        kubectl.row("the repository counts", port, Prints("80"));

        // A field that is not in the repository belongs to the manager that set it.
        lab.cloud.run(&["drain", "oslo-1", "--force"]).unwrap().success().unwrap();
        if let Some(diff) = &diff {
            kubectl.row("a drain is no drift", diff, Prints(""));
        }
        kubectl.ok(&apply("--force-conflicts"));
        kubectl.row("and outlives an apply", "get egateway oslo-1 '-ojsonpath={.drain}'", Prints("true"));

        // A field that leaves the repository leaves the object.
        let without = repository(FLUX_LABEL, 80).replace(", priority: 10", "");
        let file = lab.file("without.yaml", &without);
        kubectl.ok(&format!("apply --server-side --field-manager=kustomize-controller -f {file}"));
        kubectl.row("the priority has left", "get egateway oslo-1 '-ojsonpath={.priority}'", Prints(""));
    });
}

#[test]
fn objects_that_left_the_repository_are_pruned_and_no_others() {
    each_kubectl(|lab, kubectl| {
        kubectl.ok_with(
            "{apiVersion: causeway.io/v1, kind: EPolicy, metadata: {name: by-hand}, allowedSites: [cloud]}",
            "apply -f -",
        );
        let file = lab.file("repository.yaml", &repository(FLUX_LABEL, 80));
        kubectl.ok(&format!("apply --server-side --field-manager=kustomize-controller -f {file}"));
        reconciled(lab);
        let inventory = labelled(kubectl, FLUX_LABEL);
        assert_eq!(inventory.lines().count(), 5, "{inventory}");
        // The exposure and its policy leave the repository. Flux compares its inventory with it and deletes what is left over.
        let all = repository(FLUX_LABEL, 80);
        let kept: Vec<&str> = all
            .split_inclusive("}\n")
            .filter(|part| !part.contains("ServiceExpose") && !part.contains("EPolicy"))
            .collect();
        let file = lab.file("less.yaml", &kept.concat());
        let applied = kubectl
            .ok(&format!("apply --server-side --field-manager=kustomize-controller -f {file} -o name"));
        for name in inventory.lines().filter(|name| !applied.contains(name)) {
            kubectl.ok(&format!("delete {name} --cascade=background"));
        }
        let left = labelled(kubectl, FLUX_LABEL);
        assert_eq!(left.lines().count(), 3, "{left}");
        kubectl.row(
            "what was made by hand stays",
            "get epolicies.causeway.io by-hand -o name",
            Prints("epolicy.causeway.io/by-hand\n"),
        );
        // The presences that the cloud made for the exposure go with it.
        let presences = || lab.cloud.run(&["get", "virtualpresence", "-o", "name"]).ok()?.success().ok();
        wait_for("the presence is gone", || presences().filter(String::is_empty)).unwrap();
    });
}

#[test]
fn argo_compares_with_what_it_applied_and_prunes_by_label() {
    each_kubectl(|lab, kubectl| {
        let text = repository(ARGO_LABEL, 80);
        let file = lab.file("repository.yaml", &text);
        kubectl.ok(&format!("apply -f {file}"));
        reconciled(lab);
        kubectl.row("in sync: what the cloud wrote is no difference", &format!("diff -f {file}"), Prints(""));
        kubectl.ok("patch eservice web --type=merge '-p={\"port\":8080}'");
        assert_eq!(kubectl.run(&format!("diff -f {file}")).code, 1, "out of sync");
        kubectl.row(
            "a sync heals it",
            &format!("apply -f {file}"),
            Shows(&["eservice.causeway.io/web configured"]),
        );
        kubectl.row("in sync again", &format!("diff -f {file}"), Prints(""));
        let less = lab.file(
            "less.yaml",
            &text.replace("name: web,", "name: web2,").replace("eServiceName: web,", "eServiceName: web2,"),
        );
        let option = if kubectl.minor >= 26 { "--prune-allowlist" } else { "--prune-whitelist" };
        let kinds =
            ["EService", "ServiceExpose"].map(|kind| format!("{option}=causeway.io/v1/{kind}")).join(" ");
        let pruned = kubectl.ok(&format!("apply --prune -l {ARGO_LABEL}=edge {kinds} -f {less}"));
        for part in [
            "eservice.causeway.io/web2 created",
            "eservice.causeway.io/web pruned",
            "serviceexpose.causeway.io/web pruned",
        ] {
            assert!(pruned.contains(part), "{part} is missing in\n{pruned}");
        }
    });
}
