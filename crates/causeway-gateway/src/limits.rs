//! Rate limits and connection limits of policies, counted and enforced for the subjects that a policy admits to a service.
//!
//! `connect` admits a connection, `request` a request; both return an `Allowance`, which is asked before
//! bytes move. Each (policy, limited object, subject) has a share of its own, so that a greedy subject takes
//! nothing from a polite one; the connections of one subject take turns. The gateway of the client
//! (`LimitedEnd::Near`) enforces all limits. The gateway of the service (`LimitedEnd::Far`) counts
//! connections and requests too, with some tolerance, as a protection against a near gateway that does not
//! enforce them. Each gateway counts for itself.

pub(crate) mod bucket;
mod share;

pub use bucket::{BucketRate, TokenBucket};

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use causeway_netmap::PolicyName;

use crate::policy::{Permit, PolicyRefusal, Principal};
use share::SubjectShare;

/// The gateway at which a limit is enforced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LimitedEnd {
    /// The gateway of the client.
    Near,
    /// The gateway of the service.
    Far,
}

/// The direction of bytes, in the terms of the audit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ByteDirection {
    /// From the subject to the service: `bytesPerSecondIn`.
    Sent,
    /// From the service to the subject: `bytesPerSecondOut`.
    Received,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    policy: PolicyName,
    target: Arc<str>,
    who: Principal,
    end: LimitedEnd,
}

/// The shares of all subjects.
pub struct LimitTable {
    shares: Mutex<Shares>,
    /// The maximum number of concurrent subjects; further ones are refused.
    shares_max: usize,
}

struct Shares {
    by_key: HashMap<Key, Arc<SubjectShare>>,
    /// The number of shares at which idle ones are looked for.
    sweep_at: usize,
}

/// The lowest threshold at which idle shares are looked for: some hundred KiB.
const SWEEP_MIN: usize = 1024;

impl LimitTable {
    pub fn new(shares_max: usize) -> LimitTable {
        let shares = Shares { by_key: HashMap::new(), sweep_at: SWEEP_MIN };
        LimitTable { shares: Mutex::new(shares), shares_max }
    }

    /// Admits a connection. The returned allowance counts it until it is dropped.
    pub fn connect(
        &self,
        end: LimitedEnd,
        permit: &Permit,
        target: &str,
        who: &Principal,
        now: Instant,
    ) -> Result<Allowance, PolicyRefusal> {
        let shares = self.shares(end, permit, target, who, now)?;
        for (index, share) in shares.iter().enumerate() {
            if let Err(refusal) = share.connect(now) {
                shares[..index].iter().for_each(|share| share.undo_connect());
                return Err(refusal);
            }
        }
        Ok(Allowance::new(end, target, shares, true))
    }

    /// Admits a request, on any connection.
    pub fn request(
        &self,
        end: LimitedEnd,
        permit: &Permit,
        target: &str,
        who: &Principal,
        now: Instant,
    ) -> Result<Allowance, PolicyRefusal> {
        let shares = self.shares(end, permit, target, who, now)?;
        for (index, share) in shares.iter().enumerate() {
            // A request that may move no bytes is refused, not left hanging.
            if let Err(refusal) = share.permits().and_then(|()| share.request(now)) {
                shares[..index].iter().for_each(|share| share.undo_request());
                return Err(refusal);
            }
        }
        Ok(Allowance::new(end, target, shares, false))
    }

