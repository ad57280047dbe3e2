//! Rows on what is understood, and where a mistake is shown.

use super::*;

fn text(form: ManifestFormat, text: &str) -> ManifestText {
    let name = match form {
        ManifestFormat::Json => "f.json",
        ManifestFormat::Yaml => "f.yaml",
        ManifestFormat::Unknown => "stdin",
    };
    ManifestText { name: name.to_owned(), form, text: text.to_owned() }
}

fn names(form: ManifestFormat, content: &str) -> Vec<String> {
    let manifests = parse(&[text(form, content)]).unwrap();
    manifests.iter().map(|manifest| format!("{}/{}", manifest.kind.singular(), manifest.name)).collect()
}

fn refusal(form: ManifestFormat, content: &str) -> String {
    parse(&[text(form, content)]).unwrap_err().to_string()
}

#[test]
fn every_way_to_write_objects_is_understood() {
    let two = ["esite/a", "esite/b"];
    let yaml = "kind: ESite\napiVersion: v1\nmetadata: {name: a}\n---\n# nothing\n---\nkind: ESite\napiVersion: causeway.io/v1\nmetadata:\n  name: b\n";
    assert_eq!(names(ManifestFormat::Yaml, yaml), two);
    assert_eq!(names(ManifestFormat::Unknown, yaml), two);
    let json = r#"{"kind":"ESite","apiVersion":"v1","metadata":{"name":"a"}} {"kind":"ESite","apiVersion":"v1","metadata":{"name":"b"}}"#;
    assert_eq!(names(ManifestFormat::Json, json), two);
    assert_eq!(names(ManifestFormat::Unknown, json), two);
    let list = r#"{"kind":"List","apiVersion":"v1","items":[{"kind":"ESite","apiVersion":"v1","metadata":{"name":"a"}},
        {"kind":"ESiteList","apiVersion":"causeway.io/v1","items":[{"metadata":{"name":"b"}}]}]}"#;
    assert_eq!(names(ManifestFormat::Json, list), two);
    assert_eq!(names(ManifestFormat::Yaml, list), two);
    assert_eq!(
        names(ManifestFormat::Unknown, "{kind: ESite, apiVersion: v1, metadata: {name: a}}"),
        ["esite/a"]
    );
    assert_eq!(names(ManifestFormat::Unknown, ""), Vec::<String>::new());
    assert_eq!(names(ManifestFormat::Yaml, "---\n---\n"), Vec::<String>::new());
}

#[test]
fn objects_without_a_name_take_the_one_they_imply() {
    let server = "{kind: EServer, apiVersion: v1, eServerName: Server1, ip: 10.0.0.20}";
    assert_eq!(names(ManifestFormat::Yaml, server), ["eserver/Server1"]);
    let expose = "{kind: ServiceExpose, apiVersion: v1, eServiceName: web, dnsName: web.example.org}";
    assert_eq!(names(ManifestFormat::Yaml, expose), ["serviceexpose/web"]);
    assert!(
        refusal(ManifestFormat::Yaml, "{kind: ESite, apiVersion: v1}")
            .contains("f.yaml, document 1: this ESite has no name")
    );
}

