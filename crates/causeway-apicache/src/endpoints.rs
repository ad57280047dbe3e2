//! EndpointSlices that follow the pods of the site while the cloud is away.
//!
//! `followed` decides from values: a slice of the API server and the pods whose status waits in the log give the slice that the site needs.
//! `EndpointFollower` puts it in force. Clients take an object with an unchanged resourceVersion for a repetition, so the slice of the API
//! server is withdrawn and another one stands in its place, under a name of its own and at the last revision of the copy. The slice
//! of the API server returns when it changes there, or some time after the last status was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use causeway_api::{Revision, error_chain};
use serde_json::{Value, json};

use crate::copy::CopyError;
use crate::copy::collection::unix_now;
use crate::copy::local::LocalObject;
use crate::kube_object::{KubeObject, kept_text};
use crate::pending::log::{PendingKind, PendingLog};
use crate::pending::mark;
use crate::resource::ResourceName;
use crate::subscriptions::Subscriptions;

/// A pod as the site knows it: the part that endpoints follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SitePod {
    pub uid: String,
    pub addresses: Vec<String>,
    pub is_ready: bool,
}

impl SitePod {
    pub fn read(pod: &Value) -> SitePod {
        let status = &pod["status"];
        let listed = status["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
        let mut addresses: Vec<String> = listed.map(str::to_owned).collect();
        if addresses.is_empty() {
            addresses.extend(status["podIP"].as_str().filter(|ip| !ip.is_empty()).map(str::to_owned));
        }
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let is_ready =
            conditions.into_iter().any(|found| found["type"] == "Ready" && found["status"] == "True");
        SitePod {
            uid: pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            addresses,
            is_ready: is_ready && pod["metadata"]["deletionTimestamp"].is_null(),
        }
    }
}

/// The endpoints of a slice with these pods, by `NAMESPACE/NAME`; `None` when nothing changes. A pod without an address of the slice's
/// family leaves the slice.
pub fn followed(slice: &Value, pods: &BTreeMap<String, SitePod>) -> Option<Value> {
    let is_family = |address: &str| match slice["addressType"].as_str() {
        Some("IPv4") => address.parse::<std::net::Ipv4Addr>().is_ok(),
        Some("IPv6") => address.parse::<std::net::Ipv6Addr>().is_ok(),
        _ => false,
    };
    let namespace = slice["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut endpoints = Vec::new();
    for endpoint in slice["endpoints"].as_array()? {
        let target = &endpoint["targetRef"];
        let key = format!("{namespace}/{}", target["name"].as_str().unwrap_or_default());
        let pod = pods.get(&key).filter(|pod| target["kind"] == "Pod" && target["uid"] == pod.uid.as_str());
        let Some(pod) = pod else {
            endpoints.push(endpoint.clone());
            continue;
        };
        let addresses: Vec<&String> = pod.addresses.iter().filter(|address| is_family(address)).collect();
        if addresses.is_empty() {
            continue;
        }
        let mut endpoint = endpoint.clone();
        endpoint["addresses"] = json!(addresses);
        let mut conditions = endpoint["conditions"].as_object().cloned().unwrap_or_default();
        conditions.insert("ready".into(), pod.is_ready.into());
        if conditions.contains_key("serving") {
            conditions.insert("serving".into(), pod.is_ready.into());
        }
        endpoint["conditions"] = conditions.into();
        endpoints.push(endpoint);
    }
    let endpoints = Value::Array(endpoints);
    (endpoints != slice["endpoints"]).then(|| {
        let mut followed = slice.clone();
        followed["endpoints"] = endpoints;
        followed
    })
}

/// The name of the slice that stands in for another. It follows from its endpoints, so that each version is an object of its own.
pub fn site_name(name: &str, endpoints: &Value) -> String {
    // Names have up to 253 characters.
    let kept: String = name.chars().take(230).collect();
    let hash = digest(&SHA256, endpoints.to_string().as_bytes());
    let hash: String = hash.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-at-site-{hash}", kept.trim_end_matches(['-', '.']))
}

/// The local objects in place of one slice: the slice of the API server hidden, and its stand-in.
fn stand_in(copied: &KubeObject, slice: Value, at: Revision) -> Vec<(String, Option<LocalObject>)> {
    let stands_on = Some((copied.key.clone(), copied.revision));
    let (namespace, name) = copied.key.split_once('/').unwrap_or(("", &copied.key));
    let name = site_name(name, &slice["endpoints"]);
    let key = format!("{namespace}/{name}");
    let mut slice = mark(slice, unix_now());
    if let Some(metadata) = slice.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("name".into(), name.into());
        metadata.insert("resourceVersion".into(), at.to_string().into());
        // Another object than the one of the API server; it has no UID there.
        metadata.remove("uid");
    }
    let object = KubeObject {
        key: key.clone(),
        uid: String::new(),
        revision: at,
        body: kept_text(&slice).into(),
        cells: copied.cells.clone(),
    };
    vec![
        (copied.key.clone(), Some(LocalObject { stands_on: stands_on.clone(), object: None })),
        (key, Some(LocalObject { stands_on, object: Some(object) })),
    ]
}

/// Keeps the stand-ins in force.
pub struct EndpointFollower {
    log: PendingLog,
    subscriptions: Subscriptions,
    /// The slices that are withdrawn, by resource and key.
    shown: Mutex<BTreeMap<(ResourceName, String), StandIn>>,
}

/// The slice in place of another.
#[derive(Clone, PartialEq, Eq)]
struct StandIn {
    key: String,
    /// The revision of the slice that it stands on.
    revision: Revision,
}

/// The versions of the API under which slices are served.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// The time that the cluster has to change its slices after the last status of a pod was sent.
const RETURN: Duration = Duration::from_secs(10);
// A slice may enter the copy while pods wait.
const LOOK: Duration = Duration::from_secs(2);

impl EndpointFollower {
    pub fn new(log: PendingLog, subscriptions: Subscriptions) -> EndpointFollower {
        EndpointFollower { log, subscriptions, shown: Mutex::default() }
    }

