//! Compares a configuration that was read again with the one that runs.
//!
//! Input: two configurations. Output: the settings that differ, each with whether it can be put in force
//! without a restart. `commands::reload` puts those in force and logs the remaining ones.

use serde_json::Value;

use super::{Config, ProcessRole};

/// One setting that differs from the one that runs.
#[derive(Debug, PartialEq)]
pub struct Change {
    /// As in the file: `log.filter`, or `data-dir`, which is in no section.
    pub setting: String,
    pub from: Value,
    pub to: Value,
    pub applies: Applies,
}

/// When a changed setting is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    Now,
    AfterRestart,
}

/// The settings of one role that differ, in the order in which they are shown.
pub fn changes(running: &Config, read: &Config, role: ProcessRole) -> Vec<Change> {
    let pairs = running.settings().into_iter().zip(read.settings());
    let of_role = |section: &str| match role {
        ProcessRole::Cloud => section != "edge",
        ProcessRole::Edge => section != "cloud" && !section.starts_with("audit"),
    };
    pairs
        .filter(|((section, _, from, _), (_, _, to, _))| of_role(section) && from != to)
        .map(|((section, key, from, _), (_, _, to, _))| {
            let setting = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            let applies = match setting.as_str() {
                "log.filter" | "gateway.backends-allow" | "gateway.backends-deny" => Applies::Now,
                _ => Applies::AfterRestart,
            };
            Change { setting, from, to, applies }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layer;

    fn config(text: &str) -> Config {
        Config::resolve(toml::from_str(text).unwrap(), Layer::default(), Layer::default())
    }

    #[test]
    fn what_differs_is_named_with_when_it_applies() {
        let check = |role: ProcessRole, before: &str, after: &str, expected: &[(&str, Applies)]| {
            let found = changes(&config(before), &config(after), role);
            let found: Vec<(&str, Applies)> =
                found.iter().map(|change| (change.setting.as_str(), change.applies)).collect();
            assert_eq!(found, expected, "{after}");
        };
        check(ProcessRole::Cloud, "", "", &[]);
        check(ProcessRole::Cloud, "", "log.filter = 'debug'", &[("log.filter", Applies::Now)]);
        check(ProcessRole::Cloud, "log.filter = 'debug'", "", &[("log.filter", Applies::Now)]);
        let rules = "[gateway]\nbackends-allow = ['169.254.1.1']\nbackends-deny = ['10.0.0.0/8']";
        let now = |name| (name, Applies::Now);
        check(ProcessRole::Edge, "", rules, &[now("gateway.backends-allow"), now("gateway.backends-deny")]);
        let moved = "data-dir = '/x'\n[cloud]\napi = '127.0.0.1:1'\n[gateway]\npresence = 'off'\n[log]\nformat = 'json'";
        let later = |name| (name, Applies::AfterRestart);
        check(
            ProcessRole::Cloud,
            "",
            moved,
            &[later("data-dir"), later("log.format"), later("cloud.api"), later("gateway.presence")],
        );
        check(ProcessRole::Edge, "", "[cloud]\napi = '127.0.0.1:1'", &[]);
        check(ProcessRole::Edge, "", "[edge]\ntransport = 'tcp'", &[later("edge.transport")]);
    }
}
