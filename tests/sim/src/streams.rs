//! Streams of a session that has two transports: cuts, stalls and moves while both are in use.
//!
//! One edge and one cloud. The policy and the slots of secondary links are those that the product runs; both kinds of links
//! carry their streams with the product's own mux, the one for QUIC too, because what matters here is which link a stream
//! takes, and when the link ends. This file plays the drivers of both ends, the paths, and the applications. Every byte of a
//! stream has a number, so a byte that comes twice, too early or after its session is found.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_channel::link::{
    CloseCode, CloseReason, LinkLimits, LinkSide, LinkStats, PathStats, SlotLink, SlotState,
};
use causeway_channel::session::{
    PathSample, SILENCE_MAX, SecondaryAction, SecondaryPolicy, TransportPreference,
};
use causeway_channel::tcp::mux::{Mux, StreamPriority, WriteBatch};

use testlab::random::SeededRandom;

/// The simulation moves in steps of this length.
const STEP: Duration = Duration::from_millis(50);
const TROUBLE: Duration = Duration::from_secs(150);
/// After the trouble neither end opens streams any more. A policy that waits for a dead path, and one that waits for an idle
/// link, are done within this time.
const CALM: Duration = Duration::from_secs(150);
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_MAX: Duration = Duration::from_secs(2);
const JOIN_MAX: Duration = Duration::from_secs(4);
const RETIRED_MIN: Duration = Duration::from_secs(2);
const RETIRED_PINGS_MAX: u32 = 5;
/// The kernel ends a TCP connection whose bytes are not acknowledged for this long.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);
const BYTES_PER_STEP: usize = 128 * 1024;
const STREAMS_MAX: usize = 12;
const WRITE_BYTES_MAX: u64 = 6000;
/// The edge and the cloud.
const ENDS: [usize; 2] = [0, 1];
const EDGE: usize = 0;
const CLOUD: usize = 1;

/// One end of a link. Clones are the same link, as in the product.
#[derive(Clone)]
struct LinkEnd(Rc<RefCell<Mux>>);

impl LinkEnd {
    fn new(side: LinkSide, now: Instant) -> LinkEnd {
        LinkEnd(Rc::new(RefCell::new(Mux::new(side, &LinkLimits::default(), now))))
    }

    fn is_ended(&self) -> bool {
        self.0.borrow().ended().is_some()
    }
}

impl SlotLink for LinkEnd {
    fn close(&self, reason: CloseReason) {
        self.0.borrow_mut().close(reason);
    }

    fn stats(&self) -> LinkStats {
        self.0.borrow().stats()
    }

    fn is_same(&self, other: &LinkEnd) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// A connection: two ends, and the path between them.
#[derive(Clone)]
struct Connection {
    ends: [LinkEnd; 2],
    is_udp: bool,
    /// The number of moves of the edge when it was opened. A TCP connection does not survive a later one.
    moves: u64,
    /// Since when the path is dead.
    dead_since: Option<Instant>,
    session: usize,
}

/// A session: its primary connection, and the secondary links as each end knows them.
struct Session {
    primary: Connection,
    slots: [SlotState<LinkEnd>; 2],
    is_open: [bool; 2],
    heard: [Instant; 2],
    /// The cloud is told at this time that the link is retired, unless the session is over.
    retires_at_cloud: Option<Instant>,
}

/// A stream, at the end that opened it and at the other.
struct Stream {
    session: usize,
    connection: usize,
    opener: usize,
    id: u32,
    /// Of each end: bytes written and read, both numbered from 0, and whether it has finished writing.
    written: [u64; 2],
    read: [u64; 2],
    is_finished: [bool; 2],
    is_accepted: bool,
    is_gone: [bool; 2],
}

impl Stream {
    /// Both applications have left it, or the other one never heard of it.
    fn is_over(&self) -> bool {
        self.is_gone[self.opener] && (self.is_gone[1 - self.opener] || !self.is_accepted)
    }
}

/// A dial of the secondary link that is under way.
struct Joining {
    until: Instant,
    session: usize,
    moves: u64,
}

/// The edge's driver of the secondary link.
#[derive(Default)]
struct Driver {
    joining: Option<Joining>,
    open: Option<usize>,
    /// A ping that waits for its answer.
    ping: Option<(u64, Instant)>,
    pinged: Option<Instant>,
    sampled: Option<Instant>,
    retired: Vec<Retired>,
}

/// A connection that takes no new streams.
struct Retired {
    connection: usize,
    since: Instant,
    /// A ping that waits for its answer, and how many before it had none.
    ping: Option<(u64, Instant)>,
    unanswered: u32,
}

pub struct StreamsWorld {
    random: SeededRandom,
    start: Instant,
    now: Instant,
    policy: SecondaryPolicy,
    driver: Driver,
    sessions: Vec<Session>,
    connections: Vec<Connection>,
    streams: Vec<Stream>,
    /// The places of connections and streams that are not over.
    live_connections: Vec<usize>,
    live_streams: Vec<usize>,
    moves: u64,
    /// The round trip of the path. A short one gets a TCP link with its first stream, a longer one after evidence.
    rtt: Duration,
    /// Until when each path is cut: UDP, TCP.
    cut: [Option<Instant>; 2],
    /// When the next session begins, while there is none.
    next_session: Instant,
    /// The events of this run, counted.
    pub seen: Seen,
}

/// Counts by which a run can be told from one in which nothing happened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub sessions: usize,
    pub streams_on_quic: usize,
    pub streams_on_tcp: usize,
    pub bytes: u64,
    pub moves: u64,
    pub tcp_links: usize,
}

