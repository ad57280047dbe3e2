//! An edge: a disk that stays, and a process that comes and goes.
//!
//! The driver around `Supervisor` and `NetmapReceiver`: does what they say, tells them what happened.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use causeway_channel::link::{CloseCode, Transport};
use causeway_channel::session::{
    AllowedTransports, AttemptFailure, LinkId, Supervisor, SupervisorAction, WelcomedSession,
};
use causeway_channel::wire::control::SessionRefusedCode;
use causeway_netmap::sync::{NetmapReceiver, NetmapReply, ReceiverStep};
use causeway_netmap::{Netmap, NetmapUpdateData};

use super::link::{End, Line, Word};
use super::rules::{Broken, Violation, check_disk};
use super::simulation::{Event, Simulation};

pub struct Edge {
    pub disk: Option<Arc<Netmap>>,
    pub is_disk_full: bool,
    pub life: u64,
    pub process: Option<Process>,
}

/// The state that a kill destroys.
pub struct Process {
    pub supervisor: Supervisor,
    receiver: NetmapReceiver,
    lines: BTreeMap<LinkId, Line>,
    /// Those that the cloud has welcomed, and that are not on their way out.
    live: BTreeSet<LinkId>,
    /// Updates wait for the disk, one after the other.
    inbox: VecDeque<(Line, Bytes)>,
    is_writing: bool,
    timer: Option<Instant>,
}

impl Simulation {
    pub fn start_edge(&mut self, edge: usize) {
        // A clock may have been set back between two lives.
        let unix_ms = 1_000_000 + self.now.duration_since(self.origin).as_millis() as u64;
        let epoch = unix_ms.saturating_sub(if self.random.percent(20) { 50_000 } else { 0 });
        let (now, disk) = (self.now, self.edges[edge].disk.clone());
        let state = &mut self.edges[edge];
        state.life += 1;
        state.process = Some(Process {
            supervisor: Supervisor::new(epoch, AllowedTransports::Both, now),
            receiver: NetmapReceiver::new(disk),
            lines: BTreeMap::new(),
            live: BTreeSet::new(),
            inbox: VecDeque::new(),
            is_writing: false,
            timer: None,
        });
        self.drive_edge(edge);
    }

    /// Kill -9: links break, some of them without a word.
    pub fn kill_edge(&mut self, edge: usize) {
        let Some(process) = self.edges[edge].process.take() else { return };
        for line in process.lines.into_values() {
            let told = self.random.percent(50);
            self.vanish(line, End::Edge, told);
        }
    }

    pub fn edge_timer(&mut self, edge: usize, life: u64) {
        let jitter = self.random.fraction();
        let now = self.now;
        if self.edges[edge].life != life {
            return;
        }
        let Some(process) = &mut self.edges[edge].process else { return };
        process.timer = None;
        process.supervisor.handle_timeout(now, jitter);
        self.drive_edge(edge);
    }

    /// Interfaces or addresses changed.
    pub fn change_links_of(&mut self, edge: usize) {
        let now = self.now;
        if let Some(process) = &mut self.edges[edge].process {
            process.supervisor.handle_link_change(now);
            self.drive_edge(edge);
        }
    }

    pub fn edge_dialed(&mut self, edge: usize, life: u64, id: LinkId, line: Option<Line>) {
        let (now, jitter) = (self.now, self.random.fraction());
        let held = self.edges[edge].disk.as_ref().map(|netmap| netmap.stamp());
        if !self.edges_life(edge, life) {
            return line.into_iter().for_each(|line| self.vanish(line, End::Edge, true));
        }
        let process = self.edges[edge].process.as_mut().unwrap();
        match line {
            None => {
                process.lines.remove(&id);
                process.supervisor.handle_failed(now, id, AttemptFailure::Unreachable, jitter);
            }
            // Abandoned meanwhile.
            Some(line) if !process.lines.contains_key(&id) => self.vanish(line, End::Edge, true),
            Some(line) => {
                process.lines.insert(id, line);
                process.supervisor.handle_dialed(now, id);
                let epoch = self.hello_epochs.get(&(edge, life, id)).copied().unwrap();
                self.send(line, End::Edge, Word::Hello { epoch, held });
            }
        }
        self.drive_edge(edge);
    }

