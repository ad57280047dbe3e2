//! A replica of the cloud: follows the store at its own pace, keeps a session table, sends netmaps. A restart takes all of it away.
//!
//! The driver around `SessionTable` and `NetmapSendState`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::CloseCode;
use causeway_channel::session::{RemovedSession, SILENCE_MAX, SessionAdmission, SessionTable};
use causeway_netmap::sync::{NetmapSendState, TargetNetmap};
use causeway_netmap::{Generation, Netmap, NetmapStamp};

use super::link::{End, Line, Word};
use super::rules::{Broken, Violation};
use super::simulation::{Event, Simulation};
use super::store::entries;

pub struct Cloud {
    pub life: u64,
    pub process: Option<Process>,
}

pub struct Process {
    pub sessions: SessionTable<usize, Line>,
    /// The position up to which it has followed the store.
    place: usize,
    seen: Generation,
    targets: BTreeMap<usize, Arc<Netmap>>,
    senders: BTreeMap<Line, NetmapSendState>,
    remembered: BTreeMap<usize, Arc<Netmap>>,
}

impl Simulation {
    pub fn start_cloud(&mut self, cloud: usize) {
        let place = self.store.len() - 1;
        let state = &mut self.clouds[cloud];
        state.life += 1;
        state.process = Some(Process {
            sessions: SessionTable::new(100),
            place,
            seen: Generation::default(),
            targets: BTreeMap::new(),
            senders: BTreeMap::new(),
            remembered: BTreeMap::new(),
        });
        self.compile(cloud);
        self.schedule_following(cloud);
    }

    pub fn kill_cloud(&mut self, cloud: usize) {
        if self.clouds[cloud].process.take().is_none() {
            return;
        }
        let lines: Vec<Line> = self
            .links
            .iter()
            .filter(|(_, l)| l.cloud == cloud && l.cloud_open)
            .map(|(line, _)| *line)
            .collect();
        for line in lines {
            let told = self.random.percent(70);
            self.vanish(line, End::Cloud, told);
        }
    }

    fn schedule_following(&mut self, cloud: usize) {
        // Mostly at once, sometimes far behind: an etcd that stalls.
        let lag =
            if self.random.percent(10) { self.random.millis(200, 4_000) } else { self.random.millis(1, 60) };
        let (at, life) = (self.now + lag, self.clouds[cloud].life);
        self.schedule(at, Event::CloudFollows { cloud, life });
    }

    /// Follows the store as far as it has got, and looks for sessions that fell silent.
    pub fn cloud_follows(&mut self, cloud: usize, life: u64) -> Result<(), Violation> {
        if self.clouds[cloud].life != life || self.clouds[cloud].process.is_none() {
            return Ok(());
        }
        let process = self.clouds[cloud].process.as_mut().unwrap();
        let newest = self.store.len() - 1;
        if process.place < newest {
            let steps = 1 + self.random.below((newest - process.place) as u64) as usize;
            process.place = (process.place + steps).min(newest);
            self.compile(cloud);
            let lines: Vec<Line> =
                self.clouds[cloud].process.as_ref().unwrap().senders.keys().copied().collect();
            lines.into_iter().for_each(|line| self.offer(cloud, line));
        }
        let silent = |link: &super::link::Link| {
            link.cloud == cloud && link.cloud_open && link.cloud_heard + SILENCE_MAX < self.now
        };
        let silent: Vec<Line> =
            self.links.iter().filter(|(_, link)| silent(link)).map(|(line, _)| *line).collect();
        silent.into_iter().for_each(|line| self.end_session(line, Some(CloseCode::Dead)));
        // Paused senders wake here as well.
        let lines: Vec<Line> = self.clouds[cloud].process.as_ref().unwrap().senders.keys().copied().collect();
        lines.into_iter().for_each(|line| self.push(cloud, line));
        self.schedule_following(cloud);
        Ok(())
    }

    /// Gives each changed netmap the generation at which this replica saw the change first.
    fn compile(&mut self, cloud: usize) {
        let process = self.clouds[cloud].process.as_mut().unwrap();
        let (seen, state) = self.store.at(process.place);
        process.seen = seen;
        for (gateway, content) in &state.gateways {
            let previous = process.targets.get(gateway);
            let netmap = Netmap::build(seen, entries(content), previous.map(|netmap| &**netmap)).unwrap();
            let is_new = previous.is_none_or(|previous| {
                previous.digest() != netmap.digest() || previous.generation().epoch != seen.epoch
            });
            if is_new {
                process.targets.insert(*gateway, Arc::new(netmap));
            }
        }
    }

    /// Tells the session's sender what its gateway should hold.
    fn offer(&mut self, cloud: usize, line: Line) {
        let process = self.clouds[cloud].process.as_mut().unwrap();
        let gateway = self.links[&line].edge;
        let target = TargetNetmap { netmap: process.targets[&gateway].clone(), seen: process.seen };
        let Some(sender) = process.senders.get_mut(&line) else { return };
        if self.broken == Broken::ForgetNewest && sender.held().is_some() && self.random.percent(50) {
            return;
        }
        sender.handle_target(target);
        self.push(cloud, line);
    }

