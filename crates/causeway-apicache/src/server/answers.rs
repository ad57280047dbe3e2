//! Tests of single answers: refusals, their codes and forms, with a cloud that answers, is away, or stops answering under a request.
//!
//! Input: an edge with a copy of two pods, and a request as a client sends it. Nothing listens: a request takes the way from `handle` on. Time is
//! that of the paused runtime.

use std::sync::Mutex;

use bytes::Bytes;
use causeway_api::Revision;
use causeway_api::sync::MutexExt;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Full};
use tokio::io::DuplexStream;
use tokio::time::Instant;

use super::*;
use crate::connector::{BoxedStream, CloudAway, ConnectorFuture, TestCloud};
use crate::identity::LocalCaller;
use crate::resource::ResourceDescription;
use crate::sync::frames::{MESSAGE_BYTES_MAX, MessageReader};
use crate::sync::wire::{ChangeEntry, EdgeSyncBody, EdgeSyncMessage};
use crate::upstream::access::AccessQuestion;
use crate::upstream::access::question::REVIEWS;
use crate::upstream::{REQUEST_TARGET, SYNC_TARGET};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TestLink {
    Up,
    Down,
    /// Streams open, and nothing crosses. The link counts as connected until it is checked.
    BlackHole,
}

/// A cloud behind a link that a test changes. It allows every access, answers every other request with a document, and opens no other streams.
struct LinkedCloud {
    link: Mutex<TestLink>,
    cloud: TestCloud,
    /// The far ends of streams into the black hole.
    swallowed: Mutex<Vec<DuplexStream>>,
}

impl LinkedCloud {
    fn new(link: TestLink) -> Arc<LinkedCloud> {
        let cloud = TestCloud::new(|_, path| {
            let body = match path {
                REVIEWS => json!({"status": {"allowed": true}}),
                path => json!({"kind": "Document", "path": path}),
            };
            Box::pin(std::future::ready((200, body.to_string())))
        });
        Arc::new(LinkedCloud { link: Mutex::new(link), cloud, swallowed: Mutex::default() })
    }

    fn link(&self) -> TestLink {
        *self.link.lock_ignoring_poison()
    }

    fn set(&self, link: TestLink) {
        *self.link.lock_ignoring_poison() = link;
    }
}

