//! A fleet of simulated edges on one cloud: memory, CPU, bytes, and the recovery after kill -9.
//!
//! The cloud is the release binary in a process of its own, on SQLite. The edges run here (`edge_pool`, `edge`),
//! with certificates created beforehand (`identity`); their events are recorded in `edge_events`. `site` measures
//! a real edge.

mod edge;
mod edge_events;
mod edge_pool;
pub mod identity;
mod resources;
mod site;
mod table;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use causeway_channel::Transport;
use testlab::causeway::{Cloud, get};

use crate::peer::usage_of;
use crate::results;
use edge_events::Return;
use edge_pool::SimulatedEdges;
use identity::FleetIdentity;
use resources::MachineResources;
use site::SiteFigures;
use table::print_table;

pub const USAGE: &str = "bench fleet [--edges N] [--transports quic,tcp] [--idle SECONDS] [--site SECONDS]";

/// The size and duration of a run.
struct Size {
    edges: usize,
    transports: Vec<Transport>,
    idle: Duration,
    /// Zero: skips the real edge.
    site: Duration,
}

/// The result of one transport.
struct Figures {
    transport: Transport,
    edges: usize,
    /// Memory of the cloud, with all objects and no edge attached.
    empty_bytes: u64,
    full_bytes: u64,
    idle_cpu: f64,
    link_bytes_per_day: f64,
    gathered: Duration,
    netmaps: (usize, usize),
    returns: Vec<Restart>,
}

/// A kill -9, and the recovery.
struct Restart {
    edges: usize,
    /// Time until the cloud was ready again.
    ready: Duration,
    /// Processor time of the cloud from then until all edges were back, and of this process, which runs all
    /// edges.
    cpu: Duration,
    edges_cpu: Duration,
    back: Return,
}

/// The timeout for every action of a fleet that should take seconds.
const PATIENCE: Duration = Duration::from_secs(300);
/// Six times the goal.
const RETURN_MAX: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Share of a core, within a second, below which the cloud is idle.
const QUIET: f64 = 0.03;
const SETTLE_MAX: Duration = Duration::from_secs(90);
/// The pause after the last edge is attached: netmaps and status are written, buffers released.
const SETTLE_ATTACHED: Duration = Duration::from_secs(12);
/// The store was not written for this long: the status of all attached edges is stored.
const UNWRITTEN: Duration = Duration::from_secs(3);
/// Counters of the cloud that are shown after the idle time.
const GROWN_SHOWN: usize = 12;
const DAY: f64 = 86_400.0;

pub async fn run(arguments: &[String]) -> Result<()> {
    let size = Size::from_arguments(arguments)?;
    if std::env::var_os("CAUSEWAY_BIN").is_none() {
        bail!("CAUSEWAY_BIN names no causeway binary: run bench/run");
    }
    let resources = MachineResources::of_this_machine()?;
    let mut planned = Vec::new();
    for transport in size.transports.iter().copied() {
        let (edges, reason) = resources.fit(size.edges, transport);
        if let Some(reason) = reason {
            println!("fleet: {edges} edges over {transport} instead of {}: {reason}", size.edges);
        }
        planned.push((transport, edges));
    }
    let sites = if size.site.is_zero() { Vec::new() } else { measure_site(&size) };
    let most = planned.iter().map(|(_, edges)| *edges).max().context("no transport to measure")?;
    eprintln!("fleet: making {most} gateways and certificates ...");
    let folder = tempfile::tempdir()?;
    let identity = FleetIdentity::make(folder.path(), most).await?;
    let mut all = Vec::new();
    for (transport, edges) in planned {
        eprintln!("fleet: {edges} edges over {transport} ...");
        match measure(&identity, transport, edges, &size).await {
            Ok(figures) => all.push(figures),
            Err(error) => println!("fleet over {transport}: not measured: {error:#}"),
        }
    }
    print_table(&all, &sites);
    results::append(&table::result_lines(&all, &sites))
}

