//! `causeway ca`: the certificate authority of the fleet.

use std::process::ExitCode;

use anyhow::Context;
use causeway_api::management::{RotateRequest, RotationStep, RotationView, paths};
use clap::Subcommand;
use serde_json::Value;

use crate::client::{ApiClient, ApiConnectionArgs};
use crate::output::{self, TextTable};

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
    /// Print the certificates in PEM
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
    /// Finish even if gateways or tokens still depend on the old authority; they lose access
    #[arg(long, requires = "finish")]
    force: bool,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    match arguments.action {
        Action::Show(show) => {
            let ca = api.get(paths::CA).await?;
            let text = if show.json {
                output::json(&ca)
            } else if show.pem {
                view(&api, ca)?.authorities.into_iter().map(|authority| authority.certificate).collect()
            } else {
                render(&view(&api, ca)?)
            };
            output::print(&text)?;
        }
        Action::Rotate(rotate) => {
            let step = if rotate.finish { RotationStep::Finish } else { RotationStep::Start };
            let ca = api.post(paths::CA_ROTATE, &RotateRequest { step, force: rotate.force }).await?;
            output::print(&render(&view(&api, ca)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn view(api: &ApiClient, ca: Value) -> anyhow::Result<RotationView> {
    serde_json::from_value(ca).with_context(|| format!("{} did not send its authorities", api.server()))
}

fn render(ca: &RotationView) -> String {
    let mut table = TextTable::new(&["AUTHORITY", "SIGNS", "CREATED", "EXPIRES"]);
    for authority in &ca.authorities {
        let signs = match (authority.issuing, authority.serving) {
            (true, true) => "everything",
            (true, false) => "gateways and users",
            (false, true) => "this cloud",
            (false, false) => "nothing, only trusted",
        };
        let id: String = authority.id.chars().take(16).collect();
        table.row([id, signs.to_owned(), authority.created.clone(), authority.expires.clone()]);
    }
    let mut text = table.render(output::colours());
    for (names, what) in [(&ca.waiting_gateways, "gateways"), (&ca.waiting_tokens, "join tokens")] {
        if !names.is_empty() {
            text.push_str(&format!(
                "still depend on the old one, {what}: {}\n",
                output::plain(&names.join(", "))
            ));
        }
    }
    text
}
