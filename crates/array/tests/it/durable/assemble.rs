//! Members that an assembly lets into an array, and those that it refuses.

use voltier_array::{
    Array, ArrayError, AssembleOptions, Consistency, DeviceError, Level, MAP_START_BYTES,
    MemberIndex, MemberState, MetadataError, Usage,
};
use voltier_block::{BlockDevice, Bytes, Durability, Lba, Unsupported};

use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{DRIVE_BYTES, on_media, options, read, refused, with_drives, write};

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const COPY_B: u64 = DRIVE_BYTES - 4096;

/// A stopped array on fresh drives, with something on it.
fn stopped(level: Level, members: usize) -> Vec<Medium> {
    on_media(vec![Medium::default(); members], move |world| async move {
        let array = world.create(&options(level, members, Consistency::Bitmap)).await;
        for block in 0..40 {
            write(&array, block * 7, block as u8 + 1).await.expect("write");
        }
        array.stop().await.expect("stop");
        world.media()
    })
}

fn device(device: usize, error: DeviceError) -> MetadataError {
    MetadataError::Device { device, error }
}

fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![vec![]];
    }
    let with_first = |&first: &usize| {
        let rest: Vec<usize> = of.iter().copied().filter(|it| *it != first).collect();
        permutations(&rest).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    of.iter().flat_map(with_first).collect()
}

#[test]
fn the_members_make_the_array_in_every_order() {
    for level in [Level::Raid6, Level::Raid10] {
        let media = stopped(level, 4);
        for order in permutations(&[0, 1, 2, 3]) {
            on_media(media.clone(), move |world| async move {
                let (array, report) = world.assemble(&order, PLAIN).await.expect("all are there");
                assert!(
                    report.was_clean && report.left_out.is_empty() && report.now_lost.is_empty()
                );
                assert!(report.label_copies_mended.is_empty() && report.regions_to_resync == 0);
                assert_eq!(report.array.usage, Usage::InUse);
                assert_eq!(array.geometry().level(), level);
                for block in 0..40 {
                    assert_eq!(read(&array, block * 7).await, Ok(block as u8 + 1));
                }
                assert_eq!(read(&array, 1).await, Ok(0));
            });
        }
    }
}

#[test]
fn a_stale_member_is_left_out_and_the_array_goes_on_without_it() {
    on_media(stopped(Level::Raid5, 4), |world| async move {
        let (array, _) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("all are there");
        let event = array.status().expect("it has one").event;
        array.fail(MemberIndex(2)).expect("one may go");
        write(&array, 0, 99).await.expect("write");
        assert_eq!(array.status().expect("it has one").event, event + 1);
        array.stop().await.expect("stop");
        drop(array);
        let (array, report) = world.assemble(&[2, 3, 0, 1], PLAIN).await.expect("enough");
        let left: Vec<_> =
            report.left_out.iter().map(|it| (it.device, it.member, it.state)).collect();
        assert_eq!(left, [(0, 2, MemberState::Lost)]);
        assert!(report.was_clean && !array.is_online(MemberIndex(2)));
        assert_eq!(read(&array, 0).await, Ok(99));
        array.stop().await.expect("stop");
        drop(array);
        // With this member instead of another there are too few.
        let error = refused(&world, &[2, 3, 0], PLAIN).await;
        let missing = vec![1];
        let expected = MetadataError::TooFew { group: 0, usable: 2, width: 4, needed: 3, missing };
        assert_eq!(error, expected);
    });
}

