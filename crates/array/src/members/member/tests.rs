//! The states of a member.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// A device of which the uuid is known by its number.
fn named(number: u8) -> Named<u32> {
    Named { device: Rc::new(number.into()), uuid: [number; 16] }
}

fn missing() -> Missing {
    Missing::new(Bits::all(4))
}

fn successor() -> Successor<u32> {
    Successor { own: named(2), missing: missing() }
}

/// The state, the device that takes requests, the one that is filled, and whose uuid the member has.
type Seen = (&'static str, Option<u32>, Option<u32>, u8);

/// An event, and what it makes of the four states; none where nobody causes it.
type Case = (fn() -> Event<u32>, [Option<Seen>; 4]);

fn seen(state: &State<u32>) -> Seen {
    let name = match state {
        State::Lost { .. } => "lost",
        State::InService { .. } => "in service",
        State::HasSuccessor { .. } => "has a successor",
        State::Rebuilding { .. } => "rebuilding",
    };
    let device = state.device().map(|device| **device);
    (name, device, state.filling().map(|(device, _)| **device), state.uuid()[0])
}

/// The state after an event; none when the table says that nobody causes it.
fn after(state: State<u32>, event: Event<u32>) -> Option<Seen> {
    let step = AssertUnwindSafe(|| state.after(event));
    catch_unwind(step).ok().map(|(state, _)| seen(&state))
}

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    let states: [fn() -> State<u32>; 4] = [
        || State::Lost { uuid: [1; 16] },
        || State::InService { own: named(1) },
        || State::HasSuccessor { own: named(1), successor: successor() },
        || State::Rebuilding { own: named(1), missing: missing() },
    ];
    let lost = Some(("lost", None, None, 1));
    let serves = |number: u8| Some(("in service", Some(number.into()), None, number));
    let has_successor = Some(("has a successor", Some(1), Some(2), 1));
    let fills = |number: u8| Some(("rebuilding", Some(number.into()), Some(number.into()), number));
    // The member before: lost, in service, with a successor, rebuilding.
    let cases: [Case; 6] = [
        (|| Event::Joined { own: named(3), missing: missing() }, [fills(3), fills(3), None, None]),
        (|| Event::Begun { own: named(3) }, [serves(3), None, None, None]),
        (|| Event::SuccessionBegun(successor()), [None, has_successor, None, None]),
        (|| Event::Filled, [None, None, serves(2), serves(1)]),
        (|| Event::SuccessorFailed, [None, None, serves(1), None]),
        (|| Event::GivenUp, [lost, lost, fills(2), lost]),
    ];
    for (number, (event, expected)) in cases.into_iter().enumerate() {
        for (state, expected) in states.iter().zip(expected) {
            let before = seen(&state());
            assert_eq!(after(state(), event()), expected, "event {number} of {before:?}");
        }
    }
}

#[test]
fn a_device_whose_place_another_takes_is_to_be_told_once() {
    let member = Member::new(Some(1));
    member.set_uuid([1; 16]);
    member.begin_succession(Rc::new(2), [2; 16], missing());
    assert!(member.take_replaced().is_none(), "the successor is not whole");
    member.put_in_service();
    member.lose();
    let moved = member.moved();
    assert_eq!((member.uuid(), moved.uuid()), ([2; 16], [2; 16]));
    assert_eq!(moved.take_replaced(), Some((Rc::new(1), [1; 16])));
    assert!(moved.take_replaced().is_none() && member.take_replaced().is_none());
}
