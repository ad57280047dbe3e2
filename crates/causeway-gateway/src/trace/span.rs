//! The span of one record, and the tracer that decides on it and queues it when it ends.
//!
//! A span is exported when its trace is in the ratio and its parent, if it has one, is sampled. The queue is bounded: a span that finds
//! it full is dropped and counted, and no connection waits for a collector.

use std::sync::Mutex;
use std::time::SystemTime;

use bytes::Bytes;
use causeway_daemon::sync::MutexExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::TraceOptions;
use super::context::{TraceContext, is_in_ratio};
use super::export::{SpanExporter, TraceMetrics};
use crate::audit::AuditRecord;
use crate::connection_record::CrossingDirection;

/// Spans that wait for the collector, of about a kilobyte each.
const QUEUE_MAX: usize = 4096;
/// Bytes of a path that a span shows; a client chooses it.
const PATH_BYTES_MAX: usize = 1024;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Decides which spans are exported. Without a collector it does nothing.
pub(crate) struct Tracer {
    export: Option<Export>,
}

struct Export {
    ratio: f64,
    queue: mpsc::Sender<FinishedSpan>,
    metrics: TraceMetrics,
    /// Taken by `run`.
    exporter: Mutex<Option<SpanExporter>>,
}

/// A span that has ended, as it waits for its batch.
pub(crate) struct FinishedSpan {
    pub context: TraceContext,
    pub parent: Option<u64>,
    pub direction: CrossingDirection,
    pub begun: SystemTime,
    pub ended: SystemTime,
    pub record: AuditRecord,
}

impl Tracer {
    pub fn new(options: Option<&TraceOptions>) -> Tracer {
        let export = options.map(|options| {
            let (queue, spans) = mpsc::channel(QUEUE_MAX);
            let metrics = TraceMetrics::default();
            let exporter = SpanExporter::new(options.target.clone(), spans, metrics.clone());
            Export { ratio: options.ratio, queue, metrics, exporter: Mutex::new(Some(exporter)) }
        });
        Tracer { export }
    }

    pub fn register(&self, registry: &mut Registry) {
        if let Some(export) = &self.export {
            export.metrics.register(registry);
        }
    }

    /// Exports spans until told to stop, and those that are queued then. Call it once.
    pub async fn run(&self, end: CancellationToken) {
        let exporter = self.export.as_ref().and_then(|export| export.exporter.lock_ignoring_poison().take());
        if let Some(exporter) = exporter {
            exporter.run(end).await;
        }
    }

    fn queue(&self, span: FinishedSpan) {
        let Some(export) = &self.export else { return };
        if export.queue.try_send(span).is_err() {
            export.metrics.count_dropped("queue", 1);
        }
    }
}

/// The span of a record.
#[derive(Clone, Default)]
pub(crate) struct RecordSpan(Option<ActiveSpan>);

#[derive(Clone)]
struct ActiveSpan {
    context: TraceContext,
    parent: Option<u64>,
    begun: SystemTime,
    /// Part of the ratio. Other spans only pass their new trace id on, so that every gateway decides alike.
    is_exported: bool,
}

impl RecordSpan {
    /// Starts a span without a parent.
    pub fn start(tracer: &Tracer) -> RecordSpan {
        RecordSpan(tracer.export.as_ref().map(|export| {
            let trace = (u128::from(random()) << 64) | u128::from(random());
            ActiveSpan {
                context: TraceContext { trace, span: random(), is_sampled: true },
                parent: None,
                begun: SystemTime::now(),
                is_exported: is_in_ratio(trace, export.ratio),
            }
        }))
    }

    /// Continues the trace of the gateway that opened a stream. Without one the span stays a root.
    pub fn continue_stream(&mut self, tracer: &Tracer, context: &Bytes) {
        self.set_parent(tracer, TraceContext::from_bytes(context));
    }

    /// Continues the trace that a request names.
    pub fn continue_request(&mut self, tracer: &Tracer, headers: &HeaderMap) {
        let text = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        self.set_parent(tracer, text.and_then(TraceContext::parse));
    }

