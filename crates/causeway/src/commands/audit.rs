//! `causeway audit`: who used what, by whose permission, and what was refused; with `--admin` who changed what.
//!
//! Lines come from the cloud one by one and are shown as they come; data on stdout, the counts at the end on stderr.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::bail;
use causeway_api::management::paths;
use serde_json::Value;

use crate::client::{self, ApiConnectionArgs};
use crate::duration::HumanDuration;
use crate::output::{self, cell};

const EXAMPLES: &str = "\
Examples:
  causeway audit --since 1h
  causeway audit --follow --decision deny
  causeway audit --service web --json | jq -r .subject | sort | uniq -c
  causeway audit --admin --since 1d --kind epolicy";

/// Show who used what, and what was refused: one line per connection or request, from each end; --admin: who changed what
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Go on with what happens now
    #[arg(long, short)]
    follow: bool,
    /// One JSON object per line, for scripts
    #[arg(long)]
    json: bool,
    /// Show administrative records instead: writes of objects, tokens, revocations, backups, CA rotations;
    /// requires the role admin
    #[arg(long, conflicts_with_all = ["site", "service", "subject", "decision", "gateway"])]
    admin: bool,
    /// With --admin: only records of this user, including impersonated ones
    #[arg(long, value_name = "NAME", requires = "admin")]
    user: Option<String>,
    /// With --admin: only this verb, for example create, delete, revoke, backup
    #[arg(long, value_name = "VERB", requires = "admin")]
    verb: Option<String>,
    /// With --admin: only this kind, for example EPolicy or JoinToken
    #[arg(long, value_name = "KIND", requires = "admin")]
    kind: Option<String>,
    /// With --admin: only the object of this name
    #[arg(long, value_name = "NAME", requires = "admin")]
    name: Option<String>,
    /// Only records that the cloud received within this time, for example 90s, 15m, 1h, 7d
    #[arg(long, value_name = "DURATION")]
    since: Option<HumanDuration>,
    /// Only records of the gateways of this site
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// Only this service, or node/NAME:PORT
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only on behalf of this EServer
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Only what was allowed or refused
    #[arg(long, value_name = "DECISION", value_parser = ["allow", "deny"])]
    decision: Option<String>,
    /// Only records of this gateway
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// Only the newest NUMBER records
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: Option<u32>,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let admin = arguments.admin;
    let journal = if admin { paths::ADMIN_AUDIT } else { paths::AUDIT };
    let path = format!("{journal}{}", query(&arguments, SystemTime::now()));
    let mut shown =
        Shown { admin, json: arguments.json, colours: output::colours(), has_head: false, summary: None };
    let lines = api.stream_lines(&path, client::JSON, |line| shown.take(line));
    // Following ends with Ctrl-C; the counts are printed then too.
    tokio::select! {
        ended = lines => ended?,
        _ = tokio::signal::ctrl_c() => {}
    }
    match (&shown.summary, arguments.follow) {
        (Some(summary), _) => output::note(&told(summary)),
        (None, true) => {}
        (None, false) => bail!("the answer broke off: there may be more records than these"),
    }
    Ok(ExitCode::SUCCESS)
}

fn query(arguments: &Args, now: SystemTime) -> String {
    let since = arguments.since.and_then(|span| now.checked_sub(span.0));
    let since = since.and_then(|since| jiff::Timestamp::try_from(since).ok()).map(|since| since.to_string());
    let limit = arguments.limit.map(|limit| limit.to_string());
    client::query(&[
        ("since", since.as_deref()),
        ("site", arguments.site.as_deref()),
        ("service", arguments.service.as_deref()),
        ("subject", arguments.subject.as_deref()),
        ("decision", arguments.decision.as_deref()),
        ("gateway", arguments.gateway.as_deref()),
        ("user", arguments.user.as_deref()),
        ("verb", arguments.verb.as_deref()),
        ("kind", arguments.kind.as_deref()),
        ("name", arguments.name.as_deref()),
        ("limit", limit.as_deref()),
        ("follow", arguments.follow.then_some("true")),
    ])
}

struct Shown {
    admin: bool,
    json: bool,
    colours: bool,
    has_head: bool,
    summary: Option<Value>,
}