impl Size {
    fn from_arguments(arguments: &[String]) -> Result<Size> {
        let mut size = Size {
            edges: 20_000,
            transports: vec![Transport::Quic, Transport::Tcp],
            idle: Duration::from_secs(30),
            site: Duration::from_secs(60),
        };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { bail!("usage: {USAGE}") };
            match name.as_str() {
                "--edges" => size.edges = value.parse()?,
                "--idle" => size.idle = Duration::from_secs(value.parse()?),
                "--site" => size.site = Duration::from_secs(value.parse()?),
                "--transports" => {
                    let known = [Transport::Quic, Transport::Tcp];
                    let found = |name: &str| known.into_iter().find(|transport| transport.as_str() == name);
                    let transports = value.split(',').map(|name| found(name).context("quic or tcp"));
                    size.transports = transports.collect::<Result<_>>()?;
                }
                _ => bail!("unknown argument {name}; usage: {USAGE}"),
            }
        }
        Ok(size)
    }
}

fn measure_site(size: &Size) -> Vec<SiteFigures> {
    eprintln!("fleet: one idle site ...");
    site::measure(&size.transports, size.site).unwrap_or_else(|error| {
        println!("one idle site: not measured: {error:#}");
        Vec::new()
    })
}

async fn measure(
    identity: &FleetIdentity,
    transport: Transport,
    edges: usize,
    size: &Size,
) -> Result<Figures> {
    let address = free_address()?;
    let mut cloud = start(identity, address)?;
    settle(&cloud).await?;
    let (empty_bytes, _) = usage_of(cloud.process.pid())?;
    let begin = Instant::now();
    let edge_pool = SimulatedEdges::gather(identity, address, transport, edges, PATIENCE).await?;
    let gathered = begin.elapsed();
    eprintln!("fleet: all attached after {gathered:.1?}; idle for {:?} ...", size.idle);
    tokio::time::sleep(SETTLE_ATTACHED).await;
    settle_attached(identity).await?;

    let (begin, (_, cpu_before), links_before) =
        (Instant::now(), usage_of(cloud.process.pid())?, edge_pool.events.witnessed());
    let (idle_before, page_before) = (edge_pool.events.idle.counts(), metrics(&cloud));
    tokio::time::sleep(size.idle).await;
    let idle = edge_pool.events.idle.counts();
    for (figure, more) in grown(&page_before, &metrics(&cloud)) {
        eprintln!("fleet: while idle: {figure} +{more}");
    }
    let [pings, heard, lost] = std::array::from_fn(|number| idle[number] - idle_before[number]);
    println!(
        "fleet: while {edges} were idle: {pings} pings, {heard} messages of the cloud, {lost} sessions lost"
    );
    let (full_bytes, cpu) = usage_of(cloud.process.pid())?;
    let (seconds, links) = (begin.elapsed().as_secs_f64(), edge_pool.events.witnessed());
    let link_bytes = links.0.saturating_sub(links_before.0) as f64 / links.1.max(1) as f64;
    // Printed early, so that a run that is aborted later still has a result.
    eprintln!("fleet: the cloud holds {full_bytes} bytes, {empty_bytes} before; CPU {:?}", cpu - cpu_before);

    let mut returns = vec![restart(&mut cloud, identity, address, &edge_pool).await?];
    // Half of them again: the goal is defined for ten thousand.
    edge_pool.shrink(edges / 2);
    tokio::time::sleep(SETTLE_ATTACHED).await;
    returns.push(restart(&mut cloud, identity, address, &edge_pool).await?);
    let netmaps = edge_pool.events.netmaps();
    edge_pool.end().await;
    Ok(Figures {
        transport,
        edges,
        empty_bytes,
        full_bytes,
        idle_cpu: (cpu - cpu_before).as_secs_f64() / seconds,
        link_bytes_per_day: link_bytes * DAY / seconds,
        gathered,
        netmaps,
        returns,
    })
}

