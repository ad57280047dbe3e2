//! Conditions that follow from reports: which gateway counts, and what replicas report together.

use causeway_api::{EService, ObjectMeta, Time};
use causeway_store::Revision;

use super::super::record::{Reporter, report_key};
use super::*;

fn condition(computed: &ComputedCondition) -> Condition {
    Condition {
        kind: computed.kind.into(),
        status: computed.status,
        observed_generation: 1,
        last_transition_time: Time::from_second(0),
        reason: computed.reason.clone(),
        message: computed.message.clone(),
    }
}

fn shown(computed: &ComputedCondition) -> (ConditionStatus, &str, &str) {
    (computed.status, &computed.reason, &computed.message)
}

fn outage(up: usize) -> BackendOutage {
    BackendOutage { up, of: 3, why: "10.0.0.5:80: refused".into(), denied: false }
}

/// Records in the order in which they were put.
#[derive(Default)]
struct Lab {
    table: ReportTable,
    objects: ObjectSet,
    active: ActiveGateways,
    revision: u64,
}

impl Lab {
    fn put(&mut self, gateway: &str, replica: Option<&str>, report: &Report) {
        self.revision += 1;
        let reporter = Reporter { gateway: gateway.into(), replica: replica.map(Into::into) };
        let value = serde_json::to_vec(report).unwrap();
        let key = report_key(&reporter, report.subject());
        self.table.handle_record(&key, Some(&value), Revision(self.revision));
    }

    fn backends(&mut self, gateway: &str, replica: Option<&str>, site: &str, outage: Option<BackendOutage>) {
        let services = outage.map(|outage| ("web".to_owned(), outage)).into_iter().collect();
        self.put(gateway, replica, &Report::Backends { site: site.into(), services });
    }

    fn listening(&mut self, replica: &str, problems: &[&str]) {
        let problems = problems.iter().map(|problem| (*problem).to_owned()).collect();
        self.put(CLOUD, Some(replica), &Report::Listening { problems });
    }

    fn gateway(&mut self, name: &str, site: &str, priority: i64, connected: bool) {
        let mut gateway =
            EGateway { metadata: ObjectMeta::named(name), e_site_name: site.into(), ..EGateway::default() };
        gateway.priority = priority;
        let (conditions, now) = (&mut gateway.status.conditions, Time::from_second(0));
        let about = causeway_api::conditions::CONNECTED;
        causeway_api::meta::set_condition(conditions, about, connected.into(), "X", "", now, 1);
        self.objects.insert(gateway.into());
    }

    fn service(&mut self, site: &str, before: Option<Condition>) {
        let mut web =
            EService { metadata: ObjectMeta::named("web"), e_site_name: site.into(), ..EService::default() };
        web.status.conditions.extend(before);
        self.objects.insert(web.into());
    }

    /// The condition of the service, given what it shows now.
    fn answers(
        &mut self,
        site: &str,
        before: Option<&ComputedCondition>,
        live: &LiveReplicas,
    ) -> Option<ComputedCondition> {
        self.service(site, before.map(condition));
        of_service("web", &self.objects, &self.active, &self.table, live)
    }

    fn listens(&self, live: &[&str]) -> Option<ComputedCondition> {
        let cloud = EGateway { metadata: ObjectMeta::named(CLOUD), ..EGateway::default() };
        of_gateway(&cloud, &self.table, &labels(live)).into_iter().next()
    }
}

/// The label of a replica is its address and its id.
fn labels(ids: &[&str]) -> LiveReplicas {
    let label = |id: &str| match id {
        "aa" => "10.0.0.1:7444 (aa)".to_owned(),
        "bb" => "[fd00::2]:7444 (bb)".to_owned(),
        other => format!("{other}:1"),
    };
    Some(ids.iter().map(|id| ((*id).to_owned(), label(id))).collect())
}

const WELL: (ConditionStatus, &str, &str) = (ConditionStatus::True, "BackendsAnswer", "");

