//! Renders `docs/conditions.md` from the catalog, and compares the catalog with the source.
//!
//! `UPDATE=1 cargo nextest run -p causeway-api conditions` writes the page.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const HEAD: &str = "\
# Conditions

<!-- Written by `UPDATE=1 cargo nextest run -p causeway-api conditions` from `crates/causeway-api/src/conditions/catalog.rs`. Do not edit. -->

Conditions are in `status.conditions` of every object, with a message that names the objects concerned. `kubectl get KIND` shows `Ready`, `causeway describe KIND NAME`
shows all of them, and a change of one is also an event. A condition is True when all is well.
";

/// The files that write conditions, and string literals in them that are no reasons.
const SOURCES: [(&str, &[&str]); 10] = [
    ("crates/causeway-api/src/conditions.rs", &[]),
    ("crates/causeway-api/src/conditions/findings.rs", &[]),
    ("crates/causeway-api/src/conditions/layer3.rs", &[]),
    ("crates/causeway-api/src/conditions/links.rs", &[]),
    ("crates/causeway-api/src/conditions/names.rs", &[]),
    ("crates/causeway-api/src/conditions/presented.rs", &[]),
    ("crates/causeway-cloud/src/reports/computed.rs", &[]),
    ("crates/causeway-cloud/src/sessions/report.rs", &[]),
    ("crates/causeway-cloud/src/netmaps/report.rs", &[]),
    ("crates/causeway-cloud/src/gateway_sites.rs", &[]),
];

#[test]
fn the_page_of_the_conditions_is_as_the_catalog_says() {
    let (path, page) = (format!("{ROOT}/docs/conditions.md"), page());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let advice = "UPDATE=1 cargo nextest run -p causeway-api conditions";
    assert!(committed == page, "docs/conditions.md does not match the catalog; run {advice}");
}

#[test]
fn every_reason_of_the_source_is_in_the_catalog_and_the_reverse() {
    let mut listed: BTreeSet<String> = CATALOG.iter().map(|entry| entry.condition.to_owned()).collect();
    for row in CATALOG.iter().flat_map(|entry| entry.reasons) {
        listed.insert(row.reason.to_owned());
        assert_eq!(row.action.is_empty(), row.status == ConditionStatus::True, "{}", row.reason);
    }
    let mut written = BTreeSet::new();
    for (path, other) in SOURCES {
        let text = std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        written.extend(words(code).filter(|word| !other.contains(&word.as_str())));
    }
    // Reported by the gateway, which has no reason of its own in these files.
    written.insert("TunnelFailed".to_owned());
    let unlisted: Vec<_> = written.difference(&listed).collect();
    let unwritten: Vec<_> = listed.difference(&written).collect();
    assert!(
        unlisted.is_empty() && unwritten.is_empty(),
        "not listed: {unlisted:?}, not written: {unwritten:?}"
    );
}

/// String literals of one word that begins with a capital letter.
fn words(code: &str) -> impl Iterator<Item = String> {
    let is_word = |text: &&str| {
        text.len() > 2
            && text.starts_with(|letter: char| letter.is_ascii_uppercase())
            && text.chars().all(|letter| letter.is_ascii_alphabetic())
    };
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(move |line| line.split('"').skip(1).step_by(2).filter(is_word).map(str::to_owned))
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for kind in Kind::ALL {
        let entries: Vec<_> = CATALOG.iter().filter(|entry| entry.kinds.contains(&kind)).collect();
        if entries.is_empty() {
            continue;
        }
        writeln!(page, "\n## {}\n", kind.name()).unwrap();
        for entry in &entries {
            writeln!(page, "- [`{}`](#{})", entry.condition, entry.condition.to_lowercase()).unwrap();
        }
    }
    for entry in CATALOG {
        let kinds: Vec<&str> = entry.kinds.iter().map(|kind| kind.name()).collect();
        let kinds = if kinds.len() == 8 { "all kinds".to_owned() } else { kinds.join(", ") };
        writeln!(page, "\n## {}\n\nOf {kinds}. {}\n", entry.condition, entry.meaning).unwrap();
        page.push_str("| reason | status | meaning | to do |\n| --- | --- | --- | --- |\n");
        for row in entry.reasons {
            let status = serde_json::to_value(row.status).unwrap();
            let status = status.as_str().unwrap();
            writeln!(page, "| `{}` | {status} | {} | {} |", row.reason, row.meaning, row.action).unwrap();
        }
    }
    page
}
