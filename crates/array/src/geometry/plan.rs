//! The choice of chunks to read before a write, so that parity can be computed: the way with the fewest
//! device I/Os. Pure.

use crate::geometry::chunks::Span;
use crate::geometry::numbers::StripeSlot;

/// How a slot of a stripe can be used by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// The chunk can be read and written.
    Online,
    /// The chunk gave a medium error: it is written, and its content must come from the others.
    Unreadable,
    /// The chunk's member is lost.
    Lost,
}

/// How a write comes to its parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// There is no parity, or none of it is online.
    Plain,
    /// All data of the stripe are written.
    FullStripe,
    /// Parity from the new data and the data that stay, which are read.
    Reconstruct,
    /// Parity changed by what the data change: old data and old parity are read.
    Modify,
    /// As `Reconstruct`, but data that stay are lost and computed from parity first.
    Recover,
}

/// The chunks to read, then how to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) method: Method,
    pub(crate) reads: Vec<(StripeSlot, Span)>,
}

/// Slots that cannot be read.
pub(crate) fn unusable(states: &[SlotState]) -> Vec<StripeSlot> {
    StripeSlot::all(states.len()).filter(|slot| states[slot.0] != SlotState::Online).collect()
}

/// Slots that can be read.
pub(crate) fn online(states: &[SlotState]) -> impl Iterator<Item = StripeSlot> + Clone {
    StripeSlot::all(states.len()).filter(|slot| states[slot.0] == SlotState::Online)
}

/// The plan with the fewest reads, then the fewest sectors. Writes are the same in all of them.
///
/// `written` are slots below `data` and their spans; parity is computed over `hull`, which has all of
/// these in it. No more slots are unusable than there are parities. Old parity that may not match is not
/// changed, but made anew.
pub(crate) fn plan(
    data: usize,
    written: impl Iterator<Item = (StripeSlot, Span)> + Clone,
    hull: Span,
    states: &[SlotState],
    may_mismatch: bool,
) -> Plan {
    let parities_online = states[data..].iter().any(|state| *state != SlotState::Lost);
    if !parities_online {
        return Plan { method: Method::Plain, reads: Vec::new() };
    }
    let rest = reconstruct(data, written.clone(), hull);
    let old = modify(data, written, hull, states);
    let first = recover(data, hull, states);
    let is_readable = |(slot, _): (StripeSlot, Span)| states[slot.0] == SlotState::Online;
    let rest_cost = rest.clone().all(is_readable).then(|| cost(rest.clone()));
    let is_of_use = !may_mismatch && old.clone().all(is_readable);
    let old_cost = is_of_use.then(|| cost(old.clone()));
    // Among equals the first of these.
    let best = [rest_cost, old_cost].into_iter().flatten().min();
    if best.is_none_or(|best| cost(first.clone()) < best) {
        Plan { method: Method::Recover, reads: first.collect() }
    } else if rest_cost != best {
        Plan { method: Method::Modify, reads: old.collect() }
    } else if best == Some((0, 0)) {
        Plan { method: Method::FullStripe, reads: Vec::new() }
    } else {
        Plan { method: Method::Reconstruct, reads: rest.collect() }
    }
}

/// How many reads, and of how many sectors.
fn cost(reads: impl Iterator<Item = (StripeSlot, Span)>) -> (usize, u64) {
    reads.fold((0, 0), |(count, sectors), (_, span)| (count + 1, sectors + span.count()))
}

/// The data that stay. Of a chunk with some before and some behind what is written, all of it: one read
/// is less than two. Not possible if some of them cannot be read.
fn reconstruct(
    data: usize,
    written: impl Iterator<Item = (StripeSlot, Span)> + Clone,
    hull: Span,
) -> impl Iterator<Item = (StripeSlot, Span)> + Clone {
    let kept = move |slot| {
        let own = written.clone().find(|(at, _)| *at == slot).map(|(_, span)| span);
        let kept = match own {
            Some(own) if own.start == hull.start => Span { start: own.end, end: hull.end },
            Some(own) if own.end == hull.end => Span { start: hull.start, end: own.start },
            _ => hull,
        };
        (!kept.is_empty()).then_some((slot, kept))
    };
    StripeSlot::all(data).filter_map(kept)
}

/// Old data, then the parities that will be written. Not possible if some of these cannot be read.
fn modify(
    data: usize,
    written: impl Iterator<Item = (StripeSlot, Span)> + Clone,
    hull: Span,
    states: &[SlotState],
) -> impl Iterator<Item = (StripeSlot, Span)> + Clone {
    let parities = StripeSlot::all(states.len()).skip(data);
    let parities = parities.filter(|slot| states[slot.0] != SlotState::Lost);
    written.chain(parities.map(move |slot| (slot, hull)))
}

