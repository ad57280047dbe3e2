//! Coalesces audit records before the sink of the role: repeated denials become a count, and so do the
//! records of a client that exceeds its share while the sink is nearly full.
//!
//! `coalesce` of `causeway-daemon` decides which records pass; `ClientQuota` decides which clients exceed
//! their share. Both are bounded. The time is an argument; `Gateway::run` calls `tell`. Dropping it writes
//! the rest.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use causeway_daemon::coalesce::{Absorb, CoalesceLimits, Coalesced, Coalescer};
use causeway_daemon::sync::MutexExt;

use super::{AuditDecision, AuditRecord, AuditSink, ConnectionEnd, timestamp};

/// Records of one client that may be queued while the sink is nearly full. Of half a million queued at an
/// edge without a link, the first quarter is accepted without distinction; of the rest one client has about a
/// hundredth.
const CLIENT_RECORDS_MAX: u32 = 4096;
/// Clients whose records are counted separately; further clients share one count.
const CLIENTS_MAX: usize = 1024;

/// The fields in which equal records agree.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    client: String,
    service: String,
    decision: AuditDecision,
    end: ConnectionEnd,
    cause: &'static str,
}

pub struct Coalescing {
    sink: Arc<dyn AuditSink>,
    state: Mutex<State>,
}

struct State {
    repeats: Coalescer<Key, AuditRecord>,
    quota: ClientQuota,
}

impl Coalescing {
    pub fn new(sink: Arc<dyn AuditSink>, limits: CoalesceLimits) -> Coalescing {
        let state = State { repeats: Coalescer::new(limits), quota: ClientQuota::default() };
        Coalescing { sink, state: Mutex::new(state) }
    }

    pub fn record(&self, record: AuditRecord) {
        self.record_at(record, SystemTime::now(), Instant::now());
    }

    fn record_at(&self, record: AuditRecord, time: SystemTime, now: Instant) {
        let (is_denied, is_pressed) = (record.decision == AuditDecision::Deny, self.sink.is_pressed());
        if !is_denied && !is_pressed {
            return self.sink.record(record);
        }
        let key = Key::of(&record);
        let mut state = self.lock();
        let passes = if !state.quota.take(&key.client, is_pressed) {
            state.repeats.hold(key, record, time, now);
            None
        } else if is_denied {
            state.repeats.handle(key, record, time, now)
        } else {
            Some(record)
        };
        drop(state);
        if let Some(record) = passes {
            self.sink.record(record);
        }
    }

    /// Writes the counts of windows that have ended.
    pub fn flush_ended(&self, now: Instant) {
        let due = self.lock().repeats.due(now);
        self.record_coalesced(due);
    }

    /// Writes all counts.
    pub fn tell_all(&self) {
        let held = self.lock().repeats.drain();
        self.record_coalesced(held);
    }

    fn record_coalesced(&self, held: Vec<Coalesced<AuditRecord>>) {
        for Coalesced { mut record, count, first, last, is_mixed } in held {
            record.count = Some(count);
            record.first_time = Some(timestamp(first));
            record.last_time = Some(timestamp(last));
            if is_mixed {
                // Their only common property is that this gateway refused them.
                record.mixed = true;
                (record.client, record.subject, record.claimed_subject) = (None, None, None);
            }
            self.sink.record(record);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock_ignoring_poison()
    }
}

impl Drop for Coalescing {
    fn drop(&mut self) {
        self.tell_all();
    }
}

impl Key {
    fn of(record: &AuditRecord) -> Key {
        // Names of services that do not exist are chosen by the client.
        let is_invented = matches!(record.cause, "no-service" | "no-node" | "not-its-host" | "malformed");
        Key {
            client: client_of(record),
            service: if is_invented { String::new() } else { record.service.clone() },
            decision: record.decision,
            end: record.end,
            cause: record.cause,
        }
    }
}

/// Returns the known host, else the address without its port; for IPv6 the /64 network, of which a host
/// chooses the rest.
fn client_of(record: &AuditRecord) -> String {
    if let Some(subject) = &record.subject {
        return format!("{}/{subject}", record.site);
    }
    let address: Option<SocketAddr> = record.client.as_deref().and_then(|client| client.parse().ok());
    let network = match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        Some(IpAddr::V4(ip)) => ip.to_string(),
        None => String::new(),
    };
    format!("{}/{network}", record.site)
}

impl Absorb for AuditRecord {
    /// The later record is kept, with the bytes of both.
    fn absorb(&mut self, later: AuditRecord) {
        let (sent, received) = (self.sent_bytes, self.received_bytes);
        *self = later;
        self.sent_bytes = self.sent_bytes.saturating_add(sent);
        self.received_bytes = self.received_bytes.saturating_add(received);
    }
}

/// Counts the records of each client since the sink became nearly full.
#[derive(Debug, Default)]
struct ClientQuota {
    records: HashMap<String, u32>,
    /// Records of clients beyond `CLIENTS_MAX`.
    others: u32,
}

