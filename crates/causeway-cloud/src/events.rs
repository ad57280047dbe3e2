//! Writes events about our own objects, and keeps the number of all events bounded.
//!
//! The `EventRecorder` is told of every change that this replica commits through the `Registry`, so two replicas never tell one
//! change twice. `pending` joins what repeats and decides what may be written now, `keeper` drops events that are old or too
//! many. Events are best effort, as in Kubernetes: events that do not fit are dropped and counted.

mod keeper;
mod pending;

use std::sync::Arc;
use std::time::Duration;

use causeway_api::events::{Occurrence, transitions};
use causeway_api::{Kind, Object};
use causeway_apiserver::registry::ChangeObserver;
use causeway_apiserver::{Registry, RegistryError};
use causeway_daemon::Metrics;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use keeper::EventKeeper;
use pending::{Due, Pending};

/// The component that our events name as their source, and their field manager.
const SOURCE: &str = "causeway-cloud";
/// Occurrences between a commit and the writer. A commit never waits: occurrences that do not fit are dropped.
const QUEUE_MAX: usize = 1_024;
/// Interval between checks of the waiting occurrences.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Default)]
struct EventMetrics {
    written: Counter,
    dropped: Counter,
}

/// Receives occurrences.
pub struct EventRecorder {
    sender: mpsc::Sender<Occurrence>,
    counters: EventMetrics,
}

impl ChangeObserver for EventRecorder {
    fn changed(&self, old: &Object, new: &Object) {
        if old.status().conditions == new.status().conditions {
            return;
        }
        for occurrence in transitions(old, new) {
            if self.sender.try_send(occurrence).is_err() {
                self.counters.dropped.inc();
            }
        }
    }
}

/// Recorded occurrences that are not written yet.
pub struct EventQueue {
    receiver: mpsc::Receiver<Occurrence>,
    counters: EventMetrics,
}

/// Writes events at a bounded rate.
pub struct EventWriter {
    registry: Arc<Registry>,
    queue: EventQueue,
    /// This replica, for `reportingInstance`.
    instance: String,
}

/// Returns a recorder for the registry, and the queue behind it for an `EventWriter`.
pub fn recorder(metrics: &Metrics) -> (EventRecorder, EventQueue) {
    let counters = EventMetrics::default();
    metrics.register(|metrics| {
        let metrics = metrics.sub_registry_with_prefix("causeway_cloud_events");
        metrics.register("written", "Events created or counted up", counters.written.clone());
        metrics.register(
            "dropped",
            "Occurrences dropped by a full queue, the rate limit or the store",
            counters.dropped.clone(),
        );
    });
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    (EventRecorder { sender, counters: counters.clone() }, EventQueue { receiver, counters })
}

impl EventWriter {
    pub fn new(registry: Arc<Registry>, queue: EventQueue, instance: String) -> EventWriter {
        EventWriter { registry, queue, instance }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let mut pending = Pending::default();
        loop {
            let look = async {
                match pending.is_empty() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(CHECK_INTERVAL).await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                occurrence = self.queue.receiver.recv() => match occurrence {
                    Some(occurrence) => self.take(&mut pending, occurrence),
                    None => return stop.cancelled().await,
                },
                () = look => {}
            }
            while let Ok(occurrence) = self.queue.receiver.try_recv() {
                self.take(&mut pending, occurrence);
            }
            while let Some(due) = pending.next(Instant::now().into_std()) {
                self.write(&due).await;
            }
        }
    }

    fn take(&self, pending: &mut Pending, occurrence: Occurrence) {
        if !pending.note(occurrence, self.registry.now()) {
            self.queue.counters.dropped.inc();
        }
    }

    /// Counts up the event of this name, or creates it.
    async fn write(&self, due: &Due) {
        let name = due.occurrence.event_name();
        let written = match self.count_up(&name, due).await {
            Err(RegistryError::NotFound(_)) => match self.create(due).await {
                // Another replica was faster.
                Err(RegistryError::AlreadyExists(_)) => self.count_up(&name, due).await,
                created => created,
            },
            counted => counted,
        };
        match written {
            Ok(()) => drop(self.queue.counters.written.inc()),
            Err(error) => {
                self.queue.counters.dropped.inc_by(due.count.unsigned_abs());
                tracing::debug!(event = name, reason = %error, "an event cannot be written");
            }
        }
    }

    async fn count_up(&self, name: &str, due: &Due) -> Result<(), RegistryError> {
        let edit = |object: &mut Object| {
            let Object::Event(event) = object else { return };
            event.count = Some(event.occurrences().saturating_add(due.count));
            event.last_timestamp = Some(due.last);
            event.message.clone_from(&due.occurrence.message);
            event.reporting_instance.clone_from(&self.instance);
        };
        self.registry.edit(SOURCE, Kind::Event, name, edit).await.map(drop)
    }

    async fn create(&self, due: &Due) -> Result<(), RegistryError> {
        let event = due.occurrence.event(SOURCE, &self.instance, (due.first, due.last), due.count);
        self.registry.create_object(SOURCE, event.into()).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
