//! Lists and watches one resource of the API server, as tables that contain the whole objects.
//!
//! A table brings, beside each object, the cells of its row: the edge shows the columns that the server shows, for any
//! kind, without knowing it. Resources for which the server has no tables are read as plain lists.

use bytes::{Bytes, BytesMut};
use causeway_api::{Revision, Status};
use http::Request;
use http::header;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::cluster::{ClusterClient, ClusterError, UpstreamIdentity, status_of};
use crate::kube_object::{KubeObject, ObjectError, parse_revision};
use crate::resource::{ResourceDescription, ResourceName};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const JSON: &str = "application/json";
// The page size of client-go.
const PAGE: usize = 500;
// An object of the largest size, twice as JSON, with its event around it.
const LINE_BYTES_MAX: usize = 16 << 20;
// The API server ends watches after this time at the latest; it chooses between 30 and 60 minutes by itself.
const WATCH_SECONDS: u64 = 1_800;

#[derive(Debug, thiserror::Error)]
pub enum ListWatchError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("the API server sent JSON that cannot be read")]
    Malformed(#[from] serde_json::Error),
    #[error("the watch was ended by the API server: {}", .0.message)]
    Ended(Box<Status>),
    #[error("the API server does not serve {0}")]
    Unknown(ResourceName),
    #[error("a line of the watch is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
}

impl ListWatchError {
    /// Returns true if the revision is no longer in the history, so that only a list helps.
    pub fn is_expired(&self) -> bool {
        let code = match self {
            ListWatchError::Ended(status) => status.code,
            ListWatchError::Cluster(ClusterError::Refused(status)) => status.code,
            _ => 0,
        };
        matches!(code, 410 | 504)
    }

    pub fn status(&self) -> Status {
        match self {
            ListWatchError::Cluster(error) => error.status(),
            ListWatchError::Unknown(name) => Status::no_such_path(&name.path()),
            other => Status::unavailable(causeway_api::error_chain(other), 1),
        }
    }
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "resourceVersion")]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

/// A page, as a Table or as a list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListPage<'a> {
    kind: String,
    metadata: ListMetadata,
    #[serde(borrow, default)]
    column_definitions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    rows: Option<Vec<TableRow<'a>>>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct TableRow<'a> {
    #[serde(borrow)]
    cells: &'a RawValue,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Asks the API server for the names of a resource, and whether it has namespaces.
pub async fn describe(
    cluster: &ClusterClient,
    name: &ResourceName,
) -> Result<ResourceDescription, ListWatchError> {
    #[derive(Deserialize)]
    struct Resources {
        resources: Vec<Resource>,
    }
    #[derive(Deserialize)]
    struct Resource {
        name: String,
        kind: String,
        namespaced: bool,
        verbs: Vec<String>,
    }
    let found = cluster.get(&UpstreamIdentity::Own, &name.version_path(), JSON).await?;
    let found: Resources = serde_json::from_slice(&found)?;
    let resource = found.resources.into_iter().find(|resource| resource.name == name.plural);
    let watchable = |resource: &Resource| {
        ["list", "watch"].iter().all(|verb| resource.verbs.iter().any(|found| found == verb))
    };
    let resource = resource.filter(watchable).ok_or_else(|| ListWatchError::Unknown(name.clone()))?;
    // The kind of the list is in every list, also in an empty one; that of a custom resource may have any name.
    let sample = cluster.get(&UpstreamIdentity::Own, &format!("{}?limit=1", name.path()), JSON).await?;
    let sample: ListPage<'_> = serde_json::from_slice(&sample)?;
    Ok(ResourceDescription {
        name: name.clone(),
        kind: resource.kind,
        list_kind: sample.kind,
        is_namespaced: resource.namespaced,
        columns: "[]".into(),
    })
}

/// Reads all objects, in pages of one revision. Returns that revision, and the columns in `description`.
pub async fn list(
    cluster: &ClusterClient,
    description: &mut ResourceDescription,
) -> Result<(Revision, Vec<KubeObject>), ListWatchError> {
    let path = description.name.path();
    let mut objects = Vec::new();
    let (mut next, mut limit) = (String::new(), PAGE);
    loop {
        let query = format!("{path}?includeObject=Object&limit={limit}{next}");
        let text = match cluster.get(&UpstreamIdentity::Own, &query, TABLE).await {
            // Objects of the largest size: the same page with fewer of them.
            Err(ClusterError::TooLong(_)) if limit > 1 => {
                limit /= 2;
                continue;
            }
            answer => answer?,
        };
        let page: ListPage<'_> = serde_json::from_slice(&text)?;
        if let Some(columns) = page.column_definitions {
            description.columns = columns.get().to_owned();
        }
        for row in page.rows.into_iter().flatten() {
            let cells = Bytes::copy_from_slice(row.cells.get().as_bytes());
            objects.push(KubeObject::read(description, row.object.get().as_bytes(), cells)?);
        }
        for item in page.items.into_iter().flatten() {
            objects.push(KubeObject::read(description, item.get().as_bytes(), Bytes::new())?);
        }
        if page.metadata.next.is_empty() {
            return Ok((parse_revision(&page.metadata.resource_version)?, objects));
        }
        next = format!("&continue={}", escape(&page.metadata.next));
    }
}

/// Escapes a value of a query.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// One event of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum UpstreamEvent {
    /// Added or modified.
    Written(KubeObject),
    Deleted(KubeObject),
    Bookmark(Revision),
}

