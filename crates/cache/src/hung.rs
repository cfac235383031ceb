//! Drives that do not answer: when the SSD is given up, and when nobody is.
//!
//! A drive that hangs gives no error, and requests would wait for it for ever. The SSD is given up after the
//! deadline if the origin has everything. If lines are dirty, the SSD has their only copy, and is not given
//! up. Reads of clean lines go to the origin then, and all else waits. The origin is never given up: the SSD
//! serves what it can, and all else waits.
//!
//! A silent drive is asked for one block. The silence ends with the answer to that, or to anything else.

use std::rc::{Rc, Weak};

use voltier_block::{BlockDevice, Buf, DriveControl, IoError, IoResult, Lba, Nanos};
use voltier_deadline::{Guarded, Judge, Watch};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::devices::silence::{OnSilence, Silence};
use crate::format::superblock::BLOCK_BYTES;
use crate::ground::Ground;
use crate::log::open::OpenError;

/// How often an end looks whether a drive has ended what it was asked for.
const REST_LOOK_NS: Nanos = 1_000_000;

/// A drive under the watch of a cache that is being opened: nothing depends on it yet, so that its requests
/// end at the deadline.
pub(crate) fn guard<D: DriveControl>(handle: &Handle, device: D, deadline_ns: Nanos) -> Guarded<D> {
    let watch = Watch::new(handle, deadline_over(&device, deadline_ns));
    watch.release_late();
    Guarded::new(device, &watch)
}

/// The deadline of a drive. A drive that ends its requests by itself gets the time for that: an array below
/// gives its members up before the cache judges the array.
fn deadline_over<D: DriveControl>(device: &D, deadline_ns: Nanos) -> Nanos {
    if deadline_ns == 0 { 0 } else { deadline_ns + device.patience_ns() }
}

/// Why a start failed: the drive answered nothing, or what `error` says.
pub(crate) fn silent_or<D: DriveControl>(
    guarded: &Guarded<D>,
    device: &'static str,
    deadline_ns: Nanos,
) -> Option<OpenError> {
    let seconds = deadline_over(guarded.device(), deadline_ns) / 1_000_000_000;
    guarded.requests().is_released().then_some(OpenError::Silent { device, seconds })
}

/// The parts of a cache over watched drives.
type GuardedGround<S, O> = Ground<Guarded<S>, Guarded<O>>;

/// Judges the SSD of a cache in service.
struct OfSsd<S, O>(Weak<GuardedGround<S, O>>);

/// Judges the origin of a cache in service.
struct OfOrigin<S, O>(Weak<GuardedGround<S, O>>);

impl<S: DriveControl, O: DriveControl> Judge for OfSsd<S, O> {
    fn judge(&self) {
        if let Some(ground) = self.0.upgrade() {
            judge_ssd(&ground);
        }
    }
}

impl<S: DriveControl, O: DriveControl> Judge for OfOrigin<S, O> {
    fn judge(&self) {
        if let Some(ground) = self.0.upgrade() {
            judge_origin(&ground);
        }
    }
}

/// Has the drives of a cache judged from now on, as long as the cache is there.
pub(crate) fn install<S: DriveControl, O: DriveControl>(ground: &Rc<GuardedGround<S, O>>) {
    let (ssd, origin) = (ground.ssd.device().requests(), ground.origin.device().requests());
    ssd.watch().set_judge(Rc::new(OfSsd(Rc::downgrade(ground))));
    origin.watch().set_judge(Rc::new(OfOrigin(Rc::downgrade(ground))));
}

/// Takes over the deadline of the settings.
pub(crate) fn set_deadline<S: DriveControl, O: DriveControl>(ground: &GuardedGround<S, O>) {
    let deadline_ns = ground.settings.borrow().deadline_ns;
    let (ssd, origin) = (ground.ssd.device().device(), ground.origin.device().device());
    ground.ssd.silence().set_deadline(deadline_over(ssd, deadline_ns));
    ground.origin.silence().set_deadline(deadline_over(origin, deadline_ns));
}

