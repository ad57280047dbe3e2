//! Two muxes connected without a socket: rows for each rule, and a model for the whole.

use std::io::IoSlice;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::link::ResetCode;
use crate::tcp::frame::{Frame, PAYLOAD_BYTES_MAX, parse};

/// One end, and the bytes in flight from it.
struct End {
    mux: Mux,
    wire: Vec<u8>,
    inbox: Vec<u8>,
}

impl End {
    fn new(side: LinkSide, limits: &LinkLimits) -> End {
        End { mux: Mux::new(side, limits, Instant::now()), wire: Vec::new(), inbox: Vec::new() }
    }

    /// Sends the frames of one small batch.
    fn send(&mut self, bytes_max: usize, now: Instant) {
        let mut batch = WriteBatch::default();
        self.mux.fill(&mut batch, bytes_max, now);
        while !batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = batch.slices(&mut slices);
            let before = self.wire.len();
            slices[..count].iter().for_each(|slice| self.wire.extend_from_slice(slice));
            batch.advance(self.wire.len() - before);
        }
    }

    fn receive(&mut self, bytes: &[u8], now: Instant) {
        self.inbox.extend_from_slice(bytes);
        let used = self.mux.handle_bytes(&self.inbox, now);
        self.inbox.drain(..used);
    }

    fn open(&mut self) -> u32 {
        self.mux.open(Bytes::from_static(b"header"), StreamPriority::Normal).unwrap().expect("there is room")
    }

    fn write(&mut self, id: u32, data: &[u8]) -> Poll<Result<usize, StreamFailure>> {
        self.mux.poll_write(id, data, Waker::noop())
    }

    /// Writes as much as this end takes.
    fn write_all(&mut self, id: u32) -> usize {
        let mut written = 0;
        while let Poll::Ready(Ok(count)) = self.write(id, &[7; 10_000]) {
            written += count;
        }
        written
    }

    fn read(&mut self, id: u32, max: usize, now: Instant) -> Poll<Result<Option<Bytes>, StreamFailure>> {
        self.mux.poll_read(id, Waker::noop(), || now, |queue| queue.pop(max)).map_ok(Option::flatten)
    }

    fn read_all(&mut self, id: u32, now: Instant) -> usize {
        let mut read = 0;
        while let Poll::Ready(Ok(Some(bytes))) = self.read(id, 100_000, now) {
            read += bytes.len();
        }
        read
    }

    fn drop_both(&mut self, id: u32) {
        self.mux.drop_send(id);
        self.mux.drop_recv(id);
    }
}

struct Pair {
    edge: End,
    cloud: End,
    now: Instant,
}

impl Pair {
    fn new() -> Pair {
        // A thousand streams, so that the bounds are soon reached.
        Pair::with(&LinkLimits { streams_max: 1024, ..LinkLimits::default() })
    }

    fn with(limits: &LinkLimits) -> Pair {
        let (edge, cloud) = (End::new(LinkSide::Dialled, limits), End::new(LinkSide::Accepted, limits));
        Pair { edge, cloud, now: Instant::now() }
    }

    fn move_some(&mut self, is_from_edge: bool, bytes_max: usize) -> usize {
        let (from, to) = match is_from_edge {
            true => (&mut self.edge, &mut self.cloud),
            false => (&mut self.cloud, &mut self.edge),
        };
        from.send(bytes_max, self.now);
        let bytes: Vec<u8> = from.wire.drain(..from.wire.len().min(bytes_max)).collect();
        to.receive(&bytes, self.now);
        to.mux.check();
        from.mux.check();
        bytes.len()
    }

    /// Runs until neither end has data to send.
    fn run_until_idle(&mut self) {
        while self.move_some(true, 64 * 1024) + self.move_some(false, 64 * 1024) > 0 {}
    }

    /// Opens a stream from the edge that the cloud has accepted.
    fn stream(&mut self) -> u32 {
        let id = self.edge.open();
        self.run_until_idle();
        let (accepted, header) = self.cloud.mux.accept().unwrap().expect("it has arrived");
        assert_eq!((accepted, &header[..]), (id, &b"header"[..]));
        id
    }

    fn ended(&self) -> (Option<CloseCode>, Option<CloseCode>) {
        let code = |end: &End| end.mux.ended().map(|closed| closed.reason.code);
        (code(&self.edge), code(&self.cloud))
    }
}

