//! Conditions of EGateways and EServices, computed from the reports of gateways. Pure: reports in, conditions
//! out.
//!
//! A condition follows the reports of the gateway that is responsible now. A report of a gateway at another
//! site, of a gateway that was deleted, and of a replica that is gone is ignored.

use std::collections::BTreeMap;

use causeway_api::conditions::{
    BACKENDS_ANSWER, IN_FORCE, LISTENING, NETMAP_IN_FORCE, NETMAP_PERSISTED, READY_FOR_OFFLINE, TUNNEL_READY,
    WITHIN_BYTE_BUDGET, is_connected,
};
use causeway_api::meta::{Condition, ConditionStatus};
use causeway_api::{EGateway, ObjectSet};
use causeway_gateway::problems::BackendOutage;

use super::record::{Report, ReportSubject, ReportTable};
use crate::bootstrap::CLOUD;
use crate::replicas::ActiveGateways;

/// Longest message of a condition.
const MESSAGE_CHARS_MAX: usize = 1024;
/// Longest part of one replica in the message that all replicas of the cloud share.
const PART_CHARS_MAX: usize = 300;
/// Separates the parts of replicas.
const SEPARATOR: &str = " | ";

/// The replicas of the cloud that are alive, this one included: label by id. None: the cloud has one replica
/// only.
pub type LiveReplicas = Option<BTreeMap<String, String>>;

/// A condition as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ComputedCondition {
    pub kind: &'static str,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
}

impl ComputedCondition {
    fn new(kind: &'static str, status: ConditionStatus, reason: &str, message: String) -> ComputedCondition {
        ComputedCondition { kind, status, reason: reason.to_owned(), message }
    }

    /// Tells whether the object already has this condition.
    pub fn is_shown(&self, shown: Option<&Condition>) -> bool {
        shown.is_some_and(|shown| {
            shown.status == self.status && shown.reason == self.reason && shown.message == self.message
        })
    }
}

/// Returns the conditions of an EGateway that follow from its reports.
pub fn of_gateway(gateway: &EGateway, table: &ReportTable, live: &LiveReplicas) -> Vec<ComputedCondition> {
    let name = gateway.metadata.name.as_str();
    let mut computed = Vec::new();
    let listening = table.of_gateway(name, ReportSubject::Listening).filter_map(|(replica, report)| {
        let Report::Listening { problems } = report else { return None };
        Some((replica, problems.as_slice()))
    });
    let listening: Vec<(Option<&str>, &[String])> = listening.collect();
    match live.as_ref().filter(|_| name == CLOUD) {
        Some(live) => computed.extend(listening_of_replicas(&listening, live)),
        None => {
            computed.extend(listening.iter().find(|(replica, _)| replica.is_none()).map(|(_, problems)| {
                let reason = if problems.is_empty() { "Listening" } else { "NotListening" };
                ComputedCondition::new(
                    LISTENING,
                    problems.is_empty().into(),
                    reason,
                    bounded(&problems.join("; ")),
                )
            }))
        }
    }
    computed.extend(tunnel(gateway, table, live));
    for (_, report) in table.of_gateway(name, ReportSubject::Offline) {
        computed.extend(offline(report));
    }
    for (_, report) in table.of_gateway(name, ReportSubject::Budget) {
        computed.extend(budget(report));
    }
    for (_, report) in table.of_gateway(name, ReportSubject::Netmap) {
        computed.extend(netmap(report, gateway.status.condition(NETMAP_PERSISTED).is_some()));
    }
    computed
}

/// Returns the combined report of the cloud's replicas. A replica that listens on everything does not appear
/// in the message.
fn listening_of_replicas(
    reports: &[(Option<&str>, &[String])],
    live: &BTreeMap<String, String>,
) -> Option<ComputedCondition> {
    let of_live = reports.iter().filter_map(|(replica, problems)| Some((live.get((*replica)?)?, *problems)));
    let of_live: BTreeMap<&String, &[String]> = of_live.collect();
    if of_live.is_empty() {
        return None;
    }
    let failing = of_live.iter().filter(|(_, problems)| !problems.is_empty());
    let parts: Vec<String> = failing
        .map(|(label, problems)| {
            let text = bounded(&problems.join("; ")).replace('|', "/");
            format!("replica {label}: {}", text.chars().take(PART_CHARS_MAX).collect::<String>())
        })
        .collect();
    let reason = if parts.is_empty() { "Listening" } else { "NotListening" };
    Some(ComputedCondition::new(LISTENING, parts.is_empty().into(), reason, parts.join(SEPARATOR)))
}

