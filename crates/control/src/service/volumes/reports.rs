//! What the volumes over Ceph RBD images report in the metadata of their images, for hosts that may take them over.
//!
//! At any moment the last report must promise no more than is so. So it is written before a volume is served, before a
//! change that weakens it, and when nothing is acknowledged any more; and what is not known is not promised.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::date::Date;
use crate::error::{ControlError, ControlResult};
use crate::image_report::{ImageReport, ImageUse};
use crate::name::VolumeName;
use crate::records::{Desired, VolumeRecord};
use crate::remote::Remote;
use crate::service::state::jobs::Purpose;
use crate::service::state::turn::Turn;
use crate::service::volumes::show;
use crate::settings::Settings;
use crate::status::{DeviceState, UnshippedStatus, VolumeStatus};

/// How often a report is written whose figures stay.
const REPEAT_MS: u64 = 2000;
/// How long a change waits until its report is written.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// The last reports, by volume, and when the volume was opened that they are about.
#[derive(Default)]
pub(crate) struct Reports(BTreeMap<VolumeName, (Instant, ImageReport)>);

impl Reports {
    /// Has each open volume over an image report, if that is due. Called every second.
    pub(crate) fn tell(&mut self, turn: &mut Turn) {
        let records = turn.registry.volumes().iter().filter(|it| image_of(it).is_some());
        let records: Vec<VolumeRecord> = records.cloned().collect();
        self.0.retain(|name, _| records.iter().any(|record| record.name == *name));
        for record in records {
            let live = turn.live.get(&record.name).filter(|live| live.is_open && !live.is_closing);
            let Some(opened_at) = live.map(|live| live.opened_at) else { continue };
            let report = report_of(turn, &record, ImageUse::Serving);
            let last = self.0.get(&record.name).filter(|last| last.0 == opened_at);
            if last.is_none_or(|(_, last)| is_due(last, &report)) {
                send(&record, &report);
                self.0.insert(record.name, (opened_at, report));
            }
        }
    }
}

/// Whether a report has something new, or is one again after a while.
fn is_due(last: &ImageReport, report: &ImageReport) -> bool {
    let ImageReport { unix_ms, complete_unix_ms, .. } = *last;
    let is_same = ImageReport { unix_ms, complete_unix_ms, ..report.clone() } == *last;
    !is_same || report.unshipped_bytes != Some(0) || report.unix_ms.abs_diff(unix_ms) >= REPEAT_MS
}

/// The report of a volume that is about to be opened. Nothing is served before it is written.
pub(crate) fn tell_the_begin(record: &VolumeRecord) {
    if image_of(record).is_none() {
        return;
    }
    let status = show::recorded(record);
    send(record, &report(record, &status, ImageUse::Serving, Date::now().unix_ms));
}

/// Reports what holds before and after a change of the settings, and waits until that is written: what the change lets
/// happen must not be promised by the report of before.
///
/// # Errors
/// When the cluster does not take the report in time.
pub(crate) fn tell_before(
    turn: &mut Turn,
    before: &VolumeRecord,
    after: &VolumeRecord,
) -> ControlResult<()> {
    let Some(image) = image_of(after).cloned() else { return Ok(()) };
    let (was, will) = (report_of(turn, before, ImageUse::Serving), after.cache.as_ref());
    let will =
        will.map(|cache| (cache.maybe_dirty, cache.settings.ordered, cache.settings.max_unshipped));
    let had = before.cache.as_ref().map(|cache| cache.settings.max_unshipped);
    let Some((writes_back, ordered, bound)) = will else { return Ok(()) };
    let max_unshipped = if had == Some(bound) { was.max_unshipped } else { String::new() };
    let report = ImageReport {
        writes_back: was.writes_back || writes_back,
        ordered: was.ordered && ordered,
        max_unshipped,
        ..was
    };
    let step = format!("telling {image} what is changed");
    let is_written = {
        let _apart = turn.apart(step);
        voltier_librbd::report_now(&image, report.text(), WRITE_PATIENCE)
    };
    if is_written {
        return Ok(());
    }
    Err(ControlError::failed(format!(
        "{image}: the cluster does not answer, and another host would not know of the change; check `ceph -s`"
    )))
}