#[test]
fn bytes_arrive_and_both_directions_end_on_their_own() {
    let mut pair = Pair::new();
    let id = pair.stream();
    assert_eq!(pair.edge.write(id, b"question"), Poll::Ready(Ok(8)));
    pair.edge.mux.finish(id).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.cloud.read(id, 100, pair.now), Poll::Ready(Ok(Some(Bytes::from_static(b"question")))));
    assert_eq!(pair.cloud.read(id, 100, pair.now), Poll::Ready(Ok(None)));
    assert_eq!(pair.cloud.write(id, b"answer"), Poll::Ready(Ok(6)));
    pair.cloud.mux.finish(id).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.edge.read(id, 3, pair.now), Poll::Ready(Ok(Some(Bytes::from_static(b"ans")))));
    assert_eq!(pair.edge.read(id, 100, pair.now), Poll::Ready(Ok(Some(Bytes::from_static(b"wer")))));
    assert_eq!(pair.edge.read(id, 100, pair.now), Poll::Ready(Ok(None)));
    assert_eq!(pair.edge.mux.stats().streams_open, 0);
    pair.edge.drop_both(id);
    pair.cloud.drop_both(id);
    assert!(pair.edge.mux.streams.is_empty() && pair.cloud.mux.streams.is_empty());
    assert!(!pair.edge.mux.outgoing.has_work());
}

#[test]
fn a_stream_that_is_not_read_holds_its_credit_and_no_other_stream() {
    let mut pair = Pair::new();
    let (stuck, moving) = (pair.stream(), pair.stream());
    for _ in 0..20 {
        pair.edge.write_all(stuck);
        pair.run_until_idle();
    }
    assert_eq!(pair.cloud.mux.streams[&stuck].recv.queue.len(), INITIAL_CREDIT as usize);
    let (mut sent, mut arrived) = (0, 0);
    for _ in 0..200 {
        sent += pair.edge.write_all(moving);
        pair.run_until_idle();
        arrived += pair.cloud.read_all(moving, pair.now);
        pair.run_until_idle();
    }
    assert!(arrived > 20_000_000 && sent - arrived < 300_000, "{sent} sent, {arrived} arrived");
    assert_eq!(pair.ended(), (None, None));
}

#[test]
fn the_window_of_a_quick_reader_grows_and_that_of_a_slow_one_does_not() {
    let check = |pause: Duration, at_least: u64, at_most: u64| {
        let mut pair = Pair::new();
        let id = pair.stream();
        for _ in 0..100 {
            pair.edge.write_all(id);
            pair.run_until_idle();
            pair.cloud.read_all(id, pair.now);
            pair.run_until_idle();
            pair.now += pause;
        }
        let committed = pair.cloud.mux.committed;
        assert!((at_least..=at_most).contains(&committed), "{pause:?}: {committed}");
    };
    check(Duration::from_millis(100), WINDOW_BYTES_MAX / 2, WINDOW_BYTES_MAX);
    check(Duration::from_secs(3), 0, 2 * u64::from(INITIAL_CREDIT));
}

#[test]
fn the_window_of_a_busy_relay_grows_although_it_never_reads_all() {
    let check = |pause: Duration, at_least: u64, at_most: u64| {
        let mut pair = Pair::new();
        let id = pair.stream();
        for _ in 0..200 {
            pair.edge.write_all(id);
            pair.run_until_idle();
            // Some bytes are always left, as in a relay whose other link is as fast as this one.
            while pair.cloud.mux.streams[&id].recv.queue.len() > 8 * 1024 {
                assert!(pair.cloud.read(id, 4 * 1024, pair.now).is_ready());
            }
            pair.run_until_idle();
            pair.now += pause;
        }
        let committed = pair.cloud.mux.committed;
        assert!((at_least..=at_most).contains(&committed), "{pause:?}: {committed}");
    };
    check(Duration::from_millis(1), 256 * 1024, 512 * 1024);
    // A slow one holds no more than at first.
    check(Duration::from_millis(100), 0, 2 * u64::from(INITIAL_CREDIT));
}

