//! Which records are wanted. Comes from a URL, travels to the other replicas in the same form.

use std::time::{Duration, SystemTime};

use causeway_apiserver::request::query::Query as Pairs;

use super::line::Line;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// What ended before is left out.
    pub since: Option<SystemTime>,
    pub site: Option<String>,
    pub service: Option<String>,
    pub subject: Option<String>,
    pub gateway: Option<String>,
    pub decision: Option<String>,
    /// Only the newest so many.
    pub limit: Option<usize>,
    pub follow: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {allowed}")]
pub struct BadQuery {
    name: &'static str,
    value: String,
    allowed: &'static str,
}

/// So many records fit into memory without a thought.
const LIMIT_MAX: usize = 100_000;

impl Query {
    pub fn parse(text: Option<&str>) -> Result<Query, BadQuery> {
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
        Ok(Query {
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

    /// Is this one of them? Lines that tell of losses always are.
    pub fn wants(&self, line: &Line) -> bool {
        let is =
            |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        if !is(&self.gateway, Some(&line.gateway))
            || !is(&self.site, Some(&line.site))
            || self.is_before(line)
        {
            return false;
        }
        line.event.is_some()
            || (is(&self.service, line.service.as_deref())
                && is(&self.subject, line.subject.as_deref())
                && is(&self.decision, line.decision.as_deref()))
    }

    /// A record is told when what it is about has ended. One whose time cannot be read is shown rather than hidden.
    fn is_before(&self, line: &Line) -> bool {
        let ended = line.moment().map(|began| began + Duration::from_millis(line.duration_ms));
        self.since.zip(ended).is_some_and(|(since, ended)| ended < since)
    }
}

fn bad(name: &'static str, value: &str, allowed: &'static str) -> BadQuery {
    BadQuery { name, value: value.to_owned(), allowed }
}
