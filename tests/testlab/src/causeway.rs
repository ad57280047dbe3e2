//! The built `causeway` binary as tests use it: a cloud that dies with its test, and client commands.
//!
//! Waits for conditions with deadlines, never for a time. Ports are the kernel's choice; the process says
//! which ones in its data dir.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Generous: the machine may run many tests at once. Nothing waits this long when all is well.
pub const DEADLINE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Returns the path of the binary: CAUSEWAY_BIN, or beside the test's own folder in `target`, where it is built when missing.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("CAUSEWAY_BIN") {
        return Ok(path.into());
    }
    built("causeway", "causeway")
}

/// Returns the path of the program `relay`, which is built when missing.
pub fn relay_binary() -> Result<PathBuf> {
    built("testlab", "relay")
}

/// Returns the path of a program of a package in the folder of the test, and builds it when it is missing.
fn built(package: &str, name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    // A test is target/PROFILE/deps/NAME, the binary target/PROFILE/causeway.
    let folder = test.parent().and_then(Path::parent).context("a test lives in target/PROFILE/deps")?;
    let path = folder.join(name);
    if !path.exists() {
        build(folder, package, name)?;
    }
    Ok(path)
}

/// Builds a program when one test package is run alone: cargo builds the binary of another package only when asked.
fn build(folder: &Path, package: &str, name: &str) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = folder.parent().context("a profile lives in target")?;
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", package, "--bin", name, "--target-dir"]).arg(target);
    if folder.ends_with("release") {
        command.arg("--release");
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    match command.status()?.success() {
        true => Ok(()),
        false => bail!("`cargo build --package {package} --bin {name}` failed"),
    }
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Standard output of a command that must succeed.
    pub fn success(self) -> Result<String> {
        match self.code {
            0 => Ok(self.stdout),
            code => bail!("exit code {code}\nstdout: {}\nstderr: {}", self.stdout, self.stderr),
        }
    }

    pub fn json(self) -> Result<Value> {
        Ok(serde_json::from_str(&self.success()?)?)
    }
}

/// Runs `causeway` with nothing of this process's environment that could lead it elsewhere.
pub fn command(arguments: &[&str]) -> Result<Command> {
    Ok(prepare(Command::new(binary()?), arguments))
}

/// The same for a process that stays: the kernel ends it with the thread that started it, even when that was killed.
pub fn daemon(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(binary()?);
    Ok(prepare(command, arguments))
}

fn prepare(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments).stdin(Stdio::null());
    let own = std::env::vars_os().map(|(name, _)| name);
    for name in own.filter(|name| name.to_string_lossy().starts_with("CAUSEWAY_")) {
        command.env_remove(name);
    }
    command.env_remove("KUBECONFIG").env("NO_COLOR", "1");
    command
}

/// Runs a command to its end.
pub fn run(arguments: &[&str]) -> Result<Ran> {
    finish(command(arguments)?, None)
}

