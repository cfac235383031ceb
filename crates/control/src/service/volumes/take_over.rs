//! Taking a volume over from another host: its Ceph RBD image is what is left of it.

use crate::error::{ControlError, ControlResult};
use crate::events::event::TAKEN_OVER;
use crate::export_spec::ExportSpec;
use crate::image_report::ImageReport;
use crate::name::VolumeName;
use crate::protocol::{NewCache, Response, TakenVolume};
use crate::records::{CacheRecord, VolumeRecord, newest_data};
use crate::remote::Remote;
use crate::safety::{Finding, Role, TakenImage, judge_findings};
use crate::service::presence::admit::{self, Beside};
use crate::service::presence::{late, survey};
use crate::service::state::turn::Turn;
use crate::service::volumes::open::put_in_front;
use crate::service::volumes::{commands, exports, given_up, in_use, show, stops};
use crate::spec::DeviceSpec;
use crate::status::DeviceState;

/// A volume that another host has, and is to be served here.
pub(crate) struct Taken {
    pub(crate) name: VolumeName,
    /// Its image; that on record, if the volume is.
    pub(crate) origin: Option<DeviceSpec>,
    pub(crate) cache: Option<NewCache>,
    pub(crate) export: Option<ExportSpec>,
    /// Also from a host that is alive, and what only SSDs have is given up.
    pub(crate) force: bool,
}

pub(crate) fn take_over(turn: &mut Turn, wanted: Taken) -> ControlResult<Response> {
    match (turn.registry.find(&wanted.name).cloned(), &wanted.origin) {
        (Some(record), None) => take_back(turn, record, wanted.force),
        (Some(_), Some(_)) => Err(ControlError::failed(format!(
            "{0} is on record here, with its disk and its SSD: `voltier takeover {0}` takes it over as it is there",
            wanted.name
        ))),
        (None, Some(origin)) => {
            let origin = origin.clone();
            take_new(turn, wanted, origin)
        }
        (None, None) => Err(ControlError::failed(format!(
            "{0} is not on record here; `voltier takeover {0} -p rbd:POOL/IMAGE -s SSD` takes it over from the host \
             that has it",
            wanted.name
        ))),
    }
}

/// Makes a volume of an image that another host has. All that can be refused is, before anything is taken from it.
fn take_new(turn: &mut Turn, wanted: Taken, origin: DeviceSpec) -> ControlResult<Response> {
    let Taken { name, cache, export, force, .. } = wanted;
    let remote = remote_of(&origin)?.clone();
    if let Some(export) = &export {
        exports::check(turn, &name, export)?;
    }
    let ssd = cache.as_ref().map(|new| new.device.clone());
    if let Some(new) = cache.clone() {
        admit::admit_cache(turn, new, &origin)?;
    }
    admit::take(turn, &origin, Role::Origin, Beside::None, None)?;
    may_be_taken(turn, &origin, &remote, force)?;
    let mark = admit::mark_of(turn, &origin);
    given_up::no_cache_names(turn, &origin, mark.as_ref(), ssd.as_ref())?;
    let taken = push_off(turn, &remote, force)?;
    tell(turn, &name, &taken);
    let made = commands::create(turn, name.clone(), origin.clone(), cache, export);
    made.map_err(|error| {
        half_done(&taken, &origin, &error, "`voltier create` with the same choices")
    })?;
    Ok(answer(turn, &name, taken, 0))
}