/// Always possible: as many chunks as there are data, the first parities in place of lost data.
fn recover(
    data: usize,
    hull: Span,
    states: &[SlotState],
) -> impl Iterator<Item = (StripeSlot, Span)> + Clone {
    online(states).take(data).map(move |slot| (slot, hull))
}

#[cfg(test)]
mod tests {
    use super::*;
    use SlotState::{Lost, Online, Unreadable};

    const WHOLE: Span = Span { start: 0, end: 16 };
    const BLOCK: Span = Span { start: 8, end: 16 };

    const SLOT_0: StripeSlot = StripeSlot(0);
    const SLOT_1: StripeSlot = StripeSlot(1);
    const SLOT_2: StripeSlot = StripeSlot(2);

    fn chosen(
        written: &[(StripeSlot, Span)],
        states: &[SlotState],
        data: usize,
    ) -> (Method, usize) {
        let hull = written.iter().fold(written[0].1, |hull, (_, span)| hull.hull(*span));
        let plan = plan(data, written.iter().copied(), hull, states, false);
        (plan.method, plan.reads.len())
    }

    #[test]
    fn parity_that_may_not_match_is_never_changed() {
        let method = |states: &[SlotState]| {
            plan(4, [(SLOT_0, BLOCK)].into_iter(), BLOCK, states, true).method
        };
        assert_eq!(method(&[Online; 5]), Method::Reconstruct);
        assert_eq!(method(&[Online, Lost, Online, Online, Online]), Method::Recover);
        assert_eq!(method(&[Online, Lost, Online, Online, Online, Online]), Method::Recover);
    }

    #[test]
    fn a_small_write_reads_what_is_the_less_old_data_and_parity_or_the_rest() {
        // Data 8, parities 1 to 3: one, then more chunks written.
        for parities in 1..=3 {
            let states = vec![Online; 8 + parities];
            for count in 1..=8 {
                let written: Vec<_> = StripeSlot::all(count).map(|slot| (slot, WHOLE)).collect();
                let (modify, rest) = (count + parities, 8 - count);
                let method = match rest {
                    0 => Method::FullStripe,
                    _ if rest <= modify => Method::Reconstruct,
                    _ => Method::Modify,
                };
                assert_eq!(chosen(&written, &states, 8), (method, modify.min(rest)));
            }
        }
    }

    #[test]
    fn parts_of_chunks_count_for_both_ways() {
        // The second half of one chunk and the first of the next, 4+2: 4 reads either way. The old data
        // and parities are 2 x 8 + 2 x 16 sectors, the rest as much.
        let first_half = Span { start: 0, end: 8 };
        let written = [(SLOT_0, BLOCK), (SLOT_1, first_half)];
        assert_eq!(chosen(&written, &[Online; 6], 4), (Method::Reconstruct, 4));
        assert_eq!(chosen(&written, &[Online; 7], 5), (Method::Modify, 4));
    }

    #[test]
    fn all_data_are_read_where_parts_of_all_chunks_leave_something_on_both_sides() {
        let middle = Span { start: 4, end: 8 };
        let written = [(SLOT_0, WHOLE), (SLOT_1, middle), (SLOT_2, middle)];
        // The whole of two chunks; old data and parities would be five reads, the gaps four.
        assert_eq!(chosen(&written, &[Online; 5], 3), (Method::Reconstruct, 2));
        assert_eq!(chosen(&written, &[Online, Online, Online, Online, Lost], 3).1, 2);
        assert_eq!(chosen(&written, &[Online, Lost, Online, Online, Online], 3).0, Method::Recover);
    }

    #[test]
    fn losses_leave_the_ways_that_need_not_read_them() {
        let written = [(SLOT_0, BLOCK)];
        // The chunk written is lost: its new content goes into parity alone.
        assert_eq!(
            chosen(&written, &[Lost, Online, Online, Online, Online], 4),
            (Method::Reconstruct, 3)
        );
        // Another is lost: it need not be known.
        assert_eq!(
            chosen(&written, &[Online, Lost, Online, Online, Online], 4),
            (Method::Modify, 2)
        );
        // Parity is lost.
        assert_eq!(
            chosen(&written, &[Online, Online, Online, Online, Lost], 4),
            (Method::Plain, 0)
        );
        // The chunk written and another are lost.
        let states = [Lost, Lost, Online, Online, Online, Online];
        assert_eq!(chosen(&written, &states, 4), (Method::Recover, 4));
        // A parity that gave an error is written whole, not changed.
        let states = [Online, Online, Online, Online, Online, Unreadable];
        assert_eq!(chosen(&written, &states, 4), (Method::Reconstruct, 3));
    }
}
