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

use voltier_block::{DriveControl, IoError, IoResult, Nanos};

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
pub(crate) fn install<D: DriveControl>(array: &Rc<Generations<D>>) {
    let (own, held) = (Rc::downgrade(array), Rc::downgrade(array));
    let begin = move || own.upgrade().iter().for_each(begin);
    let hold = move |is_held| held.upgrade().iter().for_each(|array| array.hold(is_held));
    array.ground.membership.set_recovery(Rc::new(begin), Rc::new(hold));
}

fn begin<D: DriveControl>(array: &Rc<Generations<D>>) {
    let Some(claim) = array.claim_recovery() else { return };
    array.note_failed();
    let (handle, own) = (array.ground.handle.clone(), Rc::downgrade(array));
    drop(array.ground.handle.spawn(async move {
        let mut is_told = false;
        for tries in 0.. {
            // Whoever met the failure has the word first.
            handle.sleep(if tries < QUICK_TRIES { TRY_NS } else { LATE_TRY_NS }).await;
            if try_once(&own, &mut is_told).await {
                break;
            }
        }
        drop(claim);
    }));
}

/// Tries once; whether there is nothing to do any more.
async fn try_once<D: DriveControl>(array: &Weak<Generations<D>>, is_told: &mut bool) -> bool {
    let Some(array) = array.upgrade().filter(|array| !is_stopped(array)) else { return true };
    if !is_wanted(&array) {
        if !array.stripes.has_any_half_written() {
            array.ground.membership.is_right_again();
            array.ground.bitmap.begin_rounds();
        }
        return true;
    }
    let health = |news| array.ground.members.health().say(news);
    let failure = array.failure();
    if let Some(error) = failure.filter(|_| !*is_told) {
        health(HealthNews::Failed { error });
        *is_told = true;
    }
    let is_recovered = recover(&array).await.is_ok();
    if is_recovered && *is_told {
        health(HealthNews::Recovered);
        *is_told = false;
    }
    // It may have failed again meanwhile: then it is tried again.
    is_recovered && !is_wanted(&array)
}

fn is_wanted<D: DriveControl>(array: &Generations<D>) -> bool {
    array.failure().is_some()
        || array.stripes.has_half_written_and_whole()
        || array.ground.members.are_stale()
}

/// Waits for an array that has failed, but not for longer than it takes an adapter to restart. Whether it serves
/// again: a request that failed is of use once more.
#[cold]
pub(crate) async fn is_back<D: DriveControl>(array: &Generations<D>) -> bool {
    if array.failure().is_none() {
        return false;
    }
    let handle = &array.ground.handle;
    let until = array.failed_since() + AWAITED_NS;
    // A replay that has begun is waited for, however long it takes.
    let has_time = || handle.now() < until || array.refusal().is_none();
    while array.failure().is_some() && !is_stopped(array) && has_time() {
        handle.sleep(TRY_NS / 10).await;
    }
    array.failure().is_none()
}

fn is_stopped<D: DriveControl>(array: &Generations<D>) -> bool {
    array.ground.membership.is_closed()
}

/// Whether the array has the one shape, and each of its members is in service or lost: what a replay brings in
/// place is nowhere else.
fn is_settled<D: DriveControl>(array: &Generations<D>) -> bool {
    let is_settled = |member: &Member<D>| member.is_undisturbed() || !member.has_device();
    array.moving().is_none() && array.ground.members.iter().all(is_settled)
}

/// Brings an array that has failed back into service.
///
/// # Errors
/// When members still refuse what is needed, or the array is stopped. When only a start can bring it back.
async fn recover<D: DriveControl>(array: &Generations<D>) -> IoResult<()> {
    let Ground { membership, journal, members, .. } = &array.ground;
    members.check_groups()?;
    // A replay that failed is tried again.
    let has_journal_failed =
        journal.check().is_err() || membership.is_replay_due() || members.are_stale();
    if has_journal_failed && !is_settled(array) {
        return Err(IoError::Unsupported);
    }
    // Shows that the members take writes, all of them: those that do not are alone with that, or this fails.
    membership.try_again();
    membership.recorded_anew().await?;
    members.refusals().forget();
    membership.note_recovered();
    let record = membership.durable().map(|durable| durable.record());
    match record.and_then(|record| record.journal()).filter(|_| has_journal_failed) {
        Some(options) => {
            let replayed = replay(array, options).await;
            replayed.inspect_err(|error| membership.note_refused(*error))?;
        }
        None => array.stripes.resync_half_written(),
    }
    if !is_wanted(array) && !array.stripes.has_any_half_written() {
        membership.is_right_again();
    }
    array.ground.bitmap.begin_rounds();
    array.tasks.resync.begin();
    array.tasks.replacements.begin_to_use_spares();
    Ok(())
}

/// Replays the journal while requests wait.
async fn replay<D: DriveControl>(array: &Generations<D>, options: JournalOptions) -> IoResult<()> {
    let gate = array.close().ok_or(IoError::Gone)?;
    // A scrub begins anew when somebody wants it.
    array.tasks.cancel(BackgroundTask::Scrub);
    let until = array.ground.handle.now() + array.patience_ns();
    while !gate.is_at_rest() || has_requests(array) {
        if is_stopped(array) {
            return Err(IoError::Gone);
        }
        if array.ground.handle.now() > until {
            // A drive that answers nothing has to be given up first, and requests may be what tells.
            return Err(IoError::Medium);
        }
        array.ground.handle.sleep(REST_LOOK_NS).await;
    }
    if is_stopped(array) || !is_settled(array) {
        return Err(IoError::Gone);
    }
    // Whatever is in memory of stripes that were half written is of no use any more.
    array.ground.members.forget_failed_flushes();
    let were_stale = array.ground.members.are_stale();
    if array.ground.journal.is_in_service() {
        let renewed = array.renewed().map_err(|_| IoError::Unsupported)?;
        gate.supersede(renewed);
        // A replay that fails leaves the members as they are.
        array.ground.members.set_stale(were_stale);
        array.ground.membership.replay_is_due();
    }
    let replayed = array.replay(options).await;
    replayed.map_err(|error| match error {
        ArrayError::Io(error) | ArrayError::Journal(error) => error,
        _ => IoError::Medium,
    })?;
    if were_stale {
        // Parity may have been computed from what a member had dropped, before that was known. A start has to
        // know of it, too.
        let Ground { bitmap, membership, .. } = &array.ground;
        bitmap.resync_what_was_not_flushed();
        membership.resync_is_needed();
        bitmap.call_dirty_what_may_be_missing().await?;
        membership.recorded_anew().await?;
    }
    array.ground.members.set_stale(false);
    drop(gate);
    Ok(())
}

/// Whether a member in service has requests that did not end, also of those that nobody waits for.
fn has_requests<D: DriveControl>(array: &Generations<D>) -> bool {
    let mut devices = array.ground.members.iter().filter_map(|member| member.device().ok());
    devices.any(|device| device.under_way().count() > 0)
}
