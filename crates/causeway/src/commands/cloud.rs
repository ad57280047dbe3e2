//! `causeway cloud`: runs the cloud role until a signal.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

use causeway_channel::port::PortLimits;
use causeway_cloud::aggregated_api::AggregatedApiConfig;
use causeway_cloud::audit_export::{
    AuditExportConfig, ExportDestination, HttpTarget, SyslogTarget, TlsFiles,
};
use causeway_cloud::identity::NodeEnrolmentConfig;
use causeway_cloud::{Cloud, CloudConfig};
use causeway_daemon::audit::AuditLimits;
use causeway_daemon::signals;
use causeway_gateway::proxy::connect::AllowRule;
use causeway_store::{EtcdTls, StoreSpec};

use super::gateway::{self, GatewayArgs};
use super::reload::on_hangup;
use crate::config::mistake::parse_flag;
use crate::config::{self, AdvertisedEndpoint, CloudLayer, Config, Layer, LogLayer, ProcessRole, ServerName};

const EXAMPLES: &str = "\
Examples:
  causeway cloud --data-dir /var/lib/causeway --advertise cloud.example.org:7444
  causeway cloud --config /etc/causeway/cloud.toml
  causeway cloud --data-dir /srv/a --store etcd=http://a:2379,http://b:2379,http://c:2379 --seal-key /etc/causeway/seal.key
  causeway cloud --data-dir /tmp/try --api 127.0.0.1:0 --channel 127.0.0.1:0 --admin 127.0.0.1:0

Every flag is also a variable (CAUSEWAY_API, ...) and a setting in the file; flags win, then variables.
The chosen addresses are in DATA_DIR/run/addresses.json, the way in is DATA_DIR/admin.kubeconfig.";

/// Run the cloud: the API server, enrolment of edges, and the controllers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Data directory [default: /var/lib/causeway]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    data_dir: Option<PathBuf>,
    /// Address of the API [default: 0.0.0.0:7443]
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    api: Option<SocketAddr>,
    /// Address that edges dial [default: 0.0.0.0:7444]
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    channel: Option<SocketAddr>,
    /// Address for metrics, health and dumps, without credentials [default: 127.0.0.1:7445]
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    admin: Option<SocketAddr>,
    /// Address of the CONNECT proxy to nodes for clients with a certificate (DATA_DIR/connect), in addition
    /// to DATA_DIR/run/connect.sock
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    connect: Option<SocketAddr>,
    /// Destination that CONNECT may dial although it is no node, as in hooks.example.org:443 or
    /// 10.96.0.0/12:443; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    connect_allow: Vec<AllowRule>,
    /// Channel endpoint that edges are given; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Vec<AdvertisedEndpoint>,
    /// Channel endpoint for other replicas of this cloud [default: the first --advertise]
    #[arg(long, value_name = "HOST:PORT")]
    peer_address: Option<AdvertisedEndpoint>,
    /// Store: `sqlite` or `etcd=http://HOST:2379,...` [default: sqlite]
    #[arg(long, value_name = "SPEC")]
    store: Option<config::StoreSetting>,
    /// Key file that opens the CA in the store; the same for all replicas [default: DATA_DIR/seal.key]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    seal_key: Option<PathBuf>,
    /// Further name or address under which clients reach the API, for its certificate; may be repeated
    #[arg(long = "api-name", value_name = "NAME")]
    api_names: Vec<ServerName>,
    /// Kubeconfig of the cluster whose API edges serve from a copy
    #[arg(long, value_name = "KUBECONFIG", value_hint = clap::ValueHint::FilePath)]
    kubernetes: Option<PathBuf>,
    /// Keys of labels of ESites that metrics show, separated by commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    metrics_site_labels: Vec<config::SiteLabelKey>,
    /// Create a new CA even if a cloud with another CA has run in this data dir
    #[arg(long)]
    new_fleet: bool,
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
    let config = Config::load(arguments.layer(), arguments.config.as_deref())?;
    start_logging(&config)?;
    tracing::info!(config = %config.to_json(), "effective configuration");
    let cloud = CloudConfig { new_fleet: arguments.new_fleet, ..cloud_config(&config) };
    let (drain, rules) = (config.cloud.drain.value.0, cloud.gateway.dial_rules.clone());
    let hangup = on_hangup(ProcessRole::Cloud, arguments.layer(), arguments.config.clone(), config, rules);
    let stop = signals::watch(drain, hangup)?;
    Box::pin(Cloud::start(cloud)).await?.run(stop).await?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn layer(&self) -> Layer {
        Layer {
            data_dir: self.data_dir.clone(),
            log: LogLayer { format: self.log_format.clone(), filter: None },
            cloud: CloudLayer {
                api: self.api,
                channel: self.channel,
                admin: self.admin,
                connect: self.connect,
                connect_allow: (!self.connect_allow.is_empty()).then(|| self.connect_allow.clone()),
                advertise: (!self.advertise.is_empty()).then(|| self.advertise.clone()),
                peer_address: self.peer_address.clone(),
                store: self.store.clone(),
                seal_key: self.seal_key.clone(),
                kubernetes: self.kubernetes.clone(),
                api_names: (!self.api_names.is_empty()).then(|| self.api_names.clone()),
                metrics_site_labels: (!self.metrics_site_labels.is_empty())
                    .then(|| self.metrics_site_labels.clone()),
                ..CloudLayer::default()
            },
            gateway: self.gateway.layer(),
            tunnel: self.gateway.tunnel_layer(),
            ..Layer::default()
        }
    }
}

