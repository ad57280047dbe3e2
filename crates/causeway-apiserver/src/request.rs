//! What is asked? Method, path, query and headers in, one `ApiRequest` out, or a refusal as `Status`.
//!
//! Pure. Two roots lead to the same objects: `/api/v1` and `/apis/causeway.io/v1`; events have `/apis/events.k8s.io/v1` as their
//! second. Which verbs and scopes a kind has, it says itself. Bodies are not looked at here, and neither is who asks.

use causeway_api::kinds::NAMESPACE;
pub use causeway_api::request::{media, options, query};
use causeway_api::{ApiVersion, Kind, Status};
use http::{HeaderMap, Method, Uri, header};

use crate::authorize::{RequestedAccess, Verb};
use media::{BodyFormat, MediaRange, PatchFormat};
use options::{CREATE, DeleteOptions, GetOptions, ListOptions, Scope, UPDATE, WatchOptions, WriteOptions};
use query::QueryParameters;

/// One request, understood.
#[derive(Debug, Clone, PartialEq)]
pub enum ApiRequest {
    Object(ObjectRequest),
    Discovery(DiscoveryRequest),
    OpenApi(OpenApiRequest),
    Review(ReviewRequest),
    Action { path: String, query: Option<String> },
    Probe { probe: HealthProbe, verbose: bool },
    Version,
}

/// Something about one collection or one object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectRequest {
    pub version: ApiVersion,
    pub kind: Kind,
    pub deed: ObjectVerb,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ObjectVerb {
    Get { name: String, status: bool, options: GetOptions },
    List(ListOptions),
    Watch(WatchOptions),
    Create { options: WriteOptions, format: BodyFormat },
    Update { name: String, status: bool, options: WriteOptions, format: BodyFormat },
    Patch { name: String, status: bool, options: WriteOptions, format: PatchFormat },
    Delete { name: String, options: DeleteOptions, format: BodyFormat },
    DeleteCollection { list: ListOptions, options: DeleteOptions, format: BodyFormat },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryRequest {
    /// `/api`: the versions of the core group.
    CoreVersions,
    /// `/apis`: all groups.
    Groups,
    /// `/apis/GROUP`.
    Group(ApiGroup),
    /// `/api/v1`: the resources of the core group.
    CoreResources,
    /// `/apis/GROUP/v1`.
    Resources(ApiGroup),
}

/// The named groups we serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiGroup {
    Causeway,
    Events,
    Authentication,
    Authorization,
}

impl ApiGroup {
    pub const ALL: [ApiGroup; 4] =
        [ApiGroup::Causeway, ApiGroup::Events, ApiGroup::Authentication, ApiGroup::Authorization];

