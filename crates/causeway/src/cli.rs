//! The command line as clap sees it: one variant per command, each explained in its own file.

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};

use crate::commands::{
    apply, audit, backup, ca, cache, check_config, cloud, completions, delete, demo, describe, doctor, drain,
    edge, get, kubeconfig, manual, restore, revoke, status, token, version,
};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold());

const EXAMPLES: &str = "\
Examples:
  causeway demo                                   look around, nothing is left behind
  causeway cloud --data-dir /var/lib/causeway --advertise cloud.example.org:7444
  causeway token create --site Tokyo              one line to paste at the edge
  causeway edge --data-dir /var/lib/causeway --join TOKEN
  causeway apply -f examples/
  causeway get all

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Joins edge sites to a central cloud: services, packets and the Kubernetes API by name and by policy.
#[derive(Debug, Parser)]
#[command(name = "causeway", version = version::VERSION, after_help = EXAMPLES, styles = STYLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    // The roles.
    Demo(demo::Args),
    Cloud(Box<cloud::Args>),
    Edge(edge::Args),
    // Objects.
    Apply(apply::Args),
    Get(get::Args),
    Describe(describe::Args),
    Delete(delete::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Audit(audit::Args),
    Cache(cache::Args),
    Drain(drain::Args),
    // Access: tokens, kubeconfigs, revocation and the CA.
    Token(token::Args),
    Kubeconfig(kubeconfig::Args),
    Revoke(revoke::Args),
    Ca(ca::Args),
    // Keeping it.
    Backup(backup::Args),
    Restore(restore::Args),
    #[command(name = "check-config")]
    CheckConfig(check_config::Args),
    Completions(completions::Args),
    Manual(manual::Args),
    Version(version::Args),
}

#[cfg(test)]
mod flags;
#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_in_its_help() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let leaf = !command.has_subcommands();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(!leaf || help.contains("Examples:"), "{path} has no examples");
            assert!(command.get_about().is_some(), "{path} does not say what it does");
            command.get_subcommands().for_each(|command| check(command, &path));
        }
        check(&Cli::command(), "");
    }
}
