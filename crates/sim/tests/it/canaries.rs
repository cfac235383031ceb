//! Goal: the simulator finds bugs. Method: deliberate ones (`voltier_cache::canary`), one at a time;
//! each must be found within its budget, and the same budgets without a bug find nothing.
//!
//! `make test` looks for some of them, `make canaries` for all, and prints the table.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;

use voltier_block::StripeShape;
use voltier_cache::Mode;
use voltier_cache::admission::AdmissionKind;
use voltier_cache::canary::{Canary, choose};
use voltier_sim::crash::{Plan, run_in};
use voltier_sim::report::command;
use voltier_sim::scenario::Scenario;
use voltier_sim::swarm::{self, Kept, Outcome, catch_panics, regressions};
use voltier_sim::workload::{MODES, Profile};
use voltier_sim::{FaultKind, Ledger, budget, trials};

use crate::canary_hunt as hunt;

/// The kind of world that runs, and the most seeds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worlds {
    /// Crashes under a write-back load.
    WriteBack,
    /// The same with small requests: records of one size, so that leftovers fit behind new ones.
    Small,
    /// Many clients with large requests before a slow SSD: many records are on their way at once.
    Busy,
    /// Few dirty lines are allowed: what is written is destaged at once.
    Eager,
    /// Few lines before a log of many segments: a replay is long, and most of it is dead.
    LongLog,
    /// No crash: an SSD slower than the origin, with requests that take hundreds of times as long.
    Spikes,
    /// No crash: few lines, written and destaged all the time; now and then a read takes very long.
    Pinned,
    /// Crashes while modes are switched.
    Mixed,
    /// Crashes in modes that write past the log.
    Past,
    /// Bits of the SSD flip.
    BitRot,
    /// Ordered destaging, watched from the origin's side.
    Ordered,
    /// No crash: stripes are completed beside writes past the log.
    Stripes,
    /// Crashes while many clients write a few ranges.
    Crowd,
    /// Crashes while the origin serves hits.
    Congested,
    /// Crashes before, while and after an SSD that takes no writes any more is evacuated.
    Evacuation,
    /// The same before an origin that takes no writes either.
    RefusedEvacuation,
    /// Crashes after a flush of the SSD has failed.
    FailedFlush,
    /// Crashes while flushes of the origin fail, and lose what they were for.
    FlushLoss,
    /// Crashes while long ranges are zeroed before an origin on which zeroes are cheap.
    Zeroes,
    /// Crashes while many clients read, write and zero long ranges, before a slow SSD.
    LongZeroes,
    /// Crashes while streams are written for which the SSD has no room.
    Streams,
    /// No crash: an SSD full of clean lines in ordered mode, and a flush after each write.
    Full,
    /// Lives of the swarm: starts before other origins among them.
    Swarm,
    /// Another host takes the image over.
    Takeover,
}

impl Worlds {
    const ALL: [Self; 24] = [
        Self::WriteBack,
        Self::Small,
        Self::Busy,
        Self::Eager,
        Self::LongLog,
        Self::Spikes,
        Self::Pinned,
        Self::Mixed,
        Self::Past,
        Self::BitRot,
        Self::Ordered,
        Self::Stripes,
        Self::Crowd,
        Self::Congested,
        Self::Evacuation,
        Self::RefusedEvacuation,
        Self::FailedFlush,
        Self::FlushLoss,
        Self::Zeroes,
        Self::LongZeroes,
        Self::Streams,
        Self::Full,
        Self::Swarm,
        Self::Takeover,
    ];

    fn seeds(self) -> u64 {
        match self {
            Self::Pinned => 400,
            Self::Spikes | Self::Stripes | Self::Swarm | Self::Takeover => 60,
            Self::WriteBack
            | Self::Small
            | Self::Eager
            | Self::LongLog
            | Self::Mixed
            | Self::Past => 2,
            Self::Congested | Self::Zeroes | Self::Streams | Self::Full => 4,
            Self::LongZeroes => 6,
            Self::Crowd | Self::Busy => 24,
            Self::BitRot | Self::Ordered | Self::FailedFlush | Self::FlushLoss => 12,
            Self::Evacuation | Self::RefusedEvacuation => 24,
        }
    }