/// The tunnel of the cloud has a problem when the tunnel of any replica has one.
fn tunnel(gateway: &EGateway, table: &ReportTable, live: &LiveReplicas) -> Option<ComputedCondition> {
    let name = gateway.metadata.name.as_str();
    let reports = table.of_gateway(name, ReportSubject::Tunnel).filter_map(|(replica, report)| {
        let is_live = match (live, replica) {
            (Some(live), Some(replica)) if name == CLOUD => live.contains_key(replica),
            _ => true,
        };
        let Report::Tunnel { reason, message } = report else { return None };
        is_live.then_some((reason, message))
    });
    let reports: Vec<(&String, &String)> = reports.collect();
    if let Some((reason, message)) = reports.iter().find(|(reason, _)| !reason.is_empty()) {
        return Some(ComputedCondition::new(TUNNEL_READY, ConditionStatus::False, reason, bounded(message)));
    }
    let was_shown = gateway.status.condition(TUNNEL_READY).is_some() && !reports.is_empty();
    was_shown
        .then(|| ComputedCondition::new(TUNNEL_READY, ConditionStatus::True, "TunnelReady", String::new()))
}

fn offline(report: &Report) -> Option<ComputedCondition> {
    let Report::Offline { pods: Some(pods) } = report else { return None };
    let reason = if pods.is_empty() { "PodsCovered" } else { "PodsAtRisk" };
    Some(ComputedCondition::new(READY_FOR_OFFLINE, pods.is_empty().into(), reason, bounded(&pods.join("; "))))
}

fn budget(report: &Report) -> Option<ComputedCondition> {
    let Report::Budget { spent: Some(spent) } = report else { return None };
    let reason = if spent.is_empty() { "WithinBudget" } else { "BudgetSpent" };
    Some(ComputedCondition::new(WITHIN_BYTE_BUDGET, spent.is_empty().into(), reason, bounded(spent)))
}

/// `has_persisted`: the gateway once could not write its netmap, so the condition about that exists.
fn netmap(report: &Report, has_persisted: bool) -> Vec<ComputedCondition> {
    let Report::Netmap { reason, message, not_persisted } = report else { return Vec::new() };
    let in_force = (reason == IN_FORCE).into();
    let mut computed = vec![ComputedCondition::new(NETMAP_IN_FORCE, in_force, reason, bounded(message))];
    if !not_persisted.is_empty() || has_persisted {
        let reason = if not_persisted.is_empty() { "Persisted" } else { "NotPersisted" };
        let status = not_persisted.is_empty().into();
        computed.push(ComputedCondition::new(NETMAP_PERSISTED, status, reason, bounded(not_persisted)));
    }
    computed
}

/// The report of a responsible gateway on the backends of one service. `outage` is None when all backends
/// respond to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendReport<'a> {
    /// "gateway oslo", or "gateway cloud, replica 10.0.0.1:7444 (aa)".
    reporter: String,
    outage: Option<&'a BackendOutage>,
}

/// Returns the condition `BackendsAnswer` of a service. None: it stays as it is.
pub fn of_service(
    service: &str,
    objects: &ObjectSet,
    active: &ActiveGateways,
    table: &ReportTable,
    live: &LiveReplicas,
) -> Option<ComputedCondition> {
    let service = objects.service(service)?;
    let (name, site) = (&service.metadata.name, &service.e_site_name);
    let reports = match site.as_str() {
        CLOUD => reports_of(CLOUD, name, site, table, live),
        site => match responsible(objects, site, active.get(site), table) {
            Some(gateway) => reports_of(gateway, name, site, table, &None),
            None => Vec::new(),
        },
    };
    backends_answer(service.status.condition(BACKENDS_ANSWER), &reports)
}

