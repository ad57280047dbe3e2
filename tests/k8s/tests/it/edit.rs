//! Changing one object by hand: edit, patch of each type, label, annotate.

use crate::kubectl::Expected::{Prints, Refused, Shows};
use crate::kubectl::Kubectl;
use crate::{each_kubectl, site};

fn subnet(kubectl: &Kubectl) -> String {
    kubectl.ok("get esite Oslo '-ojsonpath={.subnets[*]}'")
}

#[test]
fn edit_saves_what_the_editor_wrote() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let edit = |editor: &str| {
            let mut command = kubectl.command("edit esite Oslo");
            command.env("KUBE_EDITOR", editor);
            testlab::causeway::finish(command, None).unwrap()
        };
        let changed = edit("sed -i s#10.1.0.0/16#10.2.0.0/16#");
        assert_eq!((changed.code, changed.stdout.as_str()), (0, "esite/Oslo edited\n"), "{}", changed.stderr);
        assert_eq!(subnet(kubectl), "10.2.0.0/16");
        let same = edit("true");
        assert_eq!(same.code, 0);
        assert!(
            same.stderr.contains("no changes made") || same.stdout.contains("no changes made"),
            "{same:?}"
        );
        // The first try is refused and opened again with the reason; the second try gives up.
        let refused = edit("sed -i s#10.2.0.0/16#nonsense#");
        assert_ne!(refused.code, 0, "{refused:?}");
        assert!(refused.stderr.contains("esites \"Oslo\" is invalid"), "{refused:?}");
        assert_eq!(subnet(kubectl), "10.2.0.0/16");
    });
}

#[test]
fn patches_of_every_type_are_taken() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        for (sentence, options, after) in [
            (
                "a merge patch replaces a list",
                r#"--type=merge -p '{"subnets":["10.2.0.0/16"]}'"#,
                "10.2.0.0/16",
            ),
            (
                "a JSON patch adds to a list",
                r#"--type=json -p '[{"op":"add","path":"/subnets/-","value":"10.3.0.0/16"}]'"#,
                "10.2.0.0/16 10.3.0.0/16",
            ),
            (
                "a JSON patch tests and removes",
                r#"--type=json -p '[{"op":"test","path":"/subnets/0","value":"10.2.0.0/16"},{"op":"remove","path":"/subnets/0"}]'"#,
                "10.3.0.0/16",
            ),
            (
                "a strategic patch is taken",
                r#"--type=strategic -p '{"subnets":["10.4.0.0/16"]}'"#,
                "10.4.0.0/16",
            ),
            ("strategic is the default", r#"-p '{"subnets":["10.5.0.0/16"]}'"#, "10.5.0.0/16"),
            ("null removes a field", r#"--type=merge -p '{"subnets":null}'"#, ""),
        ] {
            kubectl.row(sentence, &format!("patch esite Oslo {options}"), Prints("esite/Oslo patched\n"));
            assert_eq!(subnet(kubectl), after, "{sentence}");
        }
        kubectl.row(
            "what changes nothing is said so",
            r#"patch esite Oslo --type=merge -p '{"subnets":null}'"#,
            Prints("esite/Oslo patched (no change)\n"),
        );
        kubectl.row(
            "a test that fails is refused",
            r#"patch esite Oslo --type=json -p '[{"op":"test","path":"/kind","value":"EService"}]'"#,
            Refused(&["The request is invalid"]),
        );
        kubectl.row(
            "an invalid result is refused with the field",
            r#"patch esite Oslo --type=merge -p '{"subnets":["nonsense"]}'"#,
            Refused(&["subnets[0]", "nonsense"]),
        );
        kubectl.row(
            "what is not there cannot be patched",
            "patch esite Bergen -p '{}'",
            Refused(&["NotFound"]),
        );
    });
}

#[test]
fn status_is_patched_through_its_own_door() {
    each_kubectl(|_, kubectl| {
        if kubectl.minor < 24 {
            return;
        }
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let condition = r#"{"type":"Painted","status":"True","reason":"ByHand","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}"#;
        let patch = format!(r#"'{{"status":{{"conditions":[{condition}]}},"subnets":[]}}'"#);
        kubectl.row(
            "a condition is written",
            // Strategic: conditions are merged by type, so those of the reconciler stay.
            &format!("patch esite Oslo --subresource=status --type=strategic -p {patch}"),
            Prints("esite/Oslo patched\n"),
        );
        kubectl.row(
            "it is there, and the reconciler's beside it",
            "wait --for=condition=Painted esite/Oslo --timeout=30s",
            Shows(&["condition met"]),
        );
        kubectl.row(
            "the reconciler's own is there as well",
            "wait --for=condition=Ready=False esite/Oslo --timeout=30s",
            Shows(&["condition met"]),
        );
        assert_eq!(subnet(kubectl), "10.1.0.0/16", "the status door changes nothing but status");
        kubectl.row(
            "the other door does not change status",
            r#"patch esite Oslo --type=merge -p '{"status":null}'"#,
            Prints("esite/Oslo patched (no change)\n"),
        );
        kubectl.row(
            "status is read through its door",
            "get esite Oslo --subresource=status -o yaml",
            Shows(&["type: Painted"]),
        );
    });
}

#[test]
fn labels_and_annotations_are_added_kept_and_removed() {
    each_kubectl(|_, kubectl| {
        kubectl.ok_with(&site("Oslo", "10.1.0.0/16"), "create -f -");
        let labelled = "esite/Oslo labeled\n";
        kubectl.row("a label is added", "label esite Oslo region=north", Prints(labelled));
        kubectl.row(
            "it is not overwritten by accident",
            "label esite Oslo region=south",
            Refused(&["'region' already has a value (north), and --overwrite is false"]),
        );
        kubectl.row("but when asked", "label esite Oslo region=south --overwrite", Prints(labelled));
        kubectl.row("it selects", "get esites -l region=south -o name", Prints("esite/Oslo\n"));
        kubectl.row("it is removed", "label esite Oslo region-", Shows(&["esite/Oslo"]));
        kubectl.row("it selects no more", "get esites -l region -o name", Prints(""));
        kubectl.row("a label must be one", "label esite Oslo 'region=with space'", Refused(&["with space"]));
        kubectl.ok("label esites --all fleet=one");
        kubectl.row(
            "all were labelled",
            "get esites -l fleet=one -o name",
            Prints("esite/Oslo\nesite/cloud\n"),
        );

        let annotated = "esite/Oslo annotated\n";
        kubectl.row("an annotation is added", "annotate esite Oslo note=first", Prints(annotated));
        kubectl.row(
            "it is not overwritten by accident",
            "annotate esite Oslo note=second",
            Refused(&["'note' already has a value (first)"]),
        );
        kubectl.row("but when asked", "annotate esite Oslo note=second --overwrite", Prints(annotated));
        let note = "get esite Oslo '-ojsonpath={.metadata.annotations.note}'";
        kubectl.row("it is there", note, Prints("second"));
        kubectl.row("it is removed", "annotate esite Oslo note-", Prints(annotated));
        kubectl.row("it is gone", note, Prints(""));
    });
}
