//! The whole simulation: events in the order of their time, faults from a seed, and what must hold all along.
//!
//! An invariant that breaks ends the run with an error that names the seed; `tests/it` replays one by number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_channel::link::{CloseCode, Transport};
use causeway_channel::session::{
    AttemptFailure, AttemptedTransports, LinkId, SILENCE_MAX, SessionAdmission, SupervisorAction,
    SupervisorState, WelcomedSession,
};
use causeway_channel::wire::control::SessionRefusedCode;
use causeway_netmap::sync::{NetmapReply, NetmapSendState, ReceiverStep};
use causeway_netmap::{Generation, Netmap};

use crate::cloud::Cloud;
use crate::edge::Edge;
use crate::link::{End, Link, Word};
use testlab::random::SeededRandom;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub edges: usize,
    /// Faults begin within this time, and are over soon after.
    pub trouble: Duration,
    pub faults: u64,
    pub changes: u64,
    /// After the last fault every edge must be back within this time.
    pub calm: Duration,
}

impl Default for Plan {
    /// Calm is 20 s: a dead link is known after 8, the next attempt comes within 5 and may hang for 4.5.
    fn default() -> Plan {
        Plan {
            edges: 3,
            trouble: Duration::from_secs(120),
            faults: 25,
            changes: 40,
            calm: Duration::from_secs(20),
        }
    }
}

/// An event of the simulation.
#[derive(Debug)]
enum Happening {
    Deliver { link: usize, to: End },
    EdgeTimer { edge: usize, life: u64 },
    Dialled { edge: usize, life: u64, link: LinkId, epoch: u64, transport: Option<Transport> },
    Persisted { edge: usize, life: u64, link: usize, netmap: Arc<Netmap> },
    LookForSilence { link: usize },
    Resend { link: usize },
    Change,
    Fault(Fault),
    CloudStarts,
    EdgeStarts { edge: usize },
    LinkChange { edge: usize },
}

#[derive(Debug)]
enum Fault {
    Cut { edge: usize, time: Duration, is_seen: bool },
    CutUdp { edge: usize, time: Duration },
    KillCloud { time: Duration, restores: bool },
    KillEdge { edge: usize, time: Duration },
    Drain { edge: usize },
}

/// Bytes that are lost are sent again after about this long.
const RESEND: Duration = Duration::from_millis(200);
/// Seconds in which a change of link that is under way is over.
const REST: u64 = 3;
const CLOCK_AT_START_MS: u64 = 1_000_000_000;

pub struct Simulation {
    random: SeededRandom,
    start: Instant,
    now: Instant,
    events: BTreeMap<(Instant, u64), Happening>,
    count: u64,
    cloud: Cloud,
    edges: Vec<Edge>,
    links: Vec<Link>,
    /// The highest generation on each edge's disk, for the invariant.
    highest: Vec<Option<Generation>>,
}

impl Simulation {
    pub fn new(seed: u64, plan: &Plan) -> Simulation {
        let start = Instant::now();
        let edges = (0..plan.edges).map(|_| Edge::new(start, CLOCK_AT_START_MS)).collect();
        let mut simulation = Simulation {
            random: SeededRandom::new(seed),
            start,
            now: start,
            events: BTreeMap::new(),
            count: 0,
            cloud: Cloud::new(),
            edges,
            links: Vec::new(),
            highest: vec![None; plan.edges],
        };
        for edge in 0..plan.edges {
            simulation.at(Duration::ZERO, Happening::EdgeTimer { edge, life: 0 });
        }
        for _ in 0..plan.changes {
            let when = simulation.within(plan.trouble);
            simulation.at(when, Happening::Change);
        }
        for _ in 0..plan.faults {
            let (when, fault) = (simulation.within(plan.trouble), simulation.any_fault(plan.edges));
            simulation.at(when, Happening::Fault(fault));
        }
        simulation
    }

    /// Runs through the trouble and the calm after it; the error says which invariant broke, and when.
    pub fn run(mut self, plan: &Plan) -> Result<(), String> {
        // The longest fault is 40 s.
        let end = self.start + plan.trouble + Duration::from_secs(40) + plan.calm;
        self.run_until(end)?;
        // An edge may be on its way to a better link at that very moment; it must come to rest all the same.
        let mut calm = self.check_calm();
        for second in 1..=REST {
            if calm.is_ok() {
                break;
            }
            self.run_until(end + Duration::from_secs(second))?;
            calm = self.check_calm();
        }
        calm
    }

