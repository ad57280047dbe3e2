//! Parses requests. Input: method, path, query and headers. Output: one `ApiRequest`, or a refusal as
//! `Status`.
//!
//! Pure. Two roots lead to the same objects: `/api/v1` and `/apis/causeway.io/v1`; events have
//! `/apis/events.k8s.io/v1` as their second. Each kind defines its verbs and scopes. Bodies and identities
//! are not examined here.

pub use causeway_api::request::resource::{ObjectVerb, Verb};
use causeway_api::request::resource::{RequestHead, ResourcePath, ResourceRequest};
pub use causeway_api::request::{media, options, query};
use causeway_api::{ApiVersion, Kind, ServedKind, Status};
use http::{HeaderMap, Method, Uri, header};

use crate::authorize::RequestedAccess;
use media::MediaRange;
use query::QueryParameters;

/// One parsed request.
#[derive(Debug, Clone, PartialEq)]
pub enum ApiRequest {
    Object(ObjectRequest),
    Discovery(DiscoveryRequest),
    OpenApi(OpenApiRequest),
    Review(ReviewRequest),
    Action { path: String, query: Option<String> },
    Probe { probe: HealthProbe, verbose: bool },
    Version,
    Console(ConsoleRequest),
}

/// A request about one collection or one object of the kinds that are served here.
pub type ObjectRequest = ResourceRequest<ServedKind>;

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

/// The named API groups of this server.
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

    /// Returns the version of the objects of the group; none for reviews, which are not objects.
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

/// A request of the web console that is no call of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsoleRequest {
    /// A file under `/console`; empty: the page itself.
    File(String),
    /// GET shows the sign-in, POST begins it, DELETE ends it.
    Session,
}

/// Parses a request. `Err` is the response to the client; rights are not checked here.
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
    let parser =
        PathParser { head: RequestHead { method: method.as_str(), path, query: &query, content_type } };

    match segments.as_slice() {
        [] => Err(Status::no_such_path("/")),
        ["healthz"] => {
            parser.read(ApiRequest::Probe { probe: HealthProbe::Health, verbose: query.has("verbose") })
        }
        ["livez"] => {
            parser.read(ApiRequest::Probe { probe: HealthProbe::Live, verbose: query.has("verbose") })
        }
        ["readyz"] => {
            parser.read(ApiRequest::Probe { probe: HealthProbe::Ready, verbose: query.has("verbose") })
        }
        ["version"] => parser.read(ApiRequest::Version),
        ["console", "session"] => match method.as_str() {
            "GET" | "HEAD" | "POST" | "DELETE" => Ok(ApiRequest::Console(ConsoleRequest::Session)),
            _ => Err(parser.head.not_allowed()),
        },
        ["console", rest @ ..] => parser.read(ApiRequest::Console(ConsoleRequest::File(rest.join("/")))),
        ["causeway", "v1", rest @ ..] if !rest.is_empty() => {
            Ok(ApiRequest::Action { path: rest.join("/"), query: uri.query().map(str::to_owned) })
        }
        ["openapi", "v2"] => parser.read(ApiRequest::OpenApi(OpenApiRequest::V2)),
        ["openapi", "v3"] => parser.read(ApiRequest::OpenApi(OpenApiRequest::V3Index)),
        ["openapi", "v3", rest @ ..] => {
            let hash = query.one("hash").map(str::to_owned);
            parser.read(ApiRequest::OpenApi(OpenApiRequest::V3 { path: rest.join("/"), hash }))
        }
        ["api"] => parser.read(ApiRequest::Discovery(DiscoveryRequest::CoreVersions)),
        ["apis"] => parser.read(ApiRequest::Discovery(DiscoveryRequest::Groups)),
        ["api", "v1"] => parser.read(ApiRequest::Discovery(DiscoveryRequest::CoreResources)),
        ["api", "v1", ..] => parser.object(ApiVersion::Core, &segments),
        ["apis", group] => parser
            .group(group)
            .and_then(|group| parser.read(ApiRequest::Discovery(DiscoveryRequest::Group(group)))),
        ["apis", group, "v1"] => parser
            .group(group)
            .and_then(|group| parser.read(ApiRequest::Discovery(DiscoveryRequest::Resources(group)))),
        ["apis", group, "v1", rest @ ..] => {
            let group = parser.group(group)?;
            match (group.version(), rest) {
                (Some(version), _) => parser.object(version, &segments),
                (None, [resource]) => parser.review(group, resource),
                (None, _) => Err(Status::no_such_path(path)),
            }
        }
        _ => Err(Status::no_such_path(path)),
    }
}

/// The object or collection of a write, also when other parts of the request are wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteTarget {
    pub verb: Verb,
    pub kind: Kind,
    pub name: String,
    pub status: bool,
    pub dry_run: bool,
}

impl WriteTarget {
    /// Returns false for writes of events, which report something and are frequent. Only their deletion is an
    /// administrative act.
    pub fn is_administrative(&self) -> bool {
        self.kind != Kind::Event || matches!(self.verb, Verb::Delete | Verb::DeleteCollection)
    }
}