    pub fn edge_hears(&mut self, line: Line, word: Word) -> Result<(), Violation> {
        let link = &self.links[&line];
        let (edge, id, life) = (link.edge, link.id, link.edge_life);
        let (now, jitter) = (self.now, self.random.fraction());
        if !self.edges_life(edge, life) {
            return Ok(());
        }
        let process = self.edges[edge].process.as_mut().unwrap();
        process.supervisor.handle_heard(id, now, None);
        match word {
            Word::Welcome => {
                let transport = if jitter < 0.7 { Transport::Quic } else { Transport::Tcp };
                let zero = std::time::Duration::ZERO;
                process.live.insert(id);
                process.supervisor.handle_welcome(
                    now,
                    id,
                    WelcomedSession { transport, keepalive: zero, retry_hint: zero },
                );
            }
            Word::Refused { current_epoch } => {
                let (code, retry_after) = (SessionRefusedCode::OlderEpoch, std::time::Duration::ZERO);
                process.supervisor.handle_failed(
                    now,
                    id,
                    AttemptFailure::Refused { code, retry_after, current_epoch },
                    jitter,
                );
                process.lines.remove(&id);
                self.vanish(line, End::Edge, true);
            }
            Word::Netmap(update) => {
                process.inbox.push_back((line, update));
                self.take_next(edge)?;
            }
            Word::Close(code) => {
                process.supervisor.handle_closed(now, id, code, jitter);
                process.lines.remove(&id);
            }
            Word::Pong => {}
            other => panic!("a cloud never says {other:?}"),
        }
        self.drive_edge(edge);
        Ok(())
    }

    /// Takes the next update in, unless the disk is busy.
    fn take_next(&mut self, edge: usize) -> Result<(), Violation> {
        let life = self.edges[edge].life;
        loop {
            let broken = self.broken;
            let Some(process) = self.edges[edge].process.as_mut().filter(|process| !process.is_writing)
            else {
                return Ok(());
            };
            let Some((line, update)) = process.inbox.pop_front() else { return Ok(()) };
            let step = match broken {
                Broken::TakeAnyGeneration => take_any(&process.receiver, &update),
                _ => process.receiver.handle_bytes(&update),
            };
            match step {
                ReceiverStep::Reply(reply) => self.answer(edge, line, reply)?,
                ReceiverStep::Persist(netmap) if broken == Broken::AcknowledgeBeforeDisk => {
                    let reply = process.receiver.handle_persisted(netmap.clone(), Ok(()));
                    let at = self.now + self.random.millis(1, 30);
                    self.schedule(at, Event::DiskWrites { edge, life, netmap, line: None });
                    self.answer(edge, line, reply)?;
                }
                ReceiverStep::Persist(netmap) => {
                    process.is_writing = true;
                    let at = self.now + self.random.millis(1, 30);
                    self.schedule(at, Event::DiskWrites { edge, life, netmap, line: Some(line) });
                }
            }
        }
    }

    /// The disk takes what is in force, as the real edge tries until it does. While another is being written, that one comes next.
    pub fn disk_has_room(&mut self, edge: usize) -> Result<(), Violation> {
        let state = &mut self.edges[edge];
        state.is_disk_full = false;
        let Some(process) = state.process.as_mut().filter(|process| !process.is_writing) else {
            return Ok(());
        };
        let Some(held) = process.receiver.held().cloned() else { return Ok(()) };
        if state.disk.as_ref().map(|netmap| netmap.stamp()) != Some(held.stamp()) {
            check_disk(edge, state.disk.as_deref(), &held)?;
            state.disk = Some(held.clone());
            process.receiver.handle_persisted(held, Ok(()));
        }
        Ok(())
    }

    /// The moment at which the new file takes its place. The process hears of it a little later, if it still lives.
    pub fn disk_writes(
        &mut self,
        edge: usize,
        life: u64,
        netmap: Arc<Netmap>,
        line: Option<Line>,
    ) -> Result<(), Violation> {
        if !self.edges_life(edge, life) {
            return Ok(());
        }
        let state = &mut self.edges[edge];
        let written = match state.is_disk_full {
            true => Err("no space left".to_owned()),
            false => {
                check_disk(edge, state.disk.as_deref(), &netmap)?;
                self.stats.netmaps += 1;
                state.disk = Some(netmap.clone());
                Ok(())
            }
        };
        let Some(line) = line else { return Ok(()) };
        let at = self.now + self.random.millis(0, 10);
        self.schedule(at, Event::DiskAnswers { edge, life, netmap, line, written });
        Ok(())
    }

    pub fn disk_answers(
        &mut self,
        edge: usize,
        life: u64,
        netmap: Arc<Netmap>,
        line: Line,
        written: Result<(), String>,
    ) -> Result<(), Violation> {
        if !self.edges_life(edge, life) {
            return Ok(());
        }
        let process = self.edges[edge].process.as_mut().unwrap();
        process.is_writing = false;
        let reply = process.receiver.handle_persisted(netmap, written);
        self.answer(edge, line, reply)?;
        self.take_next(edge)?;
        if !self.edges[edge].is_disk_full {
            // The disk has space again since the write failed.
            self.disk_has_room(edge)?;
        }
        self.drive_edge(edge);
        Ok(())
    }

