//! Bounds the memory of answers, the number of watches and the requests that pass to the API server, of all callers and of one.
//!
//! `UseTable` decides from values. `CallerLimits` lets a request wait a short time for memory that other answers hold, and counts
//! it until its client has read the answer. Nodes have memory and watches of their own, so that pods keep no kubelet out. A list that takes
//! more than the share of one caller is not built at the edge.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use causeway_api::Status;
use causeway_daemon::sync::MutexExt;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

use super::respond::BoxError;
use crate::identity::LocalCaller;

// A list takes up to four times the bytes of its objects while it is built (`docs/edge-api.md`): 32 MiB of objects.
const MEMORY_PER_CALLER_MAX: usize = 128 << 20;
// The lists of three callers at the same time; nodes have the share of one.
const MEMORY_MAX: ByClass = ByClass { nodes: 128 << 20, others: 384 << 20 };
// An answer costs a task and buffers, however small it is.
const ANSWER_BYTES_MIN: usize = 4 << 10;
// A kubelet watches each ConfigMap and Secret of its pods: 110 pods with a dozen each, and its own resources.
const WATCHES_PER_CALLER_MAX: usize = 2_048;
// A watch has about ten KiB with its stream.
const WATCHES_MAX: ByClass = ByClass { nodes: 4_096, others: 6_144 };
// Requests that pass to the API server, until their answers end: watches and sessions in containers may last for hours. One node leaves
// half of the places of nodes to the other ones.
const PASSED_PER_CALLER_MAX: usize = 192;
const PASSED_MAX: ByClass = ByClass { nodes: 384, others: 384 };
// Writes that the site can answer itself, leases above all: they are over soon, and no watch takes their places.
const WRITES_PER_CALLER_MAX: usize = 32;
// With `PASSED_MAX` less than the 1,024 of a site that the cloud serves (`upstream::REQUESTS_PER_SITE_MAX`). The rest is left to requests
// of the edge itself.
const WRITES_MAX: ByClass = ByClass { nodes: 96, others: 64 };
// Requests of one caller that wait for memory; more are refused at once.
const WAITING_PER_CALLER_MAX: usize = 64;
/// The time that a request waits for memory. Clients of the API server wait 3 s for a revision too.
const WAIT: Duration = Duration::from_secs(3);
// Handed to the connection at once.
const CHUNK_BYTES: usize = 64 << 10;

/// The use of nodes, and of all other callers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ByClass {
    nodes: usize,
    others: usize,
}

impl ByClass {
    fn of(&mut self, is_node: bool) -> &mut usize {
        if is_node { &mut self.nodes } else { &mut self.others }
    }
}

/// A caller as the limits see it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LimitedCaller {
    username: String,
    is_node: bool,
}

impl LimitedCaller {
    pub fn of(caller: &LocalCaller) -> LimitedCaller {
        LimitedCaller { username: caller.user.username.clone(), is_node: caller.node_name().is_some() }
    }
}

/// The reason why a request gets no memory or no watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// The answer takes more than one caller may have.
    TooLarge,
    /// Other answers or watches have it.
    Full,
}

impl LimitReached {
    /// The words of the API server. `is_stream`: an informer takes 429 for a state that begins late, so it gets 503.
    pub fn status(self, is_stream: bool) -> Status {
        match (self, is_stream) {
            (LimitReached::TooLarge, _) => {
                Status::unavailable("the list is too large for the memory of the API at the edge", 5)
            }
            (LimitReached::Full, false) => {
                Status::too_many_requests("Too many requests, please try again later.", 1)
            }
            (LimitReached::Full, true) => {
                Status::unavailable("the API at the edge has no memory for this state now", 1)
            }
        }
    }
}

/// The places that a request takes while the API server answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassedKind {
    Any,
    /// A write that the site answers when the API server is away.
    SiteWrite,
}

#[derive(Default)]
struct CallerUse {
    bytes: usize,
    watches: usize,
    passed: usize,
    writes: usize,
    waiting: usize,
}

impl CallerUse {
    fn passed(&mut self, kind: PassedKind) -> &mut usize {
        match kind {
            PassedKind::Any => &mut self.passed,
            PassedKind::SiteWrite => &mut self.writes,
        }
    }
}

/// The use of each caller. Callers that use nothing have no entry.
#[derive(Default)]
struct UseTable {
    bytes: ByClass,
    watches: ByClass,
    passed: ByClass,
    writes: ByClass,
    callers: HashMap<LimitedCaller, CallerUse>,
}

