//! One finding of the doctor: the hop it is about, how it is, why, and what to do.

use serde::Serialize;

use crate::output;

/// The state of a hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Works, but not as well as it could, or keeps some clients away.
    Warning,
    Failed,
    /// No gateway could be asked, or the caller may not ask.
    Unknown,
}

impl State {
    fn mark(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warning => "~~",
            State::Failed => "!!",
            State::Unknown => "??",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// As in `gateway oslo` or `service web`.
    pub hop: String,
    pub state: State,
    pub reason: String,
    /// The action that fixes it. Empty: none.
    pub fix: String,
}

impl Finding {
    pub fn ok(hop: impl Into<String>, reason: impl Into<String>) -> Finding {
        Finding { hop: hop.into(), state: State::Ok, reason: reason.into(), fix: String::new() }
    }

    pub fn failed(hop: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { hop: hop.into(), state: State::Failed, reason: reason.into(), fix: fix.into() }
    }

    pub fn warning(hop: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { state: State::Warning, ..Finding::failed(hop, reason, fix) }
    }

    pub fn unknown(hop: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { state: State::Unknown, ..Finding::failed(hop, reason, fix) }
    }

    /// A sentence of a gateway, which may hold its remedy behind `fix:` or as a command.
    pub fn told(state: State, hop: impl Into<String>, sentence: &str) -> Finding {
        let split =
            sentence.split_once("; fix: ").map(|(reason, fix)| (reason, fix.to_owned())).or_else(|| {
                sentence.split_once(": sysctl ").map(|(reason, rest)| (reason, format!("sysctl {rest}")))
            });
        let (reason, fix) = split.unwrap_or((sentence, String::new()));
        Finding { hop: hop.into(), state, reason: reason.to_owned(), fix }
    }

    /// One line, and a second one with the fix. Names and messages come from the server and are escaped.
    pub fn text(&self) -> String {
        let line = output::plain(&format!("{}  {}: {}", self.state.mark(), self.hop, self.reason));
        match self.fix.is_empty() {
            true => line,
            false => format!("{line}\n      fix: {}", output::plain(&self.fix)),
        }
    }
}

/// Returns true if a hop fails.
pub fn is_broken(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.state == State::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_with_its_remedy_below() {
        let failed = Finding::failed("gateway oslo", "away\u{1b}[2J", "start it");
        assert_eq!(failed.text(), "!!  gateway oslo: away\\u{1b}[2J\n      fix: start it");
        assert_eq!(Finding::ok("API", "it answers").text(), "ok  API: it answers");
        let told = |sentence| Finding::told(State::Warning, "x", sentence).fix;
        assert_eq!(told("it is hidden; fix: ip route del 10.0.0.0/8"), "ip route del 10.0.0.0/8");
        assert_eq!(told("it does not forward IPv4: sysctl -w a=1"), "sysctl -w a=1");
        assert_eq!(told("it is away"), "");
    }
}