#[test]
fn strangers_duplicates_and_blanks_are_refused_by_name() {
    let (media, mut others) = (stopped(Level::Raid5, 3), Vec::new());
    others.extend(on_media(vec![Medium::default(); 3], |world| async move {
        let mut options = options(Level::Raid5, 3, Consistency::Bitmap);
        (options.uuid, options.name) = ([9; 16], "other".to_owned());
        world.create(&options).await.stop().await.expect("stop");
        world.media()
    }));
    let all =
        [media.clone(), vec![others[0].clone(), media[1].clone(), Medium::default()]].concat();
    on_media(all, |world| async move {
        let error = refused(&world, &[0, 1, 3], PLAIN).await;
        let name = "other".to_owned();
        assert_eq!(error, MetadataError::Stranger { device: 2, uuid: [9; 16], name });
        let error = refused(&world, &[0, 1, 2, 4], PLAIN).await;
        assert_eq!(error, MetadataError::Duplicate { first: 1, second: 3, member: 1 });
        let error = refused(&world, &[0, 5, 1], PLAIN).await;
        assert_eq!(error, device(1, DeviceError::NoSuperblock));
        assert_eq!(refused(&world, &[], PLAIN).await, MetadataError::NoDevices);
    });
}

#[test]
fn an_old_half_is_not_started_unasked_and_two_halves_are_never_joined() {
    on_media(stopped(Level::Raid1, 2), |world| async move {
        let error = refused(&world, &[0], PLAIN).await;
        assert_eq!(error, MetadataError::MayBeOld { missing: vec![1] });
        for half in 0..2 {
            let options = AssembleOptions { degraded: true, ..PLAIN };
            let (array, report) = world.assemble(&[half], options).await.expect("by choice");
            assert_eq!(report.now_lost, [1 - half]);
            write(&array, 3, 50 + half as u8).await.expect("write");
            array.stop().await.expect("stop");
        }
        for order in [[0, 1], [1, 0]] {
            let error =
                refused(&world, &order, AssembleOptions { force: true, degraded: true }).await;
            assert!(matches!(error, MetadataError::Diverged { .. }), "{error}");
        }
    });
    // One of three cannot have gone on alone: two of them start.
    on_media(stopped(Level::Raid5, 3), |world| async move {
        let (array, report) = world.assemble(&[2, 0], PLAIN).await.expect("enough");
        assert_eq!(report.now_lost, [1]);
        assert_eq!(read(&array, 7).await, Ok(2));
        write(&array, 7, 70).await.expect("write");
        array.stop().await.expect("stop");
        drop(array);
        let (_, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("enough");
        assert_eq!(report.left_out.len(), 1);
    });
}

#[test]
fn needing_a_resync_and_degraded_takes_a_choice() {
    let media = on_media(vec![Medium::default(); 4], |world| async move {
        let array = world.create(&options(Level::Raid5, 4, Consistency::Bitmap)).await;
        write(&array, 0, 1).await.expect("write");
        world.media()
    });
    on_media(media, |world| async move {
        let error = refused(&world, &[0, 1, 3], PLAIN).await;
        assert_eq!(error, MetadataError::DirtyDegraded { regions: 1, missing: vec![2] });
        let force = AssembleOptions { force: true, ..PLAIN };
        let (array, _) = world.assemble(&[0, 1, 3], force).await.expect("by choice");
        assert_eq!(read(&array, 0).await, Ok(1));
    });
}

#[test]
fn a_truncated_member_is_refused_and_a_grown_one_is_not() {
    on_media(stopped(Level::Raid5, 3), |world| async move {
        let resized = |bytes| {
            let medium = world.drives[1].medium.borrow().clone();
            Drive::new(&world.handle, &world.power, bytes, medium, 3)
        };
        let with = |second| vec![world.drives[0].clone(), second, world.drives[2].clone()];
        let small = Array::assemble(&world.handle, with(resized(DRIVE_BYTES - 4096)), PLAIN).await;
        let (had, has) = (DRIVE_BYTES / 512, DRIVE_BYTES / 512 - 8);
        let expected = device(1, DeviceError::Truncated { had, has });
        assert_eq!(small.err(), Some(ArrayError::Metadata(expected)));
        let grown = Array::assemble(&world.handle, with(resized(DRIVE_BYTES + 8192)), PLAIN).await;
        let (array, report) = grown.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.label_copies_mended, [1]);
        assert_eq!(read(&array, 7).await, Ok(2));
    });
}

