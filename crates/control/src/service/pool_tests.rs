//! Pools of spares in the service: who gets a spare, in which order it is recorded, and what a crash at any
//! step leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::bench::Bench;
use super::*;
use crate::array_status::PoolStatus;
use crate::protocol::{MemberName, NewArray};
use crate::records::ArrayRecord;

fn ask(ask: ArrayRequest) -> Request {
    Request::Array { ask }
}

fn named(name: &str) -> ArrayName {
    name.parse().unwrap()
}

impl Bench {
    fn make_array(&mut self, name: &str, members: [&str; 3]) {
        let array = NewArray { name: named(name), ..self.new_array(&members) };
        let made = self.service.handle(ask(ArrayRequest::Create { array }));
        assert!(matches!(made, Response::Array { .. }), "{made:?}");
    }

    fn pool_add(&self, devices: &[&str], force: bool) -> Request {
        let devices = devices.iter().map(|device| self.device(device)).collect();
        ask(ArrayRequest::PoolAdd { pool: "p".parse().unwrap(), devices, force })
    }

    fn pool_remove(&self, devices: &[&str]) -> Request {
        let devices = devices.iter().map(|device| self.device(device)).collect();
        ask(ArrayRequest::PoolRemove { pool: "p".parse().unwrap(), devices })
    }

    fn use_pool(&mut self, name: &str, pool: &str) -> Response {
        let changes = vec![("spare_pool".to_owned(), pool.to_owned())];
        self.service.handle(ask(ArrayRequest::Set { name: named(name), changes }))
    }

    fn pools(&mut self, request: Request) -> (Vec<PoolStatus>, Vec<String>) {
        match self.service.handle(request) {
            Response::Pools { pools, notes } => (pools, notes),
            other => panic!("{other:?}"),
        }
    }

    fn waiting(&mut self) -> Vec<String> {
        let pool = Some("p".parse().unwrap());
        self.pools(ask(ArrayRequest::PoolShow { pool })).0.remove(0).spares
    }

    fn lose(&self, name: &str, member: &str) -> Request {
        let member = MemberName::Device(self.device(member));
        ask(ArrayRequest::Fail { name: named(name), member })
    }

    fn record_of(&self, name: &str) -> ArrayRecord {
        self.service.registry.find_array(&named(name)).unwrap().clone()
    }

    /// Two arrays of a pool with these spares.
    fn with_pool(spares: &[&str]) -> Self {
        let mut bench = Self::new();
        bench.make_array("a", ["d1", "d2", "d3"]);
        bench.make_array("b", ["d4", "d5", "d6"]);
        bench.pools(bench.pool_add(spares, false));
        for name in ["a", "b"] {
            assert!(matches!(bench.use_pool(name, "p"), Response::Array { .. }));
        }
        bench.calls();
        bench
    }
}

#[test]
fn the_array_that_loses_a_member_first_takes_the_spare_and_the_next_one_finds_none() {
    let mut bench = Bench::with_pool(&["d7"]);
    bench.service.handle(bench.lose("b", "d5"));
    bench.service.notice_array_events();
    assert_eq!(bench.record_of("b").members[1], Some(bench.device("d7")));
    assert_eq!(bench.waiting(), [""; 0]);
    let lose = bench.lose("a", "d1");
    bench.service.handle(lose);
    bench.service.notice_array_events();
    assert_eq!(bench.record_of("a").members[0], Some(bench.device("d1")), "still lost");
    // A spare that comes later is taken at once.
    bench.pools(bench.pool_add(&["d8"], false));
    assert_eq!(bench.record_of("a").members[0], Some(bench.device("d8")));
    assert_eq!(bench.waiting(), [""; 0]);
}

#[test]
fn a_spare_that_does_not_fit_or_holds_something_by_now_stays_and_the_next_one_is_taken() {
    let mut bench = Bench::with_pool(&["d7", "d8", "ssd"]);
    let small = bench.path("d7");
    bench.steer(|books| books.small.push(small));
    let mut bytes = std::fs::read(bench.path("d8")).unwrap();
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(bench.path("d8"), &bytes).unwrap();
    bench.service.handle(bench.lose("a", "d2"));
    bench.service.notice_array_events();
    assert_eq!(bench.record_of("a").members[1], Some(bench.device("ssd")));
    let left = [bench.device("d7"), bench.device("d8")].map(|device| device.to_string());
    assert_eq!(bench.waiting(), left);
    let (_, notes) = bench.pools(bench.pool_add(&["ssd2"], false));
    assert!(notes.is_empty(), "{notes:?}");
    let small = bench.path("hdd");
    bench.steer(|books| books.small.push(small));
    let (_, notes) = bench.pools(bench.pool_add(&["hdd"], false));
    assert!(notes.len() == 2 && notes[0].contains("hdd is too small for a"), "{notes:?}");
}

