//! `causeway demo`: a cloud and two sites on this machine, with the objects of `examples/`, and clients that use them.
//!
//! The cloud and the edges are the same code as `causeway cloud` and `causeway edge`. `plan` says what is promised, `fleet` builds
//! it, `traffic` tries it, `table` shows it. With root every site has a network of its own; nothing is left behind either way.

mod fleet;
mod folder;
mod machine;
mod net;
mod plan;
mod table;
mod traffic;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use causeway_api::Kind;
use causeway_api::management::{ApiRole, CreateTokenRequest, CreatedToken, paths};
use causeway_channel::JoinToken;
use causeway_channel::port::PortLimits;
use causeway_cloud::audit_export::AuditExportConfig;
use causeway_cloud::{Cloud, CloudConfig};
use causeway_daemon::audit::AuditLimits;
use causeway_daemon::log::LogFormat;
use causeway_daemon::signals;
use causeway_gateway::dns::DnsOptions;
use causeway_gateway::proxy::udp::UdpOptions;
use causeway_store::StoreSpec;
use futures_util::future::join_all;
use serde_json::json;

use super::apply::{ApplyMode, apply};
use crate::client::{self, ApiClient, ApiConnectionArgs};
use crate::config::{Config, EdgeLayer, GatewayLayer, Layer};
use crate::manifest::{self, Manifest, ManifestFormat, ManifestText};
use crate::output;
use fleet::DemoFleet;
use plan::{DemoCrossing, DemoNetwork, DemoSite, crossings};
use table::DemoTable;

const EXAMPLES_HELP: &str = "\
Examples:
  causeway demo              look around, end it with Ctrl-C
  causeway demo --check      verify that everything works here; exit code 0 or 1
  causeway demo --loopback   as without root: everything on the loopback";

/// Start a cloud and two sites on this machine, and watch what crosses
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES_HELP)]
pub struct Args {
    /// Try every crossing and every refusal, print the table and end
    #[arg(long)]
    check: bool,
    /// Make no networks, even with root
    #[arg(long)]
    loopback: bool,
}

/// The files of `examples/`, in the order of their names.
const EXAMPLES: [(&str, &str); 5] = [
    ("01-sites.yaml", include_str!("../../../../examples/01-sites.yaml")),
    ("02-services.yaml", include_str!("../../../../examples/02-services.yaml")),
    ("03-servers.yaml", include_str!("../../../../examples/03-servers.yaml")),
    ("04-policies.yaml", include_str!("../../../../examples/04-policies.yaml")),
    ("05-exposes.yaml", include_str!("../../../../examples/05-exposes.yaml")),
];

/// The demo reports failures itself; log lines of its parts would break the table.
const LOG_FILTER: &str = "error,kube_client=off";
const DRAIN: Duration = Duration::from_secs(3);
/// A day; the demo and its tokens rarely live that long.
const CONSOLE_TTL: Duration = Duration::from_secs(24 * 3600);
/// `--check` answers within this, whatever happens.
const CHECK_TIMEOUT: Duration = Duration::from_secs(28);
/// Between two rounds of all clients.
const ROUND: Duration = Duration::from_secs(1);
/// Enough for what is tried in some seconds, with a record of each end: a UDP session is recorded a second late.
const AUDIT_RECORDS_MAX: usize = 500;
const TRY_AGAIN: Duration = Duration::from_millis(200);

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let filter = std::env::var("CAUSEWAY_LOG").unwrap_or_else(|_| LOG_FILTER.to_owned());
    causeway_daemon::log::start(LogFormat::Text, &filter)?;
    let stop = signals::watch(DRAIN, signals::Hangup::Stop)?;
    let stage = match rustix::process::geteuid().is_root() && !arguments.loopback {
        true => DemoNetwork::Networks,
        false => DemoNetwork::Loopback,
    };
    folder::remove_abandoned(&std::env::temp_dir());
    let (folder, _lock) = folder::make()?;
    announce(stage);
    let mut fleet = DemoFleet::build(stage, folder.path()).await?;
    let shown = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        shown = async { Demo::build(&mut fleet).await?.show(arguments.check).await } => shown,
    };
    // Stopped in the middle: an unfinished check is no failure.
    let shown = if stop.is_cancelled() && !arguments.check { Ok(()) } else { shown };
    fleet.end().await?;
    // An error here must be reported: no file may be left behind.
    folder.close()?;
    shown.map(|()| ExitCode::SUCCESS)
}

