//! `causeway edge`: reads arguments and configuration, then runs the edge role.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use causeway_apicache::server::EdgeApiOptions;
use causeway_apicache::server::serving::ComponentCertificate;
use causeway_channel::JoinToken;
use causeway_channel::dial::ConnectProxy as CloudProxy;
use causeway_channel::session::AllowedTransports;
use causeway_daemon::signals;
use causeway_edge::{EdgeConfig, EdgeDaemon, EdgeError, JoinCredential, ServiceAccountJoin};
use tokio_util::sync::CancellationToken;

use super::WrongUsage;
use super::cloud::start_logging;
use super::gateway::{GatewayArgs, options};
use super::reload::on_hangup;
use crate::config::mistake::parse_flag;
use crate::config::{Config, EdgeLayer, Layer, LogLayer, ProcessRole, ProxySetting, TransportSetting};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway edge --data-dir /var/lib/causeway --join TOKEN      the first time
  causeway edge --data-dir /var/lib/causeway --join @/run/token
  ssh cloud causeway token create --site Tokyo | causeway edge --data-dir /var/lib/causeway --join -
  causeway edge --data-dir /var/lib/causeway                   ever after

A token on the command line can be seen by other users of this host; @FILE and - keep it to yourself.";

/// Longer than any token.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// Run an edge: enrols with a join token once, then keeps its certificate fresh
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Data directory [default: /var/lib/causeway]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    data_dir: Option<PathBuf>,
    /// Join token, @FILE, or - for standard input; ignored when already enrolled
    #[arg(long, value_name = "TOKEN", value_hint = clap::ValueHint::FilePath)]
    join: Option<String>,
    /// Address for metrics, health and dumps, without credentials [default: 127.0.0.1:7445]
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    admin: Option<SocketAddr>,
    /// Transport to the cloud: auto, quic or tcp [default: auto]
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<TransportSetting>,
    /// HTTP proxy for connections to the cloud [default: from HTTPS_PROXY]
    #[arg(long, value_name = "URL")]
    proxy: Option<ProxySetting>,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Configuration file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Log format: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let flags = Layer {
        data_dir: arguments.data_dir.clone(),
        log: LogLayer { format: arguments.log_format.clone(), filter: None },
        edge: EdgeLayer {
            admin: arguments.admin,
            drain: None,
            transport: arguments.transport,
            proxy: arguments.proxy.clone(),
            ..EdgeLayer::default()
        },
        gateway: arguments.gateway.layer(),
        tunnel: arguments.gateway.tunnel_layer(),
        ..Layer::default()
    };
    let config = Config::load(flags.clone(), arguments.config.as_deref())?;
    start_logging(&config)?;
    let (edge, drain) = (edge_config(&config)?, config.edge.drain.value.0);
    let (join_file, service_account) = (config.edge.join_file.value.clone(), service_account(&config));
    let rules = edge.gateway.dial_rules.clone();
    let hangup = on_hangup(ProcessRole::Edge, flags, arguments.config.clone(), config, rules);
    let stop = signals::watch(drain, hangup)?;
    let token = match (&arguments.join, &join_file) {
        (Some(text), _) => Some(read_token(text)?),
        (None, Some(path)) => read_token_file(path)?,
        (None, None) => None,
    };
    let join = token.map(JoinCredential::Token).or(service_account.map(JoinCredential::ServiceAccount));
    run_edge(edge, join, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// The enrolment by a service account, if it is configured; `Config::check` has seen that its settings are complete.
fn service_account(config: &Config) -> Option<ServiceAccountJoin> {
    let edge = &config.edge;
    Some(ServiceAccountJoin {
        token_file: edge.join_service_account.value.clone()?,
        endpoints: edge.join_endpoints.value.iter().map(|endpoint| endpoint.0.clone()).collect(),
        authorities: edge.join_ca.value.iter().map(|ca| ca.0).collect(),
    })
}

/// Runs an edge until told to stop. With a way to enrol it does so, unless that was done before.
pub async fn run_edge(
    config: EdgeConfig,
    join: Option<JoinCredential>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let daemon = match EdgeDaemon::start(config, join).await {
        Err(error @ EdgeError::NotEnrolled) => return Err(WrongUsage(error.to_string()).into()),
        started => started?,
    };
    daemon.run(stop).await?;
    Ok(())
}

/// The part of the configuration that the edge role needs, in its own types.
pub fn edge_config(config: &Config) -> anyhow::Result<EdgeConfig> {
    Ok(EdgeConfig {
        data_dir: config.data_dir.value.clone(),
        admin: config.edge.admin.value,
        transports: allowed(config.edge.transport.value),
        proxy: proxy(config)?,
        gateway: options(config),
        kubernetes: Some(EdgeApiOptions {
            folder: causeway_apicache::server::folder(&config.data_dir.value),
            listen: config.kubernetes.listen.value,
            pod_listen: config.kubernetes.pod_listen.value,
            component: ComponentCertificate {
                certificate: config.kubernetes.client_certificate.value.clone(),
                key: config.kubernetes.client_key.value.clone(),
            },
            pins: config.kubernetes.pin.value.iter().map(|pin| pin.0.clone()).collect(),
            pin_node: config.kubernetes.pin_node.value.clone(),
            unused: config.kubernetes.unused.value.0,
            bytes_per_day: config.kubernetes.bytes_per_day.value,
            bytes_max: config.kubernetes.bytes_max.value,
            offline_writes: config
                .kubernetes
                .offline_writes
                .value
                .iter()
                .map(|listed| listed.0.clone())
                .collect(),
        }),
        shown: config.to_json(),
    })
}

fn allowed(transport: TransportSetting) -> AllowedTransports {
    match transport {
        TransportSetting::Auto => AllowedTransports::Both,
        TransportSetting::Quic => AllowedTransports::QuicOnly,
        TransportSetting::Tcp => AllowedTransports::TcpOnly,
    }
}

/// The proxy that is configured, or the one of this machine.
fn proxy(config: &Config) -> anyhow::Result<Option<CloudProxy>> {
    Ok(match &config.edge.proxy.value {
        Some(proxy) => Some(CloudProxy::parse(proxy.url())?),
        None => CloudProxy::from_environment()?,
    })
}

/// The token in the file of the setting `join-file`, which an edge that is enrolled does not need any more.
fn read_token_file(path: &Path) -> anyhow::Result<Option<JoinToken>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().parse().context("the join token cannot be used")?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| {
            format!("the file {} of the setting `join-file` cannot be read", output::path(path))
        }),
    }
}

/// The token itself, from the command line, a file or standard input.
fn read_token(text: &str) -> anyhow::Result<JoinToken> {
    let text = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).with_context(|| {
            format!("the token file {} of --join cannot be read", output::path(Path::new(path)))
        })?,
        None if text == "-" => {
            let mut read = String::new();
            let input = std::io::stdin().lock();
            input.take(TOKEN_BYTES_MAX).read_to_string(&mut read).context("standard input cannot be read")?;
            read
        }
        None => text.to_owned(),
    };
    text.trim().parse::<JoinToken>().context("the join token cannot be used")
}
