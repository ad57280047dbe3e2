//! `causeway restore`: a backup into an empty store, while no cloud runs on it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use causeway_daemon::DataDir;
use causeway_store::Store;

use super::cloud::store_spec;
use crate::config::{self, CloudLayer, Config, Layer};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway restore causeway.backup --data-dir /var/lib/causeway
  causeway restore causeway.backup --data-dir /var/lib/causeway --store etcd=http://a:2379,http://b:2379
  gpg -d causeway.backup.gpg | causeway restore - --data-dir /var/lib/causeway

Put DATA_DIR/seal.key back as well: without it the CA in the backup cannot be opened.
Gateways notice that the cloud went back in time: the epoch is raised.";

/// Fill an empty store from a backup; the cloud must not run
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File made by `causeway backup`, or - for standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Data dir of the cloud
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, required = true)]
    data_dir: PathBuf,
    /// Store: `sqlite` or `etcd=http://HOST:2379,...`
    #[arg(long, value_name = "SPEC")]
    store: Option<config::Store>,
    /// Configuration file of the cloud
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let flags = Layer {
        data_dir: Some(arguments.data_dir.clone()),
        cloud: CloudLayer { store: arguments.store, ..CloudLayer::default() },
        ..Layer::default()
    };
    let config = Config::load(flags, arguments.config.as_deref())?;
    let path = match arguments.file.as_os_str() == "-" {
        true => Path::new("/dev/stdin"),
        false => &arguments.file,
    };
    let file = tokio::fs::File::open(path)
        .await
        .with_context(|| format!("{} cannot be read", arguments.file.display()))?;
    // Holding the lock means that no cloud runs on this data dir.
    let data_dir = DataDir::open(&config.data_dir.value)?;
    let store = Store::open(store_spec(&config)).await?;
    let restored = store.import(file).await;
    let restored = restored
        .with_context(|| format!("{} was not restored, nothing was changed", arguments.file.display()))?;
    store.close().await?;
    output::print_line(&format!(
        "restored {} objects, revision {}, epoch {}",
        restored.records, restored.revision, restored.epoch
    ))?;
    if !data_dir.join("seal.key").exists() && config.cloud.seal_key.value.is_none() {
        output::note("Warning: seal.key is not in the data dir: put it there before the cloud starts");
    }
    Ok(ExitCode::SUCCESS)
}