async fn restart(
    cloud: &mut Cloud,
    identity: &FleetIdentity,
    address: SocketAddr,
    edge_pool: &SimulatedEdges,
) -> Result<Restart> {
    let edges = edge_pool.expected();
    eprintln!("fleet: kill -9 with {edges} edges ...");
    edge_pool.events.forget();
    let killed = Instant::now();
    cloud.process.kill()?;
    *cloud = start(identity, address)?;
    let ready = killed.elapsed();
    let us = std::process::id();
    let (before, us_before) = (usage_of(cloud.process.pid())?.1, usage_of(us)?.1);
    // Edges that do not come back are counted as missing.
    let waited = edge_pool.wait_for_return(killed, killed + RETURN_MAX).await;
    if let Err(error) = waited {
        println!("fleet: {error:#}");
        edge_pool.events.missing(edges, killed).iter().for_each(|line| println!("fleet: {line}"));
    }
    let (cpu, edges_cpu) =
        (usage_of(cloud.process.pid())?.1 - before, usage_of(us)?.1.saturating_sub(us_before));
    let back = edge_pool.events.returned(killed);
    eprintln!("fleet: {} are back, the last after {:.1?}", back.times.len(), back.times.last());
    for line in turned_away(cloud) {
        println!("fleet: after the restart with {edges} edges: {line}");
    }
    eprintln!("fleet: CPU of the cloud {cpu:.1?}, of the edges {edges_cpu:.1?}");
    Ok(Restart { edges, ready, cpu, edges_cpu, back })
}

fn start(identity: &FleetIdentity, address: SocketAddr) -> Result<Cloud> {
    Cloud::start_with(&identity.data_dir, &["--channel", &address.to_string()])
}

/// Waits until a cloud has processed its objects: a new one writes a status into every object.
async fn settle(cloud: &Cloud) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < SETTLE_MAX {
        let (_, before) = usage_of(cloud.process.pid())?;
        tokio::time::sleep(LOOK_AGAIN).await;
        let (_, after) = usage_of(cloud.process.pid())?;
        if (after - before).as_secs_f64() < QUIET * LOOK_AGAIN.as_secs_f64() {
            return Ok(());
        }
    }
    println!("fleet: the cloud was still busy {SETTLE_MAX:?} after its start, before any edge came");
    Ok(())
}

/// Waits until a cloud has stored the status of all edges that just attached.
async fn settle_attached(identity: &FleetIdentity) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < SETTLE_MAX {
        let written = ["store.db", "store.db-wal"].iter().filter_map(|name| {
            let file = std::fs::metadata(identity.data_dir.join(name)).ok()?;
            file.modified().ok()?.elapsed().ok()
        });
        if written.min().is_none_or(|ago| ago > UNWRITTEN) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    println!("fleet: the cloud was still writing {SETTLE_MAX:?} after the last edge had come");
    Ok(())
}

/// The cloud's own counters of rejected edges.
fn turned_away(cloud: &Cloud) -> Vec<String> {
    let page = metrics(cloud);
    let tells = |line: &&str| {
        (line.contains("_rejected_total{")
            || line.contains("refused_total{")
            || line.contains("retries_total"))
            && !line.ends_with(" 0")
    };
    page.lines().filter(tells).map(str::to_owned).collect()
}

fn metrics(cloud: &Cloud) -> String {
    get(cloud.admin, "/metrics").map(|(_, page)| page).unwrap_or_default()
}

/// Returns the counters with the largest increase from one page of metrics to the next.
fn grown<'a>(before: &str, after: &'a str) -> Vec<(&'a str, f64)> {
    let figure = |line: &'a str| {
        let (name, value) = line.rsplit_once(' ')?;
        name.contains("_total").then_some((name, value.parse::<f64>().ok()?))
    };
    let value_before = |name: &str| {
        let line = before.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let mut grown: Vec<_> =
        after.lines().filter_map(figure).map(|(name, value)| (name, value - value_before(name))).collect();
    grown.retain(|(_, more)| *more > 0.0);
    grown.sort_by(|one, other| other.1.total_cmp(&one.1));
    grown.truncate(GROWN_SHOWN);
    grown
}

// The restarted cloud must have the address of the first one.
fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
