//! Scrubs that begin by themselves: when, in which order, and what is remembered of them.

use super::arrays::{ask_of, created};
use super::fixture::Fixture;
use voltier_control::protocol::{ArrayRequest, MemberName, NewArray, Request, Response};
use voltier_control::{ArrayDetail, ArrayName, Date, SCRUBS_FILE};

const DAY_MS: u64 = 86_400_000;

fn day(days: u64) -> Date {
    Date { unix_ms: (20_000 + days) * DAY_MS }
}

fn named(name: &str) -> ArrayName {
    name.parse().unwrap()
}

impl Fixture {
    fn with_arrays() -> Self {
        let fixture = Self::new();
        for (name, members) in [("a", ["d1", "d2", "d3"]), ("b", ["d4", "d5", "d6"])] {
            let array = NewArray { name: named(name), ..fixture.new_array(&members) };
            let made = fixture.service.handle(created(array));
            assert!(matches!(made, Response::Array { .. }), "{made:?}");
        }
        fixture.calls();
        fixture
    }

    /// The scrubs that begin at this time.
    fn scrubs_at(&self, now: Date) -> Vec<String> {
        if let Some(bytes) = self.service.step_scrubs(now) {
            std::fs::write(self.state_dir().join(SCRUBS_FILE), bytes).unwrap();
        }
        let calls = self.calls().into_iter();
        calls.filter_map(|call| call.strip_prefix("scrub ").map(str::to_owned)).collect()
    }

    fn end_scrub(&self, name: &str, mismatched_blocks: u64) {
        self.steer(|books| {
            let array = books.arrays.get_mut(&named(name)).unwrap();
            (array.is_scrubbed, array.scrubbed) = (false, Some(mismatched_blocks));
        });
        self.service.notice_array_events();
    }

    fn shown(&self, name: &str) -> ArrayDetail {
        match self
            .service
            .handle(ask_of(ArrayRequest::Show { name: Some(named(name)), over_s: None }))
        {
            Response::Array { array, .. } => *array,
            other => panic!("{other:?}"),
        }
    }

    fn set(&self, name: &str, value: &str) {
        let changes = vec![("scrub_every".to_owned(), value.to_owned())];
        let set = self.service.handle(ask_of(ArrayRequest::Set { name: named(name), changes }));
        assert!(matches!(set, Response::Array { .. }), "{set:?}");
    }

    fn next_daemon(&mut self) {
        self.restart(false);
        self.service.know_scrubs(self.state_dir());
        self.calls();
    }
}

fn lose(fixture: &Fixture, member: &str) -> Request {
    let member = MemberName::Device(fixture.device(member));
    ask_of(ArrayRequest::Fail { name: named("a"), member })
}

const NONE: [&str; 0] = [];

#[test]
fn arrays_are_scrubbed_every_month_one_after_the_other_and_daemons_remember() {
    let mut fixture = Fixture::with_arrays();
    assert_eq!(fixture.scrubs_at(day(0)), NONE, "they are new");
    assert_eq!(fixture.shown("a").scrub_times.next, Some(day(30)));
    fixture.set("b", "20d");
    fixture.next_daemon();
    assert_eq!(fixture.scrubs_at(day(19)), NONE);
    // Both are due when the machine was off; that of b for longer.
    assert_eq!(fixture.scrubs_at(day(40)), ["b Located"]);
    assert_eq!(fixture.scrubs_at(day(41)), NONE, "one after the other");
    fixture.end_scrub("b", 3);
    assert_eq!(fixture.scrubs_at(day(42)), ["a Located"]);
    let times = fixture.shown("b").scrub_times;
    let last = times.last.unwrap();
    assert_eq!((last.at, last.found.mismatched_blocks), (day(42), 3));
    assert_eq!((times.every_s, times.next), (20 * 86_400, Some(day(62))));
    fixture.next_daemon();
    assert_eq!(fixture.shown("b").scrub_times, times);
    // The scrub of a did not come to its end.
    assert_eq!(fixture.shown("a").scrub_times.last, None);
    assert_eq!(fixture.scrubs_at(day(43)), ["a Located"]);
    fixture.end_scrub("a", 0);
    for days in 44..62 {
        assert_eq!(fixture.scrubs_at(day(days)), NONE, "{days}");
    }
    assert_eq!(fixture.scrubs_at(day(62)), ["b Located"]);
}

