//! The usage of one service by one subject under one policy.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{PolicyLimits, PolicyName};

use super::bucket::{BucketRate, TokenBucket};
use super::{ByteDirection, LimitedEnd};
use crate::policy::PolicyRefusal;

/// The burst of connections and requests. Less than a second, so that ten seconds admit at most five percent
/// too many.
const COUNT_BURST: Duration = Duration::from_millis(500);
/// Larger at the far gateway: connections that the near gateway admitted evenly may arrive in bursts.
const COUNT_BURST_FAR: Duration = Duration::from_secs(2);
/// The time for which a busy machine may keep a task waiting for the processor: bytes of that time are not
/// lost.
const BYTE_BURST: Duration = Duration::from_millis(250);
/// The `Retry-After` of a rate of zero, which only an operator can lift.
const RETRY_AFTER_NEVER: Duration = Duration::from_secs(60);
/// Grants are small, so that the connections of one subject alternate: fifty per second, if the rate allows
/// it.
const GRANTS_PER_SECOND: u64 = 50;
/// The number of bytes that a connection copies at once anyway.
const GRANT_BYTES_MAX: u64 = 64 << 10;

pub struct SubjectShare {
    policy: PolicyName,
    end: LimitedEnd,
    used: Mutex<Used>,
}

struct Used {
    limits: PolicyLimits,
    connections: u64,
    new_connections: TokenBucket,
    requests: TokenBucket,
    sent: TokenBucket,
    received: TokenBucket,
    last: Instant,
}

impl SubjectShare {
    pub fn new(policy: PolicyName, end: LimitedEnd, limits: PolicyLimits, now: Instant) -> SubjectShare {
        let used = Used {
            limits,
            connections: 0,
            new_connections: TokenBucket::default(),
            requests: TokenBucket::default(),
            sent: TokenBucket::default(),
            received: TokenBucket::default(),
            last: now,
        };
        SubjectShare { policy, end, used: Mutex::new(used) }
    }

    pub fn set_limits(&self, limits: PolicyLimits) {
        self.lock().limits = limits;
    }

    /// Admits one more connection, if the limits allow it.
    pub fn connect(&self, now: Instant) -> Result<(), PolicyRefusal> {
        let mut used = self.lock();
        used.last = now;
        // A connection that may move no bytes is refused, not left hanging. The near gateway alone limits
        // bytes.
        let moves_nothing =
            [used.limits.bytes_per_second_in, used.limits.bytes_per_second_out].contains(&Some(0));
        if moves_nothing && self.end == LimitedEnd::Near {
            return Err(self.limit_refusal("bytes per second"));
        }
        if used.limits.connections.is_some_and(|max| used.connections >= self.connections_max(max)) {
            return Err(self.limit_refusal("connections"));
        }
        if let Some(rate) = used.limits.connections_per_second {
            let rate = BucketRate::new(rate, self.count_burst());
            used.new_connections
                .try_take(1, rate, now)
                .map_err(|_| self.limit_refusal("new connections per second"))?;
        }
        used.connections += 1;
        Ok(())
    }

    /// Counts an open connection that comes under this policy.
    pub fn adopt(&self, now: Instant) {
        let mut used = self.lock();
        used.last = now;
        used.connections += 1;
    }

    /// Tells whether an open connection or request may continue.
    pub fn permits(&self) -> Result<(), PolicyRefusal> {
        let used = self.lock();
        let PolicyLimits { connections, bytes_per_second_in, bytes_per_second_out, .. } = used.limits;
        match connections == Some(0) {
            true => Err(self.limit_refusal("connections")),
            false
                if self.end == LimitedEnd::Near
                    && [bytes_per_second_in, bytes_per_second_out].contains(&Some(0)) =>
            {
                Err(self.limit_refusal("bytes per second"))
            }
            false => Ok(()),
        }
    }

    pub fn disconnect(&self, now: Instant) {
        let mut used = self.lock();
        used.last = now;
        used.connections = used.connections.saturating_sub(1);
    }

