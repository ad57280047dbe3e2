//! Writes into every EGateway whether it is connected, when that changes for longer than a moment.
//!
//! Looks at who is attached, not at who came or went; when and why a gateway went is kept beside. Running in several replicas changes nothing, because each writes
//! only what it knows: that a gateway is here, or that it is nowhere. Figures that move are joined when somebody reads.

use std::collections::HashMap;
use std::time::Duration;

use causeway_api::conditions::gateway_after_link;
use causeway_api::meta::set_condition;
use causeway_api::{ConditionStatus, Kind, Object, Time};
use causeway_apiserver::{Registry, RegistryError};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Departure, Elsewhere, Sessions};
use crate::reconcile::MANAGER;

/// The condition of an EGateway that this is about.
pub use causeway_api::conditions::CONNECTED;

/// An edge that changes its link, or a cloud that restarts, is no news. Twice what a return may take; a large fleet is
/// told to take longer, and is given that time twice as well.
const HOLD: Duration = Duration::from_secs(15);
/// An edge that said goodbye is away on purpose; one that is only restarted is back within this.
const HOLD_STOPPED: Duration = Duration::from_secs(3);
/// Those who come in one breath are looked at together.
const BREATH: Duration = Duration::from_millis(200);
/// How often somebody who left is looked for.
const LOOK: Duration = Duration::from_secs(5);
/// The same while a gateway is missing that may be reported soon.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// What others wrote is read again after so many looks.
const RELOAD: u32 = 12;

/// The reason when the session ended because the cloud did, or the replica that held it.
pub(super) const CLOUD_STOPPED: &str = "CloudStopped";

/// The loop that writes.
pub struct ConnectedConditionWriter<'a>(&'a Sessions);

/// What must be written of one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Connected { since: Time },
    Away(Departure),
}

/// A gateway that is said to be connected and was not found.
#[derive(Debug, Clone, Copy)]
struct Missing {
    since: Instant,
    /// When its last session ended; when it was first missed, if this replica did not hold that session.
    departure: Departure,
}

/// Must it be written that the gateway is connected, or that it is not?
fn due(is_here: bool, is_elsewhere: bool, shown: Option<bool>, gone: Duration, hold: Duration) -> bool {
    match (is_here, is_elsewhere, shown) {
        (true, _, shown) => shown != Some(true),
        (false, false, Some(true)) => gone >= hold,
        _ => false,
    }
}

/// How long a gateway may be away before that is written.
fn hold(reason: &str, spread: Duration) -> Duration {
    match reason {
        "Revoked" => Duration::ZERO,
        "Stopped" => HOLD_STOPPED,
        _ => HOLD + 2 * spread,
    }
}

/// The words of the condition `Connected` of a gateway that is away. The first is for programs.
fn condition_of(reason: &'static str) -> (&'static str, &'static str) {
    match reason {
        "Stopped" => ("Stopped", "the gateway was stopped and said so"),
        "Revoked" => ("Revoked", "the gateway was revoked; it needs a new join token"),
        "CertificateExpired" => {
            ("CertificateExpired", "the gateway's certificate has expired and was not renewed in time")
        }
        "Refused" => ("Refused", "the cloud ended the session; the cloud's log says why"),
        CLOUD_STOPPED => {
            (CLOUD_STOPPED, "the gateway has not come back since the cloud was stopped or restarted")
        }
        _ => ("LinkLost", "the link to the gateway was lost; causeway doctor looks for the reason"),
    }
}

