//! Answers get, list and watch from the local copy, with the rules of the API server.
//!
//! The caller is authenticated and authorized before. Revisions are upstream's: a revision that the copy has not reached
//! is waited for, then refused as the API server refuses it.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_api::request::media::ObjectView;
use causeway_api::request::options::{GetOptions, ListOptions, VersionMatch, WatchOptions, WatchStart};
use causeway_api::request::query::QueryParameters;
use causeway_api::selector::Selector;
use causeway_api::{Revision, Status};
use causeway_watch::{WatchContext, WatchEnds, WatchFormat, WatchObserver, WatchStream};
use http::header::HeaderMap;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::caller_limits::{AnswerMemory, CallerLimits, LimitReached, LimitedCaller};
use super::respond::{self, ApiBody, WatchLines};
use crate::copy::CopyError;
use crate::copy::collection::{Collection, ListError};
use crate::copy::source::ObjectRenderer;
use crate::facets::ObjectFacets;
use crate::kube_object::{self, KubeObject};

/// The time that a read waits for a revision, as at the API server.
const FRESH_WAIT: Duration = Duration::from_secs(3);
// The API server ends watches after 30 to 60 minutes.
const WATCH_DEFAULT: Duration = Duration::from_secs(1_800);
// Clients ask for 5 to 10 minutes. A watch begins anew after this time, whatever its client asks for.
const WATCH_TIME_MAX: Duration = Duration::from_secs(3_600);

// A list has its objects, the body and its compressed form, measured with 24 MB of pods (`docs/edge-api.md`).
const LIST_MEMORY: usize = 4;
// The objects, and their packed form.
const STATE_MEMORY: usize = 2;

/// The parameters of list, watch and get. An unknown parameter may change the meaning of a request, so it is refused.
const PARAMETERS: [&str; 13] = [
    "watch",
    "pretty",
    "labelSelector",
    "fieldSelector",
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "allowWatchBookmarks",
    "timeoutSeconds",
    "timeout",
    "includeObject",
];

/// Refuses parameters that this program does not know.
pub fn check_parameters(query: Option<&str>) -> Result<(), Status> {
    let names = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    for name in names.map(|pair| pair.split('=').next().unwrap_or_default()) {
        if !PARAMETERS.contains(&name) {
            let shown: String = name.chars().take(100).collect();
            return Err(Status::bad_request(format!(
                "the parameter {shown:?} is not supported by the API at the edge"
            )));
        }
    }
    Ok(())
}

/// A read of one collection.
pub struct LocalRead<'a> {
    pub collection: &'a Arc<Collection>,
    pub renderer: ObjectRenderer,
    pub view: ObjectView,
    /// Empty: all namespaces.
    pub namespace: &'a str,
    pub request: &'a HeaderMap,
    pub limits: &'a CallerLimits,
    pub caller: LimitedCaller,
}

/// The answer to a local read that cannot be given from the copy.
pub enum ReadRefusal {
    Refused(Status),
    /// The copy has not reached the revision, or the answer is too large for this edge; the API server can answer.
    NotHere(Status),
}

impl From<Status> for ReadRefusal {
    fn from(status: Status) -> ReadRefusal {
        ReadRefusal::Refused(status)
    }
}

impl ReadRefusal {
    fn limit(reached: LimitReached, is_stream: bool) -> ReadRefusal {
        let status = reached.status(is_stream);
        match reached {
            LimitReached::TooLarge => ReadRefusal::NotHere(status),
            LimitReached::Full => ReadRefusal::Refused(status),
        }
    }
}

impl From<CopyError> for ReadRefusal {
    fn from(error: CopyError) -> ReadRefusal {
        ReadRefusal::Refused(Status::internal(causeway_api::error_chain(&error)))
    }
}

impl From<ListError> for ReadRefusal {
    fn from(error: ListError) -> ReadRefusal {
        match error {
            ListError::Refused(status) => ReadRefusal::Refused(*status),
            ListError::Copy(error) => error.into(),
        }
    }
}