struct Demo<'a> {
    fleet: &'a mut DemoFleet,
    api: ApiClient,
    kubeconfig: PathBuf,
    console: ConsoleSignIn,
    crossings: Vec<DemoCrossing>,
}

/// The parts of the demo that need root.
const LEFT_OUT: &str = "demo: left out without root: networks of their own, DNS on port 53,\n\
     demo:   presences at real addresses, packets between sites (ECommunity)";

/// The address of the console and a token for it.
struct ConsoleSignIn {
    address: SocketAddr,
    token: String,
}

fn announce(stage: DemoNetwork) {
    let place = match stage {
        DemoNetwork::Networks => "in networks of their own",
        DemoNetwork::Loopback => "on the loopback",
    };
    output::note(&format!("demo: a cloud and two sites with equal addresses, {place}"));
    if let DemoNetwork::Loopback = stage {
        output::note(LEFT_OUT);
    }
}

impl Demo<'_> {
    /// Starts the cloud, applies the objects and starts the edges. A caller that stops waiting ends the fleet.
    async fn build(fleet: &mut DemoFleet) -> anyhow::Result<Demo<'_>> {
        let api = fleet.api_listener().await?;
        let config = cloud_config(fleet, api);
        let cloud =
            fleet.begin_at(DemoSite::Cloud, async move { Ok(Box::pin(Cloud::start(config)).await?) }).await?;
        let (kubeconfig, channel) = (cloud.kubeconfig(), cloud.addresses().channel.port());
        let console = cloud.addresses().api;
        fleet.forward_api(cloud.addresses().api);
        fleet.run_at(DemoSite::Cloud, |stop| async move { Ok(cloud.run(stop).await?) });
        output::note(&format!("demo: the cloud runs; edges reach it at {}", fleet.advertised(channel)));
        let connection =
            ApiConnectionArgs { kubeconfig: Some(kubeconfig.clone()), ..ApiConnectionArgs::default() };
        let api = connection.connect().await?;
        let manifests = manifests(fleet.stage)?;
        for manifest in &manifests {
            apply(&api, manifest, &ApplyMode::default()).await?;
        }
        output::note(&format!("demo: {} objects of examples/ are applied", manifests.len()));
        for site in [DemoSite::Berlin, DemoSite::Oslo] {
            let request = CreateTokenRequest {
                site: Some(site.name().to_owned()),
                gateway: Some(site.gateway().to_owned()),
                ttl_seconds: Some(600),
                uses: Some(1),
                ..CreateTokenRequest::default()
            };
            let made: CreatedToken = serde_json::from_value(api.post(paths::TOKENS, &request).await?)?;
            let token: JoinToken = made.token.parse()?;
            fleet.start_edge(site, token)?;
        }
        output::note("demo: both edges dial the cloud");
        let role = Some(ApiRole::Admin);
        let request = CreateTokenRequest {
            role,
            ttl_seconds: Some(CONSOLE_TTL.as_secs()),
            ..CreateTokenRequest::default()
        };
        let made: CreatedToken = serde_json::from_value(api.post(paths::TOKENS, &request).await?)?;
        let console = ConsoleSignIn { address: console, token: made.token };
        Ok(Demo { fleet, api, kubeconfig, console, crossings: crossings() })
    }

    async fn show(&mut self, check: bool) -> anyhow::Result<()> {
        let mut table = DemoTable::new(self.fleet.stage, &self.crossings);
        let begun = Instant::now();
        if check {
            let holds = tokio::time::timeout(CHECK_TIMEOUT, self.wait_until_expected(&mut table)).await;
            output::print(&table.render(output::colours(), None))?;
            return match holds {
                Ok(settled) => {
                    settled?;
                    let seconds = begun.elapsed().as_secs_f64();
                    let (all, passing) = (self.crossings.len(), self.passing());
                    output::print_line(&format!(
                        "demo: {passing} crossings and {} refusals as promised, all in the audit, after {seconds:.1} s",
                        all - passing
                    ))
                }
                Err(_) => bail!("after {} s not everything is as promised", CHECK_TIMEOUT.as_secs()),
            };
        }
        if let Ok(settled) = tokio::time::timeout(CHECK_TIMEOUT, self.wait_until_expected(&mut table)).await {
            settled?;
            table.mark_settled();
        }
        self.watch(&mut table).await
    }

    fn passing(&self) -> usize {
        let passes = |crossing: &&DemoCrossing| matches!(crossing.expected, plan::ExpectedOutcome::Passes(_));
        self.crossings.iter().filter(passes).count()
    }

    /// Until everything is as promised, and in the audit.
    async fn wait_until_expected(&mut self, table: &mut DemoTable) -> anyhow::Result<()> {
        loop {
            self.round(table).await?;
            if table.holds() && table.is_audited() {
                return Ok(());
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Tells what can be tried, then shows the table again and again: on a terminal in the same place, else once.
    async fn watch(&mut self, table: &mut DemoTable) -> anyhow::Result<()> {
        let terminal = std::io::stdout().is_terminal();
        output::print(&self.hints())?;
        output::print(&table.render(output::colours(), output::terminal_width()))?;
        loop {
            tokio::time::sleep(ROUND).await;
            self.round(table).await?;
            if terminal {
                let table = table.render(output::colours(), output::terminal_width());
                output::print(&format!("\x1b[{}A\x1b[J{table}", table.lines().count()))?;
            }
        }
    }

    /// Every client asks once.
    async fn round(&mut self, table: &mut DemoTable) -> anyhow::Result<()> {
        if let Some(error) = self.fleet.failed_part().await {
            return Err(error);
        }
        let fleet = &self.fleet;
        let tries = self.crossings.iter().map(|crossing| async move {
            let begun = Instant::now();
            let (outcome, address) = fleet.attempt(*crossing).await;
            (outcome, address, begun.elapsed())
        });
        for (index, (outcome, address, took)) in join_all(tries).await.into_iter().enumerate() {
            table.note(index, outcome, address, took);
        }
        let take = |record: serde_json::Value| {
            table.take(&record);
            Ok(true)
        };
        let path = format!("{}?limit={AUDIT_RECORDS_MAX}", paths::AUDIT);
        self.api.stream_lines(&path, client::JSON, take).await
    }

    fn hints(&self) -> String {
        let kubeconfig = shell_word(&self.kubeconfig.display().to_string());
        let path = std::env::current_exe().map(|program| path_line(&program, std::env::var_os("PATH")));
        let path = path.unwrap_or_default();
        let there =
            |site: DemoSite| self.fleet.enter(site).map_or_else(String::new, |enter| format!("{enter} "));
        let dns = self.fleet.stage.dns(DemoSite::Cloud);
        let ConsoleSignIn { address, token } = &self.console;
        format!(
            "\nIn a browser (its certificate is of the demo's own CA, so the browser asks once):\n\n  \
             https://{address}/console\n  \
             sign in with {token}\n\n\
             In another terminal:\n\n  \
             {path}export KUBECONFIG={kubeconfig}\n  \
             export CAUSEWAY_KUBECONFIG=$KUBECONFIG\n  \
             causeway status\n  \
             causeway audit --follow\n  \
             causeway doctor plant-dashboard@oslo\n  \
             causeway delete epolicy forklift          oslo-forklift is refused within a second\n  \
             causeway describe serviceexpose plant-dashboard\n  \
             {}dig @{} -p {} dashboard.plant.example\n  \
             kubectl get esites,egateways,virtualpresences\n\n\
             Ctrl-C ends it; nothing is left behind.\n\n",
            there(DemoSite::Cloud),
            dns.ip(),
            dns.port(),
        )
    }
}

/// The line that puts this program on PATH for the commands below it, as after `make demo`. Empty: it is there already.
fn path_line(program: &Path, path: Option<OsString>) -> String {
    let path = path.unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("causeway")).find(|file| file.is_file());
    let is_this = |found: PathBuf| found.canonicalize().ok() == program.canonicalize().ok();
    match program.parent() {
        Some(folder) if !found.is_some_and(is_this) => {
            format!("export PATH={}:$PATH\n  ", shell_word(&folder.display().to_string()))
        }
        _ => String::new(),
    }
}

/// A word for a POSIX shell, quoted where it must be.
fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:@,".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn manifests(stage: DemoNetwork) -> anyhow::Result<Vec<Manifest>> {
    let texts = EXAMPLES.map(|(name, text)| ManifestText {
        name: format!("examples/{name}"),
        form: ManifestFormat::Yaml,
        text: stage.adapt(text),
    });
    let mut manifests = manifest::parse(&texts)?;
    // Packets between sites need a TUN device.
    manifests.retain(|manifest| stage == DemoNetwork::Networks || manifest.kind != Kind::ECommunity);
    Ok(manifests)
}