impl<'a> ConnectedConditionWriter<'a> {
    pub fn new(sessions: &'a Sessions) -> ConnectedConditionWriter<'a> {
        ConnectedConditionWriter(sessions)
    }

    pub async fn run(self, stop: CancellationToken) {
        let Some(elsewhere) = self.0.0.elsewhere.get() else { return stop.cancelled().await };
        let mut changes = self.0.changes();
        let mut shown = HashMap::new();
        let mut missing: HashMap<String, Missing> = HashMap::new();
        for look in 0u32.. {
            if look % RELOAD == 0 {
                self.load(&mut shown).await;
            }
            for (gateway, finding) in self.look(elsewhere, &shown, &mut missing) {
                if stop.is_cancelled() {
                    return;
                }
                if self.write(&gateway, finding).await {
                    shown.insert(gateway, matches!(finding, Finding::Connected { .. }));
                }
            }
            let is_soon = |missing: &Missing| missing.departure.reason == "Stopped";
            let look = if missing.values().any(is_soon) { LOOK_SOON } else { LOOK };
            let woken = async {
                if timeout(look, changes.changed()).await.is_ok() {
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
        missing: &mut HashMap<String, Missing>,
    ) -> Vec<(String, Finding)> {
        let attached = self.0.attached();
        let here: HashMap<&str, Time> =
            attached.iter().map(|session| (session.peer.gateway(), session.since)).collect();
        let now = Instant::now();
        missing
            .retain(|gateway, _| shown.get(gateway) == Some(&true) && !here.contains_key(gateway.as_str()));
        let fleet = shown.values().filter(|connected| **connected).count();
        let spread = self.0.0.spread(fleet);
        let mut writes = Vec::new();
        for (gateway, since) in &here {
            if due(true, false, shown.get(*gateway).copied(), Duration::ZERO, Duration::ZERO) {
                writes.push(((*gateway).to_owned(), Finding::Connected { since: *since }));
            }
        }
        // Came and went between two looks: nobody has written anything of them yet.
        let unseen = |gateway: &String| !shown.contains_key(gateway) && !here.contains_key(gateway.as_str());
        let departed = self.0.0.departed();
        let unseen: Vec<(String, Departure)> = departed
            .iter()
            .filter(|(name, _)| unseen(name))
            .map(|(name, gone)| (name.clone(), *gone))
            .collect();
        drop(departed);
        let unseen = unseen.into_iter().filter(|(gateway, _)| !elsewhere(gateway));
        writes.extend(unseen.map(|(gateway, departure)| (gateway, Finding::Away(departure))));
        for (gateway, _) in
            shown.iter().filter(|(gateway, said)| **said && !here.contains_key(gateway.as_str()))
        {
            let seen = self.0.0.departed().get(gateway).copied();
            let found = missing.entry(gateway.clone()).or_insert_with(|| {
                let unseen = Departure { at: self.registry().now(), reason: CLOUD_STOPPED };
                Missing { since: now, departure: unseen }
            });
            found.departure = seen.unwrap_or(found.departure);
            let Missing { since, departure } = *found;
            if due(false, elsewhere(gateway), Some(true), now - since, hold(departure.reason, spread)) {
                writes.push((gateway.clone(), Finding::Away(departure)));
            }
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

    async fn write(&self, gateway: &str, finding: Finding) -> bool {
        let now = self.registry().now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let status = object.status_mut();
            let (connected, (reason, message)) = match finding {
                Finding::Connected { since } => {
                    status.last_seen = Some(since);
                    (true, ("Connected", ""))
                }
                Finding::Away(departure) => {
                    status.last_seen = Some(departure.at);
                    status.last_disconnect_reason = departure.reason.to_owned();
                    (false, condition_of(departure.reason))
                }
            };
            let conditions = &mut status.conditions;
            set_condition(conditions, CONNECTED, connected.into(), reason, message, now, generation);
            if let Object::EGateway(gateway) = object
                && let Some(conditions) = gateway_after_link(gateway, now)
            {
                gateway.status.conditions = conditions;
            }
        };
        match self.registry().edit_status(MANAGER, Kind::EGateway, gateway, edit).await {
            Ok(_) => true,
            // Deleted meanwhile: nothing to say about it.
            Err(RegistryError::NotFound(_)) => true,
            Err(error) => {
                tracing::warn!(gateway, reason = %error, "whether it is connected cannot be written");
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
        let check = |here, elsewhere, shown, gone, expected: bool| {
            assert_eq!(due(here, elsewhere, shown, Duration::from_secs(gone), HOLD), expected);
        };
        check(true, false, None, 0, true);
        check(true, false, Some(false), 0, true);
        check(true, false, Some(true), 0, false);
        check(false, false, Some(true), 14, false);
        check(false, false, Some(true), 15, true);
        check(false, true, Some(true), 60, false);
        check(false, true, Some(false), 60, false);
        check(false, false, None, 60, false);
        check(false, false, Some(false), 60, false);
    }

    #[test]
    fn the_end_of_a_session_is_told_by_its_cause() {
        use causeway_channel::link::CloseCode;
        let check = |code, reason: &str, hold_seconds, condition: &str| {
            let found = super::super::disconnect_reason(code);
            assert_eq!(found, reason, "{code}");
            assert_eq!(hold(found, Duration::ZERO).as_secs(), hold_seconds, "{code}");
            assert_eq!(condition_of(found).0, condition, "{code}");
        };
        check(CloseCode::Done, "Stopped", 3, "Stopped");
        check(CloseCode::Revoked, "Revoked", 0, "Revoked");
        check(CloseCode::Dead, "LinkLost", 15, "LinkLost");
        check(CloseCode::Other(77), "LinkLost", 15, "LinkLost");
        check(CloseCode::Superseded, "Superseded", 15, "LinkLost");
        check(CloseCode::Draining, "CloudStopped", 15, "CloudStopped");
        check(CloseCode::CertificateExpired, "CertificateExpired", 15, "CertificateExpired");
        check(CloseCode::Malformed, "Refused", 15, "Refused");
    }
}
