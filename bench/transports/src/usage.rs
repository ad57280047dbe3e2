//! Processor time and memory that a process has used, of this one and, through a small port, of the server.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};

#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// User and system time of all threads.
    pub cpu: Duration,
    pub resident_bytes: u64,
}

impl Usage {
    pub fn of_this_process() -> Result<Usage> {
        let used = getrusage(UsageWho::RUSAGE_SELF)?;
        let micros = |time: nix::sys::time::TimeVal| (time.tv_sec() * 1_000_000 + time.tv_usec()) as u64;
        let cpu = Duration::from_micros(micros(used.user_time()) + micros(used.system_time()));
        let status = fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kilobytes: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(Usage { cpu, resident_bytes: kilobytes * 1024 })
    }

    /// Asks the server. Runs for well under a millisecond, so it may block.
    pub fn of_server(server: SocketAddr) -> Result<Usage> {
        let mut text = String::new();
        TcpStream::connect(port_beside(server))?.read_to_string(&mut text)?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().context("a number is missing").and_then(|number| Ok(number?));
        Ok(Usage { cpu: Duration::from_micros(next()?), resident_bytes: next()? })
    }
}

/// Answers `of_server` until the process ends.
pub fn report(server: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(port_beside(server))?;
    thread::spawn(move || {
        for mut asker in listener.incoming().flatten() {
            if let Ok(usage) = Usage::of_this_process() {
                drop(write!(asker, "{} {}", usage.cpu.as_micros(), usage.resident_bytes));
            }
        }
    });
    Ok(())
}

/// Seconds in which any processor was not idle, since the start of the machine.
pub fn busy_of_machine() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("an empty /proc/stat")?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // user nice system idle iowait irq softirq steal; a tick is a hundredth of a second.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|&field| ticks.get(field)).sum::<f64>();
    Ok(busy / 100.0)
}

fn port_beside(server: SocketAddr) -> SocketAddr {
    SocketAddr::new(server.ip(), server.port() + 1)
}
