//! `causeway delete`: objects by name, by file, or by label.

use std::path::PathBuf;
use std::process::ExitCode;

use causeway_api::{ALLOW_DELETE, ApiVersion, Kind};
use serde_json::json;

use super::WrongUsage;
use super::get::items;
use crate::client::{self, ApiClient, ApiConnectionArgs, CallError};
use crate::kinds::{KindParser, KindWord};
use crate::{manifest, output};

const EXAMPLES: &str = "\
Examples:
  causeway delete esite Tokyo
  causeway delete -f examples/
  causeway delete eservices -l tier=test
  causeway delete eservices --all
  causeway delete esite Tokyo --force              although its gateway is connected";

/// Delete objects; objects that still refer to a deleted one show it in their conditions
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Kind, or KIND/NAME
    #[arg(value_name = "KIND", value_parser = KindParser, hide_possible_values = true, required_unless_present = "files")]
    kind: Option<KindWord>,
    /// Names
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Objects of a file, a folder, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", value_hint = clap::ValueHint::AnyPath, conflicts_with_all = ["kind", "selector", "all"])]
    files: Vec<PathBuf>,
    /// Also the folders inside folders
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Objects with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// All objects of the kind
    #[arg(long)]
    all: bool,
    /// An object that is not there is no failure
    #[arg(long)]
    ignore_not_found: bool,
    /// Delete also what the cloud needs, connected gateways, and their sites
    #[arg(long)]
    force: bool,
    /// Ask the server what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    // Files are read and names are checked before anything is deleted.
    let from_files = manifest::parse(&manifest::gather(&arguments.files, arguments.recursive)?)?;
    let mut targets: Vec<(Kind, String)> =
        from_files.into_iter().map(|manifest| (manifest.kind, manifest.name)).collect();
    // Dependents are deleted before the objects they depend on.
    targets.reverse();
    let api = match &arguments.kind {
        None => arguments.connection.connect().await?,
        Some(word) => {
            let mut names = arguments.names.clone();
            names.extend(word.name.clone());
            let by_set = arguments.all || arguments.selector.is_some();
            if names.is_empty() != by_set {
                let usage = "say which: names, or a selector with -l, or --all";
                return Err(WrongUsage(usage.to_owned()).into());
            }
            let api = arguments.connection.connect().await?;
            for kind in &word.kinds {
                targets.extend(names.iter().map(|name| (*kind, name.clone())));
                if by_set {
                    targets.extend(selected(&api, *kind, arguments.selector.as_deref()).await?);
                }
            }
            api
        }
    };
    delete_all(&api, &targets, &arguments).await
}

async fn selected(
    api: &ApiClient,
    kind: Kind,
    selector: Option<&str>,
) -> anyhow::Result<Vec<(Kind, String)>> {
    let query = client::query(&[("labelSelector", selector)]);
    let list = api.get(&format!("{}{query}", client::collection(ApiVersion::Group, kind))).await?;
    let names =
        items(kind, list).into_iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned));
    Ok(names.map(|name| (kind, name)).collect())
}

/// Deletes one object. If the server protects it and --force is given, the annotation that allows it is set
/// first.
async fn delete(api: &ApiClient, kind: Kind, name: &str, arguments: &Args) -> Result<(), CallError> {
    let query = client::query(&[("dryRun", arguments.dry_run.then_some("All"))]);
    let path = format!("{}{query}", client::object(ApiVersion::Group, kind, name));
    match api.delete(&path).await {
        Err(error) if arguments.force && error.is_protected() => {}
        other => return other.map(drop),
    }
    let allow = json!({ "metadata": { "annotations": { ALLOW_DELETE: "true" } } });
    api.merge(&path, &allow).await?;
    if arguments.dry_run {
        // The annotation is not there to be seen by a second dry run, and nothing else stood in the way.
        return Ok(());
    }
    api.delete(&path).await.map(drop)
}

async fn delete_all(
    api: &ApiClient,
    targets: &[(Kind, String)],
    arguments: &Args,
) -> anyhow::Result<ExitCode> {
    let note = if arguments.dry_run { " (dry run)" } else { "" };
    let mut failed = false;
    for (kind, name) in targets {
        let title = format!("{}/{}", kind.singular(), output::plain(name));
        match delete(api, *kind, name, arguments).await {
            Ok(()) => output::print_line(&format!("{title} deleted{note}"))?,
            Err(error) if error.is_not_found() && arguments.ignore_not_found => {}
            Err(error) if error.refusal().is_some() => {
                failed = true;
                output::note(&format!("error: {title}: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if targets.is_empty() {
        output::note("no objects found");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
