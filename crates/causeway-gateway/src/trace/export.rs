//! Sends spans to a collector as OTLP over HTTP, in the JSON encoding (OTLP 1.0, "OTLP/HTTP").
//!
//! A batch waits for a second or until it is large. A batch that fails is tried three times; then it is dropped and counted. Meanwhile
//! the queue fills, and spans that find it full are dropped (`span`). The stop of the gateway waits for one more second of sending.

use std::time::{Duration, SystemTime};

use causeway_daemon::collector::{CollectorError, HttpTarget};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::span::FinishedSpan;
use crate::audit::{AuditDecision, ConnectionEnd};
use crate::connection_record::CrossingDirection;

const BATCH_SPANS_MAX: usize = 512;
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// A collector that takes longer is taken for one that does not answer.
const SEND_MAX: Duration = Duration::from_secs(10);
/// Time that the batch in flight and the queue have together when the gateway stops.
const LAST_SEND_MAX: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 3;

/// SpanKind of OTLP: the outbound gateway calls the inbound one.
const SERVER: u32 = 2;
const CLIENT: u32 = 3;
/// StatusCode of OTLP.
const ERROR: u32 = 2;

#[derive(Clone, Debug, Default)]
pub(crate) struct TraceMetrics {
    exported: Counter,
    dropped: Family<DropLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    reason: &'static str,
}

impl TraceMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "causeway_gateway_spans_exported",
            "Spans that the collector of traces has accepted",
            self.exported.clone(),
        );
        registry.register(
            "causeway_gateway_spans_dropped",
            "Spans that were dropped because the queue was full or the collector did not take them",
            self.dropped.clone(),
        );
    }

    pub fn count_dropped(&self, reason: &'static str, spans: usize) {
        self.dropped.get_or_create(&DropLabels { reason }).inc_by(spans as u64);
    }
}

pub(crate) struct SpanExporter {
    target: HttpTarget,
    spans: mpsc::Receiver<FinishedSpan>,
    metrics: TraceMetrics,
    /// The last batch was not taken, which was logged.
    is_failing: bool,
}

impl SpanExporter {
    pub fn new(
        target: HttpTarget,
        spans: mpsc::Receiver<FinishedSpan>,
        metrics: TraceMetrics,
    ) -> SpanExporter {
        SpanExporter { target, spans, metrics, is_failing: false }
    }

    pub async fn run(mut self, end: CancellationToken) {
        let late = CancellationToken::new();
        let exporting = async {
            while !end.is_cancelled() {
                let batch = self.collect(&end).await;
                if !batch.is_empty() {
                    self.deliver(&batch, &end, &late).await;
                }
            }
            while let Some(batch) = self.queued() {
                self.deliver(&batch, &end, &late).await;
            }
        };
        let stopping = async {
            end.cancelled().await;
            tokio::time::sleep(LAST_SEND_MAX).await;
            late.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = exporting => {}
            () = stopping => {}
        }
    }

    /// Takes a batch of the spans that are queued, without waiting.
    fn queued(&mut self) -> Option<Vec<FinishedSpan>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_SPANS_MAX
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Waits for a first span, and then for more until the batch is full, its time is over or the gateway stops.
    async fn collect(&mut self, end: &CancellationToken) -> Vec<FinishedSpan> {
        let mut batch = Vec::new();
        let first = tokio::select! {
            biased;
            () = end.cancelled() => None,
            span = self.spans.recv() => span,
        };
        let Some(first) = first else { return batch };
        batch.push(first);
        let full = async {
            while batch.len() < BATCH_SPANS_MAX {
                match self.spans.recv().await {
                    Some(span) => batch.push(span),
                    None => return,
                }
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = tokio::time::sleep(BATCH_WAIT) => {}
            () = full => {}
        }
        batch
    }

    /// Posts a batch, again while it fails and the gateway does not stop, and drops it at `late`.
    async fn deliver(&mut self, batch: &[FinishedSpan], end: &CancellationToken, late: &CancellationToken) {
        for attempt in 1..=ATTEMPTS_MAX {
            let sent = tokio::select! {
                biased;
                () = late.cancelled() => break,
                sent = tokio::time::timeout(SEND_MAX, self.post(batch)) => sent,
            };
            match sent.unwrap_or(Err(CollectorError::Timeout { seconds: SEND_MAX.as_secs() })) {
                Ok(()) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(url = %self.target.url, "the collector of traces takes batches again");
                    }
                    return self.count(batch, true);
                }
                // Once until it works again; the metric counts every batch.
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(
                            url = %self.target.url, spans = batch.len(), error = &error as &dyn std::error::Error,
                            "the collector of traces did not take a batch; batches are dropped after {ATTEMPTS_MAX} attempts"
                        );
                    }
                }
            }
            if attempt < ATTEMPTS_MAX {
                tokio::select! {
                    biased;
                    () = end.cancelled() => break,
                    () = tokio::time::sleep(BATCH_WAIT * attempt) => {}
                }
            }
        }
        self.count(batch, false);
    }

    async fn post(&self, batch: &[FinishedSpan]) -> Result<(), CollectorError> {
        self.target.post(&[], request(batch).to_string().into_bytes()).await.map(drop)
    }

    fn count(&self, batch: &[FinishedSpan], is_accepted: bool) {
        match is_accepted {
            true => drop(self.metrics.exported.inc_by(batch.len() as u64)),
            false => self.metrics.count_dropped("collector", batch.len()),
        }
    }
}

