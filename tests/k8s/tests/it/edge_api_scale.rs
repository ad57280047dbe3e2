//! The cost of the API cache against a real kube-apiserver: bytes for a site that was away until the history was gone, and requests at the API
//! server for many sites. Prints its figures. `CAUSEWAY_SOAK=1` takes 10,000 objects and 500 sites.

use std::collections::BTreeMap;
use std::sync::Arc;

use causeway_api::Revision;
use causeway_apicache::connector::ConnectorFuture;
use causeway_apicache::resource::{ResourceName, SubscriptionScope};
use causeway_apicache::sync::frames::{self, MESSAGE_BYTES_MAX, MessageReader};
use causeway_apicache::sync::receiver::{SyncReceiver, SyncStep, acknowledge, subscribe};
use causeway_apicache::sync::wire::{
    ChangeEntry, CloudSyncBody, CloudSyncMessage, EdgeSyncBody, EdgeSyncMessage,
};
use causeway_apicache::upstream::{SYNC_TARGET, SiteFacts, Upstream};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::random::SeededRandom;
use testlab::relay::Direction;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::edge_api::{Cluster, EdgeLab, missing};

fn is_soak() -> bool {
    std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1")
}

/// About 1 KiB that hardly shrinks.
fn content(random: &mut SeededRandom) -> String {
    (0..60).map(|_| format!("{:016x}", random.number())).collect()
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"tier": "edge"}}, "data": {"value": value}}),
    )
    .unwrap()
}

async fn fill(maps: &Api<ConfigMap>, names: impl Iterator<Item = String>, random: &mut SeededRandom) {
    let all: Vec<ConfigMap> = names.map(|name| map(&name, &content(random))).collect();
    let create = |map: ConfigMap| async move { maps.create(&PostParams::default(), &map).await.unwrap() };
    stream::iter(all).map(create).buffer_unordered(32).for_each(|_| async {}).await;
}

async fn revision_of(maps: &Api<ConfigMap>) -> u64 {
    let list = maps.list(&ListParams::default().limit(1)).await.unwrap();
    list.metadata.resource_version.unwrap().parse().unwrap()
}

/// Bytes on the link, both directions.
fn carried(lab: &EdgeLab) -> u64 {
    lab.relay.carried_bytes(Direction::Up) + lab.relay.carried_bytes(Direction::Down)
}