impl Shown {
    fn take(&mut self, mut line: Value) -> anyhow::Result<bool> {
        if let Some(summary) = line.get_mut("summary") {
            self.summary = Some(summary.take());
            return Ok(true);
        }
        if self.json {
            output::print_line(&output::json_line(&line))?;
            return Ok(true);
        }
        let columns: &[(&str, usize)] = if self.admin { &ADMIN_COLUMNS } else { &COLUMNS };
        let widths: Vec<usize> = columns.iter().map(|(_, width)| *width).collect();
        if !self.has_head {
            self.has_head = true;
            let head: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
            output::print_line(&output::line(&head, &widths, |_| ""))?;
        }
        let colours = self.colours;
        let colour = |cell: &str| if colours { output::colour(cell) } else { "" };
        let cells = if self.admin { admin_row(&line).to_vec() } else { row(&line).to_vec() };
        output::print_line(&output::line(&cells, &widths, colour))?;
        Ok(true)
    }
}

/// As `COLUMNS`.
const ADMIN_COLUMNS: [(&str, usize); 7] =
    [("TIME", 23), ("USER", 24), ("VERB", 12), ("KIND", 16), ("NAME", 24), ("ANSWER", 14), ("CHANGED", 0)];

fn admin_row(record: &Value) -> [String; ADMIN_COLUMNS.len()] {
    let text = |key: &str| record[key].as_str().unwrap_or_default();
    let user = match text("impersonatedUser") {
        "" => text("user").to_owned(),
        other => format!("{} as {other}", text("user")),
    };
    let kind = match text("subresource") {
        "" => text("kind").to_owned(),
        subresource => format!("{}/{subresource}", text("kind")),
    };
    let code = record["code"].as_u64().map(|code| code.to_string()).unwrap_or_else(|| "-".to_owned());
    let dry_run = if record["dryRun"] == true { "dry run" } else { "" };
    let answer = [code.as_str(), dry_run].join(" ");
    let names = record["changed"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let changed = names.collect::<Vec<_>>().join(" ");
    let what = [&changed, text("detail"), text("reason"), &repeats(record)];
    let what = what.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("; ");
    let name = if text("name").is_empty() { "-" } else { text("name") };
    [
        moment(text("time")),
        user,
        text("verb").to_owned(),
        kind,
        name.to_owned(),
        answer.trim_end().to_owned(),
        if what.is_empty() { "-".to_owned() } else { what },
    ]
}

/// The extra columns of a record that stands for several.
fn repeats(record: &Value) -> String {
    let Some(count) = record["count"].as_u64() else { return String::new() };
    let first = moment(record["firstTime"].as_str().unwrap_or_default());
    let several = if record["mixed"] == true { " of several sources" } else { "" };
    format!("{count} times{several} since {first}")
}

fn moment(text: &str) -> String {
    text.trim_end_matches('Z').replace('T', " ")
}

/// Lines are shown as they come, so widths are chosen, not measured.
const COLUMNS: [(&str, usize); 10] = [
    ("TIME", 23),
    ("GATEWAY", 16),
    ("SUBJECT", 20),
    ("SERVICE", 20),
    ("DECISION", 8),
    ("BY", 20),
    ("WHAT", 24),
    ("SENT", 8),
    ("RECEIVED", 8),
    ("END", 0),
];

fn row(record: &Value) -> [String; COLUMNS.len()] {
    let text = |key: &str| record[key].as_str().unwrap_or_default();
    let time = moment(text("time"));
    let subject = [text("subject"), text("client")].into_iter().find(|word| !word.is_empty()).unwrap_or("?");
    // A name that only the other gateway vouches for is shown as what it is.
    let subject = match text("claimedSubject") {
        "" => subject.to_owned(),
        claimed => format!("{subject} (claims to be {claimed})"),
    };
    // The same address may belong to another host at this site.
    let subject = match text("clientSite") {
        site if site.is_empty() || site == text("site") => subject,
        site => format!("{subject} at {site}"),
    };
    let by = [text("rule"), text("reason")].into_iter().find(|word| !word.is_empty()).unwrap_or("-");
    let status = record["status"].as_u64().map(|status| status.to_string()).unwrap_or_default();
    let what = [text("protocol"), text("method"), text("path"), &status, text("clientId")];
    let what = what.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let milliseconds = record["durationMs"].as_u64().unwrap_or_default();
    let ended = format!("{} after {milliseconds} ms", text("end"));
    let ended =
        [ended, repeats(record)].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("; ");
    [
        time,
        cell(&record["gateway"]),
        subject,
        text("service").to_owned(),
        text("decision").to_owned(),
        by.to_owned(),
        what,
        super::status::size(record["sentBytes"].as_u64()),
        super::status::size(record["receivedBytes"].as_u64()),
        ended,
    ]
}

/// The counts, in one line.
fn told(summary: &Value) -> String {
    let number = |key: &str| summary[key].as_u64().unwrap_or_default();
    let mut text = format!("{} records, {} lost on the way", number("records"), number("lost"));
    if number("unreadable") > 0 {
        text.push_str(&format!(", {} unreadable", number("unreadable")));
    }
    if number("repeats") > 0 {
        text.push_str(&format!(", {} repeats dropped", number("repeats")));
    }
    if let (Some(last), Some(most)) = (summary["lagMs"].as_u64(), summary["lagMsMax"].as_u64()) {
        let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
        text.push_str(&format!(
            "; the last was delivered after {:.1} s, the slowest after {:.1} s",
            seconds(last),
            seconds(most)
        ));
    }
    if number("fromTheFuture") > 0 {
        text.push_str(&format!(
            "; {} end after they were received: the clock of their gateway is ahead",
            number("fromTheFuture")
        ));
    }
    let silent: Vec<String> = summary["silentReplicas"].as_array().into_iter().flatten().map(cell).collect();
    if !silent.is_empty() {
        text.push_str(&format!("; no answer from {}: their records are missing", silent.join(", ")));
    }
    output::plain(&text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_is_a_row_and_the_counts_are_a_sentence() {
        let mut record = json!({"time": "2026-11-16T00:00:01.000Z", "gateway": "gw", "site": "oslo", "subject": null,
            "client": "10.0.0.9:4", "service": "web", "protocol": "http", "decision": "deny", "rule": null,
            "reason": "no-policy", "method": "GET", "path": "/", "status": 403, "sentBytes": 10, "receivedBytes": 2048,
            "durationMs": 7, "end": "refused"});
        assert_eq!(
            row(&record).join("|"),
            "2026-11-16 00:00:01.000|gw|10.0.0.9:4|web|deny|no-policy|http GET / 403|10B|2.0KiB|refused after 7 ms"
        );
        record["clientSite"] = json!("oslo");
        assert_eq!(row(&record)[2], "10.0.0.9:4");
        record["clientSite"] = json!("rome");
        assert_eq!(row(&record)[2], "10.0.0.9:4 at rome");
        record["claimedSubject"] = json!("ghost");
        assert_eq!(row(&record)[2], "10.0.0.9:4 (claims to be ghost) at rome");
        record["count"] = json!(7);
        record["firstTime"] = json!("2026-11-16T00:00:00.500Z");
        assert_eq!(row(&record)[9], "refused after 7 ms; 7 times since 2026-11-16 00:00:00.500");
        record["clientId"] = json!("billing");
        assert_eq!(row(&record)[6], "http GET / 403 billing");
        let mut act = json!({"time": "2026-11-16T00:00:01.000Z", "user": "ann", "verb": "patch", "kind": "ESite",
            "name": "oslo", "changed": ["subnets", "metadata.labels.a"], "dryRun": false, "code": 200});
        assert_eq!(
            admin_row(&act).join("|"),
            "2026-11-16 00:00:01.000|ann|patch|ESite|oslo|200|subnets metadata.labels.a"
        );
        act["impersonatedUser"] = json!("bob");
        act["dryRun"] = json!(true);
        assert_eq!(
            (&admin_row(&act)[1], &admin_row(&act)[5]),
            (&"ann as bob".to_owned(), &"200 dry run".to_owned())
        );
        let summary = json!({"records": 3, "lost": 1, "repeats": 0, "lagMs": 200, "lagMsMax": 3_600_000, "silentReplicas": ["b"]});
        assert_eq!(
            told(&summary),
            "3 records, 1 lost on the way; the last was delivered after 0.2 s, the slowest after 3600.0 s; no answer from b: their records are missing"
        );
    }
}