    fn set_parent(&mut self, tracer: &Tracer, parent: Option<TraceContext>) {
        let (Some(export), Some(parent), Some(span)) = (&tracer.export, parent, &mut self.0) else { return };
        if !(parent.is_sampled && is_in_ratio(parent.trace, export.ratio)) {
            // The context of the parent is passed on unchanged.
            self.0 = None;
            return;
        }
        span.context.trace = parent.trace;
        span.parent = Some(parent.span);
        span.is_exported = true;
    }

    /// The context for the other gateway, in the header of a stream. Empty: none.
    pub fn stream_context(&self) -> Bytes {
        self.0.as_ref().map(|span| span.context.to_bytes()).unwrap_or_default()
    }

    /// Sets `traceparent` of a request to this span.
    pub fn set_request_context(&self, headers: &mut HeaderMap) {
        let value = self.0.as_ref().map(|span| HeaderValue::from_str(&span.context.traceparent()));
        if let Some(Ok(value)) = value {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// Queues the span for the collector.
    pub fn finish(&self, tracer: &Tracer, direction: CrossingDirection, record: &AuditRecord) {
        let Some(span) = self.0.as_ref().filter(|span| span.is_exported) else { return };
        let mut record = record.clone();
        record.path = record.path.map(|path| shortened(path, PATH_BYTES_MAX));
        let ActiveSpan { context, parent, begun, .. } = *span;
        tracer.queue(FinishedSpan { context, parent, direction, begun, ended: SystemTime::now(), record });
    }
}

/// An id that is not zero.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers the process could not have made its TLS connections either.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_ne_bytes(bytes).max(1)
}

fn shortened(mut text: String, bytes_max: usize) -> String {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use causeway_daemon::collector::HttpTarget;

    use super::*;

    fn tracer(ratio: f64) -> Tracer {
        let url = "http://127.0.0.1:1/v1/traces".parse().unwrap();
        Tracer::new(Some(&TraceOptions { target: HttpTarget { url, token_file: None, ca: None }, ratio }))
    }

    fn headers(traceparent: &str) -> HeaderMap {
        HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_str(traceparent).unwrap())])
    }

    #[test]
    fn a_span_continues_the_trace_of_its_parent_and_passes_itself_on() {
        let tracer = tracer(1.0);
        let mut headers = headers("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut outbound = RecordSpan::start(&tracer);
        outbound.continue_request(&tracer, &headers);
        outbound.set_request_context(&mut headers);
        let mut inbound = RecordSpan::start(&tracer);
        inbound.continue_request(&tracer, &headers);
        let (outbound, inbound) = (outbound.0.unwrap(), inbound.0.unwrap());
        assert_eq!(outbound.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!(inbound.parent, Some(outbound.context.span));
        assert_eq!(inbound.context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    }

    #[test]
    fn a_trace_outside_the_ratio_or_not_sampled_is_passed_on_unchanged() {
        let check = |ratio: f64, traceparent: &str| {
            let tracer = tracer(ratio);
            let (mut headers, mut span) = (headers(traceparent), RecordSpan::start(&tracer));
            span.continue_request(&tracer, &headers);
            span.set_request_context(&mut headers);
            assert_eq!(headers[TRACEPARENT], traceparent);
            assert!(span.stream_context().is_empty());
        };
        check(1.0, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
        check(0.0, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    }

    #[test]
    fn both_gateways_decide_alike_on_a_new_trace() {
        let tracer = tracer(0.5);
        let mut exported = 0;
        for _ in 0..200 {
            let outbound = RecordSpan::start(&tracer);
            let mut inbound = RecordSpan::start(&tracer);
            inbound.continue_stream(&tracer, &outbound.stream_context());
            let is_exported = |span: &RecordSpan| span.0.as_ref().is_some_and(|span| span.is_exported);
            assert_eq!(is_exported(&outbound), is_exported(&inbound));
            exported += usize::from(is_exported(&outbound));
        }
        assert!((20..180).contains(&exported), "{exported} of 200 at a ratio of one half");
    }

    #[test]
    fn without_a_collector_there_is_no_span() {
        let tracer = Tracer::new(None);
        assert!(RecordSpan::start(&tracer).stream_context().is_empty());
    }
}
