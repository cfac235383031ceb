//! Devices that had other uses before the array got them: members or the journal of another array, the SSD of a
//! cache. Nothing of that may be left that a device could be known by.

use std::rc::Rc;

use voltier_array::{Array, CreateOptions};
use voltier_block::{
    BlockDevice, Buf, Durability, LABEL_BYTES, LabelPart, Lba, Prng, SECOND_CACHE_LABEL,
    label_places,
};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::setup::uuid;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const REUSE: u64 = 0x7265_7573_6503_e57d;
/// One seed in so many.
const ONE_IN: u64 = 5;
/// The identity of other arrays than that of the world.
pub(super) const OTHER_UUID: [u8; 16] = *b"another of sims.";
/// Writes to the other array, at most.
const WRITES_MAX: u64 = 12;

/// The dice of the seed for this, if the seed draws it.
pub(super) fn drawn(seed: u64) -> Option<Prng> {
    let mut dice = Prng::new(seed ^ REUSE);
    dice.one_in(ONE_IN).then_some(dice)
}

/// Gives drives uses that end before the array is made.
pub(crate) async fn use_before(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    let setup = &fixture.setup;
    let mut drives: Vec<usize> = (0..setup.member_drives()).collect();
    for last in (1..drives.len()).rev() {
        drives.swap(last, dice.below(last as u64 + 1) as usize);
    }
    let members = setup.geometry.member_count();
    use_in_another_array(fixture, &drives[..members], &drives[members..], &mut dice).await;
    for drive in drives {
        if dice.one_in(3) {
            label_as_ssd(fixture, drive, &mut dice);
        }
    }
}

/// Makes another array over these drives, writes to it and stops it.
async fn use_in_another_array(
    fixture: &ArrayFixture,
    members: &[usize],
    others: &[usize],
    dice: &mut Prng,
) {
    let setup = &fixture.setup;
    let uuids = (0..members.len() as u64).map(|member| uuid(1_000 + member));
    let options = CreateOptions {
        name: "another".to_owned(),
        uuid: OTHER_UUID,
        member_uuids: uuids.collect(),
        ..setup.options()
    };
    let mut journals = others.to_vec();
    journals.extend(setup.member_drives()..setup.drives.len());
    let journal = (setup.has_journal() && dice.one_in(2)).then(|| *dice.pick(&journals));
    fixture.world.tell(|| format!("before: another array on {members:?}, journal {journal:?}"));
    let disks = members.iter().map(|drive| fixture.disks[*drive].clone()).collect();
    let journal = journal.map(|drive| (fixture.disks[drive].clone(), uuid(1_100)));
    let made = Array::create_with_journal(fixture.world.handle(), &options, disks, journal).await;
    // A journal may not have the blocks that the members have.
    let Ok(other) = made else { return };
    let block = u64::from(other.limits().block_bytes);
    for _ in 0..dice.below(WRITES_MAX) {
        let mut data = Buf::new(block as usize);
        dice.fill(&mut data);
        let at = Lba::from_bytes(dice.below(other.limits().bytes() / block) * block);
        other.write(at, data.into(), Durability::Cached).await.expect("nothing is wrong with it");
    }
    other.stop().await.expect("nothing is wrong with it");
}

/// Puts the labels of a cache on a drive as a program may have done that left others where they were.
pub(super) fn label_as_ssd(fixture: &ArrayFixture, drive: usize, dice: &mut Prng) {
    fixture.world.tell(|| format!("drive {drive} becomes the SSD of a cache"));
    let mut label = vec![0; LABEL_BYTES as usize];
    dice.fill(&mut label);
    let magic = LabelPart::Cache.magic();
    label[..magic.len()].copy_from_slice(&magic);
    for at in [0, SECOND_CACHE_LABEL] {
        fixture.disks[drive].overwrite(at, &label);
    }
}

/// Holds a device that came to the array to what it may say.
///
/// # Panics
/// When a label of an earlier use is left.
pub(crate) fn check_labels(fixture: &ArrayFixture, drive: usize) {
    let disk = &fixture.disks[drive];
    for place in label_places(disk.limits().sectors) {
        let mut block = vec![0; LABEL_BYTES as usize];
        disk.peek(place, &mut block);
        let is_of_cache = LabelPart::named_by(&block) == Some(LabelPart::Cache);
        let is_label = LabelPart::named_by(&block).is_some();
        let is_of_other =
            is_label && block.windows(OTHER_UUID.len()).any(|bytes| bytes == OTHER_UUID);
        let is_left = is_of_cache || is_of_other;
        assert!(!is_left, "drive {drive} came, and has the label of an earlier use at {place}");
    }
}
