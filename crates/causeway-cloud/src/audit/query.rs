//! The query for audit records. Parsed from a URL and sent to the other replicas in the same form.

use std::time::SystemTime;

use causeway_apiserver::request::query::QueryParameters as Pairs;

use super::admin_line::AdminLine;
use super::line::AuditJournalLine;
use crate::admin_journal;

/// The kind of journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JournalKind {
    /// Connections and requests, allowed or refused.
    #[default]
    Traffic,
    /// Actions of administrators.
    Admin,
}

impl JournalKind {
    /// The name of its files, without number and ending.
    pub fn file_name(self) -> &'static str {
        match self {
            JournalKind::Traffic => "fleet",
            JournalKind::Admin => admin_journal::NAME,
        }
    }

    pub fn parse(self, text: &[u8]) -> Option<Entry> {
        match self {
            JournalKind::Traffic => AuditJournalLine::parse(text).map(Entry::Traffic),
            JournalKind::Admin => AdminLine::parse(text).map(Entry::Admin),
        }
    }
}

/// One line of a journal. All lines of an answer are of one kind, so the larger one wastes nothing.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)]
pub enum Entry {
    Traffic(AuditJournalLine),
    Admin(AdminLine),
}

impl Entry {
    /// Journals are in the order of this, and are joined by it: the time of receipt, then that of the record itself.
    pub fn order(&self) -> (&str, &str) {
        match self {
            Entry::Traffic(line) => (line.order(), &line.time),
            Entry::Admin(line) => (line.time(), line.time()),
        }
    }

    /// Tells of losses instead of being a record.
    pub fn is_event(&self) -> bool {
        match self {
            Entry::Traffic(line) => line.event.is_some(),
            Entry::Admin(line) => line.event().is_some(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    pub journal: JournalKind,
    /// Records that the cloud received earlier are left out.
    pub since: Option<SystemTime>,
    pub site: Option<String>,
    pub service: Option<String>,
    pub subject: Option<String>,
    pub gateway: Option<String>,
    pub decision: Option<String>,
    pub user: Option<String>,
    pub verb: Option<String>,
    pub kind: Option<String>,
    pub name: Option<String>,
    /// Only this number of the newest records.
    pub limit: Option<usize>,
    pub follow: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {allowed}")]
pub struct AuditQueryError {
    name: &'static str,
    value: String,
    allowed: &'static str,
}

/// This number of records fits into memory.
const LIMIT_MAX: usize = 100_000;

impl AuditQuery {
    pub fn parse(journal: JournalKind, text: Option<&str>) -> Result<AuditQuery, AuditQueryError> {
        let pairs = Pairs::parse(text);
        let text = |name: &str| pairs.one(name).map(str::to_owned);
        let since = pairs.one("since").map(|value| {
            let moment: Option<jiff::Timestamp> = value.parse().ok();
            moment.map(SystemTime::from).ok_or_else(|| bad("since", value, "write a moment as RFC 3339"))
        });
        let limit = pairs.one("limit").map(|value| {
            let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
            limit.ok_or_else(|| bad("limit", value, "write a number from 1 to 100000"))
        });
        let decision = text("decision");
        if let Some(other) = decision.as_deref().filter(|word| !matches!(*word, "allow" | "deny")) {
            return Err(bad("decision", other, "write allow or deny"));
        }
        Ok(AuditQuery {
            journal,
            user: text("user"),
            verb: text("verb"),
            kind: text("kind"),
            name: text("name"),
            since: since.transpose()?,
            site: text("site"),
            service: text("service"),
            subject: text("subject"),
            gateway: text("gateway"),
            decision,
            limit: limit.transpose()?,
            follow: pairs.flag("follow").unwrap_or(false),
        })
    }

    /// Returns true if the record matches the filter. Lines that report losses always match.
    pub fn wants(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Traffic(line) => self.wants_traffic(line),
            Entry::Admin(line) => self.wants_admin(line),
        }
    }

    fn wants_traffic(&self, line: &AuditJournalLine) -> bool {
        if !is(&self.gateway, Some(&line.gateway))
            || !is(&self.site, Some(&line.site))
            || self.is_before(line.known_since())
        {
            return false;
        }
        line.event.is_some()
            || (is(&self.service, line.service.as_deref())
                && is(&self.subject, line.subject.as_deref())
                && is(&self.decision, line.decision.as_deref()))
    }

    fn wants_admin(&self, line: &AdminLine) -> bool {
        let time: Option<jiff::Timestamp> = line.time().parse().ok();
        if self.is_before(time.map(SystemTime::from)) {
            return false;
        }
        let by = |user: &String| [line.text("user"), line.text("impersonatedUser")].contains(&user.as_str());
        let has_kind = |kind: &String| line.text("kind").eq_ignore_ascii_case(kind);
        line.event().is_some()
            || (self.user.as_ref().is_none_or(by)
                && self.kind.as_ref().is_none_or(has_kind)
                && is(&self.verb, Some(line.text("verb")))
                && is(&self.name, Some(line.text("name"))))
    }

    /// By the cloud's own clock: a record that is dated back is shown all the same. One without a time that can be read is
    /// shown rather than hidden.
    fn is_before(&self, known_since: Option<SystemTime>) -> bool {
        self.since.zip(known_since).is_some_and(|(since, known)| known < since)
    }
}

fn is(wanted: &Option<String>, found: Option<&str>) -> bool {
    wanted.is_none() || wanted.as_deref() == found
}

fn bad(name: &'static str, value: &str, allowed: &'static str) -> AuditQueryError {
    AuditQueryError { name, value: value.to_owned(), allowed }
}