    fn run(self, seed: u64) {
        match self {
            Self::BitRot => trials::bit_rot(&Profile::small(&[Mode::WriteBack]), seed),
            Self::Ordered => trials::ordered(seed),
            Self::Full => trials::full_of_clean_lines(seed),
            Self::Swarm => run_scenario(&Scenario::of_seed(seed)),
            Self::Takeover => run_scenario(&Scenario::of_takeover(seed)),
            _ => {
                let only = number("VOLTIER_SIM_EVENT");
                let ledger = only.map_or_else(Ledger::default, |_| Ledger::telling());
                let place = FailureNote(Rc::new(ledger));
                run_in(&Plan { seed, only, ..self.plan() }, &place.0);
            }
        }
    }

    fn modes(self) -> &'static [Mode] {
        match self {
            Self::Mixed | Self::Spikes | Self::Stripes | Self::FlushLoss => &MODES,
            Self::Past => &[Mode::WriteThrough, Mode::ReadOnly],
            _ => &[Mode::WriteBack],
        }
    }

    /// What the crash tests run in these worlds.
    fn plan(self) -> Plan {
        let mut profile = Profile { steps: 40, ..Profile::small(self.modes()) };
        let (mut one_in, mut warm_up_steps) = (4, 60);
        if self == Self::Small {
            (profile.clients, profile.sectors_max, profile.window_bytes) = (3, 8, 128 << 10);
            (one_in, warm_up_steps) = (2, 30);
        }
        if self == Self::LongLog {
            (profile.ssd.bytes, one_in, warm_up_steps) = (18 << 20, 12, 1500);
            (profile.window_bytes, profile.sectors_max) = (64 << 10, 32);
        }
        if self == Self::Congested {
            (profile.settings.congested_us, one_in, warm_up_steps) = (1, 4, 20);
        }
        if self == Self::Crowd {
            (profile.clients, profile.steps, profile.window_bytes) = (10, 20, 64 << 10);
            (profile.sectors_max, profile.align_sectors) = (8, 8);
            (profile.ssd.latency_ns, one_in, warm_up_steps) = (300_000, 2, 20);
        }
        if self == Self::Busy {
            (profile.clients, profile.steps, profile.sectors_max) = (16, 16, 480);
            (profile.ssd.latency_ns, one_in, warm_up_steps) = (300_000, 10, 10);
            profile.ssd_faults.rates = vec![(FaultKind::LatencySpike, 60)];
        }
        if self == Self::Eager {
            (profile.window_bytes, one_in, warm_up_steps) = (512 << 10, 4, 60);
            (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (4, 1);
        }
        if self == Self::Pinned {
            (one_in, profile.clients, profile.steps) = (u64::MAX, 16, 400);
            (profile.window_bytes, profile.sectors_max) = (128 << 10, 96);
            (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (4, 1);
            profile.ssd_faults.rates = vec![(FaultKind::SlowRead, 30)];
        }
        if self == Self::RefusedEvacuation {
            profile.origin_faults.rates = vec![(FaultKind::WriteErrorForEver, 2)];
        }
        if matches!(self, Self::Evacuation | Self::RefusedEvacuation) {
            (profile.clients, profile.window_bytes, profile.sectors_max) = (10, 64 << 10, 8);
            (profile.ssd.latency_ns, one_in, warm_up_steps) = (300_000, 8, 20);
            profile.ssd_faults.rates = vec![(FaultKind::WriteErrorForEver, 60)];
        }
        if self == Self::FailedFlush {
            profile.ssd_faults.rates = vec![(FaultKind::FlushError, 4)];
        }
        if self == Self::FlushLoss {
            (profile.window_bytes, one_in, warm_up_steps) = (512 << 10, 16, 60);
            (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (4, 1);
            profile.origin_faults.rates = vec![(FaultKind::FlushLoss, 4)];
        }
        if matches!(self, Self::Zeroes | Self::LongZeroes) {
            (one_in, warm_up_steps) = zeroes(&mut profile, self == Self::LongZeroes);
        }
        if self == Self::Streams {
            (one_in, warm_up_steps) = streams(&mut profile);
        }
        if self == Self::Spikes {
            (one_in, profile.clients, profile.steps) = (u64::MAX, 12, 200);
            (profile.sectors_max, profile.window_bytes) = (64, 512 << 10);
            (profile.ssd.latency_ns, profile.origin.latency_ns) = (200_000, 20_000);
            profile.ssd_faults.rates = vec![(FaultKind::LatencySpike, 30)];
        }
        if self == Self::Stripes {
            (one_in, profile.clients, profile.steps) = (u64::MAX, 12, 200);
            (profile.sectors_max, profile.window_bytes) = (32, 256 << 10);
            (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (4, 1);
            let (data_bytes, chunk_bytes, parity_chunks) = (64 << 10, 16 << 10, 2);
            profile.origin.stripe = Some(StripeShape { data_bytes, chunk_bytes, parity_chunks });
            profile.origin_faults.rates = vec![(FaultKind::LatencySpike, 30)];
        }
        Plan { profile, seed: 0, one_in, warm_up_steps, only: None }
    }
}

/// Clients with long streams before a slow origin; how many events a crash is one of, and the steps before.
fn streams(profile: &mut Profile) -> (u64, u64) {
    profile.streams = true;
    (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (10, 2);
    profile.origin.latency_ns = 2_000_000;
    (16, 20)
}

/// Clients that zero long ranges; how many events a crash is one of, and the steps before.
fn zeroes(profile: &mut Profile, are_long: bool) -> (u64, u64) {
    (profile.zeroes, profile.origin.zeroing_discards) = (true, true);
    if !are_long {
        profile.window_bytes = 512 << 10;
        return (8, 60);
    }
    (profile.clients, profile.steps, profile.window_bytes) = (10, 40, 1 << 20);
    (profile.sectors_max, profile.align_sectors, profile.ssd.latency_ns) = (32, 8, 300_000);
    profile.settings.admission = AdmissionKind::Always;
    (16, 20)
}

const CANARIES: [(Canary, Worlds); 42] = [
    (Canary::CongestedUnchecked, Worlds::Congested),
    (Canary::OverwrittenAnsweredEarly, Worlds::Crowd),
    (Canary::HolesUnlocked, Worlds::Stripes),
    (Canary::FlushSkipped, Worlds::WriteBack),
    (Canary::RecordChecksumIgnored, Worlds::Busy),
    (Canary::TornDataTaken, Worlds::WriteBack),
    (Canary::DataChecksumIgnored, Worlds::BitRot),
    (Canary::LabelBeforeBody, Worlds::WriteBack),
    (Canary::DirtyBitLost, Worlds::WriteBack),
    (Canary::DropForgotten, Worlds::Mixed),
    (Canary::MergeTorn, Worlds::WriteBack),
    (Canary::SegmentReusedEarly, Worlds::LongLog),
    (Canary::IntentSkipped, Worlds::Past),
    (Canary::EpochsMixed, Worlds::Ordered),
    (Canary::LockShared, Worlds::WriteBack),
    (Canary::AckOutOfOrder, Worlds::Busy),
    (Canary::CleanBeforeFlush, Worlds::Eager),
    (Canary::DestageBeforeDurable, Worlds::Eager),
    (Canary::GenerationIgnored, Worlds::Small),
    (Canary::PendingRead, Worlds::Spikes),
    (Canary::PinIgnored, Worlds::Pinned),
    (Canary::PinLeaked, Worlds::WriteBack),
    (Canary::BufferLeaked, Worlds::WriteBack),
    (Canary::EvacuationPassed, Worlds::Evacuation),
    (Canary::PassUnrecorded, Worlds::Evacuation),
    (Canary::PassBesideDirty, Worlds::Evacuation),
    (Canary::RecordNotUndone, Worlds::Evacuation),
    (Canary::RecordNotReadBack, Worlds::Evacuation),
    (Canary::WholeRecordUndone, Worlds::RefusedEvacuation),
    (Canary::FailedFlushBelieved, Worlds::FailedFlush),
    (Canary::FailedFlushForgotten, Worlds::FlushLoss),
    (Canary::SampleIgnored, Worlds::Swarm),
    (Canary::SilentSsdGivenUp, Worlds::Swarm),
    (Canary::SilentSsdPassed, Worlds::Swarm),
    (Canary::IntentBitsUnasked, Worlds::Past),
    (Canary::ZeroesPassDirty, Worlds::Zeroes),
    (Canary::StreamsPassDirty, Worlds::Streams),
    (Canary::LongLockEarly, Worlds::LongZeroes),
    (Canary::QueuedLinesStay, Worlds::LongZeroes),
    (Canary::NewsWaitedFor, Worlds::Full),
    (Canary::BoundNotKept, Worlds::Swarm),
    (Canary::FlushToldEarly, Worlds::Takeover),
];

/// Those that every run of the tests looks for: quick to find, and together of every oracle.
const SAMPLE: [&str; 14] = [
    "FlushSkipped",
    "TornDataTaken",
    "LabelBeforeBody",
    "DirtyBitLost",
    "MergeTorn",
    "LockShared",
    "PinLeaked",
    "BufferLeaked",
    "DataChecksumIgnored",
    "EpochsMixed",
    "IntentSkipped",
    "CleanBeforeFlush",
    "NewsWaitedFor",
    "FlushToldEarly",
];

/// Runs a scenario of the swarm.
fn run_scenario(scenario: &Scenario) {
    if let Some(failure) = swarm::run(scenario, false).failure {
        panic!("{}", failure.message);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Where a run is: printed when it fails without a canary.
struct FailureNote(Rc<Ledger>);

impl Drop for FailureNote {
    fn drop(&mut self) {
        if std::thread::panicking() && !EXPECTED.get() {
            eprintln!("failed at: {}\n{}", self.0.place().0, self.0.tale().join("\n"));
        }
    }
}

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Panics that are looked for say nothing; others do, and those of scenarios are kept for them.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        catch_panics();
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                default(info);
            }
        }));
    });
}

