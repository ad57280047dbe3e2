//! One file per command. Each reads its arguments, does its work, and writes data to stdout.

pub mod apply;
pub mod audit;
pub mod backup;
pub mod ca;
pub mod check_config;
pub mod cloud;
pub mod completions;
pub mod delete;
pub mod demo;
pub mod describe;
pub mod doctor;
pub mod edge;
pub mod gateway;
pub mod get;
pub mod kubeconfig;
mod reload;
pub mod restore;
pub mod revoke;
pub mod status;
pub mod token;
pub mod version;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::client::CallError;

/// The arguments are each right and together wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Demo(arguments) => demo::run(arguments).await,
        Command::Cloud(arguments) => cloud::run(*arguments).await,
        Command::Edge(arguments) => edge::run(arguments).await,
        Command::Apply(arguments) => apply::run(arguments).await,
        Command::Get(arguments) => get::run(arguments).await,
        Command::Describe(arguments) => describe::run(arguments).await,
        Command::Delete(arguments) => delete::run(arguments).await,
        Command::Status(arguments) => status::run(arguments).await,
        Command::Doctor(arguments) => doctor::run(arguments).await,
        Command::Audit(arguments) => audit::run(arguments).await,
        Command::Token(arguments) => token::run(arguments).await,
        Command::Kubeconfig(arguments) => kubeconfig::run(arguments).await,
        Command::Revoke(arguments) => revoke::run(arguments).await,
        Command::Ca(arguments) => ca::run(arguments).await,
        Command::Backup(arguments) => backup::run(arguments).await,
        Command::Restore(arguments) => restore::run(arguments).await,
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Version(arguments) => version::run(&arguments),
    }
}

/// An error and its causes, each said once. A refused call already explains itself.
pub fn explain(error: &anyhow::Error) -> String {
    if let Some(call) = error.downcast_ref::<CallError>() {
        return call.to_string();
    }
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}
