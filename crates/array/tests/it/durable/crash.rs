//! Power cuts at every step. The drives keep any part of what was not flushed. Acknowledged data are
//! there, on all members and on any that are enough.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, BackgroundTask, Consistency, Geometry, Level, MemberIndex,
    MetadataError,
};
use voltier_block::{BlockDevice, Prng};
use voltier_ring::{Executor, NoFiles};

use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{Model, World, on_media, options, read, write};
use crate::sampled::one_in;

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const EITHER: AssembleOptions = AssembleOptions { force: false, degraded: true };

/// Facts that a scenario tells while it goes on.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    pub(crate) model: Rc<RefCell<Model>>,
    /// The making of the array was acknowledged.
    pub(crate) is_made: Rc<Cell<bool>>,
    /// So was its stop.
    pub(crate) is_stopped: Rc<Cell<bool>>,
    /// A start may be refused: not stopped, and members missing.
    pub(crate) may_need_resync: Rc<Cell<bool>>,
}

impl Facts {
    /// Of an array that was made and has ones in these blocks.
    pub(crate) fn after(blocks: [u64; 6]) -> Self {
        let facts = Self::default();
        facts.is_made.set(true);
        for block in blocks {
            facts.model.borrow_mut().acknowledge(block, 1);
        }
        facts
    }

    pub(crate) async fn write(&self, array: &Array<Drive>, block: u64, byte: u8) {
        self.model.borrow_mut().begin(block, byte);
        write(array, block, byte).await.expect("write");
        self.model.borrow_mut().acknowledge(block, byte);
    }
}

/// Starts an array of four, to which a fifth was being added at the cut, without the fifth. Writes a
/// block, and comes back with the fifth if it has become a member. Returns the array without the fifth,
/// its content, and whether the fifth is one of its members by then.
pub(crate) async fn start_without_the_fifth(
    world: &World,
    facts: &Facts,
    block: u64,
    cut: u64,
    has_grown: impl Fn(&Geometry) -> bool,
) -> (Array<Drive>, Model, bool) {
    let (array, _) = world.assemble(&[3, 0, 2, 1], PLAIN).await.expect("enough");
    facts.write(&array, block, 11).await;
    let model = facts.model.borrow().clone();
    let first = model.check(&array, "without the new one").await;
    let has_grown = has_grown(array.geometry());
    assert_eq!(array.status().expect("it has one").is_degraded, has_grown);
    array.stop().await.expect("stop");
    drop(array);
    if matches!(Array::examine(&world.drives[4]).await, Ok(Some(_))) {
        let all = world.assemble(&[2, 4, 1, 0, 3], PLAIN).await;
        let (array, report) = all.expect("all are known");
        assert_eq!(report.left_out.len(), 1, "cut at {cut}");
        assert_eq!(model.check(&array, "with the new one again").await, first);
        array.stop().await.expect("stop");
        drop(array);
    }
    let (array, _) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("all");
    (array, model, has_grown)
}

/// Sectors whose changes take long in a variant of a scenario: none, maps of regions, first superblocks,
/// rings and data.
const SLOW_PLACES: [Range<u64>; 4] = [0..0, 128..2048, 0..8, 2048..u64::MAX];

/// Runs a scenario until it is through or the power is cut; whether it was through.
pub(crate) fn boot<F: Future<Output = ()> + 'static>(
    media: &[Medium],
    cut: u64,
    facts: &Facts,
    scenario: impl Fn(World, Facts) -> F,
) -> (bool, Vec<Medium>) {
    boot_in(0, media, cut, facts, scenario)
}

fn boot_in<F: Future<Output = ()> + 'static>(
    variant: usize,
    media: &[Medium],
    cut: u64,
    facts: &Facts,
    scenario: impl Fn(World, Facts) -> F,
) -> (bool, Vec<Medium>) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let seed = cut + 1000 * variant as u64;
    let world = World::new(&executor.handle(), media.to_vec(), Some(cut), seed);
    for drive in &world.drives {
        drive.slow.replace(SLOW_PLACES[variant].clone());
    }
    let is_through = Rc::new(Cell::new(false));
    let run = scenario(world.clone(), facts.clone());
    let (same, through) = (world.clone(), is_through.clone());
    executor.block_on(async move {
        let (power, done) = (same.power.clone(), through.clone());
        drop(same.handle.spawn(async move {
            run.await;
            done.set(true);
            power.changed.notify();
        }));
        same.power.changed.until(|| same.power.is_cut() || through.get()).await;
    });
    (is_through.get(), world.media())
}

