//! Goal: an SSD that takes no writes any more, and can be read, loses nothing that was acknowledged. Method:
//! its writes or flushes fail for good; then requests, crashes at many moments, bad lines, errors of the
//! origin.

use std::future::Future;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba, Nanos, SectorRange};
use voltier_cache::{Health, Mode, OpenError, OpenOptions, Settings, UnwritableSsd};
use voltier_sim::{Cut, FaultKind, FaultMix, Medium, SimDisk, World};

use crate::guarantees::ssd_errors::place_of;
use crate::guarantees::stand::{
    LINES, Stand, in_virtual_time, is_dirty, line_range, lines_of, options,
};

/// Longer than the tries of a write.
const TRIED_NS: Nanos = 5_000_000_000;

fn all_of_ssd(stand: &Stand) -> SectorRange {
    SectorRange::from_bytes(0, stand.profile.ssd.bytes)
}

async fn sleep(stand: &Stand, time_ns: Nanos) {
    stand.world.handle().sleep(time_ns).await;
}

/// Checks that the SSD is out of service, that nothing is lost, and that the origin has all.
async fn check_evacuated(stand: &Stand) {
    stand.cache.flush().await.expect("nothing is lost");
    assert_eq!(stand.cache.status().health, Health::Failed);
    assert_eq!(stand.cache.status().lines.dirty, 0);
    assert_eq!(stand.cache.lost_ranges(usize::MAX), []);
    assert_eq!(stand.failing_lines().await, [0_u64; 0]);
    assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
}

#[test]
fn an_ssd_that_takes_no_writes_is_evacuated_and_nothing_is_lost() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        stand.ssd.fail_writes(all_of_ssd(&stand));
        for line in 0..LINES {
            stand.write(line_range(line), 100 + line as u8).await.expect("the origin takes it");
        }
        check_evacuated(&stand).await;
        stand.cache.stop().await.expect("it ends in order");
        stand.cache.audit().expect("nothing is held");
    });
}

#[test]
fn a_cache_that_writes_through_goes_on_without_an_ssd_that_takes_no_writes() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::new(world, Mode::WriteThrough).await;
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        stand.ssd.fail_writes(all_of_ssd(&stand));
        for line in 0..LINES {
            stand.write(line_range(line), line as u8).await.expect("the origin takes it");
        }
        check_evacuated(&stand).await;
    });
}

#[test]
fn a_failed_flush_is_believed_by_nobody_and_costs_nothing_that_was_flushed_before() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        stand.ssd.fail_flushes();
        // Not dirty before: what the failed flush was for is not what earlier ones were for.
        stand.write(line_range(1), 1).await.expect("a write works");
        let flushed = stand.cache.flush().await;
        stand.ssd.mend();
        sleep(&stand, TRIED_NS).await;
        assert_eq!(stand.cache.status().health, Health::Failed);
        let lost = lines_of(&stand.cache.lost_ranges(usize::MAX));
        assert!(lost.iter().all(|line| !is_dirty(*line)) || lost.is_empty(), "{lost:?}");
        assert_eq!(stand.failing_lines().await, lost);
        assert_eq!(flushed.is_ok(), lost.is_empty(), "a flush does not lie");
        stand.write(line_range(1), 2).await.expect("the origin takes it");
        check_evacuated(&stand).await;
    });
}

#[test]
fn dirty_lines_are_read_while_an_origin_that_fails_holds_an_evacuation_up() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        let all = SectorRange::from_bytes(0, stand.profile.origin.bytes);
        stand.origin.fail_writes(all);
        stand.ssd.fail_writes(all_of_ssd(&stand));
        assert_eq!(stand.write(line_range(1), 1).await, Err(IoError::Medium), "nobody takes it");
        assert_eq!(stand.cache.status().health, Health::Evacuating);
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        stand.cache.flush().await.expect("what is acknowledged is durable on the SSD");
        assert_eq!(stand.cache.drain().await, Err(IoError::Medium));
        stand.origin.mend();
        stand.cache.drain().await.expect("a drain is what goes on anyway");
        sleep(&stand, TRIED_NS).await;
        check_evacuated(&stand).await;
    });
}

