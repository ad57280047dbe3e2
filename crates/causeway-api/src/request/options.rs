//! The options of Kubernetes' verbs, read from the query and checked against each other.
//!
//! The rules are those of meta/v1 ListOptions, CreateOptions, UpdateOptions, PatchOptions and DeleteOptions.

use super::media::PatchFormat;
use super::query::QueryParameters;
use crate::api_resource::ApiResource;
use crate::garbage::Propagation;
use crate::selector::Selector;
use crate::{FieldError, FieldReason, Revision, Status};

/// The revision that a read must have at least, or exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VersionMatch {
    /// No `resourceVersion`: the newest there is.
    #[default]
    Newest,
    /// `resourceVersion=0`: any state will do. We have nothing older at hand that would be cheaper than the newest.
    Any,
    NotOlderThan(Revision),
    Exact(Revision),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GetOptions {
    pub at: VersionMatch,
    /// For tables.
    pub include: IncludeObject,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListOptions {
    pub selector: Selector,
    pub limit: Option<usize>,
    pub continue_token: Option<String>,
    pub at: VersionMatch,
    pub include: IncludeObject,
}

/// The start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With everything that is there as ADDED; `marked` wants a bookmark behind it.
    State { not_older_than: Revision, marked: bool },
    /// With what comes now.
    Now,
    /// With what came after a revision.
    After(Revision),
}

#[derive(Debug, Clone, PartialEq)]
pub struct WatchOptions {
    pub selector: Selector,
    pub from: WatchStart,
    pub bookmarks: bool,
    pub timeout_seconds: Option<u64>,
    pub include: IncludeObject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: Option<String>,
    pub field_validation: FieldValidation,
    pub force: bool,
    pub include: IncludeObject,
}

/// The namespace and name in the path of a list or a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope<'a> {
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
}

/// From the query, or from the body of a DELETE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    pub dry_run: bool,
    /// The policy for dependents; none leaves it to the object's finalizers.
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<Revision>,
}

// client-go asks for 500; a page holds the whole answer in memory, so the bound is that of a full list.
const LIMIT_MAX: usize = 1_000_000;
const FIELD_MANAGER_BYTES_MAX: usize = 128;

// The kinds of Kubernetes' options, as refusals name them.
pub const CREATE: &str = "CreateOptions";
pub const UPDATE: &str = "UpdateOptions";
const PATCH: &str = "PatchOptions";
const DELETE: &str = "DeleteOptions";
const LIST: &str = "ListOptions";
const TABLE: &str = "TableOptions";

impl GetOptions {
    pub fn parse(query: &QueryParameters) -> Result<GetOptions, Status> {
        let at = match revision(query)? {
            None => VersionMatch::Newest,
            Some(Revision(0)) => VersionMatch::Any,
            Some(revision) => VersionMatch::NotOlderThan(revision),
        };
        Ok(GetOptions { at, include: include(query)? })
    }
}

