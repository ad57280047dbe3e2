//! `causeway edge`: enrols once, then keeps the edge role running, its certificate fresh and its link up.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use causeway_channel::JoinToken;
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::dial::ConnectProxy as CloudProxy;
use causeway_channel::session::AllowedTransports;
use causeway_daemon::admin::AdminEndpoints;
use causeway_daemon::{AdminServer, Metrics, Readiness, notify, signals};
use causeway_edge::gateway::{self, CloudStreamServer};
use causeway_edge::link::{CurrentLink, LinkServices};
use causeway_edge::metrics;
use causeway_edge::netmap::NetmapKeeper;
use causeway_edge::spool::{self, Spool};
use causeway_edge::{Edge, EdgeError, EdgeIdentity, EnrolmentOutcome};
use causeway_gateway::problems::ProblemReporter;
use causeway_gateway::{Gateway, dial};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::WrongUsage;
use super::cloud::start_logging;
use super::gateway::{GatewayArgs, options};
use super::reload::on_hangup;
use crate::config::{Config, EdgeLayer, Layer, LogLayer, ProxySetting, Role, TransportSetting};

const EXAMPLES: &str = "\
Examples:
  causeway edge --data-dir /var/lib/causeway --join TOKEN      the first time
  causeway edge --data-dir /var/lib/causeway --join @/run/token
  ssh cloud causeway token create --site Tokyo | causeway edge --data-dir /var/lib/causeway --join -
  causeway edge --data-dir /var/lib/causeway                   ever after

A token on the command line can be seen by other users of this host; @FILE and - keep it to yourself.";

const SOFTWARE: &str = concat!("causeway ", env!("CARGO_PKG_VERSION"));

