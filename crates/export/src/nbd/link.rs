//! The server's hold on a connection, and the watch for peers that do not move.

use std::cell::Cell;
use std::rc::Rc;

use voltier_ring::{Stream, WakerCell};

/// Looks at a connection in the time that a peer has to move a byte.
pub(super) const LOOKS_PER_STALL: u64 = 4;

/// The server's hold on a connection.
pub(super) struct Link {
    pub(super) stream: Stream,
    ending: Cell<bool>,
    leaving: Cell<bool>,
    /// The handshake is over.
    greeted: Cell<bool>,
    pub(super) reader: WakerCell,
    /// The server waits for the peer to take what it asked for.
    pub(super) sending: Direction,
    /// The server waits for the rest of what the peer has begun to send.
    pub(super) receiving: Direction,
}

impl Link {
    /// A hold; `watch` wakes the task that looks at connections.
    pub(super) fn new(stream: Stream, watch: &Rc<WakerCell>) -> Self {
        Self {
            stream,
            ending: Cell::new(false),
            leaving: Cell::new(false),
            greeted: Cell::new(false),
            reader: WakerCell::default(),
            sending: Direction::new(watch.clone()),
            receiving: Direction::new(watch.clone()),
        }
    }

    /// Takes no further request; what is in flight finishes and is answered.
    pub(super) fn end(&self) {
        self.ending.set(true);
        self.reader.wake();
    }

    /// Whether no further request is taken.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Takes no further request once the handshake is over: another server goes on from there.
    pub(super) fn leave(&self) {
        self.leaving.set(true);
        self.reader.wake();
    }

    /// Whether another server is to go on.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// The handshake is over.
    pub(super) fn greet(&self) {
        self.greeted.set(true);
    }

    /// Whether the handshake is over.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted.get()
    }

    /// Cuts the connection; what is in flight finishes unanswered.
    pub(super) fn abort(&self) {
        self.end();
        self.stream.shutdown();
    }

    /// Whether the server waits for the peer.
    pub(super) fn waits(&self) -> bool {
        self.sending.waits.get() || self.receiving.waits.get()
    }

    /// Looks at the connection; true when the peer has not moved for too many looks.
    pub(super) fn is_stalled(&self) -> bool {
        let (sending, receiving) = (self.sending.look(), self.receiving.look());
        sending || receiving
    }
}

/// One direction of a connection. Requests only set two cells here: the clock is read by the looks.
pub(super) struct Direction {
    waits: Cell<bool>,
    moves: Cell<u64>,
    /// Of the last look: the moves then, and the looks since they grew.
    looked: Cell<(u64, u64)>,
    watch: Rc<WakerCell>,
}

impl Direction {
    fn new(watch: Rc<WakerCell>) -> Self {
        let (waits, moves, looked) = (Cell::new(false), Cell::new(0), Cell::new((0, 0)));
        Self { waits, moves, looked, watch }
    }

    /// The server waits for the peer from now on.
    pub(super) fn begin(&self) {
        self.waits.set(true);
        self.watch.wake();
    }

    /// The peer has moved, and the server waits no more.
    pub(super) fn end(&self) {
        self.waits.set(false);
        self.moves.set(self.moves.get() + 1);
    }

    fn look(&self) -> bool {
        let (moves, (seen, looks)) = (self.moves.get(), self.looked.get());
        let looks = if self.waits.get() && moves == seen { looks + 1 } else { 0 };
        self.looked.set((moves, looks));
        // The first look may come right after the begin.
        looks > LOOKS_PER_STALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_peer_that_is_waited_for_and_does_not_move_is_stalled() {
        let direction = Direction::new(Rc::default());
        let looks = |count: u64| (0..count).any(|_| direction.look());
        assert!(!looks(20), "nobody waits");
        direction.begin();
        assert!(!looks(4));
        direction.end();
        direction.begin();
        assert!(!looks(5), "it has moved between two looks");
        assert!(looks(1));
        direction.end();
        assert!(!looks(20));
    }
}
