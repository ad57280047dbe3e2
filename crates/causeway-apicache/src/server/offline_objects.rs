//! Writes of any caller to resources that the operator lists (`offline-writes`), and the answers to them without the cloud.
//!
//! While the API server can be reached, these requests pass to it like every other, and an answer is remembered as a right. Otherwise a
//! caller that had the right within the last seven days is answered at the site, and its write is taken into the log (`pending`). The
//! write is sent on return with a token of the same caller. `changed` and `checked_new` decide from values.

use bytes::Bytes;
use causeway_api::request::query::QueryParameters;
use causeway_api::request::resource::ResourcePath;
use causeway_api::{Status, error_chain};
use http::header;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use super::handle::RequestContext;
use super::offline::{
    already_exists, away, conflict, incoming, is_away, refuse_cbor, stands_in_path, whole_body,
};
use super::pass::{PassError, full};
use super::respond::{self, ApiBody};
use crate::copy::CopyError;
use crate::copy::collection::unix_now;
use crate::copy::local::{LocalObject, unsent};
use crate::identity::LocalCaller;
use crate::kube_object::{self, KubeObject};
use crate::pending::log::{self, PendingKind, PendingWrite};
use crate::pending::{PENDING, changed as shown_change, mark};
use crate::request_counts;
use crate::resource::ResourceName;
use crate::subscriptions::SubscriptionCredential;
use crate::upstream::access::AccessQuestion;

/// Decides whether a request writes a listed resource. A dry run and a delete of many objects do not.
pub fn is_listed(
    listed: &[ResourceName],
    method: &Method,
    path: &ResourcePath<'_>,
    query: Option<&str>,
) -> bool {
    let is_write = match method.as_str() {
        "POST" => path.name.is_none(),
        "PUT" | "PATCH" | "DELETE" => path.name.is_some(),
        _ => false,
    };
    let resource = ResourceName::new(path.group, path.version, path.plural);
    is_write
        && path.name.is_none_or(stands_in_path)
        && path.namespace.is_none_or(stands_in_path)
        && path.subresource.is_none()
        && !is_special(query)
        && listed.contains(&resource)
        && !is_reserved(&resource)
}

/// Resources that give rights: the API server alone decides about them, whatever the operator lists.
fn is_reserved(resource: &ResourceName) -> bool {
    resource.group == "rbac.authorization.k8s.io" || resource.group.is_empty() && resource.plural == "secrets"
}

/// Decides about a pod as a write leaves it. A kubelet of the site runs it at once, before any admission of the API server, so it is written by the
/// node that runs it only.
fn check_pod(node: Option<&str>, resource: &ResourceName, pod: &Value) -> Result<(), Status> {
    let is_own = node.is_some_and(|node| pod["spec"]["nodeName"] == node);
    match resource.group.is_empty() && resource.plural == "pods" && !is_own {
        false => Ok(()),
        true => {
            let why = "without the API server a pod is written by the node that runs it only";
            Err(Status { message: format!("{}: {why}", away().message), ..away() })
        }
    }
}

/// A dry run writes nothing. With a `timeout` of its own a caller could make the API server answer 504, as if it were away.
/// `;` separates parameters in Go before 1.17.
fn is_special(query: Option<&str>) -> bool {
    let parsed = QueryParameters::parse(query);
    parsed.has("dryRun") || parsed.has("timeout") || query.is_some_and(|query| query.contains(';'))
}

/// One such request.
struct ObjectRequest<'a> {
    context: &'a RequestContext,
    caller: &'a LocalCaller,
    path: &'a ResourcePath<'a>,
    method: Method,
    media: String,
    body: Bytes,
}

type Answered = Result<Response<ApiBody>, Status>;

/// Answers a write: by the API server, or without it.
pub async fn write(
    context: &RequestContext,
    caller: &LocalCaller,
    request: Request<Incoming>,
    path: &ResourcePath<'_>,
) -> Response<ApiBody> {
    let (head, body) = request.into_parts();
    let read = whole_body((&context.limits, caller), &head.headers, incoming(body)).await;
    let (body, _memory) = match read {
        Ok(read) => read,
        Err(refused) => return respond::refusal(&refused),
    };
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
    let asked = ObjectRequest { context, caller, path, method: head.method.clone(), media, body };
    // A write that waits in the log goes before a newer one of the same object.
    if asked.waiting().is_none() {
        let passed = Request::from_parts(head, full(asked.body.clone()));
        match context.pass.forward_write(passed, (caller, &context.limits)).await {
            Ok(response) if !is_away(response.status()) => return asked.passed(response).await,
            Ok(_) => {}
            Err(PassError(status)) if status.code != 503 => return respond::refusal(&status),
            Err(_) => {}
        }
    }
    asked.answer().await.unwrap_or_else(|status| respond::refusal(&status))
}

