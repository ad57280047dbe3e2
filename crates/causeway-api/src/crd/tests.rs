//! The committed files match the types, and parse as the intended values.

use std::path::PathBuf;

use super::*;

#[test]
fn crd_files_are_the_types() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds"));
    let update = std::env::var_os("UPDATE").is_some();
    for kind in Kind::ALL {
        let path = folder.join(file_name(kind));
        if update {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, yaml(kind)).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == yaml(kind),
            "{} does not match the types; run UPDATE=1 cargo nextest run -p causeway-api crd",
            path.display()
        );
    }
}

#[test]
fn the_yaml_reads_as_the_value() {
    for kind in Kind::ALL {
        let read: Value = serde_saphyr::from_str(&yaml(kind)).unwrap();
        assert_eq!(read, definition(kind), "{kind}");
    }
    let odd = json!({
        "a": [], "b": {}, "c": [[1, [2]], {"d": null, "e": [{"f": "g"}]}], "h: i": "- j", "k": "true", "l": "", "m": "# n",
        "o": "1.5", "p": "two\nlines", "q": -1, "r": 1.5, "s": ["x: y", "\"", "'"], "no": "~", "t": "é", "u": " v ",
    });
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml::write(&odd)).unwrap(), odd);
}