#[test]
fn lines_that_cannot_be_read_are_lost_and_all_others_are_evacuated() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        for line in [3, 30] {
            stand.ssd.fail_reads(place_of(&stand, line));
        }
        stand.ssd.fail_writes(all_of_ssd(&stand));
        stand.write(line_range(1), 1).await.expect("the origin takes it");
        assert_eq!(lines_of(&stand.cache.lost_ranges(usize::MAX)), [3, 30]);
        assert_eq!(stand.failing_lines().await, [3, 30]);
        assert_eq!(stand.lines_not_on_origin(), [3, 30]);
        for line in [3, 30] {
            stand.write(line_range(line), 9).await.expect("the origin takes it");
        }
        check_evacuated(&stand).await;
    });
}

#[test]
fn what_was_dirty_before_a_record_that_failed_is_what_an_evacuation_writes() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.ssd.fail_writes(all_of_ssd(&stand));
        let (cache, handle) = (stand.cache.clone(), stand.world.handle().clone());
        let write = handle.spawn(async move {
            let data = Bytes::copy_of(&[200; 512]);
            cache.write(Lba(1), data.into(), Durability::Cached).await
        });
        while stand.cache.status().health == Health::Online {
            sleep(&stand, 1_000_000).await;
        }
        write.await.expect("the origin takes it");
        let read = stand.read(line_range(0)).await.expect("line 0 can be read");
        assert!(read[..512].iter().all(|byte| *byte == 0));
        assert!(read[512..1024].iter().all(|byte| *byte == 200));
        assert!(read[1024..].iter().all(|byte| *byte == 0));
        assert_eq!(stand.cache.lost_ranges(usize::MAX), []);
    });
}

#[test]
fn a_crash_at_any_moment_of_an_evacuation_loses_nothing() {
    for moment in 0..60 {
        for (cut, ordered) in [(Cut::Kill, false), (Cut::Power, false), (Cut::Power, true)] {
            in_virtual_time(move |world| async move {
                let mut stand = Stand::filled_in(world, ordered).await;
                stand.ssd.fail_writes(all_of_ssd(&stand));
                let stand_of_clients = Rc::new(stand.cache.clone());
                let acknowledged = Rc::new(std::cell::RefCell::new(Vec::new()));
                for line in 0..LINES {
                    let (cache, done) = (stand_of_clients.clone(), acknowledged.clone());
                    drop(stand.world.handle().spawn(async move {
                        let data = Bytes::copy_of(&vec![100 + line as u8; 4096]);
                        let at = line_range(line).start;
                        if cache.write(at, data.into(), Durability::Durable).await.is_ok() {
                            done.borrow_mut().push(line);
                        }
                    }));
                }
                // The tries of the first write end after 3.4 s and some requests.
                sleep(&stand, 3_400_000_000 + moment * 2_000_000).await;
                let (media, acknowledged) = (stand.crash(cut), acknowledged.take());
                for line in &acknowledged {
                    stand.expect(*line, 100 + *line as u8);
                }
                let origin_alone = stand.cache.status().health == Health::Failed;
                if origin_alone {
                    assert_eq!(stand.lines_not_on_medium(&media.1, 100), [0_u64; 0], "{moment}");
                    return;
                }
                assert_eq!(acknowledged, [0_u64; 0], "before the end of the evacuation");
                let settings = Settings { ordered, ..Settings::default() };
                let options = OpenOptions { settings, ..options(Mode::WriteBack, 0) };
                let (mut again, _) = stand.on(media, options).await.expect("it comes back");
                again.check_either(100).await;
                again.cache.drain().await.expect("the SSD takes writes again");
                assert_eq!(again.failing_lines().await, [0_u64; 0]);
                assert_eq!(again.lines_not_on_origin(), [0_u64; 0], "moment {moment}");
            });
        }
    }
}

