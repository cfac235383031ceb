//! An SSD that does not answer.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::BlockDevice;
use voltier_cache::{Health, Mode, Settings, Side};

use crate::silent::world::{
    DEADLINE_S, LINE, SECOND_NS, SILENT_S, check_no_errors, read, with_world, write,
};

#[test]
fn an_ssd_is_given_up_when_the_origin_has_everything() {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::ReadOnly] {
        with_world(move |world| async move {
            let cache = world.clean(mode, 16).await;
            let recorded = Rc::new(Cell::new(false));
            let (record, origin) = (recorded.clone(), world.origin_hang.clone());
            let asked_before = origin.asked();
            let gate = move || {
                record.set(true);
                // The released read goes there at once; no write does.
                assert!(origin.asked() <= asked_before + 1, "the origin changes before the record");
                Box::pin(async {}) as _
            };
            cache.on_failure(gate, || {});
            world.ssd_hang.begin();
            let (reads, writes) = (world.reads(&cache, 3, LINE), world.writes(&cache, 4, 2));
            world.seconds(DEADLINE_S - 1).await;
            assert_eq!((reads.end(), writes.end()), (None, None), "{mode}: before the deadline");
            assert_eq!(cache.status().health, Health::Online);
            world.seconds(SILENT_S).await;
            assert_eq!((reads.end(), writes.end()), (Some(Ok(1)), Some(Ok(()))), "{mode}");
            assert!(recorded.get() && cache.status().health == Health::Failed, "{mode}");
            assert!(cache.status().ssd_silent_ns.is_some_and(|ns| ns >= DEADLINE_S * SECOND_NS));
            assert_eq!((read(&cache, 4, LINE).await, world.on_origin(4).await), (Ok(2), 2));
            cache.flush().await.expect("the origin has everything");
            cache.drain().await.expect("nothing is lost");
            assert_eq!(cache.lost_ranges(usize::MAX), []);
            check_no_errors(&cache);
            // The SSD does late what it was asked for, and nobody is reached by that.
            world.ssd_hang.end();
            world.seconds(1).await;
            assert_eq!((read(&cache, 3, LINE).await, read(&cache, 4, LINE).await), (Ok(1), Ok(2)));
            cache.stop().await.expect("the origin stops in order");
            cache.audit().expect("nothing is held");
        });
    }
}

#[test]
fn an_ssd_with_dirty_lines_is_kept_and_the_origin_serves_the_clean_ones() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 64).await;
        for line in 0..4 {
            write(&cache, line, 2).await.expect("a write works");
        }
        world.ssd_hang.begin();
        let whole = world.reads(&cache, 8, LINE);
        let (part, many) = (world.reads(&cache, 9, 512), world.reads(&cache, 16, 32 * LINE));
        let (dirty, mixed) = (world.reads(&cache, 0, LINE), world.reads(&cache, 2, LINE));
        let (writes, again) = (world.writes(&cache, 40, 3), world.writes(&cache, 1, 3));
        world.seconds(DEADLINE_S - 1).await;
        assert_eq!((whole.end(), part.end(), many.end()), (None, None, None));
        assert_eq!(cache.silent_drive(), None);
        world.seconds(SILENT_S).await;
        let released = (whole.end(), part.end(), many.end());
        assert_eq!(released, (Some(Ok(1)), Some(Ok(1)), Some(Ok(1))));
        for _ in 0..20 {
            world.seconds(100).await;
            assert_eq!((dirty.end(), mixed.end(), writes.end(), again.end()), Default::default());
        }
        let silent = cache.silent_drive().expect("the SSD is silent");
        assert!(silent.side == Side::Ssd && silent.silent_ns > 2000 * SECOND_NS, "{silent:?}");
        assert!(silent.lines_dirty >= 4 && cache.status().health == Health::Online);
        // New reads of clean lines do not ask the SSD at all.
        let (begun, asked) = (world.handle.now(), world.ssd_hang.asked());
        for (line, bytes) in [(10, LINE), (11, 1024), (16, 16 * LINE)] {
            assert_eq!(read(&cache, line, bytes).await, Ok(1));
        }
        assert_eq!(world.ssd_hang.asked(), asked);
        assert!(world.handle.now() - begun < SECOND_NS);
        world.ssd_hang.end();
        world.seconds(1).await;
        assert_eq!((dirty.end(), mixed.end()), (Some(Ok(2)), Some(Ok(2))));
        assert_eq!((writes.end(), again.end()), (Some(Ok(())), Some(Ok(()))));
        assert_eq!((cache.silent_drive(), cache.status().health), (None, Health::Online));
        let asked = world.ssd_hang.asked();
        assert_eq!((read(&cache, 12, LINE).await, world.ssd_hang.asked()), (Ok(1), asked + 1));
        check_no_errors(&cache);
        cache.drain().await.expect("the origin takes them");
        for (line, byte) in [(0, 2), (1, 3), (2, 2), (8, 1), (40, 3)] {
            assert_eq!(world.on_origin(line).await, byte, "line {line}");
        }
        cache.stop().await.expect("the cache stops in order");
        cache.audit().expect("nothing is held");
    });
}

