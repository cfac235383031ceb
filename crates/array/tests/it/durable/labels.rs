//! Devices with labels of more than one use, and copies of devices: none counts for what it was.

use voltier_array::{
    Array, AssembleOptions, AssembleReport, Consistency, DeviceError, JournalState, Level,
    MAP_START_BYTES, MemberIndex, MemberState, MetadataError,
};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, Lba};

use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{DRIVE_BYTES, World, on_media, options, read, refused, write};

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const COPY_B: u64 = DRIVE_BYTES - 4096;
const LABEL: usize = 4096;

/// A stopped RAID 6 of four with a journal device, the last one.
fn stopped() -> Vec<Medium> {
    on_media(vec![Medium::default(); 5], |world| async move {
        let made = options(Level::Raid6, 4, Consistency::Journal);
        let array = world.create_with_journal(&made).await.expect("made");
        write(&array, 3, 1).await.expect("write");
        array.stop().await.expect("stop");
        world.media()
    })
}

/// One life of the array: it writes, and is stopped or killed. The media while it is in use, and after.
fn lived(media: Vec<Medium>, byte: u8, is_stopped: bool) -> (Vec<Medium>, Vec<Medium>) {
    on_media(media, move |world| async move {
        let (array, report) = world.assemble(&[0, 1, 2, 3, 4], PLAIN).await.expect("all are there");
        assert!(report.left_out.is_empty() && report.journal_left_out.is_empty());
        write(&array, 3, byte).await.expect("write");
        let in_use = world.media();
        write(&array, 3, byte + 1).await.expect("write");
        if is_stopped {
            array.stop().await.expect("stop");
        }
        (in_use, world.media())
    })
}

fn bytes(medium: &Medium, at: u64) -> Vec<u8> {
    (at..at + LABEL as u64).map(|at| medium.byte(at)).collect()
}

/// A block that begins as a label of this kind.
fn named(magic: &[u8; 8]) -> Vec<u8> {
    [&magic[..], &[0x5a; LABEL - 8]].concat()
}

/// Whether a member counts, with these blocks at its start, at its map and at its end.
fn examined(medium: &Medium, places: &[(u64, Vec<u8>)]) -> Result<bool, DeviceError> {
    let mut medium = medium.clone();
    places.iter().for_each(|(at, block)| medium.overwrite(*at, block));
    on_media(vec![medium], |world| async move {
        Array::examine(&world.drives[0]).await.map(|found| found.is_some())
    })
}

fn disagrees(found: &Result<bool, DeviceError>, begins_with: &str) -> bool {
    matches!(found, Err(DeviceError::Disagree { begins, .. }) if begins == begins_with)
}