fn cloud_config(fleet: &DemoFleet, api: SocketAddr) -> CloudConfig {
    let (stage, data_dir) = (fleet.stage, fleet.folder.join("cloud"));
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let channel = match stage {
        DemoNetwork::Networks => SocketAddr::from((Ipv4Addr::UNSPECIFIED, CHANNEL_PORT)),
        DemoNetwork::Loopback => free_port().unwrap_or(free),
    };
    CloudConfig {
        store: StoreSpec::Sqlite { path: data_dir.join("store.db") },
        data_dir,
        api,
        channel,
        admin: free,
        connect: None,
        advertise: fleet.advertised(channel.port()).parse().into_iter().collect(),
        peer_address: None,
        seal_key: None,
        api_names: Vec::new(),
        api_connections_per_address: 1000,
        new_fleet: false,
        expired_grace: Duration::from_secs(24 * 3600),
        audit: AuditLimits::default(),
        audit_export: AuditExportConfig::default(),
        port: PortLimits::default(),
        drain: DRAIN / 2,
        kubernetes: None,
        node_enrolment: None,
        aggregated_api: None,
        metrics_site_labels: Vec::new(),
        community_peers_max: causeway_cloud::netmaps::COMMUNITY_PEERS_MAX,
        gateway: causeway_gateway::GatewayOptions {
            dns: DnsOptions {
                listen: (stage == DemoNetwork::Loopback).then(|| vec![stage.dns(DemoSite::Cloud)]),
                // The demo knows no names but its own.
                upstreams: Some(Vec::new()),
                ..DnsOptions::default()
            },
            // A session is in the audit when it has ended. Here each is one question.
            udp: UdpOptions { idle_timeout: ROUND, settled_timeout: ROUND, ..UdpOptions::default() },
            ..causeway_gateway::GatewayOptions::default()
        },
        shown: json!({"demo": true}),
    }
}