/// Takes an image back that a volume on record here has lost to another host. What its cache holds is older than the
/// image, and is given up.
fn take_back(turn: &mut Turn, record: VolumeRecord, force: bool) -> ControlResult<Response> {
    let name = record.name.clone();
    let remote = remote_of(&record.origin)?.clone();
    // One that has lost its image is open, and serves nothing.
    let is_open = turn.is_open(&name);
    if is_open && show::status(turn, &record).hdd.state != DeviceState::Failed {
        return Err(ControlError::failed(format!(
            "{name} is served here already; `voltier show {name}`"
        )));
    }
    let step = format!("asking the server of {remote}");
    let examined = turn.apart(step).examine_remote(&remote, Role::Origin)?;
    let known = record.origin_identity.as_ref().and_then(|known| known.image_used_by());
    let found = examined.remote_identity.as_ref().and_then(|found| found.image_used_by());
    let is_in_use = examined.findings.iter().any(|it| matches!(it, Finding::InUse(_)));
    if (found.is_none() || found == known) && !is_in_use {
        return Err(ControlError::failed(format!(
            "no other host has used {remote} since {name} was served here, and nothing is to be taken over: \
             `voltier start {name}`"
        )));
    }
    may_lack(&remote, examined.report.as_ref(), force)?;
    let lines = dirty_lines(turn, &record);
    if let Some(cache) = record.cache.as_ref().filter(|cache| lines > 0 || cache.maybe_dirty)
        && !force
    {
        return Err(ControlError::failed(format!(
            "the cache of {name} on {} has {} for the image as it was before another host had it; `voltier takeover \
             {name} --force` gives that up, and makes the cache anew",
            cache.device,
            newest_data(lines)
        )));
    }
    is_own_ssd(turn, &record, force)?;
    if !is_open {
        in_use::is_unused(turn, &record, &format!("voltier stop {name} --now"))?;
    }
    let taken = push_off(turn, &remote, force)?;
    tell(turn, &name, &taken);
    serve_again(turn, &record, is_open, force).map_err(|error| {
        half_done(&taken, &remote, &error, &format!("`voltier show {name}` says how it stands"))
    })?;
    Ok(answer(turn, &name, taken, lines))
}

/// Refuses an SSD that does not have the cache of a volume any more, and has something else.
fn is_own_ssd(turn: &mut Turn, record: &VolumeRecord, force: bool) -> ControlResult<()> {
    let Some(cache) = record.cache.as_ref().filter(|_| !force) else { return Ok(()) };
    let device = survey::ssd_of(turn, cache).ok_or_else(|| {
        ControlError::failed(format!(
            "the SSD of {0} ({1}) is not there: bring it back, or `voltier detach {0} --no-flush` first, and {0} is \
             served without a cache",
            record.name, cache.device
        ))
    })?;
    let label = turn.reading(&device).cache_label_of(&device);
    if label.is_ok_and(|label| label.is_some_and(|label| label.uuid == cache.uuid)) {
        return Ok(());
    }
    let (findings, _) = admit::look_at_ssd(turn, &device, record)?;
    judge_findings(&device, &findings, false)
}

/// Serves a volume whose image is taken back, with a new cache where it had one. What the old one has is never looked
/// at again: it loses its superblock.
fn serve_again(
    turn: &mut Turn,
    record: &VolumeRecord,
    is_open: bool,
    force: bool,
) -> ControlResult<()> {
    let name = record.name.clone();
    if is_open {
        stops::stop_volume(turn, &name, true)?;
    } else {
        exports::end_kept(turn, record, "its image is taken over");
    }
    let mut record = turn.record(&name)?;
    record.origin_identity = admit::mark_of(turn, &record.origin);
    let before = record.cache.take();
    if let Some(before) = &before {
        let reason = "another host had the image: the cache is old, and given up";
        record.cache = Some(CacheRecord {
            maybe_dirty: false,
            dirty_lines: 0,
            evacuating: false,
            passed: Vec::new(),
            failed: Some(reason.to_owned()),
            lost: Vec::new(),
            lost_total: 0,
            ..before.clone()
        });
    }
    turn.registry.put(record.clone())?;
    if let Some(before) = &before {
        given_up::erase(turn, &name, before);
    }
    turn.adopted_origins.insert(name.clone());
    late::start_volume(turn, &name)?;
    let (Some(before), failed) = (before, record.cache) else { return Ok(()) };
    let record = turn.open_record(&name)?;
    let device = survey::ssd_of(turn, &before).unwrap_or(before.device);
    let (findings, identity) = admit::look_at_ssd(turn, &device, &record)?;
    judge_findings(&device, &findings, force)?;
    let uuid = turn.engine.draw_identity()?;
    let cache = CacheRecord::new(device, identity, uuid, before.settings);
    put_in_front(turn, &record, cache, failed)?;
    if let Some(live) = turn.live.get_mut(&name) {
        live.error.clear();
    }
    Ok(())
}

