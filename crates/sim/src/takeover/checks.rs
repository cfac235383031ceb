//! What must hold of the image, and of what the first host said.

use voltier_block::{Lba, Nanos};
use voltier_cache::Unshipped;

use super::history::{Lacks, head};
use super::plan::Plan;
use super::process::Process;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::workload::Profile;
use crate::world::World;

/// What the image was when the lock was broken.
pub(super) struct Fallen {
    pub(super) image: Medium,
    pub(super) at_ns: Nanos,
    /// What the first host would have published at that moment.
    pub(super) unshipped: Option<Unshipped>,
}

/// The first bytes of a sector of a medium.
pub(super) fn head_at(medium: &Medium, at: Lba) -> u64 {
    let mut sector = [0; 512];
    medium.peek(at, &mut sector);
    head(&sector)
}

fn sectors(profile: &Profile) -> impl Iterator<Item = u64> + use<> {
    profile.windows().into_iter().flat_map(|window| window.start.0..window.end().0)
}

/// A volume that is what a medium has.
pub(super) fn model_of(profile: &Profile, medium: &Medium) -> Model {
    let mut model = profile.model();
    for sector in sectors(profile) {
        let mut found = [0; 512];
        medium.peek(Lba(sector), &mut found);
        if found != [0; 512] {
            let write = model.begin_write(Lba(sector), &found);
            model.end_write(write, true);
        }
    }
    model
}

/// Holds what was said at a moment to what the image lacks.
fn check_told(world: &World, told: &Unshipped, at_ns: Nanos, lacks: &Lacks) {
    let oldest = lacks.oldest();
    if let Some(flush) = told.shipped_flush.filter(|flush| flush.wall_ns > 0) {
        let complete_ns = world.moment_of_wall(flush.wall_ns);
        let lacking = lacks.before(complete_ns);
        assert!(
            lacking == 0,
            "the published flush is ahead of the image: {lacking} sectors from before it lack, the oldest {oldest:?} \
             before {complete_ns}: {told:?}"
        );
    }
    let known_ns = match told.age {
        None => Some(at_ns),
        Some(age) => (!age.is_older).then(|| at_ns.saturating_sub(age.ns)),
    };
    if let Some(known_ns) = known_ns {
        let lacking = lacks.before(known_ns);
        assert!(
            lacking == 0,
            "the published age is too small: {lacking} sectors lack from before it, the oldest {oldest:?} before \
             {known_ns}: {told:?}"
        );
    }
    let lacking = lacks.before(at_ns) as u64 * 512;
    assert!(lacking <= told.bytes, "the image lacks {lacking} bytes, and published was {told:?}");
}

/// Holds what the image lacks to the bound.
fn check_bound(process: &Process, lacks: &Lacks) {
    let bound = process.owner.profile.settings.max_unshipped;
    let last_ns = process.owner.history.borrow().last_ack_ns();
    if bound.age_ns > 0 {
        let lacking = lacks.before(last_ns.saturating_sub(bound.age_ns));
        assert!(
            lacking == 0,
            "acknowledged beyond {bound:?}: at {last_ns}, with {lacking} sectors that the image lacks since {:?}",
            lacks.oldest()
        );
    }
    let bytes = lacks.all() as u64 * 512;
    assert!(bound.bytes == 0 || bytes <= bound.bytes, "{bytes} bytes lack, beyond {bound:?}");
}

/// In modes that do not write back, all that was acknowledged is there, or all that was flushed where a host has
/// writes to itself until it flushes.
fn check_past(plan: &Plan, process: &Process, image: &Medium, lacks: &Lacks) {
    let mut model = process.owner.model.borrow().clone();
    if plan.image_cut == Cut::Power {
        model.power_cut();
    } else {
        assert_eq!(lacks.oldest(), None, "acknowledged past the SSD, and the image lacks it");
    }
    check_model(
        &process.owner.profile,
        &model,
        image,
        "an image of a mode that does not write back",
    );
}

fn check_model(profile: &Profile, model: &Model, image: &Medium, what: &str) {
    for sector in sectors(profile) {
        let mut found = [0; 512];
        image.peek(Lba(sector), &mut found);
        let differs = !model.is_changing(sector) && model.differs(sector, &found);
        assert!(!differs, "{what}: sector {sector} is not what it must be");
    }
}

/// The lock is broken.
pub(super) fn at_the_break(plan: &Plan, process: &Process, fallen: &Fallen, has_crashed: bool) {
    let history = process.owner.history.borrow();
    let read = |at: Lba| head_at(&fallen.image, at);
    let lacks = history.lacks(&read);
    if !process.owner.mode.writes_back() {
        return check_past(plan, process, &fallen.image, &lacks);
    }
    let Some(told) = &fallen.unshipped else { return };
    check_told(&process.owner.world, told, fallen.at_ns, &lacks);
    check_bound(process, &lacks);
    // After a crash the image may be older in part until all is written that the log had then (a known gap).
    let shipped = told.shipped_flush.map(|flush| flush.generation);
    if !has_crashed || shipped == Some(process.generation) {
        history.check_prefix(&read);
    }
}

/// The first host knows that its lock is gone: all that it published until then counts.
pub(super) fn at_the_end(plan: &Plan, process: &Process, fallen: &Fallen) {
    let lacks = process.owner.history.borrow().lacks(&|at: Lba| head_at(&fallen.image, at));
    if !process.owner.mode.writes_back() {
        return check_past(plan, process, &fallen.image, &lacks);
    }
    check_bound(process, &lacks);
    for published in &*process.published.borrow() {
        check_told(&process.owner.world, &published.unshipped, published.at_ns, &lacks);
    }
}

/// All that the other host acknowledged is on the image after a drain.
pub(super) fn other_wrote_all(process: &Process, image: &Medium) {
    let model = process.owner.model.borrow();
    check_model(&process.owner.profile, &model, image, "the image after the other host");
}

/// What the other host did not touch is as it was when the lock was broken.
pub(super) fn untouched_is_as_it_was(process: &Process, then: &Medium, now: &Medium) {
    let history = process.owner.history.borrow();
    for sector in sectors(&process.owner.profile).filter(|it| !history.is_touched(*it)) {
        let (mut old, mut new) = ([0; 512], [0; 512]);
        then.peek(Lba(sector), &mut old);
        now.peek(Lba(sector), &mut new);
        assert!(
            old == new,
            "sector {sector} changed after the lock was broken, and nobody may have"
        );
    }
}
