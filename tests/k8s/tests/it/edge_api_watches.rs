//! Watches of many resources at the edge and at the API server from one revision: the same events in the same order, before, during and after a cut.
//! Objects are changed, deleted and made again while the link is away; the watches at the edge stay open.

use std::collections::BTreeMap;

use futures_util::{AsyncBufReadExt, TryStreamExt};
use kube::Client;
use serde_json::{Value, json};
use testlab::causeway::wait_for;

use crate::edge_api::{EdgeLab, client_of, missing};
use crate::edge_api_parity::{RESOURCES, create, definition, objects};

const POOL: &str = "default-pool";

fn pool() -> Value {
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": POOL},
        "spec": {"cidr": "10.9.0.0/16", "natOutgoing": true}})
}

/// One resource, and the object of it that changes.
struct WatchedResource {
    plural: String,
    /// The path of the list that is watched.
    path: String,
    name: String,
    /// The object as it is made again; `None`: it is not deleted.
    made: Option<Value>,
}

impl WatchedResource {
    /// `resource` is a plural, with its group behind a dot.
    async fn discover(client: &Client, resource: &str) -> WatchedResource {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let version = match group {
            "" => "/api/v1".to_owned(),
            group => {
                let found = get(client, &format!("/apis/{group}")).await;
                format!("/apis/{}", found["preferredVersion"]["groupVersion"].as_str().unwrap())
            }
        };
        let all = get(client, &version).await["resources"].as_array().unwrap().clone();
        let own = all.iter().find(|entry| entry["name"] == plural).unwrap();
        let path = match own["namespaced"] == true {
            true => format!("{version}/namespaces/default/{plural}"),
            false => format!("{version}/{plural}"),
        };
        let name = match plural {
            "configmaps" | "secrets" | "pods" => "shop-0",
            "nodes" => "node-a",
            "namespaces" => "default",
            "clusterroles" => "view",
            "flowschemas" => "catch-all",
            "ippools" => POOL,
            _ => "shop",
        };
        let mut known = objects().into_iter().chain([pool()]);
        let made = known.find(|object| object["kind"] == own["kind"] && object["metadata"]["name"] == name);
        let (plural, name) = (plural.to_owned(), name.to_owned());
        // Pods are of the node, Endpoints go with their Service, and no controller computes the quota that new Secrets count against.
        let made = made.filter(|_| !matches!(plural.as_str(), "nodes" | "services" | "secrets"));
        WatchedResource { made, plural, path, name }
    }

    /// Marks the object; a watcher sees it as MODIFIED.
    async fn mark(&self, client: &Client, step: &str) {
        let patch = json!({"metadata": {"labels": {"step": step}}}).to_string();
        let request = http::Request::patch(format!("{}/{}", self.path, self.name));
        let request = request.header("Content-Type", "application/merge-patch+json");
        client.request_text(request.body(patch.into_bytes()).unwrap()).await.unwrap();
    }

    async fn make_again(&self, client: &Client) {
        let Some(made) = &self.made else { return };
        let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"}).to_string();
        let json_type = ("Content-Type", "application/json");
        let delete = http::Request::delete(format!("{}/{}", self.path, self.name));
        let delete = delete.header(json_type.0, json_type.1).body(options.into_bytes()).unwrap();
        client.request_text(delete).await.unwrap();
        let create = http::Request::post(&self.path).header(json_type.0, json_type.1);
        let created = client.request_text(create.body(made.to_string().into_bytes()).unwrap()).await;
        // A volume that is protected by a finalizer stays.
        let is_protected = self.plural.starts_with("persistentvolume");
        assert!(created.is_ok() || is_protected, "{}: {created:?}", self.path);
    }

    /// The events after a revision: type, name, revision and mark, up to the last mark.
    async fn events(&self, client: Client, after: u64) -> Vec<[String; 4]> {
        let path = format!("{}?watch=1&resourceVersion={after}", self.path);
        let request = http::Request::get(&path).body(Vec::new()).unwrap();
        let mut lines = std::pin::pin!(client.request_stream(request).await.unwrap().lines());
        let mut seen = Vec::new();
        loop {
            let next = tokio::time::timeout(testlab::causeway::DEADLINE, lines.try_next()).await;
            let line = match next {
                Ok(Ok(Some(line))) => line,
                other => panic!("{path}: {other:?} after {seen:?}"),
            };
            let event: Value = serde_json::from_str(&line).unwrap();
            let metadata = &event["object"]["metadata"];
            let parts = [
                &event["type"],
                &metadata["name"],
                &metadata["resourceVersion"],
                &metadata["labels"]["step"],
            ];
            let parts = parts.map(|part| part.as_str().unwrap_or_default().to_owned());
            let is_last = parts[3] == LAST;
            seen.push(parts);
            if is_last {
                return seen;
            }
        }
    }
}

const LAST: &str = "last";

async fn get(client: &Client, path: &str) -> Value {
    client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

#[test]
fn watches_of_every_resource_see_the_events_of_the_api_server_through_a_cut() {
    if let Some(reason) = missing() {
        println!("SKIPPED: watches of many resources at the edge: {reason}");
        return;
    }
    let lab = EdgeLab::start();
    let direct = lab.direct();
    create(&direct, &[definition("ippools", "IPPool")]);
    create(&direct, &objects());
    wait_for("the custom resource is served", || {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [pool()]});
        testlab::causeway::finish(direct.command("apply -f -"), Some(&list.to_string())).ok()?.success().ok()
    })
    .unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(same_events(&lab));
}

async fn same_events(lab: &EdgeLab) {
    let direct = lab.cluster.client().await;
    let edge = client_of(&lab.edge_kubeconfig(&lab.cluster.token())).await;
    let mut watched = Vec::new();
    for resource in RESOURCES {
        watched.push(std::sync::Arc::new(WatchedResource::discover(&direct, resource).await));
    }
    // The first list passes, and a copy is begun.
    for resource in &watched {
        get(&edge, &resource.path).await;
    }
    let mut tasks = BTreeMap::new();
    for resource in &watched {
        lab.await_live(&resource.plural);
        let list = get(&edge, &resource.path).await;
        let after: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let begin = |client: &Client| {
            let (resource, client) = (resource.clone(), client.clone());
            tokio::spawn(async move { resource.events(client, after).await })
        };
        tasks.insert(resource.path.clone(), (begin(&edge), begin(&direct)));
    }
    for resource in &watched {
        let has_watcher = || lab.resource(&resource.plural).filter(|entry| entry["watchers"] == 1).map(drop);
        wait_for(&format!("{} are watched", resource.plural), has_watcher).unwrap();
        resource.mark(&direct, "before").await;
    }
    lab.relay.cut();
    wait_for("the edge knows that the link is cut", || {
        lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
    })
    .unwrap();
    for resource in &watched {
        resource.mark(&direct, "during").await;
        resource.make_again(&direct).await;
        resource.mark(&direct, "again").await;
    }
    lab.relay.restore();
    for resource in &watched {
        resource.mark(&direct, LAST).await;
    }
    let mut events = 0;
    for (path, (ours, theirs)) in tasks {
        let (ours, theirs) = (ours.await.unwrap(), theirs.await.unwrap());
        assert_eq!(ours, theirs, "{path}");
        events += ours.len();
    }
    println!("{} resources: {events} events are the same, in the same order", watched.len());
    assert!(events >= 4 * watched.len());
}