    fn push(&mut self, cloud: usize, line: Line) {
        let now = self.elapsed();
        let process = self.clouds[cloud].process.as_mut().unwrap();
        let gateway = self.links[&line].edge;
        // Only the current session brings netmaps.
        if process.sessions.current(&gateway).is_none_or(|entry| entry.session != line) {
            return;
        }
        if let Some(update) = process.senders.get_mut(&line).and_then(|sender| sender.next_update(now)) {
            self.stats.updates += 1;
            self.stats.deltas += u64::from(!update.is_whole());
            self.send(line, End::Cloud, Word::Netmap(update.encode()));
        }
    }

    pub fn cloud_hears(&mut self, line: Line, word: Word) -> Result<(), Violation> {
        let now = self.now;
        let link = self.links.get_mut(&line).unwrap();
        let (cloud, life) = (link.cloud, link.cloud_life);
        link.cloud_heard = now;
        if self.clouds[cloud].life != life || self.clouds[cloud].process.is_none() {
            return Ok(());
        }
        match word {
            Word::Hello { epoch, held } => self.greet(line, epoch, held),
            Word::Ping => self.send(line, End::Cloud, Word::Pong),
            Word::Acknowledged(stamp) => {
                let edge = self.links[&line].edge;
                let on_disk = self.edges[edge].disk.as_ref().map(|netmap| netmap.generation());
                if on_disk < Some(stamp.generation) {
                    return Err(Violation::AcknowledgedButNotOnDisk { edge, acknowledged: stamp });
                }
                self.acknowledged(cloud, line, stamp);
            }
            Word::InForce(stamp) => self.acknowledged(cloud, line, stamp),
            Word::NotTaken { want_whole } => {
                let elapsed = self.elapsed();
                let process = self.clouds[cloud].process.as_mut().unwrap();
                if let Some(sender) = process.senders.get_mut(&line) {
                    sender.handle_refused(want_whole, "simulated", elapsed);
                }
                self.push(cloud, line);
            }
            Word::Close(_) => self.end_session(line, None),
            other => panic!("an edge never says {other:?}"),
        }
        Ok(())
    }

    fn greet(&mut self, line: Line, epoch: u64, held: Option<NetmapStamp>) {
        let link = self.links.get_mut(&line).unwrap();
        let (cloud, gateway) = (link.cloud, link.edge);
        let process = self.clouds[cloud].process.as_mut().unwrap();
        match process.sessions.admit(&gateway, epoch, None, |_| line) {
            SessionAdmission::Taken { number, superseded: _, evicted, orphaned: _ } => {
                link.session = Some(number);
                let known = process.remembered.get(&gateway).cloned();
                let held = match self.broken {
                    Broken::TakeAnyGeneration => None,
                    _ => held,
                };
                process.senders.insert(line, NetmapSendState::new(held, known));
                if let Some(evicted) = evicted {
                    self.end_session(evicted.session, Some(CloseCode::Superseded));
                }
                self.send(line, End::Cloud, Word::Welcome);
                self.offer(cloud, line);
            }
            SessionAdmission::Older { current_epoch } => {
                self.send(line, End::Cloud, Word::Refused { current_epoch })
            }
            SessionAdmission::Full => panic!("there is room for a hundred"),
        }
    }

    fn acknowledged(&mut self, cloud: usize, line: Line, stamp: NetmapStamp) {
        let edge = self.links[&line].edge;
        let process = self.clouds[cloud].process.as_mut().unwrap();
        let netmap = process.senders.get_mut(&line).and_then(|sender| sender.handle_acknowledged(stamp));
        if let Some(netmap) = netmap {
            process.remembered.insert(edge, netmap);
        }
        self.push(cloud, line);
    }

    /// The cloud's end of a session ends; with a code, the edge is told.
    pub fn end_session(&mut self, line: Line, tell: Option<CloseCode>) {
        let link = self.links.get_mut(&line).unwrap();
        let (cloud, gateway, session) = (link.cloud, link.edge, link.session);
        if let Some(code) = tell {
            self.send(line, End::Cloud, Word::Close(code));
        }
        self.links.get_mut(&line).unwrap().shut(End::Cloud);
        let broken = self.broken;
        let Some(process) = &mut self.clouds[cloud].process else { return };
        process.senders.remove(&line);
        let Some(mut number) = session else { return };
        if let (Broken::RemoveByName, Some(entry)) = (broken, process.sessions.current(&gateway)) {
            number = entry.number;
        }
        if let RemovedSession::Current { heir, .. } = process.sessions.remove(&gateway, number) {
            self.stats.sessions_ended += 1;
            if let Some(heir) = heir {
                self.push(cloud, heir.session);
            }
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.now.duration_since(self.origin)
    }
}
