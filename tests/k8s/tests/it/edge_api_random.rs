//! Random operations against the API at the edge, with the API server beside it: every list of the edge is the API server's own list at the
//! revision that the edge names, through cuts and restarts. Bad input gets a clear refusal and harms no other client.

use std::process::Command;
use std::time::Instant;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher;
use serde_json::{Value, json};
use testlab::causeway::{finish, wait_for};
use testlab::random::SeededRandom;

use crate::edge_api::{EdgeLab, Watching, client_of, missing};
use crate::kubectl::Kubectl;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const NAMES: u64 = 10;
const TIERS: [&str; 3] = ["a", "b", "c"];
const SELECTIONS: [&str; 7] = [
    "",
    "labelSelector=tier%3Da",
    "labelSelector=tier%21%3Da",
    "labelSelector=tier%20in%20%28a%2Cb%29",
    "labelSelector=%21tier",
    "fieldSelector=metadata.name%3Done-3",
    "fieldSelector=metadata.name%21%3Done-3",
];

/// The resource that changes, and what can be asked about it.
struct RandomTarget {
    plural: &'static str,
    path: &'static str,
    resource: ApiResource,
    selections: Vec<&'static str>,
    /// An object of this name, with a value that changes it.
    object: fn(&str, &str) -> Value,
}

impl RandomTarget {
    fn config_maps() -> RandomTarget {
        let object = |name: &str, value: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"tier": "edge"}},
                "data": {"value": value}})
        };
        let resource = ApiResource::erase::<ConfigMap>(&());
        RandomTarget { plural: "configmaps", path: MAPS, resource, selections: SELECTIONS.to_vec(), object }
    }

    /// Half of the pods are bound to a node. No kubelet runs.
    fn pods() -> RandomTarget {
        let object = |name: &str, value: &str| {
            let mut spec = json!({"containers": [{"name": "a", "image": "a"}]});
            if name.ends_with(['0', '2', '4', '6', '8']) {
                spec["nodeName"] = "node-a".into();
            }
            let metadata = json!({"name": name, "labels": {"tier": "edge"}, "annotations": {"value": value}});
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        };
        let mut selections = SELECTIONS.to_vec();
        selections.extend([
            "fieldSelector=spec.nodeName%3Dnode-a",
            "fieldSelector=spec.nodeName%21%3Dnode-a&labelSelector=tier%3Da",
            "fieldSelector=status.phase%3DPending%2Cspec.nodeName%3D",
        ]);
        let resource = ApiResource::erase::<Pod>(&());
        RandomTarget { plural: "pods", path: PODS, resource, selections, object }
    }
}

struct RandomRun {
    target: RandomTarget,
    lab: EdgeLab,
    random: SeededRandom,
    direct: Kubectl,
    edge: Kubectl,
    watches: (Watching, Watching),
    is_cut: bool,
    /// The newest revision that the edge has shown.
    newest: u64,
    /// Revisions of lists before.
    seen: Vec<u64>,
    markers: usize,
    answered: usize,
    /// Answers without the cloud: 503.
    refused: usize,
    /// Revisions that the edge does not remember: 410.
    gone: usize,
    streamed: usize,
    runtime: tokio::runtime::Runtime,
}

impl RandomRun {
    fn start(target: RandomTarget, lab: EdgeLab, random: SeededRandom) -> RandomRun {
        let (direct, edge) = (lab.direct(), lab.through_edge(&lab.cluster.token()));
        direct.ok_with(&(target.object)("one-0", "first").to_string(), "apply -f -");
        edge.ok(&format!("get {}", target.plural));
        lab.await_live(target.plural);
        // Without the cloud only names that the API server allowed before are given.
        for number in 0..NAMES {
            edge.run(&format!("get {} one-{number}", target.plural));
        }
        let watches = both_watches(&direct, &edge, target.path);
        RandomRun {
            target,
            lab,
            random,
            direct,
            edge,
            watches,
            is_cut: false,
            newest: 0,
            seen: Vec::new(),
            markers: 0,
            answered: 0,
            refused: 0,
            gone: 0,
            streamed: 0,
            runtime: tokio::runtime::Runtime::new().unwrap(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..35 => self.change(),
            35..50 => self.list(),
            50..62 => self.list_at_revision(),
            62..72 => self.page(),
            72..80 => self.toggle_link(),
            80..86 => self.compare_watches(),
            86..89 => self.restart(),
            89..94 => self.stream(),
            _ => self.get(),
        }
    }

    /// A change in the cluster, which the edge may not hear of yet.
    fn change(&mut self) {
        let (name, plural) = (format!("one-{}", self.random.below(NAMES)), self.target.plural);
        let tier = TIERS[usize::try_from(self.random.below(3)).unwrap()];
        match self.random.below(4) {
            0 => self.delete(&name),
            1 => drop(self.direct.run(&format!("label {plural} {name} --overwrite tier={tier}"))),
            _ => {
                let value = self.random.number().to_string();
                self.apply(&name, &value);
            }
        }
    }

    fn apply(&self, name: &str, value: &str) {
        self.direct.ok_with(&(self.target.object)(name, value).to_string(), "apply -f -");
    }

    fn delete(&self, name: &str) {
        let options = "--ignore-not-found --grace-period=0 --force --wait=false";
        self.direct.ok(&format!("delete {} {name} {options}", self.target.plural));
    }

    fn selection(&mut self) -> &'static str {
        let count = self.target.selections.len() as u64;
        self.target.selections[usize::try_from(self.random.below(count)).unwrap()]
    }

