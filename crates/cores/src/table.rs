//! The arrays of a core, by name: each with the devices of its members and those that are pending.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use voltier_array::{Array, HealthNews, MemberIndex};
use voltier_block::{Nanos, SectorRange};
use voltier_control::safety::Promise;
use voltier_control::{ArrayName, ControlError, ControlResult, DeviceSpec};
use voltier_ring::{Domain, FailsWith, Handle, OnFailure};
use voltier_volume::{Drive, Leaf};

use crate::array_failure::failure_in_words;
use crate::array_news::Told;
use crate::drives::{KnownDevice, open_drained};
use crate::fault::Fault;

/// An array on its home core.
pub(super) struct OpenArray {
    pub(super) array: Array<Leaf>,
    /// The devices of the places, as far as they are known: also of members that are lost.
    pub(super) devices: RefCell<Vec<Option<KnownDevice>>>,
    pub(super) pending: RefCell<Vec<PendingMember>>,
    /// The device of the journal, if it has one.
    pub(super) journal: RefCell<Option<KnownDevice>>,
    /// The news of the array that the log has told.
    pub(super) told: Told,
    pub(super) resident: Resident,
}

/// The place of an array on its core.
pub(super) struct Resident {
    name: ArrayName,
    domain: Domain,
    /// The memory promised to it.
    pub(super) memory: RefCell<Promise>,
    _on_failure: OnFailure,
}

impl Resident {
    /// A place for an array whose tasks this handle begins. When the tasks fail, the array is forgotten as
    /// it is.
    pub(super) fn new(
        handle: &Handle,
        name: &ArrayName,
        fault: Arc<Fault>,
        memory: Promise,
    ) -> Self {
        let lost = name.clone();
        let on_failure = handle.on_failure(move |failure| {
            // The state may be half changed: not even its end is run.
            mem::forget(remove(&lost));
            fault.tell(failure);
        });
        let (name, domain, memory) = (name.clone(), handle.domain(), RefCell::new(memory));
        Self { name, domain, memory, _on_failure: on_failure }
    }
}

/// A device that is to become a member: a spare, or one that is filled beside a member.
pub(super) struct PendingMember {
    pub(super) uuid: [u8; 16],
    pub(super) known: KnownDevice,
    pub(super) is_spare: bool,
}

