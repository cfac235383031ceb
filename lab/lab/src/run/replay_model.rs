//! A trace on a modelled drive in virtual time, alone or with a modelled SSD as its cache.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, GIB, Lba, SECTOR_BYTES, SectorRange};
use voltier_cache::{FormatOptions, OpenOptions, Settings, Status};
use voltier_drive::ModelDevice;
use voltier_drive::model::Profile;
use voltier_results::result::{CacheWindow, Point};
use voltier_ring::{Executor, Handle, NoFiles, Semaphore};
use voltier_trace::Op;
use voltier_trace::replay::Replay;
use voltier_volume::Volume;

use super::lateness::{Ended, Lateness};
use super::model::Sums;
use crate::LabError;
use crate::model_store::{Drive, ModelStore};
use crate::plan::CacheModel;

/// Modelled drives have blocks of so many bytes here.
const BLOCK_BYTES: u64 = 4096;

/// The longest request of a volume.
const PIECE_BYTES: u64 = 1 << 20;

/// The sums that the requests of a replay leave behind.
#[derive(Default)]
struct Tally {
    sums: [Sums; 2],
    lateness: Lateness,
    end_ns: u64,
    error: Option<LabError>,
}

/// Replays a trace on an idle modelled drive.
///
/// # Errors
/// One line: the trace cannot be read, the SSD takes no cache, the volume fails.
pub(super) fn replay(
    profile: &'static Profile,
    size_bytes: u64,
    cache: Option<CacheModel>,
    replay: &Replay,
    point: &mut Point,
) -> Result<(), LabError> {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let requests = replay.requests(size_bytes, BLOCK_BYTES)?;
    let (depth, has_times) = (replay.depth, replay.speed > 0.0);
    let tally = Rc::new(RefCell::new(Tally::default()));
    let kept = tally.clone();
    let status = executor.block_on(async move {
        let volume = volume(&handle, profile, size_bytes, cache).await?;
        all(&handle, &Rc::new(volume), requests, (depth, has_times), &kept).await
    })?;
    let mut tally = tally.take();
    if let Some(error) = tally.error.take() {
        return Err(error);
    }
    let window = std::time::Duration::from_nanos(tally.end_ns.max(1));
    (point.read, point.write) = (tally.sums[0].flow(window), tally.sums[1].flow(window));
    point.cache = status.map(|status| window_of(&status));
    point.metrics.insert("trace_seconds".to_owned(), replay.survey.span_ns as f64 / 1e9);
    tally.lateness.finish(has_times, point);
    Ok(())
}

fn window_of(status: &Status) -> CacheWindow {
    CacheWindow {
        read_requests: status.reads.requests,
        read_hits: status.reads.hits,
        read_bypassed: status.reads.bypassed,
        write_requests: status.writes.requests,
        write_hits: status.writes.hits,
        write_bypassed: status.writes.bypassed,
        ssd_bytes_written: status.device_bytes.ssd_written,
        origin_bytes_read: status.device_bytes.origin_read,
        origin_bytes_written: status.device_bytes.origin_written,
        dirty_lines: status.lines.dirty,
    }
}

async fn volume(
    handle: &Handle,
    profile: &'static Profile,
    size_bytes: u64,
    cache: Option<CacheModel>,
) -> Result<Volume<Drive>, LabError> {
    let drive = |profile: &Profile, bytes| {
        ModelDevice::new(handle.clone(), profile, ModelStore::zeroes_aside(bytes))
    };
    let volume = Volume::plain(handle, drive(profile, size_bytes.max(GIB)));
    if let Some(CacheModel { ssd, bytes, mode, policy, line }) = cache {
        let format = FormatOptions { line_size: line, policy, uuid: [1; 16] };
        let settings = Settings { mode, ..Settings::default() };
        let options = OpenOptions::with(settings);
        let attached = volume.attach_new(drive(ssd, bytes), &format, options).await;
        attached.map_err(|error| LabError::Failed {
            what: "making the modelled cache".to_owned(),
            detail: error.to_string(),
        })?;
    }
    Ok(volume)
}

/// Makes every request at its time, or as soon as there is room for it.
async fn all(
    handle: &Handle,
    volume: &Rc<Volume<Drive>>,
    mut requests: voltier_trace::replay::Requests,
    (depth, has_times): (u32, bool),
    tally: &Rc<RefCell<Tally>>,
) -> Result<Option<Status>, LabError> {
    let begin = handle.now();
    let room = Semaphore::new(u64::from(depth));
    while let Some(request) = requests.next_request()? {
        handle.sleep_until(begin + request.at_ns).await;
        let permit = room.acquire(1).await;
        let (volume, kept, clock) = (volume.clone(), tally.clone(), handle.clone());
        handle.spawn(async move {
            let made = clock.now();
            let outcome = one(&volume, request.op, request.offset, request.bytes).await;
            let (now, mut kept) = (clock.now(), kept.borrow_mut());
            match outcome {
                Ok(()) if request.op == Op::Discard => {}
                Ok(()) => {
                    let direction = usize::from(request.op == Op::Write);
                    kept.sums[direction].add(now - made, request.bytes);
                }
                Err(error) => {
                    let what = "a request of the replay".to_owned();
                    kept.error = Some(LabError::Failed { what, detail: error.to_string() });
                }
            }
            kept.end_ns = kept.end_ns.max(now - begin);
            // Discards have no latency in the figures, and none here.
            if request.op != Op::Discard {
                kept.lateness.add(Ended {
                    due_ns: has_times.then_some(request.at_ns),
                    made_ns: made - begin,
                    at_ns: now - begin,
                    is_write: request.op == Op::Write,
                    bytes: request.bytes,
                });
            }
            drop(permit);
        });
        if tally.borrow().error.is_some() {
            break;
        }
    }
    room.acquire(u64::from(depth)).await;
    Ok(volume.status().cache)
}

/// One request, in pieces that a volume takes.
async fn one(
    volume: &Volume<Drive>,
    op: Op,
    offset: u64,
    bytes: u64,
) -> Result<(), voltier_block::IoError> {
    if op == Op::Discard {
        let range = SectorRange::new(Lba::from_bytes(offset), bytes / SECTOR_BYTES);
        return volume.discard(range).await;
    }
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(PIECE_BYTES);
        let at = Lba::from_bytes(offset + done);
        match op {
            Op::Write => {
                let zeroes = Buf::zeroed(piece as usize).freeze();
                volume.write(at, zeroes.into(), Durability::Cached).await?;
            }
            _ => drop(volume.read(at, Buf::new(piece as usize)).await?),
        }
        done += piece;
    }
    Ok(())
}
