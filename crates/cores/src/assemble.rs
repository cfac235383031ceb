//! Making, assembling and stopping the arrays of a core.

use std::cell::RefCell;
use std::sync::Arc;

use voltier_array::{
    Array, ArrayError, ArrayRecord, AssembleOptions, AssembleReport, DeviceError, Integrity,
    JournalState, LeftOut, MetadataError, Superblock, Usage,
};
use voltier_block::{BlockDevice, SECTOR_BYTES};
use voltier_control::safety::Promise;
use voltier_control::{
    ArrayLevel, ArrayName, ControlError, ControlResult, DeviceSpec, ErrorKind, Identity, Memory,
    RegisteredArray,
};
use voltier_ring::Handle;
use voltier_volume::Leaf;

use crate::array_news::Told;
use crate::drives::{KnownDevice, answered, open_all, open_drained, open_read_only};
use crate::fault::Fault;
use crate::journals;
use crate::table::{self, OpenArray, Resident};
use voltier_control::engine::{OpenedArray, stale_line};

/// Makes an array of the record's members.
pub(super) async fn create(
    handle: Handle,
    record: RegisteredArray,
    fault: Arc<Fault>,
    memory: Memory,
) -> ControlResult<OpenedArray> {
    let given: Vec<DeviceSpec> = record.members.iter().flatten().cloned().collect();
    let (leaves, known) = open_all(&handle, &given).await?;
    let blocks = leaves.iter().map(|leaf| leaf.limits().block_bytes).max().unwrap_or(0);
    let journal = journals::open_device(&handle, record.journal.as_ref(), blocks).await?;
    let uuids = given.iter().map(|_| Identity::random().map(|uuid| uuid.0));
    let options = record.create_options(uuids.collect::<ControlResult<_>>()?);
    let (journal, known_journal) = journal.unzip();
    let needed = voltier_array::memory_of_new(&options, &leaves)
        .map_err(|error| refusal(&error, &given, &record))?;
    let promise = promised(&memory, needed, &record.name)?;
    let made = Array::create_with_journal(&handle, &options, leaves, journal).await;
    let array = made.map_err(|error| refusal(&error, &given, &record))?;
    let devices = known.into_iter().map(Some).collect();
    let resident = Resident::new(&handle, &record.name, fault, promise);
    Ok(keep(resident, array, devices, known_journal, Vec::new()))
}

/// The memory of an array, before anything is written.
pub(super) fn promised(memory: &Memory, bytes: u64, name: &ArrayName) -> ControlResult<Promise> {
    memory.promise(bytes).map_err(|shortage| {
        ControlError::not_now(format!(
            "the array {name} {shortage}; free some memory or raise the limit; without --integrity an \
             array needs little"
        ))
    })
}

fn keep(
    resident: Resident,
    array: Array<Leaf>,
    devices: Vec<Option<KnownDevice>>,
    journal: Option<KnownDevice>,
    left_out: Vec<String>,
) -> OpenedArray {
    let is_journal_lost = array.status().is_some_and(|status| {
        status.journal_device.is_some_and(|it| it.state == JournalState::Lost)
    });
    let events = array.status().map_or(0, |status| status.event);
    let members = devices.iter().map(|known| known.as_ref().map(|it| it.device.clone()));
    let members = members.collect();
    let opened = OpenedArray {
        size_bytes: array.limits().bytes(),
        level: ArrayLevel(array.geometry().level()),
        integrity: array.status().map_or(Integrity::None, |status| status.integrity),
        events,
        members,
        journal: journal.as_ref().map(|known| known.device.clone()),
        is_journal_lost,
        left_out,
    };
    let (devices, pending) = (RefCell::new(devices), RefCell::default());
    let journal = RefCell::new(journal);
    let told = Told::default();
    table::insert(OpenArray { array, devices, pending, journal, told, resident });
    opened
}