    fn run_until(&mut self, end: Instant) -> Result<(), String> {
        while let Some(((when, _), _)) = self.events.first_key_value()
            && *when <= end
        {
            let ((when, _), happening) = self.events.pop_first().expect("there is a first");
            self.now = when;
            let told = format!("{happening:?}");
            self.happen(happening)
                .map_err(|broken| format!("at {:?}, {told}: {broken}", when - self.start))?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Deliver { link, to } => self.deliver(link, to)?,
            Happening::EdgeTimer { edge, life } => self.edge_timer(edge, life),
            Happening::Dialled { edge, life, link, epoch, transport } => {
                self.dialled(edge, life, link, epoch, transport);
            }
            Happening::Persisted { edge, life, link, netmap } => self.persisted(edge, life, link, netmap)?,
            Happening::LookForSilence { link } => self.look_for_silence(link),
            Happening::Resend { link } => self.pump(link),
            Happening::Change => {
                self.cloud.change();
                self.pump_all();
            }
            Happening::Fault(fault) => self.fault(fault),
            Happening::CloudStarts => self.cloud.is_up = true,
            Happening::EdgeStarts { edge } => {
                let epoch = self.epoch();
                self.edges[edge].start(self.now, epoch);
                self.act(edge);
            }
            Happening::LinkChange { edge } => {
                if self.edges[edge].is_up {
                    self.edges[edge].machine.handle_link_change(self.now);
                    self.act(edge);
                }
            }
        }
        Ok(())
    }

    // Edges.

    fn edge_timer(&mut self, number: usize, life: u64) {
        let (now, jitter) = (self.now, self.random.fraction());
        let edge = &mut self.edges[number];
        if edge.life != life || !edge.is_up || edge.machine.next_timeout().is_none_or(|due| due > now) {
            return;
        }
        if let Some((id, link)) = edge.machine.current().and_then(|id| Some((id, *edge.links.get(&id)?))) {
            edge.machine.handle_heard(id, self.links[link].heard_at_edge, Some(Duration::from_millis(40)));
        }
        edge.machine.handle_timeout(now, jitter);
        self.act(number);
    }

    /// Does what the supervisor says, and sets its next timer.
    fn act(&mut self, number: usize) {
        while let Some(action) = self.edges[number].machine.next_action() {
            let life = self.edges[number].life;
            match action {
                SupervisorAction::Dial { link, epoch, transports, .. } => {
                    self.dial(number, life, link, epoch, transports)
                }
                SupervisorAction::Abandon { link } => self.close_at_edge(number, link, CloseCode::Done),
                SupervisorAction::Ping { link, .. } => {
                    if let Some(link) = self.edges[number].links.get(&link) {
                        self.send(*link, End::Cloud, Word::Ping);
                    }
                }
                // The moved link is heard again as soon as something passes.
                SupervisorAction::Rebind { .. } | SupervisorAction::Renew => {}
                // No streams in this simulation: nothing to wait for.
                SupervisorAction::Linger { link, .. } => self.close_at_edge(number, link, CloseCode::Done),
                SupervisorAction::Close { link, code } => self.close_at_edge(number, link, code),
            }
        }
        if let Some(due) = self.edges[number].machine.next_timeout() {
            let life = self.edges[number].life;
            self.at(due.saturating_duration_since(self.now), Happening::EdgeTimer { edge: number, life });
        }
    }

    fn dial(&mut self, edge: usize, life: u64, link: LinkId, epoch: u64, transports: AttemptedTransports) {
        let (path, udp) = (self.passes(edge, Transport::Tcp), self.passes(edge, Transport::Quic));
        let transport = match transports {
            AttemptedTransports::Both if udp => Some(Transport::Quic),
            AttemptedTransports::Quic if udp => Some(Transport::Quic),
            AttemptedTransports::Both | AttemptedTransports::Tcp if path => Some(Transport::Tcp),
            _ => None,
        };
        let took = match transport {
            Some(_) => self.random.millis(5, 400),
            None => Duration::from_secs(2),
        };
        self.at(took, Happening::Dialled { edge, life, link, epoch, transport });
    }

