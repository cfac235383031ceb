//! While an array is stopped, something else comes into the place of a member: a copy of the member from an
//! earlier moment, another array, the SSD of a cache. The next start must not believe it, and when it is put back
//! as the member it must be filled anew.

use std::rc::Rc;

use voltier_array::{
    Array, Consistency, CreateOptions, Integrity, Level, MemberIndex, Replacement,
};
use voltier_block::Prng;

use crate::arrays::checks::{check_all, check_members, check_refused};
use crate::arrays::clients::run_clients;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::operator::finish;
use crate::arrays::page_rot::victims;
use crate::arrays::reuse::{OTHER_UUID, check_labels, label_as_ssd};
use crate::arrays::sets::{DriveSet, MemberSet};
use crate::arrays::setup::uuid;
use crate::arrays::start::{is_stranger, shuffled, start, start_again};
use crate::arrays::trial::Trial;
use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::medium::Medium;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const COPIES: u64 = 0x636f_7069_6576_f534;
/// One seed in so many.
const ONE_IN: u64 = 4;
/// Steps of each client before and after a copy is made.
const STEPS: u64 = 2;

/// What comes into the place of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Substitute {
    /// A copy that was made while the array was in use, before it was stopped.
    CopyInUse,
    /// A copy that was made before the array was started.
    CopyBeforeStart,
    /// Another array.
    OtherArray,
    /// The SSD of a cache.
    Ssd,
}

const SUBSTITUTES: [Substitute; 6] = [
    Substitute::CopyInUse,
    Substitute::CopyInUse,
    Substitute::CopyBeforeStart,
    Substitute::CopyBeforeStart,
    Substitute::OtherArray,
    Substitute::Ssd,
];

/// A member, and its drive.
type Victim = (MemberIndex, usize);

/// The dice of the seed for this, if the seed draws it.
pub(super) fn drawn(seed: u64) -> Option<Prng> {
    let mut dice = Prng::new(seed ^ COPIES);
    dice.one_in(ONE_IN).then_some(dice)
}

/// Stops the array, puts something else in the place of members, starts it, puts the drives back and checks all
/// of it.
pub(crate) async fn put_back(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    if fixture.geometry().parity_chunks() == 0 {
        return;
    }
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    finish(fixture).await;
    if !fixture.is_all_online() {
        return;
    }
    fixture.disks.iter().for_each(SimDisk::mend);
    let victims = victims(fixture, &mut dice);
    let substitute = *dice.pick(&SUBSTITUTES);
    fixture.world.tell(|| format!("{substitute:?} for {victims:?}"));
    let copies = match substitute {
        Substitute::CopyInUse => copy_in_use(fixture, &victims, &mut dice).await,
        Substitute::CopyBeforeStart => {
            stop(fixture).await;
            let copies = copies_of(fixture, &victims);
            start_again(fixture, Prng::new(dice.next_u64())).await;
            copies
        }
        Substitute::OtherArray | Substitute::Ssd => Vec::new(),
    };
    run_clients(fixture, STEPS).await;
    stop(fixture).await;
    for (drive, copy) in copies {
        fixture.world.ledger().fault(FaultKind::StaleSsd);
        fixture.disks[drive].put_in(copy);
    }
    let drives: DriveSet = victims.iter().map(|(_, drive)| *drive).collect();
    let is_copy = matches!(substitute, Substitute::CopyInUse | Substitute::CopyBeforeStart);
    if !is_copy {
        use_elsewhere(fixture, substitute, &victims, &mut dice).await;
        refuse(fixture, drives, &mut dice).await;
    }
    start_without(fixture, &victims, is_copy, &mut dice).await;
    check_all(fixture, "beside what is in the place of members").await;
    fill_anew(fixture, &victims).await;
    finish(fixture).await;
    check_all(fixture, "after what was in the place of members was filled").await;
}

/// Stops the array, and waits until no drive has a request.
async fn stop(fixture: &Rc<ArrayFixture>) {
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    fixture.stop().await;
    fixture.drop_array();
}

fn copies_of(fixture: &ArrayFixture, victims: &[Victim]) -> Vec<(usize, Medium)> {
    let copy = |(_, drive): &Victim| {
        let mut medium = fixture.disks[*drive].medium();
        // It is read, and written elsewhere.
        medium.flush(u64::MAX);
        (*drive, medium)
    };
    victims.iter().map(copy).collect()
}

