//! Traces: one span for each connection or request at each gateway, under one trace id (W3C Trace Context).
//!
//! `ConnectionRecord` holds a `RecordSpan`, which it starts, gives a parent, and finishes with the audit record. `context` parses and
//! samples, `export` batches spans and posts them to an OTLP/HTTP collector. Without the feature `traces` both types are empty and their
//! methods do nothing. Flows at layer 3 have no spans.

#[cfg(feature = "traces")]
mod context;
#[cfg(feature = "traces")]
mod export;
#[cfg(not(feature = "traces"))]
mod off;
#[cfg(feature = "traces")]
mod span;

use causeway_daemon::collector::HttpTarget;

#[cfg(not(feature = "traces"))]
pub(crate) use off::{NoSpan as RecordSpan, NoTracer as Tracer};
#[cfg(feature = "traces")]
pub(crate) use span::{RecordSpan, Tracer};

/// True if this build can export traces.
pub const IS_BUILT_IN: bool = cfg!(feature = "traces");

/// A collector of spans.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// Takes OTLP in JSON, as `https://otel.example.org:4318/v1/traces`.
    pub target: HttpTarget,
    /// The share of traces that is exported, from 0 to 1. The trace id decides, so gateways with equal ratios agree.
    pub ratio: f64,
}