    fn dialled(&mut self, number: usize, life: u64, id: LinkId, epoch: u64, transport: Option<Transport>) {
        let (now, jitter) = (self.now, self.random.fraction());
        let edge = &mut self.edges[number];
        if edge.life != life || !edge.is_up {
            return;
        }
        match transport.filter(|_| self.cloud.is_up) {
            None => edge.machine.handle_failed(now, id, AttemptFailure::Unreachable, jitter),
            Some(transport) => {
                let link = self.links.len();
                edge.links.insert(id, link);
                edge.machine.handle_dialed(now, id);
                let held = edge.receiver.held().map(|netmap| netmap.stamp());
                self.links.push(Link {
                    edge: number,
                    id,
                    edge_life: life,
                    cloud_life: self.cloud.life,
                    transport,
                    to_edge: Default::default(),
                    to_cloud: Default::default(),
                    is_open_at_edge: true,
                    is_open_at_cloud: true,
                    heard_at_edge: now,
                    heard_at_cloud: now,
                });
                self.send(link, End::Cloud, Word::Hello { epoch, held });
                self.at(SILENCE_MAX, Happening::LookForSilence { link });
            }
        }
        self.act(number);
    }

    fn close_at_edge(&mut self, edge: usize, id: LinkId, code: CloseCode) {
        if let Some(link) = self.edges[edge].links.remove(&id) {
            self.send(link, End::Cloud, Word::Close(code));
            self.links[link].is_open_at_edge = false;
        }
    }

    fn hear_at_edge(&mut self, link: usize, word: Word) -> Result<(), String> {
        let (number, id) = (self.links[link].edge, self.links[link].id);
        let (now, jitter) = (self.now, self.random.fraction());
        let transport = self.links[link].transport;
        let edge = &mut self.edges[number];
        let zero = Duration::ZERO;
        match word {
            Word::Welcome => {
                edge.machine.handle_welcome(
                    now,
                    id,
                    WelcomedSession { transport, keepalive: zero, retry_hint: zero },
                );
            }
            Word::Refused { code, current_epoch } => {
                let failure = AttemptFailure::Refused { code, retry_after: zero, current_epoch };
                edge.machine.handle_failed(now, id, failure, jitter);
                self.close_at_edge(number, id, CloseCode::Done);
            }
            Word::Netmap(update) if edge.machine.current() == Some(id) => {
                match edge.receiver.handle_update(&update) {
                    ReceiverStep::Persist(netmap) => {
                        let (took, life) = (self.random.millis(0, 50), self.edges[number].life);
                        self.at(took, Happening::Persisted { edge: number, life, link, netmap });
                    }
                    ReceiverStep::Reply(reply) => self.reply(link, reply),
                }
            }
            Word::Drain => {
                edge.machine.handle_drain(now, id, Duration::from_secs(5), Duration::from_secs(1), jitter)
            }
            Word::Close(code) => {
                self.links[link].is_open_at_edge = false;
                edge.links.remove(&id);
                edge.machine.handle_closed(now, id, code, jitter);
            }
            _ => {}
        }
        self.act(number);
        Ok(())
    }

    fn persisted(
        &mut self,
        number: usize,
        life: u64,
        link: usize,
        netmap: Arc<Netmap>,
    ) -> Result<(), String> {
        let edge = &mut self.edges[number];
        // Killed while it wrote: the rename may have happened or not.
        let is_gone = edge.life != life;
        if is_gone && self.random.one_in(2) {
            return Ok(());
        }
        let generation = netmap.generation();
        if is_gone && self.highest[number].is_some_and(|highest| highest >= generation) {
            return Ok(());
        }
        if self.highest[number].is_some_and(|highest| highest > generation) {
            return Err(format!("the generation of edge {number} goes back to {generation}"));
        }
        self.highest[number] = Some(generation);
        edge.disk = Some(netmap.clone());
        if is_gone {
            if edge.is_up {
                edge.receiver = causeway_netmap::sync::NetmapReceiver::new(edge.disk.clone());
            }
            return Ok(());
        }
        let reply = edge.receiver.handle_persisted(netmap, Ok(()));
        self.reply(link, reply);
        Ok(())
    }

    fn reply(&mut self, link: usize, reply: NetmapReply) {
        let word = match reply {
            // The disks of this simulation are never full.
            NetmapReply::Acknowledged(stamp) | NetmapReply::InForce { stamp, .. } => Word::Taken(stamp),
            NetmapReply::Refused(refusal) => {
                Word::NotTaken { want_whole: refusal.want_whole, reason: refusal.reason }
            }
        };
        self.send(link, End::Cloud, word);
    }

    // The cloud.

