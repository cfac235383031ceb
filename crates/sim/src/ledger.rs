//! The ledger that the worlds of one seed share: counts of what took effect, and the tale of it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::Nanos;

use crate::fault::FaultKind;
use crate::medium::Cut;

/// Lines of a tale that are kept, the last ones of all worlds: of drives' requests, and of all else.
const LINES_KEPT: usize = 20_000;
/// Those that are told, of the world that ended it: of drives' requests, and of all else.
const REQUEST_LINES: usize = 200;
const OTHER_LINES: usize = 100;
/// Number of fault kinds.
const KINDS: usize = FaultKind::ALL.len();

/// Sums over seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that took effect, by kind in the order of [`FaultKind::ALL`].
    pub faults: [u64; KINDS],
    /// Requests that the simulated drives completed.
    pub requests: u64,
    /// Worlds that were recovered from a crash.
    pub crash_points: u64,
    /// Virtual time of all worlds, in nanoseconds.
    pub virtual_ns: Nanos,
    /// Virtual time in which somebody waited for a modelled disk, in nanoseconds. Rest, stuck requests,
    /// spikes and what the disk does after it has answered do not count.
    pub disk_ns: Nanos,
    /// Starts that were refused, as they must be on a damaged, stale or foreign SSD.
    pub refused: u64,
    /// SSDs given up while serving.
    pub given_up: u64,
    /// Records of ranges in which clients pass an SSD that is evacuated.
    pub passed: u64,
    /// Seeds of arrays.
    pub array_seeds: u64,
    /// Crash points of recorded lives of arrays, times the choices of lost members tried at each.
    pub array_points: u64,
    /// Crash points at which an array was moving to wider stripes.
    pub reshape_points: u64,
}

impl Counts {
    /// Adds another sum.
    pub fn add(&mut self, other: &Counts) {
        for (sum, count) in self.faults.iter_mut().zip(other.faults) {
            *sum += count;
        }
        self.requests += other.requests;
        self.crash_points += other.crash_points;
        self.virtual_ns += other.virtual_ns;
        self.disk_ns += other.disk_ns;
        self.refused += other.refused;
        self.given_up += other.given_up;
        self.passed += other.passed;
        self.array_seeds += other.array_seeds;
        self.array_points += other.array_points;
        self.reshape_points += other.reshape_points;
    }

    /// All faults.
    pub fn faults_total(&self) -> u64 {
        self.faults.iter().sum()
    }
}

/// A line with its number, so that both kinds can be put in one order, and where the run was.
type Line = (u64, Rc<str>, String);
type Lines = VecDeque<Line>;

/// The last lines of both kinds.
#[derive(Default)]
struct Tale {
    count: u64,
    requests: Lines,
    others: Lines,
}

/// Counts and tale of one seed.
#[derive(Default)]
pub struct Ledger {
    counts: RefCell<Counts>,
    tale: Option<RefCell<Tale>>,
    trace: Cell<u64>,
    /// Where the run is, and the crash point that is being tried.
    place: RefCell<(Rc<str>, Option<u64>)>,
}

impl Ledger {
    /// A ledger that keeps the last lines of the tale too.
    pub fn telling() -> Self {
        Self { tale: Some(RefCell::default()), ..Self::default() }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.counts.borrow().clone()
    }

    /// The last lines of the tale that are of the place where the run is, oldest first: a world that is recorded
    /// has many others between two of its events.
    pub fn tale(&self) -> Vec<String> {
        let Some(tale) = &self.tale else { return Vec::new() };
        let (tale, place) = (tale.borrow(), self.place.borrow());
        let is_of_place = |line: &&Line| *line.1 == *place.0;
        let requests = tale.requests.iter().rev().filter(is_of_place).take(REQUEST_LINES);
        let others = tale.others.iter().rev().filter(is_of_place).take(OTHER_LINES);
        let mut lines: Vec<_> = requests.chain(others).collect();
        lines.sort_unstable();
        lines.into_iter().map(|line| line.2.clone()).collect()
    }

    /// A number that two runs share only if the same happened in all their worlds.
    pub fn trace_hash(&self) -> u64 {
        self.trace.get()
    }

    /// Where the run is, and the event of the crash point that is being tried.
    pub fn place(&self) -> (String, Option<u64>) {
        let (place, event) = &*self.place.borrow();
        (place.to_string(), *event)
    }

    pub(crate) fn at(&self, place: String, event: Option<u64>) {
        self.place.replace((place.into(), event));
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.borrow_mut());
    }

    pub(crate) fn fault(&self, kind: FaultKind) {
        self.counts.borrow_mut().faults[kind as usize] += 1;
    }

    /// Counts a crash and what it is.
    pub(crate) fn count_crash(&self, cut: Cut) {
        self.count(|counts| counts.crash_points += 1);
        self.fault(match cut {
            Cut::Power => FaultKind::PowerCut,
            Cut::Kill => FaultKind::DaemonKill,
        });
    }

    /// Closes a world's account.
    pub(crate) fn close(&self, trace: u64, virtual_ns: Nanos) {
        self.trace.set((self.trace.get() ^ trace).wrapping_mul(0x0100_0000_01b3).rotate_left(31));
        self.count(|counts| counts.virtual_ns += virtual_ns);
    }

    pub(crate) fn tell(&self, time_ns: Nanos, line: impl FnOnce() -> String) {
        self.keep(time_ns, line, |tale| &mut tale.others);
    }

    pub(crate) fn tell_request(&self, time_ns: Nanos, line: impl FnOnce() -> String) {
        self.keep(time_ns, line, |tale| &mut tale.requests);
    }

    fn keep(&self, time_ns: Nanos, line: impl FnOnce() -> String, of: fn(&mut Tale) -> &mut Lines) {
        let Some(tale) = &self.tale else { return };
        let mut tale = tale.borrow_mut();
        tale.count += 1;
        let number = tale.count;
        let lines = of(&mut tale);
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        let millis = time_ns as f64 / 1e6;
        let place = self.place.borrow().0.clone();
        lines.push_back((number, place, format!("{millis:12.3} ms  {}", line())));
    }
}
