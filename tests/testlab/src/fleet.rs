//! Clouds, edges and proxies as processes inside the hosts of a network.
//!
//! They are started as a user starts them, can be killed with -9 and started again on the same data dir, and are asked
//! through their own API. When the test fails, their logs are printed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use causeway_api::management::paths;
use serde_json::Value;

use crate::causeway::{self, Process, Ran, addresses, daemon, finish, get, wait_for};
use crate::https::Client;
use crate::net::Host;

/// Every host has ports of its own, so the usual ones are free.
pub const CHANNEL_PORT: u16 = 7444;
const API: &str = "127.0.0.1:7443";
const ADMIN: &str = "127.0.0.1:7445";
const ADMIN_PORT: u16 = 7445;
/// The interval at which a status is read.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A program in a host that can be killed and started again. Prints its logs when the test fails.
#[derive(Debug)]
pub struct Unit {
    pub host: Host,
    name: String,
    folder: PathBuf,
    process: Option<Process>,
    starts: usize,
}

impl Unit {
    fn new(host: Host, name: &str, folder: &Path) -> Unit {
        Unit { host, name: name.to_owned(), folder: folder.to_owned(), process: None, starts: 0 }
    }

    fn spawn(&mut self, command: &Command) -> Result<()> {
        self.starts += 1;
        let log = self.log_of(self.starts);
        self.process = Some(Process::spawn(self.host.wrap(command), log)?);
        Ok(())
    }

    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().with_context(|| format!("{} does not run", self.name))
    }

    pub fn kill(&mut self) -> Result<()> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// The logs of all its lives.
    pub fn log(&self) -> String {
        let lives =
            (1..=self.starts).map(|life| std::fs::read_to_string(self.log_of(life)).unwrap_or_default());
        lives.collect::<Vec<_>>().join("--- started again ---\n")
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    fn log_of(&self, life: usize) -> PathBuf {
        self.folder.join(format!("{}-{life}.log", self.name))
    }

    /// Waits until the process is ready. One that ends instead says why in its log.
    fn await_ready(&mut self) -> Result<()> {
        let (host, name) = (self.host.clone(), self.name.clone());
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
        let process = self.process()?;
        let ready = wait_for(&format!("{name} is ready"), || {
            if let Some(status) = process.ended() {
                return Some(Err(status));
            }
            let answer = host.inside(|| get(admin, "/readyz")).ok()?;
            (answer.0 == 200).then_some(Ok(()))
        });
        match ready.with_context(|| process.log())? {
            Ok(()) => Ok(()),
            Err(status) => bail!("{name} ended with {status}:\n{}", process.log()),
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {} in {} ---\n{}", self.name, self.host.name(), self.log());
        }
    }
}

/// A cloud. Its API is asked from inside its host.
pub struct CloudHost {
    pub unit: Unit,
    arguments: Vec<String>,
    api: Client,
}

impl CloudHost {
    /// Starts a cloud that edges find under the endpoints of `advertise`, and waits until it is ready.
    pub fn start(host: &Host, folder: &Path, advertise: &[SocketAddr], more: &[&str]) -> Result<CloudHost> {
        let mut unit = Unit::new(host.clone(), "cloud", folder);
        let data_dir = unit.data_dir().display().to_string();
        let channel = format!("[::]:{CHANNEL_PORT}");
        let fixed = ["cloud", "--data-dir", &data_dir, "--api", API, "--admin", ADMIN, "--channel", &channel];
        let mut arguments: Vec<String> =
            fixed.into_iter().chain(more.iter().copied()).map(str::to_owned).collect();
        for endpoint in advertise {
            arguments.extend(["--advertise".to_owned(), endpoint.to_string()]);
        }
        unit.spawn(&daemon_of(&arguments)?)?;
        unit.await_ready()?;
        let api = Client::from_kubeconfig(&unit.data_dir().join("admin.kubeconfig"))?;
        Ok(CloudHost { unit, arguments, api })
    }

    /// After a kill: on its old data dir, until it is ready.
    pub fn restart(&mut self) -> Result<()> {
        self.unit.spawn(&daemon_of(&self.arguments)?)?;
        self.unit.await_ready()
    }

