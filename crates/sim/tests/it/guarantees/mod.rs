//! Goal: guarantees 4 and 6, and what the cache does when a drive fails (guarantee 5). The cache never
//! serves a wrong byte, names exactly what is lost, and refuses what does not belong together. Method:
//! a cache with known clean and dirty lines on simulated drives; one fault at a time.

mod bad_blocks;
mod evacuation;
mod failed_flush;
mod foreign_origin;
mod panics;
mod pulled;
mod settling;
mod ssd_errors;
mod stand;

use voltier_block::{BlockDevice, Bytes, Durability, IoError, KIB, Lba, MIB, Prng, SectorRange};
use voltier_cache::{Cache, Mode, OpenError, OpenOptions, SUPERBLOCK_OFFSETS};
use voltier_sim::workload::{Profile, SimCache};
use voltier_sim::{FaultKind, FaultMix, Medium, SimDisk, SimDrive, World};

use stand::{LINE_SECTORS, LINES, Stand, in_virtual_time, is_dirty, line_range, lines_of, options};

/// Where the map of the slots and the log are on the SSD of these tests (see `docs/formats`).
const CHECKPOINT_AREAS: [u64; 2] = [MIB, MIB + 512 * KIB];
const LOG: u64 = MIB + 1024 * KIB;

#[test]
fn no_flipped_bit_of_the_ssd_is_ever_served() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (ssd, origin) = stand.stop().await;
        let mut prng = Prng::new(3);
        let log_end = LOG + (2 * LINES + 64) * 4096;
        let (mut served, mut reported, mut refused) = (0, 0, 0);
        for block in 0..log_end / 512 {
            if !prng.one_in(3) {
                continue;
            }
            let mut damaged = ssd.clone();
            damaged.flip_bit(block * 512 + prng.below(512), prng.below(8) as u8);
            let media = (damaged, origin.clone());
            let Ok((again, _)) = stand.on(media, options(Mode::WriteBack, 0)).await else {
                refused += 1;
                continue;
            };
            let failing = again.failing_lines().await;
            assert!(failing.iter().all(|line| is_dirty(*line)), "block {block}: {failing:?}");
            assert_eq!(lines_of(&again.cache.damaged_ranges()), failing, "block {block}");
            if failing.is_empty() {
                served += 1
            } else {
                reported += 1
            }
            again.cache.kill();
        }
        assert!(served > 100 && reported > 10 && refused > 1, "{served} {reported} {refused}");
    });
}

#[test]
fn damaged_clean_lines_come_from_the_origin_and_damaged_dirty_ones_are_never_replaced() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (mut ssd, origin) = stand.stop().await;
        // A bit of every unit of the log: heads and lines alike.
        for unit in 0..(2 * LINES + 64) {
            ssd.flip_bit(LOG + unit * 4096 + 77, 5);
        }
        let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
        let (mut again, _) = opened.expect("a clean stop needs no log");
        let dirty: Vec<u64> = (0..LINES).filter(|line| is_dirty(*line)).collect();
        assert_eq!(again.failing_lines().await, dirty);
        assert_eq!(lines_of(&again.cache.damaged_ranges()), dirty);
        assert_eq!(again.cache.drain().await, Err(IoError::Medium), "a drain says so");
        assert_eq!(again.failing_lines().await, dirty, "still reported after a drain");
        assert_eq!(again.lines_not_on_origin(), dirty, "nothing wrong went to the origin");
        for line in &dirty {
            let written = again.write(line_range(*line), 1).await;
            written.expect("a whole line needs nothing of the old one");
        }
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        assert_eq!(again.cache.damaged_ranges(), []);
        again.cache.drain().await.expect("all is well");
        assert_eq!(again.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn one_whole_copy_of_the_superblock_is_enough_and_none_is_refused() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (ssd, origin) = stand.stop().await;
        for offset in SUPERBLOCK_OFFSETS {
            let mut damaged = ssd.clone();
            damaged.flip_bit(offset + 100, 1);
            let opened = stand.on((damaged, origin.clone()), options(Mode::WriteBack, 0)).await;
            assert_eq!(
                opened.expect("the other copy is whole").0.failing_lines().await,
                [0_u64; 0]
            );
        }
        let mut damaged = ssd.clone();
        SUPERBLOCK_OFFSETS.into_iter().for_each(|offset| damaged.flip_bit(offset + 100, 1));
        let opened = stand.on((damaged, origin), options(Mode::WriteBack, 0)).await;
        assert!(matches!(opened.err(), Some(OpenError::Damaged(_))));
    });
}

