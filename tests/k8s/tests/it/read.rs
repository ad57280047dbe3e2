//! Looking at objects with kubectl: every output, names, selectors, pages, order, watch, describe.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::kubectl::Expected::{Prints, Refused, Shows};
use crate::kubectl::Kubectl;
use crate::{each_kubectl, here, site};

/// Three sites with a label each, and a service at one of them.
fn furnish(kubectl: &Kubectl) {
    let sites: String = [("Oslo", "north"), ("Bergen", "north"), ("Roma", "south")]
        .map(|(name, region)| {
            format!("{{kind: ESite, apiVersion: v1, metadata: {{name: {name}, labels: {{region: {region}}}}}}}\n---\n")
        })
        .concat();
    let services = "{kind: EService, apiVersion: v1, metadata: {name: camera}, ip: 10.0.0.1, port: 80, eSiteName: Oslo}\n\
        ---\n{kind: EService, apiVersion: v1, metadata: {name: archive}, ip: 10.0.0.2, port: 443, protocol: HTTPS, eSiteName: Roma}\n";
    kubectl.ok_with(&(sites + services), "create -f -");
    // Status may still be on its way; a test that compares versions waits for it.
    kubectl.ok("wait --for=condition=SiteResolved eservice/camera eservice/archive --timeout=60s");
}

#[test]
fn every_output_of_get_works() {
    each_kubectl(|_, kubectl| {
        furnish(kubectl);
        let table = kubectl.ok("get eservices");
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["NAME", "SITE", "PROTOCOL", "ADDRESS", "PORT", "READY", "AGE"]);
        assert_eq!(rows[1][..6], ["archive", "Roma", "HTTPS", "10.0.0.2", "443", "False"]);
        assert_eq!(rows[2][..6], ["camera", "Oslo", "TCP", "10.0.0.1", "80", "False"]);

        kubectl.row("wide has more columns", "get eservices -o wide", Shows(&["DOMAIN", "HEALTH", "REASON"]));
        kubectl.row(
            "a gateway shows its channel",
            "get egateways",
            Shows(&["NAME", "SITE", "CONNECTED", "TRANSPORT", "RTT", "AGE"]),
        );
        kubectl.row("labels are shown", "get esite Oslo --show-labels", Shows(&["LABELS", "region=north"]));
        kubectl.row("a label as a column", "get esites -L region", Shows(&["REGION", "south"]));
        kubectl.row(
            "no headers",
            "get esite Oslo --no-headers -o custom-columns=N:.metadata.name",
            Prints("Oslo\n"),
        );
        kubectl.row("names", "get eservices -o name", Prints("eservice/archive\neservice/camera\n"));
        kubectl.row(
            "yaml",
            "get esite Oslo -o yaml",
            Shows(&["kind: ESite", "apiVersion: v1", "name: Oslo"]),
        );
        kubectl.row(
            "jsonpath",
            "get eservices '-ojsonpath={range .items[*]}{.metadata.name}={.port} {end}'",
            Prints("archive=443 camera=80 "),
        );
        kubectl.row(
            "custom columns",
            "get eservices -o custom-columns=NAME:.metadata.name,AT:.eSiteName",
            Prints("NAME      AT\narchive   Roma\ncamera    Oslo\n"),
        );
        kubectl.row(
            "a Go template",
            "get eservices '-ogo-template={{range .items}}{{.metadata.name}} {{end}}'",
            Prints("archive camera "),
        );
        kubectl.row(
            "several names at once",
            "get esites Oslo Roma -o name",
            Prints("esite/Oslo\nesite/Roma\n"),
        );
        kubectl.row(
            "several kinds at once",
            "get esite/Roma eservice/camera -o name",
            Prints("esite/Roma\neservice/camera\n"),
        );

        let one: Value = serde_json::from_str(&kubectl.ok("get esite Oslo -o json")).unwrap();
        assert_eq!((one["kind"].as_str(), one["metadata"]["name"].as_str()), (Some("ESite"), Some("Oslo")));
        let list: Value = serde_json::from_str(&kubectl.ok("get esites -o json")).unwrap();
        assert_eq!((list["kind"].as_str(), list["items"].as_array().unwrap().len()), (Some("List"), 4));
        if kubectl.minor > 20 {
            assert!(one["metadata"].get("managedFields").is_none());
            kubectl.row(
                "managed fields when asked for",
                "get esite Oslo -o json --show-managed-fields",
                Shows(&["managedFields", "kubectl-create", "FieldsV1"]),
            );
        }
    });
}

