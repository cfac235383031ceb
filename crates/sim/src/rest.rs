//! Checks that a life leaves nothing in memory when the life is over: no lock, no pin, no task, no buffer.

use voltier_block::DriveControl;
use voltier_cache::Cache;
use voltier_ring::Executor;

use crate::world::World;

/// Long enough for every request that a cut left under way.
const REST_NS: u64 = 3_600_000_000_000;

/// Lets what is under way come to its end, then asks the cache what it still holds.
///
/// # Panics
/// When a lock, a pin or a place in a queue is held, or the books of the cache do not balance. A
/// world in which drives fail may leave requests that wait for ever, and is not asked.
pub async fn check_cache<S: DriveControl, O: DriveControl>(world: &World, cache: &Cache<S, O>) {
    world.handle().sleep(REST_NS).await;
    if world.is_excused() {
        return;
    }
    if let Err(what) = cache.audit() {
        panic!("not at rest: {what}");
    }
}

/// Checks that every checksum of a life held: what the SSD has is what was written, unless a fault
/// was put there. Without the check a bug that reads the wrong place heals itself from the origin unseen.
///
/// # Panics
/// When a line was repaired, or found damaged.
pub fn check_checksums<S: DriveControl, O: DriveControl>(world: &World, cache: &Cache<S, O>) {
    if world.is_excused() {
        return;
    }
    let status = cache.status();
    let seen =
        (status.counts.repaired_lines, status.counts.damaged_reads, status.counts.ssd_errors);
    assert_eq!(seen, (0, 0, 0), "not at rest: lines repaired, damaged; errors of the SSD");
}

/// Checks that a world whose cache was stopped, dissolved or killed has no task left.
///
/// # Panics
/// When a task is left.
pub fn check_tasks(world: &World, executor: &mut Executor) {
    let handle = executor.handle();
    executor.block_on(async move { handle.sleep(REST_NS).await });
    if world.is_excused() {
        return;
    }
    let tasks = executor.task_count() - world.waiting_for_ever();
    assert_eq!(tasks, 0, "not at rest: {tasks} tasks are alive");
}

/// The buffers that were in use when a life began.
pub struct Buffers(i64);

impl Buffers {
    /// Counts them.
    pub fn now() -> Self {
        Self(voltier_block::blocks_out())
    }

    /// Checks that as many are in use again.
    ///
    /// # Panics
    /// When more or fewer are.
    pub fn check(self) {
        let left = voltier_block::blocks_out() - self.0;
        assert_eq!(left, 0, "not at rest: {left} buffers are in use");
    }
}