#[test]
fn a_syntax_error_has_file_line_and_column() {
    let check = |form, content: &str, place: &str, why: &str| {
        let refusal = refusal(form, content);
        assert!(refusal.starts_with(place), "{content:?}: {refusal}");
        assert!(refusal.contains(why), "{content:?}: {refusal}");
    };
    check(
        ManifestFormat::Json,
        "{\"kind\": \"ESite\"\n  \"apiVersion\": \"v1\"}",
        "f.json:2:3: ",
        "expected `,` or `}`",
    );
    check(ManifestFormat::Json, "{\"ä\": tru}", "f.json:1:10: ", "expected");
    check(ManifestFormat::Json, "{\"a\": 1", "f.json:1:7: ", "EOF");
    check(ManifestFormat::Json, "{\"a\": {\"b\": 1,\n \"b\": 2}}", "f.json:2:4: ", "key `b` occurs twice");
    check(ManifestFormat::Yaml, "kind: ESite\nkind: ESite\n", "f.yaml:2:1: ", "kind");
    check(ManifestFormat::Yaml, "kind: ESite\nmetadata:\n  name: a\n bad: b\n", "f.yaml:4:", "");
    check(ManifestFormat::Yaml, "kind: [a, b\n", "f.yaml:", "");
    check(ManifestFormat::Yaml, "kind: *missing\n", "f.yaml:1:7: ", "unknown anchor");
    check(ManifestFormat::Yaml, "a: 1\n---\nkind: \"open\n", "f.yaml:", "");
    check(ManifestFormat::Unknown, "{\"kind\": \"a\" \"b\"}", "stdin:1:14: ", "expected `,` or `}`");
}

#[test]
fn a_wrong_object_is_named_by_file_and_document() {
    let check = |content: &str, expected: &str| {
        let refusal = refusal(ManifestFormat::Yaml, content);
        assert!(refusal.contains(expected), "{content:?}: {refusal}");
    };
    check(
        "{kind: ESite, apiVersion: v1, metadata: {name: a}}\n---\n{kind: Pod, apiVersion: v1}",
        "f.yaml, document 2: kind `Pod` is unknown",
    );
    check("{kind: ESite, apiVersion: apps/v1}", "document 1: apiVersion `apps/v1` is unknown");
    check("{kind: Esite, apiVersion: v1}", "kind `Esite` is unknown: did you mean ESite? use one of");
    check("{kind: ESite}", "`apiVersion` is missing");
    check("{apiVersion: v1}", "`kind` is missing");
    check("{kind: 5, apiVersion: v1}", "`kind` must be a string");
    check("just words", "an object is expected");
    check(
        "{kind: List, apiVersion: v1, items: [{kind: ESite, apiVersion: v1, metadata: {name: a}}, {kind: X, apiVersion: v1}]}",
        "document 1, item 2: kind `X`",
    );
    check("{kind: List, apiVersion: v1, items: 5}", "`items` of a list must be a list");
    check("{kind: EService, apiVersion: v1, metadata: {name: a}, port: many}", "port");
}

#[test]
fn bombs_do_not_go_off() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    refusal(ManifestFormat::Yaml, &bomb);
    refusal(ManifestFormat::Yaml, &"[".repeat(100_000));
    refusal(ManifestFormat::Json, &"[".repeat(100_000));
    refusal(ManifestFormat::Yaml, "a: &a [*a]");
}

#[test]
fn what_the_server_wrote_is_not_applied_back() {
    let content = "{kind: ESite, apiVersion: v1, metadata: {name: a, uid: x, resourceVersion: '5', managedFields: [], labels: {l: v}}, status: {conditions: []}}";
    let manifests = parse(&[text(ManifestFormat::Yaml, content)]).unwrap();
    let expected = serde_json::json!({"kind": "ESite", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"l": "v"}}});
    assert_eq!(manifests[0].value, expected);
}

#[test]
fn folders_are_read_in_order_and_only_manifests() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("b.yaml", "b"), ("a.json", "a"), ("notes.txt", "x"), ("c.yml", "c")] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    std::fs::create_dir(folder.path().join("deep")).unwrap();
    std::fs::write(folder.path().join("deep/d.yaml"), "d").unwrap();
    let read = |recursive| -> Vec<String> {
        let texts = gather(&[folder.path().to_owned()], recursive).unwrap();
        texts.into_iter().map(|text| text.text).collect()
    };
    assert_eq!(read(false), ["a", "b", "c"]);
    assert_eq!(read(true), ["a", "b", "c", "d"]);
    let missing = gather(&[folder.path().join("missing.yaml")], false).unwrap_err();
    assert!(missing.to_string().contains("missing.yaml cannot be read"));
}
