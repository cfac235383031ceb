//! Goal: a write that ended with an error, and whose old content was read, never comes back. An SSD may fail
//! the write of a record and have the record all the same. Method: an origin that refuses the evacuation, an
//! SSD that fails writes and stores any part of them, and crashes behind that.

use std::rc::Rc;

use voltier_block::{BlockDevice, Bytes, Durability, IoError, IoResult, Nanos, SectorRange};
use voltier_cache::{Health, Mode};
use voltier_ring::join_all;
use voltier_sim::{Cut, FaultKind, FaultMix, World};

use crate::guarantees::stand::{LINES, Stand, in_virtual_time, line_range, options};

const SECOND_NS: Nanos = 1_000_000_000;
/// The bytes of new content: this number and that of the line.
const NEWER: u8 = 100;

/// A stand whose origin refuses all writes.
async fn before_a_refusing_origin(world: World) -> Stand {
    let stand = Stand::filled(world).await;
    stand.origin.fail_writes(SectorRange::from_bytes(0, stand.profile.origin.bytes));
    stand
}

fn all_of_ssd(stand: &Stand) -> SectorRange {
    SectorRange::from_bytes(0, stand.profile.ssd.bytes)
}

/// Writes new content to lines at the same time: many records are on their way at once.
async fn write_all(stand: &Stand, lines: std::ops::Range<u64>) -> Vec<IoResult<()>> {
    let writes = lines.map(|line| {
        let (cache, range) = (stand.cache.clone(), line_range(line));
        async move {
            let data = Bytes::copy_of(&vec![NEWER + line as u8; range.bytes() as usize]);
            cache.write(range.start, data.into(), Durability::Cached).await
        }
    });
    join_all(writes).await
}

/// Starts after crashes at this moment find what is expected.
async fn nothing_changes_in_crashes(stand: &Stand) {
    for cut in [Cut::Kill, Cut::Power] {
        for _ in 0..4 {
            let media = stand.crash(cut);
            let (again, _) = stand.on(media, options(Mode::WriteBack, 0)).await.expect("a start");
            assert_eq!(again.failing_lines().await, [0_u64; 0], "{cut:?}");
            again.cache.kill();
        }
    }
}

#[test]
fn writes_that_the_ssd_failed_and_has_are_acknowledged() {
    in_virtual_time(|world| async move {
        let mut stand = before_a_refusing_origin(world).await;
        stand.ssd.fail_stored_writes(all_of_ssd(&stand));
        // So many go out at once: in two records.
        let lines = 0..40;
        for written in write_all(&stand, lines.clone()).await {
            written.expect("the SSD has it");
        }
        assert_eq!(stand.cache.status().health, Health::Evacuating);
        lines.for_each(|line| stand.expect(line, NEWER + line as u8));
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        nothing_changes_in_crashes(&stand).await;
        let later = stand.write(line_range(1), 1).await;
        assert_eq!(later, Err(IoError::Medium), "the log has ended");
        nothing_changes_in_crashes(&stand).await;
    });
}

#[test]
fn what_is_read_after_writes_that_failed_stays_in_a_crash() {
    in_virtual_time(|world| async move {
        let (mut acknowledged, mut failed) = (0, 0);
        for round in 0..60 {
            let mut stand = before_a_refusing_origin(world.clone()).await;
            // Any part of a write that fails is on the medium.
            let rates = vec![(FaultKind::WriteErrorForEver, 1 + round % 4)];
            stand.ssd.inject(&FaultMix { rates }, |_| {});
            let written = write_all(&stand, 0..LINES).await;
            for (line, written) in (0..).zip(written) {
                match written {
                    Ok(()) => stand.expect(line, NEWER + line as u8),
                    Err(error) => assert_eq!(error, IoError::Medium),
                }
                acknowledged += u64::from(written.is_ok());
                failed += u64::from(written.is_err());
            }
            stand.check_either(NEWER).await;
            nothing_changes_in_crashes(&stand).await;
            stand.cache.kill();
        }
        assert!(acknowledged > 100 && failed > 100, "{acknowledged}, {failed}");
    });
}

/// Nobody knows then what the SSD has, and the older content is served: a known gap.
#[test]
fn without_a_flush_no_write_that_failed_is_acknowledged() {
    in_virtual_time(|world| async move {
        let stand = before_a_refusing_origin(world).await;
        stand.ssd.fail_stored_writes(all_of_ssd(&stand));
        stand.ssd.fail_flushes();
        for written in write_all(&stand, 0..LINES).await {
            assert_eq!(written, Err(IoError::Medium));
        }
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
    });
}

/// Writes a line on an SSD that fails the write and has it, and that answers nothing as soon as it is
/// evacuated.
async fn write_before_a_hung_ssd(mut stand: Stand, hung_ns: Nanos) -> (Stand, Nanos) {
    stand.ssd.fail_stored_writes(all_of_ssd(&stand));
    let handle = stand.world.handle().clone();
    let (cache, ssd) = (Rc::new(stand.cache.clone()), stand.ssd.clone());
    let watching = handle.clone();
    let hangs = handle.spawn(async move {
        while cache.status().health == Health::Online {
            watching.sleep(1_000).await;
        }
        ssd.hang(hung_ns);
    });
    let begun = handle.now();
    stand.write(line_range(1), NEWER).await.expect("it is on the SSD or on the origin");
    hangs.await;
    let waited_ns = handle.now() - begun;
    (stand, waited_ns)
}

#[test]
fn an_ssd_that_hangs_while_the_log_ends_is_waited_for_only_if_lines_are_dirty() {
    in_virtual_time(|world| async move {
        let hour_ns = 3_600 * SECOND_NS;
        let clean = Stand::new(world.clone(), Mode::WriteBack).await;
        let (stand, waited_ns) = write_before_a_hung_ssd(clean, hour_ns).await;
        assert!(waited_ns < 120 * SECOND_NS, "{waited_ns}");
        assert_eq!(stand.cache.status().health, Health::Failed);
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
        let dirty = Stand::filled(world).await;
        let (stand, waited_ns) = write_before_a_hung_ssd(dirty, 600 * SECOND_NS).await;
        assert!(waited_ns > 500 * SECOND_NS && waited_ns < 700 * SECOND_NS, "{waited_ns}");
        assert_eq!(stand.failing_lines().await, [0_u64; 0]);
    });
}