#[test]
fn objects_are_found_by_short_name_category_and_selector() {
    each_kubectl(|_, kubectl| {
        furnish(kubectl);
        for (plural, short) in [("esites", "est"), ("eservices", "esvc"), ("egateways", "egw")] {
            let long = kubectl.ok(&format!("get {plural}.causeway.io -o name"));
            kubectl.row("a short name means the same", &format!("get {short} -o name"), Prints(&long));
        }
        let all = kubectl.ok("get causeway -o name");
        assert_eq!(all.lines().count(), 4 + 1 + 2, "the category holds everything once:\n{all}");
        for (sentence, line, expected) in [
            ("equal", "get esites -l region=north -o name", "esite/Bergen\nesite/Oslo\n"),
            ("not equal", "get esites -l region!=north -o name", "esite/Roma\nesite/cloud\n"),
            ("in a set", "get esites -l 'region in (south,west)' -o name", "esite/Roma\n"),
            ("not in a set", "get esites -l 'region notin (north),region' -o name", "esite/Roma\n"),
            ("absent", "get esites -l !region -o name", "esite/cloud\n"),
            ("by name", "get esites --field-selector metadata.name=Roma -o name", "esite/Roma\n"),
            ("by reference", "get eservices --field-selector eSiteName=Oslo -o name", "eservice/camera\n"),
            (
                "by reference, not",
                "get eservices --field-selector eSiteName!=Oslo -o name",
                "eservice/archive\n",
            ),
            ("nothing fits", "get eservices --field-selector eSiteName=Nowhere -o name", ""),
        ] {
            kubectl.row(sentence, line, Prints(expected));
        }
        kubectl.row(
            "a field that cannot be selected is refused",
            "get eservices --field-selector port=80",
            Refused(&["port"]),
        );
        kubectl.row("a selector must be one", "get esites -l '=='", Refused(&[]));
        kubectl.row(
            "what is not there is said so",
            "get esite Nowhere",
            Refused(&["NotFound", "\"Nowhere\" not found"]),
        );
        kubectl.row(
            "a kind that is none is said so",
            "get pods",
            Refused(&["doesn't have a resource type \"pods\""]),
        );
        kubectl.row("unless it does not matter", "get esite Nowhere --ignore-not-found", Prints(""));
    });
}

#[test]
fn pages_and_order_show_everything_once() {
    each_kubectl(|_, kubectl| {
        let many: String =
            (0..25).map(|n| site(&format!("site-{n:02}"), &format!("10.{}.0.0/16", 90 - n))).collect();
        kubectl.ok_with(&many, "create -f -");
        let whole = kubectl.ok("get esites -o name --chunk-size=0");
        assert_eq!(whole.lines().count(), 26);
        for size in [1, 7, 25, 26, 500] {
            let line = format!("get esites -o name --chunk-size={size}");
            kubectl.row("pages make the same list", &line, Prints(&whole));
        }
        let names: String = whole.replace("esite/", "");
        let table = kubectl.ok("get esites --no-headers --chunk-size=4");
        let firsts: String =
            table.lines().map(|line| format!("{}\n", line.split(' ').next().unwrap())).collect();
        assert_eq!(firsts, names, "tables come in pages too");
        let sorted = kubectl.ok("get esites -l '!x' --sort-by=.subnets[0] -o name");
        let mut backwards: Vec<&str> = sorted.lines().filter(|line| line.contains("site-")).collect();
        backwards.reverse();
        let forwards: Vec<&str> = whole.lines().filter(|line| line.contains("site-")).collect();
        assert_eq!(backwards, forwards);
        kubectl.row("by name", "get esites --sort-by=.metadata.name -o name", Prints(&whole));
    });
}

#[test]
fn a_watch_sees_every_change() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let mut watch = kubectl.command("get esites -w --no-headers --output-watch-events");
        let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The reconciler's writes are changes too; each step looks for its own.
        let mut sees = |parts: &[&str]| {
            let found = lines.by_ref().find(|line| parts.iter().all(|part| line.contains(part)));
            assert!(found.is_some(), "the watch ended without {parts:?}");
        };
        sees(&["ADDED", "Oslo", "10.1.0.0/16"]);
        kubectl.ok(r#"patch esite Oslo --type=merge -p '{"subnets":["10.2.0.0/16"]}'"#);
        sees(&["MODIFIED", "Oslo", "10.2.0.0/16"]);
        kubectl.ok_with(&site("Bergen", "10.3.0.0/16"), "create -f -");
        sees(&["ADDED", "Bergen", "10.3.0.0/16"]);
        kubectl.ok("delete esite Oslo");
        sees(&["DELETED", "Oslo"]);
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn describe_shows_fields_and_conditions() {
    each_kubectl(|_, kubectl| {
        kubectl.ok(&format!("create -f {}", here("data/documents-objects.json")));
        kubectl.ok("wait --for=condition=PoliciesResolved=False sx/TykyoChibaNginx --timeout=60s");
        kubectl.row(
            "fields and conditions are there",
            "describe sx TykyoChibaNginx",
            Shows(&[
                "Name:",
                "TykyoChibaNginx",
                "url1.test.com",
                "PoliciesResolved",
                "Policy2",
                "Kind:",
                "ServiceExpose",
            ]),
        );
        kubectl.row("by its first letters", "describe sx Tykyo", Shows(&["url1.test.com"]));
    });
}