#[test]
fn a_crash_beside_clients_that_pass_the_ssd_loses_nothing() {
    const BAD: u64 = 3;
    let acknowledged_early = Rc::new(std::cell::Cell::new(0));
    for moment in 0..120 {
        let (cut, early) =
            (if moment % 2 == 0 { Cut::Kill } else { Cut::Power }, acknowledged_early.clone());
        in_virtual_time(move |world| async move {
            let mut stand = Stand::filled(world).await;
            let passed = Rc::new(std::cell::RefCell::new(Vec::new()));
            let (on_record, handle) = (passed.clone(), stand.world.handle().clone());
            stand.cache.on_passing(move |ranges| {
                let (on_record, handle) = (on_record.clone(), handle.clone());
                Box::pin(async move {
                    handle.sleep(300_000).await;
                    on_record.replace(ranges);
                    true
                })
            });
            // A line that cannot be read: the evacuation goes on, and its region is not passed.
            stand.ssd.fail_reads(place_of(&stand, BAD));
            stand.ssd.fail_writes(all_of_ssd(&stand));
            let acknowledged = Rc::new(std::cell::RefCell::new(Vec::new()));
            for line in (0..LINES).filter(|line| *line != BAD) {
                let (cache, done) = (stand.cache.clone(), acknowledged.clone());
                drop(stand.world.handle().spawn(async move {
                    let data = Bytes::copy_of(&vec![100 + line as u8; 4096]);
                    let at = line_range(line).start;
                    if cache.write(at, data.into(), Durability::Durable).await.is_ok() {
                        done.borrow_mut().push(line);
                    }
                }));
            }
            sleep(&stand, 3_400_000_000 + moment * 500_000).await;
            let (media, acknowledged) = (stand.crash(cut), acknowledged.take());
            assert_ne!(stand.cache.status().health, Health::Failed, "it is not on record");
            early.set(early.get() + acknowledged.len());
            for line in &acknowledged {
                stand.expect(*line, 100 + *line as u8);
            }
            let passed = passed.borrow().clone();
            let options = OpenOptions { passed, ..options(Mode::WriteBack, 0) };
            let (mut again, opened) =
                stand.on(media.clone(), options.clone()).await.expect("it comes back");
            assert_eq!(opened.differing_lines, 0);
            again.check_either(100).await;
            again.cache.drain().await.expect("the SSD takes writes again");
            assert_eq!(again.failing_lines().await, [0_u64; 0]);
            assert_eq!(again.lines_not_on_origin(), [0_u64; 0], "moment {moment}");
            // Or it goes on to take none.
            let unwritable = OpenOptions { unwritable: UnwritableSsd::Evacuate, ..options };
            let (mut further, _) = stand.on_unwritable(media, unwritable).await.expect("it opens");
            further.cache.begin_evacuation();
            further.check_either(100).await;
            sleep(&further, 10 * TRIED_NS).await;
            check_evacuated(&further).await;
        });
    }
    assert!(acknowledged_early.get() > 100, "nobody passes: {}", acknowledged_early.get());
}

#[test]
fn single_errors_during_an_evacuation_cost_nothing() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        let rates = vec![(FaultKind::ReadErrorOnce, 4), (FaultKind::WriteErrorForEver, 1)];
        stand.ssd.inject(&FaultMix { rates }, |_| {});
        let rates = vec![(FaultKind::WriteErrorOnce, 3)];
        stand.origin.inject(&FaultMix { rates }, |_| {});
        let _ = stand.write(line_range(1), 1).await;
        sleep(&stand, 60_000_000_000).await;
        stand.ssd.mend();
        stand.origin.mend();
        stand.write(line_range(1), 1).await.expect("the origin takes it");
        check_evacuated(&stand).await;
    });
}

/// Lines that are written anew: so few that the log stays in its segment, and flushes nothing by itself.
fn rewritten_lines() -> impl Iterator<Item = u64> {
    (0..12).filter(|line| is_dirty(*line))
}

/// A stand whose dirty lines have just been destaged, and some of them written anew: no flush of the SSD has
/// covered either. Then the SSD's flushes fail.
async fn rewritten_before_a_failed_flush(world: World, shift: u64) -> Stand {
    let mut stand = Stand::filled(world).await;
    // Where the log stands in its segment then.
    for line in (0..shift).map(|count| 3 * count + 1) {
        stand.write(line_range(line), line as u8).await.expect("a write works");
    }
    stand.cache.drain().await.expect("a drain works");
    for line in rewritten_lines() {
        let (at, data) = (line_range(line).start, Bytes::copy_of(&vec![100 + line as u8; 4096]));
        let written = stand.cache.write(at, data.into(), Durability::Cached).await;
        written.expect("a write works");
    }
    stand.ssd.fail_flushes();
    stand
}