/// Its own network has no other hosts.
const CHANNEL_PORT: u16 = 7444;

/// A loopback port that is free at this moment: edges are told it before the cloud has bound it.
fn free_port() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn edge_config(stage: DemoNetwork, site: DemoSite, data_dir: &Path) -> anyhow::Result<Config> {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let dns = match stage {
        DemoNetwork::Networks => None,
        DemoNetwork::Loopback => Some(vec![stage.dns(site).to_string().parse().map_err(anyhow::Error::msg)?]),
    };
    let flags = Layer {
        data_dir: Some(data_dir.to_owned()),
        edge: EdgeLayer { admin: Some(free), ..EdgeLayer::default() },
        gateway: GatewayLayer { dns, dns_upstream: Some(Vec::new()), ..GatewayLayer::default() },
        ..Layer::default()
    };
    Config::load(flags, None).context("the edges of the demo cannot be configured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_on_path_is_put_there() {
        let folder = tempfile::tempdir().unwrap();
        let (built, other) = (folder.path().join("target/debug"), folder.path().join("bin"));
        for place in [&built, &other] {
            std::fs::create_dir_all(place).unwrap();
            std::fs::write(place.join("causeway"), "").unwrap();
        }
        let program = built.join("causeway");
        let line = |path: &[&Path]| path_line(&program, Some(std::env::join_paths(path).unwrap()));
        let wanted = format!("export PATH={}:$PATH\n  ", built.display());
        assert_eq!(line(&[]), wanted);
        assert_eq!(line(&[&other, &built]), wanted, "an older one comes first");
        assert_eq!(line(&[&built, &other]), "");
        assert_eq!(path_line(&program, None), wanted);
        assert_eq!(shell_word("/a b/it's"), r"'/a b/it'\''s'");
    }

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
        for stage in [DemoNetwork::Networks, DemoNetwork::Loopback] {
            let manifests = manifests(stage).unwrap();
            for kind in Kind::ALL {
                // A user without root gets no community: its gateways could not open a TUN device.
                let is_expected = stage == DemoNetwork::Networks || kind != Kind::ECommunity;
                let is_there = manifests.iter().any(|manifest| manifest.kind == kind);
                assert_eq!(is_there, is_expected, "examples of {kind}");
            }
        }
    }
}
