//! How much a subject may use of a service: the limits of every policy that lets it in.
//!
//! A connection asks `connect`, a request asks `request`; both give an `Allowance`, which its bytes ask before they move. Each (policy, what
//! is used, subject) has a share of its own, so that a greedy subject takes nothing from a polite one; the connections of one subject
//! take turns. The gateway of the client (`LimitedEnd::Near`) enforces all limits; the other one (`LimitedEnd::Far`) counts connections and requests
//! too, with some tolerance, against a near gateway that lies. Each gateway counts for itself.

mod bucket;
mod share;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_netmap::PolicyName;

use crate::policy::{Permit, PolicyRefusal, Principal};
use share::SubjectShare;

/// Which gateway asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LimitedEnd {
    /// That of the client.
    Near,
    /// That of the service.
    Far,
}

/// Which way bytes go, in the words of the audit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ByteDirection {
    /// From the subject to the service: `bytesPerSecondIn`.
    Sent,
    /// From the service to the subject: `bytesPerSecondOut`.
    Received,
}

/// A request over the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitExceeded {
    pub refusal: PolicyRefusal,
    /// After which time it would pass. None: never.
    pub again: Option<Duration>,
}

impl LimitExceeded {
    /// For `Retry-After`: whole seconds, at least one.
    pub fn retry_after_seconds(&self) -> u64 {
        let again = self.again.unwrap_or(NEVER);
        again.as_secs().saturating_add(u64::from(again.subsec_nanos() > 0)).clamp(1, NEVER.as_secs())
    }
}

/// A limit of nothing is lifted by people.
const NEVER: Duration = Duration::from_secs(60);

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
    /// More subjects than this at the same time are refused.
    shares_max: usize,
}

struct Shares {
    by_key: HashMap<Key, Arc<SubjectShare>>,
    /// At this size it is worth looking for those that can be forgotten.
    sweep_at: usize,
}

/// Below this nobody looks for what can be forgotten: some hundred KiB.
const SWEEP_MIN: usize = 1024;

impl LimitTable {
    pub fn new(shares_max: usize) -> LimitTable {
        let shares = Shares { by_key: HashMap::new(), sweep_at: SWEEP_MIN };
        LimitTable { shares: Mutex::new(shares), shares_max }
    }

    /// A connection begins. Its allowance counts it until it is dropped.
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

    /// A request begins, on whatever connection.
    pub fn request(
        &self,
        end: LimitedEnd,
        permit: &Permit,
        target: &str,
        who: &Principal,
        now: Instant,
    ) -> Result<Allowance, LimitExceeded> {
        let shares = self
            .shares(end, permit, target, who, now)
            .map_err(|refusal| LimitExceeded { refusal, again: Some(Duration::from_secs(1)) })?;
        for (index, share) in shares.iter().enumerate() {
            // What may move nothing is refused, not left hanging.
            let taken = share.permits().map_err(|refusal| LimitExceeded { refusal, again: None });
            if let Err(refused) = taken.and_then(|()| share.request(now)) {
                shares[..index].iter().for_each(|share| share.undo_request());
                return Err(refused);
            }
        }
        Ok(Allowance::new(end, target, shares, false))
    }

    /// Brings what is open already under the policies of today. An error: it must not go on.
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

    /// The shares of every policy of a permit that has limits, with its limits of today.
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
        // The usual case costs nothing.
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
            shares.make_room(self.shares_max, now)?;
            let share = Arc::new(SubjectShare::new(policy.clone(), end, limits, now));
            shares.by_key.insert(key, share.clone());
            Ok(share)
        });
        found.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shares {
    /// Forgets the idle from time to time, so that looking for them costs little for each.
    fn make_room(&mut self, max: usize, now: Instant) -> Result<(), PolicyRefusal> {
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

/// What one connection or request may move.
pub struct Allowance {
    end: LimitedEnd,
    target: Arc<str>,
    shares: Mutex<Vec<Arc<SubjectShare>>>,
    /// Without limits nobody looks further.
    is_limited: AtomicBool,
    /// It is a connection, and counts as one.
    is_counted: bool,
}

impl Allowance {
    fn new(end: LimitedEnd, target: &str, shares: Vec<Arc<SubjectShare>>, is_counted: bool) -> Allowance {
        let is_limited = AtomicBool::new(!shares.is_empty());
        Allowance { end, target: target.into(), shares: Mutex::new(shares), is_limited, is_counted }
    }

    /// Waits until some of `bytes` may move, and says how many: one at least, all of them if nothing limits them.
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
                // Nothing may pass; whoever keeps the netmap will end this, or has just lifted it.
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Nothing has to wait.
    pub fn is_free(&self) -> bool {
        !self.is_limited.load(Ordering::Relaxed) || self.end == LimitedEnd::Far
    }

    /// For what does not wait: may it move now? A datagram that may not is dropped.
    pub fn try_take(&self, way: ByteDirection, bytes: usize, now: Instant) -> bool {
        if self.is_free() {
            return true;
        }
        self.lock().iter().all(|share| share.try_take(way, bytes as u64, now))
    }

    /// A turn's worth of `bytes` is taken from every share; it may move when the slowest allows it.
    fn reserve(&self, way: ByteDirection, bytes: usize, now: Instant) -> Option<(usize, Duration)> {
        let shares = self.lock();
        let turn = shares.iter().filter_map(|share| share.turn(way)).min().unwrap_or(u64::MAX);
        let granted = turn.min(bytes as u64);
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
        // Timers are no finer. What is not waited for remains as a debt, and makes the next wait longer.
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
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
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
