//! One connection, session or request from its beginning to its end: judged, metered, and recorded exactly once.
//!
//! Every protocol begins one before it does anything, asks it for admission, and tells it how things ended. Whatever happens to
//! the task in between, dropping the passage writes the one audit record, the metrics and the log line.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use causeway_netmap::{Protocol, View};
use prometheus_client::metrics::counter::Counter;

use crate::audit::{Decision, End, Record, timestamp};
use crate::figures::Figures;
use crate::gateway::Shared;
use crate::limits::{self, Allowance, TooMany, Way};
use crate::live::{Claim, Cut, Entry};
use crate::policy::{Permit, Refusal, Who};

/// Seen from this gateway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From a client here.
    Outbound,
    /// To a backend here.
    Inbound,
}

impl Direction {
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Outbound => "outbound",
            Direction::Inbound => "inbound",
        }
    }
}

/// How a protocol is called in the audit, the metrics and the log.
pub fn protocol_word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Http => "http",
        Protocol::Https => "https",
        Protocol::Grpc => "grpc",
        Protocol::Kafka => "kafka",
    }
}

/// What has moved so far.
#[derive(Debug)]
pub struct Meter {
    begun: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// In milliseconds since the beginning.
    moved: AtomicU64,
    allowance: OnceLock<Allowance>,
    /// The counters of the gateway, each way; they move while this does, not when it has ended.
    totals: Option<(Counter, Counter)>,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter {
            begun: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            allowance: OnceLock::new(),
            totals: None,
        }
    }

    /// One that also counts for the whole gateway.
    fn counted(figures: &Figures) -> Meter {
        let totals = Some((figures.sent_bytes.clone(), figures.received_bytes.clone()));
        Meter { totals, ..Meter::new() }
    }

    /// What limits it, once it has been let in.
    pub fn allowance(&self) -> Option<&Allowance> {
        self.allowance.get()
    }

    pub(crate) fn set_allowance(&self, allowance: Allowance) {
        // Once; a second one would count it twice, and counts no more when it is dropped here.
        let _ = self.allowance.set(allowance);
    }

    /// Waits until some of so many bytes may move, and says how many.
    pub async fn take(&self, way: Way, bytes: usize) -> usize {
        match self.allowance.get() {
            Some(allowance) => allowance.take(way, bytes).await,
            None => bytes,
        }
    }

    /// Does anything limit it?
    pub fn is_free(&self) -> bool {
        self.allowance.get().is_none_or(Allowance::is_free)
    }

    pub fn add(&self, way: Way, bytes: usize) {
        match way {
            Way::Sent => self.add_sent(bytes),
            Way::Received => self.add_received(bytes),
        }
    }

    /// From the client to the backend.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// From the backend to the client.
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

    /// When something last moved.
    pub fn moved(&self) -> Instant {
        self.begun + std::time::Duration::from_millis(self.moved.load(Ordering::Relaxed))
    }

    fn touch(&self) {
        self.moved.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

/// What a claim was granted.
pub struct Admitted {
    /// The netmap it was judged by.
    pub view: Arc<View>,
    pub who: Who,
    pub permit: Permit,
    /// For whoever must notice that it is cut.
    pub entry: Arc<Entry>,
}

/// One thing that crosses, or is refused.
pub struct Passage {
    shared: Arc<Shared>,
    claim: Claim,
    direction: Direction,
    protocol: &'static str,
    client: Option<SocketAddr>,
    time: SystemTime,
    begun: Instant,
    meter: Arc<Meter>,
    who: Who,
    entry: Option<Arc<Entry>>,
    request: Option<Box<Request>>,
    reason: Option<String>,
    cause: &'static str,
    is_over_limit: bool,
    /// How it ends if nobody says anything else: its task was dropped.
    end: End,
}

#[derive(Default)]
struct Request {
    method: String,
    path: String,
    status: Option<u16>,
    rule: Option<String>,
    client_id: Option<String>,
}

impl Passage {
    pub fn begin(
        shared: &Arc<Shared>,
        direction: Direction,
        protocol: &'static str,
        claim: Claim,
        client: Option<SocketAddr>,
    ) -> Passage {
        let who = claim.who(&shared.view());
        Passage {
            shared: shared.clone(),
            claim,
            direction,
            protocol,
            client,
            time: SystemTime::now(),
            begun: Instant::now(),
            meter: Arc::new(Meter::counted(&shared.figures)),
            who,
            entry: None,
            request: None,
            reason: None,
            cause: "",
            is_over_limit: false,
            end: End::Stopped,
        }
    }

    /// Judges the claim; from now on it is judged again with every netmap. On refusal call `refuse`.
    pub fn admit(&mut self) -> Result<Admitted, Refusal> {
        let shared = &self.shared;
        let entered =
            shared.live.enter(self.claim.clone(), self.direction, self.protocol, self.meter.clone());
        let entry = self.entry.insert(entered?).clone();
        // After it was entered: whichever netmap comes next, either this look or the walk over all sees it.
        let view = shared.view();
        let (who, permit) = self.claim.judge(&view)?;
        self.who = who.clone();
        let _ = entry.right.set((who.clone(), permit.rule().clone()));
        shared.figures.opened(self.direction, self.protocol);
        Ok(Admitted { view, who, permit, entry })
    }

    /// Judges the claim of a connection, and counts it. On refusal call `refuse`.
    pub fn admit_connection(&mut self) -> Result<Admitted, Refusal> {
        let admitted = self.admit()?;
        self.connect(&admitted)?;
        Ok(admitted)
    }

    /// Counts it as a connection, under the limits of every policy that lets it in. On refusal call `refuse`.
    pub fn connect(&mut self, admitted: &Admitted) -> Result<(), Refusal> {
        let Admitted { permit, who, .. } = admitted;
        let limits = &self.shared.limits;
        let allowance =
            limits.connect(self.limit_end(), permit, &self.claim.target(), who, Instant::now())?;
        self.meter.set_allowance(allowance);
        Ok(())
    }

    /// Counts it as a request, on whatever connection. On refusal call `refuse`.
    pub fn request(&mut self, admitted: &Admitted) -> Result<(), TooMany> {
        let Admitted { permit, who, .. } = admitted;
        let limits = &self.shared.limits;
        let allowance =
            limits.request(self.limit_end(), permit, &self.claim.target(), who, Instant::now())?;
        self.meter.set_allowance(allowance);
        Ok(())
    }

    fn limit_end(&self) -> limits::End {
        match self.direction {
            Direction::Outbound => limits::End::Near,
            Direction::Inbound => limits::End::Far,
        }
    }

    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    pub fn who(&self) -> &Who {
        &self.who
    }

    /// What is asked for, where the protocol tells. `rule` is the policy that allowed this very request.
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

    /// What the client calls itself, where the protocol tells.
    pub fn set_client_id(&mut self, client_id: Option<&str>) {
        if let Some(client_id) = client_id {
            self.request.get_or_insert_default().client_id = Some(client_id.to_owned());
        }
    }

    /// It never began.
    pub fn refuse(mut self, refusal: &Refusal) {
        self.reason = Some(refusal.to_string());
        self.cause = refusal.word();
        self.is_over_limit = matches!(refusal, Refusal::Limit { .. } | Refusal::Full { .. });
        self.end = match refusal {
            Refusal::Limit { .. } | Refusal::Full { .. } => End::Limit,
            Refusal::BackendDown { .. } | Refusal::BackendDenied { .. } => End::BackendDown,
            Refusal::SiteAway { .. } => End::LinkLost,
            _ => End::Refused,
        };
        self.shared.figures.refused(refusal.word());
    }

    /// It was cut off by us.
    pub fn cut(mut self, cut: &Cut) {
        self.end = cut.end();
        if let Cut::Revoked(refusal) | Cut::Limit(refusal) = cut {
            self.reason = Some(refusal.to_string());
        }
    }

    /// It came to an end, `reason` for what is not plain.
    pub fn end(mut self, end: End, reason: Option<String>) {
        self.end = end;
        self.reason = reason;
    }

    /// It was not let in, here or by the other gateway.
    fn is_denied(&self) -> bool {
        let admitted = self.entry.as_ref().is_some_and(|entry| entry.right.get().is_some());
        !admitted || self.is_over_limit || matches!(self.end, End::Refused)
    }

    fn record(&mut self) -> Record {
        let right = self.entry.as_ref().and_then(|entry| entry.right.get());
        let request = self.request.take().map(|request| *request);
        let rule = right.map(|(_, policy)| policy.to_string());
        let Request { method, path, status, rule: request_rule, client_id } = request.unwrap_or_default();
        let gateway = self.shared.view().gateway.as_ref().map(|gateway| gateway.name.to_string());
        Record {
            time: timestamp(self.time),
            gateway: gateway.unwrap_or_default(),
            site: self.who.site.to_string(),
            subject: self.who.server.as_ref().map(ToString::to_string),
            claimed_subject: self.claim.claimed(&self.who).map(str::to_owned),
            client: self.client.map(|client| client.to_string()),
            service: self.claim.target(),
            protocol: self.protocol,
            decision: if self.is_denied() { Decision::Deny } else { Decision::Allow },
            rule: request_rule.or(rule),
            reason: self.reason.take(),
            cause: self.cause,
            method: Some(method).filter(|method| !method.is_empty()),
            path: Some(path).filter(|path| !path.is_empty()),
            status,
            client_id,
            sent_bytes: self.meter.sent(),
            received_bytes: self.meter.received(),
            duration_ms: self.begun.elapsed().as_millis() as u64,
            end: self.end,
            count: None,
            first_time: None,
            last_time: None,
            mixed: false,
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            self.shared.live.leave(entry);
            if entry.right.get().is_some() {
                self.shared.figures.closed(self.direction, self.protocol);
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
            "a crossing ended"
        );
        self.shared.audit.record(record);
    }
}
