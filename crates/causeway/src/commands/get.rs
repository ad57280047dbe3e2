//! `causeway get`: objects as tables, JSON, YAML or names; with -w, also what happens to them.
//!
//! Tables are the server's own, so columns follow the server's version.

mod watch;

use std::process::ExitCode;

use causeway_api::{ApiVersion, Kind};
use serde_json::{Value, json};

use super::WrongUsage;
use crate::client::{self, ApiClient, ApiConnectionArgs};
use crate::kinds::{KindParser, KindWord};
use crate::output::{self, TextTable};

const EXAMPLES: &str = "\
Examples:
  causeway get esites
  causeway get egateway tokyo -o yaml
  causeway get esites,egateways -o wide
  causeway get eservices -l tier=web --field-selector eSiteName=Tokyo
  causeway get egateways -w                       until Ctrl-C
  causeway get all -o name

Kinds: esites (est), egateways (egw), eservices (esvc), eservers (esrv), epolicies (epol),
serviceexposes (sx), virtualpresences (vp), ecommunities (ecom), all; several with commas.";

/// Show objects
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Kind, several kinds with commas, `all`, or KIND/NAME
    #[arg(value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
    kind: KindWord,
    /// Names; all objects when left out
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table, value_name = "FORM")]
    output: OutputFormat,
    /// After showing them, show every change
    #[arg(short, long)]
    watch: bool,
    /// Only objects with these labels, as in `tier=web,zone!=b`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Only objects with these fields, as in `eSiteName=Tokyo`
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,
    /// Leave out the line with the names of the columns
    #[arg(long)]
    no_headers: bool,
    /// Keep metadata.managedFields in JSON and YAML
    #[arg(long)]
    show_managed_fields: bool,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let mut names = arguments.names.clone();
    names.extend(arguments.kind.name.clone());
    let selected = arguments.selector.is_some() || arguments.field_selector.is_some();
    if !names.is_empty() && selected {
        return Err(WrongUsage("give names or a selector, not both".to_owned()).into());
    }
    if arguments.watch && (arguments.kind.kinds.len() > 1 || names.len() > 1) {
        return Err(WrongUsage("-w watches one kind, and one object or all of them".to_owned()).into());
    }
    let api = arguments.connection.connect().await?;
    let view = GetOptionsShown {
        form: arguments.output,
        heads: !arguments.no_headers,
        managed_fields: arguments.show_managed_fields,
        colours: output::colours(),
    };
    if arguments.watch {
        let kind = arguments.kind.kinds[0];
        watch::follow(&api, &view, kind, names.first().map(String::as_str), &arguments).await?;
        return Ok(ExitCode::SUCCESS);
    }
    match arguments.output {
        OutputFormat::Table | OutputFormat::Wide => tables(&api, &view, &arguments, &names).await,
        _ => objects(&api, &view, &arguments, &names).await,
    }
}

/// Output options.
#[derive(Clone, Copy, Debug)]
pub struct GetOptionsShown {
    pub form: OutputFormat,
    pub heads: bool,
    pub managed_fields: bool,
    pub colours: bool,
}