#[test]
fn a_damaged_map_of_the_slots_is_refused() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (ssd, origin) = stand.stop().await;
        let mut refused = 0;
        for area in CHECKPOINT_AREAS {
            let mut damaged = ssd.clone();
            damaged.flip_bit(area + 5000, 0);
            let opened = stand.on((damaged, origin.clone()), options(Mode::WriteBack, 0)).await;
            match opened {
                Err(OpenError::Damaged(_)) => refused += 1,
                Err(error) => panic!("{error}"),
                Ok((again, _)) => assert_eq!(again.failing_lines().await, [0_u64; 0]),
            }
        }
        assert_eq!(refused, 1, "one of the two areas is in use");
    });
}

#[test]
fn a_damaged_intent_block_costs_clean_lines_only() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (mut ssd, origin) = stand.kill();
        ssd.flip_bit(128 * KIB + 64, 0);
        let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("it opens");
        assert_eq!(opened.suspect_lines, LINES - LINES.div_ceil(3));
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        assert_eq!(again.cache.status().lines.dirty, LINES.div_ceil(3));
    });
}

#[test]
fn a_damaged_record_before_the_last_durable_one_is_refused() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        // A head behind it that calls it durable.
        stand.write(line_range(1), 1).await.unwrap();
        stand.cache.flush().await.unwrap();
        stand.write(line_range(2), 1).await.unwrap();
        let (mut ssd, origin) = stand.kill();
        ssd.flip_bit(LOG + 40, 3);
        let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
        assert!(matches!(opened.err(), Some(OpenError::Damaged(_))));
    });
}

#[test]
fn unreadable_lines_are_treated_as_damaged_ones() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.ssd.fail_reads(SectorRange::from_bytes(LOG, 40 * 4096));
        let failing = stand.failing_lines().await;
        assert!(failing.iter().all(|line| is_dirty(*line)), "{failing:?}");
        assert_eq!(lines_of(&stand.cache.damaged_ranges()), failing);
    });
}

#[test]
fn dirty_lines_that_failed_to_read_once_are_written_back_by_the_next_drain() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let once = FaultMix { rates: vec![(FaultKind::ReadErrorOnce, 1)] };
        stand.ssd.inject(&once, |_| {});
        assert_eq!(stand.cache.drain().await, Err(IoError::Medium));
        stand.ssd.mend();
        assert_eq!(stand.cache.drain().await, Ok(()));
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn a_clean_cache_outlives_its_ssd() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::new(world, Mode::WriteThrough).await;
        for line in 0..LINES {
            stand.read(line_range(line)).await.unwrap();
        }
        stand.ssd.lose();
        for line in 0..LINES {
            stand.write(line_range(line), line as u8).await.expect("the origin takes it");
            assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        }
        stand.cache.flush().await.expect("the origin flushes");
        assert_eq!(stand.cache.lost_ranges(usize::MAX), []);
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn what_was_dirty_on_a_lost_ssd_is_listed_exactly_fails_to_read_and_heals_when_written() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        // Parts of a line that is not dirty otherwise, cached in whole: the whole line is newer.
        stand.write(SectorRange::new(Lba(LINE_SECTORS + 2), 3), 9).await.unwrap();
        let mut dirty: Vec<u64> = (0..LINES).filter(|line| is_dirty(*line)).collect();
        dirty.insert(1, 1);
        stand.ssd.lose();
        assert_eq!(stand.cache.flush().await, Err(IoError::Medium), "a flush does not lie");
        assert_eq!(lines_of(&stand.cache.lost_ranges(usize::MAX)), dirty);
        assert_eq!(stand.failing_lines().await, dirty);
        for line in dirty.clone() {
            let first = SectorRange::new(line_range(line).start, 1);
            stand.write(first, 4).await.expect("the origin takes it");
            assert_eq!(stand.read(first).await.expect("healed")[0], 4);
        }
        let left: u64 = stand.cache.lost_ranges(usize::MAX).iter().map(|range| range.count).sum();
        assert_eq!(left, dirty.len() as u64 * 7);
        for line in dirty {
            stand.write(line_range(line), 5).await.unwrap();
        }
        assert_eq!(stand.cache.lost_ranges(usize::MAX), []);
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn what_is_written_right_after_the_loss_of_the_ssd_is_not_overtaken_by_a_destage_under_way() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::new(world, Mode::WriteBack).await;
        stand.write(line_range(0), 1).await.expect("a write works");
        stand.cache.flush().await.expect("a flush works");
        // The origin takes hundreds of times as long for this one write as for all later ones.
        let spikes = FaultMix { rates: vec![(FaultKind::LatencySpike, 1)] };
        stand.origin.inject(&spikes, |_| {});
        let cache = stand.cache.clone();
        let drain = stand.world.handle().spawn(async move { cache.drain().await });
        while stand.origin.writes_under_way() == 0 {
            stand.world.handle().sleep(1_000).await;
        }
        stand.origin.mend();
        stand.ssd.lose();
        stand.write(line_range(0), 2).await.expect("the origin takes it");
        assert_eq!(stand.read(line_range(0)).await.expect("a read works")[0], 2);
        assert!(drain.await.is_err(), "the SSD is lost");
        stand.world.handle().sleep(60_000_000_000).await;
        assert_eq!(stand.origin.writes_under_way(), 0);
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0], "the older write came last");
    });
}

