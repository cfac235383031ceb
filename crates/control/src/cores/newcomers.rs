//! Members that come to the arrays of a core, spares, and background tasks.

use voltier_array::{BackgroundTask, HealthNews, Replacement, ScrubRepair};
use voltier_block::BlockDevice;
use voltier_ring::Handle;

use super::arrays::{Assembled, Known, assembled, open_all, open_leaf};
use crate::array_settings::ArraySettings;
use crate::array_spec::ArrayLevel;
use crate::engine::{ArrayDevices, Replaced, Waker};
use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::protocol::{Growth, Repair};
use crate::records::Identity;
use crate::spec::DeviceSpec;

/// A device that is to become a member: a spare, or one that is filled beside a member.
pub(super) struct Newcomer {
    pub(super) uuid: [u8; 16],
    pub(super) known: Known,
    pub(super) is_spare: bool,
}

impl Assembled {
    /// Finds newcomers that have become members, and puts them in their places.
    pub(super) fn seat_newcomers(&self) {
        let Some(now) = self.array.status() else { return };
        let mut devices = self.devices.borrow_mut();
        self.newcomers.borrow_mut().retain(|newcomer| {
            let place = now.members.iter().position(|member| member.uuid == newcomer.uuid);
            if let Some(place) = place {
                devices[place] = Some(newcomer.known.clone());
            }
            place.is_none()
        });
    }
}

fn refused(error: impl std::fmt::Display) -> ControlError {
    ControlError::failed(error.to_string())
}

/// Puts a device in the place of a member.
pub(super) async fn replace(
    handle: Handle,
    name: ArrayName,
    place: usize,
    device: DeviceSpec,
) -> ControlResult<Replaced> {
    let assembled = assembled(&name)?;
    let leaf = open_leaf(&handle, &device)?;
    let known = Known { device: device.clone(), size_bytes: leaf.limits().bytes() };
    let uuid = Identity::random()?.0;
    let replaced = assembled.array.replace(place, leaf, uuid).await;
    let replaced = replaced.map_err(|error| {
        ControlError::failed(format!("{device} does not come to {name}: {error}"))
    })?;
    Ok(match replaced {
        Replacement::Copy => {
            let newcomer = Newcomer { uuid, known, is_spare: false };
            assembled.newcomers.borrow_mut().push(newcomer);
            Replaced::Copy
        }
        Replacement::Rebuild | Replacement::Return => {
            assembled.devices.borrow_mut()[place] = Some(known);
            if replaced == Replacement::Return { Replaced::Return } else { Replaced::Rebuild }
        }
    })
}

/// Adds a row of redundancy on these devices, or one of them for room.
pub(super) async fn grow(
    handle: Handle,
    name: ArrayName,
    by: Growth,
    devices: Vec<DeviceSpec>,
) -> ControlResult<()> {
    let assembled = assembled(&name)?;
    let (mut leaves, known) = open_all(&handle, &devices)?;
    let uuids = devices.iter().map(|_| Identity::random().map(|uuid| uuid.0));
    let uuids: Vec<_> = uuids.collect::<ControlResult<_>>()?;
    let grown = match (by, leaves.len()) {
        (Growth::Capacity, 1) => assembled.array.grow_capacity(leaves.remove(0), uuids[0]).await,
        _ => assembled.array.grow(leaves, &uuids).await,
    };
    let mut places = assembled.devices.borrow_mut();
    if assembled.array.geometry().member_count() > places.len() {
        places.extend(known.into_iter().map(Some));
    }
    grown.map_err(|error| {
        let told = error.to_string();
        let device = |at: usize| (format!("device {}: ", at + 1), format!("{}: ", devices[at]));
        let named = (0..devices.len()).map(device).find(|(number, _)| told.starts_with(number));
        let told = named.map_or(told.clone(), |(number, name)| told.replacen(&number, &name, 1));
        ControlError::failed(format!("{name} does not grow: {told}"))
    })
}

/// Keeps a device for the next loss.
pub(super) fn add_spare(
    handle: &Handle,
    name: &ArrayName,
    device: &DeviceSpec,
) -> ControlResult<()> {
    let assembled = assembled(name)?;
    let leaf = open_leaf(handle, device)?;
    let known = Known { device: device.clone(), size_bytes: leaf.limits().bytes() };
    let uuid = Identity::random()?.0;
    assembled.array.add_spare(leaf, uuid).map_err(|error| {
        ControlError::failed(format!("{device} is no spare for {name}: {error}"))
    })?;
    assembled.newcomers.borrow_mut().push(Newcomer { uuid, known, is_spare: true });
    Ok(())
}