const UNDER_WAY: &str = "another write to this object is under way";

/// 503: the write would meet another one to the same object.
fn busy(why: &str) -> Status {
    Status { message: format!("{}: {why}", away().message), ..away() }
}

fn failed(error: CopyError) -> Status {
    Status::internal(error_chain(&error))
}

impl ObjectRequest<'_> {
    fn resource(&self) -> ResourceName {
        ResourceName::new(self.path.group, self.path.version, self.path.plural)
    }

    fn key(&self, name: &str) -> String {
        self.path.namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
    }

    fn object_path(&self, name: &str) -> String {
        let resource = self.resource();
        let place = self.path.namespace.map_or(String::new(), |namespace| format!("/namespaces/{namespace}"));
        format!("{}{place}/{}/{name}", resource.version_path(), resource.plural)
    }

    fn waiting(&self) -> Option<PendingWrite> {
        let path = self.object_path(self.path.name?);
        self.context.pending.find(PendingKind::Object, &path)
    }

    /// The right that the write needs.
    fn question(&self) -> AccessQuestion {
        AccessQuestion {
            verb: request_counts::verb(&self.method, false, true),
            group: self.path.group.to_owned(),
            plural: self.path.plural.to_owned(),
            namespace: self.path.namespace.unwrap_or_default().to_owned(),
            name: self.path.name.unwrap_or_default().to_owned(),
            field_selector: String::new(),
        }
    }

    async fn passed(&self, response: Response<ApiBody>) -> Response<ApiBody> {
        match response.status() {
            status if status.is_success() => self.remember_right().await,
            // A right that was taken away is not used without the cloud either.
            StatusCode::FORBIDDEN => {
                self.context.authorizer.remove_grant(self.caller, &self.question()).await;
            }
            _ => {}
        }
        super::handle::note_write(self.context, self.caller, self.resource(), response).await
    }

    /// Remembers the right that the API server has just granted. A right to one name says nothing about other names, because a role may
    /// have `resourceNames`, so the API server is asked whether the caller may write all of them.
    async fn remember_right(&self) {
        let (authorizer, named) = (&self.context.authorizer, self.question());
        authorizer.record_allowed(self.caller, &named).await;
        let every = AccessQuestion { name: String::new(), ..named.clone() };
        if every != named && !authorizer.was_allowed(self.caller, &every).await {
            // A refusal is the answer of a caller with `resourceNames`: the right to this name stays.
            let _ = authorizer.check(self.caller, &every).await;
        }
    }

    async fn answer(&self) -> Answered {
        if self.caller.credential.is_none()
            || !self.context.authorizer.was_allowed(self.caller, &self.question()).await
        {
            let mut refused = away();
            refused
                .message
                .push_str(": this caller has made no such write while the API server could be reached");
            return Err(refused);
        }
        refuse_cbor(&self.media)?;
        match self.method {
            Method::POST => self.create().await,
            Method::DELETE => self.delete().await,
            _ => self.change().await,
        }
    }

    async fn create(&self) -> Answered {
        let body = json_body(&self.media, "application/json", &self.body)?;
        let (name, shown) = checked_new(body, self.path.namespace.unwrap_or_default())?;
        check_pod(self.caller.node_name(), &self.resource(), &shown)?;
        let (key, path) = (self.key(&name), self.object_path(&name));
        let waiting = self.context.pending.find(PendingKind::Object, &path);
        match self.context.subscriptions.copied(&self.resource(), &key).await {
            // The log has one write per object, so it cannot delete and create.
            _ if waiting.as_ref().is_some_and(|waiting| waiting.body.is_empty()) => {
                return Err(busy("its deletion waits for the API server"));
            }
            _ if waiting.is_some() => return Err(already_exists(&self.resource(), &name)),
            Ok(Some(_)) => return Err(already_exists(&self.resource(), &name)),
            Ok(None) => {}
            // The copy does not tell whether it exists.
            Err(_) => return Err(away()),
        }
        let now = unix_now();
        self.log((&key, path), None, self.body.clone(), Bytes::new(), now).await?;
        let shown = mark(shown, now);
        let object = unsent(&key, kube_object::kept_text(&shown).into(), Bytes::new());
        self.show(&key, Some(LocalObject { stands_on: None, object: Some(object.clone()) })).await?;
        self.object(StatusCode::CREATED, &object, &shown)
    }

    async fn change(&self) -> Answered {
        let (name, waiting) = (self.path.name.unwrap_or_default(), self.waiting());
        let (key, path) = (self.key(name), self.object_path(name));
        let copied = self.copied(name, &key).await?;
        let (base, current) = self.states(waiting.as_ref(), copied.as_ref(), name)?;
        let expected = if self.method == Method::PUT { "application/json" } else { "" };
        let body = json_body(&self.media, expected, &self.body)?;
        let changed = changed(&current, &self.method, &self.media, body)
            .map_err(|why| why.status(&self.resource(), name))?;
        for state in [&current, &changed] {
            check_pod(self.caller.node_name(), &self.resource(), state)?;
        }
        let now = unix_now();
        self.log((&key, path), waiting.as_ref(), changed.to_string().into(), base, now).await?;
        let shown = mark(untyped(changed), now);
        let (local, object) = match copied {
            Some(copied) => (shown_change(&copied, &shown), copied),
            None => {
                let object = unsent(&key, kube_object::kept_text(&shown).into(), Bytes::new());
                (LocalObject { stands_on: None, object: Some(object.clone()) }, object)
            }
        };
        self.show(&key, Some(local)).await?;
        self.object(StatusCode::OK, &object, &shown)
    }

    async fn delete(&self) -> Answered {
        if !is_plain_deletion(&self.body) {
            let mut refused = away();
            refused.message.push_str(": without the API server a deletion has no propagation policy but Background, and no resourceVersion");
            return Err(refused);
        }
        let (name, waiting) = (self.path.name.unwrap_or_default(), self.waiting());
        let (key, path) = (self.key(name), self.object_path(name));
        let copied = self.copied(name, &key).await?;
        let (base, current) = self.states(waiting.as_ref(), copied.as_ref(), name)?;
        // The answer has the revision of the API server, if it has one.
        let answered = copied.clone().unwrap_or_else(|| unsent(&key, Bytes::new(), Bytes::new()));
        match (&waiting, copied) {
            // The API server has never seen it.
            (Some(waiting), None) => {
                if !self.context.pending.remove_unsent(waiting).await.map_err(failed)? {
                    return Err(busy(UNDER_WAY));
                }
                self.show(&key, None).await?;
            }
            (_, copied) => {
                self.log((&key, path), waiting.as_ref(), Bytes::new(), base, unix_now()).await?;
                let stands_on = copied.map(|copied| (copied.key, copied.revision));
                self.show(&key, Some(LocalObject { stands_on, object: None })).await?;
            }
        }
        self.object(StatusCode::OK, &answered, &mark(untyped(current), unix_now()))
    }

    /// The object of the copy; `None` for one that was created at the site.
    async fn copied(&self, name: &str, key: &str) -> Result<Option<KubeObject>, Status> {
        match self.context.subscriptions.copied(&self.resource(), key).await {
            Ok(Some(copied)) => Ok(Some(copied)),
            Ok(None) if self.waiting().is_some_and(|waiting| waiting.base.is_empty()) => Ok(None),
            Ok(None) => Err(Status::resource_not_found(self.path.group, self.path.plural, name)),
            Err(_) => Err(away()),
        }
    }

    /// The object on which the first write stood, and the object as the site sees it now.
    fn states(
        &self,
        waiting: Option<&PendingWrite>,
        copied: Option<&KubeObject>,
        name: &str,
    ) -> Result<(Bytes, Value), Status> {
        if let Some(waiting) = waiting {
            if waiting.caller != self.caller.key() {
                let why = "a write of another caller to this object waits for the API server";
                return Err(Status { message: format!("{}: {why}", away().message), ..away() });
            }
            if waiting.body.is_empty() {
                return Err(Status::resource_not_found(self.path.group, self.path.plural, name));
            }
            let current = serde_json::from_slice(&waiting.body).map_err(Status::internal)?;
            // An object that was created here stands on the one of the API server as soon as the copy has it.
            let base = match copied {
                Some(copied) if waiting.base.is_empty() => copied.body.clone(),
                _ => waiting.base.clone(),
            };
            return Ok((base, current));
        }
        let copied = copied.ok_or_else(away)?;
        Ok((copied.body.clone(), serde_json::from_slice(&copied.body).map_err(Status::internal)?))
    }

    /// Takes a write into the log. It was made from `waiting`.
    async fn log(
        &self,
        (key, path): (&str, String),
        waiting: Option<&PendingWrite>,
        body: Bytes,
        base: Bytes,
        at: i64,
    ) -> Result<(), Status> {
        let (node, token) = match &self.caller.credential {
            Some(SubscriptionCredential::Node(node)) => (node.clone(), String::new()),
            Some(SubscriptionCredential::Token(token)) => (String::new(), token.clone()),
            _ => return Err(away()),
        };
        if !log::has_room(&self.context.pending.all(), &self.caller.key(), body.len() + base.len()) {
            let full = "the log of writes that wait for the API server is full";
            return Err(Status { message: format!("{}: {full}", away().message), ..away() });
        }
        let write = PendingWrite {
            sequence: 0,
            kind: PendingKind::Object,
            node,
            resource: self.resource(),
            key: key.to_owned(),
            path,
            content_type: "application/json".into(),
            body,
            base,
            at,
            caller: self.caller.key(),
            token,
        };
        let after = waiting.map_or(0, |waiting| waiting.sequence);
        match self.context.pending.append_after(after, write).await.map_err(failed)? {
            true => Ok(()),
            false => Err(busy(UNDER_WAY)),
        }
    }

    async fn show(&self, key: &str, local: Option<LocalObject>) -> Result<(), Status> {
        let changes = vec![(key.to_owned(), local)];
        self.context.subscriptions.set_local(&self.resource(), changes).await.map_err(failed)
    }

    fn object(&self, code: StatusCode, copied: &KubeObject, object: &Value) -> Answered {
        let collections = self.context.subscriptions.of_resource(&self.resource());
        let description =
            collections.iter().find_map(|collection| collection.description()).ok_or_else(away)?;
        let (mut out, text) = (Vec::new(), kube_object::kept_text(object));
        kube_object::append_object(&mut out, &description, copied.revision, text.as_bytes());
        Ok(respond::json(code, out))
    }
}

