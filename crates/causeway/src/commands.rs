//! One file per command. Each reads its arguments, does its work, and writes data to stdout.

pub mod apply;
pub mod audit;
pub mod backup;
pub mod ca;
pub mod cache;
pub mod check_config;
pub mod cloud;
pub mod completions;
pub mod delete;
pub mod demo;
pub mod describe;
pub mod doctor;
pub mod drain;
pub mod edge;
pub mod gateway;
pub mod get;
pub mod kubeconfig;
pub mod manual;
mod reload;
pub mod restore;
pub mod revoke;
pub mod status;
pub mod token;
pub mod version;

use std::process::ExitCode;

use causeway_api::error_chain;

use crate::cli::{Cli, CliCommand};
use crate::client::CallError;

/// The arguments are each right and together wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        CliCommand::Demo(arguments) => demo::run(arguments).await,
        CliCommand::Cloud(arguments) => Box::pin(cloud::run(*arguments)).await,
        CliCommand::Edge(arguments) => Box::pin(edge::run(arguments)).await,
        CliCommand::Apply(arguments) => apply::run(arguments).await,
        CliCommand::Get(arguments) => get::run(arguments).await,
        CliCommand::Describe(arguments) => describe::run(arguments).await,
        CliCommand::Delete(arguments) => delete::run(arguments).await,
        CliCommand::Status(arguments) => status::run(arguments).await,
        CliCommand::Doctor(arguments) => doctor::run(arguments).await,
        CliCommand::Audit(arguments) => audit::run(arguments).await,
        CliCommand::Cache(arguments) => cache::run(arguments).await,
        CliCommand::Drain(arguments) => drain::run(arguments).await,
        CliCommand::Token(arguments) => token::run(arguments).await,
        CliCommand::Kubeconfig(arguments) => kubeconfig::run(arguments).await,
        CliCommand::Revoke(arguments) => revoke::run(arguments).await,
        CliCommand::Ca(arguments) => ca::run(arguments).await,
        CliCommand::Backup(arguments) => backup::run(arguments).await,
        CliCommand::Restore(arguments) => restore::run(arguments).await,
        CliCommand::CheckConfig(arguments) => check_config::run(&arguments),
        CliCommand::Completions(arguments) => completions::run(&arguments),
        CliCommand::Manual(arguments) => manual::run(&arguments),
        CliCommand::Version(arguments) => version::run(&arguments),
    }
}

/// An error and its causes, each said once. A refused call already explains itself.
pub fn explain(error: &anyhow::Error) -> String {
    if let Some(call) = error.downcast_ref::<CallError>() {
        return call.to_string();
    }
    error_chain(error.as_ref())
}