#[test]
fn a_dirty_line_that_was_being_rewritten_when_the_ssd_was_lost_is_listed_too() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let cache = stand.cache.clone();
        let write = stand.world.handle().spawn(async move {
            let data = Bytes::copy_of(&[3; 512]);
            cache.write(Lba(1), data.into(), Durability::Cached).await
        });
        // The old copy has been read and merged; the record with the new one is on its way.
        while stand.ssd.writes_under_way() == 0 {
            stand.world.handle().sleep(1_000).await;
        }
        stand.ssd.lose();
        write.await.expect("the origin takes it");
        let lost = stand.cache.lost_ranges(usize::MAX);
        let of_line: Vec<SectorRange> =
            lost.into_iter().filter(|range| range.start.0 < LINE_SECTORS).collect();
        let (before, behind) = (SectorRange::new(Lba(0), 1), SectorRange::new(Lba(2), 6));
        assert_eq!(of_line, [before, behind], "all but the sector just written");
        assert_eq!(stand.read(before).await.err(), Some(IoError::Medium));
        assert_eq!(stand.read(SectorRange::new(Lba(1), 1)).await.expect("written")[0], 3);
    });
}

#[test]
fn a_stale_a_foreign_a_truncated_ssd_and_another_origin_are_refused() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let snapshot = stand.stop().await;
        let opened = stand.on(snapshot.clone(), options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("it is the newest");
        again.stop().await;
        let old = (snapshot.0.clone(), again.origin.medium());
        let stale = stand.on(old, options(Mode::WriteBack, opened.generation)).await;
        assert!(matches!(stale.err(), Some(OpenError::Stale { .. })));

        let foreign = OpenOptions { uuid: Some([1; 16]), ..options(Mode::WriteBack, 0) };
        let foreign = stand.on(snapshot.clone(), foreign).await;
        assert!(matches!(foreign.err(), Some(OpenError::Foreign { .. })));

        let mut cut = stand.on_profile();
        cut.profile.ssd.bytes -= 512;
        let truncated = cut.open(&stand.world, snapshot.clone()).await;
        assert!(
            matches!(truncated.err(), Some(OpenError::Layout(what)) if what.contains("truncated"))
        );
        let mut other = stand.on_profile();
        other.profile.origin.bytes -= 512;
        let other = other.open(&stand.world, snapshot).await;
        assert!(matches!(other.err(), Some(OpenError::OriginShrunk { .. })));
    });
}