impl UseTable {
    fn take_bytes(&mut self, caller: &LimitedCaller, bytes: usize) -> Result<(), LimitReached> {
        if bytes > MEMORY_PER_CALLER_MAX {
            return Err(LimitReached::TooLarge);
        }
        let own = self.callers.get(caller).map_or(0, |used| used.bytes);
        let (all, mut max) = (self.bytes.of(caller.is_node), MEMORY_MAX);
        if own + bytes > MEMORY_PER_CALLER_MAX || *all + bytes > *max.of(caller.is_node) {
            return Err(LimitReached::Full);
        }
        *all += bytes;
        self.callers.entry(caller.clone()).or_default().bytes += bytes;
        Ok(())
    }

    fn free_bytes(&mut self, caller: &LimitedCaller, bytes: usize) {
        *self.bytes.of(caller.is_node) -= bytes;
        self.change(caller, |used| used.bytes -= bytes);
    }

    fn take_watch(&mut self, caller: &LimitedCaller) -> Result<(), LimitReached> {
        let own = self.callers.get(caller).map_or(0, |used| used.watches);
        let (all, mut max) = (self.watches.of(caller.is_node), WATCHES_MAX);
        if own >= WATCHES_PER_CALLER_MAX || *all >= *max.of(caller.is_node) {
            return Err(LimitReached::Full);
        }
        *all += 1;
        self.callers.entry(caller.clone()).or_default().watches += 1;
        Ok(())
    }

    fn free_watch(&mut self, caller: &LimitedCaller) {
        *self.watches.of(caller.is_node) -= 1;
        self.change(caller, |used| used.watches -= 1);
    }

    fn take_passed(&mut self, caller: &LimitedCaller, kind: PassedKind) -> Result<(), LimitReached> {
        let used = self.callers.get(caller).map_or((0, 0), |used| (used.passed, used.writes));
        let (own, own_max, all, mut max) = match kind {
            PassedKind::Any => (used.0, PASSED_PER_CALLER_MAX, &mut self.passed, PASSED_MAX),
            PassedKind::SiteWrite => (used.1, WRITES_PER_CALLER_MAX, &mut self.writes, WRITES_MAX),
        };
        let all = all.of(caller.is_node);
        if own >= own_max || *all >= *max.of(caller.is_node) {
            return Err(LimitReached::Full);
        }
        *all += 1;
        *self.callers.entry(caller.clone()).or_default().passed(kind) += 1;
        Ok(())
    }

    fn free_passed(&mut self, caller: &LimitedCaller, kind: PassedKind) {
        let all = match kind {
            PassedKind::Any => &mut self.passed,
            PassedKind::SiteWrite => &mut self.writes,
        };
        *all.of(caller.is_node) -= 1;
        self.change(caller, |used| *used.passed(kind) -= 1);
    }

    fn begin_waiting(&mut self, caller: &LimitedCaller) -> Result<(), LimitReached> {
        let used = self.callers.entry(caller.clone()).or_default();
        if used.waiting >= WAITING_PER_CALLER_MAX {
            return Err(LimitReached::Full);
        }
        used.waiting += 1;
        Ok(())
    }

    fn end_waiting(&mut self, caller: &LimitedCaller) {
        self.change(caller, |used| used.waiting -= 1);
    }

    fn change(&mut self, caller: &LimitedCaller, change: impl FnOnce(&mut CallerUse)) {
        let Some(used) = self.callers.get_mut(caller) else { return };
        change(used);
        if (used.bytes, used.watches, used.passed, used.writes, used.waiting) == (0, 0, 0, 0, 0) {
            self.callers.remove(caller);
        }
    }
}

/// A handle; clones share the table.
#[derive(Clone, Default)]
pub struct CallerLimits(Arc<SharedUse>);

#[derive(Default)]
struct SharedUse {
    table: Mutex<UseTable>,
    freed: Notify,
}

impl CallerLimits {
    /// Takes memory for an answer; waits for a bounded time while other answers have it.
    pub async fn take(&self, caller: &LimitedCaller, bytes: usize) -> Result<AnswerMemory, LimitReached> {
        let bytes = bytes.max(ANSWER_BYTES_MIN);
        match self.try_take(caller, bytes) {
            Err(LimitReached::Full) => {}
            taken => return taken,
        }
        let _waiting = Waiting::begin(self, caller)?;
        let taken = tokio::time::timeout(WAIT, async {
            loop {
                // Registered before the look, so that memory that is freed in between is not missed.
                let freed = self.0.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                match self.try_take(caller, bytes) {
                    Err(LimitReached::Full) => freed.await,
                    taken => return taken,
                }
            }
        });
        taken.await.unwrap_or(Err(LimitReached::Full))
    }