/// Starts a rebuild that was cut off.
pub(super) fn start_rebuild(name: &ArrayName) -> ControlResult<()> {
    assembled(name)?.array.rebuild().map_err(refused)
}

/// Starts a scrub.
pub(super) fn start_scrub(name: &ArrayName, repair: Repair) -> ControlResult<()> {
    let repair = match repair {
        Repair::Nothing => ScrubRepair::Nothing,
        Repair::Located => ScrubRepair::Located,
        Repair::Everything => ScrubRepair::Everything,
    };
    assembled(name)?.array.scrub(repair).map_err(refused)
}

/// Whether a device suits as a spare.
pub(super) fn check_spare(
    handle: &Handle,
    name: &ArrayName,
    device: &DeviceSpec,
) -> ControlResult<()> {
    let leaf = open_leaf(handle, device)?;
    assembled(name)?
        .array
        .check_spare(&leaf)
        .map_err(|error| ControlError::failed(format!("{device} is no spare for {name}: {error}")))
}

/// Gives an array its settings.
pub(super) fn configure(name: &ArrayName, settings: &ArraySettings) -> ControlResult<()> {
    let array = &assembled(name)?.array;
    array.set_health_policy(settings.health.for_array());
    array.set_merge_policy(settings.merge.for_array());
    array.set_pace(BackgroundTask::Rebuild, settings.rebuild.for_array());
    array.set_pace(BackgroundTask::Scrub, settings.scrub.for_array());
    Ok(())
}

/// Whom to wake when something about an array has changed.
pub(super) fn listen(name: &ArrayName, waker: Waker) -> ControlResult<()> {
    assembled(name)?.array.set_listener(move || waker());
    Ok(())
}

/// What an array stands on now.
pub(super) fn devices(name: &ArrayName) -> ControlResult<ArrayDevices> {
    let assembled = assembled(name)?;
    assembled.seat_newcomers();
    let events = assembled.array.status().map_or(0, |status| status.event);
    let device = |known: &Known| known.device.clone();
    let members = assembled.devices.borrow().iter().map(|it| it.as_ref().map(device)).collect();
    let newcomers = assembled.newcomers.borrow();
    let of = |is_spare| {
        let those = newcomers.iter().filter(move |it| it.is_spare == is_spare);
        those.map(|it| device(&it.known)).collect()
    };
    let array = &assembled.array;
    let news = array.take_health_news().iter().map(|news| assembled.line_of(news)).collect();
    Ok(ArrayDevices {
        level: ArrayLevel(array.geometry().level()),
        size_bytes: array.limits().bytes(),
        events,
        members,
        spares: of(true),
        incoming: of(false),
        spares_wanted: array.spares_wanted(),
        may_lose: assembled.may_lose(),
        news,
    })
}

impl Assembled {
    /// How many more members may be lost, wherever they are.
    pub(super) fn may_lose(&self) -> u32 {
        let geometry = self.array.geometry();
        let lost = |group| {
            let members = geometry.members_of(group);
            members.filter(|member| !self.array.is_online(*member)).count()
        };
        let lost_most = (0..geometry.group_count()).map(lost).max().unwrap_or(0);
        geometry.parity_chunks().saturating_sub(lost_most) as u32
    }

    /// A line of the log.
    fn line_of(&self, news: &HealthNews) -> String {
        let device = |member: usize| {
            let known = self.devices.borrow()[member].as_ref().map(|it| it.device.to_string());
            known.unwrap_or_else(|| format!("member {member}"))
        };
        match *news {
            HealthNews::TooManyErrors { member, errors, is_failed: true } => {
                format!("{} had {errors} errors of late and is failed", device(member))
            }
            HealthNews::TooManyErrors { member, errors, is_failed: false } => format!(
                "{} had {errors} errors of late, and the array cannot lose it: replace it now",
                device(member)
            ),
            HealthNews::Slow { member, mean_ns, others_ns } => format!(
                "{} is slow: {} us, where the others take {} us",
                device(member),
                mean_ns / 1000,
                others_ns / 1000
            ),
            HealthNews::SlowFailed { member } => {
                format!("{} is failed because it is slow", device(member))
            }
            HealthNews::NotSlow { member } => format!("{} is not slow any more", device(member)),
        }
    }
}