#[test]
fn an_end_label_counts_only_behind_a_start_that_may_be_its_own() {
    let media = stopped();
    let member = &media[1];
    let (zeroes, content) = (vec![0; LABEL], vec![0x11; LABEL]);
    let as_member = |found: &Result<bool, DeviceError>| {
        let Err(DeviceError::Disagree { begins, .. }) = found else { return false };
        begins.starts_with("as member 1 of the array box")
    };
    let mut damaged = bytes(member, 0);
    damaged[300] ^= 1;
    // Its start was torn, or is zeroes and the map is there.
    assert_eq!(examined(member, &[(0, damaged.clone())]), Ok(true));
    assert_eq!(examined(member, &[(0, zeroes.clone())]), Ok(true));
    // The first bytes alone have rotted.
    let rotten = [&[0x22; 8][..], &bytes(member, 0)[8..]].concat();
    assert_eq!(examined(member, &[(0, rotten)]), Ok(true));
    // An SSD that is one no more: the second label of the cache was in the place of the map.
    let erased = [(0, zeroes.clone()), (MAP_START_BYTES, zeroes.clone())];
    assert!(disagrees(&examined(member, &erased), "with zeroes"));
    // The map of another array.
    let mut other = bytes(member, MAP_START_BYTES);
    (0..8).for_each(|page| other[page * 512] ^= 1);
    let other = [(0, zeroes.clone()), (MAP_START_BYTES, other)];
    assert!(disagrees(&examined(member, &other), "with zeroes"));
    assert!(disagrees(&examined(member, &[(0, content.clone())]), "with other content"));
    let others = [
        (b"VOLTIERC", "as the SSD of a cache"),
        (b"VOLTJRNL", "as the journal of an array"),
        (b"VOLTSPAR", "as a spare"),
    ];
    for (magic, words) in others {
        assert!(disagrees(&examined(member, &[(0, named(magic))]), words));
        // With nothing of a member at its end it is no member, and that is all.
        for end in [&zeroes, &content] {
            let places = [(0, named(magic)), (COPY_B, end.clone())];
            assert_eq!(examined(member, &places), Ok(false));
        }
    }
    // Whatever takes the device writes to its start, so that counts without the end, if the map is there.
    for end in [&zeroes, &content, &damaged] {
        assert_eq!(examined(member, &[(COPY_B, end.clone())]), Ok(true));
        let places = [(COPY_B, end.clone()), (MAP_START_BYTES, content.clone())];
        assert!(as_member(&examined(member, &places)));
    }
    // A partition table that left the bytes before it.
    let mut table = bytes(member, 0);
    table[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert!(disagrees(&examined(member, &[(0, table)]), "with other content"));
    // A spare that became a member when the power went.
    assert_eq!(examined(member, &[(COPY_B, named(b"VOLTSPAR"))]), Ok(true));
    for magic in [b"VOLTIERC", b"VOLTJRNL"] {
        assert!(as_member(&examined(member, &[(COPY_B, named(magic))])));
    }
    // Another member, and the same one long before.
    assert!(as_member(&examined(member, &[(COPY_B, bytes(&media[2], COPY_B))])));
    let (_, later) = lived(media.clone(), 3, true);
    assert!(as_member(&examined(member, &[(COPY_B, bytes(&later[1], COPY_B))])));
    assert_eq!(
        examined(&later[1], &[(COPY_B, bytes(member, COPY_B))]),
        Ok(true),
        "torn as it returned"
    );
}

#[test]
fn a_start_that_cannot_be_read_costs_nothing_unless_the_map_is_gone() {
    for is_map_there in [true, false] {
        let mut media = stopped();
        if !is_map_there {
            media[1].overwrite(MAP_START_BYTES, &[0; LABEL]);
        }
        on_media(media, move |world| async move {
            let drive = &world.drives[1];
            drive.unreadable.borrow_mut().insert(0);
            let found = Array::examine(drive).await;
            assert_eq!(found.is_ok(), is_map_there, "{found:?}");
        });
    }
}

#[test]
fn a_journal_counts_by_its_end_label_only_if_its_start_was_torn() {
    let journal = &stopped()[4];
    let mut damaged = bytes(journal, 0);
    damaged[300] ^= 1;
    let cases = [
        (damaged, true),
        (vec![0; LABEL], false),
        (vec![0x11; LABEL], false),
        (named(b"VOLTIERC"), false),
        (named(b"VOLTARRY"), false),
    ];
    for (start, is_believed) in cases {
        let mut medium = journal.clone();
        medium.overwrite(0, &start);
        on_media(vec![medium], move |world| async move {
            let found = Array::examine_journal(&world.drives[0]).await;
            let is_refused = matches!(found, Err(DeviceError::Disagree { .. }));
            assert_eq!((found.is_ok(), is_refused), (is_believed, !is_believed), "{found:?}");
        });
    }
}

async fn all_of(world: &World) -> (Array<Drive>, AssembleReport) {
    let assembled = world.assemble(&[0, 1, 2, 3, 4], PLAIN).await;
    assembled.unwrap_or_else(|error| panic!("{error}"))
}

/// The array serves the newest data without one member, which is stale.
fn is_stale(media: Vec<Medium>, byte: u8) {
    on_media(media, move |world| async move {
        let (array, report) = all_of(&world).await;
        let left: Vec<_> = report.left_out.iter().map(|it| (it.member, it.state)).collect();
        assert_eq!(left, [(1, MemberState::Lost)]);
        assert_eq!(read(&array, 3).await, Ok(byte));
        // Nor does it return as the member that was lost: it lacks more than what was written since.
        let drive = world.drives[1].clone();
        assert_eq!(array.restore_member(MemberIndex(1), drive).await, Ok(false));
    });
}

#[test]
fn a_copy_of_a_member_from_before_the_last_stop_is_stale() {
    let (in_use, after) = lived(stopped(), 3, true);
    let mut media = after;
    media[1] = in_use[1].clone();
    is_stale(media, 4);
}

#[test]
fn a_copy_of_a_member_from_before_the_last_start_is_stale_after_a_crash_too() {
    let before = stopped();
    let (_, after) = lived(before.clone(), 3, false);
    let mut media = after;
    media[1] = before[1].clone();
    is_stale(media, 4);
}

#[test]
fn a_copy_of_a_journal_from_before_the_last_stop_is_left_out() {
    let (in_use, mut media) = lived(stopped(), 3, true);
    media[4] = in_use[4].clone();
    on_media(media, |world| async move {
        let (array, report) = all_of(&world).await;
        assert_eq!(report.journal_left_out.len(), 1);
        let status = array.status().expect("it has one");
        assert_eq!(status.journal_device.map(|it| it.state), Some(JournalState::Lost));
        assert_eq!(read(&array, 3).await, Ok(4));
    });
    // After a crash the array asks.
    let before = stopped();
    let (_, mut media) = lived(before.clone(), 3, false);
    media[4] = before[4].clone();
    on_media(media, |world| async move {
        let missing = MetadataError::JournalMissing;
        assert_eq!(refused(&world, &[0, 1, 2, 3, 4], PLAIN).await, missing);
    });
}

#[test]
fn a_new_role_leaves_no_label_of_another_one() {
    on_media(stopped(), |world| async move {
        let cache = Bytes::copy_of(&named(b"VOLTIERC"));
        // The journal and member 0 were an SSD, to which the second label of the cache is left.
        for drive in [&world.drives[4], &world.drives[0]] {
            drive.write(Lba(128), cache.clone().into(), Durability::Durable).await.expect("write");
        }
        let journal = Some((world.drives[4].clone(), [9; 16]));
        let mut other = options(Level::Raid1, 2, Consistency::Journal);
        (other.uuid, other.name) = ([9; 16], "other".to_owned());
        let members = world.drives[..2].to_vec();
        let made = Array::create_with_journal(&world.handle, &other, members, journal).await;
        let array = made.unwrap_or_else(|error| panic!("{error}"));
        for drive in [&world.drives[4], &world.drives[0]] {
            let second = drive.read(Lba(128), Buf::new(LABEL)).await.expect("read");
            assert!(!second.starts_with(b"VOLTIERC"));
        }
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_device_that_disagrees_is_refused_by_name_in_one_line() {
    let mut media = stopped();
    media[2].overwrite(0, &named(b"VOLTIERC"));
    on_media(media, |world| async move {
        let error = refused(&world, &[0, 1, 2, 3, 4], PLAIN).await;
        let MetadataError::Device { device: 2, error: DeviceError::Disagree { .. } } = &error
        else {
            panic!("{error}");
        };
        let said = error.to_string();
        assert!(said.contains("it begins as the SSD of a cache and ends as member 2 of"), "{said}");
        let (_, report) = world.assemble(&[0, 1, 3, 4], PLAIN).await.expect("without it");
        assert_eq!(report.now_lost, [2]);
    });
}
