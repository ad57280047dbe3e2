//! One history: events in the order of time, faults among them, and in the end peace.
//!
//! For a while things break at random. Then everything is mended, and after a time that the design promises, every edge must
//! hold what the store says. The rules are looked at after every event.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_channel::link::CloseCode;
use causeway_channel::session::LinkId;
use causeway_netmap::Netmap;

use super::cloud::Cloud;
use super::edge::Edge;
use super::link::{End, Line, Link, Word};
use super::rules::{Broken, Violation};
use super::store::{Store, entries};
use testlab::random::SeededRandom;

const EDGES: usize = 3;
const CLOUDS: usize = 2;
/// The time in which faults happen.
const FAULTS_FOR: Duration = Duration::from_secs(60);
/// A refused netmap is offered again after a minute at the latest; a session is back within ten seconds; the rest is reserve.
const PEACE_FOR: Duration = Duration::from_secs(90);
const EVENTS_MAX: u64 = 200_000;

/// Counts of the events of a history, to see that faults did happen.
#[derive(Clone, Default, Debug)]
pub struct RunStats {
    pub events: u64,
    pub updates: u64,
    pub deltas: u64,
    pub netmaps: u64,
    pub refusals: u64,
    pub sessions_ended: u64,
    pub dials: u64,
    pub faults: u64,
}

impl RunStats {
    pub fn add(&mut self, other: &RunStats) {
        self.events += other.events;
        self.updates += other.updates;
        self.deltas += other.deltas;
        self.netmaps += other.netmaps;
        self.refusals += other.refusals;
        self.sessions_ended += other.sessions_ended;
        self.dials += other.dials;
        self.faults += other.faults;
    }
}

pub enum Event {
    EdgeTimer { edge: usize, life: u64 },
    Dialed { edge: usize, life: u64, link: LinkId, line: Option<Line> },
    LingerEnds { edge: usize, life: u64, link: LinkId },
    DiskWrites { edge: usize, life: u64, netmap: Arc<Netmap>, line: Option<Line> },
    DiskAnswers { edge: usize, life: u64, netmap: Arc<Netmap>, line: Line, written: Result<(), String> },
    CloudFollows { cloud: usize, life: u64 },
    Arrives { line: Line, to: End },
    Fault,
    StartEdge { edge: usize },
    StartCloud { cloud: usize },
    Heal { edge: usize, cloud: usize },
    DiskHasRoom { edge: usize },
    Peace,
}

pub struct Simulation {
    pub origin: Instant,
    pub now: Instant,
    pub random: SeededRandom,
    pub broken: Broken,
    pub store: Store,
    pub edges: Vec<Edge>,
    pub clouds: Vec<Cloud>,
    pub links: BTreeMap<Line, Link>,
    pub hello_epochs: BTreeMap<(usize, u64, LinkId), u64>,
    pub stats: RunStats,
    /// Paths that let nothing through.
    cut: BTreeSet<(usize, usize)>,
    is_peace: bool,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, Event>,
    next: u64,
    lines: u64,
}

/// Plays the history of a seed to its end.
pub fn run(seed: u64, broken: Broken) -> Result<RunStats, Violation> {
    let mut simulation = Simulation::new(seed, broken);
    simulation.begin();
    while let Some(Reverse((at, number))) = simulation.queue.pop() {
        if at > simulation.origin + FAULTS_FOR + PEACE_FOR {
            break;
        }
        simulation.now = simulation.now.max(at);
        let event = simulation.events.remove(&number).unwrap();
        simulation.stats.events += 1;
        if simulation.stats.events > EVENTS_MAX {
            return Err(Violation::Endless);
        }
        simulation.handle(event)?;
        simulation.check()?;
    }
    simulation.check_rest()?;
    Ok(simulation.stats)
}

impl Simulation {
    fn new(seed: u64, broken: Broken) -> Simulation {
        let origin = Instant::now();
        Simulation {
            origin,
            now: origin,
            random: SeededRandom::new(seed),
            broken,
            store: Store::new(EDGES),
            edges: (0..EDGES)
                .map(|_| Edge { disk: None, is_disk_full: false, life: 0, process: None })
                .collect(),
            clouds: (0..CLOUDS).map(|_| Cloud { life: 0, process: None }).collect(),
            links: BTreeMap::new(),
            hello_epochs: BTreeMap::new(),
            stats: RunStats::default(),
            cut: BTreeSet::new(),
            is_peace: false,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next: 0,
            lines: 0,
        }
    }

    fn begin(&mut self) {
        (0..CLOUDS).for_each(|cloud| self.start_cloud(cloud));
        (0..EDGES).for_each(|edge| self.start_edge(edge));
        self.schedule(self.now, Event::Fault);
        self.schedule(self.origin + FAULTS_FOR, Event::Peace);
    }