/// Runs one seed with a bug; what was said when it was found.
fn found(canary: Canary, kind: Worlds, seed: u64) -> Option<String> {
    choose(Some(canary));
    EXPECTED.set(true);
    let caught = catch_unwind(AssertUnwindSafe(|| kind.run(seed)));
    EXPECTED.set(false);
    choose(None);
    let payload = caught.err()?;
    let text = payload.downcast_ref::<String>().cloned();
    Some(text.or(payload.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default())
}

/// The oracle that said this.
fn oracle(said: &str) -> &'static str {
    let signs = [
        ("not at rest", "leaks and accounts"),
        ("does not come back", "recovery"),
        ("no flush fits", "order of flushes"),
        ("the published", "what was told"),
        ("but not dirty", "dirty sets"),
        ("never written, is dirty", "dirty sets"),
        ("stands still", "liveness"),
        ("does not end", "liveness"),
        ("runs in circles", "liveness"),
        ("; allowed: ", "contents"),
        ("reading ", "errors"),
        ("drain", "errors"),
    ];
    signs.iter().find(|sign| said.contains(sign.0)).map_or("assertion", |sign| sign.1)
}

/// Looks for a canary: its row of the table, and whether it was found.
fn row_of((canary, kind): (Canary, Worlds)) -> (String, bool) {
    budget::take_worlds();
    let report =
        (0..kind.seeds()).find_map(|seed| found(canary, kind, seed).map(|said| (seed + 1, said)));
    let worlds = budget::take_worlds();
    match report {
        Some((seeds, said)) => {
            let oracle = oracle(&said);
            (format!("| {canary:?} | {kind:?} | {seeds} | {worlds} | {oracle} | {said} |"), true)
        }
        None => {
            (format!("| {canary:?} | {kind:?} | {} | {worlds} | MISSED |", kind.seeds()), false)
        }
    }
}