pub fn start_logging(config: &Config) -> anyhow::Result<()> {
    let format = config.log.format.value.parse().map_err(anyhow::Error::msg)?;
    causeway_daemon::log::start(format, &config.log.filter.value)?;
    warn_of_few_files(causeway_daemon::files::max());
    Ok(())
}

fn warn_of_few_files(files_max: u64) {
    if files_max < FILES_WANTED {
        tracing::warn!(
            files_max,
            "this process may open few files, and every connection is one: raise its hard limit (LimitNOFILE= of systemd, ulimit -Hn)"
        );
    }
}

/// Ten thousand connections and the files that belong to them.
const FILES_WANTED: u64 = 16_384;

/// The part of the configuration that the cloud role needs, in its own types.
pub fn cloud_config(config: &Config) -> CloudConfig {
    let cloud = &config.cloud;
    CloudConfig {
        data_dir: config.data_dir.value.clone(),
        api: cloud.api.value,
        channel: cloud.channel.value,
        admin: cloud.admin.value,
        connect: cloud.connect.value,
        advertise: cloud.advertise.value.iter().map(|endpoint| endpoint.0.clone()).collect(),
        peer_address: cloud.peer_address.value.as_ref().map(|endpoint| endpoint.0.clone()),
        store: store_spec(config),
        seal_key: cloud.seal_key.value.clone(),
        api_names: cloud.api_names.value.iter().map(|name| name.0.clone()).collect(),
        api_connections_per_address: cloud.api_connections_per_address.value.get() as usize,
        community_peers_max: cloud.community_peers_max.value.get() as usize,
        new_fleet: false,
        expired_grace: cloud.expired_grace.value.0,
        audit: AuditLimits {
            file_bytes_max: cloud.audit_file_bytes_max.value,
            files_max: usize::try_from(cloud.audit_files_max.value).unwrap_or(usize::MAX),
        },
        audit_export: audit_export(config),
        port: port_limits(cloud),
        // The process ends when `drain` is over; the remaining quarter is for closing sessions and the store after requests in flight.
        drain: cloud.drain.value.0 * 3 / 4,
        kubernetes: cloud.kubernetes.value.clone(),
        node_enrolment: node_enrolment(cloud),
        aggregated_api: aggregated_api(cloud),
        metrics_site_labels: cloud.metrics_site_labels.value.iter().map(|key| key.0.clone()).collect(),
        gateway: causeway_gateway::GatewayOptions {
            connect_allow: cloud.connect_allow.value.clone(),
            ..gateway::options(config)
        },
        shown: config.to_json(),
    }
}