#[test]
fn a_clean_line_on_its_way_to_a_silent_ssd_is_read_from_the_origin() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 16).await;
        write(&cache, 0, 2).await.expect("a write works");
        world.ssd_hang.begin();
        // The miss is answered by the origin, and its copy does not arrive.
        assert_eq!(read(&cache, 100, LINE).await, Ok(0));
        let second = world.reads(&cache, 100, LINE);
        world.seconds(1).await;
        assert_eq!(second.end(), None, "the line is on its way");
        world.seconds(2 * SILENT_S).await;
        assert_eq!(second.end(), Some(Ok(0)));
        world.ssd_hang.end();
        world.seconds(1).await;
        assert_eq!(read(&cache, 100, LINE).await, Ok(0));
        check_no_errors(&cache);
    });
}

#[test]
fn a_drain_ends_well_when_the_ssd_is_given_up_with_nothing_dirty() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 16).await;
        write(&cache, 0, 2).await.expect("a write works");
        let draining = cache.clone();
        let drains = world.ask(async move { draining.drain().await });
        // The origin has the line, and the news of that is on its way to the SSD.
        while cache.status().lines.dirty > 0 {
            world.handle.sleep(1000).await;
        }
        world.ssd_hang.begin();
        world.seconds(1).await;
        assert_eq!(drains.end(), None, "the news is not on the SSD");
        world.seconds(2 * SILENT_S).await;
        assert_eq!((drains.end(), cache.status().health), (Some(Ok(())), Health::Failed));
        assert_eq!(world.on_origin(0).await, 2);
    });
}

#[test]
fn an_ssd_that_answers_some_requests_is_given_up_for_one_after_several_deadlines() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteThrough, 16).await;
        world.ssd_hang.hold_next();
        let stuck = world.reads(&cache, 3, LINE);
        for _ in 0..2 * DEADLINE_S {
            world.seconds(1).await;
            assert_eq!(read(&cache, 4, LINE).await, Ok(1));
        }
        assert_eq!((stuck.end(), cache.status().health), (None, Health::Online));
        for _ in 0..2 * DEADLINE_S {
            world.seconds(1).await;
            assert_eq!(read(&cache, 4, LINE).await, Ok(1));
        }
        assert_eq!((stuck.end(), cache.status().health), (Some(Ok(1)), Health::Failed));
    });
}

#[test]
fn without_a_deadline_requests_wait_for_the_ssd() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteThrough, 16).await;
        cache.configure(Settings { deadline_ns: 0, ..cache.settings() }).expect("off is a choice");
        world.ssd_hang.begin();
        let reads = world.reads(&cache, 3, LINE);
        world.seconds(1000 * DEADLINE_S).await;
        assert_eq!((reads.end(), cache.silent_drive()), (None, None));
        world.ssd_hang.end();
        world.seconds(1).await;
        assert_eq!((reads.end(), cache.status().health), (Some(Ok(1)), Health::Online));
    });
}

#[test]
fn an_ssd_that_is_left_keeps_its_dirty_lines_for_the_next_start() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 16).await;
        write(&cache, 0, 2).await.expect("a write works");
        cache.flush().await.expect("a flush works");
        world.ssd_hang.begin();
        let (writes, reads) = (world.writes(&cache, 1, 3), world.reads(&cache, 0, LINE));
        world.seconds(2 * SILENT_S).await;
        cache.leave_silent_drives();
        world.seconds(1).await;
        assert!(writes.end().is_some_and(|end| end.is_err()), "nothing passes to the origin");
        assert!(reads.end().is_some_and(|end| end.is_err()));
        assert_eq!((world.on_origin(0).await, world.on_origin(1).await), (1, 1));
        cache.stop().await.expect_err("the next start is one after a crash");
        cache.audit().expect("nothing is held");
        world.ssd_hang.end();
        world.seconds(1).await;
        let cache = world.open(Mode::WriteBack).await;
        assert_eq!(read(&cache, 0, LINE).await, Ok(2));
    });
}

#[test]
fn an_ssd_whose_dirty_lines_the_user_gives_up_is_given_up() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 16).await;
        write(&cache, 0, 2).await.expect("a write works");
        world.ssd_hang.begin();
        let writes = world.writes(&cache, 1, 3);
        // The user may be quicker than the deadline.
        cache.give_up_silent_ssd();
        world.seconds(SILENT_S).await;
        assert_eq!((writes.end(), world.on_origin(1).await), (Some(Ok(())), 3));
        assert_eq!(cache.status().health, Health::Failed);
        cache.dissolve().await.expect("the origin serves alone");
    });
}
