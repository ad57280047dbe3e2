//! Sends bytes to an edge and back, for operators, `causeway doctor` and tests: `POST /causeway/v1/probe`.

use std::time::Duration;

use causeway_apiserver::ActionRefusal;
use causeway_channel::link::StreamHeader;
use causeway_channel::probe::{self, BYTES_MAX, Mode};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{CloudActions, chain};

/// What is asked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Asked {
    gateway: String,
    #[serde(default = "default_bytes")]
    bytes: u64,
    #[serde(default)]
    mode: Direction,
    /// Given up after this many seconds.
    #[serde(default = "default_seconds")]
    seconds: u64,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Direction {
    #[default]
    Echo,
    /// To the edge.
    Sink,
    /// From the edge.
    Source,
}

/// One packet, to see whether anything crosses at all.
fn default_bytes() -> u64 {
    1000
}

fn default_seconds() -> u64 {
    10
}

/// An API call must end some day.
const SECONDS_MAX: u64 = 300;

/// What was found.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    transport: &'static str,
    milliseconds: f64,
    bytes: u64,
    bytes_per_second: f64,
}

impl CloudActions {
    pub(super) async fn probe(&self, asked: Asked) -> Result<Answer, ActionRefusal> {
        if asked.bytes > BYTES_MAX {
            return Err(ActionRefusal::bad_request(format!("a probe moves {BYTES_MAX} bytes at most")));
        }
        let Some(link) = self.sessions.link(&asked.gateway) else {
            let message = format!("the gateway {} is not connected", asked.gateway);
            return Err(ActionRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
        };
        let mode = match asked.mode {
            Direction::Echo => Mode::Echo,
            Direction::Sink => Mode::Sink,
            Direction::Source => Mode::Source { bytes: asked.bytes },
        };
        let header = StreamHeader { gateway: asked.gateway.clone(), ..StreamHeader::default() };
        let limit = Duration::from_secs(asked.seconds.clamp(1, SECONDS_MAX));
        let found = timeout(limit, probe::run(&link, header, mode, asked.bytes)).await;
        let failed = |why: String| ActionRefusal::new(StatusCode::GATEWAY_TIMEOUT, why);
        let found = found
            .map_err(|_| failed(format!("no answer within {} seconds", limit.as_secs())))?
            .map_err(|error| failed(chain(&error)))?;
        Ok(Answer {
            transport: link.transport().as_str(),
            milliseconds: (found.took.as_secs_f64() * 1e6).round() / 1e3,
            bytes: found.bytes,
            bytes_per_second: found.bytes_per_second().round(),
        })
    }
}
