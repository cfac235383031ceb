//! Members that fail, and what a client sees of it.

use voltier_array::{
    Array, ArrayError, Geometry, GroupIndex, Layout, Level, MemberIndex, StripeSlot,
};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba, MIB};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, NoFiles};

use crate::array::io_counts::with_array;
use crate::array::world::World;

async fn write(world: &World, at: Lba, byte: u8) -> Result<(), IoError> {
    let data = Bytes::copy_of(&[byte; 4096]).into();
    world.array.write(at, data, Durability::Durable).await
}

async fn read(world: &World, at: Lba) -> Result<u8, IoError> {
    let read = world.array.read(at, Buf::new(4096)).await?;
    assert!(read.iter().all(|byte| *byte == read[0]));
    Ok(read[0])
}

/// The member with the first chunk of the volume.
fn first_member(world: &World) -> usize {
    let geometry = world.array.geometry();
    let place = geometry.place_of(Lba(0));
    geometry.member_of(place.stripe, geometry.slot_of_column(place.stripe, place.column)).0
}

#[test]
fn a_medium_error_is_read_from_the_others_and_repaired() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6] {
        with_array(level, 4, &[], |world| async move {
            write(&world, Lba(0), 7).await.expect("write");
            let member = first_member(&world);
            world.watches[member].bad.borrow_mut().insert(3);
            // A mirror may ask another copy first.
            for _ in 0..4 {
                assert_eq!(read(&world, Lba(0)).await, Ok(7));
            }
            if !world.array.geometry().is_mirror() {
                assert_eq!(world.array.counts().repairs, 1);
                assert!(world.watches[member].bad.borrow().is_empty());
            }
            assert!(world.array.is_online(MemberIndex(member)));
        });
    }
}

#[test]
fn a_medium_error_met_by_a_write_is_planned_around() {
    with_array(Level::Raid6, 6, &[], |world| async move {
        write(&world, Lba(0), 1).await.expect("write");
        let geometry = world.array.geometry().clone();
        let stripe = geometry.place_of(Lba(0)).stripe;
        for slot in [0, 4, 5] {
            let watch = &world.watches[geometry.member_of(stripe, StripeSlot(slot)).0];
            watch.bad.borrow_mut().insert(0);
            write(&world, Lba(0), 2 + slot as u8).await.expect("write");
            assert!(watch.bad.borrow().is_empty(), "slot {slot} was written");
            assert_eq!(read(&world, Lba(0)).await, Ok(2 + slot as u8));
        }
        let volume = world.array.read(Lba(0), Buf::new(4 * 16384)).await.expect("read");
        let rest = geometry.sectors() as usize * 512 - volume.len();
        world.check_stripes(&[&volume[..], &vec![0; rest]].concat()).await;
    });
}

#[test]
fn a_member_that_refuses_a_write_is_lost_and_the_write_stands() {
    with_array(Level::Raid5, 4, &[], |world| async move {
        let member = first_member(&world);
        world.watches[member].refuses_writes.set(true);
        assert_eq!(write(&world, Lba(0), 9).await, Ok(()));
        assert!(!world.array.is_online(MemberIndex(member)));
        assert_eq!(read(&world, Lba(0)).await, Ok(9));
        // No redundancy is left: the next refusal is the client's, and no more members go.
        let next = (member + 1) % 4;
        world.watches[next].refuses_writes.set(true);
        let chunk = world.array.geometry().chunk_sectors();
        assert_eq!(write(&world, Lba(chunk), 1).await, Err(IoError::Medium));
        assert!(world.array.is_online(MemberIndex(next)));
        assert_eq!(world.array.counts().members_lost, 1);
    });
}

#[test]
fn with_too_many_lost_requests_fail_and_nothing_is_made_up() {
    for (level, members) in [(Level::Raid0, 3), (Level::Raid5, 4), (Level::Raid60 { group: 4 }, 8)]
    {
        with_array(level, members, &[], |world| async move {
            let allowed = world.array.geometry().parity_chunks();
            let first = first_member(&world);
            let group = world.array.geometry().members_of(GroupIndex(0));
            let lost = group.clone().cycle().skip(first).take(allowed + 1);
            lost.for_each(|member| world.watches[member.0].is_gone.set(true));
            let stripes = world.array.geometry().width() as u64 * 2;
            for stripe in 0..stripes {
                let at = Lba(stripe * world.array.geometry().stripe_sectors());
                let _ = write(&world, at, 1).await;
            }
            assert_eq!(write(&world, Lba(0), 1).await, Err(IoError::Gone));
            assert_eq!(read(&world, Lba(0)).await, Err(IoError::Gone));
            assert_eq!(world.array.flush().await, Err(IoError::Gone));
        });
    }
}

#[test]
fn durability_and_flushes_reach_all_members() {
    with_array(Level::Raid6, 5, &[], |world| async move {
        write(&world, Lba(0), 1).await.expect("write");
        let durable: u64 = world.watches.iter().map(|watch| watch.durable_writes.get()).sum();
        assert_eq!(durable, 3);
        world.array.flush().await.expect("flush");
        assert!(world.watches.iter().all(|watch| watch.flushes.get() == 1));
    });
}

#[test]
fn a_write_whose_client_is_gone_leaves_its_stripe_whole() {
    let geometry = Geometry::new(Level::Raid6, Layout::default(), 6, 4096, 64).expect("possible");
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let world = World::new(&handle, &geometry, 512, &[], 5);
        let bytes = geometry.sectors() as usize * 512;
        let data = Bytes::copy_of(&vec![3; bytes - 4096]);
        let write = world.array.write(Lba(8), data.into(), Durability::Cached);
        let mut write = std::pin::pin!(Some(write));
        let poll_once = std::future::poll_fn(|context| {
            let polled = write.as_mut().as_pin_mut().expect("still there").poll(context);
            assert!(polled.is_pending());
            std::task::Poll::Ready(())
        });
        poll_once.await;
        write.set(None);
        handle.sleep(1_000_000).await;
        let volume = world.array.read(Lba(0), Buf::new(bytes)).await.expect("read");
        assert!(volume[4096..].iter().all(|byte| *byte == 3));
        world.check_stripes(&volume).await;
    });
}

#[test]
fn members_that_do_not_suit_are_refused() {
    let executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let geometry =
        Geometry::new(Level::Raid5, Layout::default(), 3, 65536, 2048).expect("possible");
    let member = |bytes| Some(MemoryDevice::new(bytes));
    let refused = |members| Array::new(&handle, geometry.clone(), members).err();
    assert_eq!(
        refused(vec![member(MIB), member(MIB)]),
        Some(ArrayError::MemberCount { given: 2, expected: 3 })
    );
    assert_eq!(
        refused(vec![member(MIB), member(MIB / 2), None]),
        Some(ArrayError::TooSmall { member: 1, sectors: 1024, needed: 2048 })
    );
    assert_eq!(
        refused(vec![member(MIB), None, None]),
        Some(ArrayError::TooManyLost { group: 0, lost: 2, allowed: 1 })
    );
    let array = Array::new(&handle, geometry, vec![member(MIB), None, member(MIB)]);
    let array = array.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(array.fail(MemberIndex(1)), Ok(()));
    assert_eq!(
        array.fail(MemberIndex(0)),
        Err(ArrayError::TooManyLost { group: 0, lost: 2, allowed: 1 })
    );
    assert!(array.is_online(MemberIndex(0)));
}