impl StreamsWorld {
    pub fn new(seed: u64) -> StreamsWorld {
        let start = Instant::now();
        let mut random = SeededRandom::new(seed);
        let preference = match random.below(4) {
            0 => TransportPreference::Speed,
            _ => TransportPreference::Auto,
        };
        let rtt = Duration::from_millis([1, 20][random.below(2) as usize]);
        StreamsWorld {
            random,
            rtt,
            start,
            now: start,
            policy: SecondaryPolicy::new(preference),
            driver: Driver::default(),
            sessions: Vec::new(),
            connections: Vec::new(),
            streams: Vec::new(),
            live_connections: Vec::new(),
            live_streams: Vec::new(),
            moves: 0,
            cut: [None; 2],
            next_session: start,
            seen: Seen::default(),
        }
    }

    /// Runs through the trouble and the calm; the error says which invariant broke, and when.
    pub fn run(mut self) -> Result<Seen, String> {
        let (trouble_end, end) = (self.start + TROUBLE, self.start + TROUBLE + CALM);
        while self.now < end {
            self.now += STEP;
            let is_trouble = self.now < trouble_end;
            self.step(is_trouble).map_err(|broken| format!("at {:?}: {broken}", self.now - self.start))?;
        }
        self.check_calm()?;
        Ok(self.seen)
    }

    fn step(&mut self, is_trouble: bool) -> Result<(), String> {
        if is_trouble {
            self.any_fault();
        } else {
            self.cut = [None; 2];
        }
        self.begin_session();
        self.drive_edge();
        self.drive_cloud();
        if is_trouble {
            self.open_streams();
        }
        self.write_streams(is_trouble);
        self.move_bytes();
        self.read_streams()?;
        self.watch_sessions();
        self.watch_connections();
        self.check_ended()?;
        let (connections, streams) = (&self.connections, &self.streams);
        self.live_connections.retain(|place| connections[*place].ends.iter().any(|end| !end.is_ended()));
        self.live_streams.retain(|place| !streams[*place].is_over());
        Ok(())
    }

    // The simulation.

    fn any_fault(&mut self) {
        if !self.random.one_in(120) {
            return;
        }
        let time = self.random.millis(100, 14_000);
        match self.random.below(6) {
            0 => self.cut[0] = Some(self.now + time),
            1 | 2 => self.cut[1] = Some(self.now + time),
            3 => self.cut = [Some(self.now + time); 2],
            // A new address: QUIC goes on, TCP does not.
            4 => {
                self.moves += 1;
                self.seen.moves += 1;
                if self.policy.handle_moved(self.now) == SecondaryAction::Retire {
                    self.retire();
                }
            }
            // Revoked, superseded, drained: the cloud ends the session.
            _ => {
                if let Some(number) = self.session_at(CLOUD) {
                    self.close_session(number, CLOUD, CloseCode::Superseded);
                }
            }
        }
    }

    fn passes(&self, connection: &Connection) -> bool {
        let is_cut = self.cut[usize::from(!connection.is_udp)].is_some_and(|until| self.now < until);
        !is_cut && (connection.is_udp || connection.moves == self.moves)
    }