fn await_current(lab: &EdgeLab, revision: u64) {
    wait_for(&format!("the copy is live at {revision}"), || {
        let entry = lab.resource("configmaps")?;
        let reached: u64 = entry["revision"].as_str()?.parse().ok()?;
        (entry["live"] == true && reached >= revision).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", lab.resource("configmaps"), lab.edge.log()));
}

const CHANGED: usize = 50;

#[test]
fn a_site_that_returns_after_compaction_gets_what_changed() {
    if let Some(reason) = missing() {
        println!("SKIPPED: the return of a site after compaction: {reason}");
        return;
    }
    let objects = if is_soak() { 10_000 } else { 1_000 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut random = SeededRandom::for_test("return after compaction");
    let mut lab = EdgeLab::start_unpinned();
    let maps: Api<ConfigMap> = Api::namespaced(runtime.block_on(lab.cluster.client()), "default");
    let name = |number: usize| format!("map-{number:05}");
    runtime.block_on(fill(&maps, (0..objects).map(name), &mut random));

    // The whole copy, as a relist brings it. The pin is read with a new link.
    let pin = json!({"kind": "ESite", "apiVersion": "causeway.io/v1", "metadata": {"name": "Tokyo"},
        "cache": [{"resource": "v1/configmaps", "namespace": "default"}]});
    lab.cloud.apply(&pin.to_string()).unwrap().success().unwrap();
    let before = carried(&lab);
    lab.restart_edge();
    await_current(&lab, runtime.block_on(revision_of(&maps)));
    let whole = carried(&lab) - before;

    // A restarted edge goes on from its copy.
    let before = carried(&lab);
    lab.restart_edge();
    await_current(&lab, runtime.block_on(revision_of(&maps)));
    let restarted = carried(&lab) - before;

    // Back after a restart of the cloud, and nothing has changed.
    let away = |lab: &mut EdgeLab, change: &mut dyn FnMut()| {
        lab.relay.cut();
        lab.cloud.process.kill().unwrap();
        wait_for("the edge knows that the cloud is away", || {
            lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
        })
        .unwrap();
        change();
        let revision = runtime.block_on(revision_of(&maps));
        lab.cluster.compact(revision);
        lab.start_cloud_again();
        let before = carried(lab);
        lab.relay.restore();
        await_current(lab, revision);
        carried(lab) - before
    };
    let nothing = away(&mut lab, &mut || {});
    let changed = away(&mut lab, &mut || {
        runtime.block_on(async {
            for number in 0..CHANGED - 10 {
                let patch = json!({"data": {"value": content(&mut random)}});
                let (name, patch) = (name(number * 20), Patch::Merge(&patch));
                maps.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            }
            for number in 0..5 {
                maps.delete(&name(number * 20 + 7), &DeleteParams::default()).await.unwrap();
            }
            fill(&maps, (0..5).map(|number| format!("new-{number}")), &mut random).await;
        });
    });
    println!(
        "{objects} objects, bytes on the link with its handshake: whole copy {whole}; after a restart of the edge {restarted}; back after a restart of the cloud and compaction: \
         nothing changed {nothing}, {CHANGED} changed {changed}"
    );
    let (direct, edge) = (lab.direct(), lab.through_edge(&lab.cluster.token()));
    let list = "get --raw /api/v1/namespaces/default/configmaps";
    let items = |text: String| serde_json::from_str::<Value>(&text).unwrap()["items"].take();
    assert_eq!(items(edge.ok(list)), items(direct.ok(list)), "the copy is equal");
    assert!(changed < whole / 3, "{changed} of {whole}");
    assert!(restarted < whole / 10, "{restarted} of {whole}");
}

/// Node `node-N` belongs to site `site-N`.
struct NodePerSite;

impl SiteFacts for NodePerSite {
    fn has_node<'a>(&'a self, site: &'a str, node: &'a str) -> ConnectorFuture<'a, bool> {
        Box::pin(async move { site.strip_prefix("site-") == node.strip_prefix("node-") })
    }

    fn pins<'a>(&'a self, _: &'a str) -> ConnectorFuture<'a, Option<Vec<SubscriptionScope>>> {
        Box::pin(async { Some(Vec::new()) })
    }
}

/// One subscription of a simulated site: both ends speak the real protocol; the copy is in memory.
async fn follow(upstream: Arc<Upstream>, number: usize, resource: &'static str, reached: watch::Sender<u64>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(upstream.serve(format!("site-{number}"), SYNC_TARGET, far));
    let (recv, mut send) = tokio::io::split(near);
    let mut reader = MessageReader::new(recv, MESSAGE_BYTES_MAX + 1);
    let scope = SubscriptionScope::all(ResourceName::parse(resource).unwrap());
    let mut first = subscribe(&scope, Revision(0), 0);
    first.node = format!("node-{number}");
    let mut say =
        async |body: EdgeSyncBody| frames::write(&mut send, &EdgeSyncMessage::from(body)).await.unwrap();
    say(EdgeSyncBody::Subscribe(first)).await;
    let mut receiver = SyncReceiver::new(Revision(0));
    let mut copy: BTreeMap<String, u64> = BTreeMap::new();
    let mut apply = |changes: Vec<ChangeEntry>| {
        for change in changes {
            match change.deleted {
                true => drop(copy.remove(&change.key)),
                false => drop(copy.insert(change.key, change.revision)),
            }
        }
    };
    while let Some(message) = reader.next::<CloudSyncMessage>().await.unwrap() {
        let Some(body) = message.body else { continue };
        match receiver.handle(body).unwrap() {
            SyncStep::Describe(_) => {}
            SyncStep::Stage { changes, sequence } => {
                apply(changes);
                say(acknowledge(sequence)).await;
            }
            SyncStep::Complete { changes, sequence, revision } => {
                apply(changes);
                reached.send_replace(revision.0);
                say(acknowledge(sequence)).await;
            }
            SyncStep::Advance(revision) => drop(reached.send_replace(revision.0)),
            SyncStep::Refused(status) => panic!("{resource} of site-{number}: {status}"),
            other => panic!("the copy is empty: {other:?}"),
        }
    }
}

/// Resources that a node may list and watch.
const FOLLOWED: [&str; 3] = ["v1/services", "v1/nodes", "v1/pods"];
/// Roles, ClusterRoles and their bindings: the cloud watches them, so that decisions need not be asked again.
const RBAC: usize = 4;

/// Requests of the cloud in the audit log: lists, watches, reviews, and the rest.
fn requests(cluster: &Cluster) -> [usize; 4] {
    let log = std::fs::read_to_string(cluster.0.join("audit.log")).unwrap();
    let mut counts = [0; 4];
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        // The same user as in the test, which only creates services.
        if event["user"]["username"] != "admin" || event["stage"] != "RequestReceived" {
            continue;
        }
        let kind = match (event["verb"].as_str(), event["objectRef"]["resource"].as_str()) {
            (Some("create"), Some("services")) => continue,
            (Some("list"), _) => 0,
            (Some("watch"), _) => 1,
            (_, Some("selfsubjectaccessreviews")) => 2,
            _ => 3,
        };
        counts[kind] += 1;
    }
    counts
}

