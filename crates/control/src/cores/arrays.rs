//! The arrays of a core: making, assembling and stopping them, and drives that are made of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, AssembleReport, CreateOptions, JournalState, Latency,
    Layout, LeftOut, MemberHealth, MemberLayout, MemberState, MetadataError, Progress, ReshapeWait,
    Superblock,
};
use voltier_block::{BlockDevice, Buf, Durability, Lba};
use voltier_ring::Handle;
use voltier_volume::{Drive, DriveSpec, Leaf};

use super::journals;
use super::newcomers::Newcomer;
use super::on_core::one_line;
use crate::array_settings::TaskPace;
use crate::array_spec::ArrayLevel;
use crate::array_status::{
    ArrayCounts, ArrayState, ArrayStatus, HealthStatus, LatencyStatus, MemberStatus, ReshapeStatus,
    ScrubFound, TaskStatus,
};
use crate::engine::{MemberLabel, OpenedArray};
use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::records::{ArrayRecord, Identity};
use crate::safety::HEAD_BYTES;
use crate::spec::{DeviceSpec, ModelBacking};

/// An array on its home core.
pub(super) struct Assembled {
    pub(super) array: Array<Leaf>,
    /// The devices of the places, as far as they are known: also of members that are lost.
    pub(super) devices: RefCell<Vec<Option<Known>>>,
    pub(super) newcomers: RefCell<Vec<Newcomer>>,
    /// The device of the journal, if it has one.
    pub(super) journal: RefCell<Option<Known>>,
}

/// A device of an array.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) device: DeviceSpec,
    pub(super) size_bytes: u64,
}

