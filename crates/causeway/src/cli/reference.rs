//! Renders `docs/command-line.md` from the definitions of the command line: every command with its arguments.
//!
//! A test compares the page with the committed one; `UPDATE=1 cargo test --package causeway reference` writes it.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use super::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");

const HEAD: &str = "\
# Command line

<!-- Written by `UPDATE=1 cargo test --package causeway reference` from `crates/causeway/src/cli.rs`. Do not edit. -->

`causeway COMMAND --help` prints the same, `man causeway-COMMAND` with the package. Exit codes: 0 done, 1 failed, 2 wrong usage.
Client commands find the cloud by `--kubeconfig`, `--data-dir`, `CAUSEWAY_KUBECONFIG`, `KUBECONFIG`, or `/var/lib/causeway/admin.kubeconfig` on the cloud's host, in this order.
";

#[test]
fn the_reference_of_the_command_line_is_as_clap_says() {
    let mut page = HEAD.to_owned();
    let mut command = Cli::command();
    command.build();
    command.get_subcommands().for_each(|command| write_command(&mut page, command, "causeway"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let committed = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        committed == page,
        "docs/command-line.md is not as the definitions say: UPDATE=1 cargo test --package causeway reference"
    );
}

fn write_command(page: &mut String, command: &Command, above: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let path = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(page, "\n## `{path}`\n\n{}.\n", about.trim_end_matches('.')).unwrap();
    let shown = |argument: &&Arg| !argument.is_hide_set() && argument.get_id() != "help";
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if !arguments.is_empty() {
        page.push_str("| argument | meaning |\n| --- | --- |\n");
        for argument in arguments {
            writeln!(page, "| `{}` | {} |", name(argument), help(argument)).unwrap();
        }
    }
    if let Some(after) = command.get_after_help() {
        writeln!(page, "\n```\n{}\n```", after.to_string().trim_end()).unwrap();
    }
    command.get_subcommands().for_each(|below| write_command(page, below, &path));
}

/// As one types it: `--site VALUE`, `-f, --file FILE`, or `NAME`.
fn name(argument: &Arg) -> String {
    let values: Vec<String> = match argument.get_action().takes_values() {
        true => match argument.get_value_names() {
            Some(names) => names.iter().map(ToString::to_string).collect(),
            None => vec![argument.get_id().to_string().to_uppercase()],
        },
        false => Vec::new(),
    };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    [flags.join(", "), values.join(" ")].join(" ").trim().replace('|', "\\|")
}

fn help(argument: &Arg) -> String {
    let text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}
