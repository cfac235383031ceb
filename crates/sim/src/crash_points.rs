//! The choice of crash points among the events of a recorded life.

use voltier_block::Prng;

/// The dice of an event: a crash point's dice are its own, so that it is the same when it is run alone.
pub(crate) fn dice_of(seed: u64, event: u64) -> Prng {
    Prng::new(seed.wrapping_mul(0x1_0000_01b3) ^ event)
}

/// One event in so many.
#[derive(Clone, Copy)]
pub(crate) struct CrashPoints {
    pub(crate) seed: u64,
    /// One event in so many: 1 for all.
    pub(crate) one_in: u64,
    /// Only this event, to see a failure again.
    pub(crate) only: Option<u64>,
}

impl CrashPoints {
    /// The dice of a crash point; none if the event is no crash point.
    pub(crate) fn dice_at(&self, event: u64) -> Option<Prng> {
        let mut dice = dice_of(self.seed, event);
        let is_drawn = dice.one_in(self.one_in);
        self.only.map_or(is_drawn, |only| only == event).then_some(dice)
    }
}
