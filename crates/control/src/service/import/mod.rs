//! Putting on record again what drives say of themselves, after the registry was lost.
//!
//! ```text
//! find      what each device is: member, journal, spare, SSD with a cache, or none of ours
//! arrays    records of arrays, from the labels of members
//! origins   the origins of caches: drives of the order, else by mark
//! volumes   records of volumes, from the superblocks of caches
//! ```
//!
//! Until everything is known nothing is written. Then arrays are assembled and volumes opened the way a
//! start does it, so that all its checks hold. When one fails, the service forgets what was imported before.
//! Nothing is ever formatted.
//!
//! An import is stricter than a start. Its SSD may be one that was given up long ago, so a changed origin
//! refuses a clean cache too, and a cache that does not open is not left out.

mod arrays;
mod done;
mod find;
mod names;
mod origins;
mod volumes;

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult};
use crate::import_report::{ImportOrder, ImportReport};
use crate::name::ArrayName;
use crate::protocol::Response;
use crate::service::arrays::open::close_array;
use crate::service::presence::{look, start};
use crate::service::state::claims::Subject;
use crate::service::state::live::Live;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::close_volume;
use crate::spec::DeviceSpec;
use arrays::ArrayPlan;
use done::Done;
use find::{Found, FoundCache, OtherDevice};
use names::Names;
use origins::Known;
use volumes::VolumePlan;

/// How often an import tries what is busy: with the patience of a lock's own that is two seconds of a file.
const BUSY_TRIES: u32 = 20;

/// Imports what an order names. A daemon that was killed a moment ago may still hold its devices, so the
/// import tries busy ones again for a while.
pub(super) fn import(service: &mut Turn, order: &ImportOrder) -> ControlResult<Response> {
    service.busy_tries = BUSY_TRIES;
    let imported = import_found(service, order);
    service.busy_tries = 1;
    imported
}

fn import_found(service: &mut Turn, order: &ImportOrder) -> ControlResult<Response> {
    let mut found = find::examine(service, &order.devices)?;
    let names = names_of(order, &found)?;
    let arrays = arrays::plan(service, &found, names.array.as_ref())?;
    // A cache on an array is seen when the array is open: only then is it known which origins are left over.
    let named: Vec<_> =
        arrays.iter().map(|plan| (plan.record.uuid, plan.record.name.clone())).collect();
    let known = Known {
        given: &order.devices,
        arrays: &named,
        expects_caches: !named.is_empty(),
        takes_larger: order.changed_origin,
    };
    let volumes = volumes::plan(service, &names, &found, known)?;
    let left_over = volumes::left_over(service, &found, &volumes);
    if arrays.is_empty() {
        left_over.iter().try_for_each(|other| Err(volumes::no_origin(other)))?;
    }
    if order.dry_run {
        return Ok(answer(planned(&arrays, &volumes, &left_over)));
    }
    claim_planned(service, &arrays, &volumes)?;
    let mut done = Done::default();
    match carry_out(service, order, &names, &mut found, arrays, &mut done) {
        Ok(report) => Ok(answer(report)),
        Err(error) => {
            undo(service, done);
            Err(error)
        }
    }
}

/// Has what an import puts on record, and the arrays that it builds on, for the import alone.
///
/// # Errors
/// When another command has some of it, or has put it on record since it was planned.
fn claim_planned(
    service: &mut Turn,
    arrays: &[ArrayPlan],
    volumes: &[VolumePlan],
) -> ControlResult<()> {
    let arrays: Vec<_> = arrays.iter().map(|plan| &plan.record.name).collect();
    let records: Vec<_> = volumes.iter().map(|plan| &plan.record).collect();
    let devices = records.iter().flat_map(|record| record.devices());
    let beneath: Vec<_> = devices.filter_map(DeviceSpec::array).collect();
    let names = records.iter().map(|record| Subject::Volume(record.name.clone()));
    let subjects = arrays.iter().chain(&beneath).map(|name| Subject::Array((*name).clone()));
    service.claim_also(subjects.chain(names).collect())?;
    let taken_volume = records.iter().find(|it| service.registry.find(&it.name).is_some());
    let taken_array = arrays.iter().find(|name| service.registry.find_array(name).is_some());
    let used = beneath.iter().find(|name| service.user_of_array(name, None).is_some());
    let taken = taken_volume.map(|it| it.name.to_string());
    let taken = taken.or_else(|| taken_array.or(used).map(|name| format!("the array {name}")));
    taken.map_or(Ok(()), |taken| {
        Err(ControlError::failed(format!(
            "{taken} was recorded or used by another command meanwhile; try again"
        )))
    })
}

fn answer(report: ImportReport) -> Response {
    Response::Imported { report: Box::new(report) }
}

/// The part of what was found that a chosen name is for.
fn names_of(order: &ImportOrder, found: &Found) -> ControlResult<Names> {
    let Some(name) = &order.name else { return Ok(Names::default()) };
    match (found.caches.len(), found.arrays.len()) {
        (1, _) => Ok(Names { volume: Some(name.clone()), array: None }),
        (0, 1) => Ok(Names { volume: None, array: Some(name.as_str().parse()?) }),
        (volumes, arrays) => Err(ControlError::usage(format!(
            "--name goes with one volume or array, and these devices hold {volumes} volumes and {arrays} \
             arrays; import them one at a time"
        ))),
    }
}

