//! The binary: arguments in, a role or a client command out.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage. Errors go to stderr, data to stdout.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod client;
mod commands;
mod config;
mod duration;
mod kinds;
mod manifest;
mod output;
mod problem;

use std::process::ExitCode;

use clap::Parser;

/// Gives memory back when it is no longer used; how quickly is set in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    causeway_daemon::files::raise();
    // kube, the API server and the channel all use rustls: one provider for all of them.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        output::note("error: the cryptography provider was installed twice");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::note(&format!("error: the runtime cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(commands::run(cli));
    // A blocked read of standard input must not hold the end.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(error) => report(&error),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        // The reader has seen enough, as `head` does. That is no failure of ours.
        return ExitCode::SUCCESS;
    }
    if let Some(problem) = error.downcast_ref::<problem::ManifestProblem>() {
        output::note(&format!("error: {}", problem.render(output::error_colours()).trim_start()));
    } else {
        output::note(&output::plain_lines(&format!("error: {}", commands::explain(error))));
    }
    match error.downcast_ref::<commands::WrongUsage>() {
        Some(_) => ExitCode::from(2),
        None => ExitCode::FAILURE,
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
