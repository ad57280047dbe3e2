//! Connects the API cache with this edge: its streams go over the link in use.

use std::sync::Arc;
use std::time::Duration;

use causeway_api::error_chain;
use causeway_api::management::EdgeCacheFacts;
use causeway_apicache::connector::{BoxedStream, CloudAway, CloudConnector, ConnectorFuture};
use causeway_apicache::server::{EdgeApi, EdgeApiOptions, EdgeApiStatus};
use causeway_channel::link::{StreamHeader, StreamPurpose};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::link::CurrentLink;

// Opening a stream takes no round trip; a healthy link grants one within this time.
const OPEN: Duration = Duration::from_secs(3);
// A taken port may become free.
const RETRY: Duration = Duration::from_secs(10);

/// The API as the rest of the edge sees it. A handle; clones share it.
#[derive(Clone)]
pub struct KubernetesState {
    pub status: watch::Sender<Option<EdgeApiStatus>>,
    /// The reason for which the API is wanted here and not served.
    failure: watch::Sender<Option<String>>,
}

impl KubernetesState {
    pub fn new() -> KubernetesState {
        KubernetesState { status: watch::Sender::new(None), failure: watch::Sender::new(None) }
    }

    /// The problems for the condition of the gateway about its listeners.
    pub fn problems(&self) -> Vec<String> {
        let pods = self.status.borrow().as_ref().and_then(EdgeApiStatus::pods_problem);
        self.failure.borrow().clone().into_iter().chain(pods).collect()
    }

    /// The part of the facts for the cloud; `None` where no API is wanted.
    pub fn facts(&self) -> Option<EdgeCacheFacts> {
        match (&*self.status.borrow(), &*self.failure.borrow()) {
            (Some(status), _) => Some(status.facts()),
            (None, Some(failure)) => {
                Some(EdgeCacheFacts { failure: Some(failure.clone()), ..EdgeCacheFacts::default() })
            }
            (None, None) => None,
        }
    }

    /// The part of the dump: null where no API is wanted.
    pub fn summary(&self) -> Value {
        match (&*self.status.borrow(), &*self.failure.borrow()) {
            (Some(status), _) => status.summary(),
            (None, Some(failure)) => json!({"failure": failure}),
            (None, None) => Value::Null,
        }
    }
}

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
    state: KubernetesState,
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
                state.failure.send_replace(None);
                state.status.send_replace(Some(api.status()));
                return api.run(stop).await;
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(error, "cannot serve the Kubernetes API at this edge");
                state.failure.send_replace(Some(format!("the Kubernetes API is not served: {error}")));
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}
