//! Goal: one block that cannot be read, and that nobody needs, refuses no start and damages no line.
//! Method: a cache with clean and dirty lines, stopped or killed; one unreadable block; then a start.

use voltier_block::{BlockDevice, Lba, SectorRange};
use voltier_cache::{Mode, OpenError};
use voltier_sim::{Medium, SimDisk};

use crate::guarantees::LOG;
use crate::guarantees::stand::{LINES, Stand, in_virtual_time, is_dirty, line_range, options};

const UNIT_BYTES: u64 = 4096;
const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];
const INTENT_BLOCKS: [u64; 2] = [128 << 10, 132 << 10];

fn unit_at(offset_bytes: u64) -> SectorRange {
    SectorRange::from_bytes(offset_bytes, UNIT_BYTES)
}

/// Whether the head of a record may stand here.
fn has_head(ssd: &Medium, offset_bytes: u64) -> bool {
    let mut magic = [0; 4];
    ssd.peek(Lba::from_bytes(offset_bytes), &mut magic);
    magic == *b"VLRC"
}

#[test]
fn a_copy_of_the_label_or_of_the_intent_block_that_cannot_be_read_refuses_no_start() {
    for is_stopped in [true, false] {
        for offset_bytes in SUPERBLOCKS.into_iter().chain(INTENT_BLOCKS) {
            in_virtual_time(move |world| async move {
                let stand = Stand::filled(world).await;
                let media = if is_stopped { stand.stop().await } else { stand.kill() };
                let harm = |ssd: &SimDisk| ssd.fail_reads(unit_at(offset_bytes));
                let opened = stand.on_sick(media, options(Mode::WriteBack, 0), harm).await;
                let (again, _) = opened.expect("the other copy is enough");
                assert_eq!(again.failing_lines().await, [0_u64; 0], "block at {offset_bytes}");
                again.cache.drain().await.expect("a drain works");
                assert_eq!(again.lines_not_on_origin(), [0_u64; 0]);
            });
        }
    }
}

#[test]
fn lines_that_a_start_distrusts_stay_distrusted_when_the_intent_block_can_be_read_again() {
    for offset_bytes in INTENT_BLOCKS {
        in_virtual_time(move |world| async move {
            let stand = Stand::filled(world).await;
            let media = stand.kill();
            let harm = |ssd: &SimDisk| ssd.fail_reads(unit_at(offset_bytes));
            let opened = stand.on_sick(media, options(Mode::ReadOnly, 0), harm).await;
            let (mut again, _) = opened.expect("the other copy is enough");
            // A line that was clean, past the log.
            again.write(line_range(1), 5).await.expect("a write works");
            again.cache.flush().await.expect("a flush works");
            let media = again.kill();
            let opened = again.on(media, options(Mode::WriteBack, 0)).await;
            let (again, _) = opened.expect("a start after a crash");
            assert_eq!(again.failing_lines().await, [0_u64; 0], "block at {offset_bytes}");
        });
    }
}

#[test]
fn an_intent_block_of_which_no_copy_can_be_read_is_an_error_of_the_ssd() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let media = stand.kill();
        let harm = |ssd: &SimDisk| {
            INTENT_BLOCKS.map(unit_at).into_iter().for_each(|it| ssd.fail_reads(it))
        };
        let opened = stand.on_sick(media, options(Mode::WriteBack, 0), harm).await;
        assert!(matches!(opened.err(), Some(OpenError::Io { .. })), "its numbers would begin anew");
    });
}

#[test]
fn two_copies_of_the_label_that_cannot_be_read_are_an_error_of_the_ssd() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let media = stand.kill();
        let harm =
            |ssd: &SimDisk| SUPERBLOCKS.map(unit_at).into_iter().for_each(|it| ssd.fail_reads(it));
        let opened = stand.on_sick(media, options(Mode::WriteBack, 0), harm).await;
        assert!(matches!(opened.err(), Some(OpenError::Io { .. })), "no label is no proof of none");
    });
}

#[test]
fn a_bad_block_in_the_log_refuses_a_start_only_where_the_replay_must_read() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        // The head of this record calls all records before it durable.
        stand.write(line_range(0), 1).await.expect("a write works");
        let (ssd, origin) = stand.kill();
        let log = (0..2 * LINES + 64).map(|unit| LOG + unit * UNIT_BYTES);
        let (mut heads, mut refused) = (0, 0);
        for offset_bytes in log {
            heads += u32::from(has_head(&ssd, offset_bytes));
            let harm = |ssd: &SimDisk| ssd.fail_reads(unit_at(offset_bytes));
            let media = (ssd.clone(), origin.clone());
            let Ok((again, _)) = stand.on_sick(media, options(Mode::WriteBack, 0), harm).await
            else {
                refused += 1;
                continue;
            };
            let failing = again.failing_lines().await;
            let is_right = failing.len() <= 1 && failing.iter().all(|line| is_dirty(*line));
            assert!(is_right, "{failing:?} with a bad block at {offset_bytes}");
            again.cache.kill();
        }
        assert!(heads > 0, "the log was looked at");
        // Also the data of the last record, which nothing calls durable, and the place of the next head.
        assert!(refused <= heads + 2, "{refused} starts, {heads} heads");
    });
}

#[test]
fn a_place_of_the_fingerprint_that_cannot_be_read_drops_clean_lines_and_keeps_dirty_ones() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let media = stand.stop().await;
        let harm = |origin: &SimDisk| origin.fail_reads(line_range(1));
        let opened = stand.on_sick_origin(media, options(Mode::WriteBack, 0), harm).await;
        let (again, opened) = opened.expect("a bad sector is no other origin");
        assert!(opened.origin_changed, "{opened:?}");
        assert_eq!(again.cache.status().lines.dirty, LINES.div_ceil(3));
        again.origin.mend();
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        again.cache.drain().await.expect("a drain works");
        assert_eq!(again.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn a_line_that_is_written_anew_while_its_old_copy_cannot_be_read_is_not_damaged() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        // All of the log so far.
        let written_bytes = stand.cache.status().device_bytes.ssd_written;
        stand.ssd.fail_reads(SectorRange::from_bytes(LOG, written_bytes));
        let cache = stand.cache.clone();
        let drain = stand.world.handle().spawn(async move { cache.drain().await });
        stand.world.handle().sleep(1_000_000).await;
        for line in (0..LINES).filter(|line| is_dirty(*line)) {
            stand.write(line_range(line), 1 + line as u8).await.expect("a write works");
        }
        // Until the tries to read the old copies are over.
        stand.world.handle().sleep(100_000_000).await;
        assert_eq!(stand.cache.damaged_ranges(), [], "the new copies are whole");
        stand.ssd.mend();
        let _ = drain.await;
        stand.cache.drain().await.expect("a drain works");
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}
