//! Reports of gateways as records in the store, and the table of all of them.
//!
//! `reports/GATEWAY/REPLICA/SUBJECT` holds the last report of one gateway on one subject. REPLICA is the id
//! of the replica for the gateway of the cloud, of which every replica runs one, and `-` for every other
//! gateway. Pure: records go in, lookups come out. Each record is bounded, and a gateway has one record per
//! subject.

use std::collections::BTreeMap;

use causeway_gateway::problems::{BackendOutage, Problems};
use causeway_store::Revision;
use serde::{Deserialize, Serialize};

pub const REPORTS: &str = "reports/";
/// Stands for the replica in the key of a gateway that has no replicas.
const NO_REPLICA: &str = "-";
/// An edge sends eight problems and their number at most.
const PROBLEMS_MAX: usize = 16;
/// An edge sends as many outages at most; see `causeway_gateway::problems`.
const SERVICES_MAX: usize = 100;
/// Longest text of one problem or outage. A report comes from an edge, and its text ends up in a condition.
const TEXT_CHARS_MAX: usize = 500;
/// Longest reason of a problem: one word.
const REASON_BYTES_MAX: usize = 64;

/// The gateway that reports; for the gateway of the cloud also the id of the replica.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reporter {
    pub gateway: String,
    pub replica: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReportSubject {
    Listening,
    Backends,
    Netmap,
    Tunnel,
    Offline,
    Budget,
}

/// The report of a gateway on one subject.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "subject", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Report {
    /// Listeners that are not open, and other problems of the gateway itself. Empty: there are none.
    Listening { problems: Vec<String> },
    /// Services whose backends do not all answer, and the site that the certificate of the gateway names.
    Backends { site: String, services: BTreeMap<String, BackendOutage> },
    /// Says if the netmap is applied, and if not, why. `not_persisted` is empty when it is on the gateway's
    /// disk.
    Netmap { reason: String, message: String, not_persisted: String },
    /// The reason for which the tunnel does not run. `reason` is empty when it runs or is not needed.
    Tunnel { reason: String, message: String },
    /// Pods that would not survive a restart of their node without the cloud. None: the edge serves no Kubernetes API.
    Offline { pods: Option<Vec<String>> },
    /// The byte budget of the Kubernetes API at the edge. Empty: it lasts. None: there is no budget.
    Budget { spent: Option<String> },
}

impl ReportSubject {
    fn as_str(self) -> &'static str {
        match self {
            ReportSubject::Listening => "listening",
            ReportSubject::Backends => "backends",
            ReportSubject::Netmap => "netmap",
            ReportSubject::Tunnel => "tunnel",
            ReportSubject::Offline => "offline",
            ReportSubject::Budget => "budget",
        }
    }
}

impl Report {
    pub fn subject(&self) -> ReportSubject {
        match self {
            Report::Listening { .. } => ReportSubject::Listening,
            Report::Backends { .. } => ReportSubject::Backends,
            Report::Netmap { .. } => ReportSubject::Netmap,
            Report::Tunnel { .. } => ReportSubject::Tunnel,
            Report::Offline { .. } => ReportSubject::Offline,
            Report::Budget { .. } => ReportSubject::Budget,
        }
    }

    /// Tells whether the report says no more than no report would. Such a first report is not stored: most gateways never
    /// have a problem with their tunnel, or no Kubernetes API.
    pub fn says_nothing(&self) -> bool {
        match self {
            Report::Tunnel { reason, .. } => reason.is_empty(),
            Report::Offline { pods } => pods.is_none(),
            Report::Budget { spent } => spent.is_none(),
            Report::Listening { .. } | Report::Backends { .. } | Report::Netmap { .. } => false,
        }
    }

