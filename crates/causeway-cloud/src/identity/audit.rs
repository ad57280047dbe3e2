//! Writes one line for each change of a credential to the log and to the audit log.
//!
//! Lines that peers can cause at will (sessions, enrolments, refused credentials) are coalesced by peer and reason; an IPv6
//! network of 64 bits counts as one client. Actions of administrators are always written.

use std::net::{IpAddr, SocketAddr};

use causeway_daemon::audit::Source;
use serde::Serialize;

use super::registrar::Registrar;

/// One line of the audit log. Empty fields are left out.
#[derive(Debug, Default, Serialize)]
pub(super) struct AuditLine<'a> {
    pub event: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub site: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub gateway: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subject: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub key: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub client: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub decision: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'a str,
}

impl Registrar {
    pub(super) fn audit(&self, line: &AuditLine<'_>) {
        let given = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
        tracing::info!(
            event = line.event,
            site = given(line.site),
            gateway = given(line.gateway),
            subject = given(line.subject),
            key = given(line.key),
            client = given(line.client),
            decision = given(line.decision),
            reason = given(line.reason),
            "identity"
        );
        let Some(audit) = &self.config.audit else { return };
        match line.repeats_under() {
            Some((source, key)) => audit.record_repeating(source, key, line),
            None => audit.record(line),
        }
    }
}

impl AuditLine<'_> {
    /// Lines without a decision are acts of administrators.
    fn repeats_under(&self) -> Option<(Source, String)> {
        let (source, client) = match self.decision {
            "" => return None,
            "allow" => (Source::Trusted, String::new()),
            _ => (Source::Untrusted, network(self.client)),
        };
        let Self { event, gateway, subject, decision, reason, .. } = self;
        Some((source, [event, gateway, subject, decision, reason, client.as_str()].join("\n")))
    }
}

/// The client's address without its port.
fn network(client: &str) -> String {
    let ip = client.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| client.parse::<IpAddr>());
    match ip.map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V6(ip)) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        Ok(ip) => ip.to_string(),
        Err(_) => client.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_alike_by_who_and_why_and_acts_of_administrators_are_never() {
        let line = |event, client, decision, reason| AuditLine {
            event,
            client,
            decision,
            reason,
            ..AuditLine::default()
        };
        let key = |line: AuditLine<'_>| line.repeats_under();
        let refused = key(line("enrol", "10.0.0.1:1000", "deny", "unknown token"));
        assert_eq!(
            refused,
            key(line("enrol", "10.0.0.1:2000", "deny", "unknown token")),
            "the port says nothing"
        );
        assert_ne!(refused, key(line("enrol", "10.0.0.2:1000", "deny", "unknown token")));
        assert_ne!(refused, key(line("enrol", "10.0.0.1:1000", "deny", "expired")));
        assert_eq!(
            key(line("enrol", "[2001:db8::1]:5", "deny", "x")),
            key(line("enrol", "[2001:db8::2:3:4:5]:6", "deny", "x")),
            "a host chooses the rest of its address"
        );
        assert_eq!(refused.map(|(source, _)| source), Some(Source::Untrusted));
        assert_eq!(
            key(line("session", "10.0.0.1", "allow", "")).map(|(source, _)| source),
            Some(Source::Trusted)
        );
        assert_eq!(key(line("revoked", "", "", "")), None);
    }
}