#[test]
fn an_outage_is_told_once_and_taken_back_by_who_told_it() {
    let mut lab = Lab::default();
    lab.gateway("a", "oslo", 2, true);
    lab.gateway("b", "oslo", 1, true);
    assert_eq!(lab.answers("oslo", None, &None), None, "there is no report");
    lab.backends("a", None, "oslo", None);
    assert_eq!(lab.answers("oslo", None, &None), None, "no report is of an outage");
    lab.backends("a", None, "oslo", Some(outage(0)));
    let down = lab.answers("oslo", None, &None).unwrap();
    let message = "gateway a reaches no backend; 10.0.0.5:80: refused";
    assert_eq!(shown(&down), (ConditionStatus::False, "BackendDown", message));
    lab.backends("a", None, "oslo", Some(outage(2)));
    let some = lab.answers("oslo", None, &None).unwrap();
    let message = "gateway a leaves out 1 of 3 backends; 10.0.0.5:80: refused";
    assert_eq!(shown(&some), (ConditionStatus::True, "BackendsLeftOut", message));
    lab.backends("a", None, "oslo", Some(BackendOutage { denied: true, ..outage(0) }));
    let denied = lab.answers("oslo", None, &None).unwrap();
    assert_eq!((denied.status, denied.reason.as_str()), (ConditionStatus::False, "BackendDenied"));
    lab.backends("a", None, "oslo", Some(outage(0)));
    lab.backends("b", None, "oslo", None);
    assert_eq!(lab.answers("oslo", Some(&down), &None).as_ref(), Some(&down), "b is not responsible");
    lab.backends("a", None, "oslo", None);
    let well = lab.answers("oslo", Some(&down), &None).unwrap();
    assert_eq!(shown(&well), WELL);
    assert_eq!(lab.answers("oslo", Some(&well), &None), None);
}

#[test]
fn the_text_of_an_outage_does_not_matter() {
    let mut lab = Lab::default();
    lab.gateway("a", "oslo", 0, true);
    let odd = BackendOutage { up: 1, of: 2, why: "the other reaches it".into(), denied: false };
    lab.backends("a", None, "oslo", Some(odd));
    let odd = lab.answers("oslo", None, &None).unwrap();
    lab.backends("a", None, "oslo", None);
    assert_eq!(shown(&lab.answers("oslo", Some(&odd), &None).unwrap()), WELL);
}

/// Row 24: `BackendsAnswer=False` of a gateway that no longer serves the service stayed for ever.
#[test]
fn the_condition_follows_the_gateway_that_is_responsible_now() {
    let mut lab = Lab::default();
    lab.gateway("a", "oslo", 2, true);
    lab.gateway("b", "oslo", 1, true);
    lab.gateway("r", "rome", 0, true);
    lab.backends("a", None, "oslo", Some(outage(0)));
    lab.backends("b", None, "oslo", None);
    let down = lab.answers("oslo", None, &None).unwrap();

    let moved = lab.answers("rome", Some(&down), &None).unwrap();
    assert_eq!((moved.status, moved.reason.as_str()), (ConditionStatus::Unknown, "NotReported"));
    assert!(moved.is_shown(Some(&condition(&moved))));
    lab.backends("r", None, "rome", None);
    assert_eq!(shown(&lab.answers("rome", Some(&moved), &None).unwrap()), WELL, "the service was moved");

    lab.gateway("a", "oslo", 2, false);
    assert_eq!(shown(&lab.answers("oslo", Some(&down), &None).unwrap()), WELL, "b took over");
    lab.gateway("b", "oslo", 1, false);
    assert_eq!(lab.answers("oslo", Some(&down), &None).as_ref(), Some(&down), "none is connected");
    lab.active.insert("oslo".into(), "b".into());
    assert_eq!(shown(&lab.answers("oslo", Some(&down), &None).unwrap()), WELL, "b was the active one last");
    lab.active.insert("oslo".into(), "a".into());
    lab.gateway("a", "rome", 9, true);
    assert_eq!(shown(&lab.answers("oslo", Some(&down), &None).unwrap()), WELL, "a was moved");
    assert_eq!(
        lab.answers("rome", Some(&down), &None).unwrap().reason,
        "NotReported",
        "a has not reported at rome"
    );
    lab.gateway("b", "oslo", 1, true);
    lab.objects.remove(causeway_api::Kind::EGateway, "a");
    assert_eq!(shown(&lab.answers("oslo", Some(&down), &None).unwrap()), WELL, "a was deleted");
}

