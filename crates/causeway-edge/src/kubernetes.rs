//! Connects the API cache with this edge: its streams go over the link in use.

use std::sync::Arc;
use std::time::Duration;

use causeway_api::error_chain;
use causeway_apicache::connector::{BoxedStream, CloudAway, CloudConnector, ConnectorFuture};
use causeway_apicache::server::{EdgeApi, EdgeApiOptions, EdgeApiStatus};
use causeway_channel::link::{StreamHeader, StreamPurpose};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::link::CurrentLink;

// Opening a stream takes no round trip; a healthy link grants one within this time.
const OPEN: Duration = Duration::from_secs(3);
// A taken port may become free.
const RETRY: Duration = Duration::from_secs(10);

/// Opens streams of the API cache on the link in use.
struct LinkConnector(CurrentLink);

impl CloudConnector for LinkConnector {
    fn open(&self, target: &'static str) -> ConnectorFuture<'_, Result<BoxedStream, CloudAway>> {
        Box::pin(async move {
            let link = self.0.link().ok_or_else(|| CloudAway("there is no link to the cloud".to_owned()))?;
            let header = StreamHeader::new(StreamPurpose::Kubernetes).target(target);
            match tokio::time::timeout(OPEN, link.open_stream(header)).await {
                Ok(Ok(stream)) => Ok(Box::new(stream) as BoxedStream),
                Ok(Err(error)) => {
                    self.0.suspect();
                    Err(CloudAway(error_chain(&error)))
                }
                Err(_) => {
                    self.0.suspect();
                    Err(CloudAway("the link accepts no stream".to_owned()))
                }
            }
        })
    }

    fn is_connected(&self) -> bool {
        self.0.link().is_some()
    }

    fn connected(&self) -> ConnectorFuture<'_, ()> {
        let mut link = self.0.clone();
        Box::pin(async move {
            while link.link().is_none() {
                link.changed().await;
            }
        })
    }

    fn disconnected(&self) -> ConnectorFuture<'_, ()> {
        let mut link = self.0.clone();
        Box::pin(async move {
            // A change from before this call does not count.
            tokio::select! {
                biased;
                () = link.changed() => {}
                () = std::future::ready(()) => {}
            }
            link.changed().await
        })
    }

    fn suspect(&self) {
        self.0.suspect();
    }
}

/// Serves the API at the edge as soon as it is wanted, until `stop`. A failure is logged and tried again: forwarding does
/// not depend on it.
pub async fn run(
    options: EdgeApiOptions,
    link: CurrentLink,
    status: watch::Sender<Option<EdgeApiStatus>>,
    stop: CancellationToken,
) {
    let connector: Arc<dyn CloudConnector> = Arc::new(LinkConnector(link));
    tokio::select! {
        () = stop.cancelled() => return,
        () = EdgeApi::wanted(&options, &connector) => {}
    }
    loop {
        match EdgeApi::open(options.clone(), connector.clone()).await {
            Ok(api) => {
                tracing::info!(address = ?api.address().ok(), "the Kubernetes API is served at this edge");
                status.send_replace(Some(api.status()));
                return api.run(stop).await;
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "cannot serve the Kubernetes API at this edge")
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}
