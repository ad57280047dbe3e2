//! `causeway ca`: the certificate authority of the fleet.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::ApiConnectionArgs;
use crate::output::{self, TextTable, cell};

/// Show or rotate the certificate authority
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    Show(Show),
    Rotate(Rotate),
}

const SHOW_EXAMPLES: &str = "\
Examples:
  causeway ca show
  causeway ca show --pem > ca.pem";

/// Show the certificates that are trusted
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
struct Show {
    /// The certificates themselves
    #[arg(long)]
    pem: bool,
    /// As JSON, for scripts
    #[arg(long, conflicts_with = "pem")]
    json: bool,
}

const ROTATE_EXAMPLES: &str = "\
Examples:
  causeway ca rotate             make a new authority; old and new are trusted
  causeway ca show               see how many gateways still hold certificates of the old one
  causeway ca rotate --finish    trust only the new one";

/// Change the certificate authority without losing an edge: start, wait for renewals, finish
#[derive(Debug, clap::Args)]
#[command(after_help = ROTATE_EXAMPLES)]
struct Rotate {
    /// Stop trusting the old authority
    #[arg(long)]
    finish: bool,
    /// Finish although somebody still depends on the old one, and lose them
    #[arg(long, requires = "finish")]
    force: bool,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    match arguments.action {
        Action::Show(show) => {
            let ca = api.get("/causeway/v1/ca").await?;
            let text = if show.json {
                output::json(&ca)
            } else if show.pem {
                authorities(&ca)
                    .iter()
                    .map(|authority| authority["certificate"].as_str().unwrap_or_default())
                    .collect()
            } else {
                render(&ca)
            };
            output::print(&text)?;
        }
        Action::Rotate(rotate) => {
            let step = if rotate.finish { "finish" } else { "start" };
            let ca =
                api.post("/causeway/v1/ca/rotate", &json!({"step": step, "force": rotate.force})).await?;
            output::print(&render(&ca))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn authorities(ca: &Value) -> &[Value] {
    ca["authorities"].as_array().map_or(&[], Vec::as_slice)
}

fn render(ca: &Value) -> String {
    let mut table = TextTable::new(&["AUTHORITY", "SIGNS", "CREATED", "EXPIRES"]);
    for authority in authorities(ca) {
        let signs = match (authority["issuing"] == true, authority["serving"] == true) {
            (true, true) => "everything",
            (true, false) => "gateways and users",
            (false, true) => "this cloud",
            (false, false) => "nothing, only trusted",
        };
        let id: String = cell(&authority["id"]).chars().take(16).collect();
        table.row([id, signs.to_owned(), cell(&authority["created"]), cell(&authority["expires"])]);
    }
    let mut text = table.render(output::colours());
    for (key, what) in [("waitingGateways", "gateways"), ("waitingTokens", "join tokens")] {
        let names: Vec<String> = ca[key].as_array().into_iter().flatten().map(cell).collect();
        if !names.is_empty() {
            text.push_str(&format!(
                "still depend on the old one, {what}: {}\n",
                output::plain(&names.join(", "))
            ));
        }
    }
    text
}