/// Starts the array from these media, and holds it against the facts.
pub(crate) fn check(media: Vec<Medium>, facts: &Facts, when: &str) {
    let (facts, when) = (facts.clone(), when.to_owned());
    on_media(media, move |world| async move {
        let mut order = Vec::new();
        for (number, drive) in world.drives.iter().enumerate() {
            // A drive that is to be a member may not have heard of it yet.
            let is_of_it = matches!(Array::examine(drive).await, Ok(Some(_)))
                || matches!(Array::examine_journal(drive).await, Ok(Some(_)));
            if !facts.is_made.get() || is_of_it {
                order.push(number);
            }
        }
        let turn = when.len() % order.len();
        order.rotate_left(turn);
        let mut assembled = world.assemble(&order, AssembleOptions::default()).await;
        let needs_resync =
            matches!(assembled, Err(ArrayError::Metadata(MetadataError::DirtyDegraded { .. })));
        if needs_resync && facts.may_need_resync.get() {
            let force = AssembleOptions { force: true, degraded: false };
            assembled = world.assemble(&order, force).await;
        }
        let (array, report) = match assembled {
            Ok(assembled) => assembled,
            Err(ArrayError::Metadata(_)) if !facts.is_made.get() => return,
            Err(error) => panic!("{when}: {error}"),
        };
        if facts.is_stopped.get() {
            assert!(report.was_clean && report.regions_to_resync == 0, "{when}");
        }
        let model = facts.model.borrow().clone();
        let first = model.check(&array, &when).await;
        while array.status().is_some_and(|status| status.regions_to_resync > 0) {
            world.handle.sleep(SECOND_NS / 100).await;
        }
        assert_eq!(model.check(&array, &when).await, first, "{when}: after the resync");
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!(model.check(&array, &when).await, first, "{when}: after the rebuild");
        array.stop().await.unwrap_or_else(|error| panic!("{when}: {error}"));
        let status = array.status().expect("it has one");
        let in_service: Vec<bool> =
            (0..status.members.len()).map(|member| array.is_online(MemberIndex(member))).collect();
        drop(array);
        // Without any one of them it is the same, as long as that leaves enough.
        for without in order.clone() {
            if in_service.contains(&false) || status.level == Level::Raid0 {
                break;
            }
            let (media, first) = (world.media(), first.clone());
            let (model, when) = (model.clone(), format!("{when}, without {without}"));
            let rest: Vec<usize> = order.iter().copied().filter(|it| *it != without).collect();
            let boot = World::new(&world.handle, media, None, 7);
            let (array, _) = boot.assemble(&rest, EITHER).await.unwrap_or_else(|error| {
                panic!("{when}: {error}");
            });
            assert_eq!(model.check(&array, &when).await, first, "{when}");
        }
    });
}

/// A scenario with the power cut at every step, each with several luck.
pub(crate) fn at_every_step<F: Future<Output = ()> + 'static>(
    name: &str,
    media: &[Medium],
    before: impl Fn() -> Facts,
    scenario: impl Fn(World, Facts) -> F,
) -> Vec<Medium> {
    at_steps(name, 1, media, before, scenario)
}

/// The same at every so many steps.
pub(crate) fn at_steps<F: Future<Output = ()> + 'static>(
    name: &str,
    stride: usize,
    media: &[Medium],
    before: impl Fn() -> Facts,
    scenario: impl Fn(World, Facts) -> F,
) -> Vec<Medium> {
    for cut in (0..).step_by(one_in(stride)) {
        let facts = before();
        let (is_through, after) = boot(media, cut, &facts, &scenario);
        if is_through {
            assert!(cut > 10, "{name}: nothing happened");
            return after;
        }
        for luck in 0..2 {
            let mut dice = Prng::new(cut * 10 + luck);
            let left = after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
            check(left, &facts, &format!("{name}, cut at {cut}, luck {luck}"));
        }
    }
    unreachable!("some step is the last")
}