#[test]
fn a_spare_that_an_array_refuses_is_back_in_its_pool() {
    let mut bench = Bench::with_pool(&["d7"]);
    bench.steer(|books| books.failing = Some("spare"));
    bench.service.handle(bench.lose("a", "d2"));
    bench.service.notice_array_events();
    assert_eq!(bench.waiting().len(), 1);
    assert!(bench.record_of("a").spares.is_empty());
    bench.steer(|books| books.failing = None);
    // Not tried again and again; but when something changes.
    bench.calls();
    bench.service.notice_array_events();
    assert!(!bench.calls().iter().any(|call| call.starts_with("spare")));
    bench.use_pool("a", "p");
    assert_eq!(bench.record_of("a").members[1], Some(bench.device("d7")));
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_changes_nothing() {
    let mut bench = Bench::with_pool(&["d7"]);
    std::os::unix::fs::symlink(bench.path("d8"), bench.path("link")).unwrap();
    let before = bench.service.registry.pools().to_vec();
    let cases: [(Request, &str); 8] = [
        (bench.pool_add(&["d8", "link"], false), "given twice"),
        (bench.pool_add(&["d8", "d7"], false), "already part of spare pool p"),
        (bench.pool_add(&["d8", "d1"], true), "already part of array a"),
        (bench.pool_add(&["gone"], false), "does not exist"),
        (bench.pool_remove(&["d8"]), "d8 is no spare of p, which has"),
        (bench.pool_remove(&[]), "the array a takes its spares from p"),
        (
            ask(ArrayRequest::PoolShow { pool: Some("q".parse().unwrap()) }),
            "no spare pool `q`; known: p",
        ),
        (
            ask(ArrayRequest::AddSpare {
                name: named("a"),
                spare: bench.device("d7"),
                force: false,
            }),
            "already part of spare pool p",
        ),
    ];
    for (request, words) in cases {
        let error = bench.error(request);
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
    let unknown = bench.use_pool("a", "q");
    assert!(
        matches!(&unknown, Response::Error { error } if error.message.contains("no spare pool"))
    );
    let array = ArrayRequest::PoolAdd {
        pool: "p".parse().unwrap(),
        devices: vec!["array:b".parse().unwrap()],
        force: true,
    };
    assert!(bench.error(ask(array)).contains("arrays do not stand on arrays"));
    assert_eq!(bench.service.registry.pools(), before);
    bench.pools(bench.pool_remove(&["d7"]));
    for name in ["a", "b"] {
        bench.use_pool(name, "none");
    }
    bench.pools(bench.pool_remove(&[]));
    assert!(bench.service.registry.pools().is_empty());
}

/// An array that has lost a member, and a pool that gets a spare; the daemon dies at a call of the engine,
/// or does not. Whether it did.
fn dies_in(calls: usize) -> bool {
    let mut bench = Bench::with_pool(&[]);
    let lose = bench.lose("b", "d5");
    bench.service.handle(lose);
    bench.steer(|books| books.dies_in = Some(calls));
    let add = bench.pool_add(&["d7"], false);
    let died = catch_unwind(AssertUnwindSafe(|| bench.service.handle(add))).is_err();
    bench.steer(|books| books.dies_in = None);
    let d7 = bench.device("d7");
    let registry = Registry::load(bench.state_dir()).unwrap();
    let in_pools = registry.pools().iter().flat_map(|pool| &pool.spares);
    let in_pools = in_pools.filter(|spare| spare.device == d7).count();
    let is_in = |array: &&ArrayRecord| array.devices().any(|device| *device == d7);
    let in_arrays = registry.arrays().iter().filter(is_in).count();
    assert_eq!((in_pools, in_arrays), (0, 1), "dies in {calls}");
    // The next daemon: it is the member by its label, or waits as a spare of the same array.
    bench.restart(false);
    bench.service.notice_array_events();
    let array = bench.record_of("b");
    let is_member = array.members[1] == Some(d7.clone()) && array.spares.is_empty();
    let is_spare = array.members[1] == Some(bench.device("d5")) && array.spares == [d7];
    assert!(if calls == 0 { is_spare } else { is_member }, "dies in {calls}: {array:?}");
    assert_eq!(bench.waiting(), [""; 0]);
    died
}

#[test]
fn a_daemon_that_dies_at_any_step_leaves_the_spare_with_the_array_that_took_it() {
    let deaths = (0..).take_while(|calls| dies_in(*calls)).count();
    assert_eq!(deaths, 2, "before it was given to the array, and when the array had it");
}

#[test]
fn with_a_registry_from_before_a_spare_that_has_a_label_is_a_member_and_not_in_the_pool() {
    let mut bench = Bench::with_pool(&["d7", "d8"]);
    let before = std::fs::read(bench.state_dir().join(crate::REGISTRY_FILE)).unwrap();
    let lose = bench.lose("a", "d2");
    bench.service.handle(lose);
    bench.service.notice_array_events();
    assert_eq!(bench.record_of("a").members[1], Some(bench.device("d7")));
    bench.service.stop();
    std::fs::write(bench.state_dir().join(crate::REGISTRY_FILE), before).unwrap();
    bench.restart(false);
    assert_eq!(bench.waiting(), [bench.device("d8").to_string()]);
    assert_eq!(bench.record_of("a").members[1], Some(bench.device("d7")));
}
