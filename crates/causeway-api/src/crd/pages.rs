//! Renders `docs/objects/KIND.md`, one page for each kind, from the types: every field with its comment, and an example of `examples/`.
//!
//! A test compares the pages with the committed ones; `UPDATE=1 cargo nextest run -p causeway-api crd` writes them.

use std::fmt::Write;
use std::path::PathBuf;

use super::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn crd_pages_are_as_the_types_say() {
    let folder = PathBuf::from(ROOT).join("docs/objects");
    for kind in Kind::ALL {
        let path = folder.join(format!("{}.md", kind.singular()));
        let page = page(kind);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &page).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let advice = "UPDATE=1 cargo nextest run -p causeway-api crd";
        assert!(committed == page, "{} does not match the types; run {advice}", path.display());
    }
}

fn page(kind: Kind) -> String {
    let definition = definition(kind);
    let version = &definition["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut page = format!(
        "# {}\n\n<!-- Written by `UPDATE=1 cargo nextest run -p causeway-api crd` from the types. Do not edit. -->\n\n{}\n\n",
        kind.name(),
        sentence(&schema["description"])
    );
    let short = kind.short();
    writeln!(
        page,
        "`kubectl get {}`, short `{short}`. Cluster-wide, API version `causeway.io/v1`.\n",
        kind.plural()
    )
    .unwrap();
    writeln!(page, "```yaml\n{}\n```\n", example(kind)).unwrap();
    let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
    let columns: Vec<&str> = columns.filter_map(|column| column["name"].as_str()).collect();
    writeln!(page, "`kubectl get` shows: {}.\n", columns.join(", ")).unwrap();
    page.push_str("## Fields\n\n| field | type | meaning |\n| --- | --- | --- |\n");
    rows(&mut page, schema, "", &["apiVersion", "kind", "metadata", "status"]);
    if schema["properties"].get("status").is_some() {
        page.push_str(
            "\n## Status\n\nWritten by the cloud.\n\n| field | type | meaning |\n| --- | --- | --- |\n",
        );
        rows(&mut page, &schema["properties"]["status"], "", &[]);
    }
    page
}

/// One row for each field, those of nested objects under the name of the outer field.
fn rows(page: &mut String, schema: &Value, above: &str, without: &[&str]) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if without.contains(&name.as_str()) {
            continue;
        }
        let path = format!("{above}{name}");
        let must = if required.contains(&name.as_str()) { ", required" } else { "" };
        writeln!(page, "| `{path}` | {}{must} | {} |", type_of(field), sentence(&field["description"]))
            .unwrap();
        match field["type"].as_str() {
            Some("array") => rows(page, &field["items"], &format!("{path}[]."), &[]),
            _ => rows(page, field, &format!("{path}."), &[]),
        }
    }
}

fn type_of(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> =
            values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    match field["type"].as_str() {
        Some("array") => format!("list of {}", type_of(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!("map of {}", type_of(&field["additionalProperties"]))
        }
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    }
}

/// A comment in one line of a table.
fn sentence(description: &Value) -> String {
    let text = description.as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

/// The first object of this kind in `examples/`.
fn example(kind: Kind) -> String {
    let mut files: Vec<PathBuf> = std::fs::read_dir(PathBuf::from(ROOT).join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let line = format!("kind: {}", kind.name());
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let found = text.split("\n---\n").find(|document| document.lines().any(|text| text == line));
        if let Some(document) = found {
            let start = document.find("apiVersion:").unwrap();
            return document[start..].trim_end().to_owned();
        }
    }
    panic!("examples/ has no {}", kind.name())
}