/// The same at every step, in variants that order events in other ways: in each other writes take long.
pub(crate) fn at_every_step_in_any_order<F: Future<Output = ()> + 'static>(
    name: &str,
    media: &[Medium],
    before: impl Fn() -> Facts,
    scenario: impl Fn(World, Facts) -> F,
) {
    for variant in 0..SLOW_PLACES.len() {
        for cut in (0..).step_by(one_in(1)) {
            let facts = before();
            let (is_through, after) = boot_in(variant, media, cut, &facts, &scenario);
            if is_through {
                break;
            }
            let mut dice = Prng::new(cut * 100 + variant as u64);
            let left = after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
            check(left, &facts, &format!("{name}, variant {variant}, cut at {cut}"));
        }
    }
}

/// All that may be made of the drives of a fixture.
fn cases() -> Vec<(Level, usize, Consistency)> {
    vec![
        (Level::Raid5, 3, Consistency::Bitmap),
        (Level::Raid5, 3, Consistency::Journal),
        (Level::Raid1, 2, Consistency::Bitmap),
        (Level::Raid6, 4, Consistency::None),
        (Level::Raid0, 2, Consistency::None),
    ]
}

/// The drives of a new array that was stopped.
pub(crate) fn made(level: Level, members: usize, consistency: Consistency) -> Vec<Medium> {
    on_media(vec![Medium::default(); members], move |world| async move {
        let array = world.create(&options(level, members, consistency)).await;
        array.stop().await.expect("stop");
        world.media()
    })
}

pub(crate) fn made_facts() -> Facts {
    let facts = Facts::default();
    facts.is_made.set(true);
    facts
}

#[test]
fn a_cut_while_an_array_is_made_leaves_all_of_it_or_nothing() {
    for (level, members, consistency) in cases() {
        let empty = vec![Medium::default(); members];
        at_every_step("create", &empty, Facts::default, move |world, facts| async move {
            let array = world.create(&options(level, members, consistency)).await;
            facts.is_made.set(true);
            facts.write(&array, 3, 7).await;
        });
    }
}

#[test]
fn a_cut_while_it_serves_loses_nothing_that_was_acknowledged() {
    for (level, members, consistency) in cases() {
        let media = made(level, members, consistency);
        at_every_step("serve", &media, made_facts, move |world, facts| async move {
            let order: Vec<usize> = (0..members).rev().collect();
            let (array, _) = world.assemble(&order, AssembleOptions::default()).await.expect("all");
            facts.write(&array, 1, 1).await;
            facts.write(&array, 40, 2).await;
            // Another region, while the first is cleared.
            world.handle.sleep(11 * SECOND_NS).await;
            facts.write(&array, 600, 3).await;
            facts.write(&array, 1, 4).await;
            array.flush().await.expect("flush");
        });
    }
}

#[test]
fn a_cut_while_it_is_stopped_leaves_it_clean_or_dirty() {
    for (level, members, consistency) in cases() {
        let media = made(level, members, consistency);
        at_every_step("stop", &media, made_facts, move |world, facts| async move {
            let order: Vec<usize> = (0..members).collect();
            let (array, _) = world.assemble(&order, AssembleOptions::default()).await.expect("all");
            facts.write(&array, 5, 5).await;
            array.stop().await.expect("stop");
            facts.is_stopped.set(true);
            world.handle.sleep(11 * SECOND_NS).await;
            // One step more, to cut behind the stop.
            let stray = &world.drives[0];
            stray.flush().await.expect("flush");
        });
    }
}

#[test]
fn a_lost_member_that_comes_back_is_not_believed() {
    for (level, members, consistency) in cases() {
        if level == Level::Raid0 {
            continue;
        }
        let media = made(level, members, consistency);
        let before = || {
            let facts = made_facts();
            facts.may_need_resync.set(consistency != Consistency::Journal);
            facts
        };
        let after = at_every_step("loss", &media, before, move |world, facts| async move {
            let order: Vec<usize> = (0..members).collect();
            let (array, _) = world.assemble(&order, AssembleOptions::default()).await.expect("all");
            facts.write(&array, 1, 1).await;
            world.drives[1].is_gone.set(true);
            // Each in a stripe of its own: a start by force does not vouch for the others of a stripe
            // that was being written.
            for (block, byte) in [(1, 2), (40, 3), (70, 4), (600, 5)] {
                facts.write(&array, block, byte).await;
            }
            world.drives[1].is_gone.set(false);
        });
        let dice = &mut Prng::new(5);
        let after: Vec<Medium> = after.iter().map(|it| it.after_power_cut(dice)).collect();
        on_media(after, move |world| async move {
            let order: Vec<usize> = (0..members).collect();
            let force = AssembleOptions { force: true, degraded: false };
            let (array, report) = world.assemble(&order, force).await.expect("enough");
            assert_eq!(report.left_out.iter().map(|it| it.member).collect::<Vec<_>>(), [1]);
            assert_eq!(read(&array, 600).await, Ok(5));
        });
    }
}