    pub fn schedule(&mut self, at: Instant, event: Event) {
        self.next += 1;
        self.queue.push(Reverse((at, self.next)));
        self.events.insert(self.next, event);
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::EdgeTimer { edge, life } => self.edge_timer(edge, life),
            Event::Dialed { edge, life, link, line } => self.edge_dialed(edge, life, link, line),
            Event::LingerEnds { edge, life, link } => self.linger_ends(edge, life, link),
            Event::DiskWrites { edge, life, netmap, line } => self.disk_writes(edge, life, netmap, line)?,
            Event::DiskAnswers { edge, life, netmap, line, written } => {
                self.disk_answers(edge, life, netmap, line, written)?;
            }
            Event::CloudFollows { cloud, life } => self.cloud_follows(cloud, life)?,
            Event::Arrives { line, to } => self.arrive(line, to)?,
            Event::Fault => self.fault(),
            Event::StartEdge { edge } if self.edges[edge].process.is_none() => self.start_edge(edge),
            Event::StartCloud { cloud } if self.clouds[cloud].process.is_none() => self.start_cloud(cloud),
            Event::StartEdge { .. } | Event::StartCloud { .. } => {}
            Event::Heal { edge, cloud } => self.heal(edge, cloud),
            Event::DiskHasRoom { edge } => self.disk_has_room(edge)?,
            Event::Peace => self.make_peace(),
        }
        Ok(())
    }

    /// One thing goes wrong, or one thing changes; the next is never far.
    fn fault(&mut self) {
        if self.is_peace {
            return;
        }
        self.stats.faults += 1;
        let edge = self.random.below(EDGES as u64) as usize;
        let cloud = self.random.below(CLOUDS as u64) as usize;
        let later = self.now + self.random.millis(1, 15_000);
        match self.random.below(100) {
            0..=54 => (0..=self.random.below(3)).for_each(|_| self.store.change(&mut self.random)),
            55..=64 => {
                self.cut.insert((edge, cloud));
                self.schedule(later, Event::Heal { edge, cloud });
            }
            65..=72 => {
                self.kill_edge(edge);
                self.schedule(later, Event::StartEdge { edge });
            }
            73..=79 => {
                self.kill_cloud(cloud);
                self.schedule(later, Event::StartCloud { cloud });
            }
            80..=87 => self.break_a_link(),
            88..=91 => {
                self.edges[edge].is_disk_full = true;
                self.schedule(later, Event::DiskHasRoom { edge });
            }
            92..=96 => self.change_links_of(edge),
            _ => self.restore_a_backup(later),
        }
        let next = self.now + self.random.millis(5, 900);
        self.schedule(next, Event::Fault);
    }

    /// A backup goes into an empty store, with no cloud running.
    fn restore_a_backup(&mut self, later: Instant) {
        (0..CLOUDS).for_each(|cloud| self.kill_cloud(cloud));
        self.store.restore(&mut self.random);
        (0..CLOUDS).for_each(|cloud| self.schedule(later, Event::StartCloud { cloud }));
    }

    /// A reset that one end sees, or both.
    fn break_a_link(&mut self) {
        let open: Vec<Line> = self
            .links
            .iter()
            .filter(|(_, link)| link.edge_open && link.cloud_open)
            .map(|(line, _)| *line)
            .collect();
        if open.is_empty() {
            return;
        }
        let line = open[self.random.below(open.len() as u64) as usize];
        let (at, is_seen) = (self.now, self.random.percent(70));
        for to in [End::Edge, End::Cloud] {
            let queue = self.links.get_mut(&line).unwrap().queue(to);
            // Messages on their way are lost.
            queue.clear();
            if to == End::Edge || is_seen {
                queue.push_back((at, Word::Close(CloseCode::Internal)));
                self.schedule(at, Event::Arrives { line, to });
            }
        }
    }

    fn heal(&mut self, edge: usize, cloud: usize) {
        self.cut.remove(&(edge, cloud));
        // Messages that were sent meanwhile are sent again by the transport.
        let lines: Vec<Line> = self
            .links
            .iter()
            .filter(|(_, l)| (l.edge, l.cloud) == (edge, cloud))
            .map(|(line, _)| *line)
            .collect();
        for line in lines {
            for to in [End::Edge, End::Cloud] {
                for _ in 0..self.links.get_mut(&line).unwrap().queue(to).len() {
                    let at = self.now + self.random.millis(1, 200);
                    self.schedule(at, Event::Arrives { line, to });
                }
            }
        }
    }

    fn make_peace(&mut self) {
        self.is_peace = true;
        for (edge, cloud) in self.cut.clone() {
            self.heal(edge, cloud);
        }
        for edge in 0..EDGES {
            self.schedule(self.now, Event::DiskHasRoom { edge });
            self.schedule(self.now, Event::StartEdge { edge });
        }
        (0..CLOUDS).for_each(|cloud| self.schedule(self.now, Event::StartCloud { cloud }));
        // The revision moves on, as it does in every living cloud.
        self.store.change(&mut self.random);
    }

    /// An attempt to reach one of the clouds, whichever is tried first.
    pub fn dial(&mut self, edge: usize, life: u64, link: LinkId) {
        self.stats.dials += 1;
        let first = self.random.below(CLOUDS as u64) as usize;
        let reachable =
            |cloud: &usize| self.clouds[*cloud].process.is_some() && !self.cut.contains(&(edge, *cloud));
        let order = [first, (first + 1) % CLOUDS];
        let Some(cloud) = order.into_iter().find(reachable) else {
            let at = self.now + self.random.millis(1, 2_000);
            return self.schedule(at, Event::Dialed { edge, life, link, line: None });
        };
        self.lines += 1;
        let line = Line(self.lines);
        let cloud_life = self.clouds[cloud].life;
        let new = Link {
            edge,
            edge_life: life,
            id: link,
            cloud,
            cloud_life,
            edge_open: true,
            cloud_open: true,
            session: None,
            to_edge: Default::default(),
            to_cloud: Default::default(),
            cloud_heard: self.now,
        };
        self.links.insert(line, new);
        let at = self.now + self.random.millis(1, 400);
        self.schedule(at, Event::Dialed { edge, life, link, line: Some(line) });
    }

    pub fn send(&mut self, line: Line, from: End, word: Word) {
        let delay =
            if self.random.percent(5) { self.random.millis(100, 1_500) } else { self.random.millis(1, 80) };
        let Some(link) = self.links.get_mut(&line).filter(|link| link.is_open_at(from)) else { return };
        let to = from.other();
        let queue = link.queue(to);
        // In order: nothing overtakes what was sent before.
        let at = queue.back().map_or(self.now + delay, |(before, _)| (self.now + delay).max(*before));
        queue.push_back((at, word));
        self.schedule(at, Event::Arrives { line, to });
    }

    fn arrive(&mut self, line: Line, to: End) -> Result<(), Violation> {
        let now = self.now;
        let Some(link) = self.links.get_mut(&line) else { return Ok(()) };
        let path = (link.edge, link.cloud);
        if self.cut.contains(&path) || link.queue(to).front().is_none_or(|(at, _)| *at > now) {
            return Ok(());
        }
        let (_, word) = link.queue(to).pop_front().unwrap();
        if !link.is_open_at(to) {
            return Ok(());
        }
        let is_close = matches!(word, Word::Close(_));
        if is_close {
            link.shut(to);
        }
        match to {
            End::Edge => self.edge_hears(line, word)?,
            End::Cloud => self.cloud_hears(line, word)?,
        }
        self.forget(line);
        Ok(())
    }

    /// One end is gone. Told, the other end hears of it when the path lets it.
    pub fn vanish(&mut self, line: Line, end: End, told: bool) {
        if told {
            self.send(line, end, Word::Close(CloseCode::Done));
        }
        if let Some(link) = self.links.get_mut(&line) {
            link.shut(end);
        }
        self.forget(line);
    }

    fn forget(&mut self, line: Line) {
        if self.links.get(&line).is_some_and(|link| !link.edge_open && !link.cloud_open) {
            self.links.remove(&line);
        }
    }

    /// Checks the rules that hold at every moment.
    fn check(&self) -> Result<(), Violation> {
        for edge in 0..EDGES {
            if self.live_links(edge) > 1 {
                return Err(Violation::SeveralLiveSessions { edge });
            }
            let Some(current) = self.current_line(edge) else { continue };
            let Some(link) = self.links.get(&current).filter(|link| link.edge_open && link.cloud_open) else {
                continue;
            };
            let Some(process) = &self.clouds[link.cloud].process else { continue };
            // Both ends hold it open: then the cloud knows it, or a newer one of the same edge.
            let own = link.session;
            match process.sessions.current(&edge) {
                Some(entry) if Some(entry.number) >= own => {}
                _ => return Err(Violation::LiveSessionLost { edge }),
            }
            let under_way = link.to_edge.iter().filter(|(_, word)| matches!(word, Word::Netmap(_))).count();
            if under_way > 1 {
                return Err(Violation::SeveralUpdatesUnderWay { edge });
            }
        }
        Ok(())
    }

    /// Checks the rules that hold at the end.
    fn check_rest(&self) -> Result<(), Violation> {
        let (generation, state) = self.store.newest();
        for edge in 0..EDGES {
            let fail = |why: String| Err(Violation::NotConverged { edge, why });
            let Some(current) = self.current_line(edge) else { return fail("it has no session".into()) };
            let link = &self.links[&current];
            let process = self.clouds[link.cloud].process.as_ref().unwrap();
            if process.sessions.current(&edge).is_none_or(|entry| entry.session != current) {
                return fail("the cloud has another session for it".into());
            }
            let expected = Netmap::build(generation, entries(&state.gateways[&edge]), None).unwrap();
            match &self.edges[edge].disk {
                Some(held)
                    if held.digest() == expected.digest() && held.generation().epoch == generation.epoch => {}
                held => {
                    return fail(format!(
                        "it holds {held:?}, the store is at {generation} with {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
