//! `causeway manual`: writes the manual pages, one for each command, from the same definitions as `--help`.
//!
//! Packages are built with it; users read the pages with `man causeway` and `man causeway-cloud`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway manual /usr/local/share/man/man1
  causeway manual man && man -l man/causeway-cloud.1";

/// Write the manual pages of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Folder of the pages; created if missing
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    folder: PathBuf,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("folder {} cannot be made", output::path(folder)))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("the pages cannot be written to {}", output::path(folder)))?;
    Ok(ExitCode::SUCCESS)
}
