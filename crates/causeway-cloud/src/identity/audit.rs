//! One line for everything that changes who is believed, in the log and in the audit log.

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
        if let Some(audit) = &self.config.audit {
            audit.record(line);
        }
    }
}
