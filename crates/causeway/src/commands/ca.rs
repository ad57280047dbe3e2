//! `causeway ca`: the certificate authority of the fleet.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::output::{self, Table, cell};

/// Show or rotate the certificate authority
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    connection: Connection,
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
                    .map(|authority| authority["pem"].as_str().unwrap_or_default())
                    .collect()
            } else {
                render(&ca).render(output::colours())
            };
            output::print(&text)?;
        }
        Action::Rotate(rotate) => {
            let step = if rotate.finish { "finish" } else { "start" };
            let ca = api.post("/causeway/v1/ca/rotate", &json!({"step": step})).await?;
            output::print(&render(&ca).render(output::colours()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn authorities(ca: &Value) -> &[Value] {
    ca["authorities"].as_array().map_or(&[], Vec::as_slice)
}

fn render(ca: &Value) -> Table {
    let mut table = Table::new(&["FINGERPRINT", "ROLE", "NOT BEFORE", "NOT AFTER"]);
    for authority in authorities(ca) {
        let cells = ["fingerprint", "role", "notBefore", "notAfter"];
        table.row(cells.map(|key| cell(&authority[key])));
    }
    table
}
