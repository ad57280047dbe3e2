//! Writes into every EGateway whether it is connected, when that changes for longer than a moment.
//!
//! Looks at who is attached, not at who came or went; running in several replicas changes nothing, because each writes
//! only what it knows: that a gateway is here, or that it is nowhere. Figures that move are joined when somebody reads.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use causeway_api::meta::set_condition;
use causeway_api::{ConditionStatus, Kind, Object};
use causeway_apiserver::Registry;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Elsewhere, Sessions};
use crate::reconcile::MANAGER;

/// The condition of an EGateway that this is about.
pub use causeway_api::conditions::CONNECTED;

/// An edge that changes its link, or a cloud that restarts, is no news. Twice what a return may take; a large fleet is
/// told to take longer, and is given that time twice as well.
const HOLD: Duration = Duration::from_secs(15);
/// Those who come in one breath are looked at together.
const BREATH: Duration = Duration::from_millis(200);
/// How often somebody who left is looked for.
const LOOK: Duration = Duration::from_secs(5);
/// What others wrote is read again after so many looks.
const RELOAD: u32 = 12;

/// The loop that writes.
pub struct Reporter<'a>(&'a Sessions);

/// What must be written, if anything.
fn due(
    is_here: bool,
    is_elsewhere: bool,
    shown: Option<bool>,
    gone: Duration,
    hold: Duration,
) -> Option<bool> {
    match (is_here, is_elsewhere, shown) {
        (true, _, shown) => (shown != Some(true)).then_some(true),
        (false, false, Some(true)) if gone >= hold => Some(false),
        _ => None,
    }
}

impl<'a> Reporter<'a> {
    pub fn new(sessions: &'a Sessions) -> Reporter<'a> {
        Reporter(sessions)
    }

    pub async fn run(self, stop: CancellationToken) {
        let Some(elsewhere) = self.0.0.elsewhere.get() else { return stop.cancelled().await };
        let mut changes = self.0.changes();
        let mut shown = HashMap::new();
        // Since when a gateway that is said to be connected was not found.
        let mut missing: HashMap<String, Instant> = HashMap::new();
        for look in 0u32.. {
            if look % RELOAD == 0 {
                self.load(&mut shown).await;
            }
            for (gateway, connected) in self.look(elsewhere, &shown, &mut missing) {
                if stop.is_cancelled() {
                    return;
                }
                if self.write(&gateway, connected).await {
                    shown.insert(gateway, connected);
                }
            }
            let woken = async {
                if timeout(LOOK, changes.changed()).await.is_ok() {
                    sleep(BREATH).await;
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = woken => {}
            }
        }
    }

    /// Everything that must be written now.
    fn look(
        &self,
        elsewhere: &Elsewhere,
        shown: &HashMap<String, bool>,
        missing: &mut HashMap<String, Instant>,
    ) -> Vec<(String, bool)> {
        let attached = self.0.attached();
        let here: HashSet<&str> = attached.iter().map(|session| session.peer.gateway()).collect();
        let now = Instant::now();
        missing.retain(|gateway, _| shown.get(gateway) == Some(&true) && !here.contains(gateway.as_str()));
        let fleet = shown.values().filter(|connected| **connected).count();
        let hold = HOLD + 2 * self.0.0.spread(fleet);
        let mut writes = Vec::new();
        for gateway in &here {
            let known = shown.get(*gateway).copied();
            writes.extend(
                due(true, false, known, Duration::ZERO, hold)
                    .map(|connected| ((*gateway).to_owned(), connected)),
            );
        }
        for (gateway, _) in shown.iter().filter(|(gateway, said)| **said && !here.contains(gateway.as_str()))
        {
            let since = *missing.entry(gateway.clone()).or_insert(now);
            let connected = due(false, elsewhere(gateway), Some(true), now - since, hold);
            writes.extend(connected.map(|connected| (gateway.clone(), connected)));
        }
        writes
    }

    fn registry(&self) -> &Registry {
        &self.0.0.registry
    }

    async fn load(&self, shown: &mut HashMap<String, bool>) {
        let Ok((gateways, _)) = self.registry().objects(Kind::EGateway).await else { return };
        shown.clear();
        for loaded in &gateways {
            let conditions = &loaded.object.status().conditions;
            if let Some(condition) = conditions.iter().find(|condition| condition.kind == CONNECTED) {
                let connected = condition.status == ConditionStatus::True;
                shown.insert(loaded.object.name().to_owned(), connected);
            }
        }
    }

    async fn write(&self, gateway: &str, connected: bool) -> bool {
        let now = self.registry().now();
        let (reason, message) = match connected {
            true => ("Connected", ""),
            false => ("Disconnected", "the gateway has no session; causeway doctor looks for the reason"),
        };
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            set_condition(conditions, CONNECTED, connected.into(), reason, message, now, generation);
        };
        match self.registry().edit_status(MANAGER, Kind::EGateway, gateway, edit).await {
            Ok(_) => true,
            // Deleted meanwhile: nothing to say about it.
            Err(status) if status.code == 404 => true,
            Err(status) => {
                tracing::warn!(gateway, reason = status.message, "whether it is connected cannot be written");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_and_what_is_known_is_written() {
        let check = |here, elsewhere, shown, gone, expected: Option<bool>| {
            assert_eq!(due(here, elsewhere, shown, Duration::from_secs(gone), HOLD), expected);
        };
        check(true, false, None, 0, Some(true));
        check(true, false, Some(false), 0, Some(true));
        check(true, false, Some(true), 0, None);
        check(false, false, Some(true), 14, None);
        check(false, false, Some(true), 15, Some(false));
        check(false, true, Some(true), 60, None);
        check(false, true, Some(false), 60, None);
        check(false, false, None, 60, None);
        check(false, false, Some(false), 60, None);
    }
}
