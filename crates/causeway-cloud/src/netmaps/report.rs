//! Writes into every EGateway whether its netmap is in force, and if not, why.
//!
//! Written only when that changes: an update on its way is no news, and generations are joined when somebody reads.

use std::sync::Arc;

use causeway_api::meta::set_condition;
use causeway_api::{ConditionStatus, Kind, Object};
use causeway_apiserver::Registry;
use causeway_netmap::sync::Standing;
use tokio_util::sync::CancellationToken;

use super::{NetmapDesk, lock};
use crate::reconcile::MANAGER;

/// The condition of an EGateway that this is about.
pub const NETMAP_IN_FORCE: &str = "NetmapInForce";

/// What is worth telling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    reason: &'static str,
    message: String,
}

const IN_FORCE: &str = "InForce";

impl Report {
    pub fn of(standing: &Standing) -> Option<Report> {
        match standing {
            Standing::NoTarget | Standing::Sending { .. } => None,
            Standing::InForce(_) => Some(Report { reason: IN_FORCE, message: String::new() }),
            Standing::Refused { reason, .. } => {
                let message = format!("the gateway keeps its old netmap: {reason}");
                Some(Report { reason: "Refused", message })
            }
            // The numbers move; a message with them would be written again and again.
            Standing::Behind { .. } => Some(Report {
                reason: "CloudBehind",
                message: "the gateway holds a newer netmap than this cloud can make; was a store put back without causeway restore?".to_owned(),
            }),
        }
    }

    fn status(&self) -> ConditionStatus {
        (self.reason == IN_FORCE).into()
    }
}

impl NetmapDesk {
    pub(super) fn report(&self, gateway: &str, report: Report) {
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
    fn is_known(&self, gateway: &str, report: &Report) -> bool {
        let Some(world) = self.lock().world.clone() else { return false };
        let world = lock(&world);
        let conditions = world.gateway(gateway).map(|gateway| &gateway.status.conditions);
        conditions.into_iter().flatten().any(|condition| {
            condition.kind == NETMAP_IN_FORCE
                && condition.reason == report.reason
                && condition.message == report.message
        })
    }
}

/// The loop that writes.
pub struct Reporter {
    pub desk: NetmapDesk,
    pub registry: Arc<Registry>,
}

impl Reporter {
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

    async fn write(&self, gateway: &str, report: &Report) {
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            let Report { reason, message } = report;
            set_condition(conditions, NETMAP_IN_FORCE, report.status(), reason, message, now, generation);
        };
        // A store that cannot be written says so elsewhere; the next change of standing comes by again.
        if let Err(status) = self.registry.edit_status(MANAGER, Kind::EGateway, gateway, edit).await
            && status.code != 404
        {
            tracing::warn!(gateway, reason = status.message, "the standing of a netmap cannot be written");
        }
    }
}