async fn tables(
    api: &ApiClient,
    view: &GetOptionsShown,
    arguments: &Args,
    names: &[String],
) -> anyhow::Result<ExitCode> {
    let several = arguments.kind.kinds.len() > 1;
    let (mut shown, mut failed) = (0, false);
    for kind in &arguments.kind.kinds {
        let mut table = None;
        for path in paths(*kind, names, arguments) {
            match api.call(http::Method::GET, &path, client::TABLE, None).await {
                Ok(answer) => merge(&mut table, answer.value),
                Err(error) if error.is_not_found() && !names.is_empty() => {
                    failed = true;
                    output::note(&format!("error: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let Some(table) = table else { continue };
        let prefix = several.then_some(*kind);
        let table = shown_table(&table, view.form == OutputFormat::Wide, prefix);
        if table.rows.is_empty() {
            continue;
        }
        if shown > 0 {
            output::print_line("")?;
        }
        shown += table.rows.len();
        let table = TextTable { head: if view.heads { table.head } else { Vec::new() }, rows: table.rows };
        output::print(&table.render(view.colours))?;
    }
    if shown == 0 && !failed {
        output::note("no objects found");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Tables of several answers of one kind become one.
fn merge(table: &mut Option<Value>, more: Value) {
    match table.as_mut().and_then(|table| table["rows"].as_array_mut()) {
        Some(rows) => rows.extend(more["rows"].as_array().cloned().unwrap_or_default()),
        None => *table = Some(more),
    }
}

/// A server's Table as ours: columns of priority 0, all of them when wide.
pub fn shown_table(table: &Value, wide: bool, prefix: Option<Kind>) -> TextTable {
    let empty = Vec::new();
    let columns = table["columnDefinitions"].as_array().unwrap_or(&empty);
    let kept: Vec<usize> = (0..columns.len())
        .filter(|column| wide || columns[*column]["priority"].as_i64().unwrap_or(0) == 0)
        .collect();
    let head = kept.iter().map(|column| output::cell(&columns[*column]["name"]).to_uppercase()).collect();
    let row = |row: &Value| {
        let mut cells: Vec<String> = kept.iter().map(|column| output::cell(&row["cells"][*column])).collect();
        if let (Some(kind), Some(name)) = (prefix, cells.first_mut()) {
            *name = format!("{}/{name}", kind.singular());
        }
        cells
    };
    TextTable { head, rows: table["rows"].as_array().unwrap_or(&empty).iter().map(row).collect() }
}

async fn objects(
    api: &ApiClient,
    view: &GetOptionsShown,
    arguments: &Args,
    names: &[String],
) -> anyhow::Result<ExitCode> {
    let (mut found, mut failed) = (Vec::new(), false);
    for kind in &arguments.kind.kinds {
        for path in paths(*kind, names, arguments) {
            match api.get(&path).await {
                Ok(value) if names.is_empty() => found.extend(items(*kind, value)),
                Ok(value) => found.push(value),
                Err(error) if error.is_not_found() && !names.is_empty() => {
                    failed = true;
                    output::note(&format!("error: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let single = names.len() == 1 && arguments.kind.kinds.len() == 1;
    show_objects(view, found, single)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The items of a list, each with the kind and apiVersion that lists may leave out.
pub fn items(kind: Kind, list: Value) -> Vec<Value> {
    let version = list["apiVersion"].clone();
    let items = match list {
        Value::Object(mut list) => list.remove("items"),
        _ => None,
    };
    let mut items = match items {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    for item in &mut items {
        if item["kind"].is_null() {
            item["kind"] = kind.name().into();
            item["apiVersion"] = version.clone();
        }
    }
    items
}

fn show_objects(view: &GetOptionsShown, mut found: Vec<Value>, single: bool) -> anyhow::Result<()> {
    if view.form == OutputFormat::Name {
        return found.iter().try_for_each(|object| output::print_line(&name_of(object)));
    }
    if !view.managed_fields {
        found.iter_mut().for_each(drop_managed_fields);
    }
    let value = match (single, found.pop()) {
        (true, Some(object)) => object,
        (true, None) => return Ok(()),
        (false, last) => {
            found.extend(last);
            json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": found})
        }
    };
    show_value(view, &value)
}

pub fn show_value(view: &GetOptionsShown, value: &Value) -> anyhow::Result<()> {
    match view.form {
        OutputFormat::Yaml => output::print(&output::yaml(value)?),
        _ => output::print(&output::json(value)),
    }
}

/// `esite/Tokyo`, as `apply` and `delete` write it.
pub fn name_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    output::plain(&format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default()))
}

pub fn drop_managed_fields(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
}

fn paths(kind: Kind, names: &[String], arguments: &Args) -> Vec<String> {
    if !names.is_empty() {
        return names.iter().map(|name| client::object(ApiVersion::Group, kind, name)).collect();
    }
    let query = client::query(&[
        ("labelSelector", arguments.selector.as_deref()),
        ("fieldSelector", arguments.field_selector.as_deref()),
    ]);
    vec![format!("{}{query}", client::collection(ApiVersion::Group, kind))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_table_becomes_ours() {
        let table = json!({
            "columnDefinitions": [{"name": "Name"}, {"name": "Subnets", "priority": 1}, {"name": "Age", "priority": 0}],
            "rows": [{"cells": ["Tokyo", ["10.0.0.0/8"], null]}],
        });
        let narrow = shown_table(&table, false, None);
        assert_eq!(
            (narrow.head, narrow.rows),
            (vec!["NAME".into(), "AGE".into()], vec![vec!["Tokyo".into(), "<none>".to_owned()]])
        );
        let wide = shown_table(&table, true, Some(Kind::ESite));
        assert_eq!(wide.rows[0][0], "esite/Tokyo");
        assert_eq!(wide.head.len(), 3);
        assert!(shown_table(&json!({}), false, None).rows.is_empty());
    }
}
