//! The second listener of the API, for pods, on an address that may appear after the edge has started.
//!
//! A link-local address is added by a network service of the host or by a CNI agent, and may go. The listener is opened as soon as the address
//! is local; until then, and after it has gone, there is a problem for the conditions of the gateway. Nothing ends the edge.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use causeway_daemon::sync::MutexExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The state of the listener.
pub struct PodListener {
    address: SocketAddr,
    state: Mutex<PodListenerState>,
}

enum PodListenerState {
    /// Not tried yet.
    Starting,
    Listening(SocketAddr),
    Failed(String),
}

// One system call each time.
const RETRY: Duration = Duration::from_secs(1);
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl PodListener {
    pub fn new(address: SocketAddr) -> PodListener {
        PodListener { address, state: Mutex::new(PodListenerState::Starting) }
    }

    /// Binds the listener, as soon as that is possible.
    pub async fn bind(&self) -> TcpListener {
        loop {
            let bound = TcpListener::bind(self.address).await;
            match bound.and_then(|listener| Ok((listener.local_addr()?, listener))) {
                Ok((address, listener)) => {
                    self.set(PodListenerState::Listening(address));
                    return listener;
                }
                Err(error) => self.set(PodListenerState::Failed(problem(self.address, &error))),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Resolves when the address is not one of this host any more. A listener notices nothing of that.
    pub async fn lost(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            // Any port: the one of the listener is taken.
            let found = std::net::UdpSocket::bind(SocketAddr::new(self.address.ip(), 0));
            if found.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable) {
                return;
            }
        }
    }

    /// The reason for which there is no listener.
    pub fn problem(&self) -> Option<String> {
        match &*self.state.lock_ignoring_poison() {
            PodListenerState::Failed(problem) => Some(problem.clone()),
            PodListenerState::Starting | PodListenerState::Listening(_) => None,
        }
    }

    /// The state for the dump.
    pub fn summary(&self) -> Value {
        let bound = match &*self.state.lock_ignoring_poison() {
            PodListenerState::Listening(address) => Some(*address),
            PodListenerState::Starting | PodListenerState::Failed(_) => None,
        };
        json!({
            "listen": bound.unwrap_or(self.address), "isListening": bound.is_some(), "problem": self.problem(),
        })
    }

    fn set(&self, state: PodListenerState) {
        let mut held = self.state.lock_ignoring_poison();
        match (&state, &*held) {
            (PodListenerState::Listening(address), _) => {
                tracing::info!(%address, "the Kubernetes API at this edge is served to pods");
            }
            (PodListenerState::Failed(problem), PodListenerState::Failed(known)) if problem == known => {}
            (PodListenerState::Failed(problem), _) => tracing::warn!("{problem}; trying again every second"),
            (PodListenerState::Starting, _) => {}
        }
        *held = state;
    }
}

fn problem(address: SocketAddr, error: &io::Error) -> String {
    let why = match error.kind() {
        ErrorKind::AddrNotAvailable => {
            format!(
                "{} is no address of this host; add it: ip address add {}",
                address.ip(),
                network(address)
            )
        }
        ErrorKind::AddrInUse => "another process has it".to_owned(),
        _ => error.to_string(),
    };
    format!("pods cannot reach the Kubernetes API at {address}: {why}")
}

/// The address as `ip address add` wants it.
fn network(address: SocketAddr) -> String {
    let length = if address.is_ipv4() { 32 } else { 128 };
    format!("{}/{length} dev lo", address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_not_there_is_a_problem_and_tried_again() {
        // TEST-NET-1 of RFC 5737, no address of any host.
        let missing = PodListener::new("192.0.2.77:6444".parse().unwrap());
        assert_eq!(missing.problem(), None, "a start is no problem");
        let waiting = tokio::time::timeout(Duration::from_millis(100), missing.bind()).await;
        assert!(waiting.is_err());
        let problem = missing.problem().unwrap();
        assert!(problem.contains("ip address add 192.0.2.77/32"), "{problem}");
        assert_eq!(missing.summary()["isListening"], false);

        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pods = PodListener::new(first.local_addr().unwrap());
        let binding = pods.bind();
        tokio::pin!(binding);
        let waiting = tokio::time::timeout(Duration::from_millis(100), &mut binding).await;
        assert!(waiting.is_err() && pods.problem().unwrap().contains("another process has it"));
        drop(first);
        let _listener = binding.await;
        assert_eq!((pods.problem(), &pods.summary()["isListening"]), (None, &Value::Bool(true)));
    }
}
