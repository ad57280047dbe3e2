//! Collects the findings about one object and summarises them.

use crate::conditions::READY;
use crate::kinds::Kind;
use crate::meta::{Condition, ConditionStatus, set_condition};
use crate::object::Resource;
use crate::time::Time;

// A message is read by an operator; names beyond this number are only counted.
const LISTED_MAX: usize = 100;

pub(super) struct Findings {
    conditions: Vec<Condition>,
    /// Reason and message of every failed finding.
    failed: Vec<(String, String)>,
    now: Time,
    generation: i64,
    #[cfg(test)]
    kind: Kind,
}

impl Findings {
    /// Starts from the current conditions of the object, so that times and foreign conditions stay.
    pub(super) fn of<R: Resource>(object: &R, now: Time) -> Findings {
        Findings {
            conditions: object.status().conditions.clone(),
            failed: Vec::new(),
            now,
            generation: object.metadata().generation,
            #[cfg(test)]
            kind: R::KIND,
        }
    }

    pub(super) fn holds(&mut self, about: &str, reason: &str) {
        self.find(about, ConditionStatus::True, reason, String::new());
    }

    pub(super) fn fails(&mut self, about: &str, reason: &str, message: impl Into<String>) {
        let message = message.into();
        self.failed.push((reason.into(), message.clone()));
        self.find(about, ConditionStatus::False, reason, message);
    }

    /// Records a condition that holds, with a message.
    pub(super) fn holds_with_message(&mut self, about: &str, reason: &str, message: impl Into<String>) {
        self.find(about, ConditionStatus::True, reason, message.into());
    }

    /// Records a condition that does not hold and does not count for `Ready`: another finding has reported
    /// it, or it changes with the links.
    pub(super) fn set_false_without_ready(&mut self, about: &str, reason: &str, message: impl Into<String>) {
        self.find(about, ConditionStatus::False, reason, message.into());
    }

    /// Removes a condition that does not apply to the object any more.
    pub(super) fn remove_condition(&mut self, about: &str) {
        self.conditions.retain(|condition| condition.kind != about);
    }

    /// Counts a failed condition that is written elsewhere for `Ready`.
    pub(super) fn fails_ready(&mut self, reason: &str, message: &str) {
        self.failed.push((reason.into(), message.into()));
    }

    /// Copies a condition of another object; it does not count for `Ready`.
    pub(super) fn copies(&mut self, condition: &Condition) {
        self.set(&condition.kind, condition.status, &condition.reason, condition.message.clone());
    }

    /// Returns all conditions; `Ready` has the first reason and every message.
    pub(super) fn summary(mut self) -> Vec<Condition> {
        let reason = self.failed.first().map_or("AllResolved", |(reason, _)| reason).to_string();
        let messages: Vec<&str> = self.failed.iter().map(|(_, message)| message.as_str()).collect();
        let message = messages.join("; ");
        self.set(READY, self.failed.is_empty().into(), &reason, message);
        self.conditions
    }

    /// Records a finding of this crate, which `docs/conditions.md` must list.
    fn find(&mut self, about: &str, status: ConditionStatus, reason: &str, message: String) {
        #[cfg(test)]
        {
            let is_listed = super::catalog::is_listed(self.kind, about, status, reason);
            assert!(is_listed, "{} {about} {reason}", self.kind);
        }
        self.set(about, status, reason, message);
    }

    fn set(&mut self, about: &str, status: ConditionStatus, reason: &str, message: String) {
        let message = bounded(message);
        set_condition(&mut self.conditions, about, status, reason, message, self.now, self.generation);
    }
}

/// "EPolicy Policy2 does not exist", or all the names.
pub(super) fn missing(kind: Kind, names: &[&str]) -> String {
    let verb = if names.len() == 1 { "does" } else { "do" };
    format!("{kind} {} {verb} not exist", list(names))
}

pub(super) fn list(names: &[&str]) -> String {
    match names.len().checked_sub(LISTED_MAX) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..LISTED_MAX].join(", ")),
    }
}

// Validation allows 32 KiB for the message of a condition; a hundred names of 253 characters come close.
fn bounded(mut message: String) -> String {
    const BYTES_MAX: usize = 30 * 1024;
    if message.len() > BYTES_MAX {
        let end = (0..=BYTES_MAX).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}
