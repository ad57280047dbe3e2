//! Log lines on stderr: text for people, JSON for collectors.
//!
//! The filter comes in as text (`info`, `causeway_store=debug,info`) and can be replaced while the process runs; data never
//! goes to stderr.

use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock};

use causeway_api::sync::MutexExt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt;

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("log format `{other}` is unknown: use `text` or `json`")),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log filter `{filter}` cannot be read")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("the log filter cannot be replaced: {why}")]
    Fixed { why: String },
}

/// Replaces the filter of the subscriber that `start` installed. One per process, as the subscriber is.
type Replace = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;
static REPLACE: OnceLock<Replace> = OnceLock::new();
/// The filter in force, as text.
static CURRENT: Mutex<Option<String>> = Mutex::new(None);

/// Starts logging for the whole process. A second call changes nothing, so that several roles may
/// run in one process.
pub fn start(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let parsed = check_filter(filter)?;
    // A line that cannot be written (stderr is a file on a full disk) is lost. Reporting that on stderr would panic, in the task
    // of whichever request caused the line.
    let lines = fmt().with_env_filter(parsed).with_writer(std::io::stderr).log_internal_errors(false);
    let (started, replace): (_, Replace) = match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(colours_wanted()).with_target(false).with_filter_reloading();
            let handle = lines.reload_handle();
            let replace = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (lines.finish().try_init(), Box::new(replace))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_filter_reloading();
            let handle = lines.reload_handle();
            let replace = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (lines.finish().try_init(), Box::new(replace))
        }
    };
    if started.is_ok() && REPLACE.set(replace).is_ok() {
        *CURRENT.lock_ignoring_poison() = Some(filter.to_owned());
    }
    Ok(())
}

/// The filter in force. None: logging was not started by `start`.
pub fn filter() -> Option<String> {
    CURRENT.lock_ignoring_poison().clone()
}

/// Puts another filter in force. Returns the one before; a filter that cannot be read changes nothing.
pub fn set_filter(filter: &str) -> Result<String, LogError> {
    let parsed = check_filter(filter)?;
    let replace =
        REPLACE.get().ok_or_else(|| LogError::Fixed { why: "logging is not started".to_owned() })?;
    let mut current = CURRENT.lock_ignoring_poison();
    replace(parsed).map_err(|why| LogError::Fixed { why })?;
    Ok(current.replace(filter.to_owned()).unwrap_or_default())
}

/// Checks that this filter is accepted. Used by `check-config`, which must not start logging.
pub fn check_filter(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::try_new(filter).map_err(|source| LogError::Filter { filter: filter.to_owned(), source })
}

fn colours_wanted() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_named() {
        let error = check_filter("causeway=loud").unwrap_err();
        assert!(error.to_string().contains("causeway=loud"));
        assert!(check_filter("info,causeway_store=debug").is_ok());
    }

    #[test]
    fn the_filter_is_replaced_while_the_process_runs() {
        start(LogFormat::Text, "error").unwrap();
        assert_eq!(filter().as_deref(), Some("error"));
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        assert_eq!(set_filter("debug").unwrap(), "error");
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(set_filter("causeway=loud").is_err());
        assert_eq!(filter().as_deref(), Some("debug"), "a wrong filter changes nothing");
        set_filter("error").unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
    }

    #[test]
    fn formats_have_names() {
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert!("xml".parse::<LogFormat>().unwrap_err().contains("xml"));
    }
}
