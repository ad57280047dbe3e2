//! Which sites are cut off at the moment: none of their gateways is connected.

use std::collections::BTreeSet;

use super::findings::{Findings, list};
use super::{CONNECTED, GATEWAYS_CONNECTED};
use crate::CLOUD;
use crate::kinds::EGateway;
use crate::meta::ConditionStatus;
use crate::object_set::ObjectSet;

/// Does somebody see its channel? Nobody ever did: no. The cloud is where the others connect to.
pub fn is_connected(gateway: &EGateway) -> bool {
    let said = gateway.status.condition(CONNECTED);
    gateway.e_site_name == CLOUD || said.is_some_and(|said| said.status == ConditionStatus::True)
}

/// A gateway is ready when it is connected. Why it is not, says whoever sees its channel.
pub(super) fn counts_connection(findings: &mut Findings, gateway: &EGateway) {
    if is_connected(gateway) {
        return;
    }
    match gateway.status.condition(CONNECTED) {
        Some(said) => findings.counts(&said.reason, &said.message),
        None => findings.counts("NeverConnected", "the gateway has never connected to this cloud"),
    }
}

/// Sites without gateways are told of elsewhere.
pub(super) fn gateways_connected<'a>(
    findings: &mut Findings,
    world: &ObjectSet,
    sites: impl IntoIterator<Item = &'a str>,
) {
    let is_away = |site: &&str| {
        let mut gateways = world.gateways_at(site).peekable();
        gateways.peek().is_some() && !gateways.any(is_connected)
    };
    let sites: BTreeSet<&str> = sites.into_iter().collect();
    let away: Vec<&str> = sites.into_iter().filter(is_away).collect();
    match away.is_empty() {
        true => findings.holds(GATEWAYS_CONNECTED, "GatewaysConnected"),
        false => {
            let message = format!("no gateway is connected at {}", list(&away));
            findings.regrets(GATEWAYS_CONNECTED, "GatewayAway", message);
        }
    }
}