/// The report of an import that was not carried out.
fn planned(
    arrays: &[ArrayPlan],
    volumes: &[VolumePlan],
    left_over: &[OtherDevice],
) -> ImportReport {
    let mut notes: Vec<String> = Vec::new();
    if !arrays.is_empty() {
        notes.push("caches on these arrays are found when the arrays are assembled".to_owned());
    }
    let at_most = |OtherDevice { device, .. }: &OtherDevice| {
        format!(
            "{device} holds nothing of Voltier: it may be the backing disk of a cache on an array"
        )
    };
    notes.extend(left_over.iter().map(at_most));
    notes.extend(arrays.iter().flat_map(|plan| plan.notes.iter().cloned()));
    notes.extend(volumes.iter().flat_map(|plan| plan.notes.iter().cloned()));
    ImportReport {
        dry_run: true,
        arrays: arrays.iter().map(ArrayPlan::reported).collect(),
        volumes: volumes.iter().map(VolumePlan::reported).collect(),
        notes,
    }
}

/// Assembles the arrays, looks for caches on them, and opens the volumes.
fn carry_out(
    service: &mut Turn,
    order: &ImportOrder,
    names: &Names,
    found: &mut Found,
    arrays: Vec<ArrayPlan>,
    done: &mut Done,
) -> ControlResult<ImportReport> {
    let mut report = ImportReport::default();
    for plan in arrays {
        let name = plan.record.name.clone();
        report.notes.extend(arrays::open(service, plan, done)?);
        let device = DeviceSpec::Array(name);
        if let Some(label) = service.reading(&device).cache_label_of(&device)? {
            found.caches.push(FoundCache { device, label });
        }
    }
    let named = done.arrays.iter().filter_map(|name| service.registry.find_array(name));
    let named: Vec<_> = named.map(|array| (array.uuid, array.name.clone())).collect();
    let takes_larger = order.changed_origin;
    let given = &order.devices[..];
    let known = Known { given, arrays: &named, expects_caches: false, takes_larger };
    let volumes = volumes::plan(service, names, found, known)?;
    claim_planned(service, &[], &volumes)?;
    if order.changed_origin && volumes.len() != 1 {
        return Err(ControlError::usage(format!(
            "--changed-origin goes with one volume, and these devices hold {}; import them one at a time",
            volumes.len()
        )));
    }
    volumes::left_over(service, found, &volumes)
        .iter()
        .try_for_each(|other| Err(volumes::no_origin(other)))?;
    for plan in volumes {
        let mut reported = plan.reported();
        report.notes.extend(plan.notes.iter().cloned());
        report.notes.push(volumes::lost_with_the_registry(&reported));
        open(service, order, plan, done)?;
        if let Some(dirty_lines) = service.engine.health(&reported.name).dirty_lines {
            reported.dirty_lines = dirty_lines;
        }
        report.volumes.push(reported);
    }
    let records = done.arrays.iter().filter_map(|name| service.registry.find_array(name));
    report.arrays = records.map(arrays::reported).collect();
    let users = |name: &ArrayName| service.user_of_array(name, None);
    let unused: Vec<&ArrayName> = done.arrays.iter().filter(|name| users(name).is_none()).collect();
    report.notes.extend(unused.into_iter().map(|name| {
        format!(
            "if a volume without a cache was on the array {name}, `voltier create -p \
             array:{name} NAME` makes it again; its data are kept"
        )
    }));
    Ok(report)
}

/// Opens a volume as a start does, and records it.
fn open(
    service: &mut Turn,
    order: &ImportOrder,
    plan: VolumePlan,
    done: &mut Done,
) -> ControlResult<()> {
    let VolumePlan { record, is_origin_given, .. } = plan;
    let name = record.name.clone();
    let start = match is_origin_given {
        _ if order.changed_origin => CacheStart::Adopt,
        true => CacheStart::ImportGiven,
        false => CacheStart::Import,
    };
    look::look_at(service, &record.origin, record.size_bytes, "backing disk")?;
    look::takes_writes(service, &record.origin, "backing disk")?;
    let told =
        |error: ControlError| ControlError::failed(format!("{name} is not imported: {error}"));
    done.volumes.push(name.clone());
    start::open_and_record(service, record, start).map_err(told)?;
    service.live.insert(name.clone(), Live { is_open: true, ..Live::new() });
    service.log(&name, "imported from what its SSD says");
    Ok(())
}

/// Forgets what an import brought back before it failed; the drives say what they said.
fn undo(service: &mut Turn, mut done: Done) {
    // A volume that could not be opened is on no record.
    done.volumes.retain(|name| service.registry.find(name).is_some());
    for name in done.volumes {
        let closed = close_volume(service, &name);
        service.live.remove(&name);
        let forgotten = service.registry.remove(&name);
        service.note(&name, closed.and(forgotten));
    }
    for name in done.arrays {
        let closed = close_array(service, &name);
        service.live_arrays.remove(&name);
        let forgotten = service.registry.remove_array(&name);
        service.note_array(&name, closed.and(forgotten));
    }
}
