//! Waiting for what has begun, while more begins.

/// Operations under way, in two rounds: whoever drains begins a new round and waits until the older one is
/// empty. Operations of the new round do not delay the wait.
///
/// The owner brings the signal that the one who drains waits for, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainRounds {
    under_way: [u32; 2],
    newer: Round,
}

/// The round in which an operation began: to be given back to [`DrainRounds::end`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round(u8);

impl Round {
    fn other(self) -> Self {
        Self(1 - self.0)
    }
}

impl DrainRounds {
    /// An operation begins, in the newer round.
    #[must_use]
    #[inline]
    pub fn begin(&mut self) -> Round {
        self.under_way[self.newer.0 as usize] += 1;
        self.newer
    }

    /// An operation ends; whether the older round is empty by that.
    #[inline]
    pub fn end(&mut self, round: Round) -> bool {
        self.under_way[round.0 as usize] -= 1;
        round != self.newer && self.is_drained()
    }

    /// Whether all operations of the older round have ended.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.under_way[self.newer.other().0 as usize] == 0
    }

    /// Operations under way.
    pub fn count(&self) -> usize {
        self.under_way.iter().map(|count| *count as usize).sum()
    }

    /// Whether no operation is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way == [0; 2]
    }

    /// Begins a new round: what is under way now becomes the older one.
    ///
    /// # Panics
    /// While the older round is not drained: its operations would be taken for newer ones.
    pub fn advance(&mut self) {
        assert!(self.is_drained(), "a round of operations is not drained");
        self.newer = self.newer.other();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_drained_when_what_began_before_it_has_ended() {
        let mut rounds = DrainRounds::default();
        let (first, second) = (rounds.begin(), rounds.begin());
        rounds.advance();
        let newer = rounds.begin();
        assert!(!rounds.is_empty());
        assert!(!rounds.end(first));
        assert!(!rounds.end(newer), "an operation of the newer round does not drain the older one");
        assert!(rounds.end(second));
        assert!(rounds.is_drained() && rounds.is_empty());
    }

    #[test]
    #[should_panic(expected = "not drained")]
    fn a_third_round_waits_for_the_first() {
        let mut rounds = DrainRounds::default();
        let _ = rounds.begin();
        rounds.advance();
        rounds.advance();
    }
}
