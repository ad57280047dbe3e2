//! Sends bytes to an edge and back, for operators, `causeway doctor` and tests: `POST /causeway/v1/probe`.

use std::time::{Duration, Instant};

use causeway_apiserver::ActionRefusal;
use causeway_channel::probe::{self, BYTES_MAX, ProbeMode};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{CloudActions, chain};
use crate::replicas::FleetError;

/// The request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ProbeQuery {
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

/// The result.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProbeAnswer {
    /// Between the edge and the replica that holds it, where that is known.
    transport: Option<String>,
    milliseconds: f64,
    bytes: u64,
    bytes_per_second: f64,
}

impl CloudActions {
    pub(super) async fn probe(&self, asked: ProbeQuery) -> Result<ProbeAnswer, ActionRefusal> {
        if asked.bytes > BYTES_MAX {
            return Err(ActionRefusal::bad_request(format!("a probe moves {BYTES_MAX} bytes at most")));
        }
        let mode = match asked.mode {
            Direction::Echo => ProbeMode::Echo,
            Direction::Sink => ProbeMode::Sink,
            Direction::Source => ProbeMode::Source { bytes: asked.bytes },
        };
        let begun = Instant::now();
        let stream = match self.fleet.open_stream(&asked.gateway, probe::header(mode)).await {
            Ok(stream) => stream,
            Err(FleetError::NotAttached { gateway }) => {
                let message = format!("the gateway {gateway} is not connected");
                return Err(ActionRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
            Err(error) => return Err(ActionRefusal::new(StatusCode::BAD_GATEWAY, chain(&error))),
        };
        let limit = Duration::from_secs(asked.seconds.clamp(1, SECONDS_MAX));
        let found = timeout(limit, probe::run_on(stream, begun, mode, asked.bytes)).await;
        let failed = |why: String| ActionRefusal::new(StatusCode::GATEWAY_TIMEOUT, why);
        let found = found
            .map_err(|_| failed(format!("no answer within {} seconds", limit.as_secs())))?
            .map_err(|error| failed(chain(&error)))?;
        Ok(ProbeAnswer {
            transport: self.figures.gateway(&asked.gateway).and_then(|figures| figures.transport),
            milliseconds: (found.took.as_secs_f64() * 1e6).round() / 1e3,
            bytes: found.bytes,
            bytes_per_second: found.bytes_per_second().round(),
        })
    }
}
