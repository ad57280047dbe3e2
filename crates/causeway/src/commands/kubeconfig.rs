//! `causeway kubeconfig`: the admin kubeconfig of a cloud on this host.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::config::{Config, Layer};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway kubeconfig > causeway.kubeconfig
  causeway kubeconfig --data-dir /srv/causeway > ~/.kube/causeway && kubectl --kubeconfig ~/.kube/causeway get esites";

/// Print an admin kubeconfig, for kubectl and every Kubernetes client
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Data dir of the cloud [default: $CAUSEWAY_DATA_DIR, then /var/lib/causeway]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    data_dir: Option<PathBuf>,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let flags = Layer { data_dir: arguments.data_dir.clone(), ..Layer::default() };
    let path = Config::load(flags, None)?.data_dir.value.join("admin.kubeconfig");
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "{} cannot be read; it is made by the first start of `causeway cloud` and belongs to its user",
            path.display()
        )
    })?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
