//! Decides what the condition `Connected` of every EGateway should be: whether the gateway is connected, when
//! that has lasted long enough. With it goes the version of the gateway's program.
//!
//! Input: the sessions of this replica, whether a gateway is attached to another one, and what the EGateways
//! show. Output: changes, which `reports` writes. Running in several replicas changes nothing, because each
//! writes only what it knows: that a gateway is attached here, or that it is attached nowhere. Stats that
//! move are added when an EGateway is read.

use std::collections::HashMap;
use std::time::Duration;

use causeway_api::conditions::gateway_after_link;
use causeway_api::meta::set_condition;
use causeway_api::{ConditionStatus, Object, ObjectSet, Time};
use tokio::sync::watch;
use tokio::time::Instant;

use super::session::Session;
use super::{Departure, Sessions};

/// The condition of an EGateway that this is about.
pub use causeway_api::conditions::CONNECTED;

/// An edge that changes its link, or a cloud that restarts, is no news. Twice what a return may take; a large
/// fleet is told to take longer, and is given that time twice as well.
const HOLD: Duration = Duration::from_secs(15);
/// An edge that said goodbye is away on purpose; one that is only restarted is back within this.
const HOLD_STOPPED: Duration = Duration::from_secs(3);
/// Interval at which a disconnected gateway is looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A gateway that names another version with each session does not write its EGateway each time.
const UPGRADE_INTERVAL: Duration = Duration::from_secs(60);
/// The same while a gateway is missing that may be reported soon.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// The reason when the session ended because the cloud did, or the replica that held it.
pub(super) const CLOUD_STOPPED: &str = "CloudStopped";

/// The connections of gateways, as far as this replica sees them, beside what their EGateways show.
pub struct ConnectionWatch {
    sessions: Sessions,
    /// The state that an EGateway shows, if it has the condition. One entry per EGateway.
    shown: HashMap<String, ShownConnection>,
    missing: HashMap<String, Missing>,
    /// When the version of a gateway was written because of an upgrade.
    upgraded: HashMap<String, Instant>,
}

/// The status of `Connected` and the program, as an EGateway shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ShownConnection {
    connected: bool,
    software: String,
}

/// The change to write into one EGateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionChange {
    Connected { since: Time, software: String },
    Away(Departure),
}

/// A gateway that is said to be connected and was not found.
#[derive(Debug, Clone, Copy)]
struct Missing {
    since: Instant,
    /// When its last session ended; when it was first missed, if this replica did not hold that session.
    departure: Departure,
}

/// Returns true if the Connected condition must be written, because the stored one is out of date.
fn due(is_here: bool, is_elsewhere: bool, shown: Option<bool>, gone: Duration, hold: Duration) -> bool {
    match (is_here, is_elsewhere, shown) {
        (true, _, shown) => shown != Some(true),
        (false, false, Some(true)) => gone >= hold,
        _ => false,
    }
}

/// Returns the time for which a gateway may be disconnected before that is written.
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

impl ConnectionWatch {
    pub fn new(sessions: Sessions) -> ConnectionWatch {
        ConnectionWatch { sessions, shown: HashMap::new(), missing: HashMap::new(), upgraded: HashMap::new() }
    }