/// Returns the target of a write by its method and path alone, for the audit of requests that `parse` refuses. `None`: not
/// a write, or not of a kind that is served.
pub fn write_target(method: &Method, uri: &Uri) -> Option<WriteTarget> {
    let segments: Vec<String> = uri
        .path()
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| query::decode(segment, false))
        .collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (version, rest) = match segments.as_slice() {
        ["api", "v1", rest @ ..] => (ApiVersion::Core, rest),
        ["apis", group, "v1", rest @ ..] => (ApiGroup::from_name(group)?.version()?, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, plural, rest @ ..] if *plural != "status" => [&[*plural], rest].concat(),
        rest => rest.to_vec(),
    };
    let (plural, name, status) = match rest.as_slice() {
        [plural] => (*plural, None, false),
        [plural, name] => (*plural, Some(*name), false),
        [plural, name, "status"] => (*plural, Some(*name), true),
        _ => return None,
    };
    let kind = Kind::served(version, plural)?;
    let verb = match (method.as_str(), name) {
        ("POST", None) => Verb::Create,
        ("PUT", Some(_)) => Verb::Update,
        ("PATCH", Some(_)) => Verb::Patch,
        ("DELETE", Some(_)) => Verb::Delete,
        ("DELETE", None) => Verb::DeleteCollection,
        _ => return None,
    };
    let dry_run = QueryParameters::parse(uri.query()).one("dryRun") == Some("All");
    Some(WriteTarget { verb, kind, name: name.unwrap_or_default().to_owned(), status, dry_run })
}

/// Parses a path after its root.
struct PathParser<'a> {
    head: RequestHead<'a>,
}

impl PathParser<'_> {
    /// Accepts methods that only read.
    fn read(&self, request: ApiRequest) -> Result<ApiRequest, Status> {
        if self.head.is_read() { Ok(request) } else { Err(self.head.not_allowed()) }
    }

    fn group(&self, name: &str) -> Result<ApiGroup, Status> {
        ApiGroup::from_name(name).ok_or_else(|| Status::no_such_path(self.head.path))
    }

    fn review(&self, group: ApiGroup, resource: &str) -> Result<ApiRequest, Status> {
        let review = match (group, resource) {
            (ApiGroup::Authentication, "selfsubjectreviews") => ReviewRequest::SelfSubject,
            (ApiGroup::Authorization, "selfsubjectaccessreviews") => ReviewRequest::SelfAccess,
            (ApiGroup::Authorization, "selfsubjectrulesreviews") => ReviewRequest::SelfRules,
            _ => return Err(Status::no_such_path(self.head.path)),
        };
        if self.head.method == "POST" { Ok(ApiRequest::Review(review)) } else { Err(self.head.not_allowed()) }
    }

    fn object(&self, version: ApiVersion, segments: &[&str]) -> Result<ApiRequest, Status> {
        let found = ResourcePath::parse(segments)
            .and_then(|path| ServedKind::find(version, path.plural).map(|kind| (kind, path)));
        let (kind, path) = found.ok_or_else(|| Status::no_such_path(self.head.path))?;
        self.head.resource_request(kind, &path).map(ApiRequest::Object)
    }
}

impl ApiRequest {
    /// Returns the access that the request needs.
    pub fn wish<'a>(&'a self, method: &'a Method) -> RequestedAccess<'a> {
        match self {
            ApiRequest::Object(ask) => {
                let (verb, name, status) = ask.verb.access();
                RequestedAccess::Object { verb, kind: ask.resource.kind, name, status }
            }
            ApiRequest::Action { path, .. } => RequestedAccess::Action { method, path },
            ApiRequest::Discovery(_) | ApiRequest::OpenApi(_) | ApiRequest::Review(_) => {
                RequestedAccess::Description
            }
            ApiRequest::Probe { .. } | ApiRequest::Version | ApiRequest::Console(_) => RequestedAccess::Probe,
        }
    }

    /// Returns true if the response is a watch, which has no end of its own.
    pub fn is_watch(&self) -> bool {
        matches!(self, ApiRequest::Object(ResourceRequest { verb: ObjectVerb::Watch(_), .. }))
    }
}

/// Returns true if the client wants indented JSON: by `?pretty=true`, else by the media type, as in
/// Kubernetes.
pub fn is_pretty(uri: &Uri, headers: &HeaderMap) -> bool {
    let truth = |value: &str| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    let pretty = uri.query().filter(|query| query.contains("pretty"));
    match QueryParameters::parse(pretty).one("pretty") {
        Some(value) => truth(value),
        None => accept(headers).first().and_then(|range| range.param("pretty")).is_some_and(truth),
    }
}

/// Parses the `Accept` header, best range first.
pub fn accept(headers: &HeaderMap) -> Vec<MediaRange> {
    // Several headers of this name mean the same as one with all values.
    let all: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    media::parse_accept((!all.is_empty()).then(|| all.join(",")).as_deref())
}

#[cfg(test)]
mod tests;