#[test]
fn after_a_power_cut_in_an_evacuation_no_read_goes_back_or_forth() {
    for moment in 0..80 {
        in_virtual_time(move |world| async move {
            let stand = rewritten_before_a_failed_flush(world, 1 + moment % 20).await;
            let cache = stand.cache.clone();
            drop(stand.world.handle().spawn(async move { cache.flush().await }));
            sleep(&stand, moment * 1_000_000).await;
            let media = stand.crash(Cut::Power);
            assert_ne!(stand.cache.status().health, Health::Failed, "it is not on record");
            let (mut again, _) =
                stand.on(media, options(Mode::WriteBack, 0)).await.expect("a start");
            again.check_either(100).await;
            again.cache.drain().await.expect("a drain works");
            assert_eq!(again.failing_lines().await, [0_u64; 0]);
            assert_eq!(again.lines_not_on_origin(), [0_u64; 0], "moment {moment}");
        });
    }
}

#[test]
fn lines_that_no_flush_covered_go_to_the_origin_when_the_loss_is_on_record() {
    in_virtual_time(|world| async move {
        let mut stand = rewritten_before_a_failed_flush(world, 1).await;
        for line in rewritten_lines() {
            stand.expect(line, 100 + line as u8);
        }
        let (origin, recorded) = (stand.origin.clone(), Rc::new(std::cell::Cell::new(false)));
        let (handle, noted) = (stand.world.handle().clone(), recorded.clone());
        let recorded_and_told = Rc::new(std::cell::Cell::new(false));
        let seen = recorded_and_told.clone();
        let record = move || -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(async move {
                let content = || {
                    let mut content = vec![0; (LINES * 4096) as usize];
                    origin.peek(Lba(0), &mut content);
                    content
                };
                let before = content();
                handle.sleep(TRIED_NS).await;
                assert!(content() == before, "before the loss is on record");
                noted.set(true);
            })
        };
        stand.cache.on_failure(record, move || seen.set(true));
        stand.cache.flush().await.expect("everything acknowledged is on the origin");
        assert!(recorded.get() && recorded_and_told.get());
        check_evacuated(&stand).await;
        stand.write(line_range(1), 1).await.expect("the origin takes it");
        check_evacuated(&stand).await;
        stand.cache.stop().await.expect("it ends in order");
        stand.cache.audit().expect("nothing is held");
    });
}

#[test]
fn a_stop_between_a_loss_and_its_record_waits_for_nobody() {
    in_virtual_time(|world| async move {
        let stand = rewritten_before_a_failed_flush(world, 1).await;
        let never =
            || -> std::pin::Pin<Box<dyn Future<Output = ()>>> { Box::pin(std::future::pending()) };
        stand.cache.on_failure(never, || {});
        let released = stand.cache.release_waits();
        stand.cache.flush().await.expect_err("nobody waits");
        drop(released);
        sleep(&stand, 12 * TRIED_NS).await;
        assert_eq!(stand.cache.status().health, Health::Failed);
        let before = stand.lines_not_on_origin();
        stand.cache.stop().await.expect("it ends in order");
        sleep(&stand, TRIED_NS).await;
        assert_eq!(stand.lines_not_on_origin(), before);
        stand.cache.audit().expect("nothing is held");
    });
}

#[test]
fn lines_of_a_discard_that_waits_for_an_evacuation_can_be_read() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        // A line that cannot be read: the evacuation takes its time.
        stand.ssd.fail_reads(place_of(&stand, 30));
        stand.ssd.fail_writes(all_of_ssd(&stand));
        let (cache, handle) = (stand.cache.clone(), stand.world.handle().clone());
        // The write has the line's lock while it is tried again, and the discard waits for it.
        let write = handle.spawn(async move {
            let data = Bytes::copy_of(&[200; 4096]);
            cache.write(line_range(3).start, data.into(), Durability::Cached).await
        });
        sleep(&stand, 1_000_000).await;
        let cache = stand.cache.clone();
        let discard = handle.spawn(async move { cache.discard(line_range(3)).await });
        sleep(&stand, TRIED_NS).await;
        assert_eq!(stand.cache.status().health, Health::Evacuating);
        let (cache, has_read) = (stand.cache.clone(), Rc::new(std::cell::Cell::new(false)));
        let seen = has_read.clone();
        drop(handle.spawn(async move {
            let read = cache.read(line_range(3).start, Buf::new(4096)).await;
            seen.set(read.is_ok_and(|data| data[..] == [3; 4096]));
        }));
        sleep(&stand, TRIED_NS).await;
        assert!(has_read.get(), "a read waits for a discard");
        write.await.expect("the origin takes it");
        discard.await.expect("the origin takes it");
        assert_eq!(lines_of(&stand.cache.lost_ranges(usize::MAX)), [30]);
    });
}