/// A device that says it is of the array that is wanted.
enum Part {
    Member(Box<Candidate>),
    Journal(Box<(Leaf, KnownDevice)>),
}

/// A device that says it is a member of the array that is wanted.
struct Candidate {
    leaf: Leaf,
    known: KnownDevice,
    superblock: Superblock,
}

/// Assembles an array of these devices. One that is not of it, or cannot be used, is left out. With one of it
/// that only a newer program can read there is no array.
pub(super) async fn assemble(
    handle: Handle,
    record: RegisteredArray,
    devices: Vec<DeviceSpec>,
    force: bool,
    fault: Arc<Fault>,
    memory: Memory,
) -> ControlResult<OpenedArray> {
    let (mut candidates, mut journals, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for device in devices {
        match candidate(&handle, &record, device).await {
            Ok(Part::Member(candidate)) => candidates.push(*candidate),
            Ok(Part::Journal(journal)) => journals.push(*journal),
            // The others may be what the array was before a newer program changed it.
            Err(error) if error.kind == ErrorKind::Unsupported => return Err(error),
            Err(error) => left_out.push(error.message),
        }
    }
    if candidates.is_empty() {
        return Err(ControlError::failed(format!(
            "none of its {} members can be used: {}",
            record.members.len(),
            left_out.first().map_or("none is there", String::as_str)
        )));
    }
    // Of those in service: one that was to come may know an event that the others never took.
    let superblocks = candidates.iter().map(|it| &it.superblock);
    let in_service = superblocks.filter(|it| it.array.is_in_service(it.member));
    let newest = in_service.max_by_key(|it| it.array.event);
    let replayed = newest.filter(|_| record.read_only).map_or(0, |it| journal_bytes(&it.array));
    let needed = newest.map_or(0, |it| voltier_array::memory_of(&it.array)) + replayed;
    let promise = promised(&memory, needed, &record.name)?;
    let block_bytes = newest.map_or(SECTOR_BYTES as u32, |it| blocks_of(&it.array));
    let newest = newest.map_or(0, |it| it.array.event);
    // This instance has seen nothing newer of the array: these members are no old half.
    let degraded = force || (record.events > 0 && newest >= record.events);
    let options = AssembleOptions { force, degraded };
    let places: Vec<usize> = candidates.iter().map(|it| it.superblock.member.0).collect();
    let members = candidates.into_iter().map(|it| (it.leaf, it.known));
    let (leaves, mut known): (Vec<Leaf>, Vec<KnownDevice>) = members.chain(journals).unzip();
    let given: Vec<DeviceSpec> = known.iter().map(|known| known.device.clone()).collect();
    note_larger_blocks(&record.name, &leaves, &given);
    let deadline_ns = record.settings.health.for_array().deadline_ns;
    let assembled = if record.read_only {
        let leaves = leaves.into_iter().map(Leaf::with_writes_in_memory).collect();
        Array::assemble_read_only(&handle, leaves, options, deadline_ns).await
    } else {
        let leaves = leaves.into_iter().map(|leaf| leaf.for_blocks_of(block_bytes)).collect();
        Array::assemble_within(&handle, leaves, options, deadline_ns).await
    };
    let (array, report) = assembled.map_err(|error| {
        let why = refusal(&error, &given, &record).message;
        ControlError::failed([&[why], &left_out[..]].concat().join("; "))
    })?;
    if !record.read_only {
        log_mended(&report, &given);
    }
    left_out.extend(report.left_out.iter().map(|left| stale(left, &given)));
    left_out.extend(journals::left_out(&report, &given));
    left_out.extend(news(&report, record.read_only));
    let journals = known.split_off(places.len());
    let is_taken = |(at, _): &(usize, KnownDevice)| {
        let device = places.len() + at;
        !report.journal_left_out.iter().any(|left| left.device == device)
    };
    let journal = journals.into_iter().enumerate().find(is_taken).map(|(_, known)| known);
    let mut devices: Vec<Option<KnownDevice>> = vec![None; report.array.members.len()];
    for ((at, place), known) in places.into_iter().enumerate().zip(known) {
        // Of two devices that were the same member, one after the other, one has the place.
        let is_replaced = report.left_out.iter().any(|left| left.device == at && left.is_replaced);
        // One that was to have a further parity row, and never was, has none.
        if let Some(device) = devices.get_mut(place)
            && (device.is_none() || !is_replaced)
        {
            *device = Some(known);
        }
    }
    let resident = Resident::new(&handle, &record.name, fault, promise);
    Ok(keep(resident, array, devices, journal, left_out))
}

/// The bytes of the smallest block that an assembly may send to members. A journal with something to replay may
/// have sectors in it, also if the members have larger blocks by now: they were behind other adapters.
fn blocks_of(array: &ArrayRecord) -> u32 {
    let is_whole = array.usage == Usage::Clean || array.places.integrity() != Integrity::None;
    if is_whole { u32::MAX } else { SECTOR_BYTES as u32 }
}

/// The most that the journals of an array may have, if there is something to replay.
fn journal_bytes(array: &ArrayRecord) -> u64 {
    match array.usage {
        Usage::Clean => 0,
        _ => array.places.journal.bytes() * array.members.len() as u64,
    }
}

/// Says which members have larger blocks than others.
fn note_larger_blocks(name: &ArrayName, leaves: &[Leaf], given: &[DeviceSpec]) {
    let of = |leaf: &Leaf| leaf.limits().block_bytes;
    let Some(least) = leaves.iter().map(of).min() else { return };
    for (leaf, device) in leaves.iter().zip(given).filter(|(leaf, _)| of(leaf) > least) {
        note_blocks(name, device, of(leaf), least);
    }
}

async fn candidate(
    handle: &Handle,
    record: &RegisteredArray,
    device: DeviceSpec,
) -> ControlResult<Part> {
    let leaf = match record.read_only {
        true => open_read_only(handle, &device).await?,
        false => open_drained(handle, &device).await?,
    };
    let why_not = |why: String| ControlError::failed(format!("{device} is left out: {why}"));
    let unreadable = |error: DeviceError| match error {
        DeviceError::Unsupported { array, .. } if array == record.uuid.0 => {
            ControlError::unsupported_label(record.uuid, format!("{device}: {error}"))
        }
        error => why_not(error.to_string()),
    };
    match answered(handle, &device, Array::examine(&leaf)).await? {
        Ok(Some(superblock)) if superblock.array.uuid == record.uuid.0 => {
            let known = KnownDevice::of(&device, &leaf);
            Ok(Part::Member(Box::new(Candidate { leaf, known, superblock })))
        }
        Ok(Some(other)) => {
            let name = other.array.name;
            Err(why_not(format!("it is a member of another array, {name}")))
        }
        Ok(None) => match answered(handle, &device, Array::examine_journal(&leaf)).await? {
            Ok(Some(label)) if label.array == record.uuid.0 => {
                let known = KnownDevice::of(&device, &leaf);
                Ok(Part::Journal(Box::new((leaf, known))))
            }
            Ok(Some(label)) => {
                Err(why_not(format!("it is the journal of another array, {}", label.name)))
            }
            Ok(None) => Err(why_not("it has no array superblock".into())),
            Err(error) => Err(unreadable(error)),
        },
        Err(error) => Err(unreadable(error)),
    }
}

/// Says which members were believed by one copy of their labels: a power cut leaves them so, and bad sectors.
fn log_mended(report: &AssembleReport, given: &[DeviceSpec]) {
    let name = &report.array.name;
    for device in report.label_copies_mended.iter().filter_map(|device| given.get(*device)) {
        tracing::warn!(
            "array {name}: one copy of the label of {device} was missing, damaged or older; both are whole again"
        );
    }
}

/// Why a device that is a member is not in service.
fn stale(left: &LeftOut, given: &[DeviceSpec]) -> String {
    let (device, member) = (&given[left.device], left.member);
    if left.is_replaced {
        return format!("{device} was member {member} and has been replaced");
    }
    stale_line(device, member)
}

/// News for the user about a start.
fn news(report: &AssembleReport, is_read_only: bool) -> Option<String> {
    let regions = report.regions_to_resync;
    let how = match is_read_only {
        true => format!("of {regions} regions may not match, and stays as it is"),
        false => format!("of {regions} regions is being recomputed in the background"),
    };
    (regions > 0).then(|| format!("it was not stopped cleanly: the parity {how}"))
}

/// The array's own words, with its devices by their names and what a command can do.
fn refusal(error: &ArrayError, given: &[DeviceSpec], record: &RegisteredArray) -> ControlError {
    let ArrayError::Metadata(error) = error else { return ControlError::from_error(error) };
    let name = |device: &usize| given[*device].to_string();
    let told = error.to_string();
    let one = |device: &usize| told.replace(&format!("device {}", device + 1), &name(device));
    let two = |first: &usize, second: &usize| {
        let devices = format!("devices {} and {}", first + 1, second + 1);
        told.replace(&devices, &format!("{} and {}", name(first), name(second)))
    };
    let were = |missing: &[usize]| -> String {
        let paths = missing.iter().filter_map(|member| record.members.get(*member)?.as_ref());
        let paths: Vec<String> = paths.map(ToString::to_string).collect();
        if paths.len() == missing.len() && !paths.is_empty() {
            format!(" (last seen as {})", paths.join(", "))
        } else {
            String::new()
        }
    };
    ControlError::failed(match error {
        MetadataError::Device { device, .. }
        | MetadataError::Stranger { device, .. }
        | MetadataError::JournalNewer { device }
        | MetadataError::OnlyJournal { device, .. } => one(device),
        MetadataError::Diverged { device } => format!(
            "{}; name the devices of that side: `voltier array assemble DEV...`",
            one(device)
        ),
        MetadataError::JournalMissing => {
            let was = record.journal.as_ref().map(|it| format!(" (last seen as {it})"));
            let force = "to go on without it, `voltier array assemble -f DEV...`";
            format!("{told}{}; {force}", was.unwrap_or_default())
        }
        MetadataError::Duplicate { first, second, .. }
        | MetadataError::DuplicateJournal { first, second }
        | MetadataError::Contradiction { first, second } => two(first, second),
        MetadataError::TooFew { missing, .. } if were(missing).is_empty() => {
            let given: Vec<String> = given.iter().map(ToString::to_string).collect();
            let given = given.join(" ");
            format!("{told}; files in other folders: `voltier array assemble {given} FILE...`")
        }
        MetadataError::TooFew { missing, .. } => format!("{told}{}", were(missing)),
        MetadataError::MayBeOld { missing } | MetadataError::DirtyDegraded { missing, .. } => {
            let force = "to go on without it, `voltier array assemble -f DEV...`";
            format!("{told}{}; {force}", were(missing))
        }
        _ => told,
    })
}

/// Stops an array and lets go of its devices; its event count then.
pub(super) async fn stop(name: ArrayName) -> ControlResult<u64> {
    let Some(open) = table::remove(&name) else { return Ok(0) };
    let stopped = open.array.stop().await;
    let events = open.array.status().map_or(0, |status| status.event);
    stopped.map(|()| events).map_err(|error| {
        ControlError::failed(format!(
            "stopping the array: {error}; see `dmesg`; the next start is one after a crash"
        ))
    })
}

/// Says in the log what larger sectors than those of the others cost.
pub(super) fn note_blocks(name: &ArrayName, device: &DeviceSpec, has: u32, array: u32) {
    tracing::warn!(
        "array {name}: {device} has sectors of {has} bytes, and the array has {array}: a write that is no \
         multiple of {has} bytes costs a read more"
    );
}
