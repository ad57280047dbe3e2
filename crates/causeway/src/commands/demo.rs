//! `causeway demo`: a cloud on this machine, in a temporary data dir, with the objects of `examples/`.
//!
//! Uses the same code as `cloud`, `apply` and `get`, over the loopback. Nothing is left behind.

mod check;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use causeway_api::{ApiVersion, Kind};
use causeway_channel::port::PortLimits;
use causeway_cloud::{Cloud, CloudConfig};
use causeway_daemon::audit::AuditLimits;
use causeway_daemon::log::LogFormat;
use causeway_daemon::signals;
use causeway_store::StoreSpec;
use http::Method;

use super::apply::{Manner, apply};
use super::get::shown_table;
use crate::client::{self, Api, Connection};
use crate::manifest::{self, Form, Manifest, Text};
use crate::output;

const EXAMPLES_HELP: &str = "\
Examples:
  causeway demo              look around, end it with Ctrl-C
  causeway demo --check      verify that everything works here; exit code 0 or 1";

/// Start a cloud on this machine, apply example objects and show them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES_HELP)]
pub struct Args {
    /// Verify and end, instead of staying
    #[arg(long)]
    check: bool,
}

/// The files of `examples/`, in the order of their names.
const EXAMPLES: [(&str, &str); 5] = [
    ("01-sites.yaml", include_str!("../../../../examples/01-sites.yaml")),
    ("02-services.yaml", include_str!("../../../../examples/02-services.yaml")),
    ("03-servers.yaml", include_str!("../../../../examples/03-servers.yaml")),
    ("04-policies.yaml", include_str!("../../../../examples/04-policies.yaml")),
    ("05-exposes.yaml", include_str!("../../../../examples/05-exposes.yaml")),
];

/// The commands say what goes wrong themselves; the client's own lines would only repeat it.
const LOG_FILTER: &str = "warn,kube_client=off";
const DRAIN: Duration = Duration::from_secs(5);
/// `--check` answers within this, whatever happens.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let filter = std::env::var("CAUSEWAY_LOG").unwrap_or_else(|_| LOG_FILTER.to_owned());
    causeway_daemon::log::start(LogFormat::Text, &filter)?;
    let stop = signals::watch(DRAIN)?;
    let folder = tempfile::Builder::new().prefix("causeway-demo-").tempdir()?;
    let cloud = Cloud::start(demo_config(folder.path().to_owned())).await?;
    let kubeconfig = cloud.kubeconfig();
    let running = tokio::spawn(cloud.run(stop.clone()));
    let shown = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        shown = show(&kubeconfig, arguments.check) => shown,
    };
    // Told to end in the middle: what did not come to its end is no failure.
    let shown = if stop.is_cancelled() && !arguments.check { Ok(()) } else { shown };
    if shown.is_ok() && !arguments.check {
        stop.cancelled().await;
    }
    stop.cancel();
    running.await.context("the cloud broke down")??;
    // What can go wrong here must be told: nothing may be left behind.
    folder.close()?;
    shown.map(|()| ExitCode::SUCCESS)
}

async fn show(kubeconfig: &std::path::Path, check: bool) -> anyhow::Result<()> {
    let connection = Connection { kubeconfig: Some(kubeconfig.to_owned()), ..Connection::default() };
    let api = connection.connect().await?;
    let manifests = manifests()?;
    let work = async {
        apply_all(&api, &manifests, !check).await?;
        check::wait_until_ready(&api, &manifests).await?;
        if check {
            return check::verify(&api, &manifests).await;
        }
        show_tables(&api).await?;
        output::print(&hints(api.server(), kubeconfig))
    };
    tokio::time::timeout(CHECK_TIMEOUT, work).await.context("the demo took longer than 30 seconds")?
}

fn manifests() -> anyhow::Result<Vec<Manifest>> {
    let texts = EXAMPLES.map(|(name, text)| Text {
        name: format!("examples/{name}"),
        form: Form::Yaml,
        text: text.to_owned(),
    });
    manifest::parse(&texts)
}

async fn apply_all(api: &Api, manifests: &[Manifest], tell: bool) -> anyhow::Result<()> {
    for manifest in manifests {
        let outcome = apply(api, manifest, &Manner::default()).await?;
        if tell {
            output::print_line(&format!(
                "{}/{} {}",
                manifest.kind.singular(),
                manifest.name,
                outcome.name()
            ))?;
        }
    }
    Ok(())
}

async fn show_tables(api: &Api) -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let path = client::collection(ApiVersion::Group, kind);
        let table = api.call(Method::GET, &path, client::TABLE, None).await?.value;
        let table = shown_table(&table, false, Some(kind));
        output::print(&format!("\n{}", table.render(output::colours())))?;
    }
    Ok(())
}

fn hints(server: &str, kubeconfig: &std::path::Path) -> String {
    format!(
        "\nThe cloud runs at {server}. In another terminal:\n\n  \
         export KUBECONFIG={}\n  \
         causeway get all\n  \
         causeway describe serviceexpose plant-dashboard\n  \
         causeway delete epolicy operators && causeway status    exposures say that their policy is missing\n  \
         causeway token create --site tokyo                      a site that is not there yet\n  \
         kubectl get esites,egateways                            any Kubernetes client will do\n\n\
         Ctrl-C ends it; nothing is left behind.\n",
        kubeconfig.display()
    )
}

fn demo_config(data_dir: PathBuf) -> CloudConfig {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    CloudConfig {
        store: StoreSpec::Sqlite { path: data_dir.join("store.db") },
        data_dir,
        api: free,
        channel: free,
        admin: free,
        connect: None,
        advertise: Vec::new(),
        peer_address: None,
        seal_key: None,
        expired_grace: Duration::from_secs(24 * 3600),
        audit: AuditLimits::default(),
        port: PortLimits::default(),
        drain: Duration::from_secs(5),
        gateway: causeway_gateway::Options::default(),
        shown: serde_json::json!({"demo": true}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_examples_is_in_the_demo_and_right() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".yaml"))
            .collect();
        files.sort();
        assert_eq!(files, EXAMPLES.map(|(name, _)| name.to_owned()));
        let manifests = manifests().unwrap();
        for kind in Kind::ALL {
            assert!(manifests.iter().any(|manifest| manifest.kind == kind), "no example of {kind}");
        }
    }
}
