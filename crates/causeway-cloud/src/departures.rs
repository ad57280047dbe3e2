//! A gateway that is deleted is thrown out: its key and its open tokens are worth nothing any more.
//!
//! Follows the gateways in the store and tells the `Registrar`. Everything is looked at anew at the start and after any
//! trouble, so a deletion that nobody saw is found then. Doing it twice, or in two replicas, changes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use causeway_api::Kind;
use causeway_apiserver::registry::{key, prefix};
use causeway_store::{Page, Revision, Signal, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::identity::{Registrar, TokenProblem};

/// Short, because whoever deletes a gateway expects it to be out.
const PAUSE: Duration = Duration::from_millis(300);

pub struct Departures {
    pub store: Store,
    pub registrar: Arc<Registrar>,
}

impl Departures {
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let trouble = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Err(trouble) = self.follow() => trouble,
            };
            match trouble {
                TokenProblem::Store(StoreError::Closed) => return,
                trouble => {
                    tracing::warn!(error = %trouble, "deleted gateways cannot be followed; looking again")
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, TokenProblem> {
        let since = self.store.revision().await?;
        self.sweep().await?;
        let gateways = prefix(Kind::EGateway);
        let mut watch = self.store.watch(&gateways, since).await?;
        loop {
            if let Signal::Event(event) = watch.next().await?
                && event.value.is_none()
                && let Some(gateway) = event.key.strip_prefix(&gateways)
            {
                self.dismiss(gateway, event.revision).await?;
            }
        }
    }

    /// Throws out every gateway that has no object.
    async fn sweep(&self) -> Result<(), TokenProblem> {
        // In this order: the object of a gateway is made before its token, so what is admitted and not listed was deleted.
        let admitted = self.registrar.admitted().await?;
        let listing = self.store.list(&prefix(Kind::EGateway), Page::default()).await?;
        let standing: HashSet<&str> = listing.records.iter().map(|record| &*record.key).collect();
        for gateway in admitted.iter().filter(|gateway| !standing.contains(&*key(Kind::EGateway, gateway))) {
            self.registrar.dismiss_gateway(gateway, listing.revision).await?;
        }
        Ok(())
    }

    /// What the gateway was given before it was deleted is void; and what it was given since, unless it is back.
    async fn dismiss(&self, gateway: &str, deleted: Revision) -> Result<(), TokenProblem> {
        let now = self.store.revision().await?;
        let is_back = self.store.get(&key(Kind::EGateway, gateway)).await?.is_some();
        self.registrar.dismiss_gateway(gateway, if is_back { deleted } else { now }).await
    }
}