impl ListOptions {
    /// `namespace` when the path names one.
    pub fn parse(
        resource: impl ApiResource,
        namespace: Option<&str>,
        query: &QueryParameters,
    ) -> Result<ListOptions, Status> {
        let limit = number(query, "limit")?.filter(|limit| *limit > 0);
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(LIMIT_MAX).min(LIMIT_MAX));
        let continue_token = query.one("continue").map(str::to_owned);
        // A list is answered at once; a number that is none is still a mistake.
        number(query, "timeoutSeconds")?;
        if query.has("sendInitialEvents") {
            return Err(forbidden(LIST, "sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        let at = list_at(query, limit.is_some(), continue_token.is_some())?;
        let selector = selector(&resource, Scope { namespace, name: None }, query)?;
        Ok(ListOptions { selector, limit, continue_token, at, include: include(query)? })
    }
}

fn list_at(query: &QueryParameters, limited: bool, continued: bool) -> Result<VersionMatch, Status> {
    let revision = revision(query)?;
    let wanted = query.one("resourceVersionMatch");
    if continued {
        if wanted.is_some() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            return Err(forbidden(LIST, "resourceVersionMatch", why));
        }
        return match revision {
            None | Some(Revision(0)) => Ok(VersionMatch::Newest),
            Some(_) => {
                Err(Status::bad_request("specifying resource version is not allowed when using continue"))
            }
        };
    }
    match (wanted, revision) {
        (None, None) => Ok(VersionMatch::Newest),
        (Some(_), None) => {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            Err(forbidden(LIST, "resourceVersionMatch", why))
        }
        (Some("Exact"), Some(Revision(0))) => {
            let why = "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"";
            Err(forbidden(LIST, "resourceVersionMatch", why))
        }
        (None | Some("NotOlderThan"), Some(Revision(0))) => Ok(VersionMatch::Any),
        // A page without a match means exactly this revision: the rule from before there were matches.
        (None, Some(revision)) if limited => Ok(VersionMatch::Exact(revision)),
        (None | Some("NotOlderThan"), Some(revision)) => Ok(VersionMatch::NotOlderThan(revision)),
        (Some("Exact"), Some(revision)) => Ok(VersionMatch::Exact(revision)),
        (Some(other), Some(_)) => Err(unknown_match(other)),
    }
}

impl WatchOptions {
    pub fn parse(
        resource: impl ApiResource,
        scope: Scope<'_>,
        query: &QueryParameters,
    ) -> Result<WatchOptions, Status> {
        Ok(WatchOptions {
            selector: selector(&resource, scope, query)?,
            from: watch_from(query)?,
            bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            timeout_seconds: number(query, "timeoutSeconds")?.filter(|seconds| *seconds > 0),
            include: include(query)?,
        })
    }
}

fn watch_from(query: &QueryParameters) -> Result<WatchStart, Status> {
    let revision = revision(query)?;
    let initial = query.flag("sendInitialEvents");
    match (initial, query.one("resourceVersionMatch")) {
        (None, Some(_)) => {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(forbidden(LIST, "resourceVersionMatch", why));
        }
        (Some(_), Some("NotOlderThan")) | (None, None) => {}
        (Some(_), _) => {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return Err(forbidden(LIST, "resourceVersionMatch", why));
        }
    }
    Ok(match (initial, revision) {
        (Some(true), revision) => {
            WatchStart::State { not_older_than: revision.unwrap_or(Revision(0)), marked: true }
        }
        (Some(false), None | Some(Revision(0))) => WatchStart::Now,
        (None, None | Some(Revision(0))) => WatchStart::State { not_older_than: Revision(0), marked: false },
        (_, Some(revision)) => WatchStart::After(revision),
    })
}

impl WriteOptions {
    /// `kind` is the kind of options that a refusal names.
    pub fn parse(kind: &str, query: &QueryParameters) -> Result<WriteOptions, Status> {
        let field_validation = match query.one("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                return Err(invalid_options(
                    kind,
                    FieldError::not_supported("fieldValidation", other, &supported),
                ));
            }
        };
        Ok(WriteOptions {
            dry_run: dry_run(kind, query.all("dryRun"))?,
            field_manager: field_manager(kind, query)?,
            field_validation,
            force: false,
            include: include(query)?,
        })
    }

    pub fn parse_patch(query: &QueryParameters, format: PatchFormat) -> Result<WriteOptions, Status> {
        let options = WriteOptions::parse(PATCH, query)?;
        match format {
            PatchFormat::Apply if options.field_manager.is_none() => Err(invalid_options(
                PATCH,
                FieldError::required("fieldManager", "is required for apply patch"),
            )),
            PatchFormat::Apply => Ok(WriteOptions { force: query.flag("force").unwrap_or(false), ..options }),
            _ if query.has("force") => {
                Err(forbidden(PATCH, "force", "may not be specified for non-apply patch"))
            }
            _ => Ok(options),
        }
    }
}

impl DeleteOptions {
    pub fn parse(query: &QueryParameters) -> Result<DeleteOptions, Status> {
        let propagation = propagation(query.one("propagationPolicy"), query.flag("orphanDependents"))?;
        let dry_run = dry_run(DELETE, query.all("dryRun"))?;
        Ok(DeleteOptions { dry_run, propagation, uid: None, resource_version: None })
    }

    /// Adds what stands in the body, which is a DeleteOptions object.
    pub fn with_body(mut self, body: &serde_json::Value) -> Result<DeleteOptions, Status> {
        let Some(body) = body.as_object() else {
            return Err(Status::bad_request("the body of a DELETE must be a DeleteOptions object"));
        };
        match body.get("kind").and_then(|kind| kind.as_str()) {
            None | Some("DeleteOptions") => {}
            Some(other) => {
                let other: String = other.chars().take(100).collect();
                return Err(Status::bad_request(format!("expected kind DeleteOptions, found {other}")));
            }
        }
        // A safety that cannot be read must not count as absent: a field of another type is refused, as Kubernetes' decoder does.
        let body: DeleteBody =
            serde_json::from_value(serde_json::Value::Object(body.clone())).map_err(|error| {
                Status::bad_request(format!("DeleteOptions cannot be handled as a DeleteOptions: {error}"))
            })?;
        self.propagation =
            propagation(body.propagation_policy.as_deref(), body.orphan_dependents)?.or(self.propagation);
        let rows = body.dry_run.unwrap_or_default();
        self.dry_run |= dry_run(DELETE, rows.iter().map(String::as_str))?;
        let preconditions = body.preconditions.unwrap_or_default();
        self.uid = preconditions.uid.or(self.uid);
        if let Some(version) = preconditions.resource_version {
            self.resource_version = Some(parse_revision("preconditions.resourceVersion", &version)?);
        }
        Ok(self)
    }
}

/// The body of a DELETE. Fields that are missing or null are absent.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteBody {
    dry_run: Option<Vec<String>>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
    /// Read for its type alone: our objects end at once.
    #[serde(rename = "gracePeriodSeconds")]
    _grace_period_seconds: Option<i64>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// The policy for dependents. `orphanDependents` is its older form: true is Orphan, false is Background.
fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Option<Propagation>, Status> {
    const PATH: &str = "propagationPolicy";
    let older = orphan.map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background });
    let Some(policy) = policy.filter(|policy| !policy.is_empty()) else { return Ok(older) };
    if orphan.is_some() {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        return Err(invalid_options(DELETE, FieldError::invalid(PATH, policy, why)));
    }
    match Propagation::parse(policy) {
        Some(policy) => Ok(Some(policy)),
        None => {
            let supported = ["Foreground", "Background", "Orphan", "nil"];
            Err(invalid_options(DELETE, FieldError::not_supported(PATH, policy, &supported)))
        }
    }
}

/// `All`, or nothing. An empty value is refused too: a client that writes `dryRun=` did not mean to write for real.
fn dry_run<'a>(kind: &str, values: impl Iterator<Item = &'a str>) -> Result<bool, Status> {
    let values: Vec<&str> = values.collect();
    if values.iter().all(|value| *value == "All") {
        return Ok(!values.is_empty());
    }
    // Kubernetes shows the whole list, as Go prints it.
    let shown: Vec<String> =
        values.iter().take(8).map(|value| crate::field::show(&(*value).into())).collect();
    let message = format!("Unsupported value: []string{{{}}}: supported values: \"All\"", shown.join(", "));
    let error = FieldError { path: "dryRun".into(), reason: FieldReason::NotSupported, message };
    Err(invalid_options(kind, error))
}

fn field_manager(kind: &str, query: &QueryParameters) -> Result<Option<String>, Status> {
    let Some(manager) = query.one("fieldManager") else { return Ok(None) };
    if manager.len() > FIELD_MANAGER_BYTES_MAX {
        let error = FieldError::too_long("fieldManager", manager, FIELD_MANAGER_BYTES_MAX);
        return Err(invalid_options(kind, error));
    }
    if manager.chars().any(char::is_control) {
        let why = "should only contain printable characters";
        return Err(invalid_options(kind, FieldError::invalid("fieldManager", manager, why)));
    }
    Ok(Some(manager.to_owned()))
}

fn selector(
    resource: &impl ApiResource,
    scope: Scope<'_>,
    query: &QueryParameters,
) -> Result<Selector, Status> {
    let labels = query.one("labelSelector").unwrap_or_default();
    let mut fields = query.one("fieldSelector").unwrap_or_default().to_owned();
    // The only namespace of a server holds all objects of the resource, so naming it selects all of them.
    let namespace = scope.namespace.filter(|namespace| Some(*namespace) != resource.only_namespace());
    for (field, value) in [("metadata.name", scope.name), ("metadata.namespace", namespace)] {
        let Some(value) = value else { continue };
        let comma = if fields.is_empty() { "" } else { "," };
        fields.push_str(&format!("{comma}{field}={}", escaped(value)));
    }
    Selector::parse(resource, labels, &fields).map_err(Status::bad_request)
}

/// A value from the path, for a field selector.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn include(query: &QueryParameters) -> Result<IncludeObject, Status> {
    match query.one("includeObject") {
        None | Some("Metadata") => Ok(IncludeObject::Metadata),
        Some("None") => Ok(IncludeObject::None),
        Some("Object") => Ok(IncludeObject::Object),
        Some(other) => {
            let why = "must be 'Metadata', 'Object', 'None', or empty";
            Err(invalid_options(TABLE, FieldError::invalid("includeObject", other, why)))
        }
    }
}

fn revision(query: &QueryParameters) -> Result<Option<Revision>, Status> {
    query.one("resourceVersion").map(|text| parse_revision("resourceVersion", text)).transpose()
}

/// A revision as clients hand it back to us.
pub fn parse_revision(field: &str, text: &str) -> Result<Revision, Status> {
    text.parse().map(Revision).map_err(|_| {
        let text: String = text.chars().take(100).collect();
        Status::bad_request(format!("invalid {field} {text:?}: must be a number that this server handed out"))
    })
}

fn number(query: &QueryParameters, name: &str) -> Result<Option<u64>, Status> {
    let Some(text) = query.one(name) else { return Ok(None) };
    let number = text.parse::<i64>().map_err(|_| {
        // The last words are those of Kubernetes, which is written in Go; the first say which option is meant.
        let text: String = text.chars().take(100).collect();
        Status::bad_request(format!("invalid {name}: strconv.ParseInt: parsing {text:?}: invalid syntax"))
    })?;
    // Kubernetes takes negative numbers for none.
    Ok(u64::try_from(number).ok())
}

fn unknown_match(found: &str) -> Status {
    let supported = ["Exact", "NotOlderThan"];
    invalid_options(LIST, FieldError::not_supported("resourceVersionMatch", found, &supported))
}

fn forbidden(kind: &str, field: &str, why: &str) -> Status {
    invalid_options(kind, FieldError::forbidden(field, why))
}

/// 422 about the options, not about an object.
fn invalid_options(kind: &str, error: FieldError) -> Status {
    Status::invalid_options("meta.k8s.io", kind, &[error])
}