/// Copies that are made beside clients.
async fn copy_in_use(
    fixture: &Rc<ArrayFixture>,
    victims: &[Victim],
    dice: &mut Prng,
) -> Vec<(usize, Medium)> {
    let own = fixture.clone();
    let clients = async move { run_clients(&own, STEPS).await };
    let clients = fixture.world.handle().spawn(clients);
    fixture.world.handle().sleep(dice.below(30) * fixture.setup.latency_ns).await;
    let copies = copies_of(fixture, victims);
    clients.await;
    copies
}

/// Gives drives of members another use.
async fn use_elsewhere(
    fixture: &ArrayFixture,
    substitute: Substitute,
    victims: &[Victim],
    dice: &mut Prng,
) {
    let mut free = fixture.members.free(&fixture.setup);
    for (number, (_, drive)) in victims.iter().enumerate() {
        // A mirror of two.
        let Some(second) = free.pop().filter(|_| substitute == Substitute::OtherArray) else {
            label_as_ssd(fixture, *drive, dice);
            continue;
        };
        let options = CreateOptions {
            name: "another".to_owned(),
            level: Level::Raid1,
            chunk_bytes: 4096,
            consistency: Consistency::Bitmap,
            integrity: Integrity::None,
            uuid: OTHER_UUID,
            member_uuids: (0..2).map(|member| uuid(2_000 + 2 * number as u64 + member)).collect(),
            ..fixture.setup.options()
        };
        let disks = [*drive, second].map(|drive| fixture.disks[drive].clone()).to_vec();
        let other = Array::create(fixture.world.handle(), &options, disks).await;
        let other = other.expect("an array on other drives");
        other.stop().await.expect("nothing is wrong with it");
    }
}

/// All drives that there are: members, journals, and what was put in the place of members.
fn all(fixture: &ArrayFixture) -> DriveSet {
    let known = fixture.known();
    let gone = (0..fixture.disks.len()).filter(|drive| fixture.disks[*drive].is_gone());
    (known.labelled() | known.journals()) - gone.collect()
}

/// A start with drives that have another use is refused.
async fn refuse(fixture: &Rc<ArrayFixture>, drives: DriveSet, dice: &mut Prng) {
    let given = all(fixture);
    let trial = Trial::of(&fixture.setup, &fixture.lives(), &fixture.known(), given);
    let order = shuffled(given | drives, dice);
    let refused = fixture.assemble(&order, trial.options).await.err();
    assert!(is_stranger(refused.as_ref()), "a drive with another use is not refused: {refused:?}");
}

/// Starts the array; the members of these drives must be out.
async fn start_without(
    fixture: &Rc<ArrayFixture>,
    victims: &[Victim],
    is_given: bool,
    dice: &mut Prng,
) {
    let drives: DriveSet = victims.iter().map(|(_, drive)| *drive).collect();
    let out: MemberSet = victims.iter().map(|(member, _)| member.0).collect();
    let given = if is_given { all(fixture) | drives } else { all(fixture) - drives };
    let mut trial = Trial::of(&fixture.setup, &fixture.lives(), &fixture.known(), given);
    let members: MemberSet = (0..fixture.geometry().member_count()).collect();
    trial.usable = members - out;
    let report = start(fixture, &mut trial, dice).await.expect("what was stopped comes back");
    assert!(report.was_clean && report.regions_to_resync == 0, "what was stopped is not clean");
    check_members(fixture, trial.usable);
}

/// Puts the drives in the places of their members.
async fn fill_anew(fixture: &Rc<ArrayFixture>, victims: &[Victim]) {
    let array = fixture.array();
    for (member, drive) in victims {
        let uuid = fixture.come(*drive);
        let replaced = array.replace(*member, fixture.disks[*drive].clone(), uuid).await;
        match replaced {
            Ok(how) => {
                assert_eq!(how, Replacement::Rebuild, "drive {drive} is believed");
                check_labels(fixture, *drive);
            }
            // Started without its only member with large blocks an array has small ones.
            Err(error) => check_refused(fixture, *drive, &error),
        }
    }
}
