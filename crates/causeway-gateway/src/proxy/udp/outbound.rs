//! From clients at a presence for datagrams to the gateway of the service.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_channel::link::ResetCode;
use causeway_channel::wire::datagrams::Datagram;
use causeway_netmap::{Protocol, ServiceName};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::carry::{Side, carry, receive_from};
use super::inbound::{Obstacles, carry_to_backend};
use super::refusals::{FAILED, REFUSED, Refusals};
use super::table::{Fed, Key, Queue, Slot};
use crate::audit::End;
use crate::gateway::Shared;
use crate::live::Claim;
use crate::passage::{Direction, Passage, protocol_word};
use crate::peers::{Content, Crossing};
use crate::policy::Refusal;
use crate::proxy::listeners::Opened;
use crate::proxy::outbound::{at_home, code_for, code_for_cut, forget_netmap, judge_end, open};
use crate::proxy::pump::Ended;

/// After an error of the socket itself; so that one that stays does not spin.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves the clients of one presence until it is gone. The sessions are tasks of `tasks`.
pub async fn serve(shared: Arc<Shared>, opened: Opened, tasks: TaskTracker) {
    let Opened { socket, service, closed } = opened;
    let Ok(presence) = socket.local_addr() else { return };
    let desk = Desk { shared, socket, service, presence, closed, tasks, refusals: Arc::default() };
    loop {
        let received = tokio::select! {
            biased;
            () = desk.closed.cancelled() => return,
            received = receive_from(&desk.socket) => received,
        };
        match received {
            Ok((datagram, client)) => desk.take(client, datagram),
            Err(error) => {
                tracing::debug!(service = %desk.service, %error, "a datagram could not be received");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Where the datagrams of one presence are told apart.
struct Desk {
    shared: Arc<Shared>,
    socket: Arc<UdpSocket>,
    service: ServiceName,
    presence: SocketAddr,
    closed: CancellationToken,
    tasks: TaskTracker,
    refusals: Arc<Mutex<Refusals>>,
}

impl Desk {
    fn take(&self, client: SocketAddr, datagram: Datagram) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let key = Key { client, presence: self.presence };
        let datagram = match self.shared.udp_sessions.find(&key) {
            Some(slot) => match slot.feed(datagram.clone()) {
                Fed::Queued => return,
                Fed::Dropped => {
                    self.shared.figures.datagrams_dropped.inc();
                    return;
                }
                // It ended in this moment: the datagram begins another.
                Fed::Gone => datagram,
            },
            None => datagram,
        };
        if let Some((slot, session)) = self.begin(key) {
            slot.feed(datagram);
            self.tasks.spawn(Box::pin(session));
        }
    }

    /// A session for a client that has none; none for one that may not. Nothing was promised yet, so a table of sessions is
    /// not filled by those who are refused.
    fn begin(&self, key: Key) -> Option<(Arc<Slot>, impl Future<Output = ()> + use<>)> {
        let (shared, now) = (&self.shared, Instant::now());
        let view = shared.view();
        let ip = key.client.ip();
        if lock(&self.refusals).holds(ip, view.generation, now) {
            shared.figures.datagrams_dropped.inc();
            return None;
        }
        let claim = Claim::Use { service: self.service.clone(), client: ip };
        if let Err(refusal) = claim.judge(&view) {
            match lock(&self.refusals).add(ip, now, REFUSED) {
                true => self.passage(claim, key.client).refuse(&refusal),
                false => shared.figures.refused(refusal.word()),
            }
            return None;
        }
        let (slot, queue, is_evicting) = shared.udp_sessions.begin(key);
        if is_evicting {
            shared.figures.udp_sessions_evicted.inc();
        }
        let session = Session {
            passage: self.passage(claim, key.client),
            place: InTable { shared: shared.clone(), key, slot: slot.clone() },
            socket: self.socket.clone(),
            closed: self.closed.clone(),
            refusals: self.refusals.clone(),
        };
        Some((slot, session.run(queue)))
    }

    fn passage(&self, claim: Claim, client: SocketAddr) -> Passage {
        let word = protocol_word(Protocol::Udp);
        Passage::begin(&self.shared, Direction::Outbound, word, claim, Some(client))
    }
}

/// Gives the place in the table back, whatever happens to the task.
struct InTable {
    shared: Arc<Shared>,
    key: Key,
    slot: Arc<Slot>,
}

impl Drop for InTable {
    fn drop(&mut self) {
        self.shared.udp_sessions.end(&self.key, &self.slot);
    }
}

struct Session {
    passage: Passage,
    place: InTable,
    socket: Arc<UdpSocket>,
    closed: CancellationToken,
    refusals: Arc<Mutex<Refusals>>,
}

impl Session {
    async fn run(self, queue: Queue) {
        let Session { passage, place, socket, closed, refusals } = self;
        let meter = passage.meter().clone();
        let near = Side::client(socket, place.key.client, queue);
        let obstacles = Obstacles { slot: Some(&place.slot), closed: Some(&closed) };
        let is_over_in_order = cross(&place.shared, passage, place.key.client, near, obstacles).await;
        // Who goes on sending must not make a record with every datagram.
        if !is_over_in_order && meter.received() == 0 {
            lock(&refusals).add(place.key.client.ip(), Instant::now(), FAILED);
        }
    }
}

/// Carries a session from its first datagram to its end. False: it was refused, or something failed.
async fn cross(
    shared: &Arc<Shared>,
    mut passage: Passage,
    client: SocketAddr,
    mut near: Side,
    obstacles: Obstacles<'_>,
) -> bool {
    // Limits may say no where the policy says yes. Silence is what UDP has for it.
    let admitted = match passage.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refused(passage, &refusal),
    };
    let Claim::Use { service, .. } = &admitted.entry.claim else { return false };
    let Some(presence) = admitted.view.presences.get(service) else { return false };
    if let Some(here) = at_home(&admitted, presence) {
        let service = here.name.clone();
        return carry_to_backend(shared, passage, admitted, service, &mut near, obstacles).await;
    }
    let opened = tokio::select! {
        biased;
        cut = admitted.entry.cut() => {
            passage.cut(&cut);
            return true;
        }
        opened = open(shared, &admitted, presence, Crossing::new(Content::Datagrams, client)) => opened,
    };
    let mut far = match opened {
        Ok(stream) => Side::stream(stream),
        Err(refusal) => return refused(passage, &refusal),
    };
    let entry = forget_netmap(admitted);
    let meter = passage.meter().clone();
    tokio::select! {
        biased;
        cut = entry.cut() => {
            far.give_up(code_for_cut(&cut));
            passage.cut(&cut);
            true
        }
        (end, why) = obstacles.met() => {
            far.give_up(ResetCode::Abandoned);
            passage.end(end, Some(why.to_owned()));
            true
        }
        ended = carry(&mut near, &mut far, &meter, &shared.options.udp, &shared.figures) => {
            far.give_up(code_for(&ended));
            let (end, reason) = judge_end(&ended, Some(meter.received()));
            passage.end(end, reason);
            matches!(ended, Ended::Idle | Ended::Done)
        }
    }
}

fn refused(passage: Passage, refusal: &Refusal) -> bool {
    passage.refuse(refusal);
    false
}

fn lock(refusals: &Mutex<Refusals>) -> MutexGuard<'_, Refusals> {
    refusals.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Obstacles<'_> {
    /// Resolves when the session must make way, for another or for good.
    pub async fn met(&self) -> (End, &'static str) {
        let evicted = async {
            match self.slot {
                Some(slot) => slot.evicted.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let closed = async {
            match self.closed {
                Some(closed) => closed.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = evicted => (End::Limit, "the table of UDP sessions is full"),
            () = closed => (End::Stopped, "the presence has gone from its address"),
        }
    }
}
