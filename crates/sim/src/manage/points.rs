//! Where a command is crashed, and how.

use voltier_block::Prng;

use crate::medium::Cut;

/// How far a command was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Either way is right.
    Begun,
    /// The client was told that it is done.
    Answered,
}

/// Which events of a command are crash points.
pub(crate) struct Points {
    pub(crate) seed: u64,
    /// One in so many: 1 for all, and then by both cuts.
    pub(crate) stride: u64,
    /// Only this one.
    pub(crate) only: Option<u64>,
}

impl Points {
    /// The cuts at this event, none if it is no crash point, and its dice. They are its own: it is the
    /// same when it is run alone.
    pub(crate) fn cuts_at(&self, event: u64) -> (Vec<Cut>, Prng) {
        let mut prng = Prng::new(self.seed.wrapping_mul(0x1_0000_01b3) ^ event);
        let chosen = event % self.stride == self.seed % self.stride.min(4);
        if self.only.map_or(!chosen, |only| only != event) {
            return (Vec::new(), prng);
        }
        let drawn = draw_cut(&mut prng);
        let both = vec![Cut::Power, Cut::Kill];
        (if self.stride == 1 { both } else { vec![drawn] }, prng)
    }
}

pub(crate) fn draw_cut(prng: &mut Prng) -> Cut {
    if prng.one_in(4) { Cut::Kill } else { Cut::Power }
}