/// The body as JSON. An empty `expected` leaves the media type to the caller.
fn json_body(media: &str, expected: &str, body: &[u8]) -> Result<Value, Status> {
    if !expected.is_empty() && !media.is_empty() && media != expected {
        let mut refused = away();
        refused.message.push_str(": without the API server bodies are taken as JSON only");
        return Err(refused);
    }
    serde_json::from_slice(body).map_err(Status::bad_request)
}

/// The name of a new object, and the object as local readers see it.
pub(super) fn checked_new(body: Value, namespace: &str) -> Result<(String, Value), Status> {
    let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if !stands_in_path(&name) {
        // The API server gives a name, or refuses this one.
        return Err(away());
    }
    let mut body = untyped(body);
    let own = body["metadata"]["namespace"].as_str().unwrap_or(namespace);
    if own != namespace {
        return Err(Status::bad_request("the namespace of the object is not that of the request"));
    }
    if !namespace.is_empty() {
        body["metadata"]["namespace"] = namespace.into();
    }
    Ok((name, body))
}

/// An object without its type, as the copy keeps objects of built-in kinds.
fn untyped(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

/// The reason for which a change is refused.
#[derive(Debug, PartialEq, Eq)]
enum ChangeRefusal {
    /// The named field of the metadata is another one.
    Conflict(&'static str),
    /// The form of the patch is not known here.
    Form,
}

impl ChangeRefusal {
    fn status(&self, resource: &ResourceName, name: &str) -> Status {
        match self {
            ChangeRefusal::Conflict(field) => conflict(resource, name, field),
            ChangeRefusal::Form => {
                let mut refused = away();
                refused.message.push_str(": without the API server changes are taken as PUT, as JSON merge patch, or as strategic patch without lists");
                refused
            }
        }
    }
}

/// Returns true if the log can carry out a deletion as it was asked for: it keeps the UID and nothing else of the options.
fn is_plain_deletion(options: &[u8]) -> bool {
    if options.is_empty() {
        return true;
    }
    let Ok(options) = serde_json::from_slice::<Value>(options) else { return false };
    let is_default = |value: &Value| value.is_null() || value == "Background";
    is_default(&options["propagationPolicy"])
        && options["orphanDependents"] != Value::Bool(true)
        && options["preconditions"]["resourceVersion"].is_null()
        && options["dryRun"].is_null()
}

/// The object after a change. Identity and revision stay those of the API server.
fn changed(current: &Value, method: &Method, media: &str, body: Value) -> Result<Value, ChangeRefusal> {
    for field in ["uid", "resourceVersion"] {
        let wanted = body["metadata"][field].as_str().unwrap_or_default();
        if !wanted.is_empty() && body["metadata"][field] != current["metadata"][field] {
            return Err(ChangeRefusal::Conflict(field));
        }
    }
    let is_merge = media == "application/merge-patch+json"
        || media == "application/strategic-merge-patch+json" && !has_lists_or_directives(&body);
    let mut object = match *method {
        Method::PUT => body,
        _ if is_merge => merged(current.clone(), body),
        _ => return Err(ChangeRefusal::Form),
    };
    if !object["metadata"].is_object() {
        return Err(ChangeRefusal::Form);
    }
    for field in
        ["name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"]
    {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { break };
        match current["metadata"].get(field) {
            Some(value) => drop(metadata.insert(field.into(), value.clone())),
            None => drop(metadata.remove(field)),
        }
    }
    for field in ["kind", "apiVersion"] {
        match (current.get(field), object.as_object_mut()) {
            (Some(value), Some(fields)) => drop(fields.insert(field.into(), value.clone())),
            (None, Some(fields)) => drop(fields.remove(field)),
            (_, None) => {}
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(PENDING);
    }
    Ok(object)
}

fn has_lists_or_directives(patch: &Value) -> bool {
    match patch {
        Value::Array(_) => true,
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| name.starts_with('$') || has_lists_or_directives(value))
        }
        _ => false,
    }
}

/// JSON merge patch (RFC 7386).
pub(super) fn merged(target: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else { return patch };
    let mut target = match target {
        Value::Object(target) => target,
        _ => serde_json::Map::new(),
    };
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.remove(&name)),
            value => {
                let before = target.remove(&name).unwrap_or_default();
                target.insert(name, merged(before, value));
            }
        }
    }
    Value::Object(target)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_single_writes_of_listed_resources_are_taken() {
        let listed = [ResourceName::new("", "v1", "configmaps")];
        let check = |method: Method, path: &str, expected: bool| {
            let (path, query) =
                path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            let parsed = ResourcePath::parse(&segments).unwrap();
            assert_eq!(is_listed(&listed, &method, &parsed, query), expected, "{method} {path}");
        };
        let maps = "/api/v1/namespaces/shop/configmaps";
        check(Method::POST, maps, true);
        check(Method::PUT, &format!("{maps}/a"), true);
        check(Method::DELETE, &format!("{maps}/a"), true);
        check(Method::DELETE, maps, false);
        check(Method::GET, &format!("{maps}/a"), false);
        check(Method::PATCH, &format!("{maps}/a?dryRun=All"), false);
        check(Method::PATCH, &format!("{maps}/a?%64ryRun=All"), false);
        check(Method::PUT, &format!("{maps}/a?timeout=1ns"), false);
        check(Method::PUT, &format!("{maps}/a?x;dryRun=All"), false);
        check(Method::PUT, &format!("{maps}/a?fieldManager=timeout"), true);
        check(Method::PATCH, &format!("{maps}/a/status"), false);
        check(Method::POST, "/api/v1/namespaces/shop/secrets", false);
    }

    #[test]
    fn what_gives_rights_is_not_written_without_the_api_server() {
        let listed = [
            ResourceName::new("", "v1", "secrets"),
            ResourceName::new("rbac.authorization.k8s.io", "v1", "rolebindings"),
            ResourceName::new("rbac.authorization.k8s.io", "v1", "clusterroles"),
            ResourceName::new("example.org", "v1", "secrets"),
        ];
        let found = |path: &str| {
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            let parsed = ResourcePath::parse(&segments).unwrap();
            is_listed(&listed, &Method::POST, &parsed, None)
        };
        assert!(!found("/api/v1/namespaces/shop/secrets"));
        assert!(!found("/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings"));
        assert!(!found("/apis/rbac.authorization.k8s.io/v1/clusterroles"));
        assert!(found("/apis/example.org/v1/namespaces/shop/secrets"), "a custom resource of that name");
    }

    #[test]
    fn a_pod_is_written_by_the_node_that_runs_it() {
        let pods = ResourceName::new("", "v1", "pods");
        let pod = json!({"spec": {"nodeName": "n1"}});
        let code = |node: Option<&str>, resource: &ResourceName, pod: &Value| {
            check_pod(node, resource, pod).map_err(|status| status.code)
        };
        assert_eq!(code(Some("n1"), &pods, &pod), Ok(()));
        assert_eq!(code(None, &pods, &pod), Err(503), "a token");
        assert_eq!(code(Some("n2"), &pods, &pod), Err(503), "another node");
        assert_eq!(code(Some("n1"), &pods, &json!({"spec": {}})), Err(503), "a pod of no node");
        assert_eq!(code(None, &ResourceName::new("", "v1", "configmaps"), &json!({})), Ok(()));
    }

    #[test]
    fn a_change_keeps_identity_and_revision_and_meets_conflicts() {
        let current = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": {"x": "y"}}, "data": {"k": "1", "l": "2"}});
        let merge = "application/merge-patch+json";
        let patch = |media: &str, body: Value| changed(&current, &Method::PATCH, media, body);
        let patched =
            patch(merge, json!({"metadata": {"name": "b"}, "data": {"k": null, "m": "3"}})).unwrap();
        assert_eq!(patched["data"], json!({"l": "2", "m": "3"}));
        assert_eq!(patched["metadata"], current["metadata"]);
        let strategic = "application/strategic-merge-patch+json";
        assert_eq!(patch(strategic, json!({"data": {"k": "9"}})).unwrap()["data"]["k"], "9");
        assert_eq!(patch(strategic, json!({"list": [1]})), Err(ChangeRefusal::Form));
        assert_eq!(patch(strategic, json!({"data": {"$patch": "replace"}})), Err(ChangeRefusal::Form));
        assert_eq!(patch("application/json-patch+json", json!([])), Err(ChangeRefusal::Form));
        let put = |body: Value| changed(&current, &Method::PUT, "application/json", body);
        let whole = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {},
            "metadata": {"name": "a", "resourceVersion": "7", "annotations": {PENDING: "t"}}});
        let expected = json!({"data": {}, "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": {}}});
        assert_eq!(put(whole).unwrap(), expected);
        let older = json!({"metadata": {"resourceVersion": "6"}});
        assert_eq!(put(older), Err(ChangeRefusal::Conflict("resourceVersion")));
        assert_eq!(put(json!({"metadata": {"uid": "w"}})), Err(ChangeRefusal::Conflict("uid")));
        for body in [json!([]), json!("x"), json!({}), json!({"metadata": []})] {
            assert_eq!(put(body.clone()), Err(ChangeRefusal::Form), "{body}");
        }
        assert_eq!(patch(merge, json!("x")), Err(ChangeRefusal::Form));
        assert_eq!(patch(merge, json!({"metadata": null})), Err(ChangeRefusal::Form));
    }

    #[test]
    fn a_deletion_with_options_that_the_log_does_not_keep_is_refused() {
        let check = |options: &str, expected: bool| {
            assert_eq!(is_plain_deletion(options.as_bytes()), expected, "{options}");
        };
        check("", true);
        check(r#"{"kind": "DeleteOptions", "propagationPolicy": "Background"}"#, true);
        check(r#"{"propagationPolicy": "Orphan"}"#, false);
        check(r#"{"orphanDependents": true}"#, false);
        check(r#"{"preconditions": {"resourceVersion": "7"}}"#, false);
        check("k8s", false);
    }

    #[test]
    fn a_new_object_has_a_name_of_its_own() {
        let new = |metadata: Value| checked_new(json!({"kind": "X", "metadata": metadata}), "shop");
        let (name, shown) = new(json!({"name": "a"})).unwrap();
        assert_eq!((name.as_str(), shown), ("a", json!({"metadata": {"name": "a", "namespace": "shop"}})));
        assert_eq!(new(json!({"generateName": "a-"})).unwrap_err().code, 503);
        for name in ["a b", "a?b", "a/b", "..", "a%20"] {
            assert_eq!(new(json!({"name": name})).unwrap_err().code, 503, "{name}");
        }
        assert_eq!(new(json!({"name": "a", "namespace": "bank"})).unwrap_err().code, 400);
    }
}
