//! EndpointSlices and Endpoints that follow the pods of the site while the cloud is away.
//!
//! `followed` decides from values: an object of the API server and the pods whose status waits in the log give the object that the site needs.
//! `EndpointFollower` puts it in force. Clients take an object with an unchanged resourceVersion for a repetition, so the object of the API
//! server is withdrawn and another one stands in its place, at the last revision of the copy: a slice under a name of its own, Endpoints
//! under the name of their Service. The object of the API server returns when it changes there, or some time after the last status was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use causeway_api::{Revision, error_chain};
use causeway_daemon::sync::MutexExt;
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

/// An object with these pods, by `NAMESPACE/NAME`; `None` when nothing changes.
pub fn followed(kind: EndpointKind, object: &Value, pods: &BTreeMap<String, SitePod>) -> Option<Value> {
    match kind {
        EndpointKind::Slice => followed_slice(object, pods),
        EndpointKind::Endpoints => followed_endpoints(object, pods),
    }
}

/// The two kinds of objects that name the addresses of a Service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointKind {
    /// `discovery.k8s.io` EndpointSlice: its label names the Service, its own name means nothing.
    Slice,
    /// Endpoints of the core group: their name is that of the Service.
    Endpoints,
}

impl EndpointKind {
    fn of(resource: &ResourceName) -> EndpointKind {
        if resource.group.is_empty() { EndpointKind::Endpoints } else { EndpointKind::Slice }
    }

    /// The part that names addresses.
    fn field(self) -> &'static str {
        match self {
            EndpointKind::Slice => "endpoints",
            EndpointKind::Endpoints => "subsets",
        }
    }
}

/// The pod of the site that an address belongs to.
fn pod_of<'a>(namespace: &str, target: &Value, pods: &'a BTreeMap<String, SitePod>) -> Option<&'a SitePod> {
    let key = format!("{namespace}/{}", target["name"].as_str().unwrap_or_default());
    pods.get(&key).filter(|pod| target["kind"] == "Pod" && target["uid"] == pod.uid.as_str())
}

/// Addresses of pods change, and move between `addresses` and `notReadyAddresses`. A pod without an address of the same family leaves.
fn followed_endpoints(object: &Value, pods: &BTreeMap<String, SitePod>) -> Option<Value> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut subsets = Vec::new();
    for subset in object["subsets"].as_array()? {
        let (mut ready, mut unready) = (Vec::new(), Vec::new());
        for (field, was_ready) in [("addresses", true), ("notReadyAddresses", false)] {
            for address in subset[field].as_array().into_iter().flatten() {
                let (now, is_ready) = match pod_of(namespace, &address["targetRef"], pods) {
                    None => (Some(address.clone()), was_ready),
                    Some(pod) => (moved_address(address, pod), pod.is_ready),
                };
                if is_ready { &mut ready } else { &mut unready }.extend(now);
            }
        }
        let mut followed = subset.clone();
        for (field, addresses) in [("addresses", ready), ("notReadyAddresses", unready)] {
            match followed.as_object_mut() {
                Some(followed) if addresses.is_empty() => drop(followed.remove(field)),
                Some(followed) => drop(followed.insert(field.into(), addresses.into())),
                None => {}
            }
        }
        if !(followed["addresses"].is_null() && followed["notReadyAddresses"].is_null()) {
            subsets.push(followed);
        }
    }
    let subsets = Value::Array(subsets);
    (subsets != object["subsets"]).then(|| {
        let mut followed = object.clone();
        followed["subsets"] = subsets;
        followed
    })
}

/// An address of Endpoints with the pod's address of the same family.
fn moved_address(address: &Value, pod: &SitePod) -> Option<Value> {
    let is_v6 = address["ip"].as_str().is_some_and(|ip| ip.contains(':'));
    let now = pod.addresses.iter().find(|ip| ip.contains(':') == is_v6)?;
    let mut moved = address.clone();
    moved["ip"] = now.as_str().into();
    Some(moved)
}

