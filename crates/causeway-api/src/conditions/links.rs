//! Finds the sites that are disconnected at the moment: none of their gateways is connected.

use std::collections::BTreeSet;

use super::findings::{Findings, list};
use super::{CONNECTED, GATEWAYS_CONNECTED};
use crate::CLOUD;
use crate::kinds::EGateway;
use crate::meta::ConditionStatus;
use crate::object_set::ObjectSet;

/// Tells whether a cloud replica reports its channel as connected. False when it never connected. The gateway
/// of the cloud itself is always connected.
pub fn is_connected(gateway: &EGateway) -> bool {
    let condition = gateway.status.condition(CONNECTED);
    gateway.e_site_name == CLOUD
        || condition.is_some_and(|condition| condition.status == ConditionStatus::True)
}

/// A gateway is ready when it is connected. The replica that held its channel writes the reason when it is
/// not.
pub(super) fn requires_connection(findings: &mut Findings, gateway: &EGateway) {
    if is_connected(gateway) {
        return;
    }
    match gateway.status.condition(CONNECTED) {
        Some(condition) => findings.fails_ready(&condition.reason, &condition.message),
        None => findings.fails_ready("NeverConnected", "the gateway has never connected to this cloud"),
    }
}

/// Sites without gateways are reported by another condition.
pub(super) fn gateways_connected<'a>(
    findings: &mut Findings,
    objects: &ObjectSet,
    sites: impl IntoIterator<Item = &'a str>,
) {
    let is_away = |site: &&str| {
        let mut gateways = objects.gateways_at(site).peekable();
        gateways.peek().is_some() && !gateways.any(is_connected)
    };
    let sites: BTreeSet<&str> = sites.into_iter().collect();
    let away: Vec<&str> = sites.into_iter().filter(is_away).collect();
    match away.is_empty() {
        true => findings.holds(GATEWAYS_CONNECTED, "GatewaysConnected"),
        false => {
            let message = format!("no gateway is connected at {}", list(&away));
            findings.set_false_without_ready(GATEWAYS_CONNECTED, "GatewayAway", message);
        }
    }
}
