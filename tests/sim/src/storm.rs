//! A fleet that lost its cloud in one moment, and a cloud with a limited number of handshakes a second.
//!
//! The edges are the real supervisors; slots and times are given by the port's own `HandshakeConcurrency` and `AdmissionBacklog`; the cost of a
//! handshake is a number. Shows whether overload feeds itself: work on a dial that was given up is work all the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use causeway_channel::link::{CloseCode, Transport};
use causeway_channel::port::{
    AdmissionBacklog, CALLED_WAIT_MAX, HandshakeConcurrency, PACE_WAIT_MAX, spread,
};
use causeway_channel::session::{
    AllowedTransports, AttemptFailure, LinkId, Supervisor, SupervisorAction, WelcomedSession,
};

use testlab::random::SeededRandom;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Storm {
    pub edges: usize,
    /// The rate that the cloud really has, and the rate that it announced to the edges.
    pub handshakes_per_second: u32,
    pub told_per_second: u32,
    /// `false`: every handshake is begun at once, and beyond 2,048 the oldest is given up.
    pub has_pace: bool,
    /// In this time after each start the cloud is busy with itself, and fifty times slower.
    pub slow: Range<Duration>,
    /// The cloud was killed before, after these times of life.
    pub lives: Vec<Duration>,
    /// After the last kill.
    pub time_max: Duration,
}

impl Default for Storm {
    fn default() -> Storm {
        Storm {
            edges: 10_000,
            handshakes_per_second: RETURNS_PER_SECOND,
            told_per_second: RETURNS_PER_SECOND,
            has_pace: true,
            slow: Duration::ZERO..Duration::ZERO,
            lives: Vec::new(),
            time_max: Duration::from_secs(120),
        }
    }
}

/// The result, after the last kill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    pub back: usize,
    /// When the last came back.
    pub last: Duration,
    /// Work on dials that had been given up.
    pub wasted: usize,
    pub refused_once: usize,
    pub refused_more_than_once: usize,
}

const HALF_OPEN_MAX: usize = 2048;
/// As a cloud is set up.
const RETURNS_PER_SECOND: u32 = 750;
const SLOW_TIMES: u32 = 50;
/// The first edges are told the size that the fleet had then: every doubling from here is told to all edges.
const HINT_FROM: usize = 500;
/// To decode a packet and send one.
const REFUSAL: Duration = Duration::from_micros(100);
/// The loss is noticed with the next ping.
const PING_MS: u64 = 5000;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Lost(usize),
    Timer(usize),
    /// The dialer's patience ends.
    GivenUp(usize),
    /// No slot became free in time.
    Waited(usize),
    /// By the cloud of this life.
    Served(usize),
    Killed,
}

struct Edge {
    machine: Supervisor,
    /// The dial under way.
    dial: Option<usize>,
    is_back: bool,
    /// Was told when to come.
    is_called: bool,
    refusals: u32,
}

struct Dial {
    edge: usize,
    link: LinkId,
    /// In a place since then.
    since: Option<Instant>,
    is_over: bool,
}

struct Simulation<'a> {
    storm: &'a Storm,
    start: Instant,
    now: Instant,
    life: usize,
    random: SeededRandom,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    number: u64,
    edges: Vec<Edge>,
    dials: Vec<Dial>,
    pace: HandshakeConcurrency,
    line: AdmissionBacklog,
    free: usize,
    waiting: VecDeque<usize>,
    /// In a place, not worked on yet; the first is being worked on while `is_busy`.
    queue: VecDeque<usize>,
    is_busy: bool,
    /// Refusals whose work is not done yet.
    owed: u32,
    /// The number of edges that were back when the spread was last announced.
    hinted: usize,
    outcome: Outcome,
}

impl Storm {
    pub fn run(&self, seed: u64) -> Outcome {
        let start = Instant::now();
        let pace = HandshakeConcurrency::new(HALF_OPEN_MAX);
        let mut simulation = Simulation {
            storm: self,
            start,
            now: start,
            life: 0,
            random: SeededRandom::new(seed),
            events: BinaryHeap::new(),
            number: 0,
            edges: Vec::new(),
            dials: Vec::new(),
            free: pace.slot_count(),
            pace,
            line: AdmissionBacklog::new(start),
            waiting: VecDeque::new(),
            queue: VecDeque::new(),
            is_busy: false,
            owed: 0,
            hinted: HINT_FROM,
            outcome: Outcome::default(),
        };
        simulation.gather();
        simulation.play();
        simulation.outcome.refused_once = simulation.edges.iter().filter(|edge| edge.refusals == 1).count();
        simulation.outcome.refused_more_than_once =
            simulation.edges.iter().filter(|edge| edge.refusals > 1).count();
        simulation.outcome
    }
}

