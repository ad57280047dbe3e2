//! One connection, session or request from its beginning to its end: judged, metered, and recorded exactly
//! once.
//!
//! Every protocol begins a record first, asks it for admission, and closes it with the end. However the task
//! ends, dropping the record writes the audit record, the metrics and the log line.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use causeway_channel::link::ResetCode;
use causeway_netmap::{NetmapView, PolicyName, ServiceProtocol};
use prometheus_client::metrics::counter::Counter;

use crate::audit::{AuditDecision, AuditRecord, ConnectionEnd, timestamp};
use crate::gateway::GatewayContext;
use crate::limits::{self, Allowance, ByteDirection};
use crate::live::{AccessRequest, AllowedRequest, CutReason, LiveConnection};
use crate::metrics::GatewayMetrics;
use crate::policy::{Permit, PolicyRefusal, Principal};
use crate::trace::RecordSpan;

/// The direction of a connection, seen from this gateway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrossingDirection {
    /// From a local client.
    Outbound,
    /// To a local backend.
    Inbound,
}

impl CrossingDirection {
    pub fn as_str(self) -> &'static str {
        match self {
            CrossingDirection::Outbound => "outbound",
            CrossingDirection::Inbound => "inbound",
        }
    }
}

/// Returns the name of a protocol in the audit, the metrics and the log.
pub fn protocol_word(protocol: ServiceProtocol) -> &'static str {
    match protocol {
        ServiceProtocol::Tcp => "tcp",
        ServiceProtocol::Udp => "udp",
        ServiceProtocol::Http => "http",
        ServiceProtocol::Https => "https",
        ServiceProtocol::Grpc => "grpc",
        ServiceProtocol::Kafka => "kafka",
    }
}

/// Counts the bytes of a connection.
#[derive(Debug)]
pub struct ByteMeter {
    begun: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// Time of the last byte, in milliseconds since the beginning.
    moved: AtomicU64,
    allowance: OnceLock<Allowance>,
    /// The counters of the gateway, by direction; they count while bytes move, not at the end.
    totals: Option<(Counter, Counter)>,
}

impl ByteMeter {
    pub(crate) fn new() -> ByteMeter {
        ByteMeter {
            begun: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            allowance: OnceLock::new(),
            totals: None,
        }
    }

    /// Creates a meter that also counts for the whole gateway.
    fn counted(metrics: &GatewayMetrics) -> ByteMeter {
        let totals = Some((metrics.sent_bytes.clone(), metrics.received_bytes.clone()));
        ByteMeter { totals, ..ByteMeter::new() }
    }

    /// Returns the allowance that limits it, once it is admitted.
    pub fn allowance(&self) -> Option<&Allowance> {
        self.allowance.get()
    }

    pub(crate) fn set_allowance(&self, allowance: Allowance) {
        // Set once: a second allowance would count the connection twice, and stops counting when it is
        // dropped here.
        let _ = self.allowance.set(allowance);
    }

    /// Waits until some of the bytes may move, and returns how many.
    pub async fn take(&self, way: ByteDirection, bytes: usize) -> usize {
        match self.allowance.get() {
            Some(allowance) => allowance.take(way, bytes).await,
            None => bytes,
        }
    }

    /// Returns whether no limit applies.
    pub fn is_free(&self) -> bool {
        self.allowance.get().is_none_or(Allowance::is_free)
    }

    pub fn add(&self, way: ByteDirection, bytes: usize) {
        match way {
            ByteDirection::Sent => self.add_sent(bytes),
            ByteDirection::Received => self.add_received(bytes),
        }
    }