/// The last report of a volume that is about to be closed. `at_rest` says that it takes nothing any more. It is written
/// when the image is closed.
pub(crate) fn tell_the_end(turn: &mut Turn, name: &VolumeName, at_rest: bool) {
    let Some(record) = turn.registry.find(name).cloned() else { return };
    if image_of(&record).is_none() || !turn.is_open(name) {
        return;
    }
    let mut report = report_of(turn, &record, ImageUse::Stopped);
    if !at_rest {
        report = ImageReport { complete_unix_ms: None, unshipped_bytes: None, ..report };
    }
    close_with(turn, &record, &report);
}

/// The last report of a volume that is deleted although its image may lack something.
pub(crate) fn tell_what_is_given_up(turn: &mut Turn, record: &VolumeRecord) {
    if image_of(record).is_some() && turn.is_open(&record.name) {
        let report = report_of(turn, record, ImageUse::GivenUp);
        close_with(turn, record, &report);
    }
}

fn close_with(turn: &mut Turn, record: &VolumeRecord, report: &ImageReport) {
    if let Some(live) = turn.live.get_mut(&record.name) {
        live.is_closing = true;
    }
    send(record, report);
}

fn image_of(record: &VolumeRecord) -> Option<&voltier_librbd::ImageName> {
    match record.origin.remote()? {
        Remote::Rbd(name) => Some(name),
        Remote::Nbd(_) => None,
    }
}

fn send(record: &VolumeRecord, report: &ImageReport) {
    if let Some(image) = image_of(record) {
        voltier_librbd::report(image, report.text());
    }
}

fn report_of(turn: &mut Turn, record: &VolumeRecord, state: ImageUse) -> ImageReport {
    // The time first: what is acknowledged while the figures are put together is after it.
    let unix_ms = Date::now().unix_ms;
    let status = show::status(turn, record);
    let mut report = report(record, &status, state, unix_ms);
    let job = turn.jobs.running(&record.name);
    // A volume on its way out lets clients pass the cache.
    report.ordered &=
        report.unshipped_bytes == Some(0) || job.is_none_or(|(_, why)| why == Purpose::Flush);
    report
}

/// The report about a volume in a state that was taken after this time.
fn report(
    record: &VolumeRecord,
    status: &VolumeStatus,
    state: ImageUse,
    unix_ms: u64,
) -> ImageReport {
    let cache = record.cache.as_ref();
    let (unshipped_bytes, complete_unix_ms) = lacking(record, status, unix_ms);
    let in_order = |settings: &Settings| {
        settings.ordered && (unshipped_bytes == Some(0) || settings.mode.writes_back())
    };
    let is_online = cache.is_none() || status.ssd.state == DeviceState::Online;
    ImageReport {
        volume: record.name.to_string(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        state: match record.desired {
            // The cache goes when nothing is dirty any more.
            Desired::Deleting if cache.is_none() => ImageUse::Deleted,
            _ => state,
        },
        unix_ms,
        complete_unix_ms,
        unshipped_bytes,
        writes_back: cache.is_some_and(|cache| cache.maybe_dirty),
        ordered: is_online && cache.is_some_and(|cache| in_order(&cache.settings)),
        max_unshipped: status.tunables.max_unshipped.clone(),
    }
}

/// The bytes that the image lacks, and since when it has everything, as far as that is known.
fn lacking(
    record: &VolumeRecord,
    status: &VolumeStatus,
    unix_ms: u64,
) -> (Option<u64>, Option<u64>) {
    let (all, unknown) = ((Some(0), Some(unix_ms)), (None, None));
    let Some(cache) = &record.cache else { return all };
    if status.lost_ranges > 0 {
        return unknown;
    }
    if cache.failed.is_some() {
        return if cache.maybe_dirty { unknown } else { all };
    }
    match &status.unshipped {
        // No figures: the volume is not open yet, or its core is late.
        None if status.lines.total == 0 => {
            if cache.maybe_dirty {
                unknown
            } else {
                all
            }
        }
        None if status.ssd.state == DeviceState::Failed => unknown,
        None => all,
        Some(UnshippedStatus { bytes, age_seconds, age_is_minimum, shipped_flush, .. }) => {
            let complete = match age_seconds {
                None => Some(unix_ms),
                Some(_) if *age_is_minimum => shipped_flush.and_then(|flush| flush.unix_ms),
                // Both are cut to whole milliseconds.
                Some(age) => Some(unix_ms.saturating_sub((age * 1000.0).ceil() as u64 + 1)),
            };
            (Some(*bytes), complete)
        }
    }
}