    /// A client command, as the admin on the cloud's own host.
    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        self.run_with(arguments, None)
    }

    pub fn apply(&self, text: &str) -> Result<String> {
        self.run_with(&["apply", "-f", "-"], Some(text))?.success()
    }

    fn run_with(&self, arguments: &[&str], input: Option<&str>) -> Result<Ran> {
        let mut command = causeway::command(arguments)?;
        command.env("CAUSEWAY_KUBECONFIG", self.unit.data_dir().join("admin.kubeconfig"));
        finish(self.unit.host.wrap(&command), input)
    }

    /// A token for one gateway, which is named like its site.
    pub fn token(&self, site: &str) -> Result<String> {
        Ok(self.run(&["token", "create", "--site", site])?.success()?.trim().to_owned())
    }

    /// One call of the API, from the cloud's own host. Quicker than a command, for those who look often.
    pub fn call<T: Send>(&self, action: impl FnOnce(&Client) -> Result<T> + Send) -> Result<T> {
        self.unit.host.inside(|| action(&self.api))
    }

    /// Returns the entry of a gateway in `causeway status --json`.
    pub fn gateway(&self, name: &str) -> Result<Value> {
        let status = self.call(|api| api.get(paths::STATUS)?.success())?;
        let gateways = status["gateways"].as_array().context("a status lists gateways")?;
        let found = gateways.iter().find(|gateway| gateway["name"] == name);
        found.cloned().with_context(|| format!("no gateway {name} in {status}"))
    }

    /// Looks at a gateway's status until it is as wanted. Returns it, and the time it took.
    pub fn wait_gateway(
        &self,
        name: &str,
        what: &str,
        within: Duration,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Result<(Value, Duration)> {
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < within {
            match self.gateway(name) {
                Ok(gateway) if wanted(&gateway) => return Ok((gateway, begin.elapsed())),
                other => last = Some(other),
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        bail!("{name} {what}: not within {within:?}; last seen: {last:?}")
    }

    pub fn addresses(&mut self) -> Result<Value> {
        let (data_dir, pid) = (self.unit.data_dir(), self.unit.process()?.pid());
        addresses(&data_dir, pid).context("the cloud has not written its addresses")
    }
}

/// An edge. It is asked through the cloud, and by its log.
pub struct EdgeHost {
    pub unit: Unit,
    environment: Vec<(String, String)>,
}

impl EdgeHost {
    /// Starts an edge with a token and waits for nothing.
    pub fn join(host: &Host, folder: &Path, name: &str, token: &str) -> Result<EdgeHost> {
        EdgeHost::join_with(host, folder, name, token, &[])
    }

    /// The same, with more in its environment.
    pub fn join_with(
        host: &Host,
        folder: &Path,
        name: &str,
        token: &str,
        environment: &[(&str, &str)],
    ) -> Result<EdgeHost> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let unit = Unit::new(host.clone(), name, folder);
        let mut edge = EdgeHost { unit, environment: environment.iter().map(owned).collect() };
        edge.launch(&["--join", token])?;
        Ok(edge)
    }

    /// The state of the edge, as its admin port shows it.
    pub fn debug(&self) -> Result<Value> {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
        let (code, body) = self.unit.host.inside(|| get(admin, "/debug"))?;
        ensure!(code == 200, "the admin port of {} answers {code}", self.unit.name);
        Ok(serde_json::from_str(&body)?)
    }

    /// Sets a variable for the next start.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// After a kill: its data dir is enough.
    pub fn restart(&mut self) -> Result<()> {
        self.launch(&[])
    }

    fn launch(&mut self, more: &[&str]) -> Result<()> {
        let data_dir = self.unit.data_dir().display().to_string();
        let mut command = daemon(&[&["edge", "--data-dir", &data_dir, "--admin", ADMIN], more].concat())?;
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.unit.spawn(&command)
    }
}

/// An HTTP proxy that knows CONNECT: tinyproxy.
#[derive(Debug)]
pub struct Proxy {
    pub unit: Unit,
    pub address: SocketAddr,
}

impl Proxy {
    pub fn start(host: &Host, folder: &Path, address: SocketAddr) -> Result<Proxy> {
        let mut unit = Unit::new(host.clone(), "tinyproxy", folder);
        let file = folder.join("tinyproxy.conf");
        // Without any Allow every client is served, and without ConnectPort every port is dialled.
        let settings =
            format!("Listen {}\nPort {}\nTimeout 600\nMaxClients 50\n", address.ip(), address.port());
        std::fs::write(&file, settings)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "tinyproxy", "-d", "-c"]).arg(&file);
        unit.spawn(&command)?;
        let open = || host.connects(address, Duration::from_secs(1)).then_some(());
        wait_for("tinyproxy listens", open).with_context(|| unit.log())?;
        Ok(Proxy { unit, address })
    }

    /// Why no proxy can be started here; none when it can.
    pub fn missing() -> Option<&'static str> {
        let found = Command::new("tinyproxy").arg("-v").output().is_ok();
        (!found).then_some("needs tinyproxy (.ci/needs test installs it)")
    }
}

fn daemon_of(arguments: &[String]) -> Result<Command> {
    daemon(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}