    fn list(&mut self) {
        let (selection, path) = (self.selection(), self.target.path);
        let Some(found) = self.ask(&format!("{path}?{selection}")) else { return };
        let revision = self.note_revision(&found);
        self.compare(revision, selection, found["items"].as_array().unwrap());
    }

    /// A list with a resourceVersion: any, not older than one that the edge has shown, or exactly one of those. A revision that the
    /// edge does not remember is gone (410).
    fn list_at_revision(&mut self) {
        let (selection, path) = (self.selection(), self.target.path);
        let count = self.seen.len() as u64;
        let earlier = match count {
            0 => self.newest,
            count => self.seen[usize::try_from(self.random.below(count)).unwrap()],
        };
        let (newest, choice) = (self.newest, self.random.below(5));
        let version = match choice {
            0 => "resourceVersion=0".to_owned(),
            1 => format!("resourceVersion={newest}"),
            2 => format!("resourceVersion={newest}&resourceVersionMatch=NotOlderThan"),
            3 => format!("resourceVersion={newest}&resourceVersionMatch=Exact"),
            _ => format!("resourceVersion={earlier}&resourceVersionMatch=Exact"),
        };
        let is_exact = version.ends_with("Exact");
        if newest == 0 && choice > 0 {
            return;
        }
        let Some(found) = self.ask(&format!("{path}?{selection}&{version}")) else { return };
        let revision: u64 = found["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        match (is_exact, choice) {
            (true, 3) => assert_eq!(revision, newest, "{version}"),
            (true, _) => assert_eq!(revision, earlier, "{version}"),
            (false, _) => assert!(revision >= newest, "{version}: {revision}"),
        }
        self.compare(revision, selection, found["items"].as_array().unwrap());
    }

    /// All pages of a list; they are of one revision.
    fn page(&mut self) {
        let (selection, path) = (self.selection(), self.target.path);
        let limit = 1 + self.random.below(4);
        let (mut items, mut next, mut first) = (Vec::new(), String::new(), 0);
        loop {
            let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
            let Some(found) = self.ask(&format!("{path}?{selection}&limit={limit}{more}")) else { return };
            let revision = self.note_revision(&found);
            first = if first == 0 { revision } else { first };
            assert_eq!(revision, first, "the pages of a list are of one revision");
            items.extend(found["items"].as_array().unwrap().iter().cloned());
            match found["metadata"]["continue"].as_str().filter(|text| !text.is_empty()) {
                Some(text) => next = text.to_owned(),
                None => break,
            }
        }
        self.compare(first, selection, &items);
    }

