//! Revokes gateways that are deleted: their keys and open join tokens are void at the deletion mark, and the
//! cursor of their records is removed a while after the object is gone.
//!
//! Follows the EGateways in the store and calls the `Registrar`, whose revocations end the sessions. An
//! EGateway with `metadata.deletionTimestamp` counts as deleted: a finalizer delays the removal of the
//! object, not the loss of access. Everything is compared at the start and after any trouble, so a deletion
//! that was missed is found then. Doing it twice, or in two replicas, changes nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use causeway_api::{Kind, Object};
use causeway_apiserver::registry::{key, prefix};
use causeway_store::{
    FollowBackoff, Followed, ListRange, Revision, Store, StoreError, StoreEvent, StoreFollower, StoreRecord,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::identity::{Registrar, TokenProblem};
use crate::spool_intake;

/// Pause after trouble with the store. Short, because an operator who deletes a gateway expects it to be out.
const BACKOFF: FollowBackoff = FollowBackoff::constant(Duration::from_millis(300));

/// Time from the deletion of a gateway to the removal of its cursor. Its last session has ended by then in
/// every replica, so no batch comes in that would write the cursor anew.
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
                    Some(Followed::Event(event)) => self.take(&event, &mut leaving).await.map_err(as_store_error),
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

    /// Handles one change of an EGateway: its deletion, or its deletion mark.
    async fn take(
        &self,
        event: &StoreEvent,
        leaving: &mut BTreeMap<String, Instant>,
    ) -> Result<(), TokenProblem> {
        let Some(gateway) = event.key.strip_prefix(&*prefix(Kind::EGateway)) else { return Ok(()) };
        match &event.value {
            None => {
                leaving.insert(gateway.to_owned(), Instant::now() + self.forget_after);
                self.dismiss(gateway, event.revision).await
            }
            Some(value) if is_marked(value) && !event.previous.as_deref().is_some_and(is_marked) => {
                self.registrar.dismiss_gateway(gateway, event.revision).await
            }
            Some(_) => Ok(()),
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

    /// Puts out every gateway that has no object or a marked one, and every key and token that is older than
    /// the object of its gateway: that object was deleted and created again while this was not running.
    async fn sweep(&self) -> Result<(), TokenProblem> {
        // In this order: the object of a gateway is created before its token, so an admitted gateway that is
        // not listed was deleted.
        let admitted = self.registrar.admitted().await?;
        let listing = self.store.list(&prefix(Kind::EGateway), ListRange::default()).await?;
        let standing: HashMap<&str, &StoreRecord> =
            listing.records.iter().map(|record| (&*record.key, record)).collect();
        for (gateway, oldest) in &admitted {
            match standing.get(&*key(Kind::EGateway, gateway)) {
                None => self.registrar.dismiss_gateway(gateway, listing.revision).await?,
                Some(object) if is_marked(&object.value) => {
                    self.registrar.dismiss_gateway(gateway, listing.revision).await?;
                }
                Some(object) if *oldest < object.created => {
                    let before = Revision(object.created.0.saturating_sub(1));
                    self.registrar.dismiss_gateway(gateway, before).await?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Voids the keys and tokens from before the deletion, and those made since, unless the EGateway exists
    /// again.
    async fn dismiss(&self, gateway: &str, deleted: Revision) -> Result<(), TokenProblem> {
        let now = self.store.revision().await?;
        let is_back = self.store.get(&key(Kind::EGateway, gateway)).await?.is_some();
        self.registrar.dismiss_gateway(gateway, if is_back { deleted } else { now }).await
    }

    /// Returns the gateways that have a cursor and no object.
    async fn strays(&self) -> Result<Vec<String>, StoreError> {
        // In this order: a gateway has its object before it sends records.
        let cursors = self.store.list(spool_intake::PREFIX, ListRange::default()).await?;
        let listing = self.store.list(&prefix(Kind::EGateway), ListRange::default()).await?;
        let standing: HashSet<&str> = listing.records.iter().map(|record| &*record.key).collect();
        let known = cursors.records.iter().filter_map(|record| record.key.strip_prefix(spool_intake::PREFIX));
        let strays = known.filter(|gateway| !standing.contains(&*key(Kind::EGateway, gateway)));
        Ok(strays.map(str::to_owned).collect())
    }

    /// Removes the cursor of a gateway, unless its EGateway exists again. If it is created at this very
    /// moment, the queue of the gateway is read once more from where it stands, and readers drop what
    /// repeats.
    async fn forget(&self, gateway: &str) -> Result<(), StoreError> {
        let cursor = format!("{}{gateway}", spool_intake::PREFIX);
        let Some(record) = self.store.get(&cursor).await? else { return Ok(()) };
        if self.store.get(&key(Kind::EGateway, gateway)).await?.is_some() {
            return Ok(());
        }
        match self.store.delete(&cursor, Some(record.revision)).await {
            // Another replica was faster, or the gateway sends records again.
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

/// Tells whether a stored EGateway carries the deletion mark. A finalizer keeps the object until then.
fn is_marked(value: &[u8]) -> bool {
    let object = Object::from_stored(Kind::EGateway, value);
    object.is_ok_and(|object| object.metadata().deletion_timestamp.is_some())
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
    use causeway_api::{EGateway, ObjectMeta};
    use causeway_apiserver::{Registry, SystemClock};
    use causeway_store::StoreSpec;

    use super::*;
    use crate::identity::{IdentityConfig, OnEnrolled};

    struct Lab {
        store: Store,
        departures: DeletedGateways,
        _folder: tempfile::TempDir,
    }

    impl Lab {
        async fn new() -> Lab {
            let folder = tempfile::tempdir().unwrap();
            let store =
                Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
            let data_dir = folder.path().join("data");
            causeway_daemon::data_dir::make_folder(&data_dir).unwrap();
            let endpoints = vec!["127.0.0.1:7444".parse().unwrap()];
            let config = IdentityConfig::new(data_dir, endpoints, "https://127.0.0.1:7443");
            let registrar = Registrar::open(store.clone(), config).await.unwrap();
            let mut departures = DeletedGateways::new(store.clone(), registrar);
            departures.forget_after = Duration::from_millis(20);
            Lab { store, departures, _folder: folder }
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
        // Lisbon was deleted while no follower ran.
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
    async fn a_finalizer_does_not_keep_a_gateway_in() {
        let lab = Lab::new().await;
        let registry = Registry::new(lab.store.clone(), Arc::new(SystemClock));
        let (hour, registrar) = (Duration::from_secs(3600), lab.departures.registrar.clone());
        for gateway in ["before", "while", "stays"] {
            let mut metadata = ObjectMeta::named(gateway);
            metadata.finalizers = vec!["example.com/audit".into()];
            let object = EGateway { metadata, e_site_name: "oslo".into(), ..EGateway::default() };
            registry.create_with_defaults("test", object.into()).await.unwrap();
            registrar.create_join_token("oslo", gateway, hour, OnEnrolled::Refuse).await.unwrap();
        }
        let until_out = async |gateway: &str| {
            let out = async {
                while registrar.admitted().await.unwrap().contains_key(gateway) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(20), out).await;
            assert!(waited.is_ok(), "{gateway} is still admitted");
            let object = registry.object(Kind::EGateway, gateway).await.unwrap().unwrap().object;
            assert!(object.metadata().deletion_timestamp.is_some());
        };
        registry.delete_object("test", Kind::EGateway, "before").await.unwrap();
        let (stop, departures) = (CancellationToken::new(), lab.departures.clone());
        let running = tokio::spawn(departures.run(stop.clone()));
        until_out("before").await;
        registry.delete_object("test", Kind::EGateway, "while").await.unwrap();
        until_out("while").await;
        assert!(registrar.admitted().await.unwrap().contains_key("stays"));
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
