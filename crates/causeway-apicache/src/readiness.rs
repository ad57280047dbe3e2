//! Tells beforehand which pods would not survive a restart of their node without the cloud, and why.
//!
//! `missing_for` decides from the pod and what the site holds: its ConfigMaps and Secrets in the copy, and a kept token for each token volume.
//! `OfflineReadiness` looks at all pods now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use causeway_api::error_chain;
use serde_json::{Value, json};

use crate::copy::collection::unix_now;
use crate::copy::{CopyDatabase, CopyError, tables};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::subscriptions::Subscriptions;

/// An object that a pod cannot start without.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PodNeed {
    ConfigMap(String),
    Secret(String),
    Token,
}

/// The objects that a pod's volumes and environment name; optional ones are left out.
pub fn needs(pod: &Value) -> BTreeSet<PodNeed> {
    let mut found = BTreeSet::new();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut need = |source: &Value, field: &str, make: fn(String) -> PodNeed| {
        if let Some(name) = source[field].as_str().filter(|_| source["optional"] != true) {
            found.insert(make(name.to_owned()));
        }
    };
    let spec = &pod["spec"];
    let mut has_token = false;
    for volume in items(&spec["volumes"]) {
        need(&volume["configMap"], "name", PodNeed::ConfigMap);
        need(&volume["secret"], "secretName", PodNeed::Secret);
        for source in items(&volume["projected"]["sources"]) {
            need(&source["configMap"], "name", PodNeed::ConfigMap);
            need(&source["secret"], "name", PodNeed::Secret);
            has_token |= source["serviceAccountToken"].is_object();
        }
    }
    for container in items(&spec["containers"]).iter().chain(&items(&spec["initContainers"])) {
        for source in items(&container["envFrom"]) {
            need(&source["configMapRef"], "name", PodNeed::ConfigMap);
            need(&source["secretRef"], "name", PodNeed::Secret);
        }
        for variable in items(&container["env"]) {
            need(&variable["valueFrom"]["configMapKeyRef"], "name", PodNeed::ConfigMap);
            need(&variable["valueFrom"]["secretKeyRef"], "name", PodNeed::Secret);
        }
    }
    if has_token {
        found.insert(PodNeed::Token);
    }
    found
}

/// The reasons why a pod would not start without the cloud.
pub fn missing_for(pod: &Value, is_held: impl Fn(&PodNeed) -> bool) -> Vec<String> {
    let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let missing = needs(pod).into_iter().filter(|need| !is_over && !is_held(need));
    missing
        .map(|need| match need {
            PodNeed::ConfigMap(name) => format!("ConfigMap {name} is not in the copy"),
            PodNeed::Secret(name) => format!("Secret {name} is not in the copy"),
            PodNeed::Token => "no token for it was issued through this edge, or it has expired".to_owned(),
        })
        .collect()
}

/// Looks at the pods of the site.
pub struct OfflineReadiness {
    pub database: CopyDatabase,
    pub subscriptions: Subscriptions,
    /// `{"ready": bool, "pods": {"NAMESPACE/NAME": [reason]}}`
    pub found: Arc<ArcSwap<Value>>,
}

const CHECK_INTERVAL: Duration = Duration::from_secs(15);
// Pods that are named; more are counted.
const PODS_MAX: usize = 100;

impl OfflineReadiness {
    /// Runs for ever; dropping the future ends it.
    pub async fn run(&self) {
        loop {
            match self.report().await {
                Ok(found) => self.found.store(Arc::new(found)),
                Err(error) => tracing::warn!(
                    error = error_chain(&error),
                    "cannot tell which pods are ready for offline"
                ),
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn report(&self) -> Result<Value, CopyError> {
        let now = unix_now();
        let tokens = self.database.read(move |connection| tables::token_pods(connection, now)).await?;
        let tokens: BTreeSet<String> = tokens.into_iter().collect();
        let mut pods = std::collections::BTreeMap::new();
        for collection in self.subscriptions.of_resource(&ResourceName::new("", "v1", "pods")) {
            // Pods that a kubelet of the site follows; every other pod runs elsewhere.
            if !collection.scope.field_selector.starts_with("spec.nodeName=") {
                continue;
            }
            for object in collection.list("").await?.1 {
                let Ok(pod) = serde_json::from_slice::<Value>(&object.body) else { continue };
                let namespace = object.key.split_once('/').map_or("", |(namespace, _)| namespace);
                let is_held = |need: &PodNeed| match need {
                    PodNeed::Token => tokens.contains(&object.uid),
                    PodNeed::ConfigMap(name) => self.holds("configmaps", namespace, name),
                    PodNeed::Secret(name) => self.holds("secrets", namespace, name),
                };
                let missing = missing_for(&pod, is_held);
                if !missing.is_empty() {
                    pods.insert(object.key.clone(), missing);
                }
            }
        }
        let count = pods.len();
        let named: serde_json::Map<String, Value> =
            pods.into_iter().take(PODS_MAX).map(|(key, missing)| (key, json!(missing))).collect();
        Ok(json!({"ready": count == 0, "count": count, "pods": named}))
    }

    fn holds(&self, plural: &str, namespace: &str, name: &str) -> bool {
        let wanted = SubscriptionScope::one(ResourceName::new("", "v1", plural), namespace, name);
        self.subscriptions.find(&wanted).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_misses_what_the_site_does_not_hold() {
        let pod = json!({"spec": {
            "volumes": [{"configMap": {"name": "a"}}, {"secret": {"secretName": "b", "optional": true}},
                {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "c"}}]}}],
            "containers": [{"envFrom": [{"secretRef": {"name": "d"}}],
                "env": [{"name": "x", "valueFrom": {"configMapKeyRef": {"name": "e", "key": "k"}}}, {"name": "y", "value": "1"}]}]}});
        let config_map = |name: &str| PodNeed::ConfigMap(name.into());
        let expected = BTreeSet::from([
            config_map("a"),
            config_map("c"),
            config_map("e"),
            PodNeed::Secret("d".into()),
            PodNeed::Token,
        ]);
        assert_eq!(needs(&pod), expected);
        assert_eq!(missing_for(&pod, |_| true), [""; 0]);
        let missing = missing_for(&pod, |need| *need != PodNeed::Token && *need != config_map("c"));
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert_eq!(missing[0], "ConfigMap c is not in the copy");
        let mut over = pod.clone();
        over["status"] = json!({"phase": "Succeeded"});
        assert_eq!(missing_for(&over, |_| false), [""; 0]);
        assert_eq!(needs(&json!([1])), BTreeSet::new());
    }
}
