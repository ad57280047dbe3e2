//! Log lines on stderr: text for people, JSON for collectors.
//!
//! The filter comes in as text (`info`, `causeway_store=debug,info`); data never goes to stderr.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt;

/// How a log line is written.
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
}

/// Starts logging for the whole process. A second call changes nothing, so that several roles may
/// run in one process.
pub fn start(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let filter = check_filter(filter)?;
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let already_started = match format {
        LogFormat::Text => lines.with_ansi(colours_wanted()).with_target(false).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).finish().try_init(),
    };
    drop(already_started);
    Ok(())
}

/// Would this filter be accepted? Used by `check-config`, which must not start logging.
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
    fn formats_have_names() {
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert!("xml".parse::<LogFormat>().unwrap_err().contains("xml"));
    }
}