    fn try_take(&self, caller: &LimitedCaller, bytes: usize) -> Result<AnswerMemory, LimitReached> {
        self.0.table.lock_ignoring_poison().take_bytes(caller, bytes)?;
        Ok(AnswerMemory { limits: self.clone(), caller: caller.clone(), bytes })
    }

    /// Counts a watch until the guard is dropped.
    pub fn begin_watch(&self, caller: &LimitedCaller) -> Result<CountedWatch, LimitReached> {
        self.0.table.lock_ignoring_poison().take_watch(caller)?;
        Ok(CountedWatch { limits: self.clone(), caller: caller.clone() })
    }
}

impl CallerLimits {
    /// Counts a request that passes to the API server until the guard is dropped.
    pub fn begin_passed(
        &self,
        caller: &LimitedCaller,
        kind: PassedKind,
    ) -> Result<PassedRequest, LimitReached> {
        self.0.table.lock_ignoring_poison().take_passed(caller, kind)?;
        Ok(PassedRequest { limits: self.clone(), caller: caller.clone(), kind })
    }
}

/// A request at the API server, with its answer; dropping it ends the count.
pub struct PassedRequest {
    limits: CallerLimits,
    caller: LimitedCaller,
    kind: PassedKind,
}

impl Drop for PassedRequest {
    fn drop(&mut self) {
        self.limits.0.table.lock_ignoring_poison().free_passed(&self.caller, self.kind);
    }
}

/// A request that waits for memory.
struct Waiting<'a> {
    limits: &'a CallerLimits,
    caller: &'a LimitedCaller,
}

impl<'a> Waiting<'a> {
    fn begin(limits: &'a CallerLimits, caller: &'a LimitedCaller) -> Result<Waiting<'a>, LimitReached> {
        limits.0.table.lock_ignoring_poison().begin_waiting(caller)?;
        Ok(Waiting { limits, caller })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.limits.0.table.lock_ignoring_poison().end_waiting(self.caller);
    }
}

/// Memory of one answer; dropping it frees it.
pub struct AnswerMemory {
    limits: CallerLimits,
    caller: LimitedCaller,
    bytes: usize,
}

impl AnswerMemory {
    /// Keeps as much as an answer has when it is built.
    pub fn shrink(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes.max(ANSWER_BYTES_MIN));
        self.bytes -= surplus;
        self.free(surplus);
    }

    fn free(&self, bytes: usize) {
        self.limits.0.table.lock_ignoring_poison().free_bytes(&self.caller, bytes);
        self.limits.0.freed.notify_waiters();
    }
}

impl Drop for AnswerMemory {
    fn drop(&mut self) {
        self.free(self.bytes);
    }
}

/// An open watch; dropping it ends the count.
pub struct CountedWatch {
    limits: CallerLimits,
    caller: LimitedCaller,
}

impl Drop for CountedWatch {
    fn drop(&mut self) {
        self.limits.0.table.lock_ignoring_poison().free_watch(&self.caller);
    }
}

/// A whole body that counts as memory until its client has taken all of it.
pub struct AnswerBody {
    rest: Bytes,
    memory: Option<AnswerMemory>,
}

