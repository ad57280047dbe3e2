//! Writes the administrative audit of this replica to `admin.jsonl`, separate from the journals of traffic.
//!
//! Input: records of the API server and of the registry. Each successful write is one line. Lines that a
//! client without rights or a controller's loop can cause at will are coalesced, so that they cannot displace the actions of
//! administrators. `audit` reads the file.

use causeway_apiserver::{AdminAudit, AdminRecord};
use causeway_daemon::AuditLog;
use causeway_daemon::audit::Source;
use serde::Serialize;

/// The name of its files in DATA_DIR/audit.
pub const NAME: &str = "admin";

pub struct AdminJournal {
    log: AuditLog,
    replica: String,
}

#[derive(Serialize)]
struct Line<'a> {
    replica: &'a str,
    #[serde(flatten)]
    record: &'a AdminRecord,
}

impl AdminJournal {
    /// `replica` is in every line: each replica records the requests that it served itself.
    pub fn new(log: AuditLog, replica: String) -> AdminJournal {
        AdminJournal { log, replica }
    }
}

impl AdminAudit for AdminJournal {
    fn record(&self, record: AdminRecord) {
        let AdminRecord { user, verb, kind, name, dry_run, code, .. } = &record;
        tracing::info!(target: "audit", user, verb, kind, name, dry_run, code, "administrative act");
        let line = Line { replica: &self.replica, record: &record };
        // Controllers have no answer code; they have a table of their own, so that a client's flood does not hide them.
        let source = if code.is_none() { Source::Trusted } else { Source::Untrusted };
        match record.repeats_under() {
            Some(key) => self.log.record_repeating(source, key, &line),
            None => self.log.record(&line),
        }
    }
}