#[test]
fn the_api_server_sees_one_watch_per_resource_for_all_sites() {
    if let Some(reason) = missing() {
        println!("SKIPPED: many sites at one API server: {reason}");
        return;
    }
    let steps: &[usize] = if is_soak() { &[1, 10, 500] } else { &[1, 10, 50] };
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("audit.json");
    let rules = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
    std::fs::write(&policy, rules.to_string()).unwrap();
    let policy = format!("--audit-policy-file={}", policy.display());
    let node_restriction = "--enable-admission-plugins=NodeRestriction";
    let cluster = Cluster::start(folder.path(), &[&policy, "--audit-log-path=audit.log", node_restriction]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(many_sites(&cluster, steps));
}

async fn many_sites(cluster: &Cluster, steps: &[usize]) {
    let services: Api<Service> = Api::namespaced(cluster.client().await, "default");
    let upstream = Arc::new(Upstream::open(&cluster.kubeconfig(), Arc::new(NodePerSite)).await.unwrap());
    let (mut tasks, mut sites) = (JoinSet::new(), Vec::new());
    let started = std::time::Instant::now();
    for &count in steps {
        while sites.len() < count * FOLLOWED.len() {
            let (number, resource) = (sites.len() / FOLLOWED.len(), FOLLOWED[sites.len() % FOLLOWED.len()]);
            let (sender, receiver) = watch::channel(0);
            tasks.spawn(follow(upstream.clone(), number, resource, sender));
            sites.push((resource, receiver));
        }
        // A change reaches every site.
        let service = json!({"metadata": {"name": format!("step-{count}")}, "spec": {"clusterIP": "None"}});
        let service = serde_json::from_value(service).unwrap();
        let made = services.create(&PostParams::default(), &service).await.unwrap();
        let wanted: u64 = made.metadata.resource_version.unwrap().parse().unwrap();
        let all_there = async {
            for (resource, reached) in &mut sites {
                let enough = if *resource == "v1/services" { wanted } else { 1 };
                reached.wait_for(|revision| *revision >= enough).await.unwrap();
            }
        };
        tokio::select! {
            () = crate::kube_rs::soon("every site has the change", all_there) => {}
            Some(ended) = tasks.join_next() => panic!("a subscription ended: {ended:?}"),
        }
        // A feed is ready with its list; its watch follows.
        let counted = || Some(requests(cluster)).filter(|[_, watches, ..]| *watches >= FOLLOWED.len() + RBAC);
        let [lists, watches, reviews, others] = wait_for("every resource is watched", counted).unwrap();
        println!(
            "{count} sites with {} subscriptions: {lists} lists, {watches} watches, {reviews} access reviews, {others} other requests",
            sites.len()
        );
        assert_eq!(watches, FOLLOWED.len() + RBAC, "one watch per resource");
        // One to learn the kind of the list, one for the objects.
        assert_eq!(lists, 2 * (FOLLOWED.len() + RBAC), "one list per resource");
        // `list` and `watch` of each resource, asked for the first node; every other node has the same rights.
        // Every five minutes the cloud asks once more whether it may name the group of nodes.
        let own = 1 + started.elapsed().as_secs() as usize / 300;
        let shared = 2 * FOLLOWED.len();
        assert!((shared + 1..=shared + own).contains(&reviews), "nodes share decisions: {reviews} reviews");
    }
    a_binding_of_one_node_is_not_shared(cluster, &upstream).await;
    crate::edge_api_compromised::an_edge_speaks_for_the_nodes_of_its_site_only(cluster, &upstream).await;
}

/// A right of one node is not given to another, and a right that is taken away ends the subscription within seconds.
async fn a_binding_of_one_node_is_not_shared(cluster: &Cluster, upstream: &Arc<Upstream>) {
    let client = cluster.client().await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "limits"},
        "rules": [{"apiGroups": [""], "resources": ["limitranges"], "verbs": ["list", "watch"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "limits"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "limits"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:node:node-0"}]});
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(client);
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    // Node 0 asks first, before or after the cloud has seen the binding.
    let mut own = subscribed(upstream, 0, "v1/limitranges").await;
    assert!(own.accepted, "the binding names node 0");
    assert!(!subscribed(upstream, 1, "v1/limitranges").await.accepted, "it does not name node 1");
    let since = std::time::Instant::now();
    bindings.delete("limits", &DeleteParams::default()).await.unwrap();
    crate::kube_rs::soon("the subscription of node 0 ends", own.refused()).await;
    println!("a removed ClusterRoleBinding ended the subscription after {:?}", since.elapsed());
}

/// A subscription that was answered.
struct AnsweredSubscription {
    reader: MessageReader<tokio::io::ReadHalf<tokio::io::DuplexStream>>,
    _send: tokio::io::WriteHalf<tokio::io::DuplexStream>,
    accepted: bool,
}

async fn subscribed(upstream: &Arc<Upstream>, number: usize, resource: &str) -> AnsweredSubscription {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(upstream.clone().serve(format!("site-{number}"), SYNC_TARGET, far));
    let (recv, mut send) = tokio::io::split(near);
    let mut reader = MessageReader::new(recv, MESSAGE_BYTES_MAX + 1);
    let scope = SubscriptionScope::all(ResourceName::parse(resource).unwrap());
    let mut first = subscribe(&scope, Revision(0), 0);
    first.node = format!("node-{number}");
    frames::write(&mut send, &EdgeSyncMessage::from(EdgeSyncBody::Subscribe(first))).await.unwrap();
    let answer = reader.next::<CloudSyncMessage>().await.unwrap().unwrap().body;
    let accepted = matches!(answer, Some(CloudSyncBody::Accepted(_)));
    AnsweredSubscription { reader, _send: send, accepted }
}

impl AnsweredSubscription {
    /// Waits for the refusal.
    async fn refused(&mut self) {
        loop {
            match self.reader.next::<CloudSyncMessage>().await.unwrap().map(|message| message.body) {
                Some(Some(CloudSyncBody::Refused(refused))) => return assert_eq!(refused.code, 403),
                Some(_) => {}
                None => panic!("the stream ended without a refusal"),
            }
        }
    }
}
