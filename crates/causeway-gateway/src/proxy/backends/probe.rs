//! Probes endpoints in the background: those with a health check at its interval, and those out of use until
//! they are back.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_netmap::{BackendHealthCheck, BackendHealthCheckType, ServiceName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{BackendSelector, Endpoint, connect};
use crate::dial::BackendDialer;

/// The timeout of a probe; an endpoint that takes longer is unhealthy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Concurrent probes; further ones wait.
const PROBES_MAX: usize = 64;
/// Enough for a status line; the rest is not read.
const STATUS_BYTES_MAX: usize = 256;

/// One probe that is due.
struct DueProbe {
    service: ServiceName,
    endpoint: Arc<Endpoint>,
    check: Option<BackendHealthCheck>,
    proxy_protocol: bool,
}

pub async fn run(backends: &BackendSelector, stop: CancellationToken) {
    let mut probes = JoinSet::new();
    let mut in_flight = HashSet::new();
    loop {
        let (due, next) = backends.due(Instant::now(), &in_flight);
        for due in due {
            if probes.len() >= PROBES_MAX {
                break;
            }
            in_flight.insert(Arc::as_ptr(&due.endpoint) as usize);
            let dialer = backends.dialer.clone();
            probes.spawn(async move {
                let answered = ask(&dialer, &due).await;
                (due, answered)
            });
        }
        let next = next.filter(|_| probes.len() < PROBES_MAX);
        let wait = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(answer) = probes.join_next() => if let Ok((due, answered)) = answer {
                in_flight.remove(&(Arc::as_ptr(&due.endpoint) as usize));
                if record_result(&due, answered) {
                    backends.turned();
                }
            },
            () = backends.changed.notified() => {}
            () = wait => {}
        }
    }
}

impl BackendSelector {
    /// Returns the probes that are due now, and the time of the next one.
    fn due(&self, now: Instant, in_flight: &HashSet<usize>) -> (Vec<DueProbe>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (name, group) in self.lock().iter() {
            let asked = |endpoint: &&Arc<Endpoint>| in_flight.contains(&(Arc::as_ptr(endpoint) as usize));
            for endpoint in group.endpoints.iter().filter(|endpoint| !asked(endpoint)) {
                let mut health = endpoint.health();
                let when = match &group.check {
                    Some(_) => Some(health.check_due(now)),
                    None => health.probe_due(),
                };
                let Some(when) = when else { continue };
                if when > now {
                    next = Some(next.map_or(when, |next| next.min(when)));
                    continue;
                }
                match &group.check {
                    Some(check) => health.checking(now, interval(check)),
                    None => health.probing(now),
                }
                let (service, check) = (name.clone(), group.check.clone());
                due.push(DueProbe {
                    service,
                    endpoint: endpoint.clone(),
                    check,
                    proxy_protocol: group.proxy_protocol,
                });
            }
        }
        (due, next)
    }
}

fn interval(check: &BackendHealthCheck) -> Duration {
    Duration::from_secs(check.interval_seconds.max(1).into())
}

/// Records a result. Returns true when it changes whether the endpoint is in use.
fn record_result(due: &DueProbe, answered: io::Result<()>) -> bool {
    let (service, backend) = (&due.service, &due.endpoint.backend);
    let mut health = due.endpoint.health();
    let has_changed = match (&due.check, &answered) {
        (Some(_), answered) => health.checked(answered.is_ok()),
        (None, Ok(())) => {
            health.connected();
            true
        }
        (None, Err(_)) => {
            health.failed(Instant::now());
            false
        }
    };
    drop(health);
    if let Err(error) = &answered {
        due.endpoint.record_error(error);
    }
    match answered {
        Ok(()) if has_changed => tracing::info!(%service, ?backend, "backend is in use again"),
        Err(error) if has_changed => {
            tracing::warn!(%service, ?backend, %error, "backend is out of use: its health check fails");
        }
        _ => {}
    }
    has_changed
}

async fn ask(dialer: &BackendDialer, due: &DueProbe) -> io::Result<()> {
    let probe = async {
        let stream = connect(dialer, &due.endpoint, due.proxy_protocol, None).await?;
        match &due.check {
            Some(check) if check.kind == BackendHealthCheckType::Http => get(stream, &check.path).await,
            _ => Ok(()),
        }
    };
    let answered = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
    answered.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "timed out")))
}

/// Any status from 200 to 399 is healthy.
async fn get(mut stream: TcpStream, path: &str) -> io::Result<()> {
    let host = stream.peer_addr()?;
    let path = if path.is_empty() { "/" } else { path };
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: causeway\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::with_capacity(STATUS_BYTES_MAX);
    while answer.len() < STATUS_BYTES_MAX && !answer.contains(&b'\n') {
        if stream.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    match status(&answer) {
        Some(200..=399) => Ok(()),
        Some(code) => Err(io::Error::other(format!("the health check is answered with HTTP status {code}"))),
        None => Err(io::Error::other("the health check is not answered in HTTP")),
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    words.next()?.starts_with("HTTP/1.").then_some(())?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_from_the_first_line() {
        for (answer, expected) in [
            (&b"HTTP/1.1 200 OK\r\nx: y\r\n"[..], Some(200)),
            (b"HTTP/1.0 503 no\r\n", Some(503)),
            (b"HTTP/1.1 204\r\n", Some(204)),
            (b"SSH-2.0-OpenSSH\r\n", None),
            (b"\xff\xfe\n", None),
            (b"", None),
        ] {
            assert_eq!(status(answer), expected);
        }
    }
}