    /// Runs for ever; dropping the future ends it.
    pub async fn run(&self) {
        let mut changes = self.log.changes();
        let mut idle_since = None;
        loop {
            changes.mark_unchanged();
            let pods = self.waiting_pods();
            if !pods.is_empty() {
                idle_since = None;
                self.follow(&pods).await;
            } else if !self.lock().is_empty() {
                let since = *idle_since.get_or_insert_with(tokio::time::Instant::now);
                self.give_back(since.elapsed() >= RETURN).await;
            }
            if pods.is_empty() && self.lock().is_empty() {
                let _ = changes.changed().await;
            } else {
                let _ = tokio::time::timeout(LOOK, changes.changed()).await;
            }
        }
    }

    /// The pods whose status waits for the API server.
    fn waiting_pods(&self) -> BTreeMap<String, SitePod> {
        let is_pod = |resource: &ResourceName| resource.group.is_empty() && resource.plural == "pods";
        let waiting = self.log.all().into_iter();
        let waiting = waiting.filter(|write| write.kind == PendingKind::Status && is_pod(&write.resource));
        waiting
            .filter_map(|write| Some((write.key, SitePod::read(&serde_json::from_slice(&write.body).ok()?))))
            .collect()
    }

    async fn follow(&self, pods: &BTreeMap<String, SitePod>) {
        for resource in
            VERSIONS.map(|version| ResourceName::new("discovery.k8s.io", version, "endpointslices"))
        {
            if let Err(error) = self.follow_resource(&resource, pods).await {
                tracing::warn!(
                    error = error_chain(&error),
                    "EndpointSlices cannot follow the pods of the site"
                );
            }
        }
    }

    async fn follow_resource(
        &self,
        resource: &ResourceName,
        pods: &BTreeMap<String, SitePod>,
    ) -> Result<(), CopyError> {
        let mut seen = BTreeSet::new();
        for collection in self.subscriptions.of_resource(resource) {
            let (at, slices) = collection.list_copied("").await?;
            for copied in slices {
                let Ok(slice) = serde_json::from_slice::<Value>(&copied.body) else { continue };
                if !seen.insert(copied.key.clone()) {
                    continue;
                }
                let entry = (resource.clone(), copied.key.clone());
                let shown = self.lock().get(&entry).cloned();
                let Some(slice) = followed(&slice, pods) else {
                    // Its pods are as the API server knows them again.
                    if shown.is_some() {
                        self.clear(&entry).await?;
                    }
                    continue;
                };
                let mut changes = stand_in(&copied, slice, at);
                let key = changes.last().map(|(key, _)| key.clone()).unwrap_or_default();
                let wanted = StandIn { key, revision: copied.revision };
                if shown.as_ref() == Some(&wanted) {
                    continue;
                }
                if let Some(shown) = shown.filter(|shown| shown.key != wanted.key) {
                    changes.insert(0, (shown.key, None));
                }
                self.subscriptions.set_local(resource, changes).await?;
                self.lock().insert(entry, wanted);
            }
        }
        Ok(())
    }