/// A running watch.
pub struct UpstreamWatch {
    body: Body,
    buffer: BytesMut,
    /// Bytes of `buffer` that hold no line end.
    scanned: usize,
    description: ResourceDescription,
}

/// Begins a watch after `revision`.
pub async fn watch(
    cluster: &ClusterClient,
    description: &ResourceDescription,
    revision: Revision,
) -> Result<UpstreamWatch, ListWatchError> {
    let path = format!(
        "{}?watch=1&allowWatchBookmarks=true&includeObject=Object&timeoutSeconds={WATCH_SECONDS}&resourceVersion={revision}",
        description.name.path()
    );
    let request = Request::get(path).header(header::ACCEPT, TABLE).body(Body::empty());
    let request = request.map_err(|error| ClusterError::Refused(Box::new(Status::bad_request(error))))?;
    let response = cluster.send(&UpstreamIdentity::Own, request).await?;
    let code = response.status();
    if !code.is_success() {
        let body = response.into_body().collect().await.map_err(ClusterError::from)?.to_bytes();
        return Err(ClusterError::Refused(Box::new(status_of(code, &body))).into());
    }
    let description = description.clone();
    Ok(UpstreamWatch { body: response.into_body(), buffer: BytesMut::new(), scanned: 0, description })
}

impl UpstreamWatch {
    /// Returns the next event; `None` when the API server ends the watch. May be dropped while it waits.
    pub async fn next(&mut self) -> Result<Option<UpstreamEvent>, ListWatchError> {
        loop {
            if let Some(line) = self.take_line()? {
                if let Some(event) = read_event(&self.description, &line)? {
                    return Ok(Some(event));
                }
                continue;
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(ClusterError::from)?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    fn take_line(&mut self) -> Result<Option<Bytes>, ListWatchError> {
        match self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
            Some(position) => {
                let line = self.buffer.split_to(self.scanned + position + 1).freeze();
                self.scanned = 0;
                Ok(Some(line))
            }
            None if self.buffer.len() > LINE_BYTES_MAX => Err(ListWatchError::TooLong),
            None => {
                self.scanned = self.buffer.len();
                Ok(None)
            }
        }
    }
}

/// Reads one line. `None`: an event of a type that this program does not know.
fn read_event(
    description: &ResourceDescription,
    line: &[u8],
) -> Result<Option<UpstreamEvent>, ListWatchError> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type")]
        event_type: String,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let event: Event<'_> = serde_json::from_slice(line)?;
    if event.event_type == "ERROR" {
        let status = status_of(http::StatusCode::INTERNAL_SERVER_ERROR, event.object.get().as_bytes());
        return Err(ListWatchError::Ended(Box::new(status)));
    }
    let (text, cells) = row_of(event.object)?;
    Ok(match event.event_type.as_str() {
        "ADDED" | "MODIFIED" => {
            Some(UpstreamEvent::Written(KubeObject::read(description, text.as_bytes(), cells)?))
        }
        "DELETED" => Some(UpstreamEvent::Deleted(KubeObject::read(description, text.as_bytes(), cells)?)),
        "BOOKMARK" => Some(UpstreamEvent::Bookmark(bookmark_revision(text)?)),
        _ => None,
    })
}

/// The object of an event, and the cells of its row when it came in a table.
fn row_of(object: &RawValue) -> Result<(&str, Bytes), ListWatchError> {
    #[derive(Deserialize)]
    struct Table<'a> {
        #[serde(default)]
        kind: String,
        #[serde(borrow, default)]
        rows: Option<Vec<TableRow<'a>>>,
    }
    let table: Table<'_> = serde_json::from_str(object.get())?;
    match table.rows.as_deref() {
        Some([row]) if table.kind == "Table" => {
            Ok((row.object.get(), Bytes::copy_from_slice(row.cells.get().as_bytes())))
        }
        _ => Ok((object.get(), Bytes::new())),
    }
}

