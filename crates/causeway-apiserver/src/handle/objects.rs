//! Passes requests about objects to the registry and renders its results.

use std::time::Duration;

use bytes::Bytes;
use causeway_api::ownership::{self, Subresource};
use causeway_api::request::resource::ResourceRequest;
use causeway_api::{Kind, ServedKind, Status};
use causeway_store::{Revision, StoreRecord};
use http::{HeaderValue, Response, StatusCode, header};

use super::act::Act;
use super::{Handler, RequestContext};
use crate::body::{self, ParsedBody};
use crate::registry::{DeleteResult, ListPage, ObjectAuthor, StoredObject, WriteResult};
use crate::render;
use crate::request::media::{BodyFormat, MediaEncoding, PatchFormat, choose};
use crate::request::options::{DeleteOptions, IncludeObject, ListOptions, WatchOptions, WriteOptions};
use crate::request::{ObjectRequest, ObjectVerb};
use crate::respond::{self, Body, WatchBody, WatchCount};
use crate::watch::{KindWatchStream, ObjectFormat, WatchEnds, random_fraction};

/// The form of the response.
#[derive(Clone, Copy)]
struct Shape {
    form: ObjectFormat,
    encoding: MediaEncoding,
    kind: Kind,
}

impl Handler {
    pub(super) async fn object(
        &self,
        context: &RequestContext<'_>,
        ResourceRequest { resource: ServedKind { version, kind }, verb, .. }: ObjectRequest,
        bytes: Bytes,
        act: &mut Act<'_>,
    ) -> Result<Response<Body>, Status> {
        let (view, encoding) = choose(&context.accept)
            .ok_or_else(|| Status::not_acceptable(&["application/json", "application/yaml"]))?;
        let form = ObjectFormat { version, view, include: include(&verb) };
        let shape = Shape { form, encoding, kind };
        match verb {
            ObjectVerb::Get { name, options, .. } => {
                let stored = self.registry.get(version, kind, &name, options.at).await?;
                self.stored(StatusCode::OK, shape, &stored)
            }
            ObjectVerb::List(options) => {
                let page = self.registry.list(version, kind, &options).await?;
                self.encoded(StatusCode::OK, shape, self.shared.encoder.list(&form, kind, &page))
            }
            ObjectVerb::Watch(options) => self.watch(context, shape, options).await,
            ObjectVerb::Create { options, format } => {
                let parsed = parse(format, &bytes)?;
                let manager = manager(context, &options);
                let author = author(shape, &manager, options.dry_run);
                let written = self.registry.create(author, kind, parsed, options.field_validation).await?;
                self.written(shape, written, act)
            }
            ObjectVerb::Update { name, status, options, format } => {
                let parsed = parse(format, &bytes)?;
                let manager = manager(context, &options);
                let author = author(shape, &manager, options.dry_run);
                let (target, sub) = ((kind, name.as_str()), subresource(status));
                let validation = options.field_validation;
                let written = self.registry.update(author, target, sub, parsed, validation).await?;
                self.written(shape, written, act)
            }
            ObjectVerb::Patch { name, status, options, format } => {
                let manager = manager(context, &options);
                let author = author(shape, &manager, options.dry_run);
                let (target, sub) = ((kind, name.as_str()), subresource(status));
                self.patch(shape, author, (target, sub), &options, (format, &bytes), act).await
            }
            ObjectVerb::Delete { name, options, format } => {
                let options = delete_options(options, format, &bytes)?;
                act.is_dry_run(options.dry_run);
                let author = author(shape, "", options.dry_run);
                match self.registry.delete(author, kind, &name, &options).await? {
                    DeleteResult::Gone { uid, .. } => {
                        let status = Status::deleted(version, kind, &name, &uid);
                        self.encoded(StatusCode::OK, shape, status.to_json())
                    }
                    DeleteResult::Pending(stored) => self.stored(StatusCode::OK, shape, &stored),
                }
            }
            ObjectVerb::DeleteCollection { list, options, format } => {
                let options = delete_options(options, format, &bytes)?;
                act.is_dry_run(options.dry_run);
                self.delete_collection(shape, &list, &options, act).await
            }
        }
    }

    async fn patch(
        &self,
        shape: Shape,
        author: ObjectAuthor<'_>,
        (target, sub): ((Kind, &str), Subresource),
        options: &WriteOptions,
        (format, bytes): (PatchFormat, &Bytes),
        act: &mut Act<'_>,
    ) -> Result<Response<Body>, Status> {
        let validation = options.field_validation;
        let written = match format {
            PatchFormat::Apply => {
                let applied = (parse(BodyFormat::Yaml, bytes)?, options.force);
                self.registry.apply(author, target, sub, applied, validation).await?
            }
            other => {
                let patch = (other, parse(BodyFormat::Json, bytes)?);
                self.registry.patch(author, target, sub, patch, validation).await?
            }
        };
        self.written(shape, written, act)
    }

