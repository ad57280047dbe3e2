//! Writes into every EGateway whether its netmap is in force and on its disk, and if not, why.
//!
//! Written only when that changes: an update on its way is no news, and generations are joined when somebody reads.

use std::sync::Arc;

use causeway_api::meta::set_condition;
use causeway_api::{ConditionStatus, Kind, Object};
use causeway_apiserver::{Registry, RegistryError};
use causeway_netmap::sync::NetmapSyncState;
use tokio_util::sync::CancellationToken;

use super::{NetmapPublisher, lock};
use crate::reconcile::MANAGER;

/// The condition of an EGateway that this is about.
pub const NETMAP_IN_FORCE: &str = "NetmapInForce";

/// The condition about the gateway's disk. Written when a gateway first says that it cannot write its netmap.
pub const NETMAP_PERSISTED: &str = "NetmapPersisted";

/// What is worth telling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetmapCondition {
    reason: &'static str,
    message: String,
    /// Empty: what the gateway holds is on its disk.
    not_persisted: String,
}

const IN_FORCE: &str = "InForce";

impl NetmapCondition {
    pub fn of(standing: &NetmapSyncState, not_persisted: &str) -> Option<NetmapCondition> {
        let (reason, message) = match standing {
            NetmapSyncState::NoTarget | NetmapSyncState::Sending { .. } => return None,
            NetmapSyncState::InForce(_) => (IN_FORCE, String::new()),
            NetmapSyncState::Refused { reason, .. } => {
                ("Refused", format!("the gateway keeps its old netmap: {reason}"))
            }
            // The numbers move; a message with them would be written again and again.
            NetmapSyncState::Behind { .. } => (
                "CloudBehind",
                "the gateway holds a newer netmap than this cloud can make; was a store put back without causeway restore?".to_owned(),
            ),
        };
        Some(NetmapCondition { reason, message, not_persisted: not_persisted.to_owned() })
    }

    fn status(&self) -> ConditionStatus {
        (self.reason == IN_FORCE).into()
    }
}

impl NetmapPublisher {
    pub(super) fn report(&self, gateway: &str, report: NetmapCondition) {
        let mut desk = self.lock();
        if desk.attached.get(gateway).is_none_or(|attached| attached.reported.as_ref() == Some(&report)) {
            return;
        }
        if let Some(attached) = desk.attached.get_mut(gateway) {
            attached.reported = Some(report.clone());
        }
        desk.reports.insert(gateway.to_owned(), report);
        drop(desk);
        self.shared.standing.notify_one();
    }

    /// The world already says so.
    fn is_known(&self, gateway: &str, report: &NetmapCondition) -> bool {
        let Some(world) = self.lock().world.clone() else { return false };
        let world = lock(&world);
        let Some(gateway) = world.gateway(gateway) else { return false };
        let in_force = gateway.status.condition(NETMAP_IN_FORCE);
        let persisted = gateway.status.condition(NETMAP_PERSISTED);
        let is_complained = persisted.is_some_and(|said| said.status == ConditionStatus::False);
        in_force.is_some_and(|said| said.reason == report.reason && said.message == report.message)
            && is_complained != report.not_persisted.is_empty()
            && persisted.is_none_or(|said| said.message == report.not_persisted)
    }
}

/// The loop that writes.
pub struct NetmapConditionWriter {
    pub desk: NetmapPublisher,
    pub registry: Arc<Registry>,
}

impl NetmapConditionWriter {
    pub async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.desk.shared.standing.notified() => {}
            }
            let reports = std::mem::take(&mut self.desk.lock().reports);
            for (gateway, report) in reports {
                if stop.is_cancelled() {
                    return;
                }
                if !self.desk.is_known(&gateway, &report) {
                    self.write(&gateway, &report).await;
                }
            }
        }
    }

    async fn write(&self, gateway: &str, report: &NetmapCondition) {
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            let NetmapCondition { reason, message, not_persisted } = report;
            set_condition(conditions, NETMAP_IN_FORCE, report.status(), reason, message, now, generation);
            let has_complained = conditions.iter().any(|said| said.kind == NETMAP_PERSISTED);
            if !not_persisted.is_empty() || has_complained {
                let is_persisted = not_persisted.is_empty();
                let reason = if is_persisted { "Persisted" } else { "NotPersisted" };
                let (about, status) = (NETMAP_PERSISTED, is_persisted.into());
                set_condition(conditions, about, status, reason, not_persisted, now, generation);
            }
        };
        // A store that cannot be written says so elsewhere; the next change of standing comes by again.
        if let Err(error) = self.registry.edit_status(MANAGER, Kind::EGateway, gateway, edit).await
            && !matches!(error, RegistryError::NotFound(_))
        {
            tracing::warn!(gateway, reason = %error, "the standing of a netmap cannot be written");
        }
    }
}