fn request(batch: &[FinishedSpan]) -> Value {
    let gateway = batch.first().map_or("", |span| span.record.gateway.as_str());
    let resource = json!({"attributes": [
        text("service.name", "causeway"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", gateway),
    ]});
    let spans: Vec<Value> = batch.iter().map(span).collect();
    json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "causeway.gateway"}, "spans": spans}]}]})
}

fn span(span: &FinishedSpan) -> Value {
    let record = &span.record;
    let name = match &record.method {
        Some(method) => format!("{method} {}", record.service),
        None => format!("{} {}", record.protocol, record.service),
    };
    let kind = match span.direction {
        CrossingDirection::Outbound => CLIENT,
        CrossingDirection::Inbound => SERVER,
    };
    let status = match failure(span) {
        Some(message) => json!({"code": ERROR, "message": message}),
        None => json!({}),
    };
    json!({
        "traceId": format!("{:032x}", span.context.trace),
        "spanId": format!("{:016x}", span.context.span),
        "parentSpanId": span.parent.map(|parent| format!("{parent:016x}")).unwrap_or_default(),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(span.begun),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": attributes(span),
        "status": status,
    })
}

/// Names of the semantic conventions of OpenTelemetry where there is one.
fn attributes(span: &FinishedSpan) -> Vec<Value> {
    let record = &span.record;
    let texts = [
        ("causeway.gateway", Some(&record.gateway)),
        ("causeway.client.site", Some(&record.site)),
        ("causeway.client.subject", record.subject.as_ref()),
        ("causeway.service", Some(&record.service)),
        ("causeway.policy", record.rule.as_ref()),
        ("client.address", record.client.as_ref()),
        ("http.request.method", record.method.as_ref()),
        ("url.path", record.path.as_ref()),
    ];
    let mut attributes: Vec<Value> =
        texts.into_iter().filter_map(|(name, value)| Some(text(name, value?))).collect();
    attributes.push(text("causeway.direction", span.direction.as_str()));
    attributes.push(text("network.protocol.name", record.protocol));
    attributes.push(number("causeway.sent_bytes", record.sent_bytes));
    attributes.push(number("causeway.received_bytes", record.received_bytes));
    attributes.extend(record.status.map(|status| number("http.response.status_code", status.into())));
    attributes
}

/// The reason of a refusal, or of an end that is not the usual one.
fn failure(span: &FinishedSpan) -> Option<String> {
    let record = &span.record;
    let is_failed = record.decision == AuditDecision::Deny
        || !matches!(record.end, ConnectionEnd::Done | ConnectionEnd::Stopped)
        || record.status.is_some_and(|status| status >= 500);
    is_failed.then(|| record.reason.clone().unwrap_or_else(|| format!("{:?}", record.end)))
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

/// 64-bit numbers are strings in the JSON encoding of protobuf.
fn number(name: &str, value: u64) -> Value {
    json!({"key": name, "value": {"intValue": value.to_string()}})
}

fn nanoseconds(moment: SystemTime) -> String {
    moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::context::TraceContext;
    use super::*;
    use crate::audit::AuditRecord;

    fn finished() -> FinishedSpan {
        let now = SystemTime::now();
        FinishedSpan {
            context: TraceContext { trace: 1, span: 1, is_sampled: true },
            parent: None,
            direction: CrossingDirection::Outbound,
            begun: now,
            ended: now,
            record: AuditRecord {
                time: String::new(),
                gateway: "oslo-1".into(),
                site: "oslo".into(),
                subject: None,
                claimed_subject: None,
                client: None,
                service: "web".into(),
                protocol: "http",
                decision: AuditDecision::Allow,
                rule: None,
                reason: None,
                cause: "",
                method: None,
                path: None,
                status: None,
                client_id: None,
                sent_bytes: 0,
                received_bytes: 0,
                packets: None,
                duration_ms: 0,
                end: ConnectionEnd::Done,
                count: None,
                first_time: None,
                last_time: None,
                mixed: false,
            },
        }
    }

    #[tokio::test]
    async fn a_collector_that_never_answers_does_not_hold_up_the_stop() {
        // Connections are accepted by the kernel and never read.
        let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", collector.local_addr().unwrap()).parse().unwrap();
        let (queue, spans) = mpsc::channel(4 * BATCH_SPANS_MAX);
        let (metrics, mut registry) = (TraceMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        let target = HttpTarget { url, token_file: None, ca: None };
        let end = CancellationToken::new();
        let exporter = SpanExporter::new(target, spans, metrics).run(end.clone());
        let running = tokio::spawn(exporter);
        for _ in 0..3 * BATCH_SPANS_MAX {
            queue.try_send(finished()).unwrap_or_else(|_| panic!("the queue has room"));
        }
        let _sending = collector.accept().await.unwrap();
        end.cancel();
        tokio::time::timeout(SEND_MAX / 2, running).await.expect("the exporter ends in time").unwrap();
        let mut shown = String::new();
        prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
        let line = format!("spans_dropped_total{{reason=\"collector\"}} {}", 3 * BATCH_SPANS_MAX);
        assert!(shown.contains(&line), "{shown}");
    }
}