/// Options of a start that may evacuate.
fn evacuating(unwritable: UnwritableSsd) -> OpenOptions {
    OpenOptions { unwritable, ..options(Mode::WriteBack, 0) }
}

/// The same, where a start that found generation 1 has begun.
fn further() -> OpenOptions {
    OpenOptions { generation_min: 1, ..evacuating(UnwritableSsd::EvacuateFurther) }
}

/// The media that a start may find: after a stop in order, a kill, a power cut.
async fn media_left_by(stand: &Stand, end: usize) -> (Medium, Medium) {
    match end {
        0 => stand.stop().await,
        1 => stand.crash(Cut::Kill),
        _ => stand.crash(Cut::Power),
    }
}

#[test]
fn a_start_on_an_ssd_that_takes_no_writes_evacuates_it_when_that_is_on_record() {
    for end in 0..3 {
        in_virtual_time(move |world| async move {
            let stand = Stand::filled(world).await;
            let media = media_left_by(&stand, end).await;
            let refused = evacuating(UnwritableSsd::Refuse);
            assert!(stand.on_unwritable(media.clone(), refused).await.is_err());
            let options = evacuating(UnwritableSsd::Evacuate);
            let (mut again, opened) = stand.on_unwritable(media, options).await.expect("it opens");
            assert!(opened.evacuates);
            let before = again.lines_not_on_origin();
            assert_eq!(again.failing_lines().await, [0_u64; 0]);
            sleep(&again, 10 * TRIED_NS).await;
            assert_eq!(again.cache.status().health, Health::Evacuating);
            assert_eq!(again.lines_not_on_origin(), before, "not before it is on record");
            again.cache.begin_evacuation();
            again.write(line_range(1), 1).await.expect("the origin takes it");
            check_evacuated(&again).await;
            again.cache.stop().await.expect("it ends in order");
            again.cache.audit().expect("nothing is held");
        });
    }
}

#[test]
fn a_crash_in_the_evacuation_of_a_start_is_gone_on_from_by_who_has_it_on_record() {
    let mut refused = 0;
    for moment in 0..40 {
        for (end, cut) in [(0, Cut::Kill), (0, Cut::Power), (2, Cut::Power)] {
            let seen = Rc::new(std::cell::Cell::new(0));
            let (counted, is_stopped) = (seen.clone(), end == 0);
            in_virtual_time(move |world| async move {
                let stand = Stand::filled(world).await;
                let media = media_left_by(&stand, end).await;
                let first = evacuating(UnwritableSsd::Evacuate);
                let (first, _) = stand.on_unwritable(media, first).await.expect("it opens");
                first.cache.begin_evacuation();
                sleep(&first, moment * 500_000).await;
                let media = first.crash(cut);
                if first.cache.status().health == Health::Failed {
                    return;
                }
                let unaware = evacuating(UnwritableSsd::Evacuate);
                if let Err(error) = first.on_unwritable(media.clone(), unaware).await {
                    assert!(
                        is_stopped && matches!(error, OpenError::OriginChanged { .. }),
                        "{error}"
                    );
                    counted.set(1);
                }
                let further = further();
                let (healed, opened) =
                    first.on(media.clone(), further.clone()).await.expect("it opens");
                assert!(!opened.evacuates, "it takes writes again");
                assert_eq!(healed.failing_lines().await, [0_u64; 0]);
                healed.cache.drain().await.expect("a drain works");
                assert_eq!(healed.lines_not_on_origin(), [0_u64; 0]);
                let (second, _) = first.on_unwritable(media, further).await.expect("it opens");
                assert_eq!(second.failing_lines().await, [0_u64; 0]);
                second.cache.begin_evacuation();
                sleep(&second, 10 * TRIED_NS).await;
                check_evacuated(&second).await;
            });
            refused += seen.get();
        }
    }
    assert!(refused > 0, "no start found the origin changed");
}