    fn answer(&mut self, edge: usize, line: Line, reply: NetmapReply) -> Result<(), Violation> {
        let word = match reply {
            NetmapReply::Acknowledged(stamp) => {
                let on_disk = self.edges[edge].disk.as_ref().map(|netmap| netmap.stamp());
                if on_disk != Some(stamp) {
                    return Err(Violation::AcknowledgedButNotOnDisk { edge, acknowledged: stamp });
                }
                Word::Acknowledged(stamp)
            }
            NetmapReply::InForce { stamp, .. } => Word::InForce(stamp),
            NetmapReply::Refused(refusal) => {
                self.stats.refusals += 1;
                Word::NotTaken { want_whole: refusal.want_whole }
            }
        };
        self.send(line, End::Edge, word);
        Ok(())
    }

    /// Does what the supervisor says, and sets its timer.
    fn drive_edge(&mut self, edge: usize) {
        let life = self.edges[edge].life;
        while let Some(action) = self.edges[edge].process.as_mut().and_then(|p| p.supervisor.next_action()) {
            self.act(edge, life, action);
        }
        let now = self.now;
        let Some(process) = &mut self.edges[edge].process else { return };
        if let Some(due) = process.supervisor.next_timeout() {
            let due = due.max(now);
            if process.timer.is_none_or(|timer| due < timer) {
                process.timer = Some(due);
                self.schedule(due, Event::EdgeTimer { edge, life });
            }
        }
    }

    fn act(&mut self, edge: usize, life: u64, action: SupervisorAction) {
        let process = self.edges[edge].process.as_mut().unwrap();
        match action {
            SupervisorAction::Dial { link, epoch, .. } => {
                // A place for it, so that an attempt that was abandoned is known by its absence.
                process.lines.insert(link, Line(u64::MAX));
                self.hello_epochs.insert((edge, life, link), epoch);
                self.dial(edge, life, link);
            }
            SupervisorAction::Abandon { link } | SupervisorAction::Close { link, code: CloseCode::Dead } => {
                if let Some(line) = process.lines.remove(&link) {
                    self.vanish(line, End::Edge, true);
                }
            }
            SupervisorAction::Close { link, .. } => {
                if let Some(line) = process.lines.remove(&link) {
                    self.vanish(line, End::Edge, true);
                }
            }
            SupervisorAction::Ping { link, .. } => {
                if let Some(line) = process.lines.get(&link).copied() {
                    self.send(line, End::Edge, Word::Ping);
                }
            }
            SupervisorAction::Linger { link, until } => {
                process.live.remove(&link);
                let at = self.now + (until - self.now).mul_f64(self.random.fraction());
                self.schedule(at, Event::LingerEnds { edge, life, link });
            }
            SupervisorAction::Rebind { .. } | SupervisorAction::Renew => {}
        }
    }

    pub fn linger_ends(&mut self, edge: usize, life: u64, link: LinkId) {
        if !self.edges_life(edge, life) {
            return;
        }
        if let Some(line) = self.edges[edge].process.as_mut().and_then(|process| process.lines.remove(&link))
        {
            self.vanish(line, End::Edge, true);
        }
    }

    /// The link that an edge's session is on.
    pub fn current_line(&self, edge: usize) -> Option<Line> {
        let process = self.edges[edge].process.as_ref()?;
        process.lines.get(&process.supervisor.current()?).copied()
    }

    /// Returns the number of links of an edge that are open at both ends and neither attempts nor about to end.
    pub fn live_links(&self, edge: usize) -> usize {
        let Some(process) = &self.edges[edge].process else { return 0 };
        let is_open =
            |line: &Line| self.links.get(line).is_some_and(|link| link.edge_open && link.cloud_open);
        process.live.iter().filter_map(|id| process.lines.get(id)).filter(|line| is_open(line)).count()
    }

    pub fn edges_life(&self, edge: usize, life: u64) -> bool {
        self.edges[edge].life == life && self.edges[edge].process.is_some()
    }
}

/// Applies an update as an edge without checks would.
fn take_any(receiver: &NetmapReceiver, update: &[u8]) -> ReceiverStep {
    let Ok(decoded) = NetmapUpdateData::decode(update) else { return receiver.handle_bytes(update) };
    let base = receiver.held().map(|held| held.at(Default::default()));
    match Netmap::apply(base.as_ref(), &decoded) {
        Ok(netmap) => ReceiverStep::Persist(Arc::new(netmap)),
        Err(_) => receiver.handle_bytes(update),
    }
}
