//! Parses requests about the objects of a resource: path, method and query become a verb with its options.
//!
//! Input: the decoded path segments, the method, the query and the content type, and a description of the resource.
//! Output: a `ResourceRequest`, or the `Status` that refuses it. Authorization and bodies are left to the server.

use super::media::{self, BodyFormat, PatchFormat};
use super::options::{
    CREATE, DeleteOptions, GetOptions, ListOptions, Scope, UPDATE, WatchOptions, WriteOptions,
};
use super::query::QueryParameters;
use crate::api_resource::ApiResource;
use crate::status::Status;

/// The verbs of Kubernetes, as roles and access reviews name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub const ALL: [Verb; 8] = [
        Verb::Get,
        Verb::List,
        Verb::Watch,
        Verb::Create,
        Verb::Update,
        Verb::Patch,
        Verb::Delete,
        Verb::DeleteCollection,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }

    /// Returns true if the verb only reads.
    pub fn is_read(self) -> bool {
        matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }
}

/// The path of a resource, of one object, or of a subresource of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourcePath<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    pub namespace: Option<&'a str>,
    pub plural: &'a str,
    pub name: Option<&'a str>,
    pub subresource: Option<&'a str>,
}

// The subresources of a namespace; after a namespace's name, any other segment is a resource in that namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl<'a> ResourcePath<'a> {
    /// Parses the segments of `/api/VERSION/…` or `/apis/GROUP/VERSION/…`; `None` for any other path, and for a path
    /// below a subresource.
    pub fn parse(segments: &[&'a str]) -> Option<ResourcePath<'a>> {
        let (group, version, rest) = match segments {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, ..] if !NAMESPACE_SUBRESOURCES.contains(plural) => {
                (Some(*namespace), &rest[2..])
            }
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return None,
        };
        Some(ResourcePath { group, version, namespace, plural, name, subresource })
    }
}

/// A request about one collection or one object.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceRequest<R> {
    pub resource: R,
    pub namespace: Option<String>,
    pub verb: ObjectVerb,
}

/// A verb with its options.
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

impl ObjectVerb {
    pub fn verb(&self) -> Verb {
        self.access().0
    }

    /// Returns what authorization looks at: the verb, the name, and whether the request is about the status.
    pub fn access(&self) -> (Verb, Option<&str>, bool) {
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

/// The parts of a request that decide its verb.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    pub method: &'a str,
    /// The path as the client wrote it, for refusals.
    pub path: &'a str,
    pub query: &'a QueryParameters,
    pub content_type: Option<&'a str>,
}

impl RequestHead<'_> {
    /// Parses the request about `resource`, which the caller found by the group, version and plural of `path`.
    pub fn resource_request<R: ApiResource>(
        &self,
        resource: R,
        path: &ResourcePath<'_>,
    ) -> Result<ResourceRequest<R>, Status> {
        let no_such_path = || Status::no_such_path(self.path);
        let status = match path.subresource {
            None => false,
            Some("status") if resource.has_status() => true,
            Some(_) => return Err(no_such_path()),
        };
        let in_scope = match path.namespace {
            Some(_) => resource.is_namespaced(),
            // All namespaces at once can only be listed.
            None => !resource.is_namespaced() || path.name.is_none(),
        };
        if !in_scope {
            return Err(no_such_path());
        }
        let all_namespaces = resource.is_namespaced() && path.namespace.is_none();
        if !self.is_read() && (resource.is_read_only() || all_namespaces) {
            // Kubernetes' words for a resource that does not have the verb.
            let message = "the server does not allow this method on the requested resource";
            return Err(Status { message: message.into(), ..self.not_allowed() });
        }
        self.check_namespace(&resource, path)?;
        let verb = match path.name {
            None => self.collection_verb(&resource, path.namespace)?,
            Some(name) => self.object_verb(&resource, path.namespace, name.to_owned(), status)?,
        };
        Ok(ResourceRequest { resource, namespace: path.namespace.map(str::to_owned), verb })
    }

    /// Refuses objects in namespaces that cannot exist, on a server that has only one.
    fn check_namespace(&self, resource: &impl ApiResource, path: &ResourcePath<'_>) -> Result<(), Status> {
        let Some(only) = resource.only_namespace() else { return Ok(()) };
        match (path.namespace, path.name) {
            (Some(namespace), Some(name)) if namespace != only => {
                Err(Status::resource_not_found(resource.group(), resource.plural(), name))
            }
            (Some(namespace), None) if namespace != only && self.method == "POST" => {
                Err(Status::resource_not_found("", "namespaces", namespace))
            }
            _ => Ok(()),
        }
    }

    fn collection_verb(
        &self,
        resource: &impl ApiResource,
        namespace: Option<&str>,
    ) -> Result<ObjectVerb, Status> {
        match self.method {
            // A watch has no meaning without its body.
            "HEAD" if self.is_watch() => Err(self.not_allowed()),
            "GET" if self.is_watch() => {
                let scope = Scope { namespace, name: None };
                WatchOptions::parse(resource, scope, self.query).map(ObjectVerb::Watch)
            }
            "GET" | "HEAD" => ListOptions::parse(resource, namespace, self.query).map(ObjectVerb::List),
            "POST" => Ok(ObjectVerb::Create {
                options: WriteOptions::parse(CREATE, self.query)?,
                format: self.body_format()?,
            }),
            "DELETE" => Ok(ObjectVerb::DeleteCollection {
                list: ListOptions::parse(resource, namespace, self.query)?,
                options: DeleteOptions::parse(self.query)?,
                format: self.body_format()?,
            }),
            _ => Err(self.not_allowed()),
        }
    }