    fn hear_at_cloud(&mut self, link: usize, word: Word) -> Result<(), String> {
        let number = self.links[link].edge;
        match word {
            Word::Hello { epoch, held } => match self.cloud.sessions.admit(&number, epoch, None, |_| link) {
                SessionAdmission::Taken { number: entry, superseded, evicted, orphaned } => {
                    for old in superseded.into_iter().chain(evicted).chain(orphaned) {
                        self.end_at_cloud(old.session, CloseCode::Superseded);
                    }
                    self.cloud.numbers.insert(link, entry);
                    let known = Some(self.cloud.netmap.clone());
                    self.cloud.senders.insert(link, NetmapSendState::new(held, known));
                    self.send(link, End::Edge, Word::Welcome);
                    self.pump(link);
                }
                SessionAdmission::Older { current_epoch } => {
                    self.send(
                        link,
                        End::Edge,
                        Word::Refused { code: SessionRefusedCode::OlderEpoch, current_epoch },
                    );
                }
                SessionAdmission::Full => return Err("a session table for a thousand is full".to_owned()),
            },
            Word::Ping => self.send(link, End::Edge, Word::Pong),
            Word::Taken(stamp) => {
                let disk = self.edges[number].disk.as_ref().map(|netmap| netmap.generation());
                if disk.is_none_or(|disk| disk < stamp.generation) {
                    return Err(format!("edge {number} acknowledged {} and has {disk:?}", stamp.generation));
                }
                if let Some(sender) = self.cloud.senders.get_mut(&link) {
                    sender.handle_acknowledged(stamp);
                }
                self.pump(link);
            }
            Word::NotTaken { want_whole, reason } => {
                let since = self.now - self.start;
                if let Some(sender) = self.cloud.senders.get_mut(&link) {
                    sender.handle_refused(want_whole, &reason, since);
                }
                self.pump(link);
            }
            Word::Close(_) => {
                self.links[link].is_open_at_cloud = false;
                self.forget(link);
            }
            _ => {}
        }
        Ok(())
    }

    fn pump_all(&mut self) {
        let mut links: Vec<usize> = self.cloud.senders.keys().copied().collect();
        links.sort_unstable();
        links.into_iter().for_each(|link| self.pump(link));
    }

    /// Sends the next update of a session, if it is the gateway's and has one.
    fn pump(&mut self, link: usize) {
        let (target, since) = (self.cloud.target(), self.now - self.start);
        let is_current =
            self.cloud.sessions.current(&self.links[link].edge).is_some_and(|entry| entry.session == link);
        let Some(sender) = self.cloud.senders.get_mut(&link).filter(|_| is_current) else { return };
        sender.handle_target(target);
        if let Some(update) = sender.next_update(since) {
            self.send(link, End::Edge, Word::Netmap(update));
        } else if let Some(wake) = sender.wake_at() {
            self.at(wake.saturating_sub(since), Happening::Resend { link });
        }
    }

    fn look_for_silence(&mut self, link: usize) {
        let found = &self.links[link];
        if !found.is_open_at_cloud || found.cloud_life != self.cloud.life {
            return;
        }
        match (found.heard_at_cloud + SILENCE_MAX).checked_duration_since(self.now) {
            Some(rest) if !rest.is_zero() => self.at(rest, Happening::LookForSilence { link }),
            _ => self.end_at_cloud(link, CloseCode::Dead),
        }
    }

    fn end_at_cloud(&mut self, link: usize, code: CloseCode) {
        self.send(link, End::Edge, Word::Close(code));
        self.links[link].is_open_at_cloud = false;
        self.forget(link);
    }

    fn forget(&mut self, link: usize) {
        self.cloud.senders.remove(&link);
        if let Some(number) = self.cloud.numbers.remove(&link) {
            self.cloud.sessions.remove(&self.links[link].edge, number);
        }
    }

    // The network.

    fn passes(&self, edge: usize, transport: Transport) -> bool {
        let edge = &self.edges[edge];
        self.now >= edge.cut_until && (transport == Transport::Tcp || self.now >= edge.udp_cut_until)
    }

    fn send(&mut self, link: usize, to: End, word: Word) {
        let found = &mut self.links[link];
        let is_open = match to {
            End::Cloud => found.is_open_at_edge,
            End::Edge => found.is_open_at_cloud && found.cloud_life == self.cloud.life,
        };
        if is_open {
            found.queue(to).push_back(word);
            let mut delay = self.random.millis(2, 60);
            if self.random.one_in(20) {
                delay += RESEND;
            }
            self.at(delay, Happening::Deliver { link, to });
        }
    }

