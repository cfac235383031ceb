//! Writes that fail in an array without redundancy: what is computed from their stripes is never served.

use voltier_array::{
    Array, AssembleOptions, Consistency, Level, MemberIndex, MetadataError, StripeNumber,
    StripeSlot,
};
use voltier_block::{IoError, IoResult, MIB, SECTOR_BYTES};

use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{World, made, on_media, read, refused, with_drives, write};

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const FORCE: AssembleOptions = AssembleOptions { force: true, degraded: false };
/// A block of the second chunk of the first stripe.
const SECOND: u64 = 16;
const SECOND_NS: u64 = 1_000_000_000;

/// The member of a slot of the first stripe.
fn member(array: &Array<Drive>, slot: usize) -> usize {
    let MemberIndex(member) = array.geometry().member_of(StripeNumber(0), StripeSlot(slot));
    member
}

/// The first sector of the first chunk of every member.
fn first_chunk(how: Consistency) -> u64 {
    // Labels and journal have one MiB each.
    let areas = if how == Consistency::Journal { 2 } else { 1 };
    areas * MIB / SECTOR_BYTES
}

/// An array of three without the member that has the first chunk, in whose first stripe a write fails. The
/// drive of the parity is well again then.
async fn with_a_failed_write(world: &World, how: Consistency) -> Array<Drive> {
    let array = made(world, Level::Raid5, 3, how).await;
    write(&array, 0, 1).await.expect("write");
    write(&array, SECOND, 2).await.expect("write");
    array.fail(MemberIndex(member(&array, 0))).expect("one may go");
    let parity = &world.drives[member(&array, 2)];
    parity.unwritable.borrow_mut().insert(first_chunk(how));
    assert_eq!(write(&array, SECOND, 3).await, Err(IoError::Medium));
    parity.unwritable.borrow_mut().clear();
    array
}

#[test]
fn a_stop_in_order_does_not_make_a_failed_write_right() {
    for how in [Consistency::Bitmap, Consistency::None] {
        with_drives(3, move |world| async move {
            let array = with_a_failed_write(&world, how).await;
            assert_eq!(read(&array, 0).await, Err(IoError::Medium), "what is computed is wrong");
            let lost = member(&array, 0);
            array.stop().await.expect("stop");
            drop(array);
            let error = refused(&world, &[0, 1, 2], PLAIN).await;
            let expected = MetadataError::DirtyDegraded { regions: 1, missing: vec![lost] };
            assert_eq!(error, expected, "{how:?}");
            let (array, _) = world.assemble(&[0, 1, 2], FORCE).await.expect("by choice");
            assert_eq!(read(&array, SECOND).await, Ok(3));
        });
    }
}

#[test]
fn with_a_journal_a_failed_write_is_redone_when_its_member_takes_writes() {
    with_drives(3, |world| async move {
        let array = with_a_failed_write(&world, Consistency::Journal).await;
        world.handle.sleep(20 * SECOND_NS).await;
        assert_eq!((read(&array, 0).await, read(&array, SECOND).await), (Ok(1), Ok(3)));
        write(&array, SECOND, 4).await.expect("it serves");
        array.stop().await.expect("stop");
        drop(array);
        let (array, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("enough");
        assert!(report.was_clean, "{report:?}");
        assert_eq!((read(&array, 0).await, read(&array, SECOND).await), (Ok(1), Ok(4)));
        array.stop().await.expect("stop");
    });
}

/// A place of a member at which a write fails.
#[derive(Clone, Copy, Debug)]
enum Fails {
    /// The ring of the member that has the data or the parity, which takes the record all the same.
    RingOf(usize),
    /// The place of the data or of the parity itself, which takes nothing.
    Place(usize),
}

/// The content of the second chunk in an array without redundancy, after a write of 3 over 2 that ends with
/// an error. The first content is read then, the second after a crash and a start.
fn after_a_failed_write(fails: Fails) -> (IoResult<u8>, IoResult<u8>) {
    let (before, media) = on_media(vec![Medium::default(); 3], move |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        write(&array, 0, 1).await.expect("write");
        write(&array, SECOND, 2).await.expect("write");
        array.fail(MemberIndex(member(&array, 0))).expect("one may go");
        write(&array, SECOND, 2).await.expect("write");
        match fails {
            // The ring begins at one MiB, behind two copies of its label.
            Fails::RingOf(slot) => {
                let ring = MIB / SECTOR_BYTES + 16..2 * MIB / SECTOR_BYTES;
                world.drives[member(&array, slot)].denied.replace(ring);
            }
            Fails::Place(slot) => {
                let at = first_chunk(Consistency::Journal);
                world.drives[member(&array, slot)].unwritable.borrow_mut().insert(at);
            }
        }
        assert_eq!(write(&array, SECOND, 3).await, Err(IoError::Medium), "{fails:?}");
        (read(&array, SECOND).await, world.media())
    });
    on_media(media, move |world| async move {
        let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("enough");
        (before, read(&array, SECOND).await)
    })
}

/// A known gap: while a place takes nothing, reads return what is in place, and a replay redoes the write later.
#[test]
fn a_write_that_fails_without_redundancy_and_is_in_the_rings_is_redone_by_a_replay() {
    assert_eq!(after_a_failed_write(Fails::Place(1)), (Ok(2), Ok(3)), "the data have no place");
    for fails in [Fails::RingOf(1), Fails::RingOf(2), Fails::Place(2)] {
        assert_eq!(after_a_failed_write(fails), (Ok(3), Ok(3)), "{fails:?}: the data are in place");
    }
}

#[test]
fn a_failed_write_without_parity_does_not_keep_a_stop_from_being_clean() {
    let media = with_media_of_a_failed_write();
    on_media(media, |world| async move {
        let (array, report) = world.assemble(&[0, 1], PLAIN).await.expect("all");
        assert!(report.was_clean);
        assert_eq!(read(&array, 0).await, Ok(1));
    });
}

fn with_media_of_a_failed_write() -> Vec<Medium> {
    on_media(vec![Medium::default(); 2], |world| async move {
        let array = made(&world, Level::Raid0, 2, Consistency::Bitmap).await;
        write(&array, 0, 1).await.expect("write");
        let first = &world.drives[member(&array, 0)];
        first.unwritable.borrow_mut().insert(first_chunk(Consistency::Bitmap));
        assert_eq!(write(&array, 0, 2).await, Err(IoError::Medium));
        first.unwritable.borrow_mut().clear();
        array.stop().await.expect("stop");
        world.media()
    })
}
