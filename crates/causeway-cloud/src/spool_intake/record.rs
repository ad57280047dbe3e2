//! The fields that an edge may set in an audit record: the strict form between the link and the journal. Pure.
//!
//! Everything has a type and a bound. Fields that are not known here (of a newer edge) are left out. The cloud's own words
//! (`event`, `lost`, `gateway`, `site`, `received`, `queue`, `seq`) are none of them: `lines` sets those.

use serde::{Deserialize, Deserializer, Serialize};

/// Longer than any name; a path of a request is cut to it, too.
const TEXT_CHARS_MAX: usize = 1024;
/// The one thing an edge tells that is no record: that it started.
const STARTED: &str = "edge-started";

/// A record of a connection or request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeRecord {
    pub time: Option<Text>,
    client_site: Option<Text>,
    subject: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_subject: Option<Text>,
    client: Option<Text>,
    service: Option<Text>,
    protocol: Option<Text>,
    decision: Option<Decision>,
    rule: Option<Text>,
    reason: Option<Text>,
    method: Option<Text>,
    path: Option<Text>,
    status: Option<u16>,
    client_id: Option<Text>,
    sent_bytes: u64,
    received_bytes: u64,
    /// Of a flow at layer 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    duration_ms: u64,
    end: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_time: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_time: Option<Text>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    mixed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decision {
    Allow,
    Deny,
}

/// A string of bounded length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        let mut text = String::deserialize(deserializer)?;
        if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
            text.truncate(end);
            text.push('…');
        }
        Ok(Text(text))
    }
}

/// A record of an edge.
#[derive(Debug, Clone, PartialEq)]
pub enum ParsedLine {
    Record(Box<EdgeRecord>),
    Started {
        time: Option<Text>,
        software: Text,
    },
    /// Nothing an edge of ours says.
    Unreadable,
}

pub fn read(content: &[u8]) -> ParsedLine {
    #[derive(Deserialize)]
    struct Event {
        event: Option<String>,
        #[serde(default)]
        time: Option<Text>,
        #[serde(default)]
        software: Option<Text>,
    }
    let Ok(event) = serde_json::from_slice::<Event>(content) else { return ParsedLine::Unreadable };
    match event.event.as_deref() {
        None => {}
        Some(STARTED) => {
            let software = event.software.unwrap_or(Text(String::new()));
            return ParsedLine::Started { time: event.time.filter(is_moment), software };
        }
        // The words of the cloud's own lines.
        Some(_) => return ParsedLine::Unreadable,
    }
    match serde_json::from_slice::<EdgeRecord>(content) {
        Ok(record) => {
            let time = record.time.clone().filter(is_moment);
            ParsedLine::Record(Box::new(EdgeRecord { time, ..record }))
        }
        Err(_) => ParsedLine::Unreadable,
    }
}

fn is_moment(text: &Text) -> bool {
    text.0.parse::<jiff::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_edge_says_what_it_may_and_nothing_else() {
        let check = |said: Value, expected: Option<Value>| {
            let found = match read(said.to_string().as_bytes()) {
                ParsedLine::Record(record) => Some(serde_json::to_value(record).unwrap()),
                ParsedLine::Started { software, .. } => Some(json!(software.0)),
                ParsedLine::Unreadable => None,
            };
            match (&expected, &found) {
                (Some(Value::Object(expected)), Some(found)) => {
                    expected.iter().for_each(|(key, value)| assert_eq!(&found[key], value, "{said}"));
                }
                _ => assert_eq!(found, expected, "{said}"),
            }
        };
        let forged = json!({"lost": 7, "gateway": "cloud", "site": "cloud", "received": "1999-01-01T00:00:00Z",
            "receivedTime": "x", "queue": "q", "seq": 1, "surprise": 1, "service": "web", "decision": "deny"});
        check(forged.clone(), Some(json!({"service": "web", "decision": "deny"})));
        let ParsedLine::Record(record) = read(forged.to_string().as_bytes()) else { panic!("a record") };
        let written = serde_json::to_value(record).unwrap();
        for word in
            ["event", "lost", "gateway", "site", "received", "receivedTime", "queue", "seq", "surprise"]
        {
            assert_eq!(written.get(word), None, "{word} is the cloud's word, or nobody's");
        }
        check(json!({"event": "edge-records-lost", "lost": 7}), None);
        check(json!({"event": "replica-silent", "gateway": "x"}), None);
        check(json!({"event": "edge-started", "software": "1.0", "lost": 3}), Some(json!("1.0")));
        check(json!({"decision": "maybe"}), None);
        check(json!({"sentBytes": -1}), None);
        check(json!({"subject": {"a": 1}}), None);
        check(json!([1]), None);
        check(
            json!({"protocol": "icmp", "packets": 3, "sentBytes": 252}),
            Some(json!({"packets": 3, "sentBytes": 252})),
        );
        check(json!({"time": "yesterday", "subject": "s"}), Some(json!({"time": null, "subject": "s"})));
        check(json!({"count": 9, "firstTime": "a", "mixed": true}), Some(json!({"count": 9, "mixed": true})));
        let long = "ü".repeat(5000);
        let cut = format!("{}…", "ü".repeat(TEXT_CHARS_MAX));
        check(json!({"path": long}), Some(json!({"path": cut})));
    }
}
