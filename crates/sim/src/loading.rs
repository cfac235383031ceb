//! Stops while the map of a cache is being loaded. The SSD takes so long for the map that no stop waits for
//! the map. Writes of the log are on their way when the stop begins.

use std::rc::Rc;

use voltier_block::{KIB, MIB, Nanos, Prng, SectorRange};

use crate::delays::Delays;
use crate::fixture::CacheFixture;
use crate::workload::{DeviceUnderTest, Profile, SimCache, run_clients};

/// Mixed into the dice of a life: lives that do not draw this are as they were.
const LOADING: u64 = 0x6c6f_6164_696e_6700;
/// One life in so many is stopped while its map is being loaded.
const LOADING_ONE_IN: u64 = 10;
/// Bytes of the smallest log, at the end of the SSD.
const LOG_BYTES: u64 = 20 * 256 * KIB;
/// A read of the map takes longer than a stop waits for, and less than the deadline.
const MAP_READ_NS: Nanos = 16_000_000_000;
/// A write of the log takes so long at most: some end after the stop has ended the log.
const LOG_WRITE_NS: Nanos = 14_000_000_000;

/// Whether a life is to be stopped while its map is being loaded.
pub(crate) fn is_drawn(profile: &Profile, dice: &Prng) -> bool {
    // So slow a drive is given up where drives hang, and where the deadline is short.
    let is_given_up = profile.hangs || profile.settings.deadline_ns <= MAP_READ_NS;
    !is_given_up && Prng::new(dice.clone().next_u64() ^ LOADING).one_in(LOADING_ONE_IN)
}

/// Has the map of a cache load slowly, right after the start.
pub(crate) fn hold_map(fixture: &CacheFixture, profile: &Profile) {
    let log_start = profile.ssd.bytes - LOG_BYTES;
    fixture.drives.borrow().0.delay(Delays {
        reads: SectorRange::from_bytes(MIB, log_start - MIB),
        read_ns: MAP_READ_NS,
        changes: SectorRange::from_bytes(log_start, LOG_BYTES),
        change_ns_max: LOG_WRITE_NS,
    });
}

/// A few requests, and the stop.
pub(crate) async fn stop(
    fixture: &CacheFixture,
    profile: &Profile,
    dut: &Rc<DeviceUnderTest<SimCache>>,
) {
    run_clients(dut, profile, 1).await;
    fixture.stop(dut).await;
}
