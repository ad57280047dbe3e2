//! SIGHUP: reads the configuration again, puts in force what can be, and logs what needs a restart.
//!
//! `config::reload` compares; here the file is read and the log filter replaced. A configuration that cannot be read
//! changes nothing.

use std::path::PathBuf;

use causeway_daemon::log;
use causeway_daemon::signals::Hangup;

use crate::config::{Applies, Config, Layer, Role, changes};

/// The reload of one role that runs with `running`, which was made from the same flags and file.
pub fn on_hangup(role: Role, flags: Layer, file: Option<PathBuf>, mut running: Config) -> Hangup {
    Hangup::Reload(Box::new(move || {
        let read = match Config::load(flags.clone(), file.as_deref()) {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "SIGHUP: the configuration cannot be used; everything stays as it is"
                );
                return;
            }
        };
        let mut changed = changes(&running, &read, role);
        // The filter may have been replaced through the admin port since.
        let filter = &read.log.filter.value;
        if log::filter().is_some_and(|current| current != *filter) {
            match log::set_filter(filter) {
                Ok(before) => tracing::info!(from = before, to = filter, "SIGHUP: log.filter is in force"),
                Err(error) => tracing::error!(%error, "SIGHUP: log.filter stays as it is"),
            }
        }
        running.log.filter = read.log.filter.clone();
        changed.retain(|change| change.applies == Applies::AfterRestart);
        for change in &changed {
            let (from, to) = (&change.from, &change.to);
            tracing::warn!(setting = change.setting, %from, %to, "SIGHUP: this setting needs a restart");
        }
        tracing::info!(needs_restart = changed.len(), "SIGHUP: the configuration was read again");
    }))
}