impl AnswerBody {
    pub fn new(body: Bytes, mut memory: AnswerMemory) -> AnswerBody {
        memory.shrink(body.len());
        AnswerBody { rest: body, memory: Some(memory) }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let size = self.rest.len().min(CHUNK_BYTES);
        let chunk = self.rest.split_to(size);
        if self.rest.is_empty() {
            self.memory = None;
        }
        Poll::Ready((size > 0).then(|| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn caller(username: &str, is_node: bool) -> LimitedCaller {
        LimitedCaller { username: username.into(), is_node }
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn one_caller_has_a_share_and_pods_leave_memory_to_nodes() {
        let mut table = UseTable::default();
        let pods: Vec<_> = (0..4).map(|number| caller(&format!("pod{number}"), false)).collect();
        assert_eq!(table.take_bytes(&pods[0], 129 * MIB), Err(LimitReached::TooLarge));
        assert_eq!(table.take_bytes(&pods[0], 100 * MIB), Ok(()));
        assert_eq!(table.take_bytes(&pods[0], 29 * MIB), Err(LimitReached::Full), "its own share");
        assert_eq!(table.take_bytes(&pods[1], 128 * MIB), Ok(()));
        assert_eq!(table.take_bytes(&pods[2], 128 * MIB), Ok(()));
        assert_eq!(table.take_bytes(&pods[3], 29 * MIB), Err(LimitReached::Full), "the share of all pods");
        assert_eq!(table.take_bytes(&caller("system:node:n1", true), 128 * MIB), Ok(()));
        table.free_bytes(&pods[0], 100 * MIB);
        assert_eq!(table.take_bytes(&pods[3], 29 * MIB), Ok(()));
        assert!(!table.callers.contains_key(&pods[0]), "a caller that uses nothing is forgotten");
    }

    #[test]
    fn watches_are_bounded_by_caller_and_in_total() {
        let mut table = UseTable::default();
        let names = ["a", "b", "c", "d"].map(|name| caller(name, false));
        for name in &names[..3] {
            for _ in 0..WATCHES_PER_CALLER_MAX {
                assert_eq!(table.take_watch(name), Ok(()));
            }
            assert_eq!(table.take_watch(name), Err(LimitReached::Full));
        }
        assert_eq!(table.take_watch(&names[3]), Err(LimitReached::Full), "in total");
        assert_eq!(table.take_watch(&caller("n1", true)), Ok(()), "a kubelet");
        table.free_watch(&names[0]);
        assert_eq!(table.take_watch(&names[3]), Ok(()));
    }

    #[test]
    fn requests_at_the_api_server_are_bounded_by_caller_and_pods_leave_some_to_nodes() {
        let mut table = UseTable::default();
        let mut take_all = |name: &str, is_node: bool, kind| {
            let caller = caller(name, is_node);
            (0..2_000).take_while(|_| table.take_passed(&caller, kind).is_ok()).count()
        };
        assert_eq!(["a", "b", "c"].map(|name| take_all(name, false, PassedKind::Any)), [192, 192, 0]);
        let nodes = ["system:node:n1", "system:node:n2"];
        assert_eq!(nodes.map(|name| take_all(name, true, PassedKind::Any)), [192, 192]);
        let node = nodes[0];
        assert_eq!(take_all(node, true, PassedKind::SiteWrite), 32, "a lease waits for no watch");
        assert_eq!(take_all(nodes[1], true, PassedKind::SiteWrite), 32, "nor for the leases of another node");
        for (name, is_node, kind, count) in [
            ("a", false, PassedKind::Any, 192),
            (node, true, PassedKind::Any, 192),
            (node, true, PassedKind::SiteWrite, 32),
        ] {
            (0..count).for_each(|_| table.free_passed(&caller(name, is_node), kind));
        }
        assert!(!table.callers.contains_key(&caller("a", false)));
        assert!(!table.callers.contains_key(&caller(node, true)));
        assert_eq!(table.take_passed(&caller("c", false), PassedKind::Any), Ok(()));
    }

    #[test]
    fn an_informer_that_begins_with_a_state_never_gets_429() {
        let code = |reached: LimitReached, is_stream: bool| reached.status(is_stream).code;
        assert_eq!((code(LimitReached::Full, false), code(LimitReached::Full, true)), (429, 503));
        assert_eq!((code(LimitReached::TooLarge, false), code(LimitReached::TooLarge, true)), (503, 503));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_holds_its_memory() {
        let limits = CallerLimits::default();
        let till = caller("till", false);
        let taken = limits.take(&till, 128 * MIB).await.unwrap();
        assert_eq!(limits.take(&till, MIB).await.err(), Some(LimitReached::Full), "after a wait");
        let mut body = AnswerBody::new(Bytes::from(vec![b'x'; 2 * MIB]), taken);
        let second = limits.take(&till, 126 * MIB).await.unwrap();
        let waiting = limits.take(&till, MIB);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            read += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(read, 2 * MIB);
        let third = waiting.await.unwrap();
        drop((second, third, body));
        let table = limits.0.table.lock().unwrap();
        assert!(table.callers.is_empty() && table.bytes == ByClass::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_has_few_requests_that_wait() {
        let limits = CallerLimits::default();
        let till = caller("till", false);
        let _all = limits.take(&till, 128 * MIB).await.unwrap();
        let mut waiting: Vec<_> =
            (0..WAITING_PER_CALLER_MAX).map(|_| Box::pin(limits.take(&till, 1))).collect();
        for request in &mut waiting {
            assert!(futures_util::poll!(request.as_mut()).is_pending());
        }
        let mut one_more = Box::pin(limits.take(&till, 1));
        assert!(futures_util::poll!(one_more.as_mut()).is_ready(), "refused at once");
    }
}
