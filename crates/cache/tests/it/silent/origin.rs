//! An origin that does not answer.

use voltier_block::{BlockDevice, Durability, SectorRange};
use voltier_cache::{Health, Mode, Side};

use crate::silent::world::{
    DEADLINE_S, LINE, SECOND_NS, SILENT_S, check_no_errors, read, with_world, write,
};

#[test]
fn hits_and_writes_go_on_while_the_origin_does_not_answer() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 64).await;
        cache.flush().await.expect("a flush works");
        world.origin_hang.begin();
        let miss = world.reads(&cache, 500, LINE);
        // The log writes all of the SSD more than once: reclaiming must not wait for the origin.
        for turn in 0..400 {
            for line in 0..64 {
                write(&cache, line, turn as u8).await.expect("a write works");
            }
            cache.flush().await.expect("a flush works");
            assert_eq!(read(&cache, 7, LINE).await, Ok(turn as u8));
            world.handle.sleep(SECOND_NS / 10).await;
        }
        assert!(cache.status().device_bytes.ssd_written > (3 * 32) << 20);
        assert_eq!((miss.end(), cache.status().health), (None, Health::Online));
        let silent = cache.silent_drive().expect("the origin is silent");
        assert!(silent.side == Side::Origin && silent.silent_ns > DEADLINE_S * SECOND_NS);
        // The cleaner rests.
        let (asked, read_bytes) = (world.origin_hang.asked(), cache.status().device_bytes.ssd_read);
        world.seconds(100 * SILENT_S).await;
        let now = (world.origin_hang.asked(), cache.status().device_bytes.ssd_read);
        assert_eq!((now, cache.status().lines.dirty), ((asked, read_bytes), 64));
        world.origin_hang.end();
        world.seconds(3).await;
        assert_eq!((miss.end(), cache.silent_drive()), (Some(Ok(0)), None));
        cache.drain().await.expect("the origin takes them");
        assert_eq!((world.on_origin(7).await, cache.status().lines.dirty), (143, 0));
        check_no_errors(&cache);
        cache.stop().await.expect("the cache stops in order");
        cache.audit().expect("nothing is held");
    });
}

/// The hits are of a stream that goes to the origin: they would be read from there.
#[test]
fn hits_of_a_stream_go_on_while_the_origin_does_not_answer() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 64).await;
        cache.flush().await.expect("a flush works");
        assert_eq!(read(&cache, 72, 4 * LINE).await, Ok(0));
        assert_eq!(read(&cache, 64, 2 * LINE).await, Ok(0));
        world.seconds(1).await;
        world.origin_hang.begin();
        let miss = world.reads(&cache, 66, 6 * LINE);
        world.handle.yield_now().await;
        for line in 72..76 {
            assert_eq!(read(&cache, line, LINE).await, Ok(0));
        }
        // The log writes all of the SSD more than once: reclaiming must not wait for the origin.
        for turn in 0..400 {
            for line in 0..64 {
                write(&cache, line, turn as u8).await.expect("a write works");
            }
            cache.flush().await.expect("a flush works");
            world.handle.sleep(SECOND_NS / 100).await;
        }
        assert_eq!((miss.end(), cache.status().health), (None, Health::Online));
        world.origin_hang.end();
        world.seconds(3).await;
        assert_eq!((miss.end(), cache.silent_drive()), (Some(Ok(0)), None));
        cache.drain().await.expect("the origin takes them");
        check_no_errors(&cache);
        cache.stop().await.expect("the cache stops in order");
        cache.audit().expect("nothing is held");
    });
}

#[test]
fn a_stop_does_not_wait_for_an_origin_that_does_not_answer() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteThrough, 16).await;
        world.origin_hang.begin();
        let writes = world.writes(&cache, 1, 3);
        world.seconds(1).await;
        cache.leave_silent_drives();
        world.seconds(2 * SILENT_S).await;
        assert!(writes.end().is_some_and(|end| end.is_err()), "nobody acknowledges the write");
        let stopping = cache.clone();
        let stops = world.ask(async move { stopping.stop().await });
        world.seconds(2 * SILENT_S).await;
        assert!(stops.end().is_some_and(|end| end.is_err()), "the next start is after a crash");
        world.origin_hang.end();
        world.seconds(1).await;
        let cache = world.open(Mode::WriteThrough).await;
        assert_eq!(read(&cache, 1, LINE).await, Ok(world.on_origin(1).await));
    });
}

#[test]
fn writes_that_wait_for_room_end_when_a_stop_leaves_an_origin_that_does_not_answer() {
    with_world(|world| async move {
        let cache = world.open(Mode::WriteBack).await;
        world.origin_hang.begin();
        let miss = world.reads(&cache, 500, LINE);
        let mut line = 1000;
        let waiting = loop {
            let written = world.writes(&cache, line, 2);
            world.handle.sleep(SECOND_NS / 10).await;
            match written.end() {
                None => break written,
                written => assert_eq!(written, Some(Ok(()))),
            }
            line += 1;
        };
        world.seconds(100 * SILENT_S).await;
        assert_eq!((miss.end(), waiting.end()), (None, None), "they wait for the origin");
        cache.leave_silent_drives();
        world.seconds(SILENT_S).await;
        assert!(miss.end().is_some_and(|end| end.is_err()), "nobody waits for the origin");
        assert!(waiting.end().is_some_and(|end| end.is_err()), "nor for room that it could give");
        let stopping = cache.clone();
        let stops = world.ask(async move { stopping.stop().await });
        world.seconds(SILENT_S).await;
        assert!(stops.end().is_some_and(|end| end.is_err()), "the next start is after a crash");
        cache.audit().expect("nothing is held");
        world.origin_hang.end();
        world.seconds(1).await;
        let cache = world.open(Mode::WriteBack).await;
        assert_eq!(read(&cache, line - 1, LINE).await, Ok(2));
    });
}

#[test]
fn zeroes_go_to_the_log_while_the_origin_does_not_answer() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 64).await;
        world.origin_hang.begin();
        let miss = world.reads(&cache, 500, LINE);
        world.seconds(2 * SILENT_S).await;
        assert!(cache.silent_drive().is_some());
        let range = SectorRange::from_bytes(0, 64 * 4096);
        cache.write_zeroes(range, Durability::Durable).await.expect("the log takes them");
        assert_eq!((read(&cache, 7, LINE).await, cache.status().lines.dirty), (Ok(0), 64));
        world.origin_hang.end();
        world.seconds(3).await;
        assert_eq!(miss.end(), Some(Ok(0)));
        cache.drain().await.expect("the origin takes them");
        assert_eq!(world.on_origin(7).await, 0);
    });
}
