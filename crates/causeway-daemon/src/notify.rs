//! Tells systemd (`Type=notify`) the state of this process, and feeds its watchdog. Without NOTIFY_SOCKET nothing is sent.
//!
//! The watchdog is fed by `keep_alive`, which the main loop of a role polls: a process whose main loop is stuck, or whose
//! runtime runs no tasks any more, misses a beat and is restarted by systemd.

use std::convert::Infallible;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The process serves.
pub fn ready() {
    send("READY=1");
}

/// The process drains.
pub fn stopping() {
    send("STOPPING=1");
}

/// Feeds the watchdog twice in each interval that systemd has set, and never ends. Without a watchdog it only waits.
pub async fn keep_alive() -> Infallible {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(interval) = watchdog_interval(variable, std::process::id()) else {
        return std::future::pending().await;
    };
    loop {
        // A worker thread has to run this task, so the beat shows more than a main thread that is awake.
        if tokio::spawn(async {}).await.is_ok() {
            send("WATCHDOG=1");
        }
        tokio::time::sleep(interval / 2).await;
    }
}

/// The interval of WATCHDOG_USEC, unless it is meant for another process (sd_watchdog_enabled(3)).
fn watchdog_interval(variable: impl Fn(&str) -> Option<String>, own_pid: u32) -> Option<Duration> {
    let microseconds: u64 = variable("WATCHDOG_USEC")?.parse().ok()?;
    let pid = variable("WATCHDOG_PID").filter(|text| !text.is_empty());
    let is_meant = pid.is_none_or(|text| text.parse() == Ok(own_pid));
    (is_meant && microseconds > 0).then(|| Duration::from_micros(microseconds))
}

fn send(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send_to(&socket.to_string_lossy(), state) {
        tracing::debug!(%error, state, "systemd was not notified");
    }
}

fn send_to(socket: &str, state: &str) -> std::io::Result<()> {
    // A leading @ means the abstract namespace, as sd_notify(3) says.
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_arrives_at_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify.sock");
        let listener = UnixDatagram::bind(&path).unwrap();
        send_to(&path.to_string_lossy(), "READY=1").unwrap();
        let mut buffer = [0; 16];
        let length = listener.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
    }

    #[test]
    fn a_watchdog_is_fed_only_by_the_process_it_is_meant_for() {
        let check = |microseconds: Option<&str>, pid: Option<&str>, expected: Option<u64>| {
            let variable = |name: &str| match name {
                "WATCHDOG_USEC" => microseconds.map(str::to_owned),
                _ => pid.map(str::to_owned),
            };
            let found = watchdog_interval(variable, 7).map(|interval| interval.as_micros() as u64);
            assert_eq!(found, expected, "{microseconds:?} {pid:?}");
        };
        check(None, None, None);
        check(Some("30000000"), None, Some(30_000_000));
        check(Some("30000000"), Some("7"), Some(30_000_000));
        check(Some("30000000"), Some(""), Some(30_000_000));
        check(Some("30000000"), Some("8"), None);
        check(Some("0"), Some("7"), None);
        check(Some("soon"), Some("7"), None);
    }
}