/// Drives of other sizes under the same media.
struct Resized {
    profile: Profile,
}

impl Stand {
    fn on_profile(&self) -> Resized {
        Resized { profile: self.profile.clone() }
    }
}

impl Resized {
    async fn open(&self, world: &World, media: (Medium, Medium)) -> Result<SimCache, OpenError> {
        let ssd = SimDisk::new(world, &self.profile.ssd, media.0);
        let origin = SimDisk::new(world, &self.profile.origin, media.1);
        let origin = SimDrive::any_sector(origin);
        let opened = Cache::open(world.handle(), ssd, origin, options(Mode::WriteBack, 0)).await;
        opened.map(|opened| opened.0)
    }
}

#[test]
fn an_origin_changed_while_stopped_drops_clean_lines_and_refuses_dirty_ones() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (ssd, mut origin) = stand.stop().await;
        origin.overwrite(4096, &[0xee; 512]);
        let opened = stand.on((ssd.clone(), origin.clone()), options(Mode::WriteBack, 0)).await;
        let Some(OpenError::OriginChanged { dirty }) = opened.err() else {
            panic!("dirty lines over a changed origin must be refused")
        };
        assert_eq!(dirty, LINES.div_ceil(3));
    });
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        stand.cache.drain().await.unwrap();
        let (ssd, mut origin) = stand.stop().await;
        origin.overwrite(4096, &[0xee; 512]);
        stand.expected[4096..4096 + 512].fill(0xee);
        let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("clean lines are given up");
        assert!(opened.origin_changed);
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        let media = again.kill();
        let opened = stand.on(media, options(Mode::WriteBack, 0)).await;
        let (again, _) = opened.expect("the second start after the change");
        assert_eq!(again.failing_lines().await, [0_u64; 0], "no dropped line comes back");
    });
}

#[test]
fn dirty_lines_wait_for_an_origin_that_fails() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let all = SectorRange::from_bytes(0, stand.profile.origin.bytes);
        let dirty: Vec<u64> = (0..LINES).filter(|line| is_dirty(*line)).collect();
        for round in 0..2 {
            if round == 0 {
                stand.origin.fail_writes(all)
            } else {
                stand.origin.fail_flushes()
            }
            assert!(stand.cache.drain().await.is_err());
            assert_eq!(stand.cache.status().lines.dirty, dirty.len() as u64);
            assert_eq!(stand.failing_lines().await, [0_u64; 0], "the SSD has them");
            stand.origin.mend();
        }
        stand.cache.drain().await.expect("the origin is back");
        assert_eq!(stand.cache.status().lines.dirty, 0);
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn errors_of_the_origin_reach_the_client_and_leave_no_wrong_copy() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::new(world, Mode::WriteThrough).await;
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        let broken = SectorRange::new(Lba(5 * LINE_SECTORS), 2 * LINE_SECTORS);
        stand.origin.fail_writes(broken);
        assert_eq!(stand.write(line_range(5), 1).await, Err(IoError::Medium));
        assert_eq!(stand.write(line_range(7), 1).await, Ok(()));
        assert_eq!(
            stand.failing_lines().await,
            [0_u64; 0],
            "old content, for this drive wrote nothing"
        );
        let zeroed = stand.cache.write_zeroes(line_range(6), Durability::Cached).await;
        assert_eq!(zeroed, Err(IoError::Medium));
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        stand.origin.fail_flushes();
        assert!(stand.cache.flush().await.is_err());
        stand.origin.mend();
        stand.cache.flush().await.expect("a flush works again");
    });
    in_virtual_time(|world| async move {
        let stand = Stand::new(world, Mode::WriteThrough).await;
        let broken = SectorRange::new(Lba(5 * LINE_SECTORS), 2 * LINE_SECTORS);
        stand.origin.fail_reads(broken);
        assert_eq!(stand.failing_lines().await, [5, 6]);
        stand.origin.mend();
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
    });
}

// Guarantee 5 in ordered mode (`Settings::ordered`) belongs here. After the loss of the SSD, at any
// event, the origin alone equals the model at some flush. Any part of the writes after that flush may be
// there as well.
