//! `causeway completions`: lets the shell finish commands, flags, kinds and file names.

use std::process::ExitCode;

use causeway_api::Kind;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  source <(causeway completions bash)
  causeway completions zsh > ~/.zfunc/_causeway
  causeway completions fish > ~/.config/fish/completions/causeway.fish";

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    shell: Shell,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "causeway", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if arguments.shell == Shell::Fish {
        script.push_str(&fish_kinds());
    }
    output::print(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// clap's script for fish leaves out the values of positional arguments.
fn fish_kinds() -> String {
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.plural()).chain(["all"]).collect();
    let condition = "__fish_seen_subcommand_from get describe delete";
    format!("complete -c causeway -n \"{condition}\" -f -a \"{}\"\n", kinds.join(" "))
}