#[test]
fn a_replica_takes_back_its_own_outage_only() {
    let mut lab = Lab::default();
    lab.backends(CLOUD, Some("x"), CLOUD, Some(outage(0)));
    let (both, only_y) = (labels(&["x", "y"]), labels(&["y"]));
    let down = lab.answers(CLOUD, None, &both).unwrap();
    assert!(down.message.starts_with("gateway cloud, replica x:1 reaches no backend; "), "{down:?}");
    lab.backends(CLOUD, Some("y"), CLOUD, None);
    assert_eq!(lab.answers(CLOUD, Some(&down), &both).as_ref(), Some(&down), "x goes on seeing it");
    assert_eq!(shown(&lab.answers(CLOUD, Some(&down), &only_y).unwrap()), WELL, "x is gone");
    lab.backends(CLOUD, Some("y"), CLOUD, Some(outage(0)));
    assert_eq!(lab.answers(CLOUD, Some(&down), &both).as_ref(), Some(&down), "x has said it already");
    let of_y = lab.answers(CLOUD, Some(&down), &only_y).unwrap();
    assert!(of_y.message.contains("replica y:1"), "x is gone, y still sees it");
    lab.backends(CLOUD, Some("y"), CLOUD, None);
    let older = ComputedCondition {
        message: "gateway cloud reaches no backend; 10.0.0.5:80: refused".into(),
        ..down.clone()
    };
    assert_eq!(
        shown(&lab.answers(CLOUD, Some(&older), &only_y).unwrap()),
        WELL,
        "of a version without records"
    );
    lab.backends(CLOUD, Some("x"), CLOUD, Some(outage(1)));
    lab.backends(CLOUD, Some("y"), CLOUD, Some(outage(0)));
    assert_eq!(lab.answers(CLOUD, None, &both).unwrap().reason, "BackendDown", "the worse one is told");
}

#[test]
fn replicas_say_together_what_each_cannot_do() {
    let mut lab = Lab::default();
    assert_eq!(lab.listens(&["aa", "bb"]), None);
    lab.listening("aa", &["cannot listen: port 53 | taken"]);
    let said = lab.listens(&["aa", "bb"]).unwrap();
    let of_a = "replica 10.0.0.1:7444 (aa): cannot listen: port 53 / taken";
    assert_eq!(shown(&said), (ConditionStatus::False, "NotListening", of_a));
    lab.listening("bb", &[]);
    assert_eq!(lab.listens(&["aa", "bb"]).unwrap(), said, "b is well, and leaves what a said");
    lab.listening("bb", &["no room"]);
    let two = lab.listens(&["aa", "bb"]).unwrap();
    assert_eq!(two.message, format!("{of_a} | replica [fd00::2]:7444 (bb): no room"));
    lab.listening("aa", &[]);
    assert_eq!(lab.listens(&["aa", "bb"]).unwrap().message, "replica [fd00::2]:7444 (bb): no room");
    let none = lab.listens(&["aa"]).unwrap();
    assert_eq!(shown(&none), (ConditionStatus::True, "Listening", ""), "b is gone");
    let older = Condition { reason: "NotListening".into(), message: "no room".into(), ..condition(&none) };
    assert!(!none.is_shown(Some(&older)), "the message of an older replica is written over");
}

#[test]
fn a_netmap_is_told_of_with_its_disk_once_that_failed() {
    let mut lab = Lab::default();
    let mut oslo = EGateway { metadata: ObjectMeta::named("oslo"), ..EGateway::default() };
    let report = |reason: &str, not_persisted: &str| Report::Netmap {
        reason: reason.into(),
        message: String::new(),
        not_persisted: not_persisted.into(),
    };
    lab.put("oslo", None, &report(IN_FORCE, ""));
    let computed = of_gateway(&oslo, &lab.table, &None);
    assert_eq!(computed.iter().map(shown).collect::<Vec<_>>(), [(ConditionStatus::True, IN_FORCE, "")]);
    lab.put("oslo", None, &report(IN_FORCE, "disk full"));
    let computed = of_gateway(&oslo, &lab.table, &None);
    assert_eq!(shown(&computed[1]), (ConditionStatus::False, "NotPersisted", "disk full"));
    oslo.status.conditions.extend(computed.iter().map(condition));
    lab.put("oslo", None, &report("Refused", ""));
    let computed = of_gateway(&oslo, &lab.table, &None);
    assert_eq!(shown(&computed[0]).0, ConditionStatus::False);
    assert_eq!(shown(&computed[1]), (ConditionStatus::True, "Persisted", ""));
}

