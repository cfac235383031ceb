//! Members refuse requests for a time: all of them at once, as behind an adapter that restarts, or one of them for
//! a moment. Nobody may be given up for that, no spare be used, and no request fail.

use std::rc::Rc;

use voltier_array::MemberIndex;
use voltier_block::{Nanos, Prng};

use crate::arrays::checks::{check_all, check_refused};
use crate::arrays::clients::run_clients;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::operator::finish;
use crate::arrays::sets::MemberSet;
use crate::disk::SimDisk;
use crate::inject::Refused;

/// Mixed into the seed: seeds that do not draw this are as they were, and so are those kept before it was drawn, but
/// for seed 13.
const OUTAGES: u64 = 0x6f75_7461_6791_b5d8;
/// One seed in so many.
const ONE_IN: u64 = 4;
const SECOND_NS: Nanos = 1_000_000_000;
/// All members refuse requests for less than the array waits for them, which is half a minute.
const OUTAGE_NS_MAX: Nanos = 27 * SECOND_NS;
/// One member does so for less than the array waits for one that is alone with it, which is three seconds.
const BLIP_NS_MAX: Nanos = 5 * SECOND_NS / 2;
/// After so long nothing of an outage counts any more.
const OVER_NS: Nanos = 10 * SECOND_NS;

/// The dice of the seed for this, if the seed draws it.
pub(super) fn drawn(seed: u64) -> Option<Prng> {
    let mut dice = Prng::new(seed ^ OUTAGES);
    dice.one_in(ONE_IN).then_some(dice)
}

/// Has members refuse requests beside clients, and checks that it has cost nothing.
pub(crate) async fn refuse_for_a_time(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    finish(fixture).await;
    fixture.disks.iter().for_each(SimDisk::mend);
    add_spare(fixture, &mut dice);
    for _ in 0..1 + dice.below(2) {
        // A journal's device that hangs is a second failure: then the array stays failed until it is started.
        while fixture.disks.iter().any(SimDisk::is_hung) {
            fixture.world.handle().sleep(SECOND_NS).await;
        }
        let (before, spares) = (in_service(fixture), spares(fixture));
        let longest = if dice.one_in(2) {
            refuse_all(fixture, &mut dice)
        } else {
            refuse_one(fixture, before, &mut dice)
        };
        let until = fixture.world.handle().now() + longest + OVER_NS;
        run_clients(fixture, 1 + dice.below(3)).await;
        fixture.world.handle().sleep_until(until).await;
        let now = in_service(fixture);
        assert!(
            (before - now).is_empty(),
            "members {:#b} went out of service for an outage",
            before - now
        );
        assert_eq!(self::spares(fixture), spares, "a spare was used for an outage");
    }
    // What members may have dropped is held against parity after the journal was replayed.
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    check_all(fixture, "after an outage").await;
}

/// All members refuse requests; for how long.
fn refuse_all(fixture: &ArrayFixture, dice: &mut Prng) -> Nanos {
    let most = *dice.pick(&[SECOND_NS / 2, 4 * SECOND_NS, OUTAGE_NS_MAX]);
    let time_ns = 1 + dice.below(most);
    // Who alone takes a change is not compared with others: a group without redundancy waits if its member
    // answers no reads either.
    let refused = if has_redundancy(fixture) && dice.one_in(2) {
        Refused::Changes
    } else if fixture.setup.has_journal() && fixture.is_all_online() && dice.one_in(2) {
        // Without a journal a client hears of a flush that fails.
        Refused::Everything
    } else {
        Refused::ReadsAndChanges
    };
    for member in in_service(fixture).iter() {
        if let Some(drive) = fixture.members.drive_of(&fixture.array(), member) {
            fixture.disks[drive].refuse(refused, time_ns);
        }
    }
    time_ns
}

/// One member refuses changes for a moment; for how long.
fn refuse_one(fixture: &ArrayFixture, in_service: MemberSet, dice: &mut Prng) -> Nanos {
    let most = *dice.pick(&[SECOND_NS / 2, SECOND_NS / 2, BLIP_NS_MAX]);
    let time_ns = 1 + dice.below(most);
    let members: Vec<usize> = in_service.iter().collect();
    let drive = fixture.members.drive_of(&fixture.array(), *dice.pick(&members));
    if let Some(drive) = drive {
        fixture.disks[drive].refuse(Refused::Changes, time_ns);
    }
    time_ns
}

/// The members in service.
fn in_service(fixture: &ArrayFixture) -> MemberSet {
    let array = fixture.array();
    let members = 0..array.geometry().member_count();
    members.filter(|member| array.is_online(MemberIndex(*member))).collect()
}

/// Whether every group can lose a member.
fn has_redundancy(fixture: &ArrayFixture) -> bool {
    let (geometry, in_service) = (fixture.geometry(), in_service(fixture));
    geometry.groups().all(|group| {
        let lost = geometry.members_of(group).filter(|member| !in_service.has(member.0)).count();
        lost < geometry.parity_chunks()
    })
}

fn spares(fixture: &ArrayFixture) -> usize {
    fixture.array().status().expect("an array with superblocks").spares
}

/// Adds a spare to an array that needs none.
fn add_spare(fixture: &ArrayFixture, dice: &mut Prng) {
    let free = fixture.members.free(&fixture.setup);
    if free.is_empty() || !fixture.is_all_online() {
        return;
    }
    let drive = *dice.pick(&free);
    let uuid = fixture.come(drive);
    let added = fixture.array().add_spare(fixture.disks[drive].clone(), uuid);
    added.unwrap_or_else(|error| check_refused(fixture, drive, &error));
}
