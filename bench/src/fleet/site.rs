//! One real edge in a network namespace of its own: its memory, and the traffic of its link while idle.
//!
//! The kernel counts bytes and packets at its interface, both ways. One edge per transport, side by side.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use causeway_channel::Transport;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Host, Net, Plan, missing};

use crate::peer::usage_of;

/// After the last handshake: path MTU probes, renewal checks and netmaps are over by then.
const SETTLE: Duration = Duration::from_secs(15);
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// The Ethernet header, which the kernel counts as well.
const ETHERNET_BYTES: u64 = 14;
const DAY: f64 = 86_400.0;

/// The cost of an idle site.
#[derive(Debug, Clone, Copy)]
pub struct SiteFigures {
    pub transport: Transport,
    pub resident_bytes: u64,
    /// IP packets with their headers, both ways.
    pub bytes_per_day: f64,
    pub packets_per_day: f64,
}

/// The traffic of an interface, both ways.
struct Crossed {
    bytes: u64,
    packets: u64,
}

impl Crossed {
    // Bytes and packets are the first columns of the received and of the sent side.
    fn read(host: &Host) -> Result<Crossed> {
        // The file of the thread, which has moved to the namespace; the process has not.
        let table = host.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).context("no eth0")?;
        let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        let column = |number: usize| numbers.get(number).copied().context("/proc/net/dev has another form");
        let packets = column(1)? + column(9)?;
        Ok(Crossed { bytes: column(0)? + column(8)? - packets * ETHERNET_BYTES, packets })
    }
}

/// Measures for `time`. An error is the reason why it cannot be done on this machine.
pub fn measure(transports: &[Transport], time: Duration) -> Result<Vec<SiteFigures>> {
    if let Some(reason) = missing() {
        anyhow::bail!("{reason}");
    }
    let net = Net::build(&plan(transports))?;
    let folder = tempfile::tempdir()?;
    let endpoint = SocketAddr::new(net.ipv4("cloud")?.into(), CHANNEL_PORT);
    let cloud = CloudHost::start(&net.host("cloud")?, folder.path(), &[endpoint], &[])?;
    let mut edges = Vec::new();
    for transport in transports.iter().copied() {
        let (name, token) = (transport.as_str(), cloud.token(transport.as_str())?);
        let environment = [("CAUSEWAY_TRANSPORT", name)];
        let edge = EdgeHost::join_with(&net.host(name)?, folder.path(), name, &token, &environment)?;
        let log = || edge.unit.log();
        cloud
            .wait_gateway(name, "is connected", CONNECT_MAX, |it| it["connected"] == true)
            .with_context(log)?;
        edges.push((transport, edge));
    }
    std::thread::sleep(SETTLE);
    let begin = Instant::now();
    let crossed = |edge: &EdgeHost| Crossed::read(&edge.unit.host);
    let before = edges.iter().map(|(_, edge)| crossed(edge)).collect::<Result<Vec<Crossed>>>()?;
    std::thread::sleep(time);
    let mut figures = Vec::new();
    for ((transport, edge), before) in edges.iter_mut().zip(before) {
        let after = crossed(edge)?;
        let per_day = |count: u64| count as f64 * DAY / begin.elapsed().as_secs_f64();
        let (bytes_per_day, packets_per_day) =
            (per_day(after.bytes - before.bytes), per_day(after.packets - before.packets));
        let (resident_bytes, _) = usage_of(edge.unit.process()?.pid())?;
        figures.push(SiteFigures { transport: *transport, resident_bytes, bytes_per_day, packets_per_day });
    }
    Ok(figures)
}

fn plan(transports: &[Transport]) -> Plan {
    let cloud = Plan::new().router("internet").host("cloud").link("cloud", "internet", &["203.0.113.0/24"]);
    transports.iter().fold(cloud, |plan, transport| {
        let network = match transport {
            Transport::Quic => "198.51.100.0/24",
            Transport::Tcp => "192.0.2.0/24",
        };
        plan.host(transport.as_str()).link(transport.as_str(), "internet", &[network])
    })
}
