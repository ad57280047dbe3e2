//! An edge that claims what is not its own, against a real API server: nodes of another site, users in headers, and copies in the name of another
//! node. Requests are written by hand, as no edge of ours would send them; the audit log of the API server shows what has come of them.

use std::sync::Arc;

use causeway_api::Revision;
use causeway_apicache::resource::{ResourceName, SubscriptionScope};
use causeway_apicache::sync::frames::{self, MESSAGE_BYTES_MAX, MessageReader};
use causeway_apicache::sync::receiver::subscribe;
use causeway_apicache::sync::wire::{CloudSyncBody, CloudSyncMessage, EdgeSyncBody, EdgeSyncMessage};
use causeway_apicache::upstream::{REQUEST_TARGET, SYNC_TARGET, Upstream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::edge_api::Cluster;

const SITE: &str = "site-0";

/// Code and body of a request on a stream of the site.
async fn ask(upstream: &Arc<Upstream>, line: &str, headers: &str, body: &str) -> (String, String) {
    let (mut near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(upstream.clone().serve(SITE.to_owned(), REQUEST_TARGET, far));
    let text = format!(
        "{line} HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    near.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    crate::kube_rs::soon("an answer", near.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

/// The code of the refusal of a copy that is asked for in the name of a node; `None`: it is accepted.
async fn refused_copy(upstream: &Arc<Upstream>, node: &str) -> Option<u32> {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(upstream.clone().serve(SITE.to_owned(), SYNC_TARGET, far));
    let (recv, mut send) = tokio::io::split(near);
    let mut reader = MessageReader::new(recv, MESSAGE_BYTES_MAX + 1);
    let mut first =
        subscribe(&SubscriptionScope::all(ResourceName::parse("v1/services").unwrap()), Revision(0), 0);
    first.node = node.to_owned();
    frames::write(&mut send, &EdgeSyncMessage::from(EdgeSyncBody::Subscribe(first))).await.unwrap();
    let answer = crate::kube_rs::soon("an answer", reader.next::<CloudSyncMessage>()).await.unwrap();
    match answer.unwrap().body.unwrap() {
        CloudSyncBody::Refused(refused) => Some(refused.code),
        CloudSyncBody::Accepted(_) => None,
        other => panic!("{other:?}"),
    }
}

/// `node-0` is a node of the site, `node-1` of another one.
pub async fn an_edge_speaks_for_the_nodes_of_its_site_only(cluster: &Cluster, upstream: &Arc<Upstream>) {
    let nodes: Api<Node> = Api::all(cluster.client().await);
    for name in ["node-0", "node-1"] {
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let own = "X-Causeway-Node: node-0\r\n";
    let seen = ask(upstream, "GET /api/v1/nodes/node-0", own, "").await;
    assert!(seen.0 == "200" && seen.1.contains("node-0"), "{seen:?}");

    let patch = json!({"metadata": {"annotations": {"by": "another"}}}).to_string();
    let merge = "Content-Type: application/merge-patch+json\r\n";
    for (sentence, line, headers, expected) in [
        (
            "it claims a node of another site",
            "GET /api/v1/nodes/node-1",
            "X-Causeway-Node: node-1\r\n",
            "403",
        ),
        ("also for what is its own", "GET /api/v1/nodes/node-0", "X-Causeway-Node: node-1\r\n", "403"),
        (
            "two names are not the better of them",
            "GET /api/v1/nodes/node-1",
            "X-Causeway-Node: node-1\r\nX-Causeway-Node: node-0\r\n",
            "403",
        ),
        ("its node writes about itself only", "PATCH /api/v1/nodes/node-1/status", own, "403"),
        (
            "a claimed node writes nothing",
            "PATCH /api/v1/nodes/node-1/status",
            "X-Causeway-Node: node-1\r\n",
            "403",
        ),
        (
            "its node reads no Secret that no pod of it uses",
            "GET /api/v1/namespaces/kube-system/secrets",
            own,
            "403",
        ),
        ("no credential is the cloud's own", "GET /api/v1/nodes/node-0", "", "401"),
        ("nor a user in a header", "GET /api/v1/secrets", "Impersonate-User: admin\r\n", "401"),
        ("nor the user of a proxy", "GET /api/v1/secrets", "X-Remote-User: admin\r\n", "401"),
        (
            "a token counts by itself",
            "GET /api/v1/nodes/node-1",
            "Authorization: Bearer invented\r\nX-Causeway-Node: node-0\r\n",
            "401",
        ),
    ] {
        let headers =
            if line.starts_with("PATCH") { format!("{headers}{merge}") } else { headers.to_owned() };
        let body = if line.starts_with("PATCH") { patch.as_str() } else { "" };
        let answer = ask(upstream, line, &headers, body).await;
        assert_eq!(answer.0, expected, "{sentence}: {}", answer.1);
    }
    // A user in a header is dropped, and the request is that of the node.
    let both = format!("{own}Impersonate-User: admin\r\nImpersonate-Group: system:masters\r\n");
    assert_eq!(ask(upstream, "GET /api/v1/nodes/node-0", &both, "").await.0, "200");
    assert_eq!(ask(upstream, "GET /api/v1/secrets", &both, "").await.0, "403");
    assert_eq!(
        refused_copy(upstream, "node-1").await,
        Some(403),
        "a copy in the name of another site's node"
    );
    assert_eq!(refused_copy(upstream, "node-0").await, None);

    let other = nodes.get("node-1").await.unwrap();
    assert_eq!(other.metadata.annotations.unwrap_or_default().get("by"), None, "nothing of it was written");
    let log = std::fs::read_to_string(cluster.0.join("audit.log")).unwrap();
    let acted: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|event| event["impersonatedUser"]["username"].clone())
        .filter(|user| !user.is_null())
        .collect();
    assert!(acted.contains(&"system:node:node-0".into()));
    // The nodes of the sites before were node-1 too, but none of them has asked for its Node.
    let claimed = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|event| {
        event["impersonatedUser"]["username"] == "system:node:node-1"
            && event["objectRef"]["resource"] == "nodes"
            && !event["objectRef"]["name"].is_null()
    });
    assert_eq!(claimed.count(), 0, "no request for a node was sent in the name of the other site's node");
    assert!(!acted.contains(&"admin".into()));
    println!("a compromised edge was refused; {} requests were sent in the name of nodes", acted.len());
}
