//! A watch on the distributed engine: etcd's own history until it overlaps with the hub, then the hub.
//!
//! Catching up uses a separate watch, which is dropped as soon as it delivers an event that the hub has as
//! well. That is the only proof: etcd before 3.4.25 answers progress requests before it has sent the events
//! up to then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{WatchResponse, WatchStream};

use super::keys::{self, EtcdChange};
use super::{EtcdShared, feed, members};
use crate::hub::Subscription;
use crate::{Revision, StoreError, StoreEvent, WatchSignal};

/// Attempts to open a separate watch before the caller gets an error; each one uses another member.
const ATTEMPTS: u32 = 20;
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) struct EtcdWatch {
    prefix: Arc<str>,
    shared: Arc<EtcdShared>,
    /// All events up to this revision were delivered or are in `ready`.
    position: Revision,
    ready: VecDeque<Arc<StoreEvent>>,
    subscription: Subscription,
    stage: Stage,
}

enum Stage {
    /// Reads etcd's history, up to the beginning of the hub.
    Catching {
        stream: Option<Box<(usize, WatchStream)>>,
        failures: u32,
    },
    Live,
}

impl EtcdWatch {
    pub fn new(
        prefix: &str,
        after: Revision,
        subscription: Subscription,
        shared: Arc<EtcdShared>,
    ) -> EtcdWatch {
        let stage = if after < subscription.from {
            Stage::Catching { stream: None, failures: 0 }
        } else {
            Stage::Live
        };
        EtcdWatch {
            prefix: prefix.into(),
            shared,
            position: after,
            ready: VecDeque::new(),
            subscription,
            stage,
        }
    }

    pub async fn next(&mut self) -> Result<WatchSignal, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(WatchSignal::Event(event));
            }
            if self.shared.stop.is_cancelled() {
                return Err(StoreError::Closed);
            }
            match self.stage {
                Stage::Catching { .. } => self.catch_up().await?,
                Stage::Live => match self.subscription.next().await? {
                    WatchSignal::Event(event) if event.revision <= self.position => {}
                    WatchSignal::Progress(revision) if revision < self.position => {}
                    signal => return Ok(signal),
                },
            }
        }
    }

    /// Does one step: opens the watch, or takes one response from it.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        let Stage::Catching { stream, failures } = &mut self.stage else { return Ok(()) };
        let Some(opened) = stream else {
            let (start, end) = self.shared.keys.range(&self.prefix, None);
            match feed::open(&self.shared, start, end, self.position).await {
                Ok(opened) => *stream = Some(Box::new(opened)),
                Err(error) if *failures >= ATTEMPTS => return Err(error),
                Err(_) => {
                    *failures += 1;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
            return Ok(());
        };
        let (place, open) = &mut **opened;
        let stop = self.shared.stop.clone();
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(StoreError::Closed),
            message = open.message() => message,
        };
        match message {
            Ok(Some(response)) => {
                *failures = 0;
                self.take(&response)
            }
            Ok(None) | Err(_) => {
                self.shared.members.switch_from(*place);
                *stream = None;
                Ok(())
            }
        }
    }

    fn take(&mut self, response: &WatchResponse) -> Result<(), StoreError> {
        let compacted = keys::revision(response.compact_revision());
        if compacted.0 > 0 {
            return Err(StoreError::Compacted { requested: self.position, oldest: compacted });
        }
        if response.canceled() {
            return Err(StoreError::unavailable(format!(
                "etcd ended the watch: {}",
                response.cancel_reason()
            )));
        }
        let mut met = false;
        for event in response.events() {
            if let EtcdChange::Object(event) = self.shared.keys.change(event)? {
                if event.revision > self.subscription.from {
                    met = true;
                    break;
                }
                self.position = event.revision;
                self.ready.push_back(event);
            }
        }
        // Without a request etcd sends responses without events only to watchers that have seen everything.
        let told = response.events().is_empty() && !response.created();
        if met || (told && members::revision(response.header())? >= self.subscription.from) {
            self.position = self.subscription.from;
            self.stage = Stage::Live;
        }
        Ok(())
    }
}