impl Simulation<'_> {
    /// Gives every edge a session of long standing, which it loses now.
    fn gather(&mut self) {
        let long_ago = self.start - Duration::from_secs(60);
        let spread = self.storm.edges as f64 / f64::from(self.storm.told_per_second);
        for _ in 0..self.storm.edges {
            let mut machine = Supervisor::new(1, AllowedTransports::QuicOnly, long_ago);
            machine.handle_timeout(long_ago, 0.0);
            let Some(SupervisorAction::Dial { link, .. }) = machine.next_action() else {
                panic!("an edge begins by dialling")
            };
            machine.handle_welcome(long_ago, link, welcomed(Duration::from_secs_f64(spread)));
            self.edges.push(Edge { machine, dial: None, is_back: true, is_called: false, refusals: 0 });
        }
        self.kill();
        let mut moment = Duration::ZERO;
        for life in &self.storm.lives {
            moment += *life;
            self.at(moment, Event::Killed);
        }
    }

    /// A new cloud, which knows nothing of the one before. Dials that it was at are not answered any more.
    fn kill(&mut self) {
        self.life += 1;
        self.start = self.now;
        self.pace = HandshakeConcurrency::new(HALF_OPEN_MAX);
        self.line = AdmissionBacklog::new(self.now);
        self.free = self.pace.slot_count();
        self.waiting.clear();
        self.queue.clear();
        (self.is_busy, self.owed, self.hinted) = (false, 0, HINT_FROM);
        self.outcome = Outcome::default();
        for number in 0..self.edges.len() {
            let edge = &mut self.edges[number];
            (edge.is_called, edge.refusals) = (false, 0);
            if std::mem::take(&mut edge.is_back) {
                let noticed = self.random.millis(0, PING_MS);
                self.at(noticed, Event::Lost(number));
            }
        }
    }

    /// Over which time as many as are back should come the next time.
    fn spread(&self) -> Duration {
        spread(self.outcome.back, RETURNS_PER_SECOND, self.line.served_per_second())
    }

    fn tell_hint(&mut self) {
        if self.outcome.back < 2 * self.hinted {
            return;
        }
        self.hinted = self.outcome.back;
        let hint = self.spread();
        for edge in self.edges.iter_mut().filter(|edge| edge.is_back) {
            let link = edge.machine.current().unwrap();
            edge.machine.handle_hint(link, hint);
        }
    }

    fn play(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            let is_last = self.life > self.storm.lives.len();
            let is_over = self.outcome.back == self.edges.len() || at - self.start > self.storm.time_max;
            if is_last && is_over {
                return;
            }
            match event {
                Event::Lost(edge) => {
                    let link = self.edges[edge].machine.current().unwrap();
                    let jitter = self.random.fraction();
                    self.edges[edge].machine.handle_closed(at, link, CloseCode::Dead, jitter);
                    self.act(edge);
                }
                Event::Timer(edge) => {
                    // Later timers replace earlier ones; keepalives are not played.
                    let machine = &self.edges[edge].machine;
                    if machine.current().is_none() && machine.next_timeout().is_some_and(|due| due <= at) {
                        let jitter = self.random.fraction();
                        self.edges[edge].machine.handle_timeout(at, jitter);
                        self.act(edge);
                    }
                }
                Event::GivenUp(dial) => self.fail(dial, AttemptFailure::Unanswered),
                Event::Waited(dial) => {
                    if self.dials[dial].since.is_none() && !self.dials[dial].is_over {
                        self.waiting.retain(|waits| *waits != dial);
                        self.send_away(dial);
                    }
                }
                Event::Served(life) if life == self.life => self.serve(),
                Event::Served(_) => {}
                Event::Killed => self.kill(),
            }
        }
    }

    fn act(&mut self, edge: usize) {
        while let Some(action) = self.edges[edge].machine.next_action() {
            match action {
                SupervisorAction::Dial { link, patience, .. } => self.dial(edge, link, patience),
                SupervisorAction::Abandon { .. } => {
                    if let Some(dial) = self.edges[edge].dial.take() {
                        self.dials[dial].is_over = true;
                    }
                }
                _ => {}
            }
        }
        if let Some(due) = self.edges[edge].machine.next_timeout() {
            self.at(due.saturating_duration_since(self.now), Event::Timer(edge));
        }
    }

    fn dial(&mut self, edge: usize, link: LinkId, patience: Duration) {
        let dial = self.dials.len();
        self.dials.push(Dial { edge, link, since: None, is_over: false });
        self.edges[edge].dial = Some(dial);
        self.at(patience, Event::GivenUp(dial));
        if !self.storm.has_pace {
            if self.queue.len() >= HALF_OPEN_MAX {
                self.queue.pop_front();
            }
            self.enter(dial);
        } else if self.free > 0 {
            self.free -= 1;
            self.enter(dial);
        } else if std::mem::take(&mut self.edges[edge].is_called) {
            self.wait(dial, CALLED_WAIT_MAX);
        } else {
            match self.line.handle_newcomer(self.now, self.waiting.len()) {
                wait if wait > PACE_WAIT_MAX => self.send_away(dial),
                _ => self.wait(dial, PACE_WAIT_MAX),
            }
        }
    }

    fn wait(&mut self, dial: usize, patience: Duration) {
        self.waiting.push_back(dial);
        self.at(patience, Event::Waited(dial));
    }

    fn send_away(&mut self, dial: usize) {
        let retry_after = self.line.reserve_slot(self.now, self.waiting.len());
        let edge = &mut self.edges[self.dials[dial].edge];
        edge.refusals += 1;
        edge.is_called = true;
        self.owed += 1;
        self.fail(dial, AttemptFailure::Busy { retry_after });
    }

    fn enter(&mut self, dial: usize) {
        self.dials[dial].since = Some(self.now);
        self.queue.push_back(dial);
        self.work();
    }

    fn work(&mut self) {
        if !self.is_busy && !self.queue.is_empty() {
            self.is_busy = true;
            // Refusals of the meantime were work, too.
            let is_slow = self.storm.slow.contains(&(self.now - self.start));
            let cost = Duration::from_secs(1) / self.storm.handshakes_per_second
                * if is_slow { SLOW_TIMES } else { 1 };
            let refusals = REFUSAL * std::mem::take(&mut self.owed);
            self.at(cost + refusals, Event::Served(self.life));
        }
    }

    /// The cloud has finished the handshake it was at.
    fn serve(&mut self) {
        self.is_busy = false;
        if let Some(dial) = self.queue.pop_front() {
            self.welcome(dial);
            self.leave(dial);
        }
        self.work();
    }

    fn welcome(&mut self, dial: usize) {
        let Dial { edge, link, is_over, .. } = self.dials[dial];
        if is_over {
            self.outcome.wasted += 1;
            return;
        }
        self.dials[dial].is_over = true;
        let welcomed = welcomed(self.spread());
        let edge = &mut self.edges[edge];
        edge.dial = None;
        edge.is_back = true;
        edge.machine.handle_dialed(self.now, link);
        edge.machine.handle_welcome(self.now, link, welcomed);
        self.outcome.back += 1;
        self.outcome.last = self.now - self.start;
        self.tell_hint();
    }

    fn leave(&mut self, dial: usize) {
        let (Some(since), true) = (self.dials[dial].since, self.storm.has_pace) else { return };
        self.line.handle_left(self.now, self.free == 0);
        self.free += self.pace.handle_left(self.now - since, self.free == 0);
        while self.free > 0 {
            let Some(next) = self.waiting.pop_front() else { return };
            self.free -= 1;
            self.enter(next);
        }
    }

    fn fail(&mut self, dial: usize, failure: AttemptFailure) {
        let Dial { edge, link, is_over, .. } = self.dials[dial];
        if is_over {
            return;
        }
        self.dials[dial].is_over = true;
        self.edges[edge].dial = None;
        let jitter = self.random.fraction();
        self.edges[edge].machine.handle_failed(self.now, link, failure, jitter);
        self.act(edge);
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now + after, self.number, event)));
    }
}

fn welcomed(retry_hint: Duration) -> WelcomedSession {
    WelcomedSession { transport: Transport::Quic, keepalive: Duration::ZERO, retry_hint }
}
