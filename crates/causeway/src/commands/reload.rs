//! SIGHUP: reads the configuration again, puts in force what can be, and logs what needs a restart.
//!
//! `config::reload` compares; here the file is read, and the log filter and the rules of backends are replaced. A
//! configuration that cannot be read changes nothing.

use std::path::PathBuf;

use causeway_daemon::log;
use causeway_daemon::signals::Hangup;
use causeway_gateway::dial::SharedDialRules;

use super::gateway::dial_rules;
use crate::config::{Applies, Change, Config, Layer, ProcessRole, changes};

/// Returns the reload of one role that runs with `running`, which was made from the same flags and file. `rules` are
/// the rules of its gateway.
pub fn on_hangup(
    role: ProcessRole,
    flags: Layer,
    file: Option<PathBuf>,
    mut running: Config,
    rules: SharedDialRules,
) -> Hangup {
    Hangup::Reload(Box::new(move || match Config::load(flags.clone(), file.as_deref()) {
        Ok(read) => reload(role, &mut running, &read, &rules),
        Err(error) => tracing::error!(
            error = format!("{error:#}"),
            "SIGHUP: the configuration cannot be used; everything stays as it is"
        ),
    }))
}

fn reload(role: ProcessRole, running: &mut Config, read: &Config, rules: &SharedDialRules) {
    let changed = changes(running, read, role);
    // The filter may have been replaced through the admin port since.
    let filter = &read.log.filter.value;
    if log::filter().is_some_and(|current| current != *filter) {
        match log::set_filter(filter) {
            Ok(before) => tracing::info!(from = before, to = filter, "SIGHUP: log.filter is in force"),
            Err(error) => tracing::error!(%error, "SIGHUP: log.filter stays as it is"),
        }
    }
    running.log.filter = read.log.filter.clone();
    for change in changed.iter().filter(|change| change.setting.starts_with("gateway.backends-")) {
        let Change { setting, from, to, .. } = change;
        tracing::info!(setting, %from, %to, "SIGHUP: this setting is in force for new connections to backends");
    }
    rules.replace(dial_rules(read));
    running.gateway.backends_allow = read.gateway.backends_allow.clone();
    running.gateway.backends_deny = read.gateway.backends_deny.clone();
    let later: Vec<&Change> =
        changed.iter().filter(|change| change.applies == Applies::AfterRestart).collect();
    for Change { setting, from, to, .. } in &later {
        tracing::warn!(setting, %from, %to, "SIGHUP: this setting needs a restart");
    }
    let settings: Vec<&str> = later.iter().map(|change| change.setting.as_str()).collect();
    tracing::info!(
        needs_restart = later.len(),
        settings = settings.join(", "),
        "SIGHUP: the configuration was read again"
    );
}

#[cfg(test)]
mod tests {
    use causeway_gateway::dial::{BackendDialer, DialRules, OwnListeners, SocketProtocol};

    use super::*;

    #[test]
    fn rules_of_backends_are_in_force_at_once_and_other_settings_later() {
        let config =
            |text: &str| Config::resolve(toml::from_str(text).unwrap(), Layer::default(), Layer::default());
        let mut running = config("");
        let rules = SharedDialRules::from(DialRules::default());
        let dialer = BackendDialer::new(rules.clone(), OwnListeners::default());
        let may_dial = || dialer.check(SocketProtocol::Tcp, "203.0.113.9:80".parse().unwrap()).is_ok();
        assert!(may_dial());
        let denied = config("[gateway]\nbackends-deny = ['203.0.113.0/24']\npresence = 'off'");
        reload(ProcessRole::Edge, &mut running, &denied, &rules);
        assert!(!may_dial());
        let left = changes(&running, &denied, ProcessRole::Edge);
        let left: Vec<&str> = left.iter().map(|change| change.setting.as_str()).collect();
        assert_eq!(left, ["gateway.presence"], "it is logged again until the restart");
        reload(ProcessRole::Edge, &mut running, &config(""), &rules);
        assert!(may_dial());
    }
}
