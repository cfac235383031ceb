//! An array in service: what it reads and writes beside the chunks, and when.

use voltier_array::{Array, AssembleOptions, Consistency, Level, MemberIndex, MemberState, Usage};
use voltier_block::{BlockDevice, Buf, Durability, GIB, IoError, Lba, SectorRange};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, NoFiles};

use crate::durable::drive::Medium;
use crate::durable::world::{World, on_media, options, read, with_drives, write};

const SECOND_NS: u64 = 1_000_000_000;

fn reads(world: &World) -> u64 {
    world.drives.iter().map(|drive| drive.reads.get()).sum()
}

#[test]
fn what_was_never_written_reads_as_zeroes_and_costs_no_io() {
    for level in [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6] {
        with_drives(4, move |world| async move {
            let array = world.create(&options(level, 4, Consistency::Bitmap)).await;
            let before = reads(&world);
            let bytes = array.limits().bytes() as usize;
            let all = array.read(Lba(0), Buf::new(bytes)).await.expect("read");
            assert!(all.iter().all(|byte| *byte == 0));
            assert_eq!(reads(&world), before);
            // The drives hold junk: all of a region is made zero before the first write.
            write(&array, 9, 9).await.expect("write");
            let all = array.read(Lba(0), Buf::new(bytes)).await.expect("read");
            assert!(all.chunks(512).enumerate().all(|(sector, bytes)| {
                bytes.iter().all(|byte| *byte == if sector == 72 { 9 } else { 0 })
            }));
            let status = array.status().expect("it has one");
            assert_eq!((status.regions, status.regions_written), (4, 1));
            // Zeroes over nothing are nothing.
            let end = array.limits().sectors;
            let half = SectorRange::new(Lba(end / 2), end / 2);
            array.write_zeroes(half, Durability::Durable).await.expect("zeroes");
            assert_eq!(array.status().expect("it has one").regions_written, 1);
        });
    }
}

#[test]
fn an_array_of_many_terabytes_is_made_without_touching_its_chunks() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let members: Vec<_> = (0..8).map(|_| MemoryDevice::new(20_000 * GIB)).collect();
        let options = options(Level::Raid6, 8, Consistency::Journal);
        let array = Array::create(&handle, &options, members.clone()).await.expect("possible");
        // Superblocks and the map: three pieces of memory of 2 MiB at most.
        assert!(members.iter().all(|member| member.allocated_bytes() <= 6 << 20));
        let status = array.status().expect("it has one");
        assert!(status.regions <= 1 << 20 && status.regions_written == 0);
        array.stop().await.expect("stop");
        drop(array);
        let assembled = Array::assemble(&handle, members, AssembleOptions::default()).await;
        assert!(assembled.expect("all are there").1.was_clean);
    });
}

#[test]
fn a_loss_is_on_record_before_the_write_is_acknowledged_and_once_for_all() {
    with_drives(4, |world| async move {
        let array = world.create(&options(Level::Raid5, 4, Consistency::Bitmap)).await;
        for block in 0..64 {
            write(&array, block, 1).await.expect("write");
        }
        let before: Vec<u64> = world.drives.iter().map(|it| it.superblock_writes.get()).collect();
        world.drives[2].is_gone.set(true);
        let tasks: Vec<_> = (0..64)
            .map(|block| {
                let (array, drive) = (array.clone(), world.drives[0].clone());
                world.handle.spawn(async move {
                    write(&array, block, 2).await.expect("write");
                    let found = Array::examine(&drive).await.expect("whole").expect("a member");
                    // Any that is acknowledged behind the loss finds it on the others.
                    array.is_online(MemberIndex(2))
                        || found.array.members[2].state == MemberState::Lost
                })
            })
            .collect();
        for task in tasks {
            assert!(task.await);
        }
        let after: Vec<u64> = world.drives.iter().map(|it| it.superblock_writes.get()).collect();
        let written: Vec<u64> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        assert_eq!(written, [2, 2, 0, 2], "two copies, once");
        let status = array.status().expect("it has one");
        assert!(status.is_degraded && status.event == 3);
        assert_eq!(status.members[2].since_event, 3);
    });
}

#[test]
fn dirty_regions_are_cleared_when_writers_rest_but_not_while_a_member_is_out() {
    with_drives(3, |world| async move {
        let array = world.create(&options(Level::Raid5, 3, Consistency::Bitmap)).await;
        let dirty = || array.status().expect("it has one").regions_dirty;
        write(&array, 0, 1).await.expect("write");
        write(&array, 600, 1).await.expect("write");
        assert_eq!(dirty(), 2);
        for _ in 0..8 {
            world.handle.sleep(3 * SECOND_NS).await;
            write(&array, 0, 2).await.expect("write");
        }
        assert_eq!(dirty(), 1);
        world.handle.sleep(20 * SECOND_NS).await;
        assert_eq!(dirty(), 0);
        array.fail(MemberIndex(1)).expect("one may go");
        write(&array, 600, 3).await.expect("write");
        world.handle.sleep(60 * SECOND_NS).await;
        assert_eq!(dirty(), 1);
    });
}

#[test]
fn a_journal_calls_dirty_what_a_lost_member_may_not_have_and_nothing_before() {
    with_drives(3, |world| async move {
        let array = world.create(&options(Level::Raid5, 3, Consistency::Journal)).await;
        let dirty = || array.status().expect("it has one").regions_dirty;
        write(&array, 0, 1).await.expect("write");
        world.handle.sleep(30 * SECOND_NS).await;
        write(&array, 600, 1).await.expect("write");
        assert_eq!(dirty(), 0);
        array.fail(MemberIndex(1)).expect("one may go");
        write(&array, 1100, 1).await.expect("write");
        // The first region was flushed long before.
        assert_eq!(dirty(), 2);
    });
}

#[test]
fn a_stopped_array_takes_no_changes() {
    with_drives(3, |world| async move {
        let array = world.create(&options(Level::Raid5, 3, Consistency::Bitmap)).await;
        write(&array, 0, 1).await.expect("write");
        array.stop().await.expect("stop");
        assert_eq!(write(&array, 0, 2).await, Err(IoError::Gone));
        assert_eq!(array.status().expect("it has one").usage, Usage::Clean);
    });
}

#[test]
fn members_that_cannot_be_spared_are_back_in_service_when_they_are_back() {
    for (level, members, gone) in [(Level::Raid0, 2, 1), (Level::Raid5, 4, 2)] {
        let media = on_media(vec![Medium::default(); members], move |world| async move {
            let array = world.create(&options(level, members, Consistency::Bitmap)).await;
            for block in 0..100 {
                write(&array, block, 1).await.expect("write");
            }
            // All at once: a cable to a shelf.
            world.drives[..gone].iter().for_each(|drive| drive.is_gone.set(true));
            let mut failed = 0;
            for block in 0..100 {
                failed += u64::from(write(&array, block, 1).await.is_err());
            }
            assert!(failed > 0);
            assert!(array.stop().await.is_err());
            world.media()
        });
        on_media(media, move |world| async move {
            let order: Vec<usize> = (0..members).collect();
            let assembled = world.assemble(&order, AssembleOptions::default()).await;
            let (array, report) = assembled.unwrap_or_else(|error| panic!("{level}: {error}"));
            assert!(report.left_out.is_empty() && !report.was_clean);
            for block in 0..100 {
                assert_eq!(read(&array, block).await, Ok(1));
            }
        });
    }
}