/// Runs a command to its end, with `input` on its standard input.
pub fn finish(mut command: Command, input: Option<&str>) -> Result<Ran> {
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        // A command that has seen enough may close its side.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output()?;
    Ok(Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Looks until `condition` gives a value or the deadline is over.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if Instant::now() > end {
            bail!("{what}: not within {} seconds", DEADLINE.as_secs());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// A process that is killed when the test lets go of it. Its standard error is in `log`.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn spawn(command: Command, log: PathBuf) -> Result<Process> {
        Process::spawn_to(command, log, Stdio::null())
    }

    /// The same, with standard output in the file `output`.
    pub fn spawn_with_output(command: Command, log: PathBuf, output: &Path) -> Result<Process> {
        Process::spawn_to(command, log, std::fs::File::create(output)?.into())
    }

    fn spawn_to(mut command: Command, log: PathBuf, output: Stdio) -> Result<Process> {
        let file = std::fs::File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(file).spawn()?;
        Ok(Process { child, log })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns true if it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// kill -9, and gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, as systemd does, and waits.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let log = self.log.clone();
        wait_for("the process ends after SIGTERM", || self.ended())
            .with_context(|| std::fs::read_to_string(log).unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running cloud.
#[derive(Debug)]
pub struct Cloud {
    pub process: Process,
    pub data_dir: PathBuf,
    pub api: SocketAddr,
    pub channel: SocketAddr,
    pub admin: SocketAddr,
}

impl Cloud {
    /// Starts a cloud on free ports of the loopback and waits until it is ready.
    pub fn start(data_dir: &Path) -> Result<Cloud> {
        Cloud::start_with(data_dir, &[])
    }

    pub fn start_with(data_dir: &Path, more: &[&str]) -> Result<Cloud> {
        Cloud::await_ready(Cloud::spawn(data_dir, more)?, data_dir)
    }

    /// Waits until a cloud that was started is ready.
    pub fn await_ready(mut process: Process, data_dir: &Path) -> Result<Cloud> {
        let addresses = wait_for("the cloud writes its addresses", || {
            let ended = process.ended().map(|status| Err(status.to_string()));
            ended.or_else(|| addresses(data_dir, process.pid()).map(Ok))
        })
        .with_context(|| process.log())?;
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(status) => bail!("the cloud ended with {status}:\n{}", process.log()),
        };
        let address = |key: &str| -> Result<SocketAddr> {
            addresses[key]
                .as_str()
                .and_then(|text| text.parse().ok())
                .with_context(|| format!("no address of {key}"))
        };
        let (api, channel, admin) = (address("api")?, address("channel")?, address("admin")?);
        wait_for("the cloud is ready", || get(admin, "/readyz").ok().filter(|(code, _)| *code == 200))
            .with_context(|| process.log())?;
        Ok(Cloud { process, data_dir: data_dir.to_owned(), api, channel, admin })
    }

    /// Starts one without waiting: for clouds that are to fail, or to start together.
    pub fn spawn(data_dir: &Path, more: &[&str]) -> Result<Process> {
        let folder = data_dir.to_str().context("temporary folders have plain names")?;
        let free = "127.0.0.1:0";
        let mut arguments = vec!["cloud", "--data-dir", folder, "--admin", free];
        for flag in ["--api", "--channel"] {
            if !more.contains(&flag) {
                arguments.extend([flag, free]);
            }
        }
        arguments.extend(more);
        let log = data_dir.with_extension("log");
        Process::spawn(daemon(&arguments)?, log)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("admin.kubeconfig")
    }

    /// A client command against this cloud, as its admin.
    pub fn client(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = command(arguments)?;
        command.env("CAUSEWAY_KUBECONFIG", self.kubeconfig());
        Ok(command)
    }

    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        finish(self.client(arguments)?, None)
    }

    /// Standard output of a bash script that must succeed, with `causeway` on its path and this cloud's kubeconfig.
    pub fn shell(&self, script: &str) -> Result<String> {
        let binary = binary()?;
        let folder = binary.parent().context("the binary is in a folder")?;
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = prepare(Command::new("bash"), &["-c", script]);
        command.env("PATH", path).env("CAUSEWAY_KUBECONFIG", self.kubeconfig());
        finish(command, None)?.success()
    }

    pub fn apply(&self, text: &str) -> Result<Ran> {
        finish(self.client(&["apply", "-f", "-"])?, Some(text))
    }

    /// One object, when it is there.
    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        self.run(&["get", kind, name, "-o", "json"]).ok()?.json().ok()
    }

    /// Waits until the condition of an object is as said, and returns the whole condition.
    pub fn wait_condition(&self, kind: &str, name: &str, about: &str, status: &str) -> Result<Value> {
        wait_for(&format!("{kind}/{name} has {about}={status}"), || {
            let object = self.object(kind, name)?;
            let conditions = object["status"]["conditions"].as_array()?;
            let found = conditions.iter().find(|condition| condition["type"] == about)?;
            (found["status"] == status).then(|| found.clone())
        })
        .with_context(|| self.process.log())
    }
}

pub(crate) fn addresses(data_dir: &Path, pid: u32) -> Option<Value> {
    let text = std::fs::read(data_dir.join("run/addresses.json")).ok()?;
    let value: Value = serde_json::from_slice(&text).ok()?;
    // A cloud that was killed leaves its file behind.
    (value["pid"] == pid).then_some(value)
}

/// A plain HTTP request: code and body.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP answer")?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((code, body))
}
