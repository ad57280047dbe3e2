//! Tells how the copies of the Kubernetes API at the edges are: `GET /causeway/v1/caches`.
//!
//! The edges that are connected are asked; `list` sorts their answers. An edge that is away cannot tell, and is left out.

use std::collections::HashMap;

use causeway_api::management::{EdgeCacheList, EdgeCacheOverview};
use causeway_api::{EGateway, Kind};
use causeway_apiserver::ActionRefusal;

use super::CloudActions;
use super::gateway_answers::AskedGateways;
use super::packet_paths::named_gateways;
use crate::bootstrap::CLOUD;

impl CloudActions {
    pub(super) async fn caches(&self, query: Option<&str>) -> Result<EdgeCacheList, ActionRefusal> {
        let names = named_gateways(query);
        let gateways = self.all::<EGateway>(Kind::EGateway).await?;
        self.fleet.refresh_stats().await;
        let sites: HashMap<String, String> = gateways
            .into_iter()
            .map(|gateway| (gateway.metadata.name, gateway.e_site_name))
            .filter(|(name, _)| names.is_empty() || names.contains(name))
            .filter(|(name, _)| {
                name != CLOUD && self.stats.gateway(name).is_some_and(|stats| stats.connected)
            })
            .collect();
        let mut edges: Vec<String> = sites.keys().cloned().collect();
        edges.sort();
        Ok(list(self.ask_gateways(edges).await, &sites))
    }
}

fn list(asked: AskedGateways, sites: &HashMap<String, String>) -> EdgeCacheList {
    let mut list = EdgeCacheList {
        unanswered: asked.unanswered,
        not_asked: asked.not_asked,
        ..EdgeCacheList::default()
    };
    for (gateway, answer) in asked.answers {
        match &answer.cache {
            Some(facts) => {
                let site = sites.get(&gateway).cloned().unwrap_or_default();
                list.caches.push(EdgeCacheOverview { gateway, site, facts: facts.clone() });
            }
            None => list.without.push(gateway),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use causeway_api::management::{EdgeCacheFacts, UnansweredGateway};
    use serde_json::json;

    use super::*;
    use crate::actions::gateway_answers::GatewayAnswer;

    #[test]
    fn edges_with_a_copy_are_listed_and_the_others_are_named() {
        let answer = |cache| Arc::new(GatewayAnswer { paths: Vec::new(), cache });
        let facts = EdgeCacheFacts { objects: 3, behind: 1, ..EdgeCacheFacts::default() };
        let asked = AskedGateways {
            answers: vec![("oslo".into(), answer(Some(facts))), ("rome".into(), answer(None))],
            unanswered: vec![UnansweredGateway { gateway: "bonn".into(), reason: "slow".into() }],
            not_asked: 2,
        };
        let shown = serde_json::to_value(list(asked, &[("oslo".into(), "north".into())].into())).unwrap();
        let cache = &shown["caches"][0];
        assert_eq!(
            (&cache["gateway"], &cache["site"], &cache["objects"]),
            (&json!("oslo"), &json!("north"), &json!(3))
        );
        assert_eq!(shown["without"], json!(["rome"]));
        assert_eq!(shown["unanswered"], json!([{"gateway": "bonn", "reason": "slow"}]));
        assert_eq!(shown["notAsked"], 2);
    }
}