impl LocalRead<'_> {
    fn prefix(&self) -> String {
        if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) }
    }

    pub async fn get(&self, name: &str, options: GetOptions) -> Result<Response<ApiBody>, ReadRefusal> {
        self.wait_for(options.at).await?;
        let key = format!("{}{name}", self.prefix());
        let (_, found) = self.collection.get(&key).await?;
        let resource = &self.collection.scope.resource;
        let object =
            found.ok_or_else(|| Status::resource_not_found(&resource.group, &resource.plural, name))?;
        let memory = self.memory(2 * object.body.len(), false).await?;
        let mut out = Vec::with_capacity(object.body.len() + 128);
        match self.view {
            ObjectView::Object => {
                kube_object::append_object(&mut out, &self.renderer.0, object.revision, &object.body)
            }
            ObjectView::Metadata(meta) => {
                kube_object::append_metadata(&mut out, meta.api_version(), object.revision, &object.body);
            }
            ObjectView::Table(_) => {
                let metadata = format!(r#"{{"resourceVersion":"{}"}}"#, object.revision);
                out = self.renderer.list(self.view, options.include, &metadata, &[object]);
            }
        }
        // The API server ends documents with a line end.
        out.push(b'\n');
        Ok(respond::counted(respond::json(StatusCode::OK, ""), out.into(), memory))
    }

    pub async fn list(&self, options: ListOptions) -> Result<Response<ApiBody>, ReadRefusal> {
        let begin = options.continue_token.as_deref().map(PageToken::parse).transpose()?;
        let prefix = self.prefix();
        let memory = self.memory(LIST_MEMORY * self.collection.stats().held_bytes(), false).await?;
        let (revision, objects) = match (&begin, options.at) {
            (Some(token), _) => {
                let revision = Revision(token.revision);
                (revision, self.collection.list_at(&prefix, revision).await?)
            }
            (None, VersionMatch::Exact(revision)) => {
                self.wait_for(VersionMatch::NotOlderThan(revision)).await?;
                (revision, self.collection.list_at(&prefix, revision).await?)
            }
            (None, at) => {
                self.wait_for(at).await?;
                self.collection.list(&prefix).await?
            }
        };
        let resource = &self.collection.scope.resource;
        let selects = |object: &KubeObject| {
            is_selected(&options.selector, || ObjectFacets::read(resource, &object.body))
        };
        let after = begin.as_ref().map_or("", |token| token.after.as_str());
        let mut selected: Vec<KubeObject> =
            objects.into_iter().filter(|object| object.key.as_str() > after && selects(object)).collect();
        let limit = options.limit.unwrap_or(usize::MAX);
        let remaining = selected.len().saturating_sub(limit);
        selected.truncate(limit);
        let next = selected.last().filter(|_| remaining > 0);
        let next = next
            .map(|last| PageToken { causeway: 1, revision: revision.0, after: last.key.clone() }.encode());
        if matches!(self.view, ObjectView::Table(_)) {
            self.renderer.order_rows(&mut selected);
        }
        // As in Kubernetes, the count is given only without selectors.
        let is_whole = is_whole(&options.selector, self.namespace);
        let metadata = list_metadata(revision, next.as_deref(), is_whole.then_some(remaining));
        let mut body = self.renderer.list(self.view, options.include, &metadata, &selected);
        body.push(b'\n');
        drop(selected);
        Ok(respond::compressed(self.request, body, memory).await)
    }

    pub async fn watch(
        &self,
        mut options: WatchOptions,
        stop: &CancellationToken,
        rights: AbortOnDropHandle<()>,
    ) -> Result<Response<ApiBody>, ReadRefusal> {
        if let WatchStart::State { not_older_than, .. } = options.from {
            // A state that cannot be sent is refused before the header: an informer waits for its end.
            self.wait_for(VersionMatch::NotOlderThan(not_older_than)).await?;
        }
        // Clients that ask for a state need the bookmark that ends it.
        if let WatchStart::State { marked: true, .. } = options.from {
            options.bookmarks = true;
        }
        let is_stream = matches!(options.from, WatchStart::State { marked: true, .. });
        let counted = self
            .limits
            .begin_watch(&self.caller)
            .map_err(|reached| ReadRefusal::limit(reached, is_stream))?;
        let memory = match options.from {
            WatchStart::State { .. } => {
                Some(self.memory(STATE_MEMORY * self.collection.stats().held_bytes(), is_stream).await?)
            }
            WatchStart::Now | WatchStart::After(_) => None,
        };
        let after = options.timeout_seconds.map_or(WATCH_DEFAULT, Duration::from_secs).min(WATCH_TIME_MAX);
        let ends = WatchEnds { after, stopped: stop.clone().cancelled_owned() };
        let format = WatchFormat { version: (), view: self.view, include: options.include };
        let context =
            Arc::new(WatchContext { encoder: self.renderer.clone(), observer: Arc::new(NoObserver) });
        let stream = WatchStream::open(self.collection.readers(), ((), format), options, ends, context).await;
        let memory = memory.map(|mut memory| {
            memory.shrink(self.collection.stats().held_bytes());
            memory
        });
        let body = WatchLines::new(stream, self.collection.clone(), (counted, memory, rights)).boxed_unsync();
        let mut response = respond::json(StatusCode::OK, "");
        *response.body_mut() = body;
        Ok(response)
    }

    async fn memory(&self, bytes: usize, is_stream: bool) -> Result<AnswerMemory, ReadRefusal> {
        let taken = self.limits.take(&self.caller, bytes).await;
        taken.map_err(|reached| ReadRefusal::limit(reached, is_stream))
    }

    /// Waits until the copy has reached a revision.
    async fn wait_for(&self, at: VersionMatch) -> Result<(), ReadRefusal> {
        let (VersionMatch::NotOlderThan(wanted) | VersionMatch::Exact(wanted)) = at else { return Ok(()) };
        match self.collection.wait_revision(wanted, FRESH_WAIT).await {
            true => Ok(()),
            false => Err(ReadRefusal::NotHere(too_large(wanted, self.collection.revision()))),
        }
    }
}