    pub const fn name(self) -> &'static str {
        match self {
            ApiGroup::Causeway => causeway_api::GROUP,
            ApiGroup::Events => ApiVersion::Events.group(),
            ApiGroup::Authentication => "authentication.k8s.io",
            ApiGroup::Authorization => "authorization.k8s.io",
        }
    }

    /// The version of the objects of the group; none for reviews, which are no objects.
    const fn version(self) -> Option<ApiVersion> {
        match self {
            ApiGroup::Causeway => Some(ApiVersion::Group),
            ApiGroup::Events => Some(ApiVersion::Events),
            ApiGroup::Authentication | ApiGroup::Authorization => None,
        }
    }

    fn from_name(name: &str) -> Option<ApiGroup> {
        ApiGroup::ALL.into_iter().find(|group| group.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenApiRequest {
    V2,
    V3Index,
    /// One group-version, such as `api/v1` or `apis/causeway.io/v1`.
    V3 {
        path: String,
        hash: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewRequest {
    SelfSubject,
    SelfAccess,
    SelfRules,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthProbe {
    Health,
    Live,
    Ready,
}

impl HealthProbe {
    pub const fn name(self) -> &'static str {
        match self {
            HealthProbe::Health => "healthz",
            HealthProbe::Live => "livez",
            HealthProbe::Ready => "readyz",
        }
    }
}

/// Understands a request. `Err` is what the client gets instead; rights have not been looked at yet.
pub fn parse(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<ApiRequest, Status> {
    let path = uri.path();
    let segments: Vec<String> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| query::decode(segment, false))
        .collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let query = QueryParameters::parse(uri.query());
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let asked = Asked { method, path, query: &query, content_type };

    match segments.as_slice() {
        [] => Err(Status::no_such_path("/")),
        ["healthz"] => {
            asked.read(ApiRequest::Probe { probe: HealthProbe::Health, verbose: query.has("verbose") })
        }
        ["livez"] => {
            asked.read(ApiRequest::Probe { probe: HealthProbe::Live, verbose: query.has("verbose") })
        }
        ["readyz"] => {
            asked.read(ApiRequest::Probe { probe: HealthProbe::Ready, verbose: query.has("verbose") })
        }
        ["version"] => asked.read(ApiRequest::Version),
        ["causeway", "v1", rest @ ..] if !rest.is_empty() => {
            Ok(ApiRequest::Action { path: rest.join("/"), query: uri.query().map(str::to_owned) })
        }
        ["openapi", "v2"] => asked.read(ApiRequest::OpenApi(OpenApiRequest::V2)),
        ["openapi", "v3"] => asked.read(ApiRequest::OpenApi(OpenApiRequest::V3Index)),
        ["openapi", "v3", rest @ ..] => {
            let hash = query.one("hash").map(str::to_owned);
            asked.read(ApiRequest::OpenApi(OpenApiRequest::V3 { path: rest.join("/"), hash }))
        }
        ["api"] => asked.read(ApiRequest::Discovery(DiscoveryRequest::CoreVersions)),
        ["apis"] => asked.read(ApiRequest::Discovery(DiscoveryRequest::Groups)),
        ["api", "v1"] => asked.read(ApiRequest::Discovery(DiscoveryRequest::CoreResources)),
        ["api", "v1", rest @ ..] => asked.object(ApiVersion::Core, rest),
        ["apis", group] => asked
            .group(group)
            .and_then(|group| asked.read(ApiRequest::Discovery(DiscoveryRequest::Group(group)))),
        ["apis", group, "v1"] => asked
            .group(group)
            .and_then(|group| asked.read(ApiRequest::Discovery(DiscoveryRequest::Resources(group)))),
        ["apis", group, "v1", rest @ ..] => {
            let group = asked.group(group)?;
            match (group.version(), rest) {
                (Some(version), rest) => asked.object(version, rest),
                (None, [resource]) => asked.review(group, resource),
                (None, _) => Err(Status::no_such_path(path)),
            }
        }
        _ => Err(Status::no_such_path(path)),
    }
}

/// The parts of a request that decide which verb it is.
struct Asked<'a> {
    method: &'a Method,
    path: &'a str,
    query: &'a QueryParameters,
    content_type: Option<&'a str>,
}

impl Asked<'_> {
    /// For what can only be read.
    fn read(&self, ask: ApiRequest) -> Result<ApiRequest, Status> {
        match *self.method {
            Method::GET | Method::HEAD => Ok(ask),
            _ => Err(self.not_allowed()),
        }
    }

    fn group(&self, name: &str) -> Result<ApiGroup, Status> {
        ApiGroup::from_name(name).ok_or_else(|| Status::no_such_path(self.path))
    }

    fn review(&self, group: ApiGroup, resource: &str) -> Result<ApiRequest, Status> {
        let review = match (group, resource) {
            (ApiGroup::Authentication, "selfsubjectreviews") => ReviewRequest::SelfSubject,
            (ApiGroup::Authorization, "selfsubjectaccessreviews") => ReviewRequest::SelfAccess,
            (ApiGroup::Authorization, "selfsubjectrulesreviews") => ReviewRequest::SelfRules,
            _ => return Err(Status::no_such_path(self.path)),
        };
        if self.method == Method::POST { Ok(ApiRequest::Review(review)) } else { Err(self.not_allowed()) }
    }

    fn object(&self, version: ApiVersion, rest: &[&str]) -> Result<ApiRequest, Status> {
        let no_such_path = || Status::no_such_path(self.path);
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if *plural != "status" => {
                (Some(*namespace), [&[*plural], rest].concat())
            }
            rest => (None, rest.to_vec()),
        };
        let (plural, name, status) = match rest.as_slice() {
            [plural] => (*plural, None, false),
            [plural, name] => (*plural, Some(*name), false),
            [plural, name, "status"] => (*plural, Some(*name), true),
            _ => return Err(no_such_path()),
        };
        let kind = Kind::served(version, plural).ok_or_else(no_such_path)?;
        let in_scope = match namespace {
            Some(_) => kind.is_namespaced(),
            // All namespaces at once can only be listed.
            None => !kind.is_namespaced() || name.is_none(),
        };
        if !in_scope || (status && !kind.has_status()) {
            return Err(no_such_path());
        }
        let reads = matches!(*self.method, Method::GET | Method::HEAD);
        let everywhere = kind.is_namespaced() && namespace.is_none();
        if !reads && (kind.is_read_only() || everywhere) {
            // Kubernetes' words for a resource that does not have the verb.
            let message = "the server does not allow this method on the requested resource";
            return Err(Status { message: message.into(), ..self.not_allowed() });
        }
        self.check_namespace((version, kind), namespace, name)?;
        let deed = match name {
            None => self.collection_deed(kind, namespace)?,
            Some(name) => self.object_deed(kind, name.to_owned(), status)?,
        };
        Ok(ApiRequest::Object(ObjectRequest { version, kind, deed }))
    }

    /// There is one namespace: others have no objects, and none can be made in them.
    fn check_namespace(
        &self,
        (version, kind): (ApiVersion, Kind),
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), Status> {
        match (namespace, name) {
            (None | Some(NAMESPACE), _) => Ok(()),
            (Some(_), Some(name)) => Err(Status::not_found(version, kind, name)),
            (Some(other), None) if *self.method == Method::POST => {
                Err(Status::not_found(ApiVersion::Core, Kind::Namespace, other))
            }
            (Some(_), None) => Ok(()),
        }
    }

    fn collection_deed(&self, kind: Kind, namespace: Option<&str>) -> Result<ObjectVerb, Status> {
        match *self.method {
            // A watch is its body.
            Method::HEAD if self.query.flag("watch").unwrap_or(false) => Err(self.not_allowed()),
            Method::GET if self.query.flag("watch").unwrap_or(false) => {
                let scope = Scope { namespace, name: None };
                WatchOptions::parse(kind, scope, self.query).map(ObjectVerb::Watch)
            }
            Method::GET | Method::HEAD => {
                ListOptions::parse(kind, namespace, self.query).map(ObjectVerb::List)
            }
            Method::POST => Ok(ObjectVerb::Create {
                options: WriteOptions::parse(CREATE, self.query)?,
                format: self.body_format()?,
            }),
            Method::DELETE => Ok(ObjectVerb::DeleteCollection {
                list: ListOptions::parse(kind, namespace, self.query)?,
                options: DeleteOptions::parse(self.query)?,
                format: self.body_format()?,
            }),
            _ => Err(self.not_allowed()),
        }
    }

    fn object_deed(&self, kind: Kind, name: String, status: bool) -> Result<ObjectVerb, Status> {
        match *self.method {
            Method::HEAD if self.query.flag("watch").unwrap_or(false) && !status => Err(self.not_allowed()),
            Method::GET if self.query.flag("watch").unwrap_or(false) && !status => {
                let scope = Scope { namespace: None, name: Some(&name) };
                WatchOptions::parse(kind, scope, self.query).map(ObjectVerb::Watch)
            }
            Method::GET | Method::HEAD => {
                Ok(ObjectVerb::Get { name, status, options: GetOptions::parse(self.query)? })
            }
            Method::PUT => Ok(ObjectVerb::Update {
                name,
                status,
                options: WriteOptions::parse(UPDATE, self.query)?,
                format: self.body_format()?,
            }),
            Method::PATCH => {
                let format = media::patch_format(self.content_type).ok_or_else(|| {
                    Status::unsupported_media_type(self.content_type.unwrap_or_default(), media::PATCH_TYPES)
                })?;
                Ok(ObjectVerb::Patch {
                    name,
                    status,
                    options: WriteOptions::parse_patch(self.query, format)?,
                    format,
                })
            }
            Method::DELETE if !status => Ok(ObjectVerb::Delete {
                name,
                options: DeleteOptions::parse(self.query)?,
                format: self.body_format()?,
            }),
            _ => Err(self.not_allowed()),
        }
    }

    fn body_format(&self) -> Result<BodyFormat, Status> {
        media::body_format(self.content_type).ok_or_else(|| {
            Status::unsupported_media_type(self.content_type.unwrap_or_default(), media::BODY_TYPES)
        })
    }

    fn not_allowed(&self) -> Status {
        Status::method_not_allowed(self.method.as_str(), self.path)
    }
}

impl ApiRequest {
    /// What is wished, as far as rights are concerned.
    pub fn wish<'a>(&'a self, method: &'a Method) -> RequestedAccess<'a> {
        match self {
            ApiRequest::Object(ask) => {
                let (verb, name, status) = ask.deed.rights();
                RequestedAccess::Object { verb, kind: ask.kind, name, status }
            }
            ApiRequest::Action { path, .. } => RequestedAccess::Action { method, path },
            ApiRequest::Discovery(_) | ApiRequest::OpenApi(_) | ApiRequest::Review(_) => {
                RequestedAccess::Description
            }
            ApiRequest::Probe { .. } | ApiRequest::Version => RequestedAccess::Probe,
        }
    }

    /// Does the answer go on until someone ends it?
    pub fn is_watch(&self) -> bool {
        matches!(self, ApiRequest::Object(ObjectRequest { deed: ObjectVerb::Watch(_), .. }))
    }
}

impl ObjectVerb {
    pub fn verb(&self) -> Verb {
        self.rights().0
    }

    fn rights(&self) -> (Verb, Option<&str>, bool) {
        match self {
            ObjectVerb::Get { name, status, .. } => (Verb::Get, Some(name), *status),
            ObjectVerb::List(options) => (Verb::List, options.selector.fields.exact_name(), false),
            ObjectVerb::Watch(options) => (Verb::Watch, options.selector.fields.exact_name(), false),
            ObjectVerb::Create { .. } => (Verb::Create, None, false),
            ObjectVerb::Update { name, status, .. } => (Verb::Update, Some(name), *status),
            ObjectVerb::Patch { name, status, .. } => (Verb::Patch, Some(name), *status),
            ObjectVerb::Delete { name, .. } => (Verb::Delete, Some(name), false),
            ObjectVerb::DeleteCollection { .. } => (Verb::DeleteCollection, None, false),
        }
    }
}

/// Does the client want its JSON indented? By `?pretty=true`, else by the media type, as in Kubernetes.
pub fn is_pretty(uri: &Uri, headers: &HeaderMap) -> bool {
    let truth = |value: &str| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    let asked = uri.query().filter(|query| query.contains("pretty"));
    match QueryParameters::parse(asked).one("pretty") {
        Some(value) => truth(value),
        None => accept(headers).first().and_then(|range| range.param("pretty")).is_some_and(truth),
    }
}

/// The `Accept` header, best range first.
pub fn accept(headers: &HeaderMap) -> Vec<MediaRange> {
    // Several headers of this name mean the same as one with all values.
    let all: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    media::parse_accept((!all.is_empty()).then(|| all.join(",")).as_deref())
}

#[cfg(test)]
mod tests;
