//! Features that kubectl expects of any cluster: namespaces, events, the cluster's address, pruning, and the collection of dependents.

use std::path::Path;

use testlab::causeway::wait_for;

use crate::kubectl::Expected::{Prints, Refused, Shows};
use crate::kubectl::Kubectl;
use crate::{each_kubectl, site};

#[test]
fn there_is_one_namespace_and_it_cannot_be_changed() {
    each_kubectl(|_, kubectl| {
        kubectl.row("it is listed", "get ns", Shows(&["NAME", "STATUS", "default", "Active"]));
        kubectl.row("it is read", "get namespace default -o name", Prints("namespace/default\n"));
        kubectl.row("none is made", "create namespace other", Refused(&["does not allow this method"]));
        kubectl.row("it stays", "delete namespace default", Refused(&["does not allow this method"]));
        kubectl.row("another is not there", "get ns other", Refused(&["namespaces \"other\" not found"]));
        kubectl.row(
            "the cluster tells its address",
            "cluster-info",
            Shows(&["is running at", "https://127.0.0.1:"]),
        );
        kubectl.row("there are no services", "get services -A -o name", Prints(""));
        let watch = kubectl.run("get ns -w --request-timeout=2s -o name");
        assert!(watch.stdout.starts_with("namespace/default\n"), "{watch:?}");
    });
}

#[test]
fn what_happens_to_an_object_is_shown_with_it() {
    each_kubectl(|_, kubectl| {
        let expose = "{kind: ServiceExpose, apiVersion: causeway.io/v1, metadata: {name: web}, eServiceName: web, \
            eSites: [cloud], ePolicys: [nobody-made-it]}\n";
        kubectl.ok_with(expose, "apply -f -");
        let told = |line: &str, part: &str| {
            wait_for(&format!("`{part}` in kubectl {line}"), || {
                kubectl.ok(line).contains(part).then_some(())
            })
            .unwrap_or_else(|error| panic!("{error}\n{}", kubectl.ok("get events -A -o wide")));
        };
        told("describe serviceexpose web", "PolicyMissing");
        told("describe serviceexpose.causeway.io web", "causeway-cloud");
        told("get events --field-selector involvedObject.name=web,type=Warning", "serviceexpose/web");
        told("get events.events.k8s.io -o yaml", "reportingController: causeway-cloud");
        if kubectl.minor >= 26 {
            told("events --for serviceexpose/web", "PolicyMissing");
            told("events --for serviceexpose.causeway.io/web --types=Warning", "ServiceMissing");
        }
        // A mended problem is reported as well, and counted in an event of its own.
        let policy = "{kind: EPolicy, apiVersion: causeway.io/v1, metadata: {name: nobody-made-it}, allowedSites: [cloud]}\n";
        kubectl.ok_with(policy, "apply -f -");
        told("describe serviceexpose web", "PoliciesFound");
        kubectl.row("events can be deleted", "delete events --all", Shows(&["deleted"]));
        let event = "{kind: Event, apiVersion: v1, metadata: {name: by-hand, namespace: default}, reason: Noted, type: Normal, \
            message: seen by a person, involvedObject: {kind: ServiceExpose, name: web, apiVersion: causeway.io/v1}}\n";
        kubectl.ok_with(event, "create -f -");
        kubectl.row("a note by hand is shown", "get events", Shows(&["Noted", "seen by a person"]));
        kubectl.row("in another namespace there is nothing", "get events -n other -o name", Prints(""));
        kubectl.row_with(
            "and nothing can be written there",
            &event.replace("namespace: default", "namespace: other"),
            "create -f -",
            Refused(&["namespaces \"other\" not found"]),
        );
    });
}

#[test]
fn the_examples_can_be_applied_and_pruned() {
    each_kubectl(|lab, kubectl| {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").display().to_string();
        let applied = kubectl.ok(&format!("apply -f {examples}"));
        assert!(applied.contains("serviceexpose.causeway.io/plant-dashboard created"), "{applied}");
        let labelled = |name: &str| {
            format!(
                "---\n{{kind: ESite, apiVersion: causeway.io/v1, metadata: {{name: {name}, labels: {{app: x}}}}}}\n"
            )
        };
        kubectl.ok(&format!("apply -f {}", lab.file("two.yaml", &(labelled("one") + &labelled("two")))));
        let option = if kubectl.minor >= 26 { "--prune-allowlist" } else { "--prune-whitelist" };
        let line = format!(
            "apply --prune -l app=x {option}=causeway.io/v1/ESite -f {}",
            lab.file("one.yaml", &labelled("one"))
        );
        let pruned = kubectl.ok(&line);
        assert!(pruned.contains("esite.causeway.io/two pruned"), "{pruned}");
    });
}

fn uid(kubectl: &Kubectl, name: &str) -> String {
    kubectl.ok(&format!("get esite {name} -o 'jsonpath={{.metadata.uid}}'"))
}

fn dependent(name: &str, owner: &str, uid: &str) -> String {
    format!(
        "{{kind: ESite, apiVersion: causeway.io/v1, metadata: {{name: {name}, ownerReferences: [{{kind: ESite, \
         apiVersion: causeway.io/v1, name: {owner}, uid: {uid}, blockOwnerDeletion: true}}]}}}}\n"
    )
}

#[test]
fn dependents_follow_their_owner_as_the_policy_says() {
    each_kubectl(|_, kubectl| {
        let gone = |name: &str| {
            wait_for(&format!("{name} is gone"), || {
                kubectl.run(&format!("get esite {name}")).stderr.contains("not found").then_some(())
            })
            .unwrap_or_else(|error| panic!("{error}\n{}", kubectl.ok("get esites -o yaml")));
        };
        for policy in ["background", "foreground", "orphan"] {
            let (owner, child) = (format!("owner-{policy}"), format!("child-{policy}"));
            kubectl.ok_with(&site(&owner, "10.0.0.0/24"), "create -f -");
            let uid = uid(kubectl, &owner);
            kubectl.ok_with(&dependent(&child, &owner, &uid), "create -f -");
            kubectl.ok(&format!("delete esite {owner} --cascade={policy} --timeout=60s"));
            gone(&owner);
            match policy {
                "orphan" => {
                    let left =
                        kubectl.ok(&format!("get esite {child} -o 'jsonpath={{.metadata.ownerReferences}}'"));
                    assert_eq!(left, "", "{child} has no owner any more");
                }
                _ => gone(&child),
            }
        }
    });
}