thread_local! {
    /// The arrays of this core.
    static ARRAYS: RefCell<BTreeMap<ArrayName, Rc<Assembled>>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// Nobody has this array open.
pub(super) fn not_open(name: &ArrayName) -> ControlError {
    ControlError::failed(format!("the array {name} is not open; see daemon.log"))
}

pub(super) fn assembled(name: &ArrayName) -> ControlResult<Rc<Assembled>> {
    ARRAYS.with_borrow(|arrays| arrays.get(name).cloned()).ok_or_else(|| not_open(name))
}

/// Opens what clients of a volume reach.
pub(super) fn open_origin(handle: &Handle, device: &DeviceSpec) -> ControlResult<Drive> {
    Ok(match device {
        DeviceSpec::Array(name) => Drive::origin_array(assembled(name)?.array.clone()),
        leaf => Drive::origin(open_leaf(handle, leaf)?),
    })
}

/// Opens what a cache lives on.
pub(super) fn open_ssd(handle: &Handle, device: &DeviceSpec) -> ControlResult<Drive> {
    Ok(match device {
        DeviceSpec::Array(name) => Drive::ssd_array(assembled(name)?.array.clone()),
        leaf => Drive::ssd(open_leaf(handle, leaf)?),
    })
}

pub(super) fn open_leaf(handle: &Handle, device: &DeviceSpec) -> ControlResult<Leaf> {
    let spec = match device.clone() {
        DeviceSpec::Path(path) => DriveSpec::File { path },
        DeviceSpec::Memory(bytes) => DriveSpec::Memory { bytes },
        DeviceSpec::Model { profile, over } => match over {
            ModelBacking::ProfileSize => DriveSpec::Model { profile, bytes: None },
            ModelBacking::Memory(bytes) => DriveSpec::Model { profile, bytes: Some(bytes) },
            ModelBacking::Path(path) => DriveSpec::ModelOverFile { profile, path },
        },
        DeviceSpec::Array(name) => {
            return Err(ControlError::failed(format!("array:{name} cannot be a member")));
        }
    };
    Leaf::open(handle, &spec).map_err(one_line)
}

/// What the superblock of a device says.
pub(super) async fn label_of(
    handle: Handle,
    device: DeviceSpec,
) -> ControlResult<Option<MemberLabel>> {
    let leaf = open_leaf(&handle, &device)?;
    let found = Array::examine(&leaf).await;
    let found = found.map_err(|error| ControlError::failed(format!("{device}: {error}")))?;
    Ok(found.map(|superblock| {
        let array = superblock.array;
        MemberLabel {
            array: Identity(array.uuid),
            name: array.name,
            level: ArrayLevel(array.geometry.level()),
            chunk_bytes: (array.geometry.chunk_sectors() * voltier_block::SECTOR_BYTES) as u32,
            consistency: array.consistency,
        }
    }))
}

/// Makes an array of the record's members.
pub(super) async fn create(handle: Handle, record: ArrayRecord) -> ControlResult<OpenedArray> {
    let given: Vec<DeviceSpec> = record.members.iter().flatten().cloned().collect();
    let (leaves, known) = open_all(&handle, &given)?;
    let journal = journals::open(&handle, record.journal.as_ref())?;
    let uuids = given.iter().map(|_| Identity::random().map(|uuid| uuid.0));
    let options = CreateOptions {
        name: record.name.to_string(),
        level: record.level.0,
        layout: Layout::default(),
        chunk_bytes: record.chunk_bytes.into(),
        consistency: record.consistency,
        uuid: record.uuid.0,
        member_uuids: uuids.collect::<ControlResult<_>>()?,
    };
    let (journal, known_journal) = journal.unzip();
    let made = Array::create_with_journal(&handle, &options, leaves, journal).await;
    let array = made.map_err(|error| refusal(&error, &given, &record))?;
    let devices = known.into_iter().map(Some).collect();
    Ok(keep(&record.name, array, devices, known_journal, Vec::new()))
}

pub(super) fn open_all(
    handle: &Handle,
    devices: &[DeviceSpec],
) -> ControlResult<(Vec<Leaf>, Vec<Known>)> {
    let mut leaves = Vec::with_capacity(devices.len());
    let mut known = Vec::with_capacity(devices.len());
    for device in devices {
        let leaf = open_leaf(handle, device)?;
        known.push(Known { device: device.clone(), size_bytes: leaf.limits().bytes() });
        leaves.push(leaf);
    }
    Ok((leaves, known))
}

fn keep(
    name: &ArrayName,
    array: Array<Leaf>,
    devices: Vec<Option<Known>>,
    journal: Option<Known>,
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
        events,
        members,
        journal: journal.as_ref().map(|known| known.device.clone()),
        is_journal_lost,
        left_out,
    };
    let (devices, newcomers) = (RefCell::new(devices), RefCell::default());
    let journal = RefCell::new(journal);
    let assembled = Rc::new(Assembled { array, devices, newcomers, journal });
    ARRAYS.with_borrow_mut(|arrays| arrays.insert(name.clone(), assembled));
    opened
}

/// A device that says it is of the array that is wanted.
enum Part {
    Member(Box<Candidate>),
    Journal(Leaf, Known),
}

/// A device that says it is a member of the array that is wanted.
struct Candidate {
    leaf: Leaf,
    known: Known,
    superblock: Superblock,
}

