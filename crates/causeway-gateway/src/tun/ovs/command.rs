//! Runs the programs of Open vSwitch: `ovs-vsctl` for ports, `ovs-ofctl` for flows.
//!
//! A program that takes too long is ended, and its output is bounded. The environment is passed on, so that `OVS_RUNDIR`
//! names another folder of sockets.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// A bridge answers within milliseconds; a switch that starts needs a second or two.
const TIME_MAX: Duration = Duration::from_secs(5);
/// About 40,000 flows.
const OUTPUT_BYTES_MAX: u64 = 8 * 1024 * 1024;
const ERROR_BYTES_MAX: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum OvsError {
    #[error(
        "{0} is not installed; install Open vSwitch (openvswitch-switch), or set [tunnel] datapath to tun"
    )]
    Missing(&'static str),
    #[error(
        "{0} has not finished within {TIME_MAX:?}; check that ovs-vswitchd runs (systemctl status openvswitch-switch)"
    )]
    Timeout(&'static str),
    #[error("cannot run {program}")]
    Io { program: &'static str, source: io::Error },
    #[error(
        "{program} failed: {message}; check that Open vSwitch runs (systemctl status openvswitch-switch) and that this process may use its sockets"
    )]
    Failed { program: &'static str, message: String },
    #[error(
        "there is no Open vSwitch bridge {0}; make it with `ovs-vsctl add-br {0}`, or set [tunnel] bridge"
    )]
    NoBridge(String),
    #[error("Open vSwitch cannot open the port {port}: {message}")]
    Port { port: String, message: String },
    #[error(
        "flows of another program have the priorities 61000 to 61003 in table 0 of {0} and match the same packets; give them other priorities"
    )]
    Overlap(String),
    #[error("{bridge} has {found} flows of this gateway after {wanted} were set; remove what changes them")]
    Count { bridge: String, wanted: usize, found: usize },
}

/// The end of a program and its output.
pub struct Finished {
    pub status: ExitStatus,
    pub output: String,
    pub message: String,
}

impl Finished {
    pub fn success(self, program: &'static str) -> Result<String, OvsError> {
        match self.status.success() {
            true => Ok(self.output),
            false => Err(OvsError::Failed { program, message: self.message }),
        }
    }
}

/// Runs a program to its end.
pub async fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<Finished, OvsError> {
    let finished = tokio::time::timeout(TIME_MAX, finish(program, arguments, input)).await;
    match finished {
        Ok(Ok(finished)) => Ok(finished),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(OvsError::Missing(program)),
        Ok(Err(source)) => Err(OvsError::Io { program, source }),
        Err(_) => Err(OvsError::Timeout(program)),
    }
}

async fn finish(program: &str, arguments: &[&str], input: &str) -> io::Result<Finished> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut output, mut message) = (Vec::new(), Vec::new());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that has seen enough may close its side.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut output).await,
            None => Ok(0),
        }
    };
    let read_errors = async {
        match stderr {
            Some(stderr) => stderr.take(ERROR_BYTES_MAX).read_to_end(&mut message).await,
            None => Ok(0),
        }
    };
    let ((), read, read_errors) = tokio::join!(write, read, read_errors);
    read?;
    read_errors?;
    let status = child.wait().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let message = text(&message).lines().map(str::trim).collect::<Vec<_>>().join(" ");
    Ok(Finished { status, output: text(&output), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_is_judged_by_its_end_and_its_message() {
        let said = run("cat", &[], "flows").await.unwrap().success("cat").unwrap();
        assert_eq!(said, "flows");
        let failed = run("cat", &["/none/such"], "").await.unwrap().success("cat").unwrap_err().to_string();
        assert!(failed.contains("cat failed: cat: /none/such: "), "{failed}");
        let missing = run("no-such-program", &[], "").await.err().unwrap();
        assert!(matches!(missing, OvsError::Missing("no-such-program")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_does_not_end_is_ended() {
        let late = run("sleep", &["1000"], "").await.err().unwrap();
        assert!(matches!(late, OvsError::Timeout("sleep")), "{late}");
    }
}