    /// Takes the stand-ins away whose slice changed in the cluster; all of them when the time is over.
    async fn give_back(&self, is_over: bool) {
        let entries: Vec<((ResourceName, String), StandIn)> =
            self.lock().iter().map(|(entry, shown)| (entry.clone(), shown.clone())).collect();
        for (entry, shown) in entries {
            let copied = self.subscriptions.copied(&entry.0, &entry.1).await;
            let revision = copied.ok().flatten().map(|copied| copied.revision);
            if (is_over || revision != Some(shown.revision))
                && let Err(error) = self.clear(&entry).await
            {
                tracing::warn!(
                    error = error_chain(&error),
                    "an EndpointSlice of the site cannot be taken away"
                );
            }
        }
    }

    async fn clear(&self, entry: &(ResourceName, String)) -> Result<(), CopyError> {
        let Some(shown) = self.lock().get(entry).cloned() else { return Ok(()) };
        let changes = vec![(shown.key, None), (entry.1.clone(), None)];
        self.subscriptions.set_local(&entry.0, changes).await?;
        self.lock().remove(entry);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(ResourceName, String), StandIn>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> Value {
        json!({"metadata": {"name": "web-1", "namespace": "shop"}, "addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": "a", "uid": "u"}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": true, "serving": true}, "targetRef": {"kind": "Pod", "name": "b", "uid": "w"}}]})
    }

    fn pod(uid: &str, addresses: &[&str], is_ready: bool) -> SitePod {
        SitePod {
            uid: uid.into(),
            addresses: addresses.iter().map(|ip| (*ip).to_owned()).collect(),
            is_ready,
        }
    }

    #[test]
    fn a_slice_follows_the_pods_of_the_site_and_no_others() {
        let with =
            |name: &str, pod: SitePod| followed(&slice(), &BTreeMap::from([(format!("shop/{name}"), pod)]));
        let moved = with("a", pod("u", &["fd00::1", "10.0.0.9"], true)).unwrap();
        assert_eq!(moved["endpoints"][0]["addresses"], json!(["10.0.0.9"]), "the address of its family");
        assert_eq!(moved["endpoints"][1], slice()["endpoints"][1]);
        assert_eq!(moved["ports"], slice()["ports"]);
        let unready = with("b", pod("w", &["10.0.0.2"], false)).unwrap();
        assert_eq!(unready["endpoints"][1]["conditions"], json!({"ready": false, "serving": false}));
        let gone = with("a", pod("u", &[], false)).unwrap();
        assert_eq!(gone["endpoints"].as_array().unwrap().len(), 1);
        assert_eq!(with("a", pod("u", &["10.0.0.1"], true)), None, "nothing changed");
        assert_eq!(with("a", pod("other", &["10.0.0.9"], true)), None, "another pod of the same name");
        assert_eq!(followed(&json!([]), &BTreeMap::new()), None);
    }

    #[test]
    fn a_stand_in_has_a_name_of_its_own_and_the_last_revision() {
        let copied = KubeObject {
            key: "shop/web-1".into(),
            uid: "s".into(),
            revision: Revision(5),
            body: slice().to_string().into(),
            cells: bytes::Bytes::new(),
        };
        let made = stand_in(&copied, slice(), Revision(9));
        assert!(made[0].0 == "shop/web-1" && made[0].1.as_ref().unwrap().object.is_none());
        let object = made[1].1.as_ref().unwrap().object.clone().unwrap();
        let body: Value = serde_json::from_slice(&object.body).unwrap();
        let name = site_name("web-1", &slice()["endpoints"]);
        assert_eq!((made[1].0.clone(), &body["metadata"]["name"]), (format!("shop/{name}"), &json!(name)));
        assert!(name.starts_with("web-1-at-site-") && name != site_name("web-1", &json!([])), "{name}");
        assert_eq!((object.revision, &body["metadata"]["resourceVersion"]), (Revision(9), &json!("9")));
        assert!(site_name(&"x".repeat(253), &json!([])).len() <= 253);
    }

    #[test]
    fn a_pod_is_read_as_kubelets_write_it() {
        let read = |status: Value| SitePod::read(&json!({"metadata": {"uid": "u"}, "status": status}));
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let both = read(
            json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}], "conditions": ready}),
        );
        assert_eq!(both, pod("u", &["1.1.1.1", "::1"], true));
        assert_eq!(read(json!({"podIP": "1.1.1.1"})), pod("u", &["1.1.1.1"], false));
        assert_eq!(SitePod::read(&json!([])), pod("", &[], false));
    }
}
