//! The operations of each path, shared by both OpenAPI versions.

use serde_json::{Value, json};

use super::definitions::{gvk, list_type_name, type_name};
use crate::{ApiVersion, Kind};

/// One operation.
pub(super) struct ApiOperation {
    pub method: &'static str,
    /// The verb as Kubernetes names it in `x-kubernetes-action`.
    pub action: &'static str,
    pub id: String,
    pub description: String,
    pub kind: Kind,
    pub version: ApiVersion,
    /// Short name of the type of the body, if there is one.
    pub body: Option<&'static str>,
    pub consumes: &'static [&'static str],
    /// Short name of the type of the answer.
    pub answer: &'static str,
    pub codes: &'static [&'static str],
    pub query: Vec<&'static QueryParameterSpec>,
}

impl ApiOperation {
    pub fn gvk(&self) -> Value {
        gvk(self.version.group(), self.kind.name())
    }

    /// The word by which clients group operations.
    pub fn tag(&self) -> &'static str {
        match self.version {
            ApiVersion::Core => "core_v1",
            ApiVersion::Group => "causewayIo_v1",
            ApiVersion::Events => "events_v1",
        }
    }
}

/// A query parameter.
pub(super) struct QueryParameterSpec {
    pub name: &'static str,
    pub cell: &'static str,
    pub description: &'static str,
}

impl QueryParameterSpec {
    /// The form of `v2`; `v3` puts the type into a schema.
    pub fn head(&self) -> Value {
        json!({ "name": self.name, "in": "query", "description": self.description })
    }
}

const fn text(name: &'static str, description: &'static str) -> QueryParameterSpec {
    QueryParameterSpec { name, cell: "string", description }
}

static PRETTY: QueryParameterSpec = text("pretty", "If 'true', then the output is pretty printed.");
static DRY_RUN: QueryParameterSpec =
    text("dryRun", "All: everything is checked and answered, nothing is stored.");
static FIELD_MANAGER: QueryParameterSpec = text(
    "fieldManager",
    "Name of the actor that makes the change, for server-side apply. At most 128 characters.",
);
static FIELD_VALIDATION: QueryParameterSpec = text(
    "fieldValidation",
    "The treatment of unknown and duplicate fields. Ignore: they are dropped. Warn: dropped, with a warning; the default. \
     Strict: the request is refused.",
);
static FORCE: QueryParameterSpec = QueryParameterSpec {
    name: "force",
    cell: "boolean",
    description: "For apply patches: take fields over from other managers instead of reporting a conflict.",
};
static LABELS: QueryParameterSpec =
    text("labelSelector", "Only objects whose labels match. Example: tier=factory,zone in (a,b).");
static FIELDS: QueryParameterSpec = text(
    "fieldSelector",
    "Only objects whose fields match: metadata.name and the fields that refer to other objects.",
);
static LIMIT: QueryParameterSpec =
    QueryParameterSpec { name: "limit", cell: "integer", description: "Maximum number of objects per page." };
static CONTINUE: QueryParameterSpec =
    text("continue", "The token of the last page, to get the next one of the same snapshot.");
static REVISION: QueryParameterSpec = text("resourceVersion", "The revision to list at or to watch from.");
static REVISION_MATCH: QueryParameterSpec =
    text("resourceVersionMatch", "Interpretation of resourceVersion in a list: Exact or NotOlderThan.");
static WATCH: QueryParameterSpec = QueryParameterSpec {
    name: "watch",
    cell: "boolean",
    description: "Stream the changes instead of a single response.",
};
static BOOKMARKS: QueryParameterSpec = QueryParameterSpec {
    name: "allowWatchBookmarks",
    cell: "boolean",
    description: "Send BOOKMARK events in a watch.",
};
static INITIAL: QueryParameterSpec = QueryParameterSpec {
    name: "sendInitialEvents",
    cell: "boolean",
    description: "Begin a watch with the current objects, then a bookmark.",
};
static TIMEOUT: QueryParameterSpec = QueryParameterSpec {
    name: "timeoutSeconds",
    cell: "integer",
    description: "Seconds after which the watch ends.",
};
static GRACE: QueryParameterSpec =
    QueryParameterSpec { name: "gracePeriodSeconds", cell: "integer", description: "Accepted and not used." };
static PROPAGATION: QueryParameterSpec =
    text("propagationPolicy", "Treatment of dependents: Orphan, Background or Foreground.");

const ANY: &[&str] = &["*/*"];
const PATCHES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

/// The root of a version's paths.
pub(super) fn root(version: ApiVersion) -> &'static str {
    match version {
        ApiVersion::Core => "/api/v1",
        ApiVersion::Group => "/apis/causeway.io/v1",
        ApiVersion::Events => "/apis/events.k8s.io/v1",
    }
}

/// The parameters in a path.
pub(super) fn path_parameters(path: &str) -> impl Iterator<Item = &'static str> {
    ["name", "namespace"].into_iter().filter(move |name| path.contains(&format!("{{{name}}}")))
}