thread_local! {
    /// The arrays of this core.
    static ARRAYS: RefCell<BTreeMap<ArrayName, Rc<OpenArray>>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// The error of a request for an array that is not open on this core.
pub(super) fn not_open(name: &ArrayName) -> ControlError {
    ControlError::failed(format!("the array {name} is not open; see daemon.log"))
}

/// The open array of a name.
pub(super) fn find(name: &ArrayName) -> ControlResult<Rc<OpenArray>> {
    ARRAYS.with_borrow(|arrays| arrays.get(name).cloned()).ok_or_else(|| not_open(name))
}

/// The failure domain of an array of this core.
#[cfg(test)]
pub(super) fn domain_of(name: &ArrayName) -> Domain {
    find(name).unwrap().resident.domain
}

/// Makes an array known to this core.
pub(super) fn insert(open: OpenArray) {
    ARRAYS.with_borrow_mut(|arrays| arrays.insert(open.resident.name.clone(), Rc::new(open)));
}

/// Forgets an array of this core.
pub(super) fn remove(name: &ArrayName) -> Option<Rc<OpenArray>> {
    ARRAYS.with_borrow_mut(|arrays| arrays.remove(name))
}

/// Opens what clients of a volume reach. An array and the volume over it fail together.
pub(super) async fn open_origin(
    handle: &Handle,
    device: &DeviceSpec,
) -> ControlResult<(Drive, Option<FailsWith>)> {
    open_drive(handle, device, Drive::origin, Drive::origin_array).await
}

/// Opens what a cache lives on. An array and the volume over it fail together.
pub(super) async fn open_ssd(
    handle: &Handle,
    device: &DeviceSpec,
) -> ControlResult<(Drive, Option<FailsWith>)> {
    open_drive(handle, device, Drive::ssd, Drive::ssd_array).await
}

async fn open_drive(
    handle: &Handle,
    device: &DeviceSpec,
    of_leaf: fn(Leaf) -> Drive,
    of_array: fn(Array<Leaf>) -> Drive,
) -> ControlResult<(Drive, Option<FailsWith>)> {
    let DeviceSpec::Array(name) = device else {
        return Ok((of_leaf(open_drained(handle, device).await?), None));
    };
    let open = find(name)?;
    let fails_with = handle.fail_with(open.resident.domain);
    Ok((of_array(open.array.clone()), Some(fails_with)))
}

/// Puts a device in a place, and out of any other: a member that was lost may have had the same path.
fn checksums_lost(device: &str, blocks: SectorRange) -> String {
    format!(
        "the checksums of {device} for bytes {} to {} cannot be read: the blocks there are compared \
         with the other members",
        blocks.start.bytes(),
        blocks.end().bytes()
    )
}

fn checksums_rebuilt(device: &str, blocks: SectorRange) -> String {
    let (start, end) = (blocks.start.bytes(), blocks.end().bytes());
    format!("the checksums of {device} for bytes {start} to {end} have been rebuilt")
}

fn blocks_unchecked(device: &str, blocks: SectorRange) -> String {
    format!(
        "{device} has blocks without checksums in bytes {} to {} that cannot be compared with the \
         other members: they are read as they are; scrub the array when no member is missing",
        blocks.start.bytes(),
        blocks.end().bytes()
    )
}

fn put(devices: &mut [Option<KnownDevice>], place: usize, known: KnownDevice) {
    if known.device.is_external() {
        for other in devices.iter_mut() {
            other.take_if(|it| it.device == known.device);
        }
    }
    devices[place] = Some(known);
}

impl OpenArray {
    pub(super) fn name(&self) -> &ArrayName {
        &self.resident.name
    }

    /// Puts a device in the place of a member.
    pub(super) fn put(&self, place: usize, known: KnownDevice) {
        put(&mut self.devices.borrow_mut(), place, known);
    }

    /// Finds pending members that have become members, and puts them in their places.
    pub(super) fn place_pending(&self) {
        let Some(now) = self.array.status() else { return };
        let mut devices = self.devices.borrow_mut();
        self.pending.borrow_mut().retain(|pending| {
            let place = now.members.iter().position(|member| member.uuid == pending.uuid);
            if let Some(place) = place {
                put(&mut devices, place, pending.known.clone());
            }
            place.is_none()
        });
    }

    /// How many more members may be lost, wherever they are.
    pub(super) fn may_lose(&self) -> u32 {
        self.array.geometry().parity_chunks().saturating_sub(self.lost_most()) as u32
    }

    /// How many more members are lost than may be.
    pub(super) fn lost_too_many(&self) -> u32 {
        self.lost_most().saturating_sub(self.array.geometry().parity_chunks()) as u32
    }

    /// The members that the group lacks which lacks most.
    fn lost_most(&self) -> usize {
        let geometry = self.array.geometry();
        let lost = |group| {
            let members = geometry.members_of(group);
            members.filter(|member| !self.array.is_online(*member)).count()
        };
        geometry.groups().map(lost).max().unwrap_or(0)
    }

    /// The places whose members are not in service.
    pub(super) fn lost_places(&self) -> Vec<u32> {
        let members = 0..self.array.geometry().member_count();
        members.filter(|it| !self.array.is_online(MemberIndex(*it))).map(|it| it as u32).collect()
    }

    /// A member as a line of the log names it.
    pub(super) fn name_of(&self, member: usize) -> String {
        let devices = self.devices.borrow();
        // A member that the array has just grown by is not known here yet.
        let known = devices.get(member).and_then(|it| Some(it.as_ref()?.device.to_string()));
        known.unwrap_or_else(|| format!("member {member}"))
    }

    /// A line of the log.
    pub(super) fn line_of(&self, news: &HealthNews) -> String {
        let device = |member: usize| self.name_of(member);
        let s = |waited_ns: Nanos| waited_ns / 1_000_000_000;
        match *news {
            HealthNews::TooManyErrors { member, errors, is_failed: true } => {
                format!("{} had {errors} errors recently and has been failed", device(member))
            }
            HealthNews::TooManyErrors { member, errors, is_failed: false } => format!(
                "{} had {errors} errors recently, but the array cannot lose it: replace it now",
                device(member)
            ),
            HealthNews::Slow { member, mean_ns, others_ns } => format!(
                "{} is slow: {} us, while the others take {} us",
                device(member),
                mean_ns / 1000,
                others_ns / 1000
            ),
            HealthNews::SlowFailed { member } => {
                format!("{} has been failed because it is slow", device(member))
            }
            HealthNews::NotSlow { member } => format!("{} is no longer slow", device(member)),
            HealthNews::Hung { member, waited_ns } => format!(
                "{} has not answered for {} s and has been failed: requests go on without it",
                device(member),
                s(waited_ns)
            ),
            HealthNews::SuccessorHung { member, waited_ns } => format!(
                "the device that {} was copied to has not answered for {} s and is given up",
                device(member),
                s(waited_ns)
            ),
            HealthNews::JournalHung { waited_ns } => format!(
                "the journal device has not answered for {} s: the journal goes to the members",
                s(waited_ns)
            ),
            HealthNews::Waiting { members, waited_ns } => format!(
                "{members} members have not answered for {} s; none has been failed, because the \
                 array cannot lose them or they have a common cause (adapter, cable, power): \
                 requests wait for them",
                s(waited_ns)
            ),
            HealthNews::WaitingEnded => "its members answer again".to_owned(),
            HealthNews::Failed { error } => failure_in_words(&self.resident.name, error),
            HealthNews::Recovered => {
                "its members take writes again: the journal was replayed, and it serves as before"
                    .to_owned()
            }
            HealthNews::ChecksumsLost { member, sectors } => {
                checksums_lost(&device(member), sectors)
            }
            HealthNews::ChecksumsRebuilt { member, sectors } => {
                checksums_rebuilt(&device(member), sectors)
            }
            HealthNews::BlocksUnchecked { member, sectors } => {
                blocks_unchecked(&device(member), sectors)
            }
        }
    }
}