    /// A streaming list: ADDED events and the bookmark that ends them are the API server's own list at the revision of the bookmark. A client of
    /// kube-rs ends its first list with the same objects.
    fn stream(&mut self) {
        let selection = self.selection();
        let path = format!(
            "{}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1&{selection}",
            self.target.path
        );
        let ran = self.edge.run(&format!("get --raw '{path}'"));
        assert_eq!(ran.code, 0, "a streaming list is answered from the copy, online and offline: {ran:?}");
        let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let end = events.iter().position(|event| {
            event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
        });
        let end = end.unwrap_or_else(|| panic!("no end of the initial events: {}", ran.stdout));
        assert_eq!(
            (&events[end]["type"], &events[end]["object"]["kind"]),
            (&"BOOKMARK".into(), &self.target.resource.kind.as_str().into())
        );
        let revision =
            events[end]["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let bare = |mut object: Value| {
            let fields = object.as_object_mut().unwrap();
            fields.retain(|name, _| name != "kind" && name != "apiVersion");
            object
        };
        let items: Vec<Value> = events[..end]
            .iter()
            .map(|event| {
                assert_eq!(event["type"], "ADDED", "{event}");
                bare(event["object"].clone())
            })
            .collect();
        self.compare(revision, selection, &items);
        self.streamed += 1;
        let Some(before) = self.ask(self.target.path) else { return };
        let ours = self.runtime.block_on(streamed_by_kube_rs(&self.lab, &self.target.resource));
        let Some(after) = self.ask(self.target.path) else { return };
        if before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"] {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let items = after["items"].as_array().unwrap().iter();
            let listed: Vec<_> = items
                .map(|item| (text(&item["metadata"]["name"]), text(&item["metadata"]["resourceVersion"])))
                .collect();
            assert_eq!(ours, listed, "the first list of kube-rs");
        }
    }

    /// A get by name, with and without the cloud: the object as it was at the revision of the copy, or 404 where there was none.
    fn get(&mut self) {
        let (name, path) = (format!("one-{}", self.random.below(NAMES)), self.target.path);
        let Some(before) = self.ask(path) else { return };
        let is_live = self.is_live();
        let ran = self.edge.run(&format!("get --raw '{path}/{name}'"));
        let Some(after) = self.ask(path) else { return };
        let revision = self.note_revision(&after);
        if before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"] {
            return;
        }
        let theirs = self.at(revision, &format!("fieldSelector=metadata.name%3D{name}"));
        let theirs = theirs["items"].get(0);
        if ran.code == 0 {
            self.answered += 1;
            let found: Value = serde_json::from_str(&ran.stdout).unwrap();
            let parts =
                |object: &Value| ["data", "metadata", "spec", "status"].map(|part| object[part].clone());
            assert_eq!(Some(parts(&found)), theirs.map(parts), "{name} at {revision}");
        } else if ran.stderr.contains("NotFound") {
            assert_eq!(theirs, None, "{name} at {revision}");
        } else {
            // A link that has died under the request is a reason too.
            let is_live = is_live && self.is_live();
            assert!(is_unavailable(&ran.stderr) && !is_live, "{name}, link live {is_live}: {ran:?}");
            self.refused += 1;
        }
    }

    /// Returns true if the link works now. A request that begins then has no reason for 503.
    fn is_live(&self) -> bool {
        !self.is_cut && self.lab.dump().is_some_and(|dump| dump["connected"] == true)
    }

    /// The answer of the edge; `None` for a revision that is gone, and, without the cloud, for 503.
    fn ask(&mut self, path: &str) -> Option<Value> {
        let is_live = self.is_live();
        let ran = self.edge.run(&format!("get --raw '{path}'"));
        if ran.code == 0 {
            self.answered += 1;
            return Some(serde_json::from_str(&ran.stdout).unwrap());
        }
        let is_live = is_live && self.is_live();
        let names_revision = path.contains("Exact") || path.contains("continue=");
        let is_gone = names_revision && ["too old", "Expired"].iter().any(|text| ran.stderr.contains(text));
        let is_away = is_unavailable(&ran.stderr) && !is_live;
        assert!(is_gone || is_away, "{path}, link live {is_live}: {ran:?}");
        self.refused += usize::from(is_away);
        self.gone += usize::from(is_gone);
        None
    }

    fn note_revision(&mut self, list: &Value) -> u64 {
        let revision: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(
            list["metadata"]["continue"].is_string() || revision >= self.newest,
            "the edge went back to {revision}"
        );
        self.newest = self.newest.max(revision);
        self.seen.push(revision);
        revision
    }

    /// The API server's own list at a revision.
    fn at(&self, revision: u64, selection: &str) -> Value {
        let path = self.target.path;
        let path = format!("{path}?{selection}&resourceVersion={revision}&resourceVersionMatch=Exact");
        serde_json::from_str(&self.direct.ok(&format!("get --raw '{path}'"))).unwrap()
    }

    fn compare(&self, revision: u64, selection: &str, items: &[Value]) {
        let theirs = self.at(revision, selection);
        assert_eq!(Some(&items.to_vec()), theirs["items"].as_array(), "{selection} at {revision}");
    }

    fn toggle_link(&mut self) {
        match self.is_cut {
            true => self.lab.relay.restore(),
            false => self.lab.relay.cut(),
        }
        self.is_cut = !self.is_cut;
    }

    fn restore(&mut self) {
        if self.is_cut {
            self.toggle_link();
        }
    }

    /// Both watches saw the same events since they began.
    fn compare_watches(&mut self) {
        self.restore();
        self.markers += 1;
        let marker = format!("marker-{}", self.markers);
        self.apply(&marker, "now");
        let (theirs, ours) = (&self.watches.0, &self.watches.1);
        assert_eq!(
            ours.until("ADDED", &marker),
            theirs.until("ADDED", &marker),
            "no event is lost or doubled"
        );
        self.delete(&marker);
        let (theirs, ours) = (&self.watches.0, &self.watches.1);
        assert_eq!(ours.until("DELETED", &marker), theirs.until("DELETED", &marker));
    }

    /// The edge is killed and started again, with or without the cloud. Its watchers begin anew.
    fn restart(&mut self) {
        self.lab.restart_edge();
        self.edge = self.lab.through_edge(&self.lab.cluster.token());
        let list = format!("get --raw {}", self.target.path);
        wait_for("the edge answers again", || self.edge.run(&list).success().ok()).unwrap();
        self.watches = both_watches(&self.direct, &self.edge, self.target.path);
    }
}

