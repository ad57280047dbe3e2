//! Readiness of this process, with the parts that are missing.
//!
//! Each part registers a check under its name and says how it is; `/readyz` here and on the API
//! port read the same values. A check that was never answered counts as not ready.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use causeway_api::sync::MutexExt;

/// All checks of one process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<Named>>>,
}

#[derive(Debug)]
struct Named {
    name: String,
    failure: Option<String>,
}

/// The handle of one part. When it is dropped, its check is gone.
#[derive(Debug)]
pub struct ReadinessCheck {
    name: String,
    readiness: Readiness,
}

/// The state of all checks at one moment: name, and why it is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadinessReport {
    pub checks: Vec<(String, Option<String>)>,
}

impl Readiness {
    pub fn new() -> Readiness {
        Readiness::default()
    }

    /// Adds a check, not ready until its owner says so. A second check under the same name replaces the first.
    pub fn register(&self, name: &str) -> ReadinessCheck {
        self.with(|checks| {
            checks.retain(|check| check.name != name);
            checks.push(Named { name: name.to_owned(), failure: Some("starting".to_owned()) });
        });
        ReadinessCheck { name: name.to_owned(), readiness: self.clone() }
    }

    pub fn report(&self) -> ReadinessReport {
        let checks = self
            .with(|checks| checks.iter().map(|check| (check.name.clone(), check.failure.clone())).collect());
        ReadinessReport { checks }
    }

    pub fn is_ready(&self) -> bool {
        self.with(|checks| checks.iter().all(|check| check.failure.is_none()))
    }

    fn with<T>(&self, read: impl FnOnce(&mut Vec<Named>) -> T) -> T {
        read(&mut self.checks.lock_ignoring_poison())
    }
}

impl ReadinessCheck {
    /// Returns true when this changes the state, so that the caller logs it once.
    pub fn ready(&self) -> bool {
        self.set(None)
    }

    /// As `ready`. A new reason for an old failure is no change.
    pub fn failing(&self, reason: impl Into<String>) -> bool {
        self.set(Some(reason.into()))
    }

    fn set(&self, failure: Option<String>) -> bool {
        self.readiness.with(|checks| {
            let Some(check) = checks.iter_mut().find(|check| check.name == self.name) else {
                return false;
            };
            let changed = check.failure.is_some() != failure.is_some();
            check.failure = failure;
            changed
        })
    }
}

impl Drop for ReadinessCheck {
    fn drop(&mut self) {
        self.readiness.with(|checks| checks.retain(|check| check.name != self.name));
    }
}

impl ReadinessReport {
    pub fn is_ready(&self) -> bool {
        self.checks.iter().all(|(_, failure)| failure.is_none())
    }

    /// The text of `/readyz`, in the form Kubernetes uses: all checks when asked for or failing.
    pub fn text(&self, endpoint: &str, verbose: bool) -> String {
        if self.is_ready() && !verbose {
            return "ok".to_owned();
        }
        let mut text = String::new();
        for (name, failure) in &self.checks {
            let _ = match failure {
                None => writeln!(text, "[+]{name} ok"),
                Some(reason) => writeln!(text, "[-]{name} failed: {reason}"),
            };
        }
        let _ = writeln!(text, "{endpoint} check {}", if self.is_ready() { "passed" } else { "failed" });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_part_is() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let store = readiness.register("store");
        let api = readiness.register("api");
        assert!(!readiness.is_ready());
        assert!(store.ready() && api.ready());
        assert!(readiness.is_ready());
        assert!(store.failing("disk is full") && !store.failing("disk is still full"));
        assert_eq!(
            readiness.report().text("readyz", false),
            "[-]store failed: disk is still full\n[+]api ok\nreadyz check failed\n"
        );
        drop(store);
        assert_eq!(readiness.report().text("readyz", false), "ok");
        assert_eq!(readiness.report().text("readyz", true), "[+]api ok\nreadyz check passed\n");
    }
}