/// Every path of every kind of a version with its operations.
pub(super) fn all_paths(version: ApiVersion) -> impl Iterator<Item = (String, Vec<ApiOperation>)> {
    let kinds = Kind::SERVED.into_iter().filter(move |kind| kind.versions().contains(&version));
    kinds.flat_map(move |kind| paths(version, kind))
}

/// Every path of a kind with its operations.
pub(super) fn paths(version: ApiVersion, kind: Kind) -> Vec<(String, Vec<ApiOperation>)> {
    let everywhere = format!("{}/{}", root(version), kind.plural());
    let collection = match kind.is_namespaced() {
        true => format!("{}/namespaces/{{namespace}}/{}", root(version), kind.plural()),
        false => everywhere.clone(),
    };
    let scope = if kind.is_namespaced() { "Namespaced" } else { "" };
    let object = format!("{collection}/{{name}}");
    let status = format!("{object}/status");
    let operation = |method, action, verb: &str, suffix: &str| {
        let group = match version {
            ApiVersion::Core => "CoreV1",
            ApiVersion::Group => "CausewayIoV1",
            ApiVersion::Events => "EventsV1",
        };
        ApiOperation {
            method,
            action,
            id: format!("{verb}{group}{scope}{kind}{suffix}"),
            description: String::new(),
            kind,
            version,
            body: None,
            consumes: ANY,
            answer: type_name(kind, version),
            codes: &["200"],
            query: vec![&PRETTY],
        }
    };
    let list = vec![
        ApiOperation {
            description: format!("list or watch objects of kind {kind}"),
            answer: list_type_name(kind, version),
            query: vec![
                &PRETTY,
                &BOOKMARKS,
                &CONTINUE,
                &FIELDS,
                &LABELS,
                &LIMIT,
                &REVISION,
                &REVISION_MATCH,
                &INITIAL,
                &TIMEOUT,
                &WATCH,
            ],
            ..operation("get", "list", "list", "")
        },
        ApiOperation {
            description: format!("create a {kind}"),
            body: Some(type_name(kind, version)),
            codes: &["200", "201", "202"],
            query: vec![&PRETTY, &DRY_RUN, &FIELD_MANAGER, &FIELD_VALIDATION],
            ..operation("post", "post", "create", "")
        },
        ApiOperation {
            description: format!("delete collection of {kind}"),
            body: Some("DeleteOptions"),
            answer: "Status",
            query: vec![
                &PRETTY,
                &CONTINUE,
                &DRY_RUN,
                &FIELDS,
                &GRACE,
                &LABELS,
                &LIMIT,
                &PROPAGATION,
                &REVISION,
            ],
            ..operation("delete", "deletecollection", "delete", "Collection")
        },
    ];
    let write = |about: &str, suffix: &str| {
        [
            ApiOperation {
                description: format!("replace {about} {kind}"),
                body: Some(type_name(kind, version)),
                codes: &["200", "201"],
                query: vec![&PRETTY, &DRY_RUN, &FIELD_MANAGER, &FIELD_VALIDATION],
                ..operation("put", "put", "replace", suffix)
            },
            ApiOperation {
                description: format!("partially update {about} {kind}"),
                body: Some("Patch"),
                consumes: PATCHES,
                codes: &["200", "201"],
                query: vec![&PRETTY, &DRY_RUN, &FIELD_MANAGER, &FIELD_VALIDATION, &FORCE],
                ..operation("patch", "patch", "patch", suffix)
            },
        ]
    };
    let mut one = vec![ApiOperation {
        description: format!("read the specified {kind}"),
        ..operation("get", "get", "read", "")
    }];
    one.extend(write("the specified", ""));
    one.push(ApiOperation {
        description: format!("delete a {kind}"),
        body: Some("DeleteOptions"),
        answer: "Status",
        codes: &["200", "202"],
        query: vec![&PRETTY, &DRY_RUN, &GRACE, &PROPAGATION],
        ..operation("delete", "delete", "delete", "")
    });
    let mut of_status = vec![ApiOperation {
        description: format!("read status of the specified {kind}"),
        ..operation("get", "get", "read", "Status")
    }];
    of_status.extend(write("status of the specified", "Status"));
    let mut all = vec![(collection, list), (object, one)];
    if kind.has_status() {
        all.push((status, of_status));
    }
    if kind.is_read_only() {
        all.iter_mut().for_each(|(_, operations)| operations.retain(|operation| operation.method == "get"));
    }
    if kind.is_namespaced() {
        let list = ApiOperation {
            id: format!("{}ForAllNamespaces", operation("get", "list", "list", "").id.replacen(scope, "", 1)),
            description: format!("list or watch objects of kind {kind} in all namespaces"),
            answer: list_type_name(kind, version),
            query: vec![
                &PRETTY, &BOOKMARKS, &CONTINUE, &FIELDS, &LABELS, &LIMIT, &REVISION, &TIMEOUT, &WATCH,
            ],
            ..operation("get", "list", "list", "")
        };
        all.push((everywhere, vec![list]));
    }
    all
}
