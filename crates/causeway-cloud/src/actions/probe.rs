//! Sends bytes to an edge and back, for operators, `causeway doctor` and tests: `POST /causeway/v1/probe`.

use std::time::{Duration, Instant};

use causeway_api::error_chain;
use causeway_api::management::{ProbeDirection, ProbeRequest, ProbeResponse};
use causeway_apiserver::ActionRefusal;
use causeway_channel::probe::{self, BYTES_MAX, ProbeMode};
use http::StatusCode;
use tokio::time::timeout;

use super::CloudActions;
use crate::replicas::FleetError;

/// An API call must end some day.
const SECONDS_MAX: u64 = 300;

impl CloudActions {
    pub(super) async fn probe(&self, asked: ProbeRequest) -> Result<ProbeResponse, ActionRefusal> {
        if asked.bytes > BYTES_MAX {
            return Err(ActionRefusal::bad_request(format!("a probe moves {BYTES_MAX} bytes at most")));
        }
        let mode = match asked.mode {
            ProbeDirection::Echo => ProbeMode::Echo,
            ProbeDirection::Sink => ProbeMode::Sink,
            ProbeDirection::Source => ProbeMode::Source { bytes: asked.bytes },
        };
        let begun = Instant::now();
        let stream = match self.fleet.open_stream(&asked.gateway, probe::header(mode)).await {
            Ok(stream) => stream,
            Err(FleetError::NotAttached { gateway }) => {
                let message = format!("the gateway {gateway} is not connected");
                return Err(ActionRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
            Err(error) => return Err(ActionRefusal::new(StatusCode::BAD_GATEWAY, error_chain(&error))),
        };
        let limit = Duration::from_secs(asked.seconds.clamp(1, SECONDS_MAX));
        let found = timeout(limit, probe::run_on(stream, begun, mode, asked.bytes)).await;
        let failed = |why: String| ActionRefusal::new(StatusCode::GATEWAY_TIMEOUT, why);
        let found = found
            .map_err(|_| failed(format!("no answer within {} seconds", limit.as_secs())))?
            .map_err(|error| failed(error_chain(&error)))?;
        Ok(ProbeResponse {
            transport: self.stats.gateway(&asked.gateway).and_then(|stats| stats.transport),
            milliseconds: (found.took.as_secs_f64() * 1e6).round() / 1e3,
            bytes: found.bytes,
            bytes_per_second: found.bytes_per_second().round(),
        })
    }
}