    /// Splits the problems of a gateway at `site` into its reports, within the bounds of a record.
    pub fn of_problems(site: &str, told: Problems) -> [Report; 5] {
        let problems = told.gateway.iter().take(PROBLEMS_MAX).map(|problem| bounded(problem)).collect();
        let bounded_outage = |(service, outage): (String, BackendOutage)| {
            let why = bounded(&outage.why);
            (service, BackendOutage { why, ..outage })
        };
        let services = told.backends.into_iter().take(SERVICES_MAX).map(bounded_outage).collect();
        let pods = told.offline.map(|pods| pods.iter().take(PROBLEMS_MAX).map(|pod| bounded(pod)).collect());
        let tunnel = told.tunnel.unwrap_or_default();
        // A reason becomes the reason of a condition, whose form the API prescribes.
        let is_word = |reason: &String| {
            reason.len() <= REASON_BYTES_MAX && reason.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let reason = Some(tunnel.reason).filter(is_word).unwrap_or_else(|| "TunnelFailed".to_owned());
        [
            Report::Listening { problems },
            Report::Backends { site: site.to_owned(), services },
            Report::Tunnel { reason, message: bounded(&tunnel.message) },
            Report::Offline { pods },
            Report::Budget { spent: told.budget.map(|spent| bounded(&spent)) },
        ]
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT_CHARS_MAX).collect()
}

/// Returns the key of a report in the store.
pub fn report_key(reporter: &Reporter, subject: ReportSubject) -> String {
    let replica = reporter.replica.as_deref().unwrap_or(NO_REPLICA);
    format!("{REPORTS}{}/{replica}/{}", reporter.gateway, subject.as_str())
}

/// Returns the reporter that a key names. None: the key is not one of a report.
fn reporter_of(key: &str) -> Option<Reporter> {
    let mut parts = key.strip_prefix(REPORTS)?.split('/');
    let (gateway, replica) = (parts.next()?, parts.next()?);
    let replica = (replica != NO_REPLICA).then(|| replica.to_owned());
    Some(Reporter { gateway: gateway.to_owned(), replica })
}

/// All reports, as the store holds them.
#[derive(Default, Debug)]
pub struct ReportTable {
    records: BTreeMap<Reporter, BTreeMap<ReportSubject, (Report, Revision)>>,
}

impl ReportTable {
    /// Takes in one record of the store. Returns the gateway that it is about, when something changed.
    /// `value` is None when the record was deleted. An event that is older than what the table holds changes
    /// nothing.
    pub fn handle_record(&mut self, key: &str, value: Option<&[u8]>, revision: Revision) -> Option<String> {
        let reporter = reporter_of(key)?;
        let gateway = reporter.gateway.clone();
        let Some(value) = value else {
            return self.handle_deleted(key, &reporter, revision).then_some(gateway);
        };
        // A record that cannot be read, as of a newer version, is left alone.
        let report: Report = serde_json::from_slice(value).ok()?;
        if report_key(&reporter, report.subject()) != key {
            return None;
        }
        let reports = self.records.entry(reporter).or_default();
        if reports.get(&report.subject()).is_some_and(|(_, known)| *known >= revision) {
            return None;
        }
        let before = reports.insert(report.subject(), (report.clone(), revision));
        before.is_none_or(|(before, _)| before != report).then_some(gateway)
    }

    fn handle_deleted(&mut self, key: &str, reporter: &Reporter, revision: Revision) -> bool {
        let Some(reports) = self.records.get_mut(reporter) else { return false };
        let before = reports.len();
        reports.retain(|subject, (_, known)| report_key(reporter, *subject) != key || *known > revision);
        let is_changed = reports.len() < before;
        if reports.is_empty() {
            self.records.remove(reporter);
        }
        is_changed
    }

    /// Replaces everything. Used after the watch on the store broke.
    pub fn reset<'a>(&mut self, records: impl Iterator<Item = (&'a str, &'a [u8], Revision)>) {
        self.records.clear();
        for (key, value, revision) in records {
            self.handle_record(key, Some(value), revision);
        }
    }

    pub fn get(&self, reporter: &Reporter, subject: ReportSubject) -> Option<&Report> {
        self.records.get(reporter)?.get(&subject).map(|(report, _)| report)
    }

