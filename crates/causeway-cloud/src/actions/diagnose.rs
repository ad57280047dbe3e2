//! Asks a gateway how it is, or whether its way to a service works: `POST /causeway/v1/diagnose`, for `causeway doctor`.
//!
//! The question crosses the channel to the gateway that is asked, from there to the gateway of the service, and reaches the
//! backends: what answers is the path that clients use. The answer is that of the gateway; it is bounded and not interpreted here.

use std::time::Duration;

use causeway_api::error_chain;
use causeway_api::management::DiagnoseRequest;
use causeway_apiserver::ActionRefusal;
use causeway_channel::link::StreamHeader;
use causeway_gateway::diagnose::{self, Question};
use http::StatusCode;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::CloudActions;
use crate::bootstrap::CLOUD;
use crate::replicas::FleetError;

/// Longer than a gateway takes for a path with backends that do not answer.
const DEADLINE: Duration = Duration::from_secs(15);

impl CloudActions {
    pub(super) async fn diagnose(&self, asked: DiagnoseRequest) -> Result<Value, ActionRefusal> {
        if asked.gateway == CLOUD {
            let answer = match &asked.service {
                Some(service) => serde_json::to_value(self.gateway.path(service).await),
                None => serde_json::to_value(self.gateway.facts().await),
            };
            return answer.map_err(|error| ActionRefusal::internal(error.to_string()));
        }
        let header = match &asked.service {
            Some(service) => Question::Path.header(service),
            None => Question::Facts.header(""),
        };
        self.ask_gateway(&asked.gateway, header, DEADLINE).await
    }

    /// Asks an edge, at whatever replica its session is.
    pub(super) async fn ask_gateway(
        &self,
        gateway: &str,
        header: StreamHeader,
        deadline: Duration,
    ) -> Result<Value, ActionRefusal> {
        let asking = async {
            let stream = match self.fleet.open_stream(gateway, header).await {
                Ok(stream) => stream,
                Err(FleetError::NotAttached { gateway }) => {
                    let message = format!("the gateway {gateway} is not connected");
                    return Err(ActionRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
                }
                Err(error) => return Err(ActionRefusal::new(StatusCode::BAD_GATEWAY, error_chain(&error))),
            };
            let (mut send, recv) = stream.split();
            // Nothing follows the header.
            let _ = send.shutdown().await;
            diagnose::read_answer(recv).await.map_err(|why| ActionRefusal::new(StatusCode::BAD_GATEWAY, why))
        };
        let late = || {
            let message = format!("gateway {gateway} gave no answer within {} s", deadline.as_secs());
            ActionRefusal::new(StatusCode::GATEWAY_TIMEOUT, message)
        };
        timeout(deadline, asking).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::management::{GatewayFacts, ServicePathFacts};
    use causeway_gateway::diagnose::{Facts, PathFacts};
    use serde_json::json;

    #[test]
    fn the_answers_of_a_gateway_have_the_fields_of_the_contract() {
        let facts = json!({
            "generation": "1.7", "problems": ["p"], "presences": {"web": "taken"}, "hints": ["h"], "role": null,
            "switchedOff": ["layer3"], "connections": {"inbound": 1, "outbound": 2},
            "tunnel": {"device": "d", "listen": "0.0.0.0:7446", "onDemand": true, "troubles": ["t"], "peers": {
                "rome-1": {"endpoint": "192.0.2.1:7446", "path": "relayed", "relay": "cloud", "carriesNetworks": true,
                    "notDirect": "n", "rttUs": 9, "lossPercent": 6, "mtu": 1420, "lastHandshake": "2026-11-19T00:00:00Z",
                    "sent": {"packets": 3, "bytes": 300}, "received": {"packets": 4, "bytes": 400}}}},
        });
        let sent: Facts = serde_json::from_value(facts.clone()).unwrap();
        let read: GatewayFacts = serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), facts);

        let path = json!({"presenceProblem": "p", "farProblem": "f", "milliseconds": 2.5,
            "backends": [{"backend": "10.0.0.5:80", "outcome": "otherProtocol", "detail": "d"}]});
        let sent: PathFacts = serde_json::from_value(path.clone()).unwrap();
        let read: ServicePathFacts = serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), path);
    }
}
