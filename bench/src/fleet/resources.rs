//! Computes the number of edges this machine can hold, and the limiting resource.
//!
//! The decision is made from numbers; reading them from the kernel is below it.

use anyhow::{Context, Result};
use causeway_channel::Transport;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files that a process needs beside its edges: the store, listeners, logs, libraries.
const FILES_BESIDE: u64 = 300;
/// Both ends together, generously; the edges here are heavier than the cloud's end.
const BYTES_PER_EDGE: u64 = 400 * 1024;

/// The free resources of the machine.
#[derive(Debug, Clone, Copy)]
pub struct MachineResources {
    /// Per process; the cloud has the same.
    pub files: u64,
    pub bytes: u64,
}

impl MachineResources {
    /// Raises the limit of open files as far as this process may; children inherit it.
    pub fn of_this_machine() -> Result<MachineResources> {
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            // A failure does no harm: fewer edges fit.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        }
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let table = std::fs::read_to_string("/proc/meminfo")?;
        let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kilobytes: u64 = line.context("no MemAvailable")?.trim().trim_end_matches("kB").trim().parse()?;
        Ok(MachineResources { files, bytes: kilobytes * 1024 })
    }

    /// Returns how many of `wanted` fit, and the reason when those are fewer.
    pub fn fit(self, wanted: usize, transport: Transport) -> (usize, Option<String>) {
        // All links over QUIC share a few sockets, those over TCP have one each, at both ends.
        let by_files = match transport {
            Transport::Quic => usize::MAX,
            Transport::Tcp => self.files.saturating_sub(FILES_BESIDE) as usize,
        };
        let by_memory = (self.bytes / BYTES_PER_EDGE) as usize;
        let fitting = wanted.min(by_files).min(by_memory);
        let reason = (fitting < wanted).then(|| match by_files <= by_memory {
            true => format!("a process may open {} files here (ulimit -n)", self.files),
            false => format!("{} MB of memory are free", self.bytes / 1_000_000),
        });
        (fitting, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_with_a_reason() {
        let check = |files, gigabytes: u64, transport, fitting, reason: Option<&str>| {
            let (count, why) = MachineResources { files, bytes: gigabytes << 30 }.fit(20_000, transport);
            assert_eq!(count, fitting);
            assert_eq!(why.is_some(), reason.is_some());
            assert!(reason.is_none_or(|part| why.unwrap_or_default().contains(part)));
        };
        check(100_000, 32, Transport::Tcp, 20_000, None);
        check(20_000, 32, Transport::Tcp, 19_700, Some("ulimit"));
        check(20_000, 32, Transport::Quic, 20_000, None);
        check(1 << 40, 4, Transport::Quic, 10_485, Some("memory"));
        check(100, 32, Transport::Tcp, 0, Some("ulimit"));
    }
}
