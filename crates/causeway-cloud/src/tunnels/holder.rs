//! Decides which replica of the cloud holds the tunnel of the site `cloud`.
//!
//! The record `tunnels/cloud` names the replica. It keeps the tunnel for as long as it is alive in the directory of
//! replicas, whose entries are leases in the store; then the first replica that notices takes over. With one replica
//! there is nothing to decide. A replica that does not hold the tunnel hides layer 3 from its gateway.
//!
//! A replica that takes over from another one writes the record first and opens the tunnel when the other one, should it be
//! alive after all, has had the time to read it.

use std::sync::Arc;
use std::time::Duration;

use causeway_api::layer3::TunnelRecord;
use causeway_channel::Clock;
use causeway_channel::clock::unix_seconds;
use causeway_netmap::NetmapView;
use causeway_store::{Op, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::TUNNELS;
use super::reports::{NextRecord, next_record};
use crate::bootstrap::CLOUD;
use crate::replicas::SessionDirectory;

/// Interval at which the record is compared: a replica that is gone is noticed within it.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time from a record that replaces another replica's until the tunnel is opened: the other one reads the record meanwhile.
const HANDOVER: Duration = Duration::from_secs(2);

/// The state of the tunnel at a replica, after a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holding {
    Held,
    /// The record of another replica was replaced.
    TakenOver,
    /// Another replica holds it, or none may.
    NotHeld,
}

/// Tells whether this replica holds the tunnel.
pub type TunnelLease = watch::Receiver<bool>;

/// The loop that takes and keeps the tunnel.
pub struct TunnelHolder {
    store: Store,
    directory: Arc<SessionDirectory>,
    /// The tunnel of this replica. None: it is switched off here.
    own: Option<TunnelRecord>,
    clock: Clock,
    holds: watch::Sender<bool>,
}

impl TunnelHolder {
    pub fn new(store: Store, directory: Arc<SessionDirectory>, clock: Clock) -> (TunnelHolder, TunnelLease) {
        let (holds, lease) = watch::channel(false);
        (TunnelHolder { store, directory, own: None, clock, holds }, lease)
    }

    /// Offers the tunnel of this replica. None: it is switched off here.
    pub fn with_own_tunnel(self, own: Option<TunnelRecord>) -> TunnelHolder {
        TunnelHolder { own, ..self }
    }