    fn session_at(&self, end: usize) -> Option<usize> {
        self.sessions.len().checked_sub(1).filter(|last| self.sessions[*last].is_open[end])
    }

    fn connect(&mut self, is_udp: bool, session: usize) -> Connection {
        let ends = [LinkSide::Dialled, LinkSide::Accepted].map(|side| LinkEnd::new(side, self.now));
        Connection { ends, is_udp, moves: self.moves, dead_since: None, session }
    }

    fn add(&mut self, connection: Connection) -> usize {
        self.live_connections.push(self.connections.len());
        self.connections.push(connection);
        self.connections.len() - 1
    }

    fn begin_session(&mut self) {
        let is_udp_open = self.cut[0].is_none_or(|until| self.now >= until);
        if self.session_at(EDGE).is_some() || self.now < self.next_session || !is_udp_open {
            return;
        }
        let number = self.sessions.len();
        // A new session supersedes the one before at the cloud.
        if let Some(before) = self.session_at(CLOUD) {
            self.close_session(before, CLOUD, CloseCode::Superseded);
        }
        let primary = self.connect(true, number);
        self.add(primary.clone());
        self.sessions.push(Session {
            primary,
            slots: [SlotState::default(), SlotState::default()],
            is_open: [true; 2],
            heard: [self.now; 2],
            retires_at_cloud: None,
        });
        self.seen.sessions += 1;
        self.policy.handle_session();
        self.driver = Driver::default();
    }

    /// One end closes its session, and with it everything that belongs to it.
    fn close_session(&mut self, number: usize, end: usize, code: CloseCode) {
        let session = &mut self.sessions[number];
        let reason = CloseReason::new(code, "");
        session.is_open[end] = false;
        session.slots[end].close(&reason);
        session.primary.ends[end].close(reason);
        if end == EDGE {
            self.driver = Driver::default();
            self.next_session = self.now + self.random.millis(50, 3000);
        }
    }

    /// Sessions end by silence, or when the other end has closed the primary link.
    fn watch_sessions(&mut self) {
        for number in self.sessions.len().saturating_sub(2)..self.sessions.len() {
            for end in ENDS {
                let session = &self.sessions[number];
                if !session.is_open[end] {
                    continue;
                }
                let is_silent = self.now - session.heard[end] > SILENCE_MAX;
                if is_silent || session.primary.ends[end].is_ended() {
                    self.close_session(number, end, CloseCode::Dead);
                }
            }
        }
    }

    // The drivers.

    fn drive_edge(&mut self) {
        let Some(number) = self.session_at(EDGE) else { return };
        self.finish_joining(number);
        self.watch_retired(number);
        if self.driver.sampled.is_some_and(|at| self.now - at < SAMPLE_EVERY) {
            return;
        }
        self.driver.sampled = Some(self.now);
        if let Some(open) = self.driver.open
            && self.connections[open].ends[EDGE].is_ended()
        {
            self.policy.handle_failed(self.now);
            let link = self.connections[open].ends[EDGE].clone();
            self.sessions[number].slots[EDGE].remove(&link);
            self.driver.open = None;
            self.tell_cloud(number);
        }
        let primary = self.sessions[number].primary.ends[EDGE].stats();
        if self.driver.open.is_none() && self.driver.joining.is_none() && primary.streams_open == 0 {
            // As the product's driver, which sleeps until a stream begins.
            return;
        }
        let mut action = self.policy.handle_sample(self.now, &self.sample(number));
        if action == SecondaryAction::Wait {
            action = self.ping();
        }
        match action {
            SecondaryAction::Wait => {}
            SecondaryAction::Open => {
                let until = self.now + self.random.millis(5, 600);
                self.driver.joining = Some(Joining { until, session: number, moves: self.moves });
            }
            SecondaryAction::Retire => self.retire(),
        }
    }

    fn sample(&self, number: usize) -> PathSample {
        let primary = self.sessions[number].primary.ends.each_ref().map(|end| end.stats().sent_bytes);
        let path = |bytes| PathStats { acknowledged_bytes: bytes, lost_bytes: 0 };
        let streams = self.driver.open.map(|open| self.connections[open].ends[EDGE].stats().streams_open);
        PathSample {
            ours: path(primary[EDGE]),
            theirs: path(primary[CLOUD]),
            rtt: self.rtt,
            secondary_streams: streams.unwrap_or(0),
        }
    }

