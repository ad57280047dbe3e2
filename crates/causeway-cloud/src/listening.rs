//! Writes into every EGateway what its gateway should listen on and cannot: the condition `Listening`.
//!
//! The cloud's own gateway says it here, edges say it in their status records. Written only when it changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use causeway_api::meta::set_condition;
use causeway_api::{Kind, Object};
use causeway_apiserver::Registry;
use causeway_gateway::regrets::Regrets;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::first::CLOUD;
use crate::reconcile::MANAGER;

/// The condition of an EGateway that this is about.
pub const LISTENING: &str = "Listening";
/// A status comes from an edge: no more of it than people read.
const MESSAGE_CHARS_MAX: usize = 1024;

/// What gateways have said and nobody has written yet. Bounded by the gateways there are.
#[derive(Default)]
pub struct Board {
    news: Mutex<HashMap<String, Vec<String>>>,
    wake: Notify,
}

impl Board {
    pub fn tell(&self, gateway: &str, regrets: Vec<String>) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).insert(gateway.to_owned(), regrets);
        self.wake.notify_one();
    }

    /// What a status record of an edge says about it, if anything.
    pub fn tell_status(&self, gateway: &str, status: &Value) {
        if let Some(regrets) = status.get("regrets").and_then(Value::as_array) {
            let lines = regrets.iter().filter_map(Value::as_str).map(str::to_owned);
            self.tell(gateway, lines.collect());
        }
    }

    fn take(&self) -> HashMap<String, Vec<String>> {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The loop that writes.
pub struct ListeningReporter {
    pub board: Arc<Board>,
    pub registry: Arc<Registry>,
    /// Of the cloud's own gateway.
    pub own: Regrets,
}

impl ListeningReporter {
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.board.wake.notified() => {}
                regrets = self.own.next() => self.board.tell(CLOUD, regrets),
            }
            for (gateway, regrets) in self.board.take() {
                self.write(&gateway, &regrets).await;
            }
        }
    }

    async fn write(&self, gateway: &str, regrets: &[String]) {
        let now = self.registry.now();
        let message: String = regrets.join("; ").chars().take(MESSAGE_CHARS_MAX).collect();
        let reason = if regrets.is_empty() { "Listening" } else { "NotListening" };
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            set_condition(
                conditions,
                LISTENING,
                regrets.is_empty().into(),
                reason,
                &message,
                now,
                generation,
            );
        };
        // A store that cannot be written says so elsewhere; the next change comes by again.
        if let Err(status) = self.registry.edit_status(MANAGER, Kind::EGateway, gateway, edit).await
            && status.code != 404
        {
            tracing::warn!(gateway, reason = status.message, "where it listens cannot be written");
        }
    }
}
