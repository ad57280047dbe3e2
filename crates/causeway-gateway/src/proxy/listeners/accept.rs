//! Accepts the clients of one presence until it is gone.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{AcceptedClient, ListenerOwner, PresenceEvent};
use crate::metrics::GatewayMetrics;

/// Pause after a failed accept. When the process has no free file descriptor, another connection must close
/// first; the kernel keeps waiting clients in the backlog.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub async fn run(
    listener: TcpListener,
    owner: ListenerOwner,
    arriving: mpsc::Sender<PresenceEvent>,
    metrics: GatewayMetrics,
    closed: CancellationToken,
) {
    let ListenerOwner { service, broker } = owner;
    let accepting = async {
        let mut pause = PAUSE_MIN;
        loop {
            match listener.accept().await {
                Ok((stream, client)) => {
                    pause = PAUSE_MIN;
                    let accepted = AcceptedClient { stream, client, service: service.clone(), broker };
                    if arriving.send(PresenceEvent::Connection(accepted)).await.is_err() {
                        return;
                    }
                }
                // The client closed the connection in the backlog; accept(2) reports it here.
                Err(error) if concerns_one_client(&error) => {
                    metrics.accept_failures.inc();
                }
                Err(error) => {
                    metrics.accept_failures.inc();
                    if pause == PAUSE_MIN {
                        tracing::warn!(%service, %error, "cannot accept clients of the presence; retrying");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = closed.cancelled() => {}
        () = accepting => {}
    }
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}