    fn finish_joining(&mut self, number: usize) {
        let Some(joining) = self.driver.joining.take_if(|joining| self.now >= joining.until) else { return };
        let connection = self.connect(false, number);
        let is_late = self.now - joining.until > JOIN_MAX;
        // The cloud admits the link only into a session that it holds.
        let is_held = self.session_at(CLOUD) == Some(joining.session);
        if !self.passes(&connection) && !is_late {
            return self.driver.joining = Some(joining);
        }
        if is_late || !is_held || joining.moves != self.moves {
            return self.policy.handle_failed(self.now);
        }
        self.seen.tcp_links += 1;
        let place = self.add(connection.clone());
        self.sessions[number].slots[CLOUD].attach(connection.ends[CLOUD].clone());
        if self.policy.handle_opened(self.now) == SecondaryAction::Retire {
            self.tell_cloud(number);
            return connection.ends[EDGE].close(CloseReason::new(CloseCode::Done, ""));
        }
        self.sessions[number].slots[EDGE].attach(connection.ends[EDGE].clone());
        (self.driver.open, self.driver.ping, self.driver.pinged) = (Some(place), None, None);
    }

    fn ping(&mut self) -> SecondaryAction {
        let Some(open) = self.driver.open else { return SecondaryAction::Wait };
        let link = self.connections[open].ends[EDGE].clone();
        let rtt = self.rtt;
        if let Some((number, at)) = self.driver.ping {
            let took = link.0.borrow_mut().pong(number).ok().flatten();
            if took.is_none() && self.now - at < PING_MAX {
                return SecondaryAction::Wait;
            }
            (self.driver.ping, self.driver.pinged) = (None, Some(self.now));
            return self.policy.handle_ping(self.now, took, rtt);
        }
        let is_due = self.driver.pinged.is_none_or(|at| self.now - at >= PING_EVERY);
        if is_due && link.stats().streams_open > 0 {
            let number = link.0.borrow_mut().ping();
            self.driver.ping = Some((number, self.now));
        }
        SecondaryAction::Wait
    }

    fn retire(&mut self) {
        let (Some(open), Some(number)) = (self.driver.open.take(), self.session_at(EDGE)) else { return };
        self.sessions[number].slots[EDGE].retire();
        self.tell_cloud(number);
        self.driver.retired.push(Retired { connection: open, since: self.now, ping: None, unanswered: 0 });
    }

    /// The message takes the primary link.
    fn tell_cloud(&mut self, number: usize) {
        let at = self.now + self.random.millis(1, 300);
        self.sessions[number].retires_at_cloud.get_or_insert(at);
    }

    /// A retired link is closed after its last stream, or when it does not answer.
    fn watch_retired(&mut self, number: usize) {
        let now = self.now;
        let mut left = Vec::new();
        for retired in std::mem::take(&mut self.driver.retired) {
            let Retired { connection, since, mut ping, mut unanswered } = retired;
            let link = self.connections[connection].ends[EDGE].clone();
            if let Some((asked, at)) = ping {
                if link.0.borrow_mut().pong(asked).ok().flatten().is_some() {
                    (ping, unanswered) = (None, 0);
                } else if now - at >= PING_MAX {
                    (ping, unanswered) = (None, unanswered + 1);
                }
            } else if now - since >= RETIRED_MIN {
                ping = Some((link.0.borrow_mut().ping(), now));
            }
            let is_needed = link.stats().streams_open > 0 && unanswered < RETIRED_PINGS_MAX;
            if link.is_ended() || now - since >= RETIRED_MIN && !is_needed {
                link.close(CloseReason::new(CloseCode::Done, ""));
                self.sessions[number].slots[EDGE].remove(&link);
            } else {
                left.push(Retired { connection, since, ping, unanswered });
            }
        }
        self.driver.retired = left;
    }

    fn drive_cloud(&mut self) {
        let Some(number) = self.session_at(CLOUD) else { return };
        let is_udp_open = self.cut[0].is_none_or(|until| self.now >= until);
        let session = &mut self.sessions[number];
        if is_udp_open && session.retires_at_cloud.take_if(|at| self.now >= *at).is_some() {
            session.slots[CLOUD].retire();
        }
        let ended: Vec<LinkEnd> =
            session.slots[CLOUD].links().filter(|link| link.is_ended()).cloned().collect();
        ended.iter().for_each(|link| session.slots[CLOUD].remove(link));
    }