struct NoObserver;

impl WatchObserver for NoObserver {
    fn events_sent(&self, _: usize) {}
    fn cut_off(&self) {}
}

fn is_selected(selector: &Selector, facets: impl FnOnce() -> ObjectFacets) -> bool {
    selector.is_empty() || selector.matches(&facets())
}

/// Returns true if the selector selects nothing but the namespace of the path.
fn is_whole(selector: &Selector, namespace: &str) -> bool {
    selector.is_empty()
        || Selector::parse(namespaced(), "", &format!("metadata.namespace={namespace}"))
            .is_ok_and(|own| own == *selector)
}

fn namespaced() -> causeway_api::ResourceDefinition {
    causeway_api::ResourceDefinition {
        group: String::new(),
        version: String::new(),
        plural: String::new(),
        kind: String::new(),
        is_namespaced: true,
        has_status: false,
        fields: Vec::new(),
    }
}

/// 504 with the message and the cause that client-go looks for.
fn too_large(wanted: Revision, current: Revision) -> Status {
    let mut status = Status::timeout(format!("Too large resource version: {wanted}, current: {current}"), 1);
    if let Some(details) = &mut status.details {
        details.causes = vec![causeway_api::status::StatusCause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        }];
    }
    status
}

fn list_metadata(revision: Revision, next: Option<&str>, remaining: Option<usize>) -> String {
    let mut metadata = serde_json::json!({"resourceVersion": revision.to_string()});
    if let Some(next) = next {
        metadata["continue"] = next.into();
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    metadata.to_string()
}

/// The place where the next page begins.
#[derive(Serialize, Deserialize)]
pub struct PageToken {
    /// The version of the token. The tokens of the API server have none.
    causeway: u32,
    revision: u64,
    after: String,
}

impl PageToken {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<PageToken, Status> {
        let invalid =
            || Status::bad_request("continue key is not valid: it is no token of the API at the edge");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        serde_json::from_slice(&bytes).map_err(|_| invalid())
    }

    /// Returns true if the request continues a list of the edge, or begins one.
    pub fn is_own(query: &QueryParameters) -> bool {
        query.one("continue").is_none_or(|text| PageToken::parse(text).is_ok())
    }
}