    pub async fn run(self, stop: CancellationToken) {
        loop {
            let checked = self.acquire_record().await;
            let pause = if matches!(checked, Ok(Holding::TakenOver)) { HANDOVER } else { CHECK_INTERVAL };
            match checked {
                // After a takeover the next check finds the record, unless another replica has it again.
                Ok(holding) => {
                    let holds = holding == Holding::Held;
                    self.holds.send_if_modified(|held| std::mem::replace(held, holds) != holds);
                }
                // A replica that cannot read the record keeps what it has: packets go on while the store is away.
                Err(error) => {
                    tracing::debug!(%error, "cannot read which replica holds the tunnel of the cloud")
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn acquire_record(&self) -> Result<Holding, StoreError> {
        let key = format!("{TUNNELS}{CLOUD}");
        let held = self.store.get(&key).await?;
        let known: Option<TunnelRecord> =
            held.as_ref().and_then(|held| serde_json::from_slice(&held.value).ok());
        let live = self.directory.live_replicas();
        let is_live = |replica: &str| live.as_ref().is_some_and(|live| live.contains_key(replica));
        let me = self.directory.id();
        if known.as_ref().is_some_and(|known| known.replica != me && is_live(&known.replica)) {
            return Ok(Holding::NotHeld);
        }
        // A cloud with one replica finds the record of its own last start.
        let is_foreign = live.is_some() && known.as_ref().is_some_and(|known| known.replica != me);
        let own = self.own.clone().map(|own| TunnelRecord { replica: me, ..own });
        let holding = if own.is_some() { Holding::Held } else { Holding::NotHeld };
        let now = unix_seconds(self.clock.now());
        let op = match (next_record(known.as_ref(), own, now), held) {
            (NextRecord::Same, _) | (NextRecord::Delete, None) => return Ok(holding),
            (NextRecord::Delete, Some(held)) => Op::Delete { key, expected: Some(held.revision) },
            (NextRecord::Put(record), held) => {
                let value = serde_json::to_vec(&record).unwrap_or_default().into();
                match held {
                    Some(held) => Op::Update { key, value, expected: held.revision },
                    None => Op::Create { key, value },
                }
            }
        };
        match self.store.commit(vec![op]).await {
            Ok(_) if is_foreign && holding == Holding::Held => Ok(Holding::TakenOver),
            Ok(_) => Ok(holding),
            // Another replica was faster; the next check shows which.
            Err(
                StoreError::Conflict { .. } | StoreError::NotFound { .. } | StoreError::AlreadyExists { .. },
            ) => Ok(Holding::NotHeld),
            Err(error) => Err(error),
        }
    }
}

/// Removes layer 3 from the netmap of a replica that does not hold the tunnel.
pub fn without_layer3(mut view: NetmapView) -> NetmapView {
    view.tunnel_peers.clear();
    view.communities.clear();
    view.relay_groups.clear();
    if let Some(gateway) = &mut view.gateway {
        gateway.tunnel_networks.clear();
        gateway.mappings.clear();
    }
    view
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use causeway_store::StoreSpec;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::replicas::ReplicaAddress;

    /// The records of replicas in the store.
    const REPLICAS: &str = "replicas/";
    /// A replica is gone after 6 s without a renewal, the next check is a second later, and the handover takes two.
    const TAKEN_OVER: Duration = Duration::from_secs(30);

    /// A replica with its tasks. Both are aborted by a kill, and told to stop by a stop.
    struct Replica {
        id: String,
        lease: TunnelLease,
        stop: CancellationToken,
        tasks: Vec<JoinHandle<()>>,
    }

    impl Replica {
        async fn start(store: &Store, address: &str, key: &str) -> Replica {
            let address = ReplicaAddress { address: address.to_owned(), endpoints: Vec::new() };
            let directory = SessionDirectory::open(store.clone(), address, Clock::system()).await.unwrap();
            let (holder, lease) = TunnelHolder::new(store.clone(), directory.clone(), Clock::system());
            let own = TunnelRecord { public_key: key.to_owned(), port: 7446, ..TunnelRecord::default() };
            let holder = holder.with_own_tunnel(Some(own));
            let (stop, id) = (CancellationToken::new(), directory.id());
            let (one, two) = (stop.clone(), stop.clone());
            let tasks =
                vec![tokio::spawn(async move { directory.run(one).await }), tokio::spawn(holder.run(two))];
            Replica { id, lease, stop, tasks }
        }

        fn holds(&self) -> bool {
            *self.lease.borrow()
        }

        async fn stop(self) {
            self.stop.cancel();
            for task in self.tasks {
                task.await.unwrap();
            }
        }

        fn kill(&self) {
            self.tasks.iter().for_each(JoinHandle::abort);
        }
    }

    async fn record(store: &Store) -> Option<TunnelRecord> {
        let held = store.get(&format!("{TUNNELS}{CLOUD}")).await.unwrap()?;
        serde_json::from_slice(&held.value).ok()
    }

    /// Waits until a replica holds the tunnel; no second one may hold it at any time. Returns how long it took.
    async fn await_holder(holder: &Replica, others: &[&Replica]) -> Duration {
        let begin = Instant::now();
        while !holder.holds() {
            assert!(begin.elapsed() < TAKEN_OVER, "no replica takes the tunnel");
            assert!(others.iter().filter(|other| other.holds()).count() <= 1, "two at once");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(others.iter().all(|other| !other.holds()), "two at once");
        begin.elapsed()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tunnel_of_two_replicas_is_taken_over_when_its_holder_dies_and_never_held_twice() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let one = Replica::start(&store, "192.0.2.1:7443", "one").await;
        await_holder(&one, &[]).await;
        let two = Replica::start(&store, "192.0.2.2:7443", "two").await;
        let known = record(&store).await.unwrap();
        assert_eq!((known.replica.as_str(), known.public_key.as_str()), (one.id.as_str(), "one"));
        // Several checks of both: the one that came first keeps it.
        let begin = Instant::now();
        while begin.elapsed() < 3 * CHECK_INTERVAL {
            assert!(one.holds() && !two.holds());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The holder dies: its record of itself is not renewed any more.
        one.kill();
        let took = await_holder(&two, &[]).await;
        println!("the holder is killed: taken over after {took:?}");
        assert_eq!(record(&store).await.unwrap().replica, two.id);
        // Another start of the first: it takes nothing from a replica that is alive.
        let three = Replica::start(&store, "192.0.2.1:7443", "one").await;
        tokio::time::sleep(3 * CHECK_INTERVAL).await;
        assert!(two.holds() && !three.holds());
        // A replica that is told to stop removes its record of itself, and is replaced sooner.
        two.stop().await;
        let took = await_holder(&three, &[]).await;
        println!("the holder is stopped: taken over after {took:?}");
        assert_eq!(record(&store).await.unwrap().public_key, "one");
        three.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_holder_that_was_given_up_too_early_ends_before_the_next_one_begins() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let one = Replica::start(&store, "192.0.2.1:7443", "one").await;
        await_holder(&one, &[]).await;
        let two = Replica::start(&store, "192.0.2.2:7443", "two").await;
        // The holder runs, and its record of itself is lost again and again, as when a store is slow: the other one takes it
        // for dead.
        let begin = Instant::now();
        while record(&store).await.unwrap().replica == one.id {
            assert!(begin.elapsed() < TAKEN_OVER, "the other replica does not notice");
            let _ = store.delete(&format!("{REPLICAS}{}", one.id), None).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let took = await_holder(&two, &[&one]).await;
        println!("a holder that was given up too early: the next one begins {took:?} after its record");
        assert!(!one.holds(), "it has read the record of the other one");
        two.stop().await;
        one.stop().await;
    }
}