#[test]
fn a_scrub_by_hand_counts_and_one_that_is_off_does_not_come() {
    let fixture = Fixture::with_arrays();
    fixture.set("b", "off");
    fixture.scrubs_at(day(0));
    fixture.end_scrub("a", 0);
    assert_eq!(fixture.scrubs_at(day(29)), NONE);
    assert_eq!(fixture.scrubs_at(day(58)), NONE);
    assert_eq!(fixture.shown("b").scrub_times.next, None);
    assert_eq!(fixture.scrubs_at(day(59)), ["a Located"]);
}

#[test]
fn an_array_that_lacks_a_member_or_is_at_rest_is_not_scrubbed_and_keeps_no_other_one_waiting() {
    let fixture = Fixture::with_arrays();
    fixture.scrubs_at(day(0));
    fixture.service.handle(lose(&fixture, "d2"));
    assert_eq!(fixture.scrubs_at(day(30)), ["b Located"]);
    fixture.end_scrub("b", 0);
    assert_eq!(fixture.scrubs_at(day(31)), NONE);
    fixture.service.handle(ask_of(ArrayRequest::Stop { name: named("a") }));
    assert_eq!(fixture.scrubs_at(day(32)), NONE);
    fixture.service.handle(ask_of(ArrayRequest::Start { name: named("a") }));
    fixture.steer(|books| books.arrays.get_mut(&named("a")).unwrap().lost.clear());
    assert_eq!(fixture.scrubs_at(day(33)), ["a Located"], "as soon as it is whole");
}

#[test]
fn a_scrub_that_ends_before_everything_was_read_comes_again_after_a_rest() {
    let fixture = Fixture::with_arrays();
    fixture.set("b", "off");
    fixture.scrubs_at(day(0));
    assert_eq!(fixture.scrubs_at(day(30)), ["a Located"]);
    fixture.steer(|books| books.arrays.get_mut(&named("a")).unwrap().is_scrubbed = false);
    let minutes = |minutes: u64| Date { unix_ms: day(30).unix_ms + minutes * 60_000 };
    for early in [1, 30, 59] {
        assert_eq!(fixture.scrubs_at(minutes(early)), NONE, "{early}");
    }
    assert_eq!(fixture.scrubs_at(minutes(60)), ["a Located"]);
}

#[test]
fn a_clock_that_is_wrong_for_a_while_makes_no_storm_of_scrubs_and_none_is_put_off_for_ever() {
    let mut fixture = Fixture::with_arrays();
    fixture.scrubs_at(day(0));
    // Ten years ahead: each is scrubbed once, one after the other.
    assert_eq!(fixture.scrubs_at(day(3650)), ["a Located"]);
    fixture.end_scrub("a", 0);
    assert_eq!(fixture.scrubs_at(day(3650)), ["b Located"]);
    fixture.end_scrub("b", 0);
    assert_eq!(fixture.scrubs_at(day(3650)), NONE);
    // It is right again.
    for days in 1..31 {
        assert_eq!(fixture.scrubs_at(day(days)), NONE, "{days}");
        fixture.next_daemon();
    }
    assert_eq!(fixture.scrubs_at(day(31)), ["a Located"]);
    fixture.end_scrub("a", 0);
    assert_eq!(fixture.scrubs_at(day(31)), ["b Located"]);
    fixture.end_scrub("b", 0);
    assert_eq!(fixture.shown("a").scrub_times.next, Some(day(61)));
}