fn bookmark_revision(text: &str) -> Result<Revision, ListWatchError> {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: ListMetadata,
    }
    let bookmark: Bookmark = serde_json::from_str(text)?;
    Ok(parse_revision(&bookmark.metadata.resource_version)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> ResourceDescription {
        ResourceDescription {
            name: ResourceName::new("", "v1", "configmaps"),
            kind: "ConfigMap".into(),
            list_kind: "ConfigMapList".into(),
            is_namespaced: true,
            columns: "[]".into(),
        }
    }

    #[test]
    fn events_are_read_from_tables_and_from_objects() {
        let object = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"5"}}"#;
        let table = format!(
            r#"{{"type":"ADDED","object":{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"5"}},"columnDefinitions":[],"rows":[{{"cells":["a",0,"5s"],"object":{object}}}]}}}}"#
        );
        let plain = format!(r#"{{"type":"MODIFIED","object":{object}}}"#);
        let read = |line: &str| read_event(&description(), line.as_bytes());
        let Ok(Some(UpstreamEvent::Written(found))) = read(&table) else { panic!("no object") };
        assert_eq!((found.key.as_str(), &found.cells[..]), ("shop/a", &br#"["a",0,"5s"]"#[..]));
        assert!(matches!(read(&plain), Ok(Some(UpstreamEvent::Written(_)))));
        let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9","creationTimestamp":null}}}"#;
        assert_eq!(read(bookmark).unwrap(), Some(UpstreamEvent::Bookmark(Revision(9))));
        let table = r#"{"type":"BOOKMARK","object":{"kind":"Table","metadata":{"resourceVersion":"9"},"rows":[{"cells":[],"object":{"metadata":{"resourceVersion":"9"}}}]}}"#;
        assert_eq!(read(table).unwrap(), Some(UpstreamEvent::Bookmark(Revision(9))));
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}}"#;
        assert!(read(gone).unwrap_err().is_expired());
        assert_eq!(read("\n").unwrap(), None);
        assert!(read("{").is_err());
    }

    /// Starts an API server with five ConfigMaps of about a thousand bytes, read in pages.
    async fn api_server() -> std::net::SocketAddr {
        use causeway_api::request::query::QueryParameters;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |request: Request<hyper::body::Incoming>| {
            let query = QueryParameters::parse(request.uri().query());
            let number = |name: &str| query.one(name).and_then(|text| text.parse().ok()).unwrap_or(0);
            let (begin, limit): (usize, usize) = (number("continue"), number("limit"));
            let end = (begin + limit).min(5);
            let object = |number: usize| {
                let (name, revision) = (format!("m{number}"), (number + 1).to_string());
                serde_json::json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": revision},
                    "data": {"x": "x".repeat(1_000)}})
            };
            let next = if end < 5 { end.to_string() } else { String::new() };
            let page = serde_json::json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "9", "continue": next},
                "items": (begin..end).map(object).collect::<Vec<_>>()});
            let response = http::Response::new(http_body_util::Full::new(Bytes::from(page.to_string())));
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(answer);
                let stream = hyper_util::rt::TokioIo::new(stream);
                tokio::spawn(async move {
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(stream, service).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn objects_of_the_largest_size_are_read_in_smaller_pages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api_server().await)}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        let mut cluster = ClusterClient::open(&path).await.unwrap();
        cluster.set_answer_bytes_max(3_000);
        let (revision, objects) = list(&cluster, &mut description()).await.unwrap();
        let keys: Vec<&str> = objects.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(
            (revision, keys),
            (Revision(9), vec!["shop/m0", "shop/m1", "shop/m2", "shop/m3", "shop/m4"])
        );
        cluster.set_answer_bytes_max(500);
        let refused = list(&cluster, &mut description()).await;
        assert!(matches!(refused, Err(ListWatchError::Cluster(ClusterError::TooLong(500)))), "one object");
    }

    #[test]
    fn values_of_a_query_are_escaped() {
        assert_eq!(escape("a=b,c/d e~1"), "a%3Db%2Cc%2Fd%20e~1");
    }
}