#[test]
fn a_disk_whose_last_partition_is_a_member_is_none_itself() {
    on_media(stopped(Level::Raid5, 3), |world| async move {
        let partition = world.drives[1].medium.borrow().clone();
        let (mut disk, before) = (Medium::default(), 1 << 20);
        for at in [0, COPY_B] {
            let copy: Vec<u8> = (at..at + 4096).map(|at| partition.byte(at)).collect();
            disk.overwrite(before + at, &copy);
        }
        let disk = Drive::new(&world.handle, &world.power, before + DRIVE_BYTES, disk, 3);
        assert_eq!(Array::examine(&disk).await, Ok(None));
        let with = vec![world.drives[0].clone(), disk, world.drives[2].clone()];
        let refused = Array::assemble(&world.handle, with, PLAIN).await.err();
        assert_eq!(refused, Some(ArrayError::Metadata(device(1, DeviceError::NoSuperblock))));
    });
}

#[test]
fn every_flipped_byte_is_noticed_and_the_other_copy_taken() {
    on_media(stopped(Level::Raid5, 3)[..1].to_vec(), |world| async move {
        let drive = &world.drives[0];
        let whole = Array::examine(drive).await.expect("whole").expect("a member");
        let flip = |at: u64, bit: u64| {
            let mut medium = drive.medium.borrow_mut();
            let byte = medium.byte(at) ^ (1 << (bit % 8));
            medium.overwrite(at, &[byte]);
        };
        for at in 0..4096 {
            for copy in [0, COPY_B] {
                flip(copy + at, at);
                let found = Array::examine(drive).await.expect("one copy is whole");
                assert_eq!(found.as_ref(), Some(&whole), "byte {at} of the copy at {copy}");
                flip(copy + at, at);
            }
            flip(at, at);
            flip(COPY_B + at, at + 1);
            let found = Array::examine(drive).await;
            let expected = if at < 8 { Ok(None) } else { Err(DeviceError::Damaged) };
            assert_eq!(found, expected, "byte {at} of both copies");
            flip(at, at);
            flip(COPY_B + at, at + 1);
        }
    });
}