#[test]
fn a_thousand_stuck_streams_stay_within_the_bound_and_one_more_moves() {
    let mut pair = Pair::new();
    let moving = pair.stream();
    let stuck: Vec<u32> = (1..1024).map(|_| pair.stream()).collect();
    for _ in 0..8 {
        for id in &stuck {
            pair.edge.write_all(*id);
        }
        pair.run_until_idle();
    }
    let held: usize = pair.cloud.mux.streams.values().map(|stream| stream.recv.queue.len()).sum();
    assert!(held <= 64 * 1024 * 1024, "{held}");
    let waiting = pair.edge.mux.waiting;
    assert!(waiting <= 24 * 1024 * 1024, "{waiting}");
    let mut arrived = 0;
    for _ in 0..50 {
        pair.edge.write_all(moving);
        pair.run_until_idle();
        arrived += pair.cloud.read_all(moving, pair.now);
        pair.run_until_idle();
    }
    assert!(arrived > 1_000_000, "{arrived}");
    // The limit is reached: the next one waits until one is over.
    assert_eq!(pair.edge.mux.open(Bytes::new(), StreamPriority::Normal), Ok(None));
    pair.edge.drop_both(stuck[0]);
    pair.cloud.drop_both(stuck[0]);
    pair.run_until_idle();
    assert!(pair.edge.mux.signals.stream_credit);
    assert!(pair.edge.mux.open(Bytes::new(), StreamPriority::Normal).unwrap().is_some());
    assert_eq!(pair.ended(), (None, None));
}

