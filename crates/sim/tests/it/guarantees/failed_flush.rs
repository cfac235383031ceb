//! Goal: a failed flush of the origin, which loses what it was for, costs nothing that the log has. Where
//! the log has nothing, one flush of a client fails. Method: flushes that lose something, one by one.

use voltier_block::{BlockDevice, IoError};
use voltier_cache::{Mode, Settings};
use voltier_sim::{Cut, FaultKind, FaultMix};

use crate::guarantees::stand::{LINES, Stand, in_virtual_time, line_range, options};

fn flush_loses(stand: &Stand, one_in: u64) {
    let mix = FaultMix { rates: vec![(FaultKind::FlushLoss, one_in)] };
    stand.origin.inject(&mix, |_| {});
}

#[test]
fn lines_whose_flush_failed_are_written_again_before_they_are_clean() {
    for ordered in [false, true] {
        in_virtual_time(move |world| async move {
            let mut stand = Stand::filled_in(world, ordered).await;
            stand.cache.flush().await.expect("nothing is wrong yet");
            for round in 0..20 {
                flush_loses(&stand, 1);
                assert_eq!(stand.cache.drain().await, Err(IoError::Medium), "nothing is clean");
                stand.cache.flush().await.expect("the SSD has it all");
                stand.origin.mend();
                stand.cache.drain().await.expect("the origin flushes again");
                assert_eq!(stand.cache.status().lines.dirty, 0);
                assert_eq!(stand.lines_not_on_origin(), [0_u64; 0], "round {round}");
                for line in 0..LINES {
                    stand.write(line_range(line), round + line as u8).await.expect("it works");
                }
                stand.cache.flush().await.expect("the SSD has it all");
            }
            assert!(stand.cache.status().origin.failed_flushes >= 20);
            assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        });
    }
}

/// A flush of a client loses what the cleaner has written and not flushed yet.
#[test]
fn a_failed_flush_of_somebody_else_is_no_flush_for_the_cleaner() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        flush_loses(&stand, 2);
        for round in 0..60 {
            for line in 0..LINES {
                stand.write(line_range(line), round + line as u8).await.expect("the SSD takes it");
            }
            stand.cache.flush().await.expect("the SSD has it");
            while stand.cache.drain().await.is_err() {}
            assert_eq!(stand.lines_not_on_origin(), [0_u64; 0], "round {round}");
        }
    });
}

#[test]
fn of_writes_past_the_log_the_next_flush_of_a_client_tells_once() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        stand.cache.drain().await.expect("the origin works");
        let through = Settings { mode: Mode::WriteThrough, ..stand.cache.settings() };
        stand.cache.configure(through).expect("it is a setting");
        stand.cache.flush().await.expect("nothing is wrong yet");
        stand.write(line_range(1), 77).await.expect("the origin takes it");
        flush_loses(&stand, 1);
        // The stop is refused; another part of the cache has met the error.
        let status = stand.cache.status();
        assert!(!status.origin_loss_untold && status.origin.failed_flushes == 0);
        assert_eq!(stand.cache.flush().await, Err(IoError::Medium), "told");
        stand.origin.mend();
        assert!(!stand.cache.status().origin_loss_untold);
        stand.cache.flush().await.expect("and told once");
        stand.write(line_range(1), 78).await.expect("the origin takes it");
        stand.cache.flush().await.expect("flushes work again");
        assert_eq!(stand.lines_not_on_origin(), [0_u64; 0]);
        // Copies in the regions in question may differ from the origin: a start drops them.
        let media = stand.stop().await;
        let opened = stand.on(media, options(Mode::WriteBack, 0)).await;
        let (again, opened) = opened.expect("it is the same origin");
        assert!(opened.suspect_lines > 0, "{opened:?}");
        assert_eq!(again.failing_lines().await, [0_u64; 0]);
    });
}

/// The cleaner meets the error, and a client hears of it at the next flush.
#[test]
fn a_loss_that_no_client_has_met_is_kept_for_the_next_flush() {
    in_virtual_time(|world| async move {
        let mut stand = Stand::filled(world).await;
        let through = Settings { mode: Mode::WriteThrough, ..stand.cache.settings() };
        stand.cache.configure(through).expect("it is a setting");
        stand.write(line_range(1), 77).await.expect("the origin takes it");
        flush_loses(&stand, 1);
        assert_eq!(stand.cache.drain().await, Err(IoError::Medium));
        stand.origin.mend();
        assert!(stand.cache.status().origin_loss_untold);
        stand.cache.drain().await.expect("what the log has is written again");
        assert!(stand.cache.status().origin_loss_untold, "a drain is no flush of a client");
        assert_eq!(stand.cache.flush().await, Err(IoError::Medium));
        stand.cache.flush().await.expect("told once");
        // The write may be there or not, and a start serves what the origin has.
        let media = stand.crash(Cut::Power);
        stand.cache.kill();
        let (again, _) = stand.on(media, options(Mode::WriteBack, 0)).await.expect("a start");
        let mut on_origin = [0; 4096];
        again.origin.peek(line_range(1).start, &mut on_origin);
        let found = again.read(line_range(1)).await.expect("the origin works");
        assert_eq!(found[..], on_origin);
    });
}
