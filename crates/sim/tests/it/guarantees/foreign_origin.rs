//! Goal: guarantee 6 after a crash. An origin that is another drive, or was changed, meets no dirty line. An
//! origin that rots or cannot be read in places is no other drive. Method: a cache with clean and dirty
//! lines, killed; then one change of the origin's medium.

use voltier_block::{BlockDevice, SectorRange};
use voltier_cache::{Mode, OpenError, OpenOptions, Opened, OriginTrust};
use voltier_ring::join_all;
use voltier_sim::{Cut, FaultKind, FaultMix, Medium};

use crate::guarantees::stand::{LINES, Stand, in_virtual_time, is_dirty, line_range, options};

/// A medium with these lines changed.
fn changed(mut medium: Medium, lines: impl Iterator<Item = u64>) -> Medium {
    for line in lines {
        medium.overwrite(line_range(line).start.bytes() + 700, &[0xee; 3]);
    }
    medium
}

fn clean_lines() -> impl Iterator<Item = u64> {
    (0..LINES).filter(|line| !is_dirty(*line))
}

fn adopting() -> OpenOptions {
    OpenOptions { origin: OriginTrust::AsFound, ..options(Mode::WriteBack, 0) }
}

fn found(opened: &Opened) -> (u32, u32, bool) {
    (opened.sampled_lines, opened.differing_lines, opened.origin_changed)
}

#[test]
fn dirty_lines_do_not_go_to_another_origin_after_a_crash() {
    for cut in [Cut::Kill, Cut::Power] {
        in_virtual_time(move |world| async move {
            let stand = Stand::filled(world).await;
            let (ssd, origin) = stand.crash(cut);
            stand.cache.kill();
            let other = Medium::zeroed(stand.profile.origin.bytes);
            let opened = stand.on((ssd.clone(), other), options(Mode::WriteBack, 0)).await;
            let Some(OpenError::ForeignOrigin { differing, compared, dirty }) = opened.err() else {
                panic!("dirty lines before another origin must be refused")
            };
            assert_eq!((differing, compared, dirty), (64, 64, LINES.div_ceil(3)));
            // Nothing was written: with the right origin everything is there.
            let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
            let (again, opened) = opened.expect("the right origin");
            assert_eq!(found(&opened), (64, 0, false));
            again.cache.drain().await.expect("a drain works");
            assert_eq!(again.lines_not_on_origin(), [0_u64; 0]);
        });
    }
}

#[test]
fn two_changed_lines_are_a_changed_origin_and_one_may_have_rotted() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        let (ssd, origin) = stand.kill();
        let all = changed(origin.clone(), clean_lines());
        let opened = stand.on((ssd.clone(), all), options(Mode::WriteBack, 0)).await;
        assert!(matches!(opened.err(), Some(OpenError::ForeignOrigin { differing: 64, .. })));
        let two = changed(origin.clone(), clean_lines().take(2));
        let opened = stand.on((ssd.clone(), two), options(Mode::WriteBack, 0)).await;
        assert!(matches!(opened.err(), Some(OpenError::ForeignOrigin { differing: 2, .. })));
        let one = changed(origin, clean_lines().take(1));
        let opened = stand.on((ssd, one), options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("a sector has rotted");
        assert_eq!(found(&opened), (64, 1, false));
        assert_eq!(again.failing_lines().await, [0_u64; 0], "the SSD has the line as it was");
        stand.cache = again.cache;
    });
}

#[test]
fn what_the_origin_has_counts_when_its_owner_says_so_and_dirty_lines_come_over_it() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        let (ssd, origin) = stand.kill();
        let other = changed(origin, clean_lines());
        for line in clean_lines() {
            let at = line_range(line).start.bytes() as usize + 700;
            stand.expected[at..at + 3].fill(0xee);
        }
        let opened = stand.on((ssd, other), adopting()).await;
        let (again, opened) = opened.expect("its owner says so");
        assert_eq!(found(&opened), (64, 64, true));
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        // A crash before anything else: no dropped line comes back, no dirty one is lost.
        let media = again.kill();
        let opened = stand.on(media, options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("a start after a crash");
        assert!(!opened.origin_changed);
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        again.cache.drain().await.expect("a drain works");
        assert_eq!(again.lines_not_on_origin(), [0_u64; 0]);
    });
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let (ssd, mut origin) = stand.stop().await;
        // After a stop in order one sector of the fingerprint is enough.
        origin.overwrite(700, &[0xee; 3]);
        let opened = stand.on((ssd.clone(), origin.clone()), options(Mode::WriteBack, 0)).await;
        assert!(matches!(opened.err(), Some(OpenError::OriginChanged { .. })));
        let opened = stand.on((ssd, origin), adopting()).await;
        assert!(opened.expect("its owner says so").1.origin_changed);
    });
}

#[test]
fn a_clean_cache_drops_its_lines_before_another_origin() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        stand.cache.drain().await.expect("a drain works");
        let (ssd, origin) = stand.kill();
        let other = changed(origin, 0..LINES);
        for line in 0..LINES {
            let at = line_range(line).start.bytes() as usize + 700;
            stand.expected[at..at + 3].fill(0xee);
        }
        let opened = stand.on((ssd, other), options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("clean lines are given up");
        assert_eq!(found(&opened), (64, 64, true));
        assert_eq!(again.failing_lines().await, [0_u64; 0], "what the origin has is read");
    });
}