#[test]
fn an_evacuation_of_a_start_gives_up_no_line_however_long_the_ssd_fails() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        let media = stand.stop().await;
        let options = evacuating(UnwritableSsd::Evacuate);
        let (mut again, _) = stand.on_unwritable(media, options).await.expect("it opens");
        again.ssd.fail_reads(all_of_ssd(&again));
        again.cache.begin_evacuation();
        sleep(&again, TRIED_NS).await;
        assert!(!again.cache.status().evacuation_stalls, "not yet");
        // Three minutes: a cache that served gives its SSD up after 47 s.
        sleep(&again, 36 * TRIED_NS).await;
        assert_eq!(again.cache.status().health, Health::Evacuating);
        assert!(again.cache.status().evacuation_stalls);
        assert_eq!(again.write(line_range(1), 1).await, Err(IoError::Medium), "nobody waits long");
        assert_eq!(again.cache.drain().await, Err(IoError::Medium), "nor does a drain");
        again.ssd.mend();
        sleep(&again, 6 * TRIED_NS).await;
        assert!(!again.cache.status().evacuation_stalls);
        again.write(line_range(1), 1).await.expect("the origin takes it");
        check_evacuated(&again).await;
    });
}

/// The media of a stop in order, and of an evacuation that began after it and was cut off half-way.
async fn half_evacuated(stand: &Stand) -> (Medium, Medium) {
    for moment in 1.. {
        let options = evacuating(UnwritableSsd::Evacuate);
        let media = (stand.ssd.medium(), stand.origin.medium());
        let (first, _) = stand.on_unwritable(media, options).await.expect("it opens");
        first.cache.begin_evacuation();
        sleep(&first, moment * 500_000).await;
        let left = first.lines_not_on_origin().len() as u64;
        if (1..LINES.div_ceil(3)).contains(&left) {
            return first.crash(Cut::Kill);
        }
        assert!(left > 0, "no moment was half-way");
    }
    unreachable!("a moment is found or there is none")
}

#[test]
fn an_ssd_that_takes_the_first_writes_of_a_start_only_is_evacuated_when_that_is_on_record() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.stop().await;
        let media = half_evacuated(&stand).await;
        let options = further();
        let behind_marks =
            SectorRange::from_bytes(136 << 10, stand.profile.ssd.bytes - (136 << 10));
        let harm = |ssd: &SimDisk| ssd.fail_writes(behind_marks);
        let (again, opened) = stand.on_sick(media, options, harm).await.expect("it opens");
        assert!(opened.evacuates, "its checkpoint failed");
        let before = again.lines_not_on_origin();
        sleep(&again, 10 * TRIED_NS).await;
        assert_eq!(again.lines_not_on_origin(), before, "not before it is on record");
        again.cache.begin_evacuation();
        sleep(&again, 10 * TRIED_NS).await;
        check_evacuated(&again).await;
    });
}

#[test]
fn an_evacuation_explains_no_change_of_the_origin_after_a_later_stop_in_order() {
    in_virtual_time(|world| async move {
        let stand = Stand::filled(world).await;
        stand.stop().await;
        let media = half_evacuated(&stand).await;
        let options = further();
        let (healed, opened) = stand.on(media, options.clone()).await.expect("it opens");
        assert_eq!((opened.generation, opened.evacuates), (2, false));
        // The registry did not take generation 2, so the volume is closed in order.
        let (ssd, mut origin) = healed.stop().await;
        assert!(!healed.lines_not_on_origin().is_empty(), "dirty lines are left");
        origin.overwrite(0, &[77; 4096]);
        let opened = stand.on((ssd, origin), options).await;
        assert!(matches!(opened, Err(OpenError::OriginChanged { .. })));
    });
}

#[test]
fn a_drain_does_not_call_an_evacuation_done_that_leaves_lines() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        for line in (0..LINES).filter(|line| is_dirty(*line)) {
            stand.ssd.fail_reads(place_of(&stand, line));
        }
        stand.ssd.fail_writes(all_of_ssd(&stand));
        let cache = stand.cache.clone();
        let drained = stand.world.handle().spawn(async move {
            while cache.status().health == Health::Online {
                cache.drain().await.expect_err("nothing can be read");
            }
            cache.drain().await
        });
        stand.write(line_range(1), 1).await.expect("the origin takes it");
        assert_eq!(drained.await, Err(IoError::Gone));
        let lost = lines_of(&stand.cache.lost_ranges(usize::MAX));
        assert!(!lost.is_empty());
        assert_eq!(stand.lines_not_on_origin(), lost);
    });
}
