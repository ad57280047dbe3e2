//! A gateway that is deleted is thrown out: its key and its open tokens are worth nothing any more, and a while later nobody
//! knows how far its records were taken.
//!
//! Follows the gateways in the store and tells the `Registrar`. Everything is looked at anew at the start and after any
//! trouble, so a deletion that nobody saw is found then. Doing it twice, or in two replicas, changes nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use causeway_api::Kind;
use causeway_apiserver::registry::{key, prefix};
use causeway_store::{FollowBackoff, Followed, ListRange, Revision, Store, StoreError, StoreFollower};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::identity::{Registrar, TokenProblem};
use crate::spool_intake;

/// Short, because whoever deletes a gateway expects it to be out.
const BACKOFF: FollowBackoff = FollowBackoff::constant(Duration::from_millis(300));

/// Its last session has ended by then, in every replica: no batch comes in that would write the cursor anew.
const FORGET_AFTER: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct DeletedGateways {
    store: Store,
    registrar: Arc<Registrar>,
    forget_after: Duration,
}

impl DeletedGateways {
    pub fn new(store: Store, registrar: Arc<Registrar>) -> DeletedGateways {
        DeletedGateways { store, registrar, forget_after: FORGET_AFTER }
    }

    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    /// Follows the EGateways until the store is closed.
    async fn follow(&self) {
        let gateways = prefix(Kind::EGateway);
        let mut follower =
            StoreFollower::new(&self.store, &*gateways, BACKOFF, || Box::pin(self.dismiss_missed()));
        // Deleted gateways whose cursors are removed at the given time.
        let mut leaving: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            let due = leaving.values().min().copied();
            let done = tokio::select! {
                biased;
                step = follower.next() => match step {
                    None => return,
                    Some(Followed::Loaded { state: strays, .. }) => {
                        let at = Instant::now() + self.forget_after;
                        leaving = strays.into_iter().map(|gateway| (gateway, at)).collect();
                        Ok(())
                    }
                    Some(Followed::Event(event)) => match event.key.strip_prefix(&*gateways) {
                        Some(gateway) if event.value.is_none() => {
                            leaving.insert(gateway.to_owned(), Instant::now() + self.forget_after);
                            self.dismiss(gateway, event.revision).await.map_err(as_store_error)
                        }
                        _ => Ok(()),
                    },
                    Some(Followed::Progress(_)) => Ok(()),
                    Some(Followed::Failed(_)) => {
                        leaving.clear();
                        Ok(())
                    }
                },
                () = until(due) => self.forget_due(&mut leaving).await,
            };
            if let Err(error) = done {
                // The next load finds everything that is left to do.
                leaving.clear();
                follower.restart(&error);
            }
        }
    }

    /// Dismisses the gateways whose deletion was not seen. Returns those whose cursors are still there, and the revision
    /// behind which deletions are still to come.
    async fn dismiss_missed(&self) -> Result<(Vec<String>, Revision), StoreError> {
        let since = self.store.revision().await?;
        self.sweep().await.map_err(as_store_error)?;
        Ok((self.strays().await?, since))
    }

    async fn forget_due(&self, leaving: &mut BTreeMap<String, Instant>) -> Result<(), StoreError> {
        let now = Instant::now();
        let due: Vec<String> =
            leaving.extract_if(.., |_, due| *due <= now).map(|(gateway, _)| gateway).collect();
        for gateway in due {
            self.forget(&gateway).await?;
        }
        Ok(())
    }

    /// Throws out every gateway that has no object, and whatever is older than the object of its gateway: that one was
    /// deleted and made again while nobody looked.
    async fn sweep(&self) -> Result<(), TokenProblem> {
        // In this order: the object of a gateway is made before its token, so what is admitted and not listed was deleted.
        let admitted = self.registrar.admitted().await?;
        let listing = self.store.list(&prefix(Kind::EGateway), ListRange::default()).await?;
        let standing: HashMap<&str, Revision> =
            listing.records.iter().map(|record| (&*record.key, record.created)).collect();
        for (gateway, oldest) in &admitted {
            match standing.get(&*key(Kind::EGateway, gateway)) {
                None => self.registrar.dismiss_gateway(gateway, listing.revision).await?,
                Some(created) if oldest < created => {
                    self.registrar.dismiss_gateway(gateway, Revision(created.0.saturating_sub(1))).await?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// What the gateway was given before it was deleted is void; and what it was given since, unless it is back.
    async fn dismiss(&self, gateway: &str, deleted: Revision) -> Result<(), TokenProblem> {
        let now = self.store.revision().await?;
        let is_back = self.store.get(&key(Kind::EGateway, gateway)).await?.is_some();
        self.registrar.dismiss_gateway(gateway, if is_back { deleted } else { now }).await
    }
    /// Gateways without an object, of which it is still known how far their records were taken.
    async fn strays(&self) -> Result<Vec<String>, StoreError> {
        // In this order: a gateway has its object before it has anything to tell.
        let cursors = self.store.list(spool_intake::PREFIX, ListRange::default()).await?;
        let listing = self.store.list(&prefix(Kind::EGateway), ListRange::default()).await?;
        let standing: HashSet<&str> = listing.records.iter().map(|record| &*record.key).collect();
        let known = cursors.records.iter().filter_map(|record| record.key.strip_prefix(spool_intake::PREFIX));
        let strays = known.filter(|gateway| !standing.contains(&*key(Kind::EGateway, gateway)));
        Ok(strays.map(str::to_owned).collect())
    }

    /// Removes the cursor of a gateway, unless it is back. Should it come back in this very moment, its queue is read once
    /// more from where it stands, and readers drop what repeats.
    async fn forget(&self, gateway: &str) -> Result<(), StoreError> {
        let cursor = format!("{}{gateway}", spool_intake::PREFIX);
        let Some(record) = self.store.get(&cursor).await? else { return Ok(()) };
        if self.store.get(&key(Kind::EGateway, gateway)).await?.is_some() {
            return Ok(());
        }
        match self.store.delete(&cursor, Some(record.revision)).await {
            // Another replica was faster, or the gateway speaks again.
            Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn as_store_error(problem: TokenProblem) -> StoreError {
    match problem {
        TokenProblem::Store(error) => error,
        problem => {
            let error = &problem as &dyn std::error::Error;
            tracing::warn!(error, "cannot revoke what a deleted gateway was given; trying again");
            StoreError::Unavailable { reason: problem.to_string(), source: None }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use causeway_store::StoreSpec;

    use super::*;
    use crate::identity::IdentityConfig;

    struct Lab {
        store: Store,
        departures: DeletedGateways,
        _home: tempfile::TempDir,
    }

    impl Lab {
        async fn new() -> Lab {
            let home = tempfile::tempdir().unwrap();
            let store = Store::open(StoreSpec::Sqlite { path: home.path().join("store.db") }).await.unwrap();
            let data_dir = home.path().join("data");
            causeway_daemon::data_dir::make_folder(&data_dir).unwrap();
            let config = IdentityConfig::new(data_dir, Vec::new(), "https://127.0.0.1:7443");
            let registrar = Registrar::open(store.clone(), config).await.unwrap();
            let mut departures = DeletedGateways::new(store.clone(), registrar);
            departures.forget_after = Duration::from_millis(20);
            Lab { store, departures, _home: home }
        }

        async fn put(&self, key: &str) {
            self.store.put(key, Bytes::from_static(b"{}")).await.unwrap();
        }

        async fn until_forgotten(&self, gateway: &str) {
            let forgotten = async {
                while self.has_cursor(gateway).await {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(20), forgotten).await;
            assert!(waited.is_ok(), "the cursor of {gateway} is still there");
        }

        async fn has_cursor(&self, gateway: &str) -> bool {
            self.store.get(&format!("upstream/{gateway}")).await.unwrap().is_some()
        }
    }

    #[tokio::test]
    async fn how_far_a_deleted_gateway_was_read_is_forgotten() {
        let lab = Lab::new().await;
        for gateway in ["berlin", "oslo"] {
            lab.put(&key(Kind::EGateway, gateway)).await;
        }
        // Lisbon was deleted while nobody looked.
        for gateway in ["berlin", "lisbon", "oslo"] {
            lab.put(&format!("upstream/{gateway}")).await;
        }
        let (stop, departures) = (CancellationToken::new(), lab.departures.clone());
        let running = tokio::spawn(departures.run(stop.clone()));
        lab.until_forgotten("lisbon").await;
        assert!(lab.has_cursor("oslo").await);
        lab.store.delete(&key(Kind::EGateway, "oslo"), None).await.unwrap();
        lab.until_forgotten("oslo").await;
        assert!(lab.has_cursor("berlin").await, "it is still there");
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn one_that_is_back_is_read_on_from_where_it_was() {
        let lab = Lab::new().await;
        lab.put("upstream/oslo").await;
        lab.put(&key(Kind::EGateway, "oslo")).await;
        lab.departures.forget("oslo").await.unwrap();
        assert!(lab.has_cursor("oslo").await);
        lab.departures.forget("nobody").await.unwrap();
    }
}
