//! An array that has failed while it serves, and how it comes back.
//!
//! Members may all refuse what the array cannot do without: an adapter restarts, somebody has set the drives
//! read-only. Nobody is lost for that. But a change may be in place in part, or a drive may have dropped what a
//! flush was to keep. So the journal takes no further changes, and says why. The members' rings then have what a
//! crash would have left there.
//!
//! A task tries once a second whether the members take a record again. When they do, requests are held up for a
//! moment, the journal is replayed as after a crash, and the array serves as before.

use std::rc::{Rc, Weak};

use voltier_block::{BlockDevice, IoError, IoResult, Nanos};

use crate::errors::ArrayError;
use crate::format::journal_place::JournalOptions;
use crate::generations::Generations;
use crate::members::health::HealthNews;
use crate::members::member::Member;
use crate::stripe::ground::Ground;
use crate::tasks::background::{BackgroundTask, REST_LOOK_NS};

/// Between two tries, and between later ones.
const TRY_NS: Nanos = 1_000_000_000;
const LATE_TRY_NS: Nanos = 10 * TRY_NS;
/// So many tries come quickly.
const QUICK_TRIES: u32 = 60;
/// For so long requests wait for an array that has failed: as long as an adapter takes to restart.
const AWAITED_NS: Nanos = 30_000_000_000;

/// Has an array come back by itself from now on.
pub(crate) fn install<D: BlockDevice>(array: &Rc<Generations<D>>) {
    let (own, held) = (Rc::downgrade(array), Rc::downgrade(array));
    let begin = move || own.upgrade().iter().for_each(begin);
    let hold = move |is_held| held.upgrade().iter().for_each(|array| array.hold(is_held));
    array.ground.membership.set_recovery(Rc::new(begin), Rc::new(hold));
}

fn begin<D: BlockDevice>(array: &Rc<Generations<D>>) {
    let Some(claim) = array.claim_recovery() else { return };
    array.note_failed();
    let (handle, own) = (array.ground.handle.clone(), Rc::downgrade(array));
    drop(array.ground.handle.spawn(async move {
        let mut is_told = false;
        for tries in 0.. {
            // Whoever met the failure has the word first.
            handle.sleep(if tries < QUICK_TRIES { TRY_NS } else { LATE_TRY_NS }).await;
            let Some(is_recovered) = try_once(&own, &mut is_told).await else { break };
            // It may have failed again meanwhile: looked at once more.
            is_told &= !is_recovered;
        }
        drop(claim);
    }));
}

/// Tries once, and says whether the array serves again; none when there is nothing to do any more.
async fn try_once<D: BlockDevice>(
    array: &Weak<Generations<D>>,
    is_told: &mut bool,
) -> Option<bool> {
    let array = array.upgrade()?;
    if is_stopped(&array) {
        return None;
    }
    let health = |news| array.ground.members.health().say(news);
    let failure = array.failure();
    if failure.is_none() && !array.stripes.has_half_written_and_whole() {
        return None;
    }
    if let Some(error) = failure.filter(|_| !*is_told) {
        health(HealthNews::Failed { error });
        *is_told = true;
    }
    let is_recovered = recover(&array).await.is_ok();
    if is_recovered && *is_told {
        health(HealthNews::Recovered);
    }
    Some(is_recovered)
}

/// Waits for an array that has failed, but not for longer than it takes an adapter to restart. Whether it serves
/// again: a request that failed is of use once more.
#[cold]
pub(crate) async fn is_back<D: BlockDevice>(array: &Generations<D>) -> bool {
    if array.failure().is_none() {
        return false;
    }
    let handle = &array.ground.handle;
    let until = array.failed_since() + AWAITED_NS;
    while array.failure().is_some() && !is_stopped(array) && handle.now() < until {
        handle.sleep(TRY_NS / 10).await;
    }
    array.failure().is_none()
}

fn is_stopped<D: BlockDevice>(array: &Generations<D>) -> bool {
    array.ground.membership.is_closed()
}

/// Whether the array has the one shape, and each of its members is in service or lost: what a replay brings in
/// place is nowhere else.
fn is_settled<D: BlockDevice>(array: &Generations<D>) -> bool {
    let is_settled = |member: &Member<D>| member.is_undisturbed() || !member.has_device();
    array.moving().is_none() && array.ground.members.iter().all(is_settled)
}

/// Brings an array that has failed back into service.
///
/// # Errors
/// When members still refuse what is needed, or the array is stopped. When only a start can bring it back.
async fn recover<D: BlockDevice>(array: &Generations<D>) -> IoResult<()> {
    let Ground { membership, journal, members, .. } = &array.ground;
    members.check_groups()?;
    let has_journal_failed = journal.check().is_err();
    if has_journal_failed && !is_settled(array) {
        return Err(IoError::Unsupported);
    }
    // Shows that the members take writes, all of them: those that do not are alone with that, or this fails.
    membership.try_again();
    membership.recorded_anew().await?;
    membership.note_recovered();
    match membership.record().journal().filter(|_| has_journal_failed) {
        Some(options) => replay(array, options).await?,
        None => array.stripes.resync_half_written(),
    }
    array.ground.bitmap.begin_rounds();
    array.tasks.resync.begin();
    Ok(())
}

/// Replays the journal while requests wait.
async fn replay<D: BlockDevice>(array: &Generations<D>, options: JournalOptions) -> IoResult<()> {
    let gate = array.close().ok_or(IoError::Gone)?;
    // A scrub begins anew when somebody wants it.
    array.tasks.cancel(BackgroundTask::Scrub);
    while !gate.is_at_rest() || has_requests(array) {
        if is_stopped(array) {
            return Err(IoError::Gone);
        }
        array.ground.handle.sleep(REST_LOOK_NS).await;
    }
    if is_stopped(array) || !is_settled(array) {
        return Err(IoError::Gone);
    }
    // Whatever is in memory of stripes that were half written is of no use any more.
    array.ground.members.forget_failed_flushes();
    let were_stale = array.ground.members.are_stale();
    let renewed = array.renewed().map_err(|_| IoError::Unsupported)?;
    gate.supersede(renewed);
    // A replay that fails leaves the members as they are.
    array.ground.members.set_stale(were_stale);
    array.ground.membership.replay_is_due();
    let replayed = array.replay(options).await;
    replayed.map_err(|error| match error {
        ArrayError::Io(error) | ArrayError::Journal(error) => error,
        _ => IoError::Medium,
    })?;
    if were_stale {
        // Parity may have been computed from what a member had dropped, before that was known.
        array.ground.bitmap.resync_what_was_not_flushed();
    }
    array.ground.members.set_stale(false);
    drop(gate);
    Ok(())
}

/// Whether a member in service has requests that did not end, also of those that nobody waits for.
fn has_requests<D: BlockDevice>(array: &Generations<D>) -> bool {
    let mut devices = array.ground.members.iter().filter_map(|member| member.device().ok());
    devices.any(|device| device.under_way().count() > 0)
}