    /// Takes back a connection that this policy admitted and another policy refused.
    pub fn undo_connect(&self) {
        let mut used = self.lock();
        used.connections = used.connections.saturating_sub(1);
        used.new_connections.give_back(1);
    }

    pub fn request(&self, now: Instant) -> Result<(), PolicyRefusal> {
        let mut used = self.lock();
        used.last = now;
        let Some(rate) = used.limits.requests_per_second else { return Ok(()) };
        let taken = used.requests.try_take(1, BucketRate::new(rate, self.count_burst()), now);
        taken.map_err(|wait| PolicyRefusal::Limit {
            policy: self.policy.clone(),
            what: "requests per second",
            retry_after: Some(wait.unwrap_or(RETRY_AFTER_NEVER)),
        })
    }

    pub fn undo_request(&self) {
        self.lock().requests.give_back(1);
    }

    /// The maximum number of bytes in one grant. None: unlimited.
    pub fn max_bytes_per_grant(&self, way: ByteDirection) -> Option<u64> {
        let rate = self.lock().rate(way)?;
        Some((rate / GRANTS_PER_SECOND).clamp(1, GRANT_BYTES_MAX))
    }

    /// Takes `bytes` and returns the wait before they may move. None: they may not move at all under the
    /// current limits.
    pub fn reserve(&self, way: ByteDirection, bytes: u64, now: Instant) -> Option<Duration> {
        let mut used = self.lock();
        used.last = now;
        let Some(rate) = used.rate(way) else { return Some(Duration::ZERO) };
        used.bucket(way).reserve(bytes, BucketRate::new(rate, BYTE_BURST), now)
    }

    /// Takes `bytes` if they may move at once.
    pub fn try_take(&self, way: ByteDirection, bytes: u64, now: Instant) -> bool {
        let mut used = self.lock();
        used.last = now;
        let Some(rate) = used.rate(way) else { return true };
        let rate = BucketRate::new(rate, BYTE_BURST);
        // A datagram longer than a burst passes after a pause and is accounted for afterwards.
        match used.bucket(way).try_take(1, rate, now) {
            Ok(()) => used.bucket(way).reserve(bytes.saturating_sub(1), rate, now).is_some(),
            Err(_) => false,
        }
    }

    pub fn give_back(&self, way: ByteDirection, bytes: u64) {
        self.lock().bucket(way).give_back(bytes);
    }

    /// Tells whether the share can be removed. After this time its buckets are as full as new ones.
    pub fn is_idle(&self, now: Instant) -> bool {
        let used = self.lock();
        used.connections == 0 && now.saturating_duration_since(used.last) > COUNT_BURST_FAR * 2
    }

    /// The far gateway may learn of a closed connection after the next one has opened: it adds a tolerance,
    /// so that honest gateways are never refused.
    fn connections_max(&self, max: u64) -> u64 {
        match self.end {
            LimitedEnd::Far if max > 0 => max.saturating_add(max / 10 + 8),
            _ => max,
        }
    }

    fn count_burst(&self) -> Duration {
        match self.end {
            LimitedEnd::Near => COUNT_BURST,
            LimitedEnd::Far => COUNT_BURST_FAR,
        }
    }

    fn limit_refusal(&self, what: &'static str) -> PolicyRefusal {
        PolicyRefusal::Limit { policy: self.policy.clone(), what, retry_after: None }
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock_ignoring_poison()
    }
}

impl Used {
    fn rate(&self, way: ByteDirection) -> Option<u64> {
        match way {
            ByteDirection::Sent => self.limits.bytes_per_second_in,
            ByteDirection::Received => self.limits.bytes_per_second_out,
        }
    }

    fn bucket(&mut self, way: ByteDirection) -> &mut TokenBucket {
        match way {
            ByteDirection::Sent => &mut self.sent,
            ByteDirection::Received => &mut self.received,
        }
    }
}