/// A pod without an address of the slice's family leaves the slice.
fn followed_slice(slice: &Value, pods: &BTreeMap<String, SitePod>) -> Option<Value> {
    let is_family = |address: &str| match slice["addressType"].as_str() {
        Some("IPv4") => address.parse::<std::net::Ipv4Addr>().is_ok(),
        Some("IPv6") => address.parse::<std::net::Ipv6Addr>().is_ok(),
        _ => false,
    };
    let namespace = slice["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut endpoints = Vec::new();
    for endpoint in slice["endpoints"].as_array()? {
        let Some(pod) = pod_of(namespace, &endpoint["targetRef"], pods) else {
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

/// The object that takes the place of another, and the changes that put it in force, in steps: watchers see the first object leave
/// before the second one comes.
fn stand_in(
    kind: EndpointKind,
    copied: &KubeObject,
    body: Value,
    at: Revision,
) -> (StandIn, Vec<LocalChanges>) {
    let stands_on = Some((copied.key.clone(), copied.revision));
    let (namespace, name) = copied.key.split_once('/').unwrap_or(("", &copied.key));
    let version = site_name(name, &body[kind.field()]);
    let name = match kind {
        EndpointKind::Slice => version.clone(),
        EndpointKind::Endpoints => name.to_owned(),
    };
    let key = format!("{namespace}/{name}");
    let mut body = mark(body, unix_now());
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("name".into(), name.into());
        metadata.insert("resourceVersion".into(), at.to_string().into());
        // Another object than the one of the API server; it has no UID there.
        metadata.remove("uid");
    }
    let object = KubeObject {
        key: key.clone(),
        uid: String::new(),
        revision: at,
        body: kept_text(&body).into(),
        cells: copied.cells.clone(),
    };
    let hidden = (copied.key.clone(), Some(LocalObject { stands_on: stands_on.clone(), object: None }));
    let shown = (key.clone(), Some(LocalObject { stands_on, object: Some(object) }));
    let steps = match kind {
        EndpointKind::Slice => vec![vec![hidden, shown]],
        EndpointKind::Endpoints => vec![vec![hidden], vec![shown]],
    };
    (StandIn { key, version, revision: copied.revision }, steps)
}

/// Local objects by key; `None` takes one away.
type LocalChanges = Vec<(String, Option<LocalObject>)>;

/// Keeps the stand-ins in force.
pub struct EndpointFollower {
    log: PendingLog,
    subscriptions: Subscriptions,
    /// The objects that are withdrawn, by resource and key.
    shown: Mutex<BTreeMap<(ResourceName, String), StandIn>>,
}

/// The object in place of another.
#[derive(Clone, PartialEq, Eq, Debug)]
struct StandIn {
    key: String,
    /// Follows from its addresses.
    version: String,
    /// The revision of the object that it stands on.
    revision: Revision,
}

/// The versions of the API under which slices are served.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// The time that the cluster has to change its slices after the last status of a pod was sent.
const RETURN: Duration = Duration::from_secs(10);
// A slice may enter the copy while pods wait.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

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
                let _ = tokio::time::timeout(CHECK_INTERVAL, changes.changed()).await;
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
        let slices = VERSIONS.map(|version| ResourceName::new("discovery.k8s.io", version, "endpointslices"));
        for resource in slices.into_iter().chain([ResourceName::new("", "v1", "endpoints")]) {
            if let Err(error) = self.follow_resource(&resource, pods).await {
                tracing::warn!(
                    error = error_chain(&error), %resource,
                    "endpoints cannot follow the pods of the site"
                );
            }
        }
    }

    async fn follow_resource(
        &self,
        resource: &ResourceName,
        pods: &BTreeMap<String, SitePod>,
    ) -> Result<(), CopyError> {
        let (kind, mut seen) = (EndpointKind::of(resource), BTreeSet::new());
        for collection in self.subscriptions.of_resource(resource) {
            let (at, slices) = collection.list_copied("").await?;
            for copied in slices {
                let Ok(slice) = serde_json::from_slice::<Value>(&copied.body) else { continue };
                if !seen.insert(copied.key.clone()) {
                    continue;
                }
                let entry = (resource.clone(), copied.key.clone());
                let shown = self.lock().get(&entry).cloned();
                let Some(slice) = followed(kind, &slice, pods) else {
                    // Its pods are as the API server knows them again.
                    if shown.is_some() {
                        self.clear(&entry).await?;
                    }
                    continue;
                };
                let (wanted, mut steps) = stand_in(kind, &copied, slice, at);
                if shown.as_ref() == Some(&wanted) {
                    continue;
                }
                if let Some(shown) = shown.filter(|shown| shown.key != wanted.key)
                    && let Some(first) = steps.first_mut()
                {
                    first.insert(0, (shown.key, None));
                }
                for changes in steps {
                    self.subscriptions.set_local(resource, changes).await?;
                }
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
                tracing::warn!(error = error_chain(&error), "endpoints of the site cannot be taken away");
            }
        }
    }

    async fn clear(&self, entry: &(ResourceName, String)) -> Result<(), CopyError> {
        let Some(shown) = self.lock().get(entry).cloned() else { return Ok(()) };
        if EndpointKind::of(&entry.0) == EndpointKind::Endpoints {
            let stands_on = Some((shown.key.clone(), shown.revision));
            let hidden = vec![(shown.key.clone(), Some(LocalObject { stands_on, object: None }))];
            self.subscriptions.set_local(&entry.0, hidden).await?;
        }
        let changes = vec![(shown.key, None), (entry.1.clone(), None)];
        self.subscriptions.set_local(&entry.0, changes).await?;
        self.lock().remove(entry);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(ResourceName, String), StandIn>> {
        self.shown.lock_ignoring_poison()
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
        let with = |name: &str, pod: SitePod| {
            followed(EndpointKind::Slice, &slice(), &BTreeMap::from([(format!("shop/{name}"), pod)]))
        };
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
        for kind in [EndpointKind::Slice, EndpointKind::Endpoints] {
            assert_eq!(followed(kind, &json!([]), &BTreeMap::new()), None);
        }
    }

    #[test]
    fn endpoints_follow_the_pods_of_the_site_and_no_others() {
        let address = |ip: &str, name: &str, uid: &str| json!({"ip": ip, "nodeName": "n", "targetRef": {"kind": "Pod", "name": name, "uid": uid}});
        let endpoints = json!({"metadata": {"name": "web", "namespace": "shop"}, "subsets": [{"ports": [{"port": 80}],
            "addresses": [address("10.0.0.1", "a", "u"), address("10.0.0.2", "b", "w")]}]});
        let with = |name: &str, pod: SitePod| {
            let pods = BTreeMap::from([(format!("shop/{name}"), pod)]);
            followed(EndpointKind::Endpoints, &endpoints, &pods).map(|followed| followed["subsets"].clone())
        };
        let moved = with("a", pod("u", &["fd00::1", "10.0.0.9"], true)).unwrap();
        assert_eq!(
            moved[0]["addresses"],
            json!([address("10.0.0.9", "a", "u"), address("10.0.0.2", "b", "w")])
        );
        assert_eq!(moved[0]["ports"], json!([{"port": 80}]));
        let unready = with("b", pod("w", &["10.0.0.2"], false)).unwrap();
        assert_eq!(unready[0]["notReadyAddresses"], json!([address("10.0.0.2", "b", "w")]));
        assert_eq!(unready[0]["addresses"], json!([address("10.0.0.1", "a", "u")]));
        assert_eq!(with("a", pod("u", &[], false)).unwrap()[0]["addresses"].as_array().unwrap().len(), 1);
        assert_eq!(with("a", pod("u", &["10.0.0.1"], true)), None, "nothing changed");
        assert_eq!(with("a", pod("other", &["10.0.0.9"], true)), None, "another pod of the same name");
        let pods = BTreeMap::from([
            ("shop/a".into(), pod("u", &[], false)),
            ("shop/b".into(), pod("w", &[], false)),
        ]);
        let empty = followed(EndpointKind::Endpoints, &endpoints, &pods).unwrap();
        assert_eq!(empty["subsets"], json!([]), "a subset without addresses");
    }

    #[test]
    fn endpoints_keep_their_name_and_leave_before_they_come() {
        let body = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s"}, "subsets": []});
        let copied = KubeObject {
            key: "shop/web".into(),
            uid: "s".into(),
            revision: Revision(5),
            body: body.to_string().into(),
            cells: bytes::Bytes::new(),
        };
        let (made, steps) = stand_in(EndpointKind::Endpoints, &copied, body.clone(), Revision(9));
        assert_eq!(made.key, "shop/web");
        let is_shown: Vec<bool> =
            steps.iter().map(|step| step[0].1.as_ref().unwrap().object.is_some()).collect();
        assert_eq!(is_shown, [false, true], "DELETED, then ADDED");
        let object = steps[1][0].1.as_ref().unwrap().object.clone().unwrap();
        let shown: Value = serde_json::from_slice(&object.body).unwrap();
        assert_eq!((&shown["metadata"]["name"], object.revision), (&json!("web"), Revision(9)));
        let other = json!({"metadata": {"name": "web", "namespace": "shop"}, "subsets": [{}]});
        let (other, _) = stand_in(EndpointKind::Endpoints, &copied, other, Revision(9));
        assert_ne!(made, other, "other addresses are another version");
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
        let (_, steps) = stand_in(EndpointKind::Slice, &copied, slice(), Revision(9));
        let made = steps.concat();
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