    /// Returns the reports of a gateway on a subject, with the replica that each comes from.
    pub fn of_gateway(
        &self,
        gateway: &str,
        subject: ReportSubject,
    ) -> impl Iterator<Item = (Option<&str>, &Report)> {
        let first = Reporter { gateway: gateway.to_owned(), replica: None };
        let of_gateway = self.records.range(first..).take_while(move |(found, _)| found.gateway == gateway);
        of_gateway.filter_map(move |(found, reports)| {
            reports.get(&subject).map(|(report, _)| (found.replica.as_deref(), report))
        })
    }

    /// Returns every reporter, with the keys of its records and their revisions.
    pub fn reporters(&self) -> impl Iterator<Item = (&Reporter, Vec<(String, Revision)>)> {
        self.records.iter().map(|(reporter, reports)| {
            let keys =
                reports.iter().map(|(subject, (_, revision))| (report_key(reporter, *subject), *revision));
            (reporter, keys.collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use causeway_gateway::problems::TunnelProblem;

    use super::*;

    fn put(table: &mut ReportTable, reporter: &Reporter, report: &Report, revision: u64) -> Option<String> {
        let value = serde_json::to_vec(report).unwrap();
        let key = report_key(reporter, report.subject());
        table.handle_record(&key, Some(&value), Revision(revision))
    }

    #[test]
    fn the_last_report_of_each_subject_is_kept() {
        let mut table = ReportTable::default();
        let oslo = Reporter { gateway: "oslo".into(), replica: None };
        let listening = |problem: &str| Report::Listening { problems: vec![problem.into()] };
        assert_eq!(report_key(&oslo, ReportSubject::Listening), "reports/oslo/-/listening");
        assert_eq!(put(&mut table, &oslo, &listening("a"), 5).as_deref(), Some("oslo"));
        assert_eq!(put(&mut table, &oslo, &listening("b"), 4), None, "an older event");
        assert_eq!(put(&mut table, &oslo, &listening("a"), 6), None, "the same again");
        assert_eq!(table.get(&oslo, ReportSubject::Listening), Some(&listening("a")));
        let cloud = |replica: &str| Reporter { gateway: "cloud".into(), replica: Some(replica.into()) };
        put(&mut table, &cloud("x"), &listening("x"), 7);
        put(&mut table, &cloud("y"), &listening("y"), 8);
        let of_cloud: Vec<_> = table.of_gateway("cloud", ReportSubject::Listening).collect();
        assert_eq!(of_cloud, [(Some("x"), &listening("x")), (Some("y"), &listening("y"))]);
        assert_eq!(
            table.handle_record("reports/oslo/-/listening", None, Revision(5)),
            None,
            "an older event"
        );
        let gone = table.handle_record("reports/oslo/-/listening", None, Revision(9));
        assert_eq!((gone.as_deref(), table.reporters().count()), (Some("oslo"), 2));
        assert_eq!(table.handle_record("reports/oslo/-/weather", Some(b"{}"), Revision(10)), None);
    }

    #[test]
    fn a_report_is_bounded() {
        let outage = BackendOutage { why: "x".repeat(10_000), ..BackendOutage::default() };
        let backends = (0..1000).map(|number| (format!("s{number}"), outage.clone())).collect();
        let tunnel = TunnelProblem { reason: "a b".into(), message: "z".repeat(10_000) };
        let told = Problems {
            gateway: vec!["y\n".repeat(10_000); 100],
            backends,
            tunnel: Some(tunnel),
            offline: Some(vec!["z".repeat(10_000); 1_000]),
            budget: Some("z".repeat(10_000)),
        };
        let [listening, backends, tunnel, offline, budget] = Report::of_problems("oslo", told);
        let expected = Report::Tunnel { reason: "TunnelFailed".into(), message: "z".repeat(TEXT_CHARS_MAX) };
        assert_eq!(tunnel, expected);
        let size = |report: &Report| serde_json::to_vec(report).unwrap().len();
        assert!(size(&offline) < 10_000, "{}", size(&offline));
        assert!(size(&budget) < 10_000, "{}", size(&budget));
        assert!(size(&listening) < 10_000 && size(&backends) < 80_000, "{}", size(&backends));
        assert!(!serde_json::to_string(&listening).unwrap().contains("\\n"));
    }
}