#[test]
fn a_wiped_start_or_end_is_mended() {
    for wiped in [0, COPY_B] {
        on_media(stopped(Level::Raid5, 3), move |world| async move {
            world.drives[1].medium.borrow_mut().overwrite(wiped, &[0; 4096]);
            let (array, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
            assert_eq!(report.label_copies_mended, [1]);
            array.stop().await.expect("stop");
            drop(array);
            let (_, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
            assert!(report.label_copies_mended.is_empty());
        });
    }
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

/// Changes the superblock at a place, under a good checksum.
async fn change_superblock(drive: &Drive, at: u64, change: impl Fn(&mut [u8])) {
    let mut block: Vec<u8> = (0..4096).map(|byte| drive.medium.borrow().byte(at + byte)).collect();
    change(&mut block);
    block[12..16].fill(0);
    let crc = crc32c(&block);
    block[12..16].copy_from_slice(&crc.to_le_bytes());
    let data = Bytes::copy_of(&block);
    drive.write(Lba(at / 512), data.into(), Durability::Durable).await.expect("write");
}

#[test]
fn an_unknown_version_or_feature_in_either_copy_is_refused_by_name_and_nothing_is_written() {
    let cases = [
        (8, 7, Unsupported::Version { found: 7, read: 1 }, "format version 7, and this Voltier"),
        (33, 4, Unsupported::Flags(1 << 10), "feature bit 10 is unknown here"),
    ];
    for (at, value, why, words) in cases {
        for copies in [&[0, COPY_B][..], &[0], &[COPY_B]] {
            let (why, copies) = (why.clone(), copies.to_vec());
            on_media(stopped(Level::Raid5, 3), move |world| async move {
                let drive = &world.drives[2];
                let label = Array::examine(&world.drives[0]).await.expect("whole");
                let array = label.expect("a member").array.uuid;
                for copy in copies {
                    change_superblock(drive, copy, |block| {
                        block[at] = value;
                        block[40..].fill(0xff);
                    })
                    .await;
                }
                let unsupported = DeviceError::Unsupported { array, why };
                assert_eq!(Array::examine(drive).await, Err(unsupported.clone()));
                let error = refused(&world, &[0, 1, 2], PLAIN).await;
                assert_eq!(error, device(2, unsupported));
                assert!(error.to_string().contains(words), "{error}");
                assert!(error.to_string().ends_with("update this one"), "{error}");
            });
        }
    }
}

#[test]
fn an_unknown_version_behind_the_end_of_an_array_counts_if_it_is_of_that_array() {
    for is_own in [true, false] {
        on_media(stopped(Level::Raid5, 3), move |world| async move {
            let drive = &world.drives[2];
            let label = Array::examine(drive).await.expect("whole");
            change_superblock(drive, COPY_B, |block| {
                block[8] = 7;
                block[16] ^= u8::from(!is_own);
            })
            .await;
            if is_own {
                let why = Unsupported::Version { found: 7, read: 1 };
                let array = label.expect("a member").array.uuid;
                assert_eq!(
                    Array::examine(drive).await,
                    Err(DeviceError::Unsupported { array, why })
                );
                return;
            }
            assert_eq!(Array::examine(drive).await, Ok(label));
            let (_, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
            assert_eq!(report.label_copies_mended.len(), 1, "{report:?}");
        });
    }
}

#[test]
fn what_cannot_be_made_is_refused_before_anything_is_written() {
    with_drives(4, |world| async move {
        let good = options(Level::Raid5, 4, Consistency::Journal);
        let mut cases = Vec::new();
        let mut case = |change: &dyn Fn(&mut voltier_array::CreateOptions)| {
            let mut options = good.clone();
            change(&mut options);
            cases.push(options);
        };
        case(&|options| options.name.clear());
        case(&|options| options.name = "a\nb".to_owned());
        case(&|options| options.name = "x".repeat(65));
        case(&|options| options.chunk_bytes = 3000);
        case(&|options| options.chunk_bytes = 1 << 20);
        case(&|options| options.level = Level::Raid7_3);
        case(&|options| options.member_uuids[3] = options.member_uuids[0]);
        case(&|options| options.member_uuids.truncate(3));
        for options in cases {
            let error = world.try_create(&options).await.err().expect("not possible");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        assert!(world.drives.iter().all(|drive| drive.superblock_writes.get() == 0));
        assert_eq!(Array::examine(&world.drives[0]).await, Ok(None));
        world.create(&good).await;
        let found = Array::examine(&world.drives[3]).await.expect("whole").expect("a member");
        assert_eq!((found.member.0, &found.array.name[..], found.array.event), (3, "box", 2));
    });
}

#[test]
fn an_unreadable_block_of_a_region_map_costs_no_other_block() {
    // So large that the map has two blocks.
    let bytes = 12 << 30;
    with_drives(0, move |world| async move {
        let drive =
            |number| Drive::new(&world.handle, &world.power, bytes, Medium::default(), number);
        let drives: Vec<Drive> = (0..2).map(drive).collect();
        let options = options(Level::Raid1, 2, Consistency::Bitmap);
        let array = Array::create(&world.handle, &options, drives.clone()).await.expect("possible");
        write(&array, 0, 1).await.expect("write");
        array.stop().await.expect("stop");
        let regions = array.status().expect("it has one").regions;
        drop(array);
        let block_at = |block: u64| (MAP_START_BYTES + block * 4096) / 512;
        drives[0].unreadable.borrow_mut().insert(block_at(0));
        drives[1].unreadable.borrow_mut().insert(block_at(1));
        let assembled = Array::assemble(&world.handle, drives.clone(), PLAIN).await;
        let (array, report) = assembled.unwrap_or_else(|error| panic!("{error}"));
        let status = array.status().expect("it has one");
        assert_eq!((report.regions_to_resync, status.regions_written), (0, 1), "of {regions}");
        assert_eq!(read(&array, 0).await, Ok(1));
        assert!(drives.iter().all(|drive| drive.unreadable.borrow().is_empty()), "both are mended");
    });
}