/// Assembles an array of these devices. One that is not of it, or cannot be used, is left out.
pub(super) async fn assemble(
    handle: Handle,
    record: ArrayRecord,
    devices: Vec<DeviceSpec>,
    force: bool,
) -> ControlResult<OpenedArray> {
    let (mut candidates, mut journals, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for device in devices {
        match candidate(&handle, &record, device).await {
            Ok(Part::Member(candidate)) => candidates.push(*candidate),
            Ok(Part::Journal(leaf, known)) => journals.push((leaf, known)),
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
    let newest = in_service.map(|it| it.array.event).max().unwrap_or(0);
    // What this instance has seen of the array is not newer than these: they are no old half.
    let degraded = force || (record.events > 0 && newest >= record.events);
    let options = AssembleOptions { force, degraded };
    let places: Vec<usize> = candidates.iter().map(|it| it.superblock.member).collect();
    let members = candidates.into_iter().map(|it| (it.leaf, it.known));
    let (leaves, mut known): (Vec<Leaf>, Vec<Known>) = members.chain(journals).unzip();
    let given: Vec<DeviceSpec> = known.iter().map(|known| known.device.clone()).collect();
    let assembled = Array::assemble(&handle, leaves, options).await;
    let (array, report) = assembled.map_err(|error| {
        let why = refusal(&error, &given, &record).message;
        ControlError::failed([&[why], &left_out[..]].concat().join("; "))
    })?;
    left_out.extend(report.left_out.iter().map(|left| stale(left, &given)));
    left_out.extend(journals::left_out(&report, &given));
    left_out.extend(news(&report));
    let journals = known.split_off(places.len());
    let is_taken = |(at, _): &(usize, Known)| {
        let device = places.len() + at;
        !report.journal_left_out.iter().any(|left| left.device == device)
    };
    let journal = journals.into_iter().enumerate().find(is_taken).map(|(_, known)| known);
    let mut devices: Vec<Option<Known>> = vec![None; report.array.members.len()];
    for ((at, place), known) in places.into_iter().enumerate().zip(known) {
        // Of two devices that were the same member, one after the other, one has the place.
        let is_replaced = report.left_out.iter().any(|left| left.device == at && left.is_replaced);
        // One that was to be a further row, and never was, has none.
        if let Some(device) = devices.get_mut(place)
            && (device.is_none() || !is_replaced)
        {
            *device = Some(known);
        }
    }
    Ok(keep(&record.name, array, devices, journal, left_out))
}

async fn candidate(
    handle: &Handle,
    record: &ArrayRecord,
    device: DeviceSpec,
) -> ControlResult<Part> {
    let leaf = open_leaf(handle, &device)?;
    let why_not = |why: String| ControlError::failed(format!("{device} is left out: {why}"));
    match Array::examine(&leaf).await {
        Ok(Some(superblock)) if superblock.array.uuid == record.uuid.0 => {
            let known = Known { device, size_bytes: leaf.limits().bytes() };
            Ok(Part::Member(Box::new(Candidate { leaf, known, superblock })))
        }
        Ok(Some(other)) => {
            let name = other.array.name;
            Err(why_not(format!("it is a member of another array, {name}")))
        }
        Ok(None) => match Array::examine_journal(&leaf).await {
            Ok(Some(label)) if label.array == record.uuid.0 => {
                let known = Known { device, size_bytes: leaf.limits().bytes() };
                Ok(Part::Journal(leaf, known))
            }
            Ok(Some(label)) => {
                Err(why_not(format!("it is the journal of another array, {}", label.name)))
            }
            Ok(None) => Err(why_not("no superblock of an array is on it".into())),
            Err(error) => Err(why_not(error.to_string())),
        },
        Err(error) => Err(why_not(error.to_string())),
    }
}

/// Why a device that is a member is not in service.
fn stale(left: &LeftOut, given: &[DeviceSpec]) -> String {
    let (device, member) = (&given[left.device], left.member);
    if left.is_replaced {
        return format!("{device} was member {member} and has been replaced");
    }
    format!(
        "{device} is left out: it was member {member}, and the array went on without it, so what \
         it holds is old"
    )
}

/// What else the user should know of a start.
fn news(report: &AssembleReport) -> Option<String> {
    let regions = report.regions_in_doubt;
    (regions > 0).then(|| {
        format!(
            "it was not stopped cleanly: the parity of {regions} regions is being made anew in \
             the background"
        )
    })
}

/// The array's own words, with its devices by their names and what a command can do.
fn refusal(error: &ArrayError, given: &[DeviceSpec], record: &ArrayRecord) -> ControlError {
    let ArrayError::Metadata(error) = error else { return one_line(error) };
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
        | MetadataError::OnlyJournal { device, .. }
        | MetadataError::Diverged { device } => one(device),
        MetadataError::JournalMissing => {
            let was = record.journal.as_ref().map(|it| format!(" (last seen as {it})"));
            let force = "the choice is `voltier array assemble -f DEV...`";
            format!("{told}{}; {force}", was.unwrap_or_default())
        }
        MetadataError::Duplicate { first, second, .. }
        | MetadataError::DuplicateJournal { first, second }
        | MetadataError::Contradiction { first, second } => two(first, second),
        MetadataError::TooFew { missing, .. } => format!("{told}{}", were(missing)),
        MetadataError::MayBeOld { missing } | MetadataError::DirtyDegraded { missing, .. } => {
            let force = "the choice is `voltier array assemble -f DEV...`";
            format!("{told}{}; {force}", were(missing))
        }
        _ => told,
    })
}

/// Stops an array and lets go of its devices.
pub(super) async fn stop(name: ArrayName) -> ControlResult<()> {
    let Some(assembled) = ARRAYS.with_borrow_mut(|arrays| arrays.remove(&name)) else {
        return Ok(());
    };
    let stopped = assembled.array.stop().await;
    stopped.map_err(|error| {
        ControlError::failed(format!(
            "stopping the array: {error}; see `dmesg`; the next start is one after a crash"
        ))
    })
}

/// Overwrites both copies of a superblock.
pub(super) async fn erase_label(handle: Handle, device: DeviceSpec) -> ControlResult<()> {
    let leaf = open_leaf(&handle, &device)?;
    for at in MemberLayout::superblock_lbas(leaf.limits().sectors) {
        let zeroes = Buf::zeroed(voltier_array::SUPERBLOCK_BYTES as usize);
        let erased = leaf.write(at, zeroes.freeze().into(), Durability::Durable).await;
        erased.map_err(|error| {
            ControlError::failed(format!("erasing the label of {device}: {error}"))
        })?;
    }
    Ok(())
}

/// The first bytes of an array.
pub(super) async fn head(name: ArrayName) -> ControlResult<Vec<u8>> {
    let array = assembled(&name)?.array.clone();
    let bytes = array.limits().bytes().min(HEAD_BYTES as u64) as usize;
    let read = array.read(Lba(0), Buf::new(bytes)).await;
    let read = read.map_err(|error| ControlError::failed(format!("reading array:{name}: {error}")));
    read.map(|buf| buf.to_vec())
}

/// Takes the member on a device out of service.
pub(super) async fn fail(name: ArrayName, member: usize) -> ControlResult<()> {
    let assembled = assembled(&name)?;
    let array = &assembled.array;
    let known = assembled.devices.borrow()[member].as_ref().map(|it| it.device.to_string());
    let device = known.unwrap_or_else(|| format!("member {member}"));
    if !array.is_online(member) {
        return Err(ControlError::failed(format!("{device} is out of service in {name} already")));
    }
    let refused = |error| ControlError::failed(format!("{device} stays in {name}: {error}"));
    array.fail(member).map_err(refused)?;
    // The answer is given when all others say so durably.
    array.flush().await.map_err(|error| {
        ControlError::failed(format!("{device} is out of service; writing that down: {error}"))
    })
}

/// What is known of an array now.
pub(super) fn status(name: &ArrayName, plain: ArrayStatus) -> ControlResult<ArrayStatus> {
    let assembled = assembled(name)?;
    assembled.seat_newcomers();
    let array = &assembled.array;
    let Some(now) = array.status() else { return Ok(plain) };
    let devices = assembled.devices.borrow();
    let newcomers = assembled.newcomers.borrow();
    let spares = newcomers.iter().filter(|it| it.is_spare).map(|it| it.known.device.to_string());
    let (rebuild, scrub) = (array.rebuild_status(), array.scrub_status());
    let members = now.members.iter().enumerate().map(|(index, member)| {
        let known = devices.get(index).and_then(Option::as_ref);
        let recorded = plain.members.get(index).map(|member| member.path.clone());
        MemberStatus {
            index: index as u32,
            path: known.map(|it| it.device.to_string()).or(recorded).unwrap_or_default(),
            uuid: Identity(member.uuid).to_string(),
            state: word(member.state).to_owned(),
            size_bytes: known.map_or(0, |it| it.size_bytes),
            health: health(&member.health),
        }
    });
    let members = members.collect();
    let journal_device = journals::status(&assembled, &now, plain.journal_device.as_ref());
    let counts = now.counts;
    Ok(ArrayStatus {
        state: if now.is_degraded { ArrayState::Degraded } else { ArrayState::Running },
        size_bytes: now.bytes,
        may_lose: assembled.may_lose(),
        events: now.event,
        spares: spares.collect(),
        journal_device,
        rebuild: task(&rebuild.progress, plain.rebuild.pace),
        rebuild_stuck_regions: rebuild.stuck_regions,
        reshape: array.reshape_status().map(|it| reshape(&it, plain.rebuild.pace)),
        scrub: task(&scrub.progress, plain.scrub.pace),
        scrub_found: ScrubFound {
            block_bytes: scrub.block_bytes,
            mismatched_blocks: scrub.mismatched_blocks,
            located_blocks: scrub.located_blocks,
            repaired_blocks: scrub.repaired_blocks,
            unreadable_stripes: scrub.unreadable_stripes,
            lost_stripes: scrub.lost_stripes,
            skipped_bytes: scrub.skipped_bytes,
        },
        members,
        counts: ArrayCounts {
            reads: counts.reads,
            writes: counts.writes,
            member_reads: counts.member_reads,
            member_writes: counts.member_writes,
            full_stripe_writes: counts.full_stripe_writes,
            reconstruct_writes: counts.reconstruct_writes,
            modify_writes: counts.modify_writes,
            recover_writes: counts.recover_writes,
            held_writes: counts.held_writes,
            held_us: counts.held_ns / 1000,
            merged_writes: counts.merged_writes,
            merges: counts.merges,
            degraded_reads: counts.degraded_reads,
            repairs: counts.repairs,
        },
        ..plain
    })
}

fn health(health: &MemberHealth) -> HealthStatus {
    let latency = |latency: Latency| LatencyStatus {
        samples: latency.samples,
        p50_us: latency.p50_ns.div_ceil(1000),
        p99_us: latency.p99_ns.div_ceil(1000),
    };
    HealthStatus {
        errors_read: health.errors_read,
        errors_write: health.errors_write,
        repaired: health.repaired,
        errors_recent: health.errors_recent,
        too_many_errors: health.has_too_many_errors,
        slow: health.is_slow,
        read_latency: latency(health.reads),
        write_latency: latency(health.writes),
    }
}

fn reshape(now: &voltier_array::ReshapeStatus, pace: TaskPace) -> ReshapeStatus {
    let waits_for = |wait| match wait {
        ReshapeWait::Members => "members",
        ReshapeWait::Resync => "resync",
        ReshapeWait::FailedWrites => "failed_writes",
    };
    ReshapeStatus {
        from_members: now.from_members as u32,
        to_members: now.to_members as u32,
        size_bytes_after: now.bytes_after,
        waits_for: now.waits_for.map(|wait| waits_for(wait).to_owned()),
        error: now.last_error.map(|error| error.to_string()),
        task: task(&now.progress, pace),
    }
}

fn task(progress: &Progress, pace: TaskPace) -> TaskStatus {
    TaskStatus {
        running: progress.is_running,
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
        bytes_per_second: progress.bytes_per_second,
        eta_seconds: progress.eta_ns.map(|eta_ns| eta_ns.div_ceil(1_000_000_000)),
        pace,
    }
}

fn word(state: MemberState) -> &'static str {
    match state {
        MemberState::InService => "online",
        MemberState::Lost => "lost",
        MemberState::Rebuilding => "rebuilding",
        MemberState::Absent => "absent",
    }
}