    /// Changes when a gateway is attached or detached.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.sessions.changes()
    }

    /// Takes over what all EGateways show.
    pub fn reset<'b>(&mut self, objects: &ObjectSet, gateways: impl Iterator<Item = &'b str>) {
        self.shown.clear();
        self.refresh(objects, gateways);
    }

    /// Takes over what some EGateways show.
    pub fn refresh<'b>(&mut self, objects: &ObjectSet, gateways: impl Iterator<Item = &'b str>) {
        for name in gateways {
            let shown = objects.gateway(name).and_then(|gateway| {
                let connected = gateway.status.condition(CONNECTED)?.status == ConditionStatus::True;
                Some(ShownConnection { connected, software: gateway.status.software.clone() })
            });
            match shown {
                Some(shown) => self.shown.insert(name.to_owned(), shown),
                None => self.shown.remove(name),
            };
        }
    }

    /// Returns how soon to look again when no session begins or ends.
    pub fn look_every(&self) -> Duration {
        let is_soon = |missing: &Missing| missing.departure.reason == "Stopped";
        if self.missing.values().any(is_soon) { LOOK_SOON } else { CHECK_INTERVAL }
    }

    pub fn handle_written(&mut self, gateway: &str, change: ConnectionChange) {
        let before = self.shown.remove(gateway).map(|shown| shown.software).unwrap_or_default();
        let shown = match change {
            ConnectionChange::Connected { software, .. } if software.is_empty() => {
                ShownConnection { connected: true, software: before }
            }
            ConnectionChange::Connected { software, .. } => ShownConnection { connected: true, software },
            ConnectionChange::Away(_) => ShownConnection { connected: false, software: before },
        };
        self.shown.insert(gateway.to_owned(), shown);
    }

    /// Returns every change that must be written now.
    pub fn changes_to_write(&mut self) -> Vec<(String, ConnectionChange)> {
        let ConnectionWatch { sessions, shown, missing, upgraded } = self;
        let Some(elsewhere) = sessions.0.services.is_elsewhere.clone() else { return Vec::new() };
        let attached = sessions.attached();
        let here: HashMap<&str, &Session> =
            attached.iter().map(|session| (session.peer.gateway(), &**session)).collect();
        let is_shown = |gateway: &str| shown.get(gateway).is_some_and(|shown| shown.connected);
        let (now, time) = (Instant::now(), sessions.0.now());
        missing.retain(|gateway, _| is_shown(gateway) && !here.contains_key(gateway.as_str()));
        let fleet = shown.values().filter(|shown| shown.connected).count();
        let spread = sessions.0.spread(fleet);
        upgraded.retain(|_, written| now.duration_since(*written) < UPGRADE_INTERVAL);
        let mut writes = Vec::new();
        for (gateway, session) in &here {
            let connected = shown.get(*gateway).map(|shown| shown.connected);
            let is_other = shown.get(*gateway).is_some_and(|shown| shown.software != session.software);
            // An edge that is upgraded is back before it counts as away.
            let is_upgraded = is_other && !session.software.is_empty() && !upgraded.contains_key(*gateway);
            if is_upgraded {
                upgraded.insert((*gateway).to_owned(), now);
            }
            if is_upgraded || due(true, false, connected, Duration::ZERO, Duration::ZERO) {
                let (since, software) = (session.since, session.software.clone());
                writes.push(((*gateway).to_owned(), ConnectionChange::Connected { since, software }));
            }
        }
        // Attached and detached between two looks: their EGateways do not show either yet.
        let unseen = |gateway: &String| !shown.contains_key(gateway) && !here.contains_key(gateway.as_str());
        let departed = sessions.0.departed();
        let unseen: Vec<(String, Departure)> = departed
            .iter()
            .filter(|(name, _)| unseen(name))
            .map(|(name, gone)| (name.clone(), *gone))
            .collect();
        drop(departed);
        let unseen = unseen.into_iter().filter(|(gateway, _)| !elsewhere(gateway));
        writes.extend(unseen.map(|(gateway, departure)| (gateway, ConnectionChange::Away(departure))));
        for (gateway, _) in
            shown.iter().filter(|(gateway, said)| said.connected && !here.contains_key(gateway.as_str()))
        {
            let seen = sessions.0.departed().get(gateway).copied();
            let found = missing.entry(gateway.clone()).or_insert_with(|| {
                let unseen = Departure { at: time, reason: CLOUD_STOPPED };
                Missing { since: now, departure: unseen }
            });
            found.departure = seen.unwrap_or(found.departure);
            let Missing { since, departure } = *found;
            // A gateway that left long ago, and whose condition a client of the API has overwritten, is not
            // waited for again.
            let gone = (now - since).max(Duration::from_secs(time.since(departure.at)));
            if due(false, elsewhere(gateway), Some(true), gone, hold(departure.reason, spread)) {
                writes.push((gateway.clone(), ConnectionChange::Away(departure)));
            }
        }
        writes
    }
}

impl ConnectionChange {
    /// Writes the change into the status of an EGateway, and what `Ready` says of it.
    pub fn apply(&self, object: &mut Object, now: Time) {
        let generation = object.metadata().generation;
        let status = object.status_mut();
        let (connected, (reason, message)) = match self {
            ConnectionChange::Connected { since, software } => {
                status.last_seen = Some(*since);
                if !software.is_empty() {
                    status.software.clone_from(software);
                }
                (true, ("Connected", ""))
            }
            ConnectionChange::Away(departure) => {
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
