//! `causeway edge`: enrols once, then keeps the edge role running, its certificate fresh and its link up.

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use causeway_channel::session::Allowed;
use causeway_channel::{JoinToken, dial};
use causeway_daemon::admin::Doors;
use causeway_daemon::{AdminServer, Metrics, Readiness, notify, signals};
use causeway_edge::figures;
use causeway_edge::gateway::{self, Door};
use causeway_edge::link::Passengers;
use causeway_edge::netmap::NetmapKeeper;
use causeway_edge::upstream::{self, Upstream};
use causeway_edge::{Edge, EdgeError, Enrolled};
use causeway_gateway::regrets::Regrets;
use tokio_util::sync::CancellationToken;

use super::WrongUsage;
use super::cloud::start_logging;
use super::gateway::{GatewayArgs, options};
use crate::config::{Config, EdgeLayer, Layer, LogLayer, Proxy, Transport};

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
    transport: Option<Transport>,
    /// HTTP proxy on the way to the cloud [default: as HTTPS_PROXY says]
    #[arg(long, value_name = "URL")]
    proxy: Option<Proxy>,
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
    let config = Config::load(flags, arguments.config.as_deref())?;
    start_logging(&config)?;
    let stop = signals::watch(config.edge.drain.value.0)?;
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
    let door = Arc::new(Door::default());
    let mut passengers =
        Passengers { netmaps: Arc::new(netmaps.clone()), streams: door.clone(), ..Passengers::none() };
    let upstream = open_upstream(&config);
    if let Some(upstream) = &upstream {
        passengers.upstream = Arc::new(upstream.clone());
    }
    let (keeper, uplink, wishes) = edge.link(allowed(config.edge.transport.value), passengers);
    let gateway = gateway::gateway(&netmaps, uplink.clone(), upstream.clone(), options(&config));
    metrics.register(|registry| gateway.register(registry));
    metrics.register(|registry| figures::register(registry, uplink.clone(), upstream.clone()));
    door.set(gateway.clone());
    let (shown_netmap, shown_dns, presences) = (netmaps.clone(), gateway.dns(), gateway.listening());
    let doors = Doors {
        metrics,
        readiness,
        dumps: vec![
            ("config", Box::new(move || shown.clone())),
            ("link", Box::new(move || serde_json::to_value(uplink.shown()).unwrap_or_default())),
            ("netmap", Box::new(move || shown_netmap.dump())),
            ("dns", Box::new(move || serde_json::to_value(&*shown_dns.borrow()).unwrap_or_default())),
            ("presences", Box::new(move || serde_json::to_value(&*presences.borrow()).unwrap_or_default())),
        ],
    };
    let address = config.edge.admin.value;
    let admin = AdminServer::bind(address, doors)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another address with --admin"))?;
    let admin_stop = CancellationToken::new();
    let serving = tokio::spawn(admin.run(admin_stop.clone()));

    let ran = async {
        if let Some(token) = &token
            && let Enrolled::Now(_) = edge.enrol(token, &stop).await?
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
        let gateway = async {
            tokio::select! {
                () = gateway.run(forwarding.clone()) => {}
                () = report(gateway.regrets(), upstream.as_ref()) => {}
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
                () = stop.cancelled() => forwarding.cancel(),
                () = forwarding.cancelled() => {}
            }
        };
        let (ended, (), ()) = tokio::join!(edge, gateway, stopping);
        ended
    };
    let ended = ran.await;
    notify::stopping();
    upstream.inspect(Upstream::close);
    admin_stop.cancel();
    serving.await?;
    match ended {
        // Told to end before the cloud answered: nothing is lost, the same token works again.
        Ok(()) | Err(EdgeError::Stopped) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Tells the cloud what cannot be listened on and which backends do not answer, as that changes.
async fn report(mut regrets: Regrets, upstream: Option<&Upstream>) {
    loop {
        let told = regrets.next().await;
        if let Some(upstream) = upstream {
            upstream.report_regrets(SOFTWARE, &told);
        }
    }
}

/// The queue for the cloud. Without it the edge can do all its work but report.
fn open_upstream(config: &Config) -> Option<Upstream> {
    let folder = config.data_dir.value.join("upstream");
    match Upstream::open(&folder, upstream::Limits::default()) {
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

fn allowed(transport: Transport) -> Allowed {
    match transport {
        Transport::Auto => Allowed::Both,
        Transport::Quic => Allowed::QuicOnly,
        Transport::Tcp => Allowed::TcpOnly,
    }
}

/// The proxy that is configured, or the one of this machine.
fn proxy(config: &Config) -> anyhow::Result<Option<dial::Proxy>> {
    Ok(match &config.edge.proxy.value {
        Some(proxy) => Some(dial::Proxy::parse(proxy.url())?),
        None => dial::Proxy::from_environment()?,
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
