//! The data path under the real service: real arrays on simulated drives. Each call is run in virtual
//! time until it has answered, while clients go on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, BackgroundTask, JournalState, MemberIndex, MemberState,
    Replacement, Superblock, read_spare_label, wipe_superblocks, write_spare_label,
};
use voltier_block::BlockDevice;
use voltier_control::engine::{
    ArrayDevices, JournalDeviceLabel, MemberLabel, OpenedArray, Replaced, SpareOwner,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::safety::{DeviceId, DriveIdentity, Examined, Finding, Role, WriteProtection};
use voltier_control::{
    ArrayDetail, ArrayLevel, ArrayName, ArraySettings, ArrayState, ControlError, ControlResult,
    DeviceSpec, Identity, JournalStatus, PlaceStatus, RegisteredArray, Service,
};

use super::fixture::{ArrayDaemonFixture, DRIVES, Open};
use crate::disk::SimDisk;
use crate::fake::{Fake, FakeEngine};

/// The engine of one daemon.
pub(super) type ArraySimEngine = Fake<ArrayWorld>;

/// What the engine stands on; there are no volumes.
pub(super) struct ArrayWorld(Rc<ArrayDaemonFixture>);

/// A daemon on a fixture's registry and drives; nothing is open until the daemon is started.
pub(super) fn service(fixture: &Rc<ArrayDaemonFixture>) -> Service<ArraySimEngine> {
    Service::new(Fake(ArrayWorld(fixture.clone())), fixture.registry())
}

fn failed(error: impl std::fmt::Display) -> ControlError {
    ControlError::failed(error.to_string())
}

impl ArrayWorld {
    fn disk(&self, device: &DeviceSpec) -> ControlResult<SimDisk> {
        let path = device.path().expect("a simulated drive has a path");
        Ok(self.0.disks[self.number_of(path)?].clone())
    }

    /// The drive that has a name in this life.
    fn number_of(&self, path: &Path) -> ControlResult<usize> {
        let mut numbers = 0..DRIVES;
        let found = numbers.find(|number| self.0.device(*number).path() == Some(path));
        let found = found.filter(|number| self.0.is_there(*number));
        found.ok_or_else(|| failed(format!("{} does not exist", path.display())))
    }

    fn array(&self) -> ControlResult<Array<SimDisk>> {
        self.0.array().ok_or_else(|| failed("the array is not open"))
    }

    /// Runs something of the open array between two steps.
    fn run<T: 'static, F: Future<Output = Result<T, ArrayError>> + 'static>(
        &self,
        what: impl FnOnce(Array<SimDisk>) -> F,
    ) -> ControlResult<T> {
        self.0.step();
        let done = self.0.run(what(self.array()?)).map_err(failed);
        self.0.step();
        done
    }

    fn examine_now(&self, disk: SimDisk) -> ControlResult<Option<Superblock>> {
        self.0.run(async move { Array::examine(&disk).await }).map_err(failed)
    }

    fn keep(&self, open: Open, left_out: Vec<String>) -> OpenedArray {
        let status = open.array.status().expect("an array with superblocks");
        let is_lost = |it: &voltier_array::JournalDeviceRecord| it.state == JournalState::Lost;
        let opened = OpenedArray {
            size_bytes: open.array.limits().bytes(),
            level: ArrayLevel(open.array.geometry().level()),
            integrity: status.integrity,
            events: status.event,
            members: open.devices.clone(),
            journal: open.journal.clone(),
            is_journal_lost: status.journal_device.as_ref().is_some_and(is_lost),
            left_out,
        };
        self.0.open.replace(Some(open));
        self.0.start_clients();
        self.0.step();
        opened
    }

    fn with_open<T>(&self, change: impl FnOnce(&mut Open) -> T) -> ControlResult<T> {
        self.0.open.borrow_mut().as_mut().map(change).ok_or_else(|| failed("it is not open"))
    }
}

impl FakeEngine for ArrayWorld {
    fn write_protection(&self, _: &Path) -> Option<WriteProtection> {
        None
    }

    fn examine(&self, path: &Path, role: Role) -> ControlResult<Examined> {
        self.0.step();
        let number = self.number_of(path)?;
        let disk = self.0.disks[number].clone();
        let size_bytes = disk.limits().bytes();
        let journal = disk.clone();
        let is_journal = self.0.run(async move { Array::examine_journal(&journal).await });
        // A damaged label is content as well.
        let is_member = !matches!(self.examine_now(disk.clone()), Ok(None));
        let spare = self.0.run(async move { read_spare_label(&disk).await });
        let is_spare = role != Role::Spare && !matches!(spare, Ok(None));
        let is_ours = is_member || is_spare || is_journal.is_ok_and(|it| it.is_some());
        let findings =
            if is_ours { vec![Finding::Content("a part of an array".into())] } else { Vec::new() };
        Ok(Examined {
            id: DeviceId::simulated(number as u64),
            size_bytes,
            findings,
            remote_identity: None,
            report: None,
        })
    }

    fn id_of(&self, path: &Path) -> Option<DeviceId> {
        self.number_of(path).ok().map(|number| DeviceId::simulated(number as u64))
    }

    fn own_devices(&self) -> Vec<PathBuf> {
        let there = (0..DRIVES).filter(|number| self.0.is_there(*number));
        let paths = there.filter_map(|it| self.0.device(it).path().map(Path::to_owned));
        let mut paths: Vec<PathBuf> = paths.collect();
        paths.sort();
        paths
    }

    fn own_files(&self, _: &Path) -> Vec<PathBuf> {
        Vec::new()
    }

    fn around(&self, _: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
        self.own_devices().into_iter().map(|path| (path, 0)).collect()
    }

    fn drive_identity(&self, _: &Path) -> Option<DriveIdentity> {
        None
    }

    fn draw_identity(&self) -> ControlResult<Identity> {
        Ok(self.0.draw_identity())
    }

    fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        self.0.step();
        let found = self.examine_now(self.disk(device)?)?;
        Ok(found.map(MemberLabel::from))
    }

    fn journal_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>> {
        let disk = self.disk(device)?;
        let found = self.0.run(async move { Array::examine_journal(&disk).await });
        let label = |it: voltier_array::JournalLabel| JournalDeviceLabel {
            array: Identity(it.array),
            name: it.name,
        };
        Ok(found.map_err(failed)?.map(label))
    }

    fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>> {
        self.0.step();
        let disk = self.disk(device)?;
        let found = self.0.run(async move { read_spare_label(&disk).await }).map_err(failed)?;
        Ok(found.map(|it| SpareOwner { owner: Identity(it.owner), name: it.name }))
    }

    fn label_spare(
        &self,
        device: &DeviceSpec,
        label: &SpareOwner,
        wipe: bool,
    ) -> ControlResult<()> {
        self.0.step();
        let disk = self.disk(device)?;
        let SpareOwner { owner, name } = label.clone();
        let label = voltier_array::SpareLabel { owner: owner.0, name, device_sectors: 0 };
        self.0.run(async move { write_spare_label(&disk, label, wipe).await }).map_err(failed)
    }

    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        self.0.step();
        let disk = self.disk(device)?;
        self.0.run(async move { wipe_superblocks(&disk).await }).map_err(failed)
    }

    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        self.0.step();
        let devices: Vec<DeviceSpec> = record.members.iter().flatten().cloned().collect();
        let disks = devices.iter().map(|device| self.disk(device));
        let disks = disks.collect::<ControlResult<Vec<_>>>()?;
        let journal = record.journal.as_ref().map(|device| self.disk(device)).transpose()?;
        let journal = journal.map(|disk| (disk, self.0.name()));
        let options = record.create_options(devices.iter().map(|_| self.0.name()).collect());
        let handle = self.0.world.handle().clone();
        let made = self.0.run(async move {
            Array::create_with_journal(&handle, &options, disks, journal).await
        });
        let (array, pending) = (made.map_err(failed)?, Vec::new());
        // A new array is zeroes, with any content before.
        let sectors = array.limits().sectors;
        self.0.is_new(sectors);
        let devices = devices.into_iter().map(Some).collect();
        Ok(self.keep(Open { array, devices, pending, journal: record.journal.clone() }, Vec::new()))
    }

    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        self.0.step();
        let (mut members, mut journals, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let is_journal = |label: ControlResult<Option<JournalDeviceLabel>>| {
            label.ok().flatten().is_some_and(|it| it.array == record.uuid)
        };
        for (at, device) in devices.iter().enumerate() {
            if devices[..at].contains(device) {
                // No device is opened twice.
                left_out.push(format!("{device} is in use"));
                continue;
            }
            let disk = self.disk(device)?;
            match self.examine_now(disk.clone()) {
                Ok(Some(own)) if own.array.uuid == record.uuid.0 => {
                    members.push((disk, device.clone(), own));
                }
                Ok(None) if is_journal(self.journal_label_of(device)) => {
                    journals.push((disk, device.clone()));
                }
                Err(error) => left_out.push(error.message),
                Ok(_) => left_out.push(format!("{device} is left out")),
            }
        }
        let in_service = members.iter().filter(|(.., own)| own.array.is_in_service(own.member));
        let newest = in_service.map(|(.., own)| own.array.event).max().unwrap_or(0);
        let degraded = force || (record.events > 0 && newest >= record.events);
        let options = AssembleOptions { force, degraded };
        let given = members.iter().map(|(disk, ..)| disk.clone());
        let given = given.chain(journals.iter().map(|(disk, _)| disk.clone())).collect();
        let handle = self.0.world.handle().clone();
        let assembled = self.0.run(async move { Array::assemble(&handle, given, options).await });
        let (array, report) = assembled.map_err(failed)?;
        let mut places = vec![None; report.array.members.len()];
        for (at, (_, device, own)) in members.iter().enumerate() {
            // Of two devices that were the same member, one after the other, one has the place.
            let is_replaced = report.left_out.iter().any(|it| it.device == at && it.is_replaced);
            if let Some(place) = places.get_mut(own.member.0)
                && (place.is_none() || !is_replaced)
            {
                *place = Some(device.clone());
            }
        }
        let is_taken = |at: &usize| {
            !report.journal_left_out.iter().any(|left| left.device == members.len() + at)
        };
        let journal = (0..journals.len()).find(is_taken).map(|at| journals[at].1.clone());
        Ok(self.keep(Open { array, devices: places, pending: Vec::new(), journal }, left_out))
    }

    fn close_array(&self, _: &ArrayName) -> ControlResult<u64> {
        self.0.step();
        self.0.stop_clients();
        let Some(Open { array, .. }) = self.0.open.take() else { return Ok(0) };
        let stop = async move {
            array.stop().await?;
            Ok::<u64, ArrayError>(array.status().map_or(0, |status| status.event))
        };
        let stopped = self.0.run(stop);
        self.0.step();
        stopped.map_err(failed)
    }

    fn array_devices(&self, _: &ArrayName) -> Option<ArrayDevices> {
        self.0.step();
        let mut open = self.0.open.borrow_mut();
        let Open { array, devices, pending, .. } = open.as_mut()?;
        let status = array.status()?;
        pending.retain(|(uuid, device, _)| {
            let place = status.members.iter().position(|member| member.uuid == *uuid);
            if let Some(place) = place {
                devices[place] = Some(device.clone());
            }
            place.is_none()
        });
        let of = |is_spare| {
            let those = pending.iter().filter(move |pending| pending.2 == is_spare);
            those.map(|pending| pending.1.clone()).collect()
        };
        let lost = status.members.iter().filter(|it| it.state != MemberState::InService).count();
        Some(ArrayDevices {
            level: ArrayLevel(array.geometry().level()),
            size_bytes: status.bytes,
            events: status.event,
            members: devices.clone(),
            spares: of(true),
            incoming: of(false),
            spares_wanted: array.spares_wanted(),
            may_lose: array.geometry().parity_chunks().saturating_sub(lost) as u32,
            lost: Vec::new(),
            lost_too_many: 0,
            news: Vec::new(),
        })
    }

    fn fill_array_status(&self, _: &ArrayName, status: &mut ArrayDetail) {
        let open = self.0.open.borrow();
        let Some(open) = &*open else { return };
        let Some(now) = open.array.status() else { return };
        if now.is_degraded {
            status.state = ArrayState::Degraded;
        }
        let word = |state| match state {
            MemberState::InService => "online",
            MemberState::Lost => "lost",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Absent => "absent",
        };
        let members = now.members.iter().zip(&open.devices).enumerate();
        let member = |(index, (member, device)): (usize, (&voltier_array::MemberStatus, _))| {
            let device: &Option<DeviceSpec> = device;
            PlaceStatus {
                index: index as u32,
                path: device.as_ref().map(DeviceSpec::to_string).unwrap_or_default(),
                uuid: Identity(member.uuid).to_string(),
                state: word(member.state).to_owned(),
                size_bytes: 0,
                trouble: String::new(),
                health: Default::default(),
                recent: None,
                meter: None,
                smart: Vec::new(),
            }
        };
        status.members = members.map(member).collect();
        status.journal_device = now.journal_device.map(|journal| JournalStatus {
            path: open.journal.as_ref().map(DeviceSpec::to_string).unwrap_or_default(),
            uuid: Identity(journal.uuid).to_string(),
            state: if journal.state == JournalState::Lost { "lost" } else { "online" }.to_owned(),
            size_bytes: 0,
            smart: Vec::new(),
        });
    }

    fn fail_member(&self, _: &ArrayName, place: u32) -> ControlResult<bool> {
        // The answer is given when all others say so durably, as in the product.
        self.run(move |array| async move {
            array.fail(MemberIndex(place as usize))?;
            array.flush().await.map_err(ArrayError::Io)
        })?;
        Ok(true)
    }

    fn replace_member(
        &self,
        _: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        let (disk, uuid) = (self.disk(device)?, self.0.name());
        let place = place as usize;
        let replaced = self
            .run(move |array| async move { array.replace(MemberIndex(place), disk, uuid).await })?;
        self.with_open(|open| match replaced {
            Replacement::Successor => {
                open.pending.push((uuid, device.clone(), false));
                Replaced::Copy
            }
            how => {
                open.devices[place] = Some(device.clone());
                if how == Replacement::Return { Replaced::Return } else { Replaced::Rebuild }
            }
        })
    }

    fn restore_member(
        &self,
        _: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        let (disk, place) = (self.disk(device)?, place as usize);
        let is_back =
            self.run(
                move |array| async move { array.restore_member(MemberIndex(place), disk).await },
            )?;
        if is_back {
            self.with_open(|open| open.devices[place] = Some(device.clone()))?;
        }
        Ok(is_back)
    }

    fn add_spare(&self, _: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (disk, uuid) = (self.disk(device)?, self.0.name());
        self.run(move |array| async move { array.add_spare(disk, uuid) })?;
        self.with_open(|open| open.pending.push((uuid, device.clone(), true)))
    }

    fn remove_spare(&self, _: &ArrayName, device: &DeviceSpec) -> ControlResult<bool> {
        let array = self.array()?;
        if self.with_open(|open| open.devices.contains(&Some(device.clone())))? {
            return Err(failed("it is a member"));
        }
        let find =
            |open: &mut Open| open.pending.iter().find(|it| it.2 && it.1 == *device).map(|it| it.0);
        let Some(uuid) = self.with_open(find)? else { return Ok(false) };
        self.run(move |_| async move { array.remove_spare(uuid) })?;
        self.with_open(|open| open.pending.retain(|it| it.0 != uuid))?;
        Ok(true)
    }

    fn check_spare(&self, _: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        self.array()?.check_spare(&self.disk(device)?).map_err(failed)
    }

    fn grow_array(&self, _: &ArrayName, by: Growth, devices: &[DeviceSpec]) -> ControlResult<()> {
        let disks = devices.iter().map(|device| self.disk(device));
        let mut disks = disks.collect::<ControlResult<Vec<_>>>()?;
        let uuids: Vec<[u8; 16]> = devices.iter().map(|_| self.0.name()).collect();
        self.run(move |array| async move {
            match (by, disks.len()) {
                (Growth::Capacity, 1) => array.grow_capacity(disks.remove(0), uuids[0]).await,
                _ => array.grow(disks, &uuids).await,
            }
        })?;
        self.with_open(|open| open.devices.extend(devices.iter().cloned().map(Some)))
    }

    fn set_journal(&self, _: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
        let new = device.map(|device| self.disk(device)).transpose()?;
        let new = new.map(|disk| (disk, self.0.name()));
        self.run(move |array| async move { array.set_journal(new).await })?;
        self.with_open(|open| open.journal = device.cloned())
    }

    fn start_rebuild(&self, _: &ArrayName) -> ControlResult<()> {
        self.array()?.rebuild().map_err(failed)
    }

    fn start_scrub(&self, _: &ArrayName, repair: Repair) -> ControlResult<()> {
        self.run(move |array| async move { array.scrub(repair.into()) })
    }

    fn configure_array(&self, _: &ArrayName, settings: &ArraySettings) {
        self.0.step();
        if let Ok(array) = self.array() {
            array.set_health_policy(settings.health.for_array());
            array.set_merge_policy(settings.merge.for_array());
            array.set_pace(BackgroundTask::Rebuild, settings.rebuild.for_array());
            array.set_pace(BackgroundTask::Scrub, settings.scrub.for_array());
        }
    }
}
