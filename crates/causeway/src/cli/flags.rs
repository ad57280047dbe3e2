//! Compares the commands and their flags with the committed list, so that none is renamed or dropped by accident.
//!
//! Scripts and unit files name flags, so a change of the list is a change for users. `UPDATE=1 cargo test --package causeway flags`
//! writes it.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use super::Cli;

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/flags.txt");

#[test]
fn flags_are_as_listed() {
    let mut list = String::new();
    write_command(&mut list, &Cli::command(), "");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(std::path::Path::new(LIST).parent().unwrap()).unwrap();
        std::fs::write(LIST, &list).unwrap();
    }
    let committed = std::fs::read_to_string(LIST).unwrap_or_default();
    let gone: Vec<&str> =
        committed.lines().filter(|line| !list.lines().any(|known| known == *line)).collect();
    let new: Vec<&str> = list.lines().filter(|line| !committed.lines().any(|known| known == *line)).collect();
    assert!(
        committed == list,
        "gone: {gone:?}, new: {new:?}: a user may depend on it; UPDATE=1 cargo test --package causeway flags"
    );
}

/// One line per command, argument and flag, in the order of the alphabet. Names of values are for people and not listed.
fn write_command(list: &mut String, command: &Command, path: &str) {
    let path = format!("{path} {}", command.get_name()).trim().to_owned();
    writeln!(list, "{path}").unwrap();
    let mut lines: Vec<String> = command
        .get_arguments()
        .map(|argument| {
            let value = if argument.get_action().takes_values() { " VALUE" } else { "" };
            let short = argument.get_short().map(|short| format!(" -{short}")).unwrap_or_default();
            match argument.get_long() {
                Some(long) => format!("{path} --{long}{short}{value}"),
                None => format!("{path}{short}{value}"),
            }
        })
        .collect();
    lines.sort();
    lines.iter().for_each(|line| writeln!(list, "{line}").unwrap());
    let mut commands: Vec<&Command> = command.get_subcommands().collect();
    commands.sort_by_key(|command| command.get_name());
    commands.into_iter().for_each(|command| write_command(list, command, &path));
}