    /// The kernel gives up a TCP connection whose path is dead for long.
    fn watch_connections(&mut self) {
        for place in self.live_connections.clone() {
            let is_dead = !self.passes(&self.connections[place]);
            let connection = &mut self.connections[place];
            if !is_dead || connection.is_udp {
                connection.dead_since = None;
                continue;
            }
            let since = *connection.dead_since.get_or_insert(self.now);
            if self.now - since >= UNACKNOWLEDGED_MAX {
                let lost = |end: &LinkEnd| end.0.borrow_mut().handle_lost("not acknowledged".to_owned());
                connection.ends.iter().for_each(lost);
            }
        }
    }

    // The applications.

    fn open_streams(&mut self) {
        if self.live_streams.len() >= STREAMS_MAX || !self.random.one_in(4) {
            return;
        }
        let opener = self.random.below(2) as usize;
        let Some(number) = self.session_at(opener) else { return };
        let session = &self.sessions[number];
        // As `Link::open_stream`: the attached link, or the primary one if that died a moment ago.
        let attached = session.slots[opener].attached().filter(|link| !link.is_ended()).cloned();
        let link = attached.unwrap_or_else(|| session.primary.ends[opener].clone());
        let is_its = |place: &&usize| self.connections[**place].ends[opener].is_same(&link);
        let Some(place) = self.live_connections.iter().find(is_its).copied() else { return };
        let number_bytes = Bytes::copy_from_slice(&(self.streams.len() as u64).to_be_bytes());
        let opened = link.0.borrow_mut().open(number_bytes, StreamPriority::Normal);
        let Ok(Some(id)) = opened else { return };
        match self.connections[place].is_udp {
            true => self.seen.streams_on_quic += 1,
            false => self.seen.streams_on_tcp += 1,
        }
        self.live_streams.push(self.streams.len());
        self.streams.push(Stream {
            session: number,
            connection: place,
            opener,
            id,
            written: [0; 2],
            read: [0; 2],
            is_finished: [false; 2],
            is_accepted: false,
            is_gone: [false; 2],
        });
    }

    fn write_streams(&mut self, is_trouble: bool) {
        for place in self.live_streams.clone() {
            for end in ENDS {
                let stream = &mut self.streams[place];
                let is_writer = end == stream.opener || stream.is_accepted;
                if !is_writer || stream.is_finished[end] || stream.is_gone[end] {
                    continue;
                }
                let mux = &self.connections[stream.connection].ends[end].0;
                if !is_trouble || self.random.one_in(60) {
                    stream.is_finished[end] = mux.borrow_mut().finish(stream.id).is_ok();
                    continue;
                }
                if !self.random.one_in(8) {
                    continue;
                }
                let length = self.random.below(WRITE_BYTES_MAX);
                let data: Vec<u8> =
                    (0..length).map(|at| byte_of(place, end, stream.written[end] + at)).collect();
                let wrote = mux.borrow_mut().poll_write(stream.id, &data, Waker::noop());
                if let Poll::Ready(Ok(count)) = wrote {
                    stream.written[end] += count as u64;
                }
            }
        }
    }

    /// Moves what each connection has to send, and accepts streams.
    fn move_bytes(&mut self) {
        for place in self.live_connections.clone() {
            if !self.passes(&self.connections[place]) {
                continue;
            }
            let connection = self.connections[place].clone();
            for end in ENDS {
                let (from, to) = (&connection.ends[end], &connection.ends[1 - end]);
                let mut batch = WriteBatch::default();
                from.0.borrow_mut().fill(&mut batch, BYTES_PER_STEP, self.now);
                if !batch.is_empty() && !to.is_ended() {
                    let used = to.0.borrow_mut().handle_bytes(&bytes_of(&batch), self.now);
                    debug_assert_eq!(used, batch.len(), "whole frames");
                }
                if connection.is_udp && !from.is_ended() {
                    self.sessions[connection.session].heard[1 - end] = self.now;
                }
                while let Ok(Some((_, header))) = to.0.borrow_mut().accept() {
                    let number = u64::from_be_bytes(header[..].try_into().expect("eight bytes"));
                    self.streams[number as usize].is_accepted = true;
                }
            }
        }
    }