#[test]
fn with_a_journal_a_cut_while_degraded_damages_nothing_in_the_stripes_being_written() {
    for (level, members) in [(Level::Raid5, 3), (Level::Raid6, 4)] {
        let media = made(level, members, Consistency::Journal);
        at_every_step("degraded", &media, made_facts, move |world, facts| async move {
            let order: Vec<usize> = (0..members).collect();
            let (array, _) = world.assemble(&order, AssembleOptions::default()).await.expect("all");
            world.drives[1].is_gone.set(true);
            // Two chunks of each stripe, one of which is computed from the other.
            for (block, byte) in [(1, 1), (17, 2), (1, 3), (33, 4), (49, 5), (17, 6), (600, 7)] {
                facts.write(&array, block, byte).await;
            }
            world.drives[1].is_gone.set(false);
        });
    }
}

#[test]
fn a_cut_while_parity_is_made_anew_is_gone_on_from() {
    let media = made(Level::Raid5, 3, Consistency::Bitmap);
    let order = [2, 0, 1];
    // In the middle of a write: some members have it.
    let facts = made_facts();
    let (is_through, after) = boot(&media, 130, &facts, |world, facts| async move {
        let (array, _) = world.assemble(&order, AssembleOptions::default()).await.expect("all");
        for block in 0..100 {
            facts.write(&array, block, block as u8).await;
        }
    });
    assert!(!is_through);
    let mut dice = Prng::new(2);
    let torn: Vec<Medium> = after.iter().map(|it| it.after_power_cut(&mut dice)).collect();
    let model = facts.model.clone();
    let before = || Facts { model: Rc::new(RefCell::new(model.borrow().clone())), ..made_facts() };
    at_every_step("resync", &torn, before, move |world, facts| async move {
        let (array, report) =
            world.assemble(&order, AssembleOptions::default()).await.expect("all");
        assert!(report.regions_to_resync > 0 && !report.was_clean);
        facts.write(&array, 200, 9).await;
        while array.status().is_some_and(|status| status.regions_to_resync > 0) {
            world.handle.sleep(SECOND_NS / 100).await;
        }
        world.handle.sleep(21 * SECOND_NS).await;
        assert_eq!(array.status().map(|status| status.regions_dirty), Some(0));
    });
}

#[test]
fn a_start_that_is_cut_off_after_another_cut_leaves_no_member_behind() {
    let media = on_media(vec![Medium::default(); 3], |world| async move {
        let array = world.create(&options(Level::Raid5, 3, Consistency::Journal)).await;
        array.stop().await.expect("stop");
        world.media()
    });
    let facts = Facts::default();
    let start = |world: World, _| async move {
        let _ = world.assemble(&[0, 1, 2], EITHER).await;
    };
    let torn = |media: &[Medium], luck: u64| -> Vec<Medium> {
        let dice = &mut Prng::new(luck);
        media.iter().map(|medium| medium.after_power_cut(dice)).collect()
    };
    let (mut first, mut is_through) = (0, false);
    while !is_through {
        let after;
        (is_through, after) = boot(&media, first, &facts, start);
        let after = torn(&after, first);
        let (mut second, mut is_second_through) = (0, false);
        while !is_second_through {
            let left;
            (is_second_through, left) = boot(&after, second, &facts, start);
            for luck in 0..4 {
                on_media(torn(&left, second + luck), move |world| async move {
                    let assembled = world.assemble(&[2, 0, 1], EITHER).await;
                    let (_, report) = assembled.expect("all of them");
                    let is_whole = report.left_out.is_empty() && report.now_lost.is_empty();
                    assert!(is_whole, "cut at {first}, then at {second}: {report:?}");
                });
            }
            second += 1;
        }
        first += 1;
    }
}
