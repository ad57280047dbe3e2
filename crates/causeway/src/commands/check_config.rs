//! `causeway check-config`: checks a configuration file and prints the settings that it puts into effect.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{Config, Layer};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway check-config /etc/causeway/cloud.toml
  causeway check-config > cloud.toml              a file with every setting and its default";

/// Check a configuration file and print what is in effect, with the origin of every value
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File to check; without one, defaults and environment are shown
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(Layer::default(), arguments.file.as_deref())?;
    output::print(&config.to_toml())?;
    Ok(ExitCode::SUCCESS)
}