    fn read_streams(&mut self) -> Result<(), String> {
        for place in self.live_streams.clone() {
            for end in ENDS {
                let stream = &self.streams[place];
                if stream.is_gone[end] || !(end == stream.opener || stream.is_accepted) {
                    continue;
                }
                self.read_stream(place, end)?;
            }
        }
        Ok(())
    }

    fn read_stream(&mut self, place: usize, end: usize) -> Result<(), String> {
        let stream = &mut self.streams[place];
        let mux = self.connections[stream.connection].ends[end].0.clone();
        loop {
            let read = mux.borrow_mut().poll_read(
                stream.id,
                Waker::noop(),
                || self.now,
                |queue| queue.pop(usize::MAX),
            );
            match read {
                Poll::Ready(Ok(Some(Some(bytes)))) => {
                    let is_open = self.sessions[stream.session].is_open[end];
                    if !is_open {
                        return Err(format!("stream {place} delivers after its session has ended"));
                    }
                    for byte in &bytes[..] {
                        if *byte != byte_of(place, 1 - end, stream.read[end]) {
                            return Err(format!("stream {place}: byte {} is another one", stream.read[end]));
                        }
                        stream.read[end] += 1;
                    }
                    self.seen.bytes += bytes.len() as u64;
                    if stream.read[end] > stream.written[1 - end] {
                        return Err(format!("stream {place}: more bytes than were written"));
                    }
                }
                Poll::Pending => return Ok(()),
                // The end, in order: nothing may be missing before it.
                Poll::Ready(Ok(_)) => {
                    if stream.read[end] != stream.written[1 - end] {
                        return Err(format!(
                            "stream {place} ended after {} of {} bytes",
                            stream.read[end],
                            stream.written[1 - end]
                        ));
                    }
                    // On a link that has ended, nothing can be written any more.
                    let is_ended = mux.borrow().ended().is_some();
                    if stream.is_finished[end] || is_ended {
                        self.leave(place, end);
                    }
                    return Ok(());
                }
                Poll::Ready(Err(_)) => {
                    self.leave(place, end);
                    return Ok(());
                }
            }
        }
    }

    fn leave(&mut self, place: usize, end: usize) {
        let stream = &mut self.streams[place];
        stream.is_gone[end] = true;
        let mut mux = self.connections[stream.connection].ends[end].0.borrow_mut();
        mux.drop_send(stream.id);
        mux.drop_recv(stream.id);
    }

    // The invariants.

    /// Nothing outlives its session: where an end has closed it, every connection of the session is over at that end.
    fn check_ended(&self) -> Result<(), String> {
        for place in &self.live_connections {
            let connection = &self.connections[*place];
            for end in ENDS {
                let is_open = self.sessions[connection.session].is_open[end];
                // A link that the cloud has not attached, or that was closed before, is over as well.
                if !is_open && !connection.ends[end].is_ended() {
                    return Err(format!("connection {place} outlives its session at end {end}"));
                }
            }
        }
        Ok(())
    }

    /// In the end there is one session with one connection, and no stream is left.
    fn check_calm(&self) -> Result<(), String> {
        let Some(number) = self.session_at(EDGE).filter(|number| self.session_at(CLOUD) == Some(*number))
        else {
            return Err("there is no session after the calm".to_owned());
        };
        for end in ENDS {
            let links = self.sessions[number].slots[end].links().count();
            if links > 0 {
                return Err(format!("end {end} holds {links} secondary links on an idle session"));
            }
        }
        match (self.live_connections.len(), self.live_streams.len()) {
            (1, 0) => Ok(()),
            (connections, streams) => {
                Err(format!("{connections} connections and {streams} streams are open on an idle session"))
            }
        }
    }
}

fn byte_of(stream: usize, writer: usize, position: u64) -> u8 {
    let mixed =
        (stream as u64 * 2 + writer as u64).wrapping_mul(0x9e37_79b9) ^ position.wrapping_mul(0x85eb_ca6b);
    (mixed >> 13) as u8
}

fn bytes_of(batch: &WriteBatch) -> Vec<u8> {
    let mut slices = vec![std::io::IoSlice::new(&[]); 4096];
    let count = batch.slices(&mut slices);
    let bytes = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
    assert_eq!(bytes.len(), batch.len(), "more parts than slices");
    bytes
}
