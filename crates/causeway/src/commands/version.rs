//! `causeway version`: the version of this program and the commit it was built from.

use std::process::ExitCode;

use serde_json::json;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway version
  causeway version --json";

/// The version and the commit, as `--version` shows them. `build.rs` sets the commit; it is `unknown` outside a git checkout.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("CAUSEWAY_COMMIT"), ")");

/// Print the version and the commit this program was built from
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    if arguments.json {
        let shown = json!({"version": env!("CARGO_PKG_VERSION"), "commit": env!("CAUSEWAY_COMMIT")});
        output::print_line(&shown.to_string())?;
    } else {
        output::print_line(&format!("causeway {VERSION}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