/// Dirty lines of the cache of a volume that is not open, as far as they are known.
fn dirty_lines(turn: &Turn, record: &VolumeRecord) -> u64 {
    let label = turn.live.get(&record.name).and_then(|live| live.ssd_label.as_ref());
    let recorded = || record.cache.as_ref().map_or(0, |cache| cache.dirty_lines);
    label.map_or_else(recorded, |label| label.dirty_lines)
}

fn remote_of(origin: &DeviceSpec) -> ControlResult<&Remote> {
    origin.remote().ok_or_else(|| {
        ControlError::usage(format!(
            "{origin} cannot be taken over from another host: only a Ceph RBD image can (rbd:POOL/IMAGE)"
        ))
    })
}

/// Refuses an image of which something would be lost that is not lost yet.
fn may_be_taken(
    turn: &mut Turn,
    origin: &DeviceSpec,
    remote: &Remote,
    force: bool,
) -> ControlResult<()> {
    let step = format!("asking the server of {origin}");
    let examined = turn.apart(step).examine_remote(remote, Role::Origin)?;
    may_lack(remote, examined.report.as_ref(), force)
}

fn may_lack(remote: &Remote, report: Option<&ImageReport>, force: bool) -> ControlResult<()> {
    match report.and_then(ImageReport::better_way) {
        Some(why) if !force => {
            Err(ControlError::failed(format!("{remote} {why}; or give that up with --force")))
        }
        _ => Ok(()),
    }
}

fn push_off(turn: &mut Turn, remote: &Remote, force: bool) -> ControlResult<TakenImage> {
    turn.apart(format!("taking {remote} over")).take_image_over(remote, force)
}

/// Writes into the log what was taken, from whom, and what is lost, and makes an event of it: the answer may reach
/// nobody.
fn tell(turn: &mut Turn, name: &VolumeName, taken: &TakenImage) {
    for client in &taken.from {
        turn.log(
            name,
            &format!("{client} is pushed off its image, and the cluster refuses it from now on"),
        );
    }
    let loss = loss_of(taken);
    turn.log(name, &loss);
    let from = match taken.from.is_empty() {
        true => "nobody who lives".to_owned(),
        false => taken.from.join(", "),
    };
    turn.tell(&TAKEN_OVER, name.as_str(), format!("its image was taken over from {from}: {loss}"));
}

/// What is lost, in a sentence.
fn loss_of(taken: &TakenImage) -> String {
    match &taken.report {
        Some(report) => report.loss(),
        None => "what the image lacks nobody knows: no Voltier reported about it".to_owned(),
    }
}

/// An error after the image was taken.
fn half_done(
    taken: &TakenImage,
    image: impl std::fmt::Display,
    error: &ControlError,
    next: &str,
) -> ControlError {
    ControlError::failed(format!(
        "{image} is taken over ({}), and then this failed: {error}; {next}",
        loss_of(taken)
    ))
}

fn answer(turn: &mut Turn, name: &VolumeName, taken: TakenImage, given_up: u64) -> Response {
    let loss = loss_of(&taken);
    let Response::Volume { volume } = show::volume(turn, name) else {
        unreachable!("the state of a volume")
    };
    let TakenImage { from, report } = taken;
    let taken = TakenVolume { volume: *volume, from, report, loss, lines_given_up: given_up };
    Response::TakenOver { taken: Box::new(taken) }
}