    fn object_verb(
        &self,
        resource: &impl ApiResource,
        namespace: Option<&str>,
        name: String,
        status: bool,
    ) -> Result<ObjectVerb, Status> {
        match self.method {
            "HEAD" if self.is_watch() && !status => Err(self.not_allowed()),
            "GET" if self.is_watch() && !status => {
                let scope = Scope { namespace, name: Some(&name) };
                WatchOptions::parse(resource, scope, self.query).map(ObjectVerb::Watch)
            }
            "GET" | "HEAD" => Ok(ObjectVerb::Get { name, status, options: GetOptions::parse(self.query)? }),
            "PUT" => Ok(ObjectVerb::Update {
                name,
                status,
                options: WriteOptions::parse(UPDATE, self.query)?,
                format: self.body_format()?,
            }),
            "PATCH" => {
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
            "DELETE" if !status => Ok(ObjectVerb::Delete {
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

    /// Returns the refusal of a method that the path does not have.
    pub fn not_allowed(&self) -> Status {
        Status::method_not_allowed(self.method, self.path)
    }

    /// Returns true if the method only reads.
    pub fn is_read(&self) -> bool {
        matches!(self.method, "GET" | "HEAD")
    }

    fn is_watch(&self) -> bool {
        self.query.flag("watch").unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_resource::ResourceDefinition;

    fn pods() -> ResourceDefinition {
        ResourceDefinition {
            group: String::new(),
            version: "v1".into(),
            plural: "pods".into(),
            kind: "Pod".into(),
            is_namespaced: true,
            has_status: true,
            fields: vec!["spec.nodeName".into()],
        }
    }

    #[test]
    fn a_path_names_a_resource_of_any_group() {
        let check = |path: &str, expected: Option<ResourcePath<'_>>| {
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            assert_eq!(ResourcePath::parse(&segments), expected, "{path}");
        };
        let pods = ResourcePath {
            group: "",
            version: "v1",
            namespace: None,
            plural: "pods",
            name: None,
            subresource: None,
        };
        let shop = ResourcePath { plural: "namespaces", name: Some("shop"), ..pods };
        check("/api/v1/pods", Some(pods));
        check(
            "/api/v1/namespaces/shop/pods/a/log",
            Some(ResourcePath { namespace: Some("shop"), name: Some("a"), subresource: Some("log"), ..pods }),
        );
        check(
            "/apis/apps/v1/namespaces/shop/deployments",
            Some(ResourcePath { group: "apps", namespace: Some("shop"), plural: "deployments", ..pods }),
        );
        check("/api/v1/namespaces/shop", Some(shop));
        check(
            "/api/v1/namespaces/shop/finalize",
            Some(ResourcePath { subresource: Some("finalize"), ..shop }),
        );
        check("/api/v1/namespaces/shop/services/a/proxy/x", None);
        check("/api/v1", None);
        check("/healthz", None);
    }

    #[test]
    fn a_request_for_any_resource_becomes_a_verb_within_its_namespace() {
        let check = |method: &str, path: &str, query: &str, expected: Result<(Verb, Option<&str>), u16>| {
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            let parameters = QueryParameters::parse(Some(query));
            let head = RequestHead { method, path, query: &parameters, content_type: None };
            let found = head.resource_request(pods(), &ResourcePath::parse(&segments).unwrap());
            let found = found.as_ref().map(|found| (found.verb.verb(), found.namespace.as_deref()));
            assert_eq!(found.map_err(|status| status.code), expected, "{method} {path}?{query}");
        };
        let shop = "/api/v1/namespaces/shop/pods";
        check("GET", "/api/v1/pods", "watch=1&fieldSelector=spec.nodeName%3Dn1", Ok((Verb::Watch, None)));
        check("GET", shop, "limit=500", Ok((Verb::List, Some("shop"))));
        check("POST", shop, "", Ok((Verb::Create, Some("shop"))));
        check("POST", "/api/v1/pods", "", Err(405));
        check("GET", "/api/v1/pods/a", "", Err(404));
        check("GET", &format!("{shop}/a/log"), "", Err(404));
        check("GET", shop, "fieldSelector=spec.x%3D1", Err(400));
        let watched = RequestHead {
            method: "GET",
            path: shop,
            query: &QueryParameters::parse(Some("watch=1")),
            content_type: None,
        };
        let path = ResourcePath {
            group: "",
            version: "v1",
            namespace: Some("shop"),
            plural: "pods",
            name: Some("a"),
            subresource: None,
        };
        let ObjectVerb::Watch(options) = watched.resource_request(pods(), &path).unwrap().verb else {
            panic!("not a watch");
        };
        let selects = |namespace: &str| {
            let pod = serde_json::json!({"metadata": {"name": "a", "namespace": namespace}});
            options.selector.matches(&crate::selector::JsonObject(&pod))
        };
        assert!(selects("shop") && !selects("other"));
    }
}
