//! Network namespaces with a name: made, entered, and removed together with all that runs in them.
//!
//! The name says which process made it, and when that process was started; so a later run can tell what no process owns
//! any more. Programs are started by `ip netns exec` and die with the thread that started them.

use std::ffi::OsStr;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};

/// The folder in which `ip netns` keeps them.
const FOLDER: &str = "/run/netns";
/// The folder in which `ip netns exec` looks for files that a namespace has in place of those of /etc.
const FILES: &str = "/etc/netns";
const PREFIX: &str = "cwlab";

#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn create(node: &str) -> Result<Namespace> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let started = started(pid).context("this process has a start time")?;
        let name = format!("{PREFIX}-{pid}-{started}-{number}-{node}");
        run(Command::new("ip").args(["netns", "add", &name]), None)?;
        Ok(Namespace { name })
    }

    /// Returns true if a namespace can be made at all.
    pub fn possible() -> Result<()> {
        Namespace::create("try").map(drop)
    }

    /// Removes what processes left that are gone.
    pub fn sweep() {
        let Ok(entries) = std::fs::read_dir(FOLDER) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if owner_is_gone(&name, started) {
                // Its owner's drop, long after.
                drop(Namespace { name });
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the lines of an `ip -batch` here.
    pub fn ip(&self, lines: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), Some(lines)).map(drop)
    }

    /// Runs a script of nftables here. It happens wholly or not at all.
    pub fn nft(&self, script: &str) -> Result<()> {
        run(Command::new("ip").args(["netns", "exec", &self.name, "nft", "-f", "-"]), Some(script)).map(drop)
    }

    pub fn sysctl(&self, settings: &[&str]) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "sysctl", "-q", "-w"]).args(settings);
        run(&mut command, None).map(drop)
    }

    fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    fn files(&self) -> PathBuf {
        Path::new(FILES).join(&self.name)
    }

    fn enter(&self) -> Result<()> {
        let file = std::fs::File::open(self.path())?;
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind))
            .with_context(|| format!("cannot enter {}", self.name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Processes that still run in it were started for it.
        let pids = Command::new("ip").args(["netns", "pids", &self.name]).output();
        let pids =
            pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        for pid in pids.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != own) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = run(Command::new("ip").args(["netns", "del", &self.name]), None);
        let _ = std::fs::remove_dir_all(self.files());
    }
}

/// One node of the network, to run programs in. It exists as long as a value of this type does.
#[derive(Debug, Clone)]
pub struct Host {
    name: String,
    namespace: Arc<Namespace>,
}

impl Host {
    pub(super) fn new(name: &str, namespace: Arc<Namespace>) -> Host {
        Host { name: name.to_owned(), namespace }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// For those who look from outside: `ip netns exec NAME ...`.
    pub fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// A program that dies with the thread that started it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace(), "setpriv", "--pdeathsig", "KILL", "--"]);
        command.arg(program);
        command
    }

    /// The same command, but here.
    pub fn wrap(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("ip");
        wrapped.args(["netns", "exec", self.namespace()]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped
    }

    /// Programs that are started here from now on ask this server for names, by their own /etc/resolv.conf.
    pub fn ask_for_names(&self, server: IpAddr) -> Result<()> {
        // A question to a server that is just being restarted is lost; it is asked again after a second instead of five.
        self.write_etc("resolv.conf", &format!("nameserver {server}\noptions timeout:1\n"))
    }

    /// Programs that are started here from now on see this text in the file of that name in /etc, which must exist on the machine.
    pub fn write_etc(&self, name: &str, text: &str) -> Result<()> {
        let folder = self.namespace.files();
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join(name), text)?)
    }

    /// Does something here and returns what came of it: sockets made inside belong to this host.
    pub fn inside<T: Send>(&self, action: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        // A thread of its own, because there is no way back for one that has moved.
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| self.namespace.enter().and_then(|()| action()));
            worker.join().unwrap_or_else(|_| bail!("the action inside {} panicked", self.name))
        })
    }

    /// Starts something here that goes on by itself.
    pub fn start(&self, action: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        let (moved, wait) = std::sync::mpsc::sync_channel(1);
        let namespace = self.namespace.clone();
        let thread = std::thread::Builder::new().name(format!("in {}", self.name)).spawn(move || {
            let entered = namespace.enter();
            // The thread must not keep the namespace alive.
            drop(namespace);
            let ready = entered.is_ok();
            if moved.send(entered).is_ok() && ready {
                action();
            }
        })?;
        wait.recv().context("the thread ended")??;
        Ok(thread)
    }

    /// Returns the traffic of an interface since it was made, both directions.
    pub fn crossed(&self, interface: &str) -> Result<Crossed> {
        // Of the thread, which has moved; the process has not.
        let table = self.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
        let line = line.with_context(|| format!("{} has no interface {interface}", self.name))?;
        let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        // Eight columns of what came, then eight of what went; each begins with bytes and packets.
        match numbers.len() {
            16 => Ok(Crossed { packets: numbers[1] + numbers[9], frame_bytes: numbers[0] + numbers[8] }),
            _ => bail!("/proc/net/dev has another form: {line}"),
        }
    }

    /// Returns true if a TCP connection can be made from here.
    pub fn connects(&self, to: SocketAddr, within: std::time::Duration) -> bool {
        self.inside(|| Ok(std::net::TcpStream::connect_timeout(&to, within)?)).is_ok()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossed {
    pub packets: u64,
    /// With the heads of Ethernet.
    pub frame_bytes: u64,
}

impl Crossed {
    /// As a provider counts: IP packets, without what the local wire adds.
    pub fn bytes(&self) -> u64 {
        const ETHERNET_HEAD_BYTES: u64 = 14;
        self.frame_bytes - self.packets * ETHERNET_HEAD_BYTES
    }

    pub fn since(&self, before: Crossed) -> Crossed {
        let packets = self.packets - before.packets;
        Crossed { packets, frame_bytes: self.frame_bytes - before.frame_bytes }
    }
}

/// Runs a program to its end; what it said is in the error when it failed.
fn run(command: &mut Command, input: Option<&str>) -> Result<Output> {
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", String::from_utf8_lossy(&output.stderr), input.unwrap_or_default());
    }
    Ok(output)
}

/// When a process was started, in the kernel's ticks: with the number together it names a process for good.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may itself contain spaces. The time is the 22nd.
    let after = text.rsplit_once(')')?.1;
    after.split_whitespace().nth(19)?.parse().ok()
}

fn owner_is_gone(name: &str, started: impl Fn(u32) -> Option<u64>) -> bool {
    let mut parts = name.splitn(4, '-');
    if parts.next() != Some(PREFIX) {
        return false;
    }
    let pid = parts.next().and_then(|part| part.parse().ok());
    let since: Option<u64> = parts.next().and_then(|part| part.parse().ok());
    match (pid, since) {
        (Some(pid), Some(since)) => started(pid) != Some(since),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_owns_is_swept() {
        let check = |name: &str, gone: bool| {
            let running = |pid| (pid == 7).then_some(1234);
            assert_eq!(owner_is_gone(name, running), gone, "{name}");
        };
        check("cwlab-7-1234-0-edge", false);
        // The number was given to another process since.
        check("cwlab-7-1233-0-edge", true);
        check("cwlab-8-1234-0-edge", true);
        // Not ours, or not understood: left alone.
        check("other-8-1234-0-edge", false);
        check("cwlab-x", false);
    }

    #[test]
    fn this_process_has_a_start() {
        assert!(started(std::process::id()).is_some());
        assert_eq!(started(u32::MAX), None);
    }
}
