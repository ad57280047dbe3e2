//! The frames of the TCP transport, and the mux that handles them.
//!
//! The bytes of a peer arrive in pieces while this end opens, reads, writes and closes. Invariants: no panic,
//! no endless loop, never more streams, bytes or answers held than the bound, and the bytes that this end
//! sends can be parsed.
#![no_main]

use std::io::IoSlice;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use causeway_channel::link::{LinkLimits, ResetCode, LinkSide};
use causeway_channel::tcp::frame::parse;
use causeway_channel::tcp::mux::{WriteBatch, StreamPriority, Mux};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let limits = LinkLimits { streams_max: 32, ..LinkLimits::default() };
    // The first byte decides whether the peer is admitted from the beginning, or never, or after some frames.
    let admission = data.first().map_or(0, |byte| usize::from(byte % 8));
    let mut mux = match admission {
        0 => Mux::new(LinkSide::Accepted, &limits, now),
        _ => Mux::pending(LinkSide::Accepted, &limits, now),
    };
    let (mut inbox, mut ids) = (Vec::new(), Vec::new());
    for (number, piece) in data.chunks(37).enumerate() {
        if number == admission {
            mux.admit(None);
        }
        inbox.extend_from_slice(piece);
        let used = mux.handle_bytes(&inbox, now);
        inbox.drain(..used);
        assert!(mux.held_bytes() <= mux.held_bytes_max());
        assert!(mux.held_counts().iter().all(|(held, held_max)| held <= held_max));
        // Sometimes this end does not accept, and the peer reads nothing.
        if piece[0] < 128 {
            while let Ok(Some((id, _))) = mux.accept() {
                ids.push(id);
            }
        }
        act(&mut mux, &mut ids, piece[0], now);
        if piece[0] % 3 != 0 {
            send(&mut mux, now);
        }
    }
    while let Ok(Some((id, _))) = mux.accept() {
        ids.push(id);
    }
    for id in ids {
        mux.drop_send(id);
        mux.drop_recv(id);
    }
    send(&mut mux, now);
});

/// An action of a user of the link.
fn act(mux: &mut Mux, ids: &mut Vec<u32>, choice: u8, now: Instant) {
    if choice % 8 == 0 {
        ids.extend(mux.open(Bytes::from_static(b"header"), StreamPriority::Normal).ok().flatten());
    }
    let Some(id) = ids.get(usize::from(choice) % ids.len().max(1)).copied() else { return };
    match choice % 8 {
        1 => drop(mux.poll_read(id, Waker::noop(), || now, |queue| queue.pop(100))),
        2 => drop(mux.poll_write(id, &[choice; 3000], Waker::noop())),
        3 => drop(mux.finish(id)),
        4 => mux.reset(id, ResetCode::Timeout),
        5 => mux.stop(id, ResetCode::Refused),
        _ => {}
    }
}

fn send(mux: &mut Mux, now: Instant) {
    let (mut batch, mut wire) = (WriteBatch::default(), Vec::new());
    mux.fill(&mut batch, 64 * 1024, now);
    while !batch.is_empty() {
        let mut slices = [IoSlice::new(&[]); 4];
        let count = batch.slices(&mut slices);
        let before = wire.len();
        slices[..count].iter().for_each(|slice| wire.extend_from_slice(slice));
        batch.advance(wire.len() - before);
    }
    let mut rest = &wire[..];
    while !rest.is_empty() {
        let (_, length) = parse(rest).expect("we send what can be parsed").expect("and only whole frames");
        rest = &rest[length..];
    }
}