    /// Applies the current policies to an open connection or request. An error: it must be closed.
    pub fn renew(
        &self,
        allowance: &Allowance,
        permit: &Permit,
        who: &Principal,
        now: Instant,
    ) -> Result<(), PolicyRefusal> {
        let shares = self.shares(allowance.end, permit, &allowance.target, who, now)?;
        shares.iter().try_for_each(|share| share.permits())?;
        allowance.replace(shares, now);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shares of every policy of a permit that has limits, with their current limits.
    fn shares(
        &self,
        end: LimitedEnd,
        permit: &Permit,
        target: &str,
        who: &Principal,
        now: Instant,
    ) -> Result<Vec<Arc<SubjectShare>>, PolicyRefusal> {
        let limited = permit.rules().iter().filter_map(|rule| Some((&rule.policy, rule.limits?)));
        let mut limited = limited.peekable();
        // Without limits, which is the usual case, the lock is not taken.
        if limited.peek().is_none() {
            return Ok(Vec::new());
        }
        let target: Arc<str> = target.into();
        let mut shares = self.lock();
        let found = limited.map(|(policy, limits)| {
            let key = Key { policy: policy.clone(), target: target.clone(), who: who.clone(), end };
            if let Some(share) = shares.by_key.get(&key) {
                share.set_limits(limits);
                return Ok(share.clone());
            }
            shares.remove_idle(self.shares_max, now)?;
            let share = Arc::new(SubjectShare::new(policy.clone(), end, limits, now));
            shares.by_key.insert(key, share.clone());
            Ok(share)
        });
        found.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock_ignoring_poison()
    }
}

impl Shares {
    /// Removes idle shares when the threshold is reached, so that the amortised cost per share is low.
    fn remove_idle(&mut self, max: usize, now: Instant) -> Result<(), PolicyRefusal> {
        if self.by_key.len() >= self.sweep_at.min(max) {
            self.by_key.retain(|_, share| Arc::strong_count(share) > 1 || !share.is_idle(now));
            self.sweep_at = (self.by_key.len() * 2).max(SWEEP_MIN);
        }
        match self.by_key.len() < max {
            true => Ok(()),
            false => Err(PolicyRefusal::Full { what: "subjects under limits" }),
        }
    }
}

/// The bytes that one connection or request may move.
pub struct Allowance {
    end: LimitedEnd,
    target: Arc<str>,
    shares: Mutex<Vec<Arc<SubjectShare>>>,
    /// False: no limits apply, and the shares are not read.
    is_limited: AtomicBool,
    /// True for a connection, which counts against the connection limit.
    is_counted: bool,
}

impl Allowance {
    fn new(end: LimitedEnd, target: &str, shares: Vec<Arc<SubjectShare>>, is_counted: bool) -> Allowance {
        let is_limited = AtomicBool::new(!shares.is_empty());
        Allowance { end, target: target.into(), shares: Mutex::new(shares), is_limited, is_counted }
    }

    /// Waits until some of `bytes` may move, and returns their number: at least one, and all of them if no
    /// limit applies.
    pub async fn take(&self, way: ByteDirection, bytes: usize) -> usize {
        if self.is_free() {
            return bytes;
        }
        loop {
            match self.reserve(way, bytes, Instant::now()) {
                Some((granted, Duration::ZERO)) => return granted,
                Some((granted, wait)) => {
                    tokio::time::sleep(wait).await;
                    return granted;
                }
                // Nothing may pass; the netmap's owner will close this connection, or has just lifted the
                // limit.
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Tells whether no bytes have to wait.
    pub fn is_free(&self) -> bool {
        !self.is_limited.load(Ordering::Relaxed) || self.end == LimitedEnd::Far
    }

    /// Tells whether `bytes` may move now, for traffic that does not wait: a datagram that may not is
    /// dropped.
    pub fn try_take(&self, way: ByteDirection, bytes: usize, now: Instant) -> bool {
        if self.is_free() {
            return true;
        }
        self.lock().iter().all(|share| share.try_take(way, bytes as u64, now))
    }

    /// Takes up to one grant of `bytes` from every share; they may move when the slowest share allows it.
    fn reserve(&self, way: ByteDirection, bytes: usize, now: Instant) -> Option<(usize, Duration)> {
        let shares = self.lock();
        let max = shares.iter().filter_map(|share| share.max_bytes_per_grant(way)).min().unwrap_or(u64::MAX);
        let granted = max.min(bytes as u64);
        let mut longest = Duration::ZERO;
        for (index, share) in shares.iter().enumerate() {
            match share.reserve(way, granted, now) {
                Some(wait) => longest = longest.max(wait),
                None => {
                    shares[..index].iter().for_each(|share| share.give_back(way, granted));
                    return None;
                }
            }
        }
        // Timers are no finer than this. A wait that is skipped remains as a debt and makes the next wait
        // longer.
        let wait = if longest < Duration::from_millis(1) { Duration::ZERO } else { longest };
        Some((granted as usize, wait))
    }

    fn replace(&self, new: Vec<Arc<SubjectShare>>, now: Instant) {
        let mut shares = self.lock();
        let holds =
            |shares: &[Arc<SubjectShare>], share| shares.iter().any(|known| Arc::ptr_eq(known, share));
        if self.is_counted {
            new.iter().filter(|share| !holds(&shares, share)).for_each(|share| share.adopt(now));
            shares.iter().filter(|share| !holds(&new, share)).for_each(|share| share.disconnect(now));
        }
        self.is_limited.store(!new.is_empty(), Ordering::Relaxed);
        *shares = new;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<SubjectShare>>> {
        self.shares.lock_ignoring_poison()
    }
}

impl fmt::Debug for Allowance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Allowance({:?}, {}, {} shares)", self.end, self.target, self.lock().len())
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if self.is_counted && self.is_limited.load(Ordering::Relaxed) {
            let now = Instant::now();
            self.lock().iter().for_each(|share| share.disconnect(now));
        }
    }
}

#[cfg(test)]
mod tests;