impl ClientQuota {
    /// Returns whether the client may write one more record. Always true while the sink is not nearly full.
    fn take(&mut self, client: &str, is_pressed: bool) -> bool {
        if !is_pressed {
            self.records.clear();
            self.others = 0;
            return true;
        }
        let has_room = self.records.len() < CLIENTS_MAX || self.records.contains_key(client);
        let records = match has_room {
            true => self.records.entry(client.to_owned()).or_default(),
            false => &mut self.others,
        };
        *records = records.saturating_add(1);
        *records <= CLIENT_RECORDS_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Book {
        records: Mutex<Vec<AuditRecord>>,
        is_pressed: AtomicBool,
    }

    impl AuditSink for Book {
        fn record(&self, record: AuditRecord) {
            self.records.lock().unwrap().push(record);
        }

        fn is_pressed(&self) -> bool {
            self.is_pressed.load(Ordering::Relaxed)
        }
    }

    fn record(client: &str, service: &str, decision: AuditDecision) -> AuditRecord {
        AuditRecord {
            time: "2026-11-17T00:00:00.000Z".into(),
            gateway: "gw".into(),
            site: "oslo".into(),
            subject: None,
            claimed_subject: None,
            client: Some(client.into()),
            service: service.into(),
            protocol: "tcp",
            decision,
            rule: None,
            reason: None,
            cause: if decision == AuditDecision::Deny { "not-allowed" } else { "" },
            method: None,
            path: None,
            status: None,
            client_id: None,
            sent_bytes: 3,
            received_bytes: 0,
            packets: None,
            duration_ms: 0,
            end: ConnectionEnd::Refused,
            count: None,
            first_time: None,
            last_time: None,
            mixed: false,
        }
    }

    fn total(records: &[AuditRecord]) -> u64 {
        records.iter().map(|record| record.count.unwrap_or(1)).sum()
    }

    #[test]
    fn a_denied_client_makes_a_few_records_and_a_count() {
        let book = Arc::new(Book::default());
        let coalescing = Coalescing::new(book.clone(), CoalesceLimits::default());
        let (start, time) = (Instant::now(), SystemTime::UNIX_EPOCH);
        // 1,480 a second, for four minutes, as was measured.
        for second in 0..240 {
            let (time, now) = (time + Duration::from_secs(second), start + Duration::from_secs(second));
            for number in 0..1480 {
                let client = format!("10.0.0.9:{}", 1024 + number);
                coalescing.record_at(record(&client, "web", AuditDecision::Deny), time, now);
            }
            coalescing.record_at(record("10.0.0.7:1", "web", AuditDecision::Allow), time, now);
            coalescing.flush_ended(now);
        }
        coalescing.tell_all();
        let records = book.records.lock().unwrap();
        let (denied, allowed): (Vec<AuditRecord>, Vec<AuditRecord>) =
            records.iter().cloned().partition(|record| record.decision == AuditDecision::Deny);
        assert_eq!(allowed.len(), 240, "what is allowed has a record each");
        assert_eq!(total(&denied), 240 * 1480, "every denial is counted");
        assert!(denied.len() < 12, "{} records", denied.len());
        let last = denied.last().unwrap();
        assert_eq!((last.last_time.as_deref(), last.mixed), (Some("1970-01-01T00:03:59.000Z"), false));
        assert_eq!(last.sent_bytes, 3 * last.count.unwrap());
    }

    #[test]
    fn invented_clients_and_services_are_bounded_and_counted() {
        let book = Arc::new(Book::default());
        let coalescing = Coalescing::new(book.clone(), CoalesceLimits::default());
        let now = Instant::now();
        for number in 0..50_000u32 {
            let client = SocketAddr::new(IpAddr::V4(number.into()), 7).to_string();
            coalescing.record_at(record(&client, "web", AuditDecision::Deny), SystemTime::UNIX_EPOCH, now);
            let invented = AuditRecord {
                cause: "no-service",
                ..record("10.0.0.9:1", &number.to_string(), AuditDecision::Deny)
            };
            coalescing.record_at(invented, SystemTime::UNIX_EPOCH, now);
        }
        coalescing.tell_all();
        let records = book.records.lock().unwrap();
        assert_eq!(total(&records), 100_000);
        assert!(records.len() < 1000, "{} records", records.len());
        let mixed = records.iter().find(|record| record.mixed).unwrap();
        assert_eq!(mixed.client, None, "it speaks for many");
    }

    #[test]
    fn a_busy_client_does_not_take_the_room_of_others_while_the_sink_is_pressed() {
        let book = Arc::new(Book::default());
        let coalescing = Coalescing::new(book.clone(), CoalesceLimits::default());
        let (now, time) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let record_of =
            |client: &str| coalescing.record_at(record(client, "web", AuditDecision::Allow), time, now);
        (0..10_000).for_each(|_| record_of("10.0.0.9:1"));
        assert_eq!(book.records.lock().unwrap().len(), 10_000, "while there is room, each has a record");
        book.is_pressed.store(true, Ordering::Relaxed);
        (0..10_000).for_each(|_| record_of("10.0.0.9:1"));
        (0..10).for_each(|_| record_of("10.0.0.7:1"));
        assert_eq!(book.records.lock().unwrap().len(), 10_000 + 4096 + 10);
        book.is_pressed.store(false, Ordering::Relaxed);
        record_of("10.0.0.9:1");
        coalescing.tell_all();
        assert_eq!(total(&book.records.lock().unwrap()), 20_011, "every one is counted");
    }
}