/// Longer than any token.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// Run an edge: enrols with a join token once, then keeps its certificate fresh
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where everything is kept [default: /var/lib/causeway]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    data_dir: Option<PathBuf>,
    /// Join token, @FILE, or - for standard input; ignored when already enrolled
    #[arg(long, value_name = "TOKEN", value_hint = clap::ValueHint::FilePath)]
    join: Option<String>,
    /// Address for metrics, health and dumps, without credentials [default: 127.0.0.1:7445]
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// How to reach the cloud: auto, quic or tcp [default: auto]
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<TransportSetting>,
    /// HTTP proxy on the way to the cloud [default: as HTTPS_PROXY says]
    #[arg(long, value_name = "URL")]
    proxy: Option<ProxySetting>,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Configuration file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// How log lines are written: text or json [default: text]
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
        },
        gateway: arguments.gateway.layer(),
        ..Layer::default()
    };
    let config = Config::load(flags.clone(), arguments.config.as_deref())?;
    start_logging(&config)?;
    let hangup = on_hangup(Role::Edge, flags, arguments.config.clone(), config.clone());
    let stop = signals::watch(config.edge.drain.value.0, hangup)?;
    let token = arguments.join.as_deref().map(read_token).transpose()?;
    run_edge(config, token, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Runs an edge until told to stop. With a token it enrols, unless that was done before.
pub async fn run_edge(
    config: Config,
    token: Option<JoinToken>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let edge = Edge::open(&config.data_dir.value)?.through(proxy(&config)?);
    if edge.peer().is_none() && token.is_none() {
        return Err(WrongUsage(EdgeError::NotEnrolled.to_string()).into());
    }
    let (readiness, shown) = (Readiness::new(), config.to_json());
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let enrolled = readiness.register("enrolled");
    let netmaps = NetmapKeeper::open(&config.data_dir.value, Some(readiness.register("netmap")))?;
    netmaps.register(&metrics);
    let door = Arc::new(CloudStreamServer::default());
    let mut passengers =
        LinkServices { netmaps: Arc::new(netmaps.clone()), streams: door.clone(), ..LinkServices::none() };
    let upstream = open_upstream(&config);
    if let Some(upstream) = &upstream {
        passengers.upstream = Arc::new(upstream.clone());
    }
    let (keeper, uplink, wishes) = edge.link(allowed(config.edge.transport.value), passengers);
    let gateway_options = options(&config);
    let drain = gateway_options.drain;
    let own_listeners = gateway_options.own_listeners.clone();
    let gateway = gateway::gateway(&netmaps, uplink.clone(), upstream.clone(), gateway_options);
    metrics.register(|registry| gateway.register(registry));
    metrics.register(|registry| metrics::register(registry, uplink.clone(), upstream.clone()));
    door.set(gateway.clone());
    let mut retiring = uplink.clone();
    let (link, netmap, ready, identity) =
        (uplink.clone(), netmaps.clone(), readiness.clone(), edge.identity());
    let role_facts = move || role_facts(&link, &netmap, &ready, &identity);
    gateway.diagnostics().set_role_facts(Box::new(role_facts.clone()));
    let (backends, started) = (gateway.clone(), SystemTime::now());
    let (shown_netmap, shown_dns, presences) = (netmaps.clone(), gateway.dns(), gateway.listening());
    let doors = AdminEndpoints {
        metrics,
        readiness,
        dumps: vec![
            ("config", Box::new(move || shown.clone())),
            ("link", Box::new(move || serde_json::to_value(uplink.shown()).unwrap_or_default())),
            ("netmap", Box::new(move || shown_netmap.dump())),
            ("dns", Box::new(move || serde_json::to_value(&*shown_dns.borrow()).unwrap_or_default())),
            ("presences", Box::new(move || serde_json::to_value(&*presences.borrow()).unwrap_or_default())),
            ("edge", Box::new(role_facts)),
            ("backends", Box::new(move || shown_backends(&backends))),
            ("started", Box::new(move || Value::from(UtcTimestamp(started).to_string()))),
        ],
    };
    let address = config.edge.admin.value;
    let admin = AdminServer::bind(address, doors)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another address with --admin"))?;
    own_listeners.keep("admin", dial::Transport::Tcp, admin.address()?);
    let announced = announce(&config.data_dir.value, admin.address().unwrap_or(address));
    let admin_stop = CancellationToken::new();
    let serving = tokio::spawn(admin.run(admin_stop.clone()));

    let ran = async {
        if let Some(token) = &token
            && let EnrolmentOutcome::Now(_) = edge.enrol(token, &stop).await?
        {
            netmaps.forget().await;
        }
        enrolled.ready();
        notify::ready();
        if let Some(peer) = edge.peer() {
            tracing::info!(%peer, data_dir = %config.data_dir.value.display(), "the edge runs");
        }
        // What crosses ends before the link does: its last words go over it.
        let forwarding = CancellationToken::new();
        let link = CancellationToken::new();
        let in_flight = gateway.clone();
        let gateway = async {
            tokio::select! {
                () = gateway.run(forwarding.clone()) => {}
                () = report(gateway.problems(), upstream.as_ref()) => {}
                () = retire(&mut retiring, &gateway) => {}
            }
            link.cancel();
        };
        let edge = async {
            let ended = edge.run_linked(keeper, wishes, link.clone()).await;
            forwarding.cancel();
            ended
        };
        let stopping = async {
            tokio::select! {
                () = stop.cancelled() => {
                    in_flight.finish_in_flight(drain).await;
                    forwarding.cancel();
                }
                () = forwarding.cancelled() => {}
            }
        };
        let (ended, (), ()) = tokio::join!(edge, gateway, stopping);
        ended
    };
    let ended = ran.await;
    notify::stopping();
    upstream.inspect(Spool::close);
    admin_stop.cancel();
    serving.await?;
    if let Some(path) = announced {
        let _ = std::fs::remove_file(path);
    }
    match ended {
        // Told to end before the cloud answered: nothing is lost, the same token works again.
        Ok(()) | Err(EdgeError::Stopped) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives up streams for later requests when their link is about to end.
async fn retire(uplink: &mut CurrentLink, gateway: &Gateway) {
    loop {
        uplink.retired().await;
        gateway.retire_streams();
    }
}

/// What an edge says of itself to `causeway doctor`, here and at the cloud.
fn role_facts(
    link: &CurrentLink,
    netmap: &NetmapKeeper,
    readiness: &Readiness,
    identity: &watch::Receiver<Option<Arc<EdgeIdentity>>>,
) -> Value {
    let checks = readiness.report().checks.into_iter();
    let not_ready: BTreeMap<String, String> =
        checks.filter_map(|(name, failure)| Some((name, failure?))).collect();
    let identity = identity.borrow().as_ref().map(|identity| {
        json!({
            "gateway": identity.peer.gateway(),
            "site": identity.peer.site(),
            "certificateExpires": UtcTimestamp(identity.facts.not_after).to_string(),
            "endpoints": identity.dial().iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    });
    json!({
        "link": link.shown(),
        "netmap": netmap.dump(),
        "notReady": not_ready,
        "identity": identity,
        "software": SOFTWARE,
        "time": UtcTimestamp(SystemTime::now()).to_string(),
    })
}

/// Every backend of the services that run here, as the gateway knows it.
fn shown_backends(gateway: &Gateway) -> Value {
    let backends = &gateway.proxy().backends;
    let outages = backends.outages();
    let shown = backends.shown().into_iter().map(|(service, backend, connections, is_used)| {
        let outage = outages.get(service.as_str()).map(|outage| outage.why.clone());
        json!({
            "service": service.as_str(),
            "backend": backend.to_string(),
            "connections": connections,
            "used": is_used,
            "why": outage.filter(|_| !is_used),
        })
    });
    shown.collect()
}

/// Where commands on this host find the admin port of this edge: DATA_DIR/run/edge.json. Without it they try the default.
fn announce(data_dir: &Path, admin: SocketAddr) -> Option<PathBuf> {
    let folder = data_dir.join("run");
    let path = folder.join("edge.json");
    let text = json!({"admin": admin, "pid": std::process::id()}).to_string();
    let written = causeway_daemon::data_dir::make_folder(&folder).and_then(|()| std::fs::write(&path, text));
    match written {
        Ok(()) => Some(path),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "causeway doctor will not find the admin port of this edge");
            None
        }
    }
}

/// Tells the cloud what cannot be listened on and which backends do not answer, as that changes.
async fn report(mut regrets: ProblemReporter, upstream: Option<&Spool>) {
    loop {
        let told = regrets.next().await;
        if let Some(upstream) = upstream {
            upstream.report_regrets(SOFTWARE, &told);
        }
    }
}

/// The queue for the cloud. Without it the edge can do all its work but report.
fn open_upstream(config: &Config) -> Option<Spool> {
    let folder = config.data_dir.value.join("upstream");
    match Spool::open(&folder, spool::SpoolLimits::default()) {
        Ok(queue) => {
            queue.report_start(SOFTWARE);
            Some(queue)
        }
        Err(error) => {
            tracing::error!(%error, folder = %folder.display(), "nothing can be reported to the cloud");
            None
        }
    }
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

/// The token itself, from the command line, a file or standard input.
fn read_token(text: &str) -> anyhow::Result<JoinToken> {
    let text = match text.strip_prefix('@') {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("token file {path} cannot be read"))?
        }
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