    /// Returns the bytes from the client to the backend.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the bytes from the backend to the client.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some((sent, _)) = &self.totals {
            sent.inc_by(bytes as u64);
        }
        self.touch();
    }

    pub fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some((_, received)) = &self.totals {
            received.inc_by(bytes as u64);
        }
        self.touch();
    }

    /// Returns the time of the last byte.
    pub fn moved(&self) -> Instant {
        self.begun + std::time::Duration::from_millis(self.moved.load(Ordering::Relaxed))
    }

    fn touch(&self) {
        self.moved.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

/// The access that was granted.
pub struct AdmittedAccess {
    /// The netmap by which it was judged.
    pub view: Arc<NetmapView>,
    pub who: Principal,
    pub permit: Permit,
    /// Its entry among the live connections, which tells when it is cut.
    pub entry: Arc<LiveConnection>,
    /// For an HTTP request: the path that was judged, and by which policy.
    pub request: Option<AllowedRequest>,
}

impl AdmittedAccess {
    /// Drops everything but the entry. The netmap may be large, and a connection may outlive it by days.
    pub(crate) fn into_entry(self) -> Arc<LiveConnection> {
        self.entry
    }
}

/// The record of one connection, session or request, admitted or refused.
pub struct ConnectionRecord {
    shared: Arc<GatewayContext>,
    claim: AccessRequest,
    direction: CrossingDirection,
    protocol: &'static str,
    client: Option<SocketAddr>,
    time: SystemTime,
    begun: Instant,
    meter: Arc<ByteMeter>,
    who: Principal,
    entry: Option<Arc<LiveConnection>>,
    request: Option<Box<Request>>,
    reason: Option<String>,
    cause: &'static str,
    is_over_limit: bool,
    /// The policy of the exposure that allows the site as a whole; see `allow_site`.
    site_allowed: Option<Option<PolicyName>>,
    /// The end that is recorded if the task is dropped.
    end: ConnectionEnd,
    span: RecordSpan,
}

#[derive(Default)]
struct Request {
    method: String,
    path: String,
    status: Option<u16>,
    rule: Option<String>,
    client_id: Option<String>,
}

impl ConnectionRecord {
    pub fn begin(
        shared: &Arc<GatewayContext>,
        direction: CrossingDirection,
        protocol: &'static str,
        claim: AccessRequest,
        client: Option<SocketAddr>,
    ) -> ConnectionRecord {
        let who = claim.who(&shared.view());
        ConnectionRecord {
            shared: shared.clone(),
            claim,
            direction,
            protocol,
            client,
            time: SystemTime::now(),
            begun: Instant::now(),
            meter: Arc::new(ByteMeter::counted(&shared.metrics)),
            who,
            entry: None,
            request: None,
            reason: None,
            cause: "",
            is_over_limit: false,
            site_allowed: None,
            end: ConnectionEnd::Stopped,
            span: RecordSpan::start(&shared.tracer),
        }
    }

    /// Judges the access; from now on every netmap judges it again. On refusal call `refuse`.
    pub fn admit(&mut self) -> Result<AdmittedAccess, PolicyRefusal> {
        let shared = &self.shared;
        let entered =
            shared.live.enter(self.claim.clone(), self.direction, self.protocol, self.meter.clone());
        let entry = self.entry.insert(entered?).clone();
        // After it was entered: a netmap that arrives next is seen either here or by
        // `LiveConnections::judge`.
        let view = shared.view();
        let grant = self.claim.grant(&view)?;
        self.who = grant.who.clone();
        let _ = entry.right.set((grant.who.clone(), grant.permit.rule().clone()));
        shared.metrics.opened(self.direction, self.protocol);
        let request = self.claim.request_line().map(|line| grant.check(line)).transpose()?;
        Ok(AdmittedAccess { view, who: grant.who, permit: grant.permit, entry, request })
    }

    /// Judges the access of a connection, and counts it. On refusal call `refuse`.
    pub fn admit_connection(&mut self) -> Result<AdmittedAccess, PolicyRefusal> {
        let admitted = self.admit()?;
        self.connect(&admitted)?;
        Ok(admitted)
    }

    /// Counts a connection under the limits of every policy that allows it. On refusal call `refuse`.
    pub fn connect(&mut self, admitted: &AdmittedAccess) -> Result<(), PolicyRefusal> {
        let AdmittedAccess { permit, who, .. } = admitted;
        let limits = &self.shared.limits;
        let allowance =
            limits.connect(self.limit_end(), permit, &self.claim.target(), who, Instant::now())?;
        self.meter.set_allowance(allowance);
        Ok(())
    }

    /// Counts a request under the limits of every policy that allows it. On refusal call `refuse`.
    pub fn request(&mut self, admitted: &AdmittedAccess) -> Result<(), PolicyRefusal> {
        let AdmittedAccess { permit, who, .. } = admitted;
        let limits = &self.shared.limits;
        let allowance =
            limits.request(self.limit_end(), permit, &self.claim.target(), who, Instant::now())?;
        self.meter.set_allowance(allowance);
        Ok(())
    }

    fn limit_end(&self) -> limits::LimitedEnd {
        match self.direction {
            CrossingDirection::Outbound => limits::LimitedEnd::Near,
            CrossingDirection::Inbound => limits::LimitedEnd::Far,
        }
    }

    pub fn meter(&self) -> &Arc<ByteMeter> {
        &self.meter
    }

    pub fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    pub fn who(&self) -> &Principal {
        &self.who
    }

    pub(crate) fn span(&self) -> &RecordSpan {
        &self.span
    }

    /// Continues the trace that the header of a stream carries.
    pub fn continue_stream(&mut self, context: &bytes::Bytes) {
        self.span.continue_stream(&self.shared.tracer, context);
    }

    /// Continues the trace that a request names.
    pub fn continue_request(&mut self, headers: &http::HeaderMap) {
        self.span.continue_request(&self.shared.tracer, headers);
    }

    /// Sets method and path. `rule` is the policy that allowed the request.
    pub fn set_request(&mut self, method: &str, path: &str, rule: Option<&str>) {
        let request = self.request.get_or_insert_default();
        request.method = method.to_owned();
        request.path = path.to_owned();
        request.rule = rule.map(str::to_owned);
    }

    pub fn set_status(&mut self, status: u16) {
        self.request.get_or_insert_default().status = Some(status);
        if let Some(entry) = &self.entry {
            entry.set_answered();
        }
    }

    /// Sets the id that the client sent, if the protocol has one.
    pub fn set_client_id(&mut self, client_id: Option<&str>) {
        if let Some(client_id) = client_id {
            self.request.get_or_insert_default().client_id = Some(client_id.to_owned());
        }
    }

    /// Marks it as allowed because the service is exposed to the site: for questions, which have no client and no limits.
    pub(crate) fn allow_site(&mut self, policy: Option<PolicyName>) {
        self.site_allowed = Some(policy);
    }

    /// Closes the record: it was refused.
    pub fn refuse(mut self, refusal: &PolicyRefusal) {
        self.reason = Some(refusal.to_string());
        self.cause = refusal.word();
        self.is_over_limit = matches!(refusal, PolicyRefusal::Limit { .. } | PolicyRefusal::Full { .. });
        self.end = match refusal {
            PolicyRefusal::Limit { .. } | PolicyRefusal::Full { .. } => ConnectionEnd::Limit,
            PolicyRefusal::BackendDown { .. } | PolicyRefusal::BackendDenied { .. } => {
                ConnectionEnd::BackendDown
            }
            PolicyRefusal::SiteAway { .. } => ConnectionEnd::LinkLost,
            PolicyRefusal::SiteRefused { code, .. } => match code {
                ResetCode::Limit => ConnectionEnd::Limit,
                ResetCode::BackendDown => ConnectionEnd::BackendDown,
                ResetCode::Timeout => ConnectionEnd::Timeout,
                ResetCode::NotAllowed | ResetCode::Malformed => ConnectionEnd::Refused,
                _ => ConnectionEnd::LinkLost,
            },
            _ => ConnectionEnd::Refused,
        };
        self.shared.metrics.refused(refusal.word());
    }

    /// Closes the record: the gateway cut it.
    pub fn cut(mut self, cut: &CutReason) {
        self.end = cut.end();
        if let CutReason::Revoked(refusal) | CutReason::Limit(refusal) = cut {
            self.reason = Some(refusal.to_string());
        }
    }

    /// Closes the record. `reason` explains an end that is not self-evident.
    pub fn end(mut self, end: ConnectionEnd, reason: Option<String>) {
        self.end = end;
        self.reason = reason;
    }

    /// Returns whether it was refused, here or by the other gateway.
    fn is_denied(&self) -> bool {
        let admitted = self.entry.as_ref().is_some_and(|entry| entry.right.get().is_some());
        let admitted = admitted || self.site_allowed.is_some();
        !admitted || self.is_over_limit || matches!(self.end, ConnectionEnd::Refused)
    }

    fn record(&mut self) -> AuditRecord {
        let right = self.entry.as_ref().and_then(|entry| entry.right.get());
        let request = self.request.take().map(|request| *request);
        let policy = right.map(|(_, policy)| policy).or(self.site_allowed.as_ref().and_then(Option::as_ref));
        let rule = policy.map(ToString::to_string);
        let Request { method, path, status, rule: request_rule, client_id } = request.unwrap_or_default();
        let gateway = self.shared.view().gateway.as_ref().map(|gateway| gateway.name.to_string());
        AuditRecord {
            time: timestamp(self.time),
            gateway: gateway.unwrap_or_default(),
            site: self.who.site.to_string(),
            subject: self.who.server.as_ref().map(ToString::to_string),
            claimed_subject: self.claim.claimed(&self.who).map(str::to_owned),
            client: self.client.map(|client| client.to_string()),
            service: self.claim.target(),
            protocol: self.protocol,
            decision: if self.is_denied() { AuditDecision::Deny } else { AuditDecision::Allow },
            rule: request_rule.or(rule),
            reason: self.reason.take(),
            cause: self.cause,
            method: Some(method).filter(|method| !method.is_empty()),
            path: Some(path).filter(|path| !path.is_empty()),
            status,
            client_id,
            sent_bytes: self.meter.sent(),
            received_bytes: self.meter.received(),
            packets: None,
            duration_ms: self.begun.elapsed().as_millis() as u64,
            end: self.end,
            count: None,
            first_time: None,
            last_time: None,
            mixed: false,
        }
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            self.shared.live.remove(entry);
            if entry.right.get().is_some() {
                self.shared.metrics.closed(self.direction, self.protocol);
            }
        }
        let record = self.record();
        tracing::debug!(
            direction = self.direction.as_str(),
            protocol = record.protocol,
            site = record.site,
            subject = record.subject,
            client = record.client,
            service = record.service,
            rule = record.rule,
            reason = record.reason,
            sent = record.sent_bytes,
            received = record.received_bytes,
            duration_ms = record.duration_ms,
            end = ?record.end,
            "connection ended"
        );
        self.span.finish(&self.shared.tracer, self.direction, &record);
        self.shared.audit.record(record);
    }
}
