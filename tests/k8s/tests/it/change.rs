//! Waiting for objects and deleting them with kubectl.

use crate::kubectl::Expected::{Prints, Refused, Shows};
use crate::{each_kubectl, site};

#[test]
fn wait_ends_when_the_reconciler_has_spoken() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let service = "{kind: EService, apiVersion: v1, metadata: {name: camera}, ip: 10.1.0.9, port: 80, eSiteName: Oslo}";
        kubectl.ok_with(service, "create -f -");
        kubectl.row(
            "a condition the reconciler writes",
            "wait --for=condition=SiteResolved eservice/camera --timeout=60s",
            Prints("eservice/camera condition met\n"),
        );
        kubectl.row(
            "one that is false, with its value",
            "wait --for=condition=GatewaysResolved=False esite/Oslo --timeout=60s",
            Prints("esite/Oslo condition met\n"),
        );
        kubectl.row(
            "one that never comes ends with its time",
            "wait --for=condition=Ready esite/Oslo --timeout=1s",
            Refused(&["timed out waiting for the condition"]),
        );
        // The wait is there first, the gateway comes later.
        let waiting = kubectl.start("wait --for=condition=Ready esite/Oslo --timeout=60s");
        let gateway = "{kind: EGateway, apiVersion: v1, metadata: {name: oslo}, eSiteName: Oslo}";
        kubectl.ok_with(gateway, "create -f -");
        let output = waiting.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "esite/Oslo condition met\n");
        if kubectl.minor >= 23 {
            kubectl.row(
                "a value at a path",
                "wait --for=jsonpath={.eSiteName}=Oslo eservice/camera --timeout=60s",
                Prints("eservice/camera condition met\n"),
            );
            kubectl.row(
                "a generation that was looked at",
                "wait --for=jsonpath={.status.observedGeneration}=1 eservice/camera --timeout=60s",
                Prints("eservice/camera condition met\n"),
            );
        }
    });
}

#[test]
fn wait_for_delete_ends_with_the_object() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let waiting = kubectl.start("wait --for=delete esite/Oslo --timeout=60s");
        kubectl.ok("delete esite Oslo --wait=false");
        assert!(waiting.wait_with_output().unwrap().status.success());
    });
}

#[test]
fn a_finalizer_keeps_an_object_until_it_is_taken_away() {
    each_kubectl(|_, kubectl| {
        let held = "{kind: ESite, apiVersion: v1, metadata: {name: Oslo, finalizers: [example.org/hold]}}";
        kubectl.ok_with(held, "create -f -");
        kubectl.row("deleting is begun", "delete esite Oslo --wait=false", Shows(&["deleted"]));
        kubectl.row(
            "the object is still there and says so",
            "get esite Oslo '-ojsonpath={.metadata.deletionTimestamp}'",
            Shows(&["T", "Z"]),
        );
        let waiting = kubectl.start("wait --for=delete esite/Oslo --timeout=60s");
        kubectl.ok(r#"patch esite Oslo --type=merge -p '{"metadata":{"finalizers":null}}'"#);
        assert!(waiting.wait_with_output().unwrap().status.success());
        kubectl.row("then it is gone", "get esite Oslo", Refused(&["NotFound"]));
    });
}

#[test]
fn objects_are_deleted_by_name_file_label_and_all() {
    each_kubectl(|lab, kubectl| {
        let text: String =
            ["one", "two", "three", "four", "five"].map(|name| site(name, "10.1.0.0/16")).concat();
        let file = lab.file("sites.yaml", &text);
        kubectl.ok(&format!("create -f {file}"));
        kubectl.ok("label esites two three group=pair");
        let left = |names: &[&str]| {
            let expected: String = names.iter().map(|name| format!("esite/{name}\n")).collect();
            kubectl.row("the others stay", "get esites -o name", Prints(&expected));
        };
        kubectl.row("by name", "delete esite one", Shows(&["esite \"one\" deleted"]));
        left(&["cloud", "five", "four", "three", "two"]);
        kubectl.row(
            "by label",
            "delete esites -l group=pair",
            Shows(&["\"two\" deleted", "\"three\" deleted"]),
        );
        left(&["cloud", "five", "four"]);
        kubectl.row("what is gone is said so", "delete esite one", Refused(&["NotFound"]));
        kubectl.row("unless it does not matter", "delete esite one --ignore-not-found", Prints(""));
        kubectl.row(
            "by file",
            &format!("delete -f {file} --ignore-not-found"),
            Shows(&["\"four\" deleted", "\"five\" deleted"]),
        );
        left(&["cloud"]);
        kubectl.ok(&format!("create -f {file}"));
        kubectl.row(
            "all but what the cloud needs",
            "delete esites --all",
            Refused(&["\"cloud\" is forbidden", "causeway.io/allow-delete"]),
        );
        left(&["cloud"]);
        kubectl.ok(&format!("create -f {file}"));
        kubectl.row("at the raw path", "delete --raw /apis/causeway.io/v1/esites/one", Shows(&["Success"]));
        kubectl.row(
            "the whole collection at the raw path",
            "delete --raw /apis/causeway.io/v1/esites?labelSelector=kubernetes.io%2Fnone",
            Shows(&["ESiteList"]),
        );
        left(&["cloud", "five", "four", "three", "two"]);
    });
}
