//! Responses: bodies, refusals, compression.

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use causeway_api::Status;
use causeway_watch::WatchStream;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio_util::task::AbortOnDropHandle;

use super::caller_limits::{AnswerBody, AnswerMemory, CountedWatch};
use crate::copy::collection::Collection;
use crate::copy::source::{CollectionSource, ObjectRenderer};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type ApiBody = UnsyncBoxBody<Bytes, BoxError>;

pub fn whole(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<ApiBody> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub fn json(code: StatusCode, body: impl Into<Bytes>) -> Response<ApiBody> {
    whole(code, HeaderValue::from_static("application/json"), body)
}

/// The same response with a body that counts as memory of its caller.
pub fn counted(response: Response<ApiBody>, body: Bytes, memory: AnswerMemory) -> Response<ApiBody> {
    response.map(|_| AnswerBody::new(body, memory).boxed_unsync())
}

/// A refusal. `Retry-After` is not sent: client-go would sleep and repeat the request ten times.
pub fn refusal(status: &Status) -> Response<ApiBody> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(code, status.to_json())
}

/// Reads a whole body of at most `bytes_max`.
pub async fn collect(mut body: ApiBody, bytes_max: usize) -> Result<Bytes, Status> {
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::unavailable(error, 1))?;
        if let Ok(data) = frame.into_data() {
            if collected.len() + data.len() > bytes_max {
                return Err(Status::unavailable(
                    format!("an answer of the API server has more than {bytes_max} bytes"),
                    1,
                ));
            }
            collected.extend_from_slice(&data);
        }
    }
    Ok(collected.freeze())
}

// As in Kubernetes: below this, compressing costs more than it saves.
const GZIP_BYTES_MIN: usize = 128 << 10;

/// A large JSON body, compressed when the client accepts it.
pub async fn compressed(request: &HeaderMap, body: Vec<u8>, memory: AnswerMemory) -> Response<ApiBody> {
    let takes_gzip = request.get_all(header::ACCEPT_ENCODING).iter().any(|value| {
        let codings = value.to_str().unwrap_or_default().split(',');
        codings.into_iter().any(|coding| coding.trim().eq_ignore_ascii_case("gzip"))
    });
    if body.len() < GZIP_BYTES_MIN || !takes_gzip {
        return counted(json(StatusCode::OK, ""), body.into(), memory);
    }
    let packed = tokio::task::spawn_blocking(move || {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&body)?;
        encoder.finish()
    });
    match packed.await {
        Ok(Ok(packed)) => {
            let mut response = counted(json(StatusCode::OK, ""), packed.into(), memory);
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
            response
        }
        _ => refusal(&Status::internal("the response cannot be compressed")),
    }
}

/// The lines of a watch. Counted at its collection while it is open.
pub struct WatchLines {
    stream: WatchStream<CollectionSource, ObjectRenderer>,
    collection: Arc<Collection>,
    _counted: CountedWatch,
    /// Looks at the rights of the caller until the watch is dropped.
    _rights: AbortOnDropHandle<()>,
    /// While the state that the watch begins with is not sent.
    memory: Option<AnswerMemory>,
}

impl WatchLines {
    pub fn new(
        stream: WatchStream<CollectionSource, ObjectRenderer>,
        collection: Arc<Collection>,
        (counted, memory, rights): (CountedWatch, Option<AnswerMemory>, AbortOnDropHandle<()>),
    ) -> WatchLines {
        collection.watchers.fetch_add(1, Ordering::Relaxed);
        let mut lines = WatchLines { stream, collection, _counted: counted, _rights: rights, memory };
        lines.free_memory();
        lines
    }

    fn free_memory(&mut self) {
        if !self.stream.has_state() {
            self.memory = None;
        }
    }
}

impl Drop for WatchLines {
    fn drop(&mut self) {
        self.collection.watchers.fetch_sub(1, Ordering::Relaxed);
        self.collection.touch();
    }
}

impl http_body::Body for WatchLines {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let lines = self.stream.poll_lines(context);
        self.free_memory();
        lines.map(|lines| lines.map(|lines| Ok(Frame::data(lines))))
    }
}