/// The names and revisions of the first list of a watcher of kube-rs with streaming lists, in order of names.
async fn streamed_by_kube_rs(lab: &EdgeLab, resource: &ApiResource) -> Vec<(String, String)> {
    let client = client_of(&lab.edge_kubeconfig(&lab.cluster.token())).await;
    let objects: Api<DynamicObject> = Api::namespaced_with(client, "default", resource);
    let mut events = std::pin::pin!(watcher(objects, watcher::Config::default().streaming_lists()));
    let mut found = Vec::new();
    loop {
        match crate::kube_rs::soon("an event of the first list", events.next()).await.unwrap().unwrap() {
            watcher::Event::InitApply(object) => {
                found.push((object.name_any(), object.metadata.resource_version.unwrap_or_default()));
            }
            watcher::Event::Init => {}
            watcher::Event::InitDone => break,
            other => panic!("before the end of the first list: {other:?}"),
        }
    }
    found.sort();
    found
}

/// Watches of both from one revision: the one that the edge has.
fn both_watches(direct: &Kubectl, edge: &Kubectl, path: &str) -> (Watching, Watching) {
    let list: Value = serde_json::from_str(&edge.ok(&format!("get --raw {path}"))).unwrap();
    let at = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{path}?watch=1&resourceVersion={at}");
    (Watching::start(direct, &path), Watching::start(edge, &path))
}

#[test]
fn every_list_of_the_edge_is_one_of_the_api_server() {
    if let Some(reason) = missing() {
        println!("SKIPPED: random operations at the edge: {reason}");
        return;
    }
    let lab = random_operations(RandomTarget::config_maps(), "random operations at the edge");
    bad_input(&lab);
    slow_watchers(&lab, 1_000);
}

#[test]
fn every_list_of_pods_of_the_edge_is_one_of_the_api_server() {
    if let Some(reason) = missing() {
        println!("SKIPPED: random operations on pods at the edge: {reason}");
        return;
    }
    random_operations(RandomTarget::pods(), "random operations on pods at the edge");
}

fn is_unavailable(stderr: &str) -> bool {
    ["ServiceUnavailable", "cannot be reached"].iter().any(|text| stderr.contains(text))
}

fn random_operations(target: RandomTarget, name: &str) -> EdgeLab {
    let soak = std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1");
    let steps = if soak { 2_000 } else { 60 };
    let mut run = RandomRun::start(target, EdgeLab::start(), SeededRandom::for_test(name));
    // The right to watch is asked for while the cloud is there; without it, only what was allowed is allowed.
    run.compare_watches();
    for _ in 0..steps {
        run.step();
    }
    run.compare_watches();
    run.list();
    run.stream();
    run.lab.relay.cut();
    run.stream();
    run.restart();
    run.stream();
    run.lab.relay.restore();
    run.is_cut = false;
    run.lab.await_live(run.target.plural);
    println!(
        "{steps} steps on {}: {} answers of the edge, {} streaming lists, {} refusals, {} revisions that are gone",
        run.target.plural, run.answered, run.streamed, run.refused, run.gone
    );
    assert!(run.answered > 10 * run.refused, "{} answers, {} refusals", run.answered, run.refused);
    run.lab
}