/// The nodes that may enrol by service accounts; none without an account.
fn node_enrolment(cloud: &config::CloudSettings) -> Option<NodeEnrolmentConfig> {
    let accounts: Vec<_> =
        cloud.join_service_accounts.value.iter().map(|account| account.0.clone()).collect();
    (!accounts.is_empty()).then(|| NodeEnrolmentConfig {
        accounts,
        audience: cloud.join_audience.value.clone(),
        default_site: cloud.join_default_site.value.clone(),
    })
}

/// The listener for kube-apiserver; `Config::check` has seen that its settings are complete.
fn aggregated_api(cloud: &config::CloudSettings) -> Option<AggregatedApiConfig> {
    Some(AggregatedApiConfig {
        listen: cloud.aggregated.value?,
        request_header_ca: cloud.requestheader_ca.value.clone()?,
        request_header_names: cloud.requestheader_names.value.iter().map(|name| name.0.clone()).collect(),
        kubeconfig: cloud.kubernetes.value.clone()?,
    })
}

/// The collectors that are named, each with its section's settings.
fn audit_export(config: &Config) -> AuditExportConfig {
    let (cloud, export) = (&config.cloud, &config.export);
    let limits = AuditLimits {
        file_bytes_max: cloud.audit_file_bytes_max.value,
        files_max: usize::try_from(cloud.audit_files_max.value).unwrap_or(usize::MAX),
    };
    let files = export.files_folder.value.clone();
    let files = files.map(|folder| ExportDestination::Files { folder, limits });
    let webhook = export.webhook_url.value.clone().map(|url| {
        ExportDestination::Webhook(HttpTarget {
            url: url.0,
            token_file: export.webhook_token_file.value.clone(),
            ca: export.webhook_ca.value.clone(),
        })
    });
    let syslog = export.syslog_endpoint.value.as_ref().map(|endpoint| {
        let client = export.syslog_certificate.value.clone().zip(export.syslog_key.value.clone());
        ExportDestination::Syslog(SyslogTarget {
            host: endpoint.0.host().to_owned(),
            port: endpoint.0.port(),
            tls: TlsFiles { ca: export.syslog_ca.value.clone(), client },
        })
    });
    let otlp = export.otlp_url.value.clone().map(|url| {
        ExportDestination::Otlp(HttpTarget {
            url: url.0,
            token_file: export.otlp_token_file.value.clone(),
            ca: export.otlp_ca.value.clone(),
        })
    });
    let destinations = [files, webhook, syslog, otlp].into_iter().flatten().collect();
    AuditExportConfig { bytes_max: export.bytes_max.value, destinations }
}

fn port_limits(cloud: &config::CloudSettings) -> PortLimits {
    let twice = |number: NonZeroU32| number.saturating_add(number.get());
    let per_address = cloud.handshakes_per_address.value;
    let mut limits = PortLimits {
        half_open_max: cloud.half_open_max.value.get() as usize,
        per_second: cloud.handshakes_per_second.value,
        burst: twice(cloud.handshakes_per_second.value),
        per_address_per_second: per_address,
        per_address_burst: twice(per_address),
        links_max: cloud.links_max.value.get() as usize,
        ..PortLimits::default()
    };
    limits.quic.limits.streams_max = cloud.streams_max.value.get();
    limits.quic.limits.stream_window_bytes = cloud.stream_window_bytes.value.get();
    limits
}

pub fn store_spec(config: &Config) -> StoreSpec {
    let cloud = &config.cloud;
    match &cloud.store.value {
        config::StoreSetting::Sqlite => StoreSpec::Sqlite { path: config.data_dir.value.join("store.db") },
        config::StoreSetting::Etcd { endpoints } => {
            let tls = EtcdTls {
                ca: cloud.etcd_ca.value.clone(),
                cert: cloud.etcd_certificate.value.clone(),
                key: cloud.etcd_key.value.clone(),
            };
            StoreSpec::etcd(endpoints.clone(), (tls != EtcdTls::default()).then_some(tls))
        }
    }
}
