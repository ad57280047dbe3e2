//! Files of objects as users write them: YAML and JSON, several documents, lists.
//!
//! The parser is part of the binary, which is no library, so its files are compiled into this target.
//! Invariants: a parsed object has a name and can be decoded, and written as JSON it parses as the same; an
//! error can be shown at its position.
#![no_main]

use causeway_api::Object;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/causeway/src"]
#[allow(dead_code)]
mod program {
    pub mod manifest;
    pub mod problem;
}
use program::{manifest, problem};

use manifest::{Form, Manifest, Text};

fuzz_target!(|text: &str| {
    for form in [Form::Json, Form::Yaml, Form::Unknown] {
        match parse(form, text) {
            Ok(manifests) => check(&manifests),
            Err(error) => show(&error),
        }
    }
});

fn parse(form: Form, text: &str) -> anyhow::Result<Vec<Manifest>> {
    manifest::parse(&[Text { name: "file".to_owned(), form, text: text.to_owned() }])
}

fn check(manifests: &[Manifest]) {
    let mut written = String::new();
    for manifest in manifests {
        assert!(!manifest.name.is_empty());
        let decoded =
            Object::decode(manifest.kind, manifest.value.clone()).expect("what was read can be decoded");
        assert_eq!(decoded.object.name(), manifest.name);
        written.push_str(&manifest.value.to_string());
        written.push('\n');
    }
    let again = parse(Form::Json, &written).expect("what was read can be written and read");
    assert_eq!(again.len(), manifests.len());
    for (again, manifest) in again.iter().zip(manifests) {
        assert_eq!(
            (again.kind, again.version, &again.name),
            (manifest.kind, manifest.version, &manifest.name)
        );
        assert_eq!(again.value, manifest.value);
    }
}

fn show(error: &anyhow::Error) {
    if let Some(problem) = error.downcast_ref::<problem::Problem>() {
        assert!(problem.to_string().starts_with("file:"));
        assert!(!problem.render(false).is_empty());
        assert!(!problem.render(true).is_empty());
    } else {
        assert!(error.to_string().starts_with("file, document "), "{error}");
    }
}
