//! Decides on which I/O thread one direction of a relayed stream runs.
//!
//! Input: the bytes of each turn. Output: the side, and when it changes. On the thread of the source link a small message needs no
//! wake of another thread, and the messages of many streams reach the destination link in one batch. On the thread of the
//! destination link bytes queue in the receive window of the source link, so that neither link waits for the other.
//! Measured in `docs/benchmarks.md`: bulk is half as fast again on the destination's thread, small requests are a third faster
//! on the source's.

/// The link on whose thread a direction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelaySide {
    /// The link that is read.
    Source,
    /// The link that is written.
    Destination,
}

/// A turn with this many bytes, two full frames of a TCP link, is one of a bulk transfer.
const BULK_TURN_BYTES: usize = 32 * 1000;
/// A turn with fewer bytes is a small message. A full QUIC packet of a bulk transfer that keeps up is none.
const SMALL_TURN_BYTES: usize = 1000;
/// Turns of the other kind in a row after which a direction moves. A move costs about as much as waking a thread twice.
const MOVING_TURNS: u32 = 8;

/// The side of one direction, and the turns that speak for the other one.
#[derive(Debug)]
pub(super) struct RelayPlacement {
    side: RelaySide,
    contrary_turns: u32,
}

impl RelayPlacement {
    /// A stream begins with small messages: a request, a handshake.
    pub(super) fn new() -> RelayPlacement {
        RelayPlacement { side: RelaySide::Source, contrary_turns: 0 }
    }

    pub(super) fn side(&self) -> RelaySide {
        self.side
    }

    /// Handles a turn that carried `bytes`. Returns whether the side has changed.
    pub(super) fn handle_turn(&mut self, bytes: usize) -> bool {
        let (is_contrary, other) = match self.side {
            RelaySide::Source => (bytes >= BULK_TURN_BYTES, RelaySide::Destination),
            RelaySide::Destination => (bytes < SMALL_TURN_BYTES, RelaySide::Source),
        };
        self.contrary_turns = if is_contrary { self.contrary_turns + 1 } else { 0 };
        let moves = self.contrary_turns >= MOVING_TURNS;
        if moves {
            *self = RelayPlacement { side: other, contrary_turns: 0 };
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The side after turns with these bytes, and the number of moves.
    fn after(turns: impl IntoIterator<Item = usize>) -> (RelaySide, usize) {
        let mut placement = RelayPlacement::new();
        let moves = turns.into_iter().filter(|bytes| placement.handle_turn(*bytes)).count();
        (placement.side(), moves)
    }

    #[test]
    fn small_messages_stay_with_the_source_and_bulk_moves_once() {
        let row = |bytes: usize| std::iter::repeat_n(bytes, 1000);
        assert_eq!(after(row(200)), (RelaySide::Source, 0));
        assert_eq!(after(row(16 * 1024)), (RelaySide::Source, 0), "single frames");
        assert_eq!(after(row(128 * 1024)), (RelaySide::Destination, 1));
        // The thread of the destination sees single frames of a fast source.
        assert_eq!(after(row(64 * 1024).chain(row(16 * 1024))), (RelaySide::Destination, 1));
        assert_eq!(after(row(64 * 1024).chain(row(200))), (RelaySide::Source, 2));
    }

    #[test]
    fn a_mixture_does_not_move_to_and_fro() {
        let turns = (0..1000).map(|turn| if turn % 5 == 0 { 200 } else { 128 * 1024 });
        assert_eq!(after(turns), (RelaySide::Source, 0));
        let begun = std::iter::repeat_n(128 * 1024, 20);
        let mixed = (0..1000).map(|turn| if turn % 5 == 0 { 128 * 1024 } else { 200 });
        assert_eq!(after(begun.chain(mixed)), (RelaySide::Destination, 1));
    }
}
