//! A real etcd cluster on loopback: started from Debian's package, members killed and restarted one by one.
//!
//! Ports are free ones, data lives in a directory of its own, and everything ends with the value. The members also
//! end when the thread that started them ends, so that a killed test leaves nothing behind.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::free_port::free_port;

/// The time that a member may take until it answers; recovery on a busy machine included.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

/// Keep it as long as the cluster is needed.
pub struct Cluster {
    binary: PathBuf,
    directory: TempDir,
    tls: Option<Tls>,
    members: Vec<Member>,
}

/// PEM files: what the members and their clients use.
#[derive(Debug, Clone)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    health: SocketAddr,
    process: Option<Child>,
}

impl Cluster {
    /// Starts `size` members and waits until all of them answer.
    pub fn start(size: usize) -> Result<Cluster> {
        Cluster::start_on(size, None)
    }

    /// The same, with TLS towards clients: the members show `tls.cert` and ask for a certificate of `tls.ca`.
    pub fn start_tls(size: usize, tls: Tls) -> Result<Cluster> {
        Cluster::start_on(size, Some(tls))
    }

    fn start_on(size: usize, tls: Option<Tls>) -> Result<Cluster> {
        let binary = binary()?;
        let mut last = None;
        // Another process may take a port between our look and etcd's bind; then everything is chosen anew.
        for _ in 0..3 {
            let mut cluster = Cluster {
                binary: binary.clone(),
                directory: TempDir::new()?,
                tls: tls.clone(),
                members: free_members(size),
            };
            match cluster.start_all() {
                Ok(()) => return Ok(cluster),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    /// The endpoints that clients connect to.
    pub fn endpoints(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.members.iter().map(|member| format!("{scheme}://{}", member.client)).collect()
    }

    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// `kill -9`, as when the machine dies. Its data stays.
    pub fn kill(&mut self, member: usize) -> Result<()> {
        let mut process = self.members[member].process.take().context("the member does not run")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Starts a killed member again on its old data, and waits until it answers.
    pub fn restart(&mut self, member: usize) -> Result<()> {
        ensure!(self.members[member].process.is_none(), "the member runs already");
        self.spawn(member)?;
        self.wait_healthy(member)
    }

    fn start_all(&mut self) -> Result<()> {
        for member in 0..self.members.len() {
            self.spawn(member)?;
        }
        (0..self.members.len()).try_for_each(|member| self.wait_healthy(member))
    }

    fn spawn(&mut self, place: usize) -> Result<()> {
        let member = &self.members[place];
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let everybody: Vec<String> =
            self.members.iter().enumerate().map(|(n, m)| format!("m{n}=http://{}", m.peer)).collect();
        let log = std::fs::File::options().append(true).create(true).open(self.log(place))?;
        // The kernel ends the member with the thread that started it, even when that was killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.binary);
        command.args([
            format!("--name=m{place}"),
            format!("--data-dir={}", self.directory.path().join(format!("m{place}")).display()),
            format!("--listen-client-urls={scheme}://{}", member.client),
            format!("--advertise-client-urls={scheme}://{}", member.client),
            format!("--listen-peer-urls=http://{}", member.peer),
            format!("--initial-advertise-peer-urls=http://{}", member.peer),
            format!("--initial-cluster={}", everybody.join(",")),
            "--initial-cluster-state=new".into(),
            format!("--initial-cluster-token={}", self.directory.path().display()),
            format!("--listen-metrics-urls=http://{}", member.health),
            // Loopback is fast: elections need not take the seconds that wide networks need.
            "--heartbeat-interval=50".into(),
            "--election-timeout=500".into(),
            "--logger=zap".into(),
        ]);
        if let Some(tls) = &self.tls {
            command.args([
                format!("--cert-file={}", tls.cert.display()),
                format!("--key-file={}", tls.key.display()),
                format!("--trusted-ca-file={}", tls.ca.display()),
                "--client-cert-auth".into(),
            ]);
        }
        // An environment meant for another etcd must not leak in.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ETCD_")) {
            command.env_remove(name);
        }
        let process =
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn().context("setpriv")?;
        self.members[place].process = Some(process);
        Ok(())
    }

    fn wait_healthy(&mut self, place: usize) -> Result<()> {
        let deadline = Instant::now() + HEALTHY_WITHIN;
        while Instant::now() < deadline {
            let member = &mut self.members[place];
            if let Some(process) = &mut member.process
                && let Some(status) = process.try_wait()?
            {
                member.process = None;
                bail!("etcd member {place} ended with {status}: {}", last_lines(&self.log(place)));
            }
            if is_healthy(self.members[place].health) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("etcd member {place} is not healthy after {HEALTHY_WITHIN:?}: {}", last_lines(&self.log(place)))
    }

    fn log(&self, place: usize) -> PathBuf {
        self.directory.path().join(format!("m{place}.log"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns the path of etcd; the script installs it when it is missing.
pub fn binary() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/lab/install-etcd");
    let output = Command::new(&script)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| script.display().to_string())?;
    ensure!(output.status.success(), "{} failed", script.display());
    let text = String::from_utf8(output.stdout)?;
    Ok(PathBuf::from(text.lines().last().context("install-etcd printed nothing")?))
}

fn free_members(size: usize) -> Vec<Member> {
    let addresses: Vec<SocketAddr> = (0..size * 3).map(|_| free_port()).collect();
    addresses
        .chunks_exact(3)
        .map(|three| Member { client: three[0], peer: three[1], health: three[2], process: None })
        .collect()
}

fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(r#""health":"true""#))
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_can_die_and_come_back() {
        let mut cluster = Cluster::start(3).expect("a cluster");
        cluster.kill(1).expect("killed");
        assert!(!is_healthy(cluster.members[1].health));
        cluster.wait_healthy(0).expect("two of three go on, after an election at the most");
        cluster.restart(1).expect("restarted");
        assert!(is_healthy(cluster.members[1].health));
    }
}