#[test]
fn every_canary_is_found_within_its_budget() {
    hush();
    println!("| canary | kind | seeds | worlds | oracle | what it said |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let chosen = hunt::chosen(&CANARIES, |(canary, _)| format!("{canary:?}"), &SAMPLE);
    hunt::all_are_found(&chosen, row_of);
}

/// The names of all of them, and of the worlds, for `VOLTIER_SIM_CANARY`.
pub(crate) fn names() -> Vec<String> {
    let worlds = Worlds::ALL.map(|kind| format!("{kind:?}"));
    CANARIES.map(|(canary, _)| format!("{canary:?}")).into_iter().chain(worlds).collect()
}

#[test]
fn nothing_is_found_without_a_canary() {
    // Without a name, those in which a bug is looked for.
    let canaries = hunt::chosen(&CANARIES, |(canary, _)| format!("{canary:?}"), &SAMPLE);
    let kinds = hunt::chosen(&Worlds::ALL, |kind| format!("{kind:?}"), &[]).into_iter();
    let of_canaries =
        Worlds::ALL.into_iter().filter(|kind| canaries.iter().any(|(_, of)| of == kind));
    let kinds: BTreeSet<Worlds> = kinds.chain(of_canaries).collect();
    for kind in kinds {
        budget::take_worlds();
        let count = hunt::sampled(kind.seeds());
        let seeds = number("VOLTIER_SIM_SEED").map_or(0..count, |it| it..it + 1);
        seeds.for_each(|seed| kind.run(seed));
        println!("{kind:?}: {} worlds, nothing found", budget::take_worlds());
    }
}

/// The beginning of a kept scenario that was drawn for a canary.
const DRAWN_FOR: &str = "canaries ";

fn run_with(canary: Canary, scenario: &Scenario) -> Outcome {
    choose(Some(canary));
    let outcome = swarm::run(scenario, false);
    choose(None);
    outcome
}

/// Looks for a seed of the swarm that finds a canary, and prints the line to be kept.
fn draw(canary: Canary, seeds: std::ops::Range<u64>) {
    let found = seeds.map(Scenario::of_seed).find_map(|scenario| {
        let failure = run_with(canary, &scenario).failure?;
        Some((scenario, failure))
    });
    match found {
        Some((scenario, failure)) => {
            println!("{} - {DRAWN_FOR}{canary:?} ({})", scenario.seed, failure.message);
        }
        None => println!("{canary:?}: no seed"),
    }
}

/// The swarm finds canaries too. A scenario that was kept for one may lose its point when seeds draw
/// something else than before. So most of them must still find theirs, not all. `VOLTIER_SIM_DRAW=n`
/// draws new ones, among n seeds for each canary.
#[test]
fn scenarios_of_the_swarm_find_the_canaries_they_are_kept_for() {
    hush();
    let (mut kept_for, mut found) = (0, 0);
    for (canary, _) in CANARIES {
        if let Some(count) = number("VOLTIER_SIM_DRAW") {
            draw(canary, 1..1 + count);
            continue;
        }
        let name = format!("{canary:?}");
        let is_for = |kept: &&Kept| {
            let names = kept.why.strip_prefix(DRAWN_FOR);
            names.is_some_and(|names| names.split(' ').any(|it| it == name))
        };
        let scenarios = regressions().expect("the list can be read");
        for Kept { scenario, .. } in scenarios.iter().filter(is_for) {
            kept_for += 1;
            let failure = run_with(canary, scenario).failure;
            found += u64::from(failure.is_some());
            let said = failure.map_or("not found any more".to_owned(), |it| it.message);
            println!("{canary:?}: {}: {said}", command(scenario));
        }
    }
    assert!(2 * found >= kept_for, "{found} of {kept_for}: draw new ones");
}
