//! `causeway describe`: one object in readable form, with its conditions and related objects.
//!
//! `render` is pure. Input: the object and all other objects. Output: text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use causeway_api::{ApiVersion, Kind};
use serde_json::Value;

use super::get::items;
use crate::client::{self, ApiConnectionArgs};
use crate::duration::age;
use crate::kinds::{KindParser, KindWord};
use crate::output::{self, TextTable, plain};

const EXAMPLES: &str = "\
Examples:
  causeway describe esite Tokyo
  causeway describe serviceexpose/web
  causeway describe egateways -l zone=a";

/// Show objects in detail, with conditions and who refers to them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Kind, or KIND/NAME
    #[arg(value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
    kind: KindWord,
    /// Names; all objects when left out
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only objects with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

/// Fields by which objects refer to each other, and what kind they mean.
const REFERENCES: [(&str, Kind); 7] = [
    ("eSiteName", Kind::ESite),
    ("eSites", Kind::ESite),
    ("allowedSites", Kind::ESite),
    ("members", Kind::ESite),
    ("eServiceName", Kind::EService),
    ("ePolicys", Kind::EPolicy),
    ("allowedServers", Kind::EServer),
];

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let mut names = arguments.names.clone();
    names.extend(arguments.kind.name.clone());
    let mut everything: BTreeMap<Kind, Vec<Value>> = BTreeMap::new();
    for kind in Kind::ALL {
        let list = api.get(&client::collection(ApiVersion::Group, kind)).await?;
        everything.insert(kind, items(kind, list));
    }
    let now = jiff::Timestamp::now();
    let (mut first, mut failed) = (true, false);
    for kind in &arguments.kind.kinds {
        let wanted = if names.is_empty() {
            let query = client::query(&[("labelSelector", arguments.selector.as_deref())]);
            items(*kind, api.get(&format!("{}{query}", client::collection(ApiVersion::Group, *kind))).await?)
        } else {
            let mut wanted = Vec::new();
            for name in &names {
                match api.get(&client::object(ApiVersion::Group, *kind, name)).await {
                    Ok(object) => wanted.push(object),
                    Err(error) if error.is_not_found() => {
                        failed = true;
                        output::note(&format!("error: {error}"));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            wanted
        };
        for object in &wanted {
            if !std::mem::take(&mut first) {
                output::print_line("")?;
            }
            output::print(&render(*kind, object, &everything, now))?;
        }
    }
    if first && !failed {
        output::note("no objects found");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn render(
    kind: Kind,
    object: &Value,
    everything: &BTreeMap<Kind, Vec<Value>>,
    now: jiff::Timestamp,
) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let mut text = String::new();
    let mut field = |key: &str, value: String| {
        let _ = writeln!(text, "{:<24}{}", format!("{key}:"), plain(&value));
    };
    field("Name", name.to_owned());
    field("Kind", kind.name().to_owned());
    for (key, values) in [("Labels", &metadata["labels"]), ("Annotations", &metadata["annotations"])] {
        let shown = values.as_object().map(|values| {
            values
                .iter()
                .map(|(key, value)| format!("{key}={}", inline(value)))
                .collect::<Vec<_>>()
                .join(", ")
        });
        field(key, shown.filter(|shown| !shown.is_empty()).unwrap_or_else(|| "<none>".to_owned()));
    }
    field("Created", since(&metadata["creationTimestamp"], now));
    if !metadata["deletionTimestamp"].is_null() {
        field("Being deleted", since(&metadata["deletionTimestamp"], now));
    }
    field("Generation", inline(&metadata["generation"]));
    let own = object.as_object().into_iter().flatten();
    for (key, value) in
        own.filter(|(key, _)| !["kind", "apiVersion", "metadata", "status"].contains(&key.as_str()))
    {
        field(key, inline(value));
    }
    for (key, value) in object["status"].as_object().into_iter().flatten() {
        if key != "conditions" && key != "observedGeneration" {
            field(&format!("Status {key}"), inline(value));
        }
    }
    text.push_str(&conditions(&object["status"]["conditions"], metadata, now));
    text.push_str(&related("Refers to", &outgoing(object, everything), "<nothing>"));
    text.push_str(&related("Referred to by", &incoming(kind, name, everything), "<none>"));
    text
}

fn conditions(conditions: &Value, metadata: &Value, now: jiff::Timestamp) -> String {
    let Some(conditions) = conditions.as_array().filter(|conditions| !conditions.is_empty()) else {
        return "Conditions:             <none>\n".to_owned();
    };
    let mut table = TextTable::new(&["  TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"]);
    for condition in conditions {
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        let stale = condition["observedGeneration"].as_i64() < metadata["generation"].as_i64();
        let status = if stale { format!("{} (old)", text("status")) } else { text("status") };
        let elapsed =
            condition["lastTransitionTime"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
        let elapsed = elapsed.map_or_else(|| "-".to_owned(), |time| age(now.as_second() - time.as_second()));
        table.row([format!("  {}", text("type")), status, text("reason"), elapsed, text("message")]);
    }
    format!("Conditions:\n{}", table.render(output::colours()))
}

/// The objects that this object names, and whether they exist.
fn outgoing(object: &Value, everything: &BTreeMap<Kind, Vec<Value>>) -> Vec<String> {
    let mut found = Vec::new();
    for (field, kind) in REFERENCES {
        for name in names_in(&object[field]) {
            let exists = everything[&kind].iter().any(|other| other["metadata"]["name"] == name);
            let missing = if exists { "" } else { " (missing)" };
            found.push(format!("{}/{name}{missing}", kind.singular()));
        }
    }
    found
}

/// The objects that name this object.
fn incoming(kind: Kind, name: &str, everything: &BTreeMap<Kind, Vec<Value>>) -> Vec<String> {
    let mut found = Vec::new();
    for (other_kind, others) in everything {
        for other in others {
            for (field, _) in REFERENCES.iter().filter(|(_, meant)| *meant == kind) {
                if names_in(&other[*field]).contains(&name) {
                    let other = other["metadata"]["name"].as_str().unwrap_or_default();
                    found.push(format!("{}/{other} ({field})", other_kind.singular()));
                }
            }
        }
    }
    found
}

fn names_in(value: &Value) -> Vec<&str> {
    match value {
        Value::String(name) if !name.is_empty() => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn related(title: &str, found: &[String], none: &str) -> String {
    if found.is_empty() {
        return format!("{:<24}{none}\n", format!("{title}:"));
    }
    let lines: String = found.iter().map(|line| format!("  {}\n", plain(line))).collect();
    format!("{title}:\n{lines}")
}

fn since(time: &Value, now: jiff::Timestamp) -> String {
    let Some(text) = time.as_str() else { return "<unknown>".to_owned() };
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => format!("{text} ({} ago)", age(now.as_second() - time.as_second())),
        Err(_) => text.to_owned(),
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<none>".to_owned(),
        Value::Array(values) if values.is_empty() => "<none>".to_owned(),
        Value::Array(values) if values.iter().all(|value| !value.is_object()) => {
            values.iter().map(inline).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_told_with_its_conditions_and_relations() {
        let mut everything: BTreeMap<Kind, Vec<Value>> =
            Kind::ALL.into_iter().map(|kind| (kind, Vec::new())).collect();
        everything.insert(Kind::ESite, vec![json!({"metadata": {"name": "Tokyo"}})]);
        everything
            .insert(Kind::VirtualPresence, vec![json!({"metadata": {"name": "vp1"}, "eServiceName": "web"})]);
        let service = json!({
            "kind": "EService",
            "metadata": {"name": "web", "generation": 2, "labels": {"tier": "web"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "eSiteName": "Tokyo", "port": 80, "endpoints": [{"ip": "10.0.0.1"}],
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NoSite", "message": "why", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        let text = render(Kind::EService, &service, &everything, "2026-01-01T00:05:00Z".parse().unwrap());
        for line in [
            "Name:                   web",
            "Labels:                 tier=web",
            "(5m ago)",
            "port:                   80",
            "Ready   False (old)   NoSite   5m      why",
            "  esite/Tokyo\n",
            "  virtualpresence/vp1 (eServiceName)",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        let site = render(
            Kind::ESite,
            &json!({"metadata": {"name": "X"}, "eSites": []}),
            &everything,
            jiff::Timestamp::UNIX_EPOCH,
        );
        assert!(site.contains("<none>") && site.contains("<nothing>"), "{site}");
        let expose = render(
            Kind::ServiceExpose,
            &json!({"metadata": {"name": "X"}, "ePolicys": ["p"]}),
            &everything,
            jiff::Timestamp::UNIX_EPOCH,
        );
        assert!(expose.contains("epolicy/p (missing)"), "{expose}");
    }
}