/// Waits until neither drive has a request under way. Somebody else may have a drive next, and an array below
/// is called clean when the array stops.
///
/// # Errors
/// `Gone` when a drive does not end what it has within the deadline. A drive that was given up for its
/// silence has had that time.
pub(crate) async fn await_rest<S: DriveControl, O: DriveControl>(
    ground: &GuardedGround<S, O>,
) -> IoResult<()> {
    let deadline_ns = ground.settings.borrow().deadline_ns;
    let (ssd, origin) = (&ground.ssd, &ground.origin);
    let ssd_rests = drive_rests(&ground.handle, ssd.device(), ssd.silence(), deadline_ns).await;
    let origin_rests = drive_rests(&ground.handle, origin.device(), origin.silence(), deadline_ns);
    ssd_rests.and(origin_rests.await)
}

async fn drive_rests<D: DriveControl>(
    handle: &Handle,
    device: &Guarded<D>,
    silence: &Silence,
    deadline_ns: Nanos,
) -> IoResult<()> {
    if silence.is_given_up() {
        return Ok(());
    }
    // Without a deadline a drive is waited for. An array has a patience of its own all the same.
    let patience_ns = match deadline_over(device.device(), deadline_ns) {
        0 => device.patience_ns(),
        patience_ns => patience_ns,
    };
    let began_ns = handle.now();
    while device.requests().are_any() || device.under_way().count() > 0 {
        handle.sleep(REST_LOOK_NS).await;
        if patience_ns > 0 && handle.now() - began_ns >= patience_ns {
            device.abandon();
        }
        if device.requests().is_released() {
            return Err(IoError::Gone);
        }
    }
    Ok(())
}

/// Decides about an SSD that answers nothing.
pub(crate) fn judge_ssd<S: DriveControl, O: DriveControl>(ground: &GuardedGround<S, O>) {
    // The drive below may have another patience than before.
    set_deadline(ground);
    let (silence, health, device) = (ground.ssd.silence(), &ground.health, ground.ssd.device());
    if !silence.lasts() {
        return;
    }
    let can_be_spared = !health.failed()
        && (ground.log.dirty_if_lost() == 0 || canary::is(Canary::SilentSsdGivenUp));
    if silence.on_silence() == OnSilence::Leave && !health.failed() {
        silence.give_up();
        health.leave();
    } else if can_be_spared || silence.on_silence() == OnSilence::GiveUp || health.is_salvaging() {
        silence.give_up();
        health.give_up();
    }
    if health.failed() {
        // Nobody relies on it any more.
        silence.give_up();
        device.abandon();
        return;
    }
    if silence.begin() {
        ask(&ground.handle, ground.ssd.clone(), |ssd| ssd.device(), silence);
    }
    // Reads that wait for clean lines on their way to the SSD look again.
    ground.log.notify_progress();
}

/// Decides about an origin that answers nothing.
pub(crate) fn judge_origin<S: DriveControl, O: DriveControl>(ground: &GuardedGround<S, O>) {
    let (silence, device) = (ground.origin.silence(), ground.origin.device());
    if !silence.lasts() {
        return;
    }
    if silence.on_silence() == OnSilence::Leave {
        silence.give_up();
        device.abandon();
        // Writes wait for space that only this origin could give.
        ground.pressure.notify_dirty();
        ground.log.wake_waiters();
    } else if silence.begin() {
        ask(&ground.handle, ground.origin.clone(), |origin| origin.device(), silence);
    }
}

/// Asks a silent drive for one block: the silence ends when the drive answers, whatever the answer is.
fn ask<P: 'static, D: DriveControl>(
    handle: &Handle,
    part: Rc<P>,
    device: impl Fn(&P) -> &Guarded<D> + 'static,
    silence: &Rc<Silence>,
) {
    let silence = silence.clone();
    drop(handle.spawn(async move {
        let _ = device(&part).read(Lba(0), Buf::new(BLOCK_BYTES)).await;
        silence.end();
    }));
}
