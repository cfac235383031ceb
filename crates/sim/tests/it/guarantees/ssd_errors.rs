//! Goal: single errors of the SSD cost nothing that was acknowledged. Method: errors that end before the
//! cache has used up its tries, and one line that is bad for good.

use voltier_block::{BlockDevice, IoError, Lba, SectorRange};
use voltier_cache::{Health, Mode};
use voltier_sim::{Cut, FaultKind, FaultMix};

use crate::guarantees::stand::{
    LINE_SECTORS, LINES, Stand, in_virtual_time, is_dirty, line_range, options,
};

fn every(kind: FaultKind, one_in: u64) -> FaultMix {
    FaultMix { rates: vec![(kind, one_in)] }
}

/// Where the copy of a line is on the SSD.
pub(crate) fn place_of(stand: &Stand, line: u64) -> SectorRange {
    let mut found = vec![0; 4096];
    let mut places = (0..stand.profile.ssd.bytes / 4096).map(|place| Lba(place * LINE_SECTORS));
    let place = places.find(|place| {
        stand.ssd.peek(*place, &mut found);
        found == *stand.expected(line_range(line))
    });
    SectorRange::new(place.expect("the line is on the SSD"), LINE_SECTORS)
}

#[test]
fn a_client_that_reads_one_bad_dirty_line_again_and_again_costs_nothing_else() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.ssd.fail_reads(place_of(&stand, 3));
        for _ in 0..200 {
            assert_eq!(stand.read(line_range(3)).await.err(), Some(IoError::Medium));
        }
        assert_eq!(stand.cache.status().health, Health::Online);
        assert_eq!(stand.failing_lines().await, [3]);
        stand.ssd.mend();
        stand.cache.drain().await.expect("the line can be read again");
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn after_a_drain_and_a_power_cut_nothing_is_dirty() {
    for _ in 0..10 {
        in_virtual_time(|world| async move {
            let mut stand = Stand::filled(world).await;
            stand.write(line_range(1), 1).await.expect("a write works");
            stand.cache.drain().await.expect("a drain works");
            let media = stand.crash(Cut::Power);
            let (again, _) = stand.on(media, options(Mode::WriteBack, 0)).await.expect("a start");
            assert_eq!(again.cache.status().lines.dirty, 0, "whoever drained counts on that");
        });
    }
}

#[test]
fn reads_that_fail_once_are_tried_again() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.ssd.inject(&every(FaultKind::ReadErrorOnce, 5), |_| {});
        // Nine tries in ten thousand fail thrice.
        for _ in 0..20 {
            let failing = stand.failing_lines().await;
            assert!(failing.len() <= 3, "{failing:?}");
        }
        stand.ssd.mend();
        stand.cache.drain().await.expect("all can be read");
        assert_eq!(stand.cache.status().health, Health::Online);
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
    });
}

#[test]
fn an_ssd_that_takes_no_writes_for_a_second_loses_nothing() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        in_virtual_time(move |world| async move {
            let mut stand = Stand::filled(world).await;
            let settings = voltier_cache::Settings { mode, ..stand.cache.settings() };
            stand.cache.configure(settings).expect("a mode switch works");
            stand.ssd.fail_writes(SectorRange::from_bytes(0, stand.profile.ssd.bytes));
            let (ssd, handle) = (stand.ssd.clone(), stand.world.handle().clone());
            let mended = stand.world.handle().spawn(async move {
                handle.sleep(1_000_000_000).await;
                ssd.mend();
            });
            for line in 0..LINES {
                stand.write(line_range(line), 100 + line as u8).await.expect("a write works");
            }
            mended.await;
            assert_eq!(stand.cache.status().health, Health::Online);
            assert_eq!(stand.failing_lines().await, [0_u64; 0]);
            stand.cache.flush().await.expect("a flush works");
            let media = stand.kill();
            let (again, _) = stand.on(media, options(mode, 0)).await.expect("it comes back");
            assert_eq!(again.failing_lines().await, [0_u64; 0]);
        });
    }
}

#[test]
fn one_write_in_ten_fails_and_every_acknowledged_write_is_there() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        stand.ssd.inject(&every(FaultKind::WriteErrorOnce, 10), |_| {});
        for round in 0..8 {
            for line in (0..LINES).filter(|line| !is_dirty(*line)) {
                stand
                    .write(line_range(line), round * 16 + line as u8)
                    .await
                    .expect("a write works");
            }
        }
        assert_eq!(stand.cache.status().health, Health::Online);
        stand.cache.flush().await.expect("a flush works");
        let media = stand.kill();
        let (again, _) = stand.on(media, options(Mode::WriteBack, 0)).await.expect("a start");
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
    });
}