/// Watchers that do not read: other clients are served, and nothing of them is left behind.
fn slow_watchers(lab: &EdgeLab, count: usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kubeconfig = lab.edge_kubeconfig(&lab.cluster.token());
    let watchers = || lab.resource("configmaps").and_then(|entry| entry["watchers"].as_u64()).unwrap_or(0);
    let others = watchers();
    let edge = lab.through_edge(&lab.cluster.token());
    let path = format!("{MAPS}?watch=1&resourceVersion=0");
    let (ours, theirs) = both_watches(&lab.direct(), &edge, MAPS);
    let read_time = || {
        let since = Instant::now();
        edge.ok("get configmaps -o name");
        since.elapsed()
    };
    let before = read_time();
    let slow = runtime.block_on(async {
        // Several clients: a connection of HTTP/2 carries a bounded number of streams.
        let clients: Vec<_> =
            stream::iter(0..count.div_ceil(50)).then(|_| client_of(&kubeconfig)).collect().await;
        let open = |number: usize| {
            let request = http::Request::get(&path).body(Vec::new()).unwrap();
            let client = clients[number / 50].clone();
            async move { client.request_stream(request).await.unwrap() }
        };
        // A watch whose body is not polled reads no more than its buffers hold.
        stream::iter(0..count).map(open).buffer_unordered(16).collect::<Vec<_>>().await
    });
    wait_for("all of them watch", || (watchers() >= others + count as u64).then_some(())).unwrap();
    let large = "x".repeat(20_000);
    for number in 0..20 {
        lab.config_map(&format!("large-{}", number % 3), &format!("{number}{large}"));
    }
    lab.config_map("after", "now");
    assert_eq!(
        ours.until("ADDED", "after"),
        theirs.until("ADDED", "after"),
        "a watcher that reads gets every event"
    );
    assert!(edge.ok("get configmaps -o name").contains("configmap/after"));
    println!(
        "{count} watchers that do not read: the edge has {} KiB resident; kubectl get takes {:?}, {before:?} before them",
        resident_kib(lab.edge.pid()),
        read_time()
    );
    drop((slow, ours, theirs, runtime));
    wait_for("their watches end", || (watchers() <= others).then_some(())).unwrap();
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Each row: the sentence, the arguments of curl, the codes that may be answered.
fn bad_input(lab: &EdgeLab) {
    let kubeconfig = std::fs::read_to_string(lab.folder.path().join("edge/kubernetes/kubeconfig")).unwrap();
    let server = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap().to_owned();
    let (ca, token) = (lab.folder.path().join("edge/kubernetes/ca.pem"), lab.cluster.token());
    let code = |more: &[&str], path: &str| {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
            "--max-time",
            "20",
            "--noproxy",
            "*",
        ]);
        curl.arg("--cacert").arg(&ca).arg("--header").arg(format!("Authorization: Bearer {token}"));
        curl.args(["--path-as-is"]).args(more).arg(format!("{}{path}", server.trim_matches('"')));
        finish(curl, None).unwrap().stdout
    };
    let large = lab.folder.path().join("large");
    std::fs::write(&large, vec![b'x'; 20 << 20]).unwrap();
    let large = format!("@{}", large.display());
    let flood: Vec<String> =
        (0..500).map(|number| format!("X-Flood-{number}: {}", "y".repeat(200))).collect();
    let flood: Vec<&str> = flood.iter().flat_map(|line| ["--header", line.as_str()]).collect();
    let post = ["--header", "Content-Type: application/json", "--header", "Expect:", "--data-binary", &large];
    let rows: [(&str, &[&str], String, &[&str]); 11] = [
        ("a broken label selector is refused", &[], format!("{MAPS}?labelSelector=%3D%3D%3D"), &["400"]),
        ("an unknown field is refused", &[], format!("{MAPS}?fieldSelector=spec.x%3D1"), &["400"]),
        ("a limit that is no number is refused", &[], format!("{MAPS}?limit=many"), &["400"]),
        ("a broken continue token is refused", &[], format!("{MAPS}?limit=1&continue=nonsense"), &["400"]),
        (
            "a revision that is no number is refused",
            &[],
            format!("{MAPS}?resourceVersion=x"),
            &["400", "422"],
        ),
        (
            "a streaming list needs its match",
            &[],
            format!("{MAPS}?watch=1&sendInitialEvents=true"),
            &["400", "422"],
        ),
        ("an unknown parameter is refused", &[], format!("{MAPS}?shardSelector=x"), &["400"]),
        (
            "an unknown media type is refused",
            &["--header", "Accept: application/cbor"],
            MAPS.to_owned(),
            &["406"],
        ),
        (
            "a path with tricks reaches no object",
            &[],
            format!("{MAPS}/..%2fsecrets%2fx"),
            &["400", "403", "404"],
        ),
        ("an oversized body is refused", &post, MAPS.to_owned(), &["413", "000"]),
        ("a flood of headers is refused", &flood, MAPS.to_owned(), &["400", "431", "000"]),
    ];
    for (sentence, more, path, expected) in rows {
        let found = code(more, &path);
        assert!(expected.contains(&found.as_str()), "{sentence}: {found} for {path}");
        assert_eq!(code(&[], MAPS), "200", "after it others are served: {sentence}");
    }
}
