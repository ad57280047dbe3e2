//! Making objects with kubectl: create, apply on either side, diff, replace, dry run, strict fields.

use crate::kubectl::Expected::{Prints, Refused, Shows, Warns};
use crate::{each_kubectl, site};

#[test]
fn create_apply_and_replace_tell_what_they_did() {
    each_kubectl(|lab, kubectl| {
        let before = lab.file("before.yaml", &site("Oslo", "10.1.0.0/16"));
        let after = lab.file("after.yaml", &site("Oslo", "10.2.0.0/16"));
        let subnets = "get esite Oslo '-ojsonpath={.subnets}'";
        kubectl.row(
            "an object is created",
            &format!("create -f {before}"),
            Prints("esite.causeway.io/Oslo created\n"),
        );
        kubectl.row(
            "it cannot be created twice",
            &format!("create -f {before}"),
            Refused(&["AlreadyExists", "\"Oslo\" already exists"]),
        );
        kubectl.row(
            "what was created is replaced",
            &format!("replace -f {after}"),
            Prints("esite.causeway.io/Oslo replaced\n"),
        );
        kubectl.row("the new value is there", subnets, Prints(r#"["10.2.0.0/16"]"#));
        kubectl.row(
            "what does not exist cannot be replaced",
            &format!("replace -f {}", lab.file("other.yaml", &site("Bergen", "10.1.0.0/16"))),
            Refused(&["NotFound"]),
        );
        kubectl.ok("delete esite Oslo");
        for (sentence, file, outcome) in [
            ("apply creates", &before, "created"),
            ("a second apply changes nothing", &before, "unchanged"),
            ("another value is configured", &after, "configured"),
        ] {
            let expected = format!("esite.causeway.io/Oslo {outcome}\n");
            kubectl.row(sentence, &format!("apply -f {file}"), Prints(&expected));
        }
        let gone = "{kind: ESite, apiVersion: causeway.io/v1, metadata: {name: Oslo}}";
        kubectl.row_with(
            "a field that left the file leaves the object",
            gone,
            "apply -f -",
            Prints("esite.causeway.io/Oslo configured\n"),
        );
        kubectl.row("it has left", subnets, Prints(""));
        kubectl.row_with(
            "a name can be generated",
            "{kind: ESite, apiVersion: v1, metadata: {generateName: many-}}",
            "create -f - -o name",
            Shows(&["esite/many-"]),
        );
    });
}

#[test]
fn what_was_written_as_nothing_is_no_drift() {
    each_kubectl(|lab, kubectl| {
        let gateway = "{kind: EGateway, apiVersion: causeway.io/v1, metadata: {name: gw}, eSiteName: Oslo, relay: false, priority: 0}";
        let service = "{kind: EService, apiVersion: causeway.io/v1, metadata: {name: web}, eSiteName: Oslo, ip: 10.0.0.1, port: 80, endpoints: [], proxyProtocol: false}";
        let policy = "{kind: EPolicy, apiVersion: causeway.io/v1, metadata: {name: pol}, allowedSites: [], http: [{methods: [], paths: [/a]}]}";
        for (name, text) in [("egateway", gateway), ("eservice", service), ("epolicy", policy)] {
            // A file that begins with a brace would be JSON to kubectl.
            let file = lab.file(&format!("{name}.yaml"), &format!("---\n{text}\n"));
            kubectl.row("apply creates", &format!("apply -f {file}"), Shows(&["created"]));
            kubectl.row("a second apply changes nothing", &format!("apply -f {file}"), Shows(&["unchanged"]));
            kubectl.row("nothing differs", &format!("diff -f {file}"), Prints(""));
            let server_side = format!("apply --server-side --force-conflicts -f {file}");
            kubectl.row("server-side as well", &server_side, Shows(&["serverside-applied"]));
            kubectl.row("and nothing differs", &format!("diff -f {file}"), Prints(""));
        }
    });
}

#[test]
fn the_core_path_takes_the_same_objects() {
    each_kubectl(|lab, kubectl| {
        let text = site("Oslo", "10.1.0.0/16").replace("causeway.io/v1", "v1");
        let file = lab.file("core.yaml", &text);
        kubectl.row("apply under v1 creates", &format!("apply -f {file}"), Prints("esite/Oslo created\n"));
        kubectl.row(
            "and changes nothing later",
            &format!("apply -f {file}"),
            Prints("esite/Oslo unchanged\n"),
        );
        kubectl.row(
            "it is the same object under the group",
            "get esites.causeway.io Oslo -o name",
            Prints("esite.causeway.io/Oslo\n"),
        );
    });
}

#[test]
fn server_side_apply_shows_a_conflict_and_who_owns_the_field() {
    each_kubectl(|lab, kubectl| {
        let first = lab.file("first.yaml", &site("Oslo", "10.1.0.0/16"));
        let second = lab.file("second.yaml", &site("Oslo", "10.2.0.0/16"));
        let apply = |file: &str, manager: &str, more: &str| {
            format!("apply --server-side --field-manager={manager} -f {file} {more}")
        };
        let applied = Prints("esite.causeway.io/Oslo serverside-applied\n");
        kubectl.row("it is applied", &apply(&first, "first", ""), applied);
        let version = kubectl.ok("get esite Oslo '-ojsonpath={.metadata.generation}'");
        let applied = Prints("esite.causeway.io/Oslo serverside-applied\n");
        kubectl.row("a second time changes nothing", &apply(&first, "first", ""), applied);
        kubectl.row(
            "no new generation",
            "get esite Oslo '-ojsonpath={.metadata.generation}'",
            Prints(&version),
        );
        kubectl.row(
            "another manager is told whose field it is",
            &apply(&second, "second", ""),
            Refused(&["conflict", "\"first\"", ".subnets", "--force-conflicts"]),
        );
        kubectl.row(
            "nothing was changed",
            "get esite Oslo '-ojsonpath={.subnets[0]}'",
            Prints("10.1.0.0/16"),
        );
        let applied = Prints("esite.causeway.io/Oslo serverside-applied\n");
        kubectl.row("it can insist", &apply(&second, "second", "--force-conflicts"), applied);
        kubectl.row("then it is changed", "get esite Oslo '-ojsonpath={.subnets[0]}'", Prints("10.2.0.0/16"));
        kubectl.row(
            "the first manager has lost the field",
            &apply(&first, "first", ""),
            Refused(&["\"second\"", ".subnets"]),
        );
        kubectl.row(
            "two managers can own the same value",
            &apply(&second, "third", ""),
            Prints("esite.causeway.io/Oslo serverside-applied\n"),
        );
        let show = if kubectl.minor > 20 { "--show-managed-fields" } else { "" };
        kubectl.row(
            "the owners are written in the object",
            &format!("get esite Oslo -o yaml {show}"),
            Shows(&["manager: second", "manager: third", "operation: Apply", "f:subnets"]),
        );
    });
}

#[test]
fn client_side_applied_objects_move_to_the_server_side() {
    each_kubectl(|lab, kubectl| {
        let first = lab.file("first.yaml", &site("Oslo", "10.1.0.0/16"));
        let second = lab.file("second.yaml", &site("Oslo", "10.2.0.0/16"));
        kubectl.ok(&format!("apply -f {first}"));
        kubectl.row(
            "the same manager goes on, on the other side",
            &format!("apply --server-side -f {first}"),
            Prints("esite.causeway.io/Oslo serverside-applied\n"),
        );
        if kubectl.minor >= 26 {
            // From then on kubectl takes over what it owned on its own side.
            kubectl.row(
                "it may change its own field",
                &format!("apply --server-side -f {second}"),
                Prints("esite.causeway.io/Oslo serverside-applied\n"),
            );
            kubectl.row("it is changed", "get esite Oslo '-ojsonpath={.subnets[0]}'", Prints("10.2.0.0/16"));
        }
    });
}

#[test]
fn diff_ends_with_one_only_when_there_is_a_difference() {
    each_kubectl(|lab, kubectl| {
        let before = lab.file("before.yaml", &site("Oslo", "10.1.0.0/16"));
        let after = lab.file("after.yaml", &site("Oslo", "10.2.0.0/16"));
        kubectl.ok(&format!("apply -f {before}"));
        kubectl.row("no difference, no output", &format!("diff -f {before}"), Prints(""));
        let ran = kubectl.run(&format!("diff -f {after}"));
        assert_eq!(ran.code, 1, "{ran:?}");
        for part in ["-- 10.1.0.0/16", "+- 10.2.0.0/16"] {
            assert!(ran.stdout.contains(part), "{part} is missing in\n{}", ran.stdout);
        }
        kubectl.row(
            "nothing was applied",
            "get esite Oslo '-ojsonpath={.subnets[0]}'",
            Prints("10.1.0.0/16"),
        );
        if kubectl.minor > 20 {
            kubectl.ok(&format!("apply --server-side -f {before}"));
            kubectl.row("none on the server side", &format!("diff --server-side -f {before}"), Prints(""));
        }
        let new = lab.file("new.yaml", &site("Bergen", "10.3.0.0/16"));
        assert_eq!(kubectl.run(&format!("diff -f {new}")).code, 1, "a new object is a difference");
        kubectl.row("and is not made", "get esite Bergen", Refused(&["NotFound"]));
    });
}

#[test]
fn a_dry_run_leaves_nothing() {
    each_kubectl(|lab, kubectl| {
        let oslo = lab.file("oslo.yaml", &site("Oslo", "10.1.0.0/16"));
        let created = Prints("esite.causeway.io/Oslo created (server dry run)\n");
        kubectl.row("create", &format!("create --dry-run=server -f {oslo}"), created);
        let created = Prints("esite.causeway.io/Oslo created (server dry run)\n");
        kubectl.row("apply", &format!("apply --dry-run=server -f {oslo}"), created);
        kubectl.row("nothing is there", "get esite Oslo", Refused(&["NotFound"]));
        kubectl.ok(&format!("create -f {oslo}"));
        let line =
            r#"patch esite Oslo --type=merge --dry-run=server -p '{"subnets":["10.9.0.0/16"]}' -o yaml"#;
        kubectl.row("a patch shows what would be", line, Shows(&["10.9.0.0/16"]));
        kubectl.row("delete", "delete esite Oslo --dry-run=server", Shows(&["deleted"]));
        kubectl.row("it is as it was", "get esite Oslo '-ojsonpath={.subnets[0]}'", Prints("10.1.0.0/16"));
        kubectl.row_with(
            "a refusal comes in a dry run too",
            &site("Bergen", "nonsense"),
            "create --dry-run=server -f -",
            Refused(&["subnets[0]", "nonsense"]),
        );
    });
}

#[test]
fn unknown_fields_are_refused_or_warned_about_as_asked() {
    each_kubectl(|_, kubectl| {
        let text = "{kind: ESite, apiVersion: causeway.io/v1, metadata: {name: Oslo}, colour: red}";
        if kubectl.minor < 25 {
            // Validates by itself, with the schema from our OpenAPI.
            kubectl.row_with("the schema knows no such field", text, "create -f -", Refused(&["colour"]));
            kubectl.row_with(
                "unless told not to look",
                text,
                "create --validate=false -f -",
                Shows(&["created"]),
            );
            return;
        }
        for how in ["", "--validate=strict", "--validate=true"] {
            let line = format!("create {how} -f -");
            kubectl.row_with("strict refuses it", text, &line, Refused(&["unknown field \"colour\""]));
        }
        kubectl.row("nothing was made", "get esite Oslo", Refused(&["NotFound"]));
        kubectl.row_with(
            "warn warns",
            text,
            "create --validate=warn -f -",
            Warns(&["Warning: unknown field \"colour\""]),
        );
        kubectl.ok("delete esite Oslo");
        kubectl.row_with("ignore is silent", text, "create --validate=ignore -f -", Shows(&["created"]));
    });
}