/// The gateway of a site that serves its services now: the stored active one. If there is no such record,
/// as at a site with one gateway, the first that is connected, by priority and name. While none is connected,
/// the first that has reported: its report is the last one known.
fn responsible<'a>(
    objects: &'a ObjectSet,
    site: &str,
    active: Option<&String>,
    table: &ReportTable,
) -> Option<&'a str> {
    let mut gateways: Vec<&EGateway> = objects.gateways_at(site).collect();
    gateways.sort_by(|one, other| one.rank().cmp(&other.rank()));
    let has_reported = |gateway: &&&EGateway| {
        table.of_gateway(&gateway.metadata.name, ReportSubject::Backends).next().is_some()
    };
    let stored = gateways.iter().find(|gateway| Some(&gateway.metadata.name) == active);
    let connected = stored.or_else(|| gateways.iter().find(|gateway| is_connected(gateway)));
    let found = connected.or_else(|| gateways.iter().find(has_reported));
    found.map(|gateway| gateway.metadata.name.as_str())
}

/// The reports of a gateway on a service. A report that was made at another site is of a gateway that has
/// moved since.
fn reports_of<'a>(
    gateway: &str,
    service: &str,
    site: &str,
    table: &'a ReportTable,
    live: &LiveReplicas,
) -> Vec<BackendReport<'a>> {
    let reports = table.of_gateway(gateway, ReportSubject::Backends).filter_map(|(replica, report)| {
        let Report::Backends { site: reported_at, services } = report else { return None };
        let reporter = match (live, replica) {
            (Some(live), Some(replica)) => format!("gateway {gateway}, replica {}", live.get(replica)?),
            (None, None) => format!("gateway {gateway}"),
            // A record from when the cloud had other replicas, or none.
            _ => return None,
        };
        (reported_at == site).then(|| BackendReport { reporter, outage: services.get(service) })
    });
    reports.collect()
}

/// Of several replicas, one that reaches no backend goes before one that reaches some. A condition that does
/// not exist is not made to say that all is well.
fn backends_answer(before: Option<&Condition>, reports: &[BackendReport<'_>]) -> Option<ComputedCondition> {
    let outages = reports.iter().filter_map(|report| Some((&report.reporter, report.outage?)));
    let computed = |status, reason: BackendsReason, message: String| {
        Some(ComputedCondition::new(BACKENDS_ANSWER, status, reason.as_str(), bounded(&message)))
    };
    match outages.min_by_key(|(_, outage)| outage.up > 0) {
        Some((reporter, BackendOutage { up: 0, why, denied, .. })) => {
            let reason = if *denied { BackendsReason::BackendDenied } else { BackendsReason::BackendDown };
            computed(ConditionStatus::False, reason, format!("{reporter} reaches no backend; {why}"))
        }
        Some((reporter, BackendOutage { up, of, why, .. })) => {
            let out = of.saturating_sub(*up);
            let message = format!("{reporter} leaves out {out} of {of} backends; {why}");
            computed(ConditionStatus::True, BackendsReason::BackendsLeftOut, message)
        }
        None if before.is_none_or(|before| all_answer().is_shown(Some(before))) => None,
        None if reports.is_empty() => {
            let message = "the gateway of the service has not reported on its backends yet";
            computed(ConditionStatus::Unknown, BackendsReason::NotReported, message.to_owned())
        }
        None => Some(all_answer()),
    }
}

/// The condition of a service of which every backend responds.
fn all_answer() -> ComputedCondition {
    let reason = BackendsReason::BackendsAnswer.as_str();
    ComputedCondition::new(BACKENDS_ANSWER, ConditionStatus::True, reason, String::new())
}

/// The reasons of the condition `BackendsAnswer`.
#[derive(Clone, Copy)]
enum BackendsReason {
    BackendsAnswer,
    BackendsLeftOut,
    BackendDown,
    BackendDenied,
    NotReported,
}

impl BackendsReason {
    fn as_str(self) -> &'static str {
        match self {
            BackendsReason::BackendsAnswer => "BackendsAnswer",
            BackendsReason::BackendsLeftOut => "BackendsLeftOut",
            BackendsReason::BackendDown => "BackendDown",
            BackendsReason::BackendDenied => "BackendDenied",
            BackendsReason::NotReported => "NotReported",
        }
    }
}

fn bounded(message: &str) -> String {
    message.chars().filter(|letter| !letter.is_control()).take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