impl CloudConnector for LinkedCloud {
    fn open(&self, target: &'static str) -> ConnectorFuture<'_, Result<BoxedStream, CloudAway>> {
        match self.link() {
            TestLink::Up => self.cloud.open(target),
            TestLink::BlackHole if matches!(target, REQUEST_TARGET | SYNC_TARGET) => {
                let (near, far) = tokio::io::duplex(64 << 10);
                self.swallowed.lock_ignoring_poison().push(far);
                Box::pin(std::future::ready(Ok(Box::new(near) as BoxedStream)))
            }
            TestLink::Down | TestLink::BlackHole => {
                Box::pin(std::future::ready(Err(CloudAway("the test has no link".to_owned()))))
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.link() != TestLink::Down
    }

    fn connected(&self) -> ConnectorFuture<'_, ()> {
        match self.is_connected() {
            true => Box::pin(std::future::ready(())),
            false => Box::pin(std::future::pending()),
        }
    }

    fn disconnected(&self) -> ConnectorFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn suspect(&self) {
        if self.link() == TestLink::BlackHole {
            self.set(TestLink::Down);
        }
    }
}

fn pods() -> SubscriptionScope {
    SubscriptionScope::all(ResourceName::new("", "v1", "pods"))
}

fn pod(name: &str, revision: u64) -> ChangeEntry {
    let metadata =
        json!({"name": name, "namespace": "shop", "uid": name, "resourceVersion": revision.to_string()});
    let body = format!(r#"{{"metadata":{metadata},"spec":{{"nodeName":"n1"}}}}"#);
    let (key, uid) = (format!("shop/{name}"), name.to_owned());
    ChangeEntry { key, uid, revision, deleted: false, body: body.into(), ..ChangeEntry::default() }
}

async fn open(folder: &Path, cloud: &Arc<LinkedCloud>) -> EdgeApi {
    let options = EdgeApiOptions {
        folder: folder.to_owned(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        pod_listen: None,
        component: ComponentCertificate::default(),
        pins: Vec::new(),
        pin_node: None,
        unused: Duration::from_secs(86_400),
        bytes_per_day: None,
        bytes_max: u64::MAX,
        offline_writes: vec![ResourceName::new("", "v1", "configmaps")],
    };
    EdgeApi::open(options, cloud.clone()).await.unwrap()
}

/// An edge with two pods at revision 11, which knows what has changed since revision 10. Node `n1` may read them.
async fn edge_with_pods(folder: &Path, cloud: &Arc<LinkedCloud>) -> EdgeApi {
    let api = open(folder, cloud).await;
    let context = &api.context;
    let pin = SubscriptionCredential::Pin;
    let copy = context.subscriptions.ensure(&pods(), pin, ("", true)).await.unwrap().unwrap();
    let description = ResourceDescription {
        name: pods().resource,
        kind: "Pod".into(),
        list_kind: "PodList".into(),
        is_namespaced: true,
        columns: "[]".into(),
    };
    copy.describe(description).await.unwrap();
    copy.complete(vec![pod("a", 7), pod("b", 8)], Revision(10)).await.unwrap();
    copy.complete(vec![pod("a", 11)], Revision(11)).await.unwrap();
    let own = SubscriptionScope::one(ResourceName::new("", "v1", "nodes"), "", "n1");
    let mut allowed = vec![AccessQuestion::about("get", &own)];
    allowed.extend(["get", "list", "watch"].map(|verb| AccessQuestion::about(verb, &pods())));
    let maps = SubscriptionScope::all(ResourceName::new("", "v1", "configmaps"));
    allowed.push(AccessQuestion::about("create", &maps));
    for question in allowed {
        context.authorizer.record_allowed(&LocalCaller::node("n1"), &question).await;
    }
    api
}

struct ReceivedAnswer {
    code: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl ReceivedAnswer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

async fn send(api: &EdgeApi, caller: Option<LocalCaller>, request: Request<Full<Bytes>>) -> ReceivedAnswer {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (context, open) = (api.context.clone(), ConnectionTable::default().admit());
    let service = service_fn(move |request| {
        let (context, caller, open) = (context.clone(), caller.clone(), open.clone());
        async move { Ok::<_, Infallible>(handle::handle(context, (caller, &open), request).await) }
    });
    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    ReceivedAnswer {
        code: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// A GET of node `n1`.
async fn get(api: &EdgeApi, path: &str, accept: &str) -> ReceivedAnswer {
    let request = Request::get(path).header(header::ACCEPT, accept).body(Full::default()).unwrap();
    send(api, Some(LocalCaller::node("n1")), request).await
}

/// A refusal of the edge is a Status with the code of the response, and carries no Retry-After: client-go would repeat the request ten times.
#[track_caller]
fn check_refusal(answer: &ReceivedAnswer, (code, reason): (u16, &str), what: &str) -> Value {
    let status = answer.json();
    assert_eq!(answer.code, code, "{what}: {status}");
    let told = (&status["kind"], &status["code"], &status["reason"]);
    assert_eq!(told, (&"Status".into(), &code.into(), &reason.into()), "{what}: {status}");
    assert_eq!(answer.headers.get(header::RETRY_AFTER), None, "{what}");
    status
}

const JSON: &str = "application/json";
const LINKS: [TestLink; 2] = [TestLink::Up, TestLink::Down];

#[tokio::test(start_paused = true)]
async fn a_request_without_a_credential_or_with_one_that_does_not_read_gets_401() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Up);
    let api = edge_with_pods(folder.path(), &cloud).await;
    for link in LINKS {
        cloud.set(link);
        for path in ["/api/v1/pods", "/apis", "/api/v1/pods?watch=1", "/.causeway/site", "/metrics"] {
            for credential in ["", "Basic YTpi", "Bearer"] {
                let mut request = Request::get(path);
                if !credential.is_empty() {
                    request = request.header(header::AUTHORIZATION, credential);
                }
                let answer = send(&api, None, request.body(Full::default()).unwrap()).await;
                let what = format!("{path} with {credential:?}, link {link:?}");
                check_refusal(&answer, (401, "Unauthorized"), &what);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_too_new_gets_504_without_the_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Up);
    let api = edge_with_pods(folder.path(), &cloud).await;
    let streaming =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let paths = [
        "/api/v1/pods?resourceVersion=12".to_owned(),
        "/api/v1/pods?resourceVersion=12&resourceVersionMatch=NotOlderThan".to_owned(),
        "/api/v1/pods?resourceVersion=12&resourceVersionMatch=Exact".to_owned(),
        "/api/v1/namespaces/shop/pods/a?resourceVersion=12".to_owned(),
        format!("/api/v1/pods?{streaming}&resourceVersion=12"),
    ];
    for path in &paths {
        cloud.set(TestLink::Down);
        let begun = Instant::now();
        let status = check_refusal(&get(&api, path, JSON).await, (504, "Timeout"), path);
        assert_eq!(begun.elapsed().as_secs(), 3, "{path}: it is waited for as long as at the API server");
        let cause = &status["details"]["causes"][0];
        assert_eq!(cause["reason"], "ResourceVersionTooLarge", "{path}: {status}");
        assert_eq!(status["details"]["retryAfterSeconds"], 1, "{path}: {status}");
        cloud.set(TestLink::Up);
        assert_eq!(get(&api, path, JSON).await.json()["kind"], "Document", "{path}: the API server answers");
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_before_the_history_gets_410() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Up);
    let api = edge_with_pods(folder.path(), &cloud).await;
    for link in LINKS {
        cloud.set(link);
        let list = "/api/v1/pods?resourceVersion=9&resourceVersionMatch=Exact";
        check_refusal(&get(&api, list, JSON).await, (410, "Expired"), list);
        let known =
            get(&api, "/api/v1/pods?resourceVersion=10&resourceVersionMatch=Exact", JSON).await.json();
        assert_eq!(known["items"][0]["metadata"]["resourceVersion"], "7", "{known}");
        // As at the API server: the watch begins, and its only event says that it cannot.
        let watch = get(&api, "/api/v1/pods?watch=1&resourceVersion=9&timeoutSeconds=5", JSON).await;
        let event = watch.json();
        assert_eq!((watch.code, &event["type"]), (StatusCode::OK, &"ERROR".into()), "{event}");
        assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&410.into(), &"Expired".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_is_given_in_the_form_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Up);
    let api = edge_with_pods(folder.path(), &cloud).await;
    let accept = |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1");
    let one = |object: &Value| {
        assert_eq!(
            (&object["kind"], &object["apiVersion"], &object["metadata"]["name"], &object["spec"]),
            (&"PartialObjectMetadata".into(), &"meta.k8s.io/v1".into(), &"a".into(), &Value::Null),
            "{object}"
        );
    };
    for link in LINKS {
        cloud.set(link);
        one(&get(&api, "/api/v1/namespaces/shop/pods/a", &accept("PartialObjectMetadata")).await.json());
        let list = get(&api, "/api/v1/pods", &accept("PartialObjectMetadataList")).await.json();
        assert_eq!(
            (&list["kind"], &list["apiVersion"], &list["metadata"]["resourceVersion"]),
            (&"PartialObjectMetadataList".into(), &"meta.k8s.io/v1".into(), &"11".into()),
            "{list}"
        );
        one(&list["items"][0]);
        let watch = "/api/v1/pods?watch=1&resourceVersion=10&timeoutSeconds=1";
        one(&get(&api, watch, &accept("PartialObjectMetadata")).await.json()["object"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dying_link_gets_503_within_three_seconds_and_a_dead_one_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Up);
    let api = edge_with_pods(folder.path(), &cloud).await;
    let maps = "/api/v1/namespaces/shop/configmaps";
    let write = |method: &str, path: &str| {
        let body = Full::from(r#"{"metadata": {"name": "m"}}"#);
        Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, JSON).body(body).unwrap()
    };
    for (method, path) in [
        ("GET", "/api/v1/namespaces/shop/services"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/openapi/v3/api/v1"),
        ("POST", "/api/v1/namespaces/shop/services"),
        ("DELETE", "/api/v1/namespaces/shop/pods/a"),
        ("PATCH", maps),
    ] {
        for (link, within) in [(TestLink::BlackHole, 3_000), (TestLink::Down, 0)] {
            cloud.set(link);
            let begun = Instant::now();
            let answer = send(&api, Some(LocalCaller::node("n1")), write(method, path)).await;
            let what = format!("{method} {path}, link {link:?}");
            let status = check_refusal(&answer, (503, "ServiceUnavailable"), &what);
            assert!(begun.elapsed().as_millis() <= within, "{what}: {:?}", begun.elapsed());
            assert_eq!(status["details"]["retryAfterSeconds"], 5, "{what}: {status}");
            assert!(
                status["message"].as_str().unwrap().contains("cannot be reached from this site"),
                "{what}: {status}"
            );
        }
    }
    // Objects of the copy are given meanwhile.
    cloud.set(TestLink::BlackHole);
    assert_eq!(get(&api, "/api/v1/pods", JSON).await.json()["kind"], "PodList");
}

#[tokio::test(start_paused = true)]
async fn a_body_in_cbor_gets_415_without_the_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Down);
    let api = edge_with_pods(folder.path(), &cloud).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    for (method, path) in [
        ("POST", "/api/v1/nodes"),
        ("PUT", "/api/v1/nodes/n1/status"),
        ("PATCH", "/api/v1/namespaces/shop/pods/a/status"),
        ("PUT", lease),
        ("POST", "/api/v1/namespaces/shop/events"),
        ("PATCH", "/api/v1/namespaces/shop/events/e"),
        ("POST", "/api/v1/namespaces/shop/serviceaccounts/till/token"),
        ("POST", "/api/v1/namespaces/shop/configmaps"),
    ] {
        for media in ["application/cbor", "application/CBOR; a=b", "application/apply-patch+cbor"] {
            let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, media);
            let request = request.body(Full::from(&b"\xd9\xd9\xf7\xa0"[..])).unwrap();
            let answer = send(&api, Some(LocalCaller::node("n1")), request).await;
            check_refusal(&answer, (415, "UnsupportedMediaType"), &format!("{method} {path} in {media}"));
        }
    }
    assert_eq!(api.context.pending.len(), 0, "nothing of it is in the log");
}

#[tokio::test(start_paused = true)]
async fn documents_that_were_read_once_are_there_after_a_restart_without_the_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Up);
    let documents = ["/api", "/apis", "/api/v1", "/apis/apps/v1", "/version", "/openapi/v3", "/openapi/v2"];
    {
        let api = edge_with_pods(folder.path(), &cloud).await;
        for path in documents {
            assert_eq!(get(&api, path, JSON).await.code, StatusCode::OK, "{path}");
        }
    }
    cloud.set(TestLink::Down);
    let api = open(folder.path(), &cloud).await;
    for path in documents {
        let answer = get(&api, path, JSON).await;
        assert_eq!(answer.json(), json!({"kind": "Document", "path": path}), "{path}");
    }
    check_refusal(&get(&api, "/apis/batch/v1", JSON).await, (503, "ServiceUnavailable"), "it was never read");
}

#[tokio::test]
async fn a_restarted_edge_goes_on_from_the_revision_of_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = LinkedCloud::new(TestLink::Down);
    drop(edge_with_pods(folder.path(), &cloud).await);
    cloud.set(TestLink::BlackHole);
    let api = open(folder.path(), &cloud).await;
    let offered = SubscriptionCredential::Pin;
    api.context.subscriptions.ensure(&pods(), offered, ("", true)).await.unwrap().unwrap();
    let stream = loop {
        let opened = cloud.swallowed.lock_ignoring_poison().pop();
        match opened {
            Some(stream) => break stream,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let mut reader = MessageReader::new(stream, MESSAGE_BYTES_MAX + 1);
    let first = reader.next::<EdgeSyncMessage>().await.unwrap().unwrap().body;
    let Some(EdgeSyncBody::Subscribe(first)) = first else { panic!("{first:?}") };
    assert_eq!((first.revision, first.objects), (11, 2), "{first:?}");
    let seen = get(&api, "/api/v1/namespaces/shop/pods/b", JSON).await;
    assert_eq!(seen.json()["metadata"]["resourceVersion"], "8", "meanwhile the copy answers");
}