#[test]
fn links_of_one_peer_share_the_bound_of_their_unread_bytes() {
    let max = 3 * u64::from(INITIAL_CREDIT) + 1000;
    let budget = ReceiveBudget::new(max);
    let (mut one, mut other) = (Pair::new(), Pair::new());
    for pair in [&mut one, &mut other] {
        pair.cloud.mux.admit(Some(&budget));
    }
    let stuck: Vec<u32> = (0..3).map(|_| one.stream()).collect();
    for id in &stuck {
        one.edge.write_all(*id);
    }
    one.run_until_idle();
    assert_eq!(budget.used_bytes(), max - 1000);

    let (control, cut) = (other.stream(), other.stream());
    other.cloud.mux.set_class(control, StreamPriority::Urgent);
    other.edge.write_all(cut);
    other.run_until_idle();
    assert!(budget.used_bytes() <= max, "{}", budget.used_bytes());
    let limit = Err(StreamFailure::Reset(ResetCode::Limit));
    assert_eq!(other.cloud.read(cut, 100, other.now), Poll::Ready(limit.clone().map(|()| None)));
    assert!(matches!(other.cloud.write(cut, b"x"), Poll::Ready(Err(_))));
    assert_eq!(other.edge.write(cut, b"more"), Poll::Ready(limit.clone().map(|()| 0)));
    assert_eq!(other.edge.read(cut, 100, other.now), Poll::Ready(limit.map(|()| None)));
    // The control stream goes on, and so does everything once the bytes were read.
    other.edge.write_all(control);
    other.run_until_idle();
    assert_eq!(other.cloud.read_all(control, other.now), INITIAL_CREDIT as usize);
    assert_eq!(one.cloud.read_all(stuck[0], one.now), INITIAL_CREDIT as usize);
    let again = other.stream();
    assert_eq!(other.edge.write(again, &[7; 10_000]), Poll::Ready(Ok(10_000)));
    other.run_until_idle();
    assert_eq!(other.cloud.read_all(again, other.now), 10_000);
    assert_eq!((one.ended(), other.ended()), ((None, None), (None, None)));
    drop((one, other));
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_reset_a_stop_and_a_dropped_half_reach_the_other_end() {
    let mut pair = Pair::new();
    let id = pair.stream();
    pair.edge.write_all(id);
    pair.edge.mux.reset(id, ResetCode::NoRoute);
    pair.run_until_idle();
    assert_eq!(
        pair.cloud.read(id, 100, pair.now),
        Poll::Ready(Err(StreamFailure::Reset(ResetCode::NoRoute)))
    );
    pair.edge.mux.stop(id, ResetCode::Limit);
    pair.run_until_idle();
    assert_eq!(pair.cloud.mux.poll_stopped(id, Waker::noop()), Poll::Ready(ResetCode::Limit));
    assert_eq!(pair.cloud.write(id, b"more"), Poll::Ready(Err(StreamFailure::Reset(ResetCode::Limit))));
    assert_eq!(pair.edge.mux.stats().streams_open, 0, "a stop is answered with a reset");
    pair.edge.drop_both(id);
    pair.cloud.drop_both(id);

    let id = pair.stream();
    pair.edge.write_all(id);
    pair.run_until_idle();
    pair.edge.drop_both(id);
    pair.run_until_idle();
    assert_eq!(
        pair.cloud.read(id, 100, pair.now),
        Poll::Ready(Err(StreamFailure::Reset(ResetCode::Abandoned)))
    );
    assert_eq!(pair.cloud.write(id, b"x"), Poll::Ready(Err(StreamFailure::Reset(ResetCode::Abandoned))));
    pair.cloud.drop_both(id);
    assert!(pair.edge.mux.streams.is_empty() && pair.cloud.mux.streams.is_empty());
    assert_eq!(pair.ended(), (None, None));
}

#[test]
fn who_is_urgent_goes_first_and_bulk_gets_one_turn_in_five() {
    let mut pair = Pair::new();
    pair.run_until_idle();
    let mut open = |class| pair.edge.mux.open(Bytes::new(), class).unwrap().unwrap();
    let (bulk, one, other, urgent) = (
        open(StreamPriority::Bulk),
        open(StreamPriority::Normal),
        open(StreamPriority::Normal),
        open(StreamPriority::Urgent),
    );
    for id in [bulk, one, other, urgent] {
        pair.edge.write_all(id);
    }
    let mut wire = Vec::new();
    for _ in 0..3 {
        pair.edge.send(64 * 1024, pair.now);
        wire.append(&mut pair.edge.wire);
    }
    let (mut order, mut rest) = (Vec::new(), &wire[..]);
    while let Some((frame, length)) = parse(rest).unwrap() {
        if let Frame::Data { stream, .. } = frame {
            order.push(stream);
        }
        rest = &rest[length..];
    }
    assert!(order.iter().take(4).all(|id| *id == urgent), "{order:?}");
    let count = |id| order.iter().skip(4).filter(|other| **other == id).count();
    assert!(count(one).abs_diff(count(other)) <= 1, "{order:?}");
    assert!((1..=2).contains(&count(bulk)), "{order:?}");
}

#[test]
fn stream_numbers_come_round_and_pass_over_what_is_open() {
    for (side, last) in [(LinkSide::Dialled, u32::MAX), (LinkSide::Accepted, u32::MAX - 1)] {
        let mut end = End::new(side, &LinkLimits::default());
        let first = end.open();
        end.mux.next_stream = last;
        assert_eq!(end.open(), last);
        assert_eq!(end.open(), first + 2, "the first is still open");
    }
}

#[test]
fn a_ping_is_answered_and_gives_the_round_trip() {
    let mut pair = Pair::new();
    pair.run_until_idle();
    let number = pair.edge.mux.ping();
    pair.edge.send(1000, pair.now);
    pair.now += Duration::from_millis(80);
    pair.run_until_idle();
    assert_eq!(pair.edge.mux.pong(number), Ok(Some(Duration::from_millis(80))));
    assert_eq!(pair.edge.mux.rtt(), Some(Duration::from_millis(10)), "smoothed with the first, of 0 ms");
}

#[test]
fn the_reason_of_a_close_is_told_and_everybody_is_let_go() {
    let mut pair = Pair::new();
    let id = pair.stream();
    pair.edge.write_all(id);
    pair.cloud.mux.close(CloseReason::new(CloseCode::Revoked, "no\nmore"));
    pair.run_until_idle();
    let closed = LinkClosed::new(ClosedBy::Peer, CloseCode::Revoked, "nomore");
    assert_eq!(pair.edge.mux.ended(), Some(&closed));
    assert!(pair.edge.mux.take_due(&mut Vec::new()).1.ended);
    assert_eq!(pair.edge.read(id, 1, pair.now), Poll::Ready(Err(StreamFailure::Link(closed.clone()))));
    assert_eq!(pair.edge.write(id, b"x"), Poll::Ready(Err(StreamFailure::Link(closed.clone()))));
    assert_eq!(pair.edge.mux.accept(), Err(closed));
    pair.edge.drop_both(id);
    assert!(pair.edge.mux.streams.is_empty());
}

#[test]
fn a_peer_that_breaks_a_rule_is_cut_off_with_a_reason() {
    let data = |stream, bytes, fin| Frame::Data { stream, bytes, fin };
    let open = |stream| Frame::Open { stream, credit: 0, header: b"" };
    let full = [0; PAYLOAD_BYTES_MAX];
    let check = |frames: &[Frame<'_>]| {
        let limits = LinkLimits { streams_max: 1024, ..LinkLimits::default() };
        let mut cloud = End::new(LinkSide::Accepted, &limits);
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        cloud.receive(&bytes, Instant::now());
        cloud.mux.check();
        let closed = cloud.mux.ended().unwrap_or_else(|| panic!("{frames:?} passed"));
        assert_eq!((closed.by, closed.reason.code), (ClosedBy::Us, CloseCode::Malformed));
        cloud.send(1000, Instant::now());
        assert!(
            matches!(parse(&cloud.wire), Ok(Some((Frame::Close { code: 5, .. }, _)))),
            "the peer is told"
        );
    };
    let beyond_credit = [data(1, &full, false); INITIAL_CREDIT as usize / PAYLOAD_BYTES_MAX + 1];
    check(&[&[open(1)], &beyond_credit[..]].concat());
    check(&[open(2)]);
    check(&[open(0)]);
    check(&[open(1), open(1)]);
    check(&[open(1), data(1, b"", true), data(1, b"", false)]);
    check(&[open(1), data(1, b"", true), Frame::Reset { stream: 1, code: 1 }]);
    check(&(0..1025).map(|number| open(number * 2 + 1)).collect::<Vec<_>>());
    let settings = Frame::Settings(LinkSettings::FLOOR);
    check(&[settings, settings]);
}

/// Frames of a stream that is opened and abandoned in both directions at once.
fn opened_and_given_up(id: u32, header: &[u8]) -> [Frame<'_>; 3] {
    [
        Frame::Open { stream: id, credit: 0, header },
        Frame::Reset { stream: id, code: 1 },
        Frame::Stop { stream: id, code: 1 },
    ]
}

fn feed(cloud: &mut End, frames: &[Frame<'_>]) {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.write(&mut bytes));
    cloud.receive(&bytes, Instant::now());
    cloud.mux.check();
}

#[test]
fn a_peer_that_is_not_admitted_opens_one_stream_and_its_datagrams_are_dropped() {
    let pending = || {
        let mux = Mux::pending(LinkSide::Accepted, &LinkLimits::default(), Instant::now());
        End { mux, wire: Vec::new(), inbox: Vec::new() }
    };
    let open = |stream| Frame::Open { stream, credit: 0, header: b"header" };
    let mut cloud = pending();
    feed(&mut cloud, &[open(1), Frame::Datagram(b"early")]);
    assert_eq!((cloud.mux.stats().datagrams_dropped, cloud.mux.ended()), (1, None));
    cloud.mux.admit(None);
    feed(&mut cloud, &[open(3), open(5), Frame::Datagram(b"late")]);
    assert_eq!((cloud.mux.stats().datagrams_dropped, cloud.mux.ended()), (2, None));

    // A second stream is too many, open or ended as the first may be.
    for first_is_dropped in [false, true] {
        let mut cloud = pending();
        feed(&mut cloud, &opened_and_given_up(1, b"header"));
        if first_is_dropped {
            assert_eq!(cloud.mux.accept(), Ok(None), "nobody could use it");
            assert!(cloud.mux.streams.is_empty());
        }
        assert_eq!(cloud.mux.ended(), None);
        feed(&mut cloud, &[open(3)]);
        let closed = cloud.mux.ended().unwrap();
        assert_eq!((closed.by, closed.reason.code), (ClosedBy::Us, CloseCode::Malformed));
    }
}

#[test]
fn a_stream_that_the_peer_gave_up_counts_until_it_is_accepted_and_dropped() {
    let limits = LinkLimits { streams_max: 64, ..LinkLimits::default() };
    let mut cloud = End::new(LinkSide::Accepted, &limits);
    let mut id = 1;
    // As the attack of issue 10 does: nothing is ever accepted.
    for _ in 0..1000 {
        feed(&mut cloud, &opened_and_given_up(id, b"header"));
        cloud.send(64 * 1024, Instant::now());
        id += 2;
    }
    assert_eq!((cloud.mux.streams.len(), cloud.mux.accepted.len(), cloud.mux.peer_open), (72, 72, 0));
    assert_eq!(cloud.mux.stats().streams_refused, 1000 - 72);
    assert_eq!(cloud.mux.ended(), None, "the rest is refused and the link goes on");
    let refused = Frame::Reset { stream: id - 2, code: ResetCode::Limit.into() };
    let mut bytes = Vec::new();
    refused.write(&mut bytes);
    assert!(cloud.wire.windows(bytes.len()).any(|window| window == bytes), "the peer is told");
    // Slots become free when the application calls `accept`.
    assert_eq!(cloud.mux.accept(), Ok(None));
    assert!(cloud.mux.streams.is_empty());
    feed(&mut cloud, &[Frame::Open { stream: id, credit: 0, header: b"header" }]);
    assert_eq!(cloud.mux.accept().unwrap().unwrap().0, id);
    // A stream held by the application counts as well, even if the peer has abandoned it.
    feed(&mut cloud, &opened_and_given_up(id, b"header")[1..]);
    assert_eq!((cloud.mux.peer_open, cloud.mux.peer_held), (0, 1));
    cloud.drop_both(id);
    assert!(cloud.mux.streams.is_empty());
}

#[test]
fn what_a_peer_sent_before_it_wanted_no_answer_is_still_read() {
    let mut cloud = End::new(LinkSide::Accepted, &LinkLimits::default());
    let sent = Frame::Data { stream: 1, bytes: b"word", fin: true };
    let [open, _, stop] = opened_and_given_up(1, b"header");
    feed(&mut cloud, &[open, sent, stop]);
    assert_eq!(cloud.mux.accept().unwrap().unwrap().0, 1);
    assert_eq!(cloud.read(1, 100, Instant::now()), Poll::Ready(Ok(Some("word".into()))));
}

#[test]
fn the_headers_of_streams_that_wait_to_be_accepted_have_a_bound() {
    let mut cloud = End::new(LinkSide::Accepted, &LinkLimits::default());
    let header = [7; crate::link::HEADER_BYTES_MAX];
    for id in (1..4000).step_by(2) {
        feed(&mut cloud, &[Frame::Open { stream: id, credit: 0, header: &header }]);
    }
    assert_eq!(cloud.mux.accepted_bytes, ACCEPTED_BYTES_MAX);
    assert_eq!(cloud.mux.stats().streams_refused, 2000 - (ACCEPTED_BYTES_MAX / header.len()) as u64);
    assert_eq!(cloud.mux.ended(), None);
}

#[test]
fn a_peer_that_causes_answers_and_does_not_read_them_is_cut_off_with_a_reason() {
    let limits = LinkLimits { streams_max: 64, ..LinkLimits::default() };
    // The application accepts and drops at once, or never accepts.
    for accepts in [true, false] {
        let mut cloud = End::new(LinkSide::Accepted, &limits);
        let mut streams = 0;
        while cloud.mux.ended().is_none() {
            assert!(streams < 100_000, "it goes on and on");
            feed(&mut cloud, &opened_and_given_up(streams * 2 + 1, b"header"));
            for (held, held_max) in cloud.mux.held_counts() {
                assert!(held <= held_max, "{held} of {held_max}");
            }
            while let Some((id, _)) = cloud.mux.accept().ok().flatten().filter(|_| accepts) {
                cloud.drop_both(id);
            }
            streams += 1;
        }
        let closed = cloud.mux.ended().unwrap();
        assert_eq!((closed.by, closed.reason.code), (ClosedBy::Us, CloseCode::Limit));
        assert_eq!(cloud.mux.outgoing.control_len(), 0, "nothing is kept of what it did not read");
    }
}

#[test]
fn an_honest_peer_that_does_not_read_for_a_while_keeps_its_link() {
    let limits = LinkLimits { streams_max: 64, ..LinkLimits::default() };
    let mut pair = Pair::with(&limits);
    // All streams of both ends, each reset, stopped and read from, while no byte reaches the edge.
    pair.run_until_idle();
    let own: Vec<u32> = (0..64).map(|_| pair.cloud.open()).collect();
    pair.run_until_idle();
    while pair.edge.mux.accept().unwrap().is_some() {}
    let ids: Vec<u32> = (0..64).map(|_| pair.stream()).collect();
    for id in &ids {
        pair.edge.write_all(*id);
    }
    pair.move_some(true, 64 * 1024 * 1024);
    for id in &ids {
        pair.cloud.read_all(*id, pair.now);
    }
    for id in ids.iter().chain(&own) {
        pair.cloud.drop_both(*id);
        pair.edge.drop_both(*id);
    }
    pair.move_some(true, 64 * 1024 * 1024);
    assert_eq!(pair.ended(), (None, None));
    pair.run_until_idle();
    assert_eq!(pair.ended(), (None, None));
    assert_eq!(pair.edge.mux.own_open, 0, "everything was answered");
}

/// Steps of the model test.
#[derive(Debug, Clone)]
enum Step {
    Open(bool),
    Write(bool, usize, usize),
    Finish(bool, usize),
    Reset(bool, usize),
    Stop(bool, usize),
    Read(bool, usize, usize),
    Drop(bool, usize),
    Move(bool, usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (side, which) = (any::<bool>(), 0..6usize);
    prop_oneof![
        2 => side.prop_map(Step::Open),
        6 => (side, which.clone(), 0..200_000usize).prop_map(|(s, w, n)| Step::Write(s, w, n)),
        1 => (side, which.clone()).prop_map(|(s, w)| Step::Finish(s, w)),
        1 => (side, which.clone()).prop_map(|(s, w)| Step::Reset(s, w)),
        1 => (side, which.clone()).prop_map(|(s, w)| Step::Stop(s, w)),
        8 => (side, which.clone(), 1..200_000usize).prop_map(|(s, w, n)| Step::Read(s, w, n)),
        1 => (side, which).prop_map(|(s, w)| Step::Drop(s, w)),
        8 => (side, 1..100_000usize).prop_map(|(s, n)| Step::Move(s, n)),
        1 => (0..2000u64).prop_map(Step::Wait),
    ]
}

/// Knowledge of one end about a stream in the model.
#[derive(Debug, Default, Clone, Copy)]
struct Half {
    written: usize,
    read: usize,
    is_finished: bool,
    /// Reset, stopped or dropped by one end: the bytes that arrive are a prefix, and no more is promised.
    is_broken: bool,
    is_dropped: bool,
}

fn byte(id: u32, is_edge: bool, at: usize) -> u8 {
    (at as u32).wrapping_mul(31).wrapping_add(id * 2 + u32::from(is_edge)) as u8
}

/// Runs the steps against the model: bytes are read as they were written, in order, and in the end all of
/// them.
fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut pair = Pair::new();
    // Per stream the bytes that [edge, cloud] wrote and that the other end read.
    let mut streams: Vec<(u32, [Half; 2])> = Vec::new();
    for step in steps {
        apply(&mut pair, &mut streams, step)?;
        prop_assert_eq!(pair.ended(), (None, None));
    }
    for index in 0..streams.len() {
        for is_edge in [true, false] {
            apply(&mut pair, &mut streams, &Step::Finish(is_edge, index))?;
        }
    }
    for _ in 0..200 {
        pair.run_until_idle();
        while pair.edge.mux.accept().unwrap().is_some() || pair.cloud.mux.accept().unwrap().is_some() {}
        for index in 0..streams.len() {
            for is_edge in [true, false] {
                apply(&mut pair, &mut streams, &Step::Read(is_edge, index, usize::MAX))?;
            }
        }
    }
    for (id, halves) in &streams {
        for half in halves.iter().filter(|half| !half.is_broken) {
            prop_assert_eq!(half.written, half.read, "stream {} lost bytes", id);
        }
    }
    for index in 0..streams.len() {
        for is_edge in [true, false] {
            apply(&mut pair, &mut streams, &Step::Drop(is_edge, index))?;
        }
    }
    pair.run_until_idle();
    for end in [&pair.edge, &pair.cloud] {
        prop_assert!(end.mux.accepted.is_empty() && end.mux.streams.is_empty(), "{:?}", end.mux.streams);
        prop_assert_eq!(
            (end.mux.committed, end.mux.own_open, end.mux.peer_open + end.mux.peer_held),
            (0, 0, 0)
        );
    }
    Ok(())
}

fn apply(pair: &mut Pair, streams: &mut Vec<(u32, [Half; 2])>, step: &Step) -> Result<(), TestCaseError> {
    let now = pair.now;
    let pick = |is_edge: bool, index: usize, streams: &Vec<(u32, [Half; 2])>| {
        let index = index.checked_rem(streams.len())?;
        let (id, halves) = streams[index];
        let mux = if is_edge { &pair.edge.mux } else { &pair.cloud.mux };
        let (own, peer) = if is_edge { (0, 1) } else { (1, 0) };
        // A stream that has not arrived yet cannot be used there.
        let is_usable = mux.streams.contains_key(&id) && !halves[own].is_dropped;
        is_usable.then_some((index, id, own, peer))
    };
    match *step {
        Step::Open(is_edge) => {
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            if let Some(id) = end.mux.open(Bytes::from_static(b"header"), StreamPriority::Normal).unwrap() {
                streams.push((id, [Half::default(); 2]));
            }
        }
        Step::Write(is_edge, index, count) => {
            let Some((index, id, own, _)) = pick(is_edge, index, streams) else { return Ok(()) };
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            let half = &mut streams[index].1[own];
            let data: Vec<u8> =
                (half.written..half.written + count).map(|at| byte(id, is_edge, at)).collect();
            let mut chunk = Bytes::from(data);
            if let Poll::Ready(Ok(count)) = end.mux.poll_write_chunk(id, &mut chunk, Waker::noop()) {
                prop_assert!(!half.is_finished);
                half.written += count;
            }
        }
        Step::Finish(is_edge, index) => {
            let Some((index, id, own, _)) = pick(is_edge, index, streams) else { return Ok(()) };
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            streams[index].1[own].is_finished |= end.mux.finish(id).is_ok();
        }
        Step::Reset(is_edge, index) => {
            let Some((index, id, own, _)) = pick(is_edge, index, streams) else { return Ok(()) };
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            end.mux.reset(id, ResetCode::Timeout);
            streams[index].1[own].is_broken = true;
        }
        Step::Stop(is_edge, index) => {
            let Some((index, id, _, peer)) = pick(is_edge, index, streams) else { return Ok(()) };
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            end.mux.stop(id, ResetCode::Refused);
            streams[index].1[peer].is_broken = true;
        }
        Step::Read(is_edge, index, max) => {
            let Some((index, id, _, peer)) = pick(is_edge, index, streams) else { return Ok(()) };
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            let half = &mut streams[index].1[peer];
            match end.read(id, max, now) {
                Poll::Ready(Ok(Some(bytes))) => {
                    let wanted: Vec<u8> =
                        (half.read..half.read + bytes.len()).map(|at| byte(id, !is_edge, at)).collect();
                    prop_assert_eq!(&bytes[..], &wanted[..]);
                    half.read += bytes.len();
                }
                Poll::Ready(Ok(None)) => prop_assert!(half.is_finished && half.read == half.written),
                Poll::Ready(Err(_)) => prop_assert!(half.is_broken),
                Poll::Pending => {}
            }
        }
        Step::Drop(is_edge, index) => {
            let Some((index, id, own, _)) = pick(is_edge, index, streams) else { return Ok(()) };
            let end = if is_edge { &mut pair.edge } else { &mut pair.cloud };
            end.drop_both(id);
            let halves = &mut streams[index].1;
            halves[own].is_dropped = true;
            // Queued bytes of a finished direction are still sent; the other direction is discarded.
            halves[own].is_broken |= !halves[own].is_finished;
            halves[1 - own].is_broken = true;
        }
        Step::Move(is_edge, count) => {
            pair.move_some(is_edge, count);
            let end = if is_edge { &mut pair.cloud } else { &mut pair.edge };
            while end.mux.accept().unwrap().is_some() {}
        }
        Step::Wait(milliseconds) => pair.now += Duration::from_millis(milliseconds),
    }
    pair.edge.mux.check();
    pair.cloud.mux.check();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_bytes_arrive_in_order_and_nothing_is_left(steps in prop::collection::vec(step(), 0..120)) {
        run(&steps)?;
    }

    #[test]
    fn no_sequence_of_frames_panics_or_makes_us_hold_more_than_the_bound(
        frames in prop::collection::vec((1u8..12, 0u32..8, 0usize..40, any::<bool>(), any::<u32>()), 0..60)
    ) {
        let mut cloud = End::new(LinkSide::Accepted, &LinkLimits::default());
        let own = cloud.open();
        cloud.write_all(own);
        let mut bytes = Vec::new();
        for (kind, stream, length, flag, value) in frames {
            let payload = vec![kind; length];
            match kind {
                1 => Frame::Open { stream, credit: value, header: &payload },
                2 => Frame::Data { stream, bytes: &payload, fin: flag },
                3 => Frame::Reset { stream, code: value },
                4 => Frame::Stop { stream, code: value },
                5 => Frame::Credit { stream, bytes: value },
                6 => Frame::Datagram(&payload),
                7 => Frame::Ping(u64::from(value)),
                8 => Frame::Pong(u64::from(value)),
                9 => Frame::Close { code: value, text: &payload },
                10 => Frame::Settings(LinkSettings { streams_max: value, initial_credit: value }),
                _ => Frame::Unknown,
            }.write(&mut bytes);
        }
        for piece in bytes.chunks(50) {
            cloud.receive(piece, Instant::now());
            cloud.mux.check();
            cloud.send(10_000, Instant::now());
            prop_assert!(cloud.mux.committed <= cloud.mux.bounds.receive_max);
            prop_assert!(cloud.mux.held_counts().iter().all(|(held, held_max)| held <= held_max));
            while let Ok(Some((id, _))) = cloud.mux.accept() {
                if id % 4 == 1 { cloud.drop_both(id) }
            }
        }
    }
}
