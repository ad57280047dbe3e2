//! Reports whether the netmap of an attached gateway is in force and on its disk, and if not, why.
//!
//! Reported only when that changes: an update on its way is not reported, and generations are added when an
//! EGateway is read. `reports` stores the report and writes the conditions.

use causeway_api::conditions::IN_FORCE;
use causeway_netmap::sync::NetmapSyncState;

use super::NetmapPublisher;
use crate::reports::Report;

/// Returns the report on the netmap of a gateway. None: an update is on its way, and what follows is
/// reported.
pub fn netmap_report(standing: &NetmapSyncState, not_persisted: &str) -> Option<Report> {
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
    let (reason, not_persisted) = (reason.to_owned(), not_persisted.to_owned());
    Some(Report::Netmap { reason, message, not_persisted })
}

impl NetmapPublisher {
    pub(super) fn report(&self, gateway: &str, report: Report) {
        let mut state = self.lock();
        let Some(attached) = state.attached.get_mut(gateway) else { return };
        if attached.reported.as_ref() == Some(&report) {
            return;
        }
        attached.reported = Some(report.clone());
        drop(state);
        self.shared.reports.report(gateway, report);
    }
}