#[test]
fn pods_that_would_not_survive_without_the_cloud_are_named() {
    let mut lab = Lab::default();
    let oslo = EGateway { metadata: ObjectMeta::named("oslo"), ..EGateway::default() };
    let report = |pods: Option<&[&str]>| Report::Offline {
        pods: pods.map(|pods| pods.iter().map(|pod| (*pod).to_owned()).collect()),
    };
    lab.put("oslo", None, &report(None));
    assert_eq!(
        of_gateway(&oslo, &lab.table, &None).len(),
        0,
        "an edge without the API has no such condition"
    );
    assert!(report(None).says_nothing() && !report(Some(&[])).says_nothing());
    lab.put("oslo", None, &report(Some(&["shop/a: no token", "shop/b: x"])));
    let computed = of_gateway(&oslo, &lab.table, &None);
    assert_eq!(computed[0].kind, READY_FOR_OFFLINE);
    assert_eq!(shown(&computed[0]), (ConditionStatus::False, "PodsAtRisk", "shop/a: no token; shop/b: x"));
    lab.put("oslo", None, &report(Some(&[])));
    assert_eq!(shown(&of_gateway(&oslo, &lab.table, &None)[0]), (ConditionStatus::True, "PodsCovered", ""));
}

#[test]
fn a_spent_byte_budget_is_a_condition() {
    let mut lab = Lab::default();
    let oslo = EGateway { metadata: ObjectMeta::named("oslo"), ..EGateway::default() };
    let report = |spent: Option<&str>| Report::Budget { spent: spent.map(str::to_owned) };
    lab.put("oslo", None, &report(None));
    assert_eq!(of_gateway(&oslo, &lab.table, &None).len(), 0, "an edge without a budget");
    assert!(report(None).says_nothing() && !report(Some("")).says_nothing());
    lab.put("oslo", None, &report(Some("it is spent")));
    let computed = of_gateway(&oslo, &lab.table, &None);
    assert_eq!(computed[0].kind, WITHIN_BYTE_BUDGET);
    assert_eq!(shown(&computed[0]), (ConditionStatus::False, "BudgetSpent", "it is spent"));
    lab.put("oslo", None, &report(Some("")));
    assert_eq!(shown(&of_gateway(&oslo, &lab.table, &None)[0]), (ConditionStatus::True, "WithinBudget", ""));
}

#[test]
fn a_tunnel_that_cannot_run_is_a_condition_until_it_runs() {
    let mut lab = Lab::default();
    lab.gateway("oslo", "oslo", 0, true);
    let tunnel = |reason: &str| Report::Tunnel { reason: reason.into(), message: "run as root".into() };
    let ready = |lab: &Lab| {
        let computed = of_gateway(lab.objects.gateway("oslo").unwrap(), &lab.table, &None);
        let found = computed.iter().find(|computed| computed.kind == TUNNEL_READY);
        found.map(|computed| (computed.status, computed.reason.clone()))
    };
    assert_eq!(ready(&lab), None, "no report");
    lab.put("oslo", None, &tunnel(""));
    assert_eq!(ready(&lab), None, "there never was a problem");
    lab.put("oslo", None, &tunnel("NoDevice"));
    assert_eq!(ready(&lab), Some((ConditionStatus::False, "NoDevice".into())));
    let mut gateway = lab.objects.gateway("oslo").unwrap().clone();
    let conditions = &mut gateway.status.conditions;
    let failed = ConditionStatus::False;
    causeway_api::meta::set_condition(
        conditions,
        TUNNEL_READY,
        failed,
        "NoDevice",
        "",
        Time::from_second(0),
        1,
    );
    lab.objects.insert(gateway.into());
    lab.put("oslo", None, &tunnel(""));
    assert_eq!(ready(&lab), Some((ConditionStatus::True, "TunnelReady".into())));
}
