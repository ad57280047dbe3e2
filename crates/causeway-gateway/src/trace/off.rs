//! The tracer of a build without the feature `traces`: empty types whose methods do nothing.

use bytes::Bytes;
use http::HeaderMap;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::TraceOptions;
use crate::audit::AuditRecord;
use crate::connection_record::CrossingDirection;

pub(crate) struct NoTracer;

impl NoTracer {
    pub fn new(options: Option<&TraceOptions>) -> NoTracer {
        if options.is_some() {
            tracing::error!("traces are configured, and this build has none: build with --features traces");
        }
        NoTracer
    }

    pub fn register(&self, _: &mut Registry) {}

    pub async fn run(&self, _: CancellationToken) {}
}

#[derive(Clone)]
pub(crate) struct NoSpan;

impl NoSpan {
    pub fn start(_: &NoTracer) -> NoSpan {
        NoSpan
    }

    pub fn continue_stream(&mut self, _: &NoTracer, _: &Bytes) {}

    pub fn continue_request(&mut self, _: &NoTracer, _: &HeaderMap) {}

    pub fn stream_context(&self) -> Bytes {
        Bytes::new()
    }

    pub fn set_request_context(&self, _: &mut HeaderMap) {}

    pub fn finish(&self, _: &NoTracer, _: CrossingDirection, _: &AuditRecord) {}
}