    async fn delete_collection(
        &self,
        shape: Shape,
        list: &ListOptions,
        options: &DeleteOptions,
        act: &mut Act<'_>,
    ) -> Result<Response<Body>, Status> {
        let author = author(shape, "", options.dry_run);
        let deleted = self.registry.delete_collection(author, shape.kind, list, options).await?;
        act.has_deleted(
            deleted.iter().filter_map(|stored| Some(stored.object().ok()?.name().to_owned())).collect(),
        );
        let revision = deleted.iter().map(|stored| stored.revision).max().unwrap_or(Revision(0));
        let record = |StoredObject { revision, value, .. }: StoredObject| StoreRecord {
            key: "".into(),
            value,
            revision,
            created: revision,
        };
        let records = deleted.into_iter().map(record).collect();
        let page = ListPage { records, revision, next: None, remaining: None };
        self.encoded(StatusCode::OK, shape, self.shared.encoder.list(&shape.form, shape.kind, &page))
    }

    async fn watch(
        &self,
        context: &RequestContext<'_>,
        shape: Shape,
        options: WatchOptions,
    ) -> Result<Response<Body>, Status> {
        let pass = self.enter_long_response(context, &context.stop)?;
        let usual = WATCH_TIME_MIN.mul_f64(1.0 + random_fraction());
        let after = options.timeout_seconds.map_or(usual, Duration::from_secs).min(WATCH_TIME_MAX);
        let ends = WatchEnds { after, stopped: pass.stopped() };
        let (readers, target) = (self.registry.watch_readers(), (shape.kind, shape.form));
        let stream = KindWatchStream::open(readers, target, options, ends, self.shared.clone()).await;
        let count = WatchCount::new(&self.metrics.watchers);
        let mut response = respond::json(StatusCode::OK, Bytes::new());
        *response.body_mut() = Body::Watch(Box::new(WatchBody::new(stream, pass, count)));
        Ok(response)
    }

    fn written(
        &self,
        shape: Shape,
        written: WriteResult,
        act: &mut Act<'_>,
    ) -> Result<Response<Body>, Status> {
        act.has_written(&written);
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        let mut response = self.stored(code, shape, &written.stored)?;
        respond::warn(&mut response, &written.warnings);
        Ok(response)
    }

    fn stored(
        &self,
        code: StatusCode,
        shape: Shape,
        stored: &StoredObject,
    ) -> Result<Response<Body>, Status> {
        let json = self.shared.encoder.object(&shape.form, shape.kind, stored.revision, &stored.value, true);
        self.encoded(code, shape, json)
    }

    fn encoded(&self, code: StatusCode, shape: Shape, json: Vec<u8>) -> Result<Response<Body>, Status> {
        match shape.encoding {
            MediaEncoding::Json => Ok(respond::json(code, json)),
            MediaEncoding::Yaml => {
                let yaml = HeaderValue::from_static("application/yaml");
                Ok(respond::whole(code, yaml, render::to_yaml(&json)?))
            }
        }
    }
}

// A watch without a timeout ends after half an hour to an hour, so that clients are balanced over replicas
// again.
const WATCH_TIME_MIN: Duration = Duration::from_secs(30 * 60);
// Longer than clients ask for. Keeps the sum with the current time representable.
const WATCH_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

fn parse(format: BodyFormat, bytes: &Bytes) -> Result<ParsedBody, Status> {
    body::parse(format, bytes)
        .map_err(|error| Status::bad_request(format!("the body of the request cannot be read: {error}")))
}

fn delete_options(
    options: DeleteOptions,
    format: BodyFormat,
    bytes: &Bytes,
) -> Result<DeleteOptions, Status> {
    if bytes.trim_ascii().is_empty() {
        return Ok(options);
    }
    options.with_body(&parse(format, bytes)?.value)
}

fn manager(context: &RequestContext<'_>, options: &WriteOptions) -> String {
    let agent = context.head.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    ownership::manager_name(options.field_manager.as_deref(), agent)
}

fn author(shape: Shape, manager: &str, dry_run: bool) -> ObjectAuthor<'_> {
    ObjectAuthor { version: shape.form.version, manager, dry_run }
}

fn subresource(status: bool) -> Subresource {
    if status { Subresource::Status } else { Subresource::Main }
}

fn include(verb: &ObjectVerb) -> IncludeObject {
    match verb {
        ObjectVerb::Get { options, .. } => options.include,
        ObjectVerb::List(options) | ObjectVerb::DeleteCollection { list: options, .. } => options.include,
        ObjectVerb::Watch(options) => options.include,
        ObjectVerb::Create { options, .. }
        | ObjectVerb::Update { options, .. }
        | ObjectVerb::Patch { options, .. } => options.include,
        ObjectVerb::Delete { .. } => IncludeObject::default(),
    }
}
