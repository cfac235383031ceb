//! The extents that a replay writes to one member: where records overlap, the last one counts.

use std::collections::BTreeMap;

/// A run of sectors and where its content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First sector of the member.
    pub(crate) at: u64,
    /// Length, in sectors.
    pub(crate) sectors: u64,
    /// First sector on the same device that has the content; none for zeroes.
    pub(crate) from: Option<u64>,
}

impl Extent {
    const fn end(self) -> u64 {
        self.at + self.sectors
    }

    /// Cuts the extent into pieces of at most `most` sectors.
    pub(crate) fn split(self, most: u64) -> impl Iterator<Item = Self> {
        let count = self.sectors.div_ceil(most);
        (0..count).map(move |piece| {
            let start = self.at + piece * most;
            self.part(start, self.end().min(start.saturating_add(most)))
        })
    }

    /// The part of it from `start` to `end`.
    fn part(self, start: u64, end: u64) -> Self {
        let from = self.from.map(|from| from + (start - self.at));
        Self { at: start, sectors: end - start, from }
    }
}

/// Extents that do not overlap.
#[derive(Default)]
pub(crate) struct Extents(BTreeMap<u64, Extent>);

impl Extents {
    /// Puts one over all that are there.
    pub(crate) fn put(&mut self, new: Extent) {
        let before = self.0.range(..new.at).next_back().map(|(_, old)| *old);
        let within = self.0.range(new.at..new.end()).map(|(_, old)| *old);
        let touched: Vec<Extent> =
            before.into_iter().chain(within).filter(|old| old.end() > new.at).collect();
        for old in touched {
            self.0.remove(&old.at);
            if old.at < new.at {
                self.0.insert(old.at, old.part(old.at, new.at));
            }
            if new.end() < old.end() {
                self.0.insert(new.end(), old.part(new.end(), old.end()));
            }
        }
        self.0.insert(new.at, new);
    }

    /// In the order of the member.
    pub(crate) fn into_vec(self) -> Vec<Extent> {
        self.0.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::Prng;

    #[test]
    fn the_last_extent_over_a_sector_counts() {
        let mut dice = Prng::new(1);
        for _ in 0..200 {
            let (mut extents, mut plain) = (Extents::default(), [None; 64]);
            for number in 0..20_u64 {
                let at = dice.below(64);
                let sectors = 1 + dice.below(64 - at);
                let from = dice.one_in(3).then_some(1000 * number);
                extents.put(Extent { at, sectors, from });
                for sector in at..at + sectors {
                    plain[sector as usize] = Some(from.map(|from| from + sector - at));
                }
            }
            let mut found = [None; 64];
            for extent in extents.into_vec() {
                for sector in extent.at..extent.end() {
                    assert!(found[sector as usize].is_none(), "two extents over one sector");
                    found[sector as usize] =
                        Some(extent.from.map(|from| from + sector - extent.at));
                }
            }
            assert_eq!(found, plain);
        }
    }
}
