//! Where a command is crashed, and how.

use voltier_block::Prng;

use crate::crash_points::dice_of;
use crate::medium::Cut;

/// How far a command was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Either way is right.
    Begun,
    /// The client was told that the command is done.
    Answered,
}

/// The events of a command that are crash points.
#[derive(Clone, Copy)]
pub(super) struct Points {
    pub(super) seed: u64,
    /// One event in so many: 1 for all, and then by both cuts.
    pub(super) stride: u64,
    /// Only this event.
    pub(super) only: Option<u64>,
}

impl Points {
    /// The cuts at this event, none if the event is no crash point, and its dice.
    pub(super) fn cuts_at(&self, event: u64) -> (Vec<Cut>, Prng) {
        let mut prng = dice_of(self.seed, event);
        let chosen = event % self.stride == self.seed % self.stride.min(4);
        if self.only.map_or(!chosen, |only| only != event) {
            return (Vec::new(), prng);
        }
        let drawn = Cut::draw(&mut prng);
        let both = vec![Cut::Power, Cut::Kill];
        (if self.stride == 1 { both } else { vec![drawn] }, prng)
    }
}

/// Where the recovery from a crash is crashed as well.
pub(super) enum Second {
    /// At one event in so many; recovered from at once.
    Every { stride: u64, seed: u64 },
    /// At one event; recovered from when the recovery has been checked.
    Once { event: u64, dice: Prng },
}

impl Second {
    /// The dice of a crash at this event of a recovery, if it is a crash point.
    pub(super) fn dice_at(&self, event: u64) -> Option<Prng> {
        match self {
            Second::Every { stride, seed } => event
                .is_multiple_of(*stride)
                .then(|| Prng::new(seed ^ event.wrapping_mul(0x9e37_79b9))),
            Second::Once { event: only, dice } => (event == *only).then(|| dice.clone()),
        }
    }

    /// Whether the recovery that is crashed is checked to its end before.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Second::Once { .. })
    }
}
