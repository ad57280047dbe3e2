//! Checks the commented configuration files in `deploy/config` that packages install.
//!
//! A file must be valid as it is, and with every setting switched on; it must name every setting of its role once, and
//! a setting that is commented out must show the default, where there is one.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Config, Layer, SettingOrigin, parse};

const CLOUD: &str = include_str!("../../../../deploy/config/cloud.toml");
const EDGE: &str = include_str!("../../../../deploy/config/edge.toml");

#[test]
fn the_example_files_are_valid_and_complete() {
    check("cloud.toml", CLOUD, &["edge", "kubernetes"]);
    let audit = [
        "audit.export",
        "audit.export.files",
        "audit.export.webhook",
        "audit.export.syslog",
        "audit.export.otlp",
    ];
    check("edge.toml", EDGE, &[&["cloud"][..], &audit].concat());
}

fn check(name: &str, text: &str, other_role: &[&str]) {
    let resolve = |text: &str| {
        let layer = parse(name, text).map_err(|problem| format!("{name}: {problem:?}")).unwrap();
        let config = Config::resolve(layer, Layer::default(), Layer::default());
        config.check().map_err(|error| format!("{name}: {error}")).unwrap();
        config
    };
    let as_installed = resolve(text);
    let switched_on = resolve(&uncomment(text));
    let defaults = Config::resolve(Layer::default(), Layer::default(), Layer::default());
    let installed: BTreeSet<(&str, &str)> = as_installed
        .settings()
        .into_iter()
        .filter(|(.., origin)| *origin == SettingOrigin::File)
        .map(|(section, key, ..)| (section, key))
        .collect();
    for ((section, key, value, origin), (_, _, default, _)) in
        switched_on.settings().into_iter().zip(defaults.settings())
    {
        let is_of_role = !other_role.contains(&section);
        assert_eq!(origin == SettingOrigin::File, is_of_role, "{name}: {section}.{key}");
        let is_set_by_default = default != Value::Null && default != Value::Array(Vec::new());
        if is_of_role && is_set_by_default && !installed.contains(&(section, key)) {
            assert_eq!(value, default, "{name}: {section}.{key} does not show its default");
        }
    }
}

/// Switches on every setting: a `#` right before a name is removed, a comment has a space behind its `#`.
fn uncomment(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|first: char| first.is_ascii_lowercase()) => setting.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(|text| line(text) + "\n").collect()
}