#[test]
fn lines_that_cannot_be_read_from_the_origin_are_not_those_of_another_one() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let media = stand.kill();
        let bad = SectorRange::new(line_range(10).start, line_range(40).start.0);
        let harm = move |origin: &voltier_sim::SimDisk| origin.fail_reads(bad);
        let opened = stand.on_sick_origin(media, options(Mode::WriteBack, 0), harm).await;
        let (again, opened) = opened.expect("a sick origin is the origin");
        assert!((20..64).contains(&opened.sampled_lines) && opened.differing_lines == 0);
        again.origin.mend();
        again.cache.drain().await.expect("a drain works");
        assert_eq!(again.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn a_checkpoint_that_is_not_loaded_yet_offers_lines_too() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let media = stand.stop().await;
        let opened = stand.on(media, options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("it opens");
        assert_eq!(found(&opened), (64, 0, false), "after a stop in order");
        let (ssd, origin) = again.kill();
        let other = changed(origin.clone(), clean_lines());
        let opened = stand.on((ssd.clone(), other), options(Mode::WriteBack, 0)).await;
        assert!(matches!(opened.err(), Some(OpenError::ForeignOrigin { differing: 64, .. })));
        let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
        assert_eq!(found(&opened.expect("the right origin").1), (64, 0, false));
    });
}

fn importing(origin: OriginTrust) -> OpenOptions {
    OpenOptions { origin, ..options(Mode::WriteBack, 0) }
}

#[test]
fn an_import_refuses_a_changed_origin_also_without_dirty_lines() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.cache.drain().await.expect("a drain works");
        let (ssd, origin) = stand.kill();
        let other = changed(origin.clone(), 0..LINES);
        let opened = stand.on((ssd.clone(), other), importing(OriginTrust::Unchanged)).await;
        assert!(matches!(opened.err(), Some(OpenError::ForeignOrigin { dirty: 0, .. })));
        let opened = stand.on((ssd, origin), importing(OriginTrust::Unproven)).await;
        assert_eq!(found(&opened.expect("the right origin").1), (64, 0, false));
    });
}

#[test]
fn an_import_before_an_origin_without_a_mark_wants_something_to_compare() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::new(world, Mode::WriteBack).await;
        stand.write(line_range(0), 1).await.expect("a write works");
        stand.cache.flush().await.expect("a flush works");
        let media = stand.kill();
        let opened = stand.on(media.clone(), importing(OriginTrust::Unproven)).await;
        assert!(matches!(opened.err(), Some(OpenError::UnprovenOrigin { dirty: 1 })));
        let opened = stand.on(media, importing(OriginTrust::Unchanged)).await;
        assert_eq!(opened.expect("its mark was found").0.failing_lines().await, [0_u64; 0]);
    });
}

#[test]
fn a_start_before_an_origin_without_a_mark_wants_something_to_compare() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::new(world, Mode::WriteBack).await;
        stand.write(line_range(0), 1).await.expect("a write works");
        stand.cache.flush().await.expect("a flush works");
        let (ssd, origin) = stand.kill();
        let other = changed(origin.clone(), 0..LINES);
        for origin in [other, origin.clone()] {
            let media = (ssd.clone(), origin);
            let opened = stand.on(media, importing(OriginTrust::Unmarked)).await;
            assert!(matches!(opened.err(), Some(OpenError::UnprovenOrigin { dirty: 1 })));
        }
        // The user says that it is the origin; a stop in order leaves the proof for the next start.
        let media = (ssd, origin);
        let opened = stand.on(media, importing(OriginTrust::AsFound)).await;
        let (again, _) = opened.expect("the user said so");
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
        let (ssd, origin) = again.stop().await;
        let other = changed(origin.clone(), 0..LINES);
        let opened = stand.on((ssd.clone(), other), importing(OriginTrust::Unmarked)).await;
        assert!(matches!(opened.err(), Some(OpenError::OriginChanged { dirty: 1 })));
        let opened = stand.on((ssd, origin), importing(OriginTrust::Unmarked)).await;
        let (again, _) = opened.expect("it has the fingerprint");
        // Without dirty lines nothing is at stake.
        again.cache.drain().await.expect("the origin works");
        let media = again.kill();
        stand.on(media, importing(OriginTrust::Unmarked)).await.expect("nothing is dirty");
    });
}

/// A start that never came to its end would hang this test: its reclaimer and its checkpoint would wait for
/// each other.
#[test]
fn a_start_before_a_changed_origin_ends_although_a_checkpoint_is_due_at_once() {
    in_virtual_time(|world| async move {
        let stand = Stand::new(world, Mode::WriteThrough).await;
        let lines = stand.profile.origin.bytes / 4096;
        let mut dice = stand.world.prng();
        let other = changed(Medium::zeroed(stand.profile.origin.bytes), 0..lines);
        let mut starts = 0;
        // A checkpoint takes long, and the log goes on beside it.
        stand.ssd.inject(&FaultMix { rates: vec![(FaultKind::LatencySpike, 8)] }, |_| {});
        for _ in 0..400 {
            let reads = (0..16).map(|_| stand.read(line_range(dice.below(lines - 1))));
            for read in join_all(reads).await {
                read.expect("a read works");
            }
            let (ssd, _) = stand.crash(Cut::Kill);
            let opened = stand.on((ssd, other.clone()), options(Mode::WriteThrough, 0)).await;
            let (again, opened) = opened.expect("clean lines are given up");
            starts += u32::from(opened.origin_changed);
            again.cache.kill();
        }
        assert!(starts > 100, "{starts} starts found another origin");
    });
}
