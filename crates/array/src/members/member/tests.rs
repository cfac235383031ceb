//! The states of a member, and what is known of how it does.

use super::*;

#[test]
fn errors_count_half_with_every_window_and_are_forgotten() {
    let watch = MemberWatch::default();
    (0..20).for_each(|_| _ = watch.add_error(1000, 100));
    assert_eq!(watch.recent(1099, 100), 20);
    assert_eq!(watch.recent(1100, 100), 10);
    assert_eq!(watch.add_error(1250, 100), 6);
    // The windows go on from the first error, not from the last.
    assert_eq!(watch.recent(1299, 100), 6);
    assert_eq!(watch.recent(1300, 100), 3);
    assert_eq!(watch.recent(Nanos::MAX, 100), 0);
    assert_eq!(watch.add_error(Nanos::MAX, 100), 1);
}

#[test]
fn slow_takes_five_verdicts_in_a_row_and_so_does_its_end() {
    let watch = MemberWatch::default();
    let judge =
        |verdicts: &[bool]| verdicts.iter().filter(|verdict| watch.judge(**verdict)).count();
    assert_eq!(judge(&[true, true, true, true, false, true, true, true, true]), 0);
    assert_eq!(judge(&[true]), 1);
    assert!(watch.is_slow.get());
    assert_eq!(judge(&[false, false, true, false, false, false, false]), 0);
    assert_eq!(judge(&[false]), 1);
    assert!(!watch.is_slow.get());
}

#[test]
fn one_in_so_many_is_timed_and_only_one_at_a_time() {
    let watch = MemberWatch::default();
    let timed = |count: u32| (0..count).filter(|_| watch.begin(Timed::Read, || 7) != 0).count();
    assert_eq!(timed(10 * STRIDE), 1, "the first is under way");
    watch.timed_since.set(0);
    assert_eq!(timed(1), 1);
    watch.timed_since.set(0);
    assert_eq!(timed(STRIDE), 1);
}

fn successor() -> Successor<u32> {
    Successor { device: Rc::new(2), uuid: [9; 16], missing: Missing::new(Bits::all(4)) }
}

/// The state, the device that takes requests, and the one that is filled.
type Seen = (&'static str, Option<u32>, Option<u32>);

/// An event, and what it makes of the four states.
type Case = (fn() -> Event<u32>, [Seen; 4]);

fn seen(state: &State<u32>) -> Seen {
    let name = match state {
        State::Lost => "lost",
        State::InService { .. } => "in service",
        State::Copied { .. } => "copied",
        State::Rebuilding { .. } => "rebuilding",
    };
    let device = state.device().map(|device| **device);
    (name, device, state.filling().map(|(device, _)| **device))
}

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    let states: [fn() -> State<u32>; 4] = [
        || State::Lost,
        || State::InService { device: Rc::new(1) },
        || State::Copied { device: Rc::new(1), successor: successor() },
        || State::Rebuilding { device: Rc::new(1), missing: Missing::new(Bits::all(4)) },
    ];
    let lost = ("lost", None, None);
    let serves = ("in service", Some(1), None);
    let copied = ("copied", Some(1), Some(2));
    let fills = |device| ("rebuilding", Some(device), Some(device));
    // The member before: lost, in service, copied, rebuilding.
    let cases: [Case; 6] = [
        (
            || Event::Joined { device: Rc::new(3), missing: Missing::new(Bits::all(4)) },
            [fills(3), fills(3), copied, fills(1)],
        ),
        (|| Event::Begun { device: Rc::new(1) }, [serves, serves, copied, fills(1)]),
        (|| Event::CopyBegun(successor()), [lost, copied, copied, fills(1)]),
        (|| Event::Filled, [lost, serves, ("in service", Some(2), None), serves]),
        (|| Event::CopyFailed, [lost, serves, serves, fills(1)]),
        (|| Event::GivenUp, [lost, lost, fills(2), lost]),
    ];
    for (event, after) in cases {
        for (state, expected) in states.iter().zip(after) {
            assert_eq!(seen(&state().after(event())), expected);
        }
    }
}