    fn deliver(&mut self, link: usize, to: End) -> Result<(), String> {
        let found = &self.links[link];
        if !self.passes(found.edge, found.transport) {
            // No error is reported: the message is sent again until one end gives the link up.
            let (edge, cloud) = (&self.edges[found.edge], &self.cloud);
            let is_wanted = edge.life == found.edge_life && cloud.life == found.cloud_life;
            if is_wanted && !found.to_edge.is_empty() || !found.to_cloud.is_empty() {
                self.at(RESEND, Happening::Deliver { link, to });
            }
            return Ok(());
        }
        let Some(word) = self.links[link].queue(to).pop_front() else { return Ok(()) };
        let found = &mut self.links[link];
        match to {
            End::Edge if self.edges[found.edge].life == found.edge_life && found.is_open_at_edge => {
                found.heard_at_edge = self.now;
                self.hear_at_edge(link, word)
            }
            End::Cloud
                if self.cloud.is_up && self.cloud.life == found.cloud_life && found.is_open_at_cloud =>
            {
                found.heard_at_cloud = self.now;
                self.hear_at_cloud(link, word)
            }
            // A restarted cloud does not know the link and says so, as a stateless reset does.
            End::Cloud
                if self.cloud.is_up && self.cloud.life != found.cloud_life && found.is_open_at_edge =>
            {
                found.to_edge.clear();
                self.hear_at_edge(link, Word::Close(CloseCode::Internal))
            }
            _ => Ok(()),
        }
    }

    // Faults.

    fn any_fault(&mut self, edges: usize) -> Fault {
        let edge = self.random.below(edges as u64) as usize;
        match self.random.below(8) {
            0 | 1 => {
                let time = self.random.millis(500, 40_000);
                Fault::Cut { edge, time, is_seen: self.random.one_in(2) }
            }
            2 | 3 => Fault::CutUdp { edge, time: self.random.millis(1000, 40_000) },
            4 | 5 => {
                Fault::KillCloud { time: self.random.millis(50, 10_000), restores: self.random.one_in(4) }
            }
            6 => Fault::KillEdge { edge, time: self.random.millis(50, 10_000) },
            _ => Fault::Drain { edge },
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Cut { edge, time, is_seen } => {
                self.edges[edge].cut_until = self.edges[edge].cut_until.max(self.now + time);
                if is_seen {
                    self.at(Duration::ZERO, Happening::LinkChange { edge });
                    self.at(time, Happening::LinkChange { edge });
                }
            }
            Fault::CutUdp { edge, time } => {
                self.edges[edge].udp_cut_until = self.edges[edge].udp_cut_until.max(self.now + time);
            }
            Fault::KillCloud { time, restores } => {
                if self.cloud.is_up {
                    self.cloud.kill();
                    if restores {
                        self.cloud.restore();
                    }
                    self.at(time, Happening::CloudStarts);
                }
            }
            Fault::KillEdge { edge, time } => {
                if self.edges[edge].is_up {
                    self.edges[edge].kill();
                    self.at(time, Happening::EdgeStarts { edge });
                }
            }
            Fault::Drain { edge } => {
                if let Some(link) = self.cloud.sessions.current(&edge).map(|entry| entry.session) {
                    self.send(link, End::Edge, Word::Drain);
                }
            }
        }
    }

    /// The edge's clock in milliseconds; one in four starts with a wrong one.
    fn epoch(&mut self) -> u64 {
        let right = CLOCK_AT_START_MS + (self.now - self.start).as_millis() as u64;
        if self.random.one_in(4) { right - self.random.below(CLOCK_AT_START_MS) } else { right }
    }

    fn within(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.random.fraction())
    }

    fn at(&mut self, delay: Duration, happening: Happening) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), happening);
    }

    /// Checks that every edge is back, agrees with the cloud about the link, and holds the cloud's netmap.
    fn check_calm(&self) -> Result<(), String> {
        for (number, edge) in self.edges.iter().enumerate() {
            let state = edge.machine.state();
            // Moments differ from run to run, because each begins with the real one.
            let shown = match state {
                SupervisorState::Ready { .. } => None,
                SupervisorState::BackingOff { .. } => Some("backing off".to_owned()),
                other => Some(format!("{other:?}")),
            };
            if let Some(shown) = shown {
                return Err(format!("edge {number} is {shown} after the calm"));
            }
            let own = edge.machine.current().and_then(|id| edge.links.get(&id)).copied();
            let entry = self.cloud.sessions.current(&number).map(|entry| entry.session);
            if own.is_none() || own != entry {
                return Err(format!("edge {number} uses link {own:?}, the cloud {entry:?}"));
            }
            let (held, wanted) =
                (edge.disk.as_ref().map(|netmap| netmap.digest()), self.cloud.netmap.digest());
            if held != Some(wanted) {
                return Err(format!("edge {number} does not hold what the cloud holds"));
            }
        }
        match self.cloud.sessions.len() == self.edges.len() {
            true => Ok(()),
            false => Err(format!("{} sessions for {} edges", self.cloud.sessions.len(), self.edges.len())),
        }
    }
}
