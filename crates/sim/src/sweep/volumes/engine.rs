//! The data path under the real service: real volumes and caches on simulated drives. Each call is run in
//! virtual time until it has answered, while clients go on.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use voltier_block::{BlockDevice, Lba};
use voltier_cache::{Cache, Label, MemoryGate, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};
use voltier_control::engine::{
    CacheHealth, CacheLabel, CacheStart, Drain, MemberLabel, OpenedVolume,
};
use voltier_control::safety::{
    DeviceId, DriveIdentity, Examined, Finding, HEAD_BYTES, Role, WriteProtection,
};
use voltier_control::{
    ControlError, ControlResult, DeviceSpec, ExportAccess, ExportSpec, Identity, Service, Settings,
    VolumeName, VolumeRecord, VolumeStatus, changed_places, front_of, front_refused,
};
use voltier_volume::{Opened, Volume, change_cache, origin_has_cache, put_in_front};

use super::fixture::VolumeFixture;
use crate::disk::SimDisk;
use crate::fake::{Fake, FakeEngine};
use crate::origin::SimDrive;

/// Where the drives are plugged in.
pub(super) const HDD: &str = "/dev/hdd";
pub(super) const SSD: &str = "/dev/ssd";

/// How long the service leaves a drain alone before it looks again.
const DRAIN_STEP_NS: u64 = 700_000;

/// The engine of one daemon.
pub(super) type SimEngine = Fake<VolumeWorld>;

/// What the engine stands on. Clients are cut off by the export that closes.
pub(super) struct VolumeWorld(Rc<VolumeFixture>);

/// A daemon on a fixture's registry and drives; nothing is open until the daemon is started.
pub(super) fn service(fixture: &Rc<VolumeFixture>) -> Service<SimEngine> {
    Service::new(Fake(VolumeWorld(fixture.clone())), fixture.registry())
}

fn one_line(error: impl std::fmt::Display) -> ControlError {
    ControlError::failed(error.to_string())
}

/// An SSD that took the superblock of an opening names its volume and origin: an import goes by that.
fn check_owner(record: &VolumeRecord, ssd: &SimDisk) {
    let mut head = vec![0; HEAD_BYTES];
    ssd.peek(Lba(0), &mut head);
    let label = Label::in_head(&head).expect("its own format");
    let owner = label.expect("the cache was just opened").owner;
    let expected = (record.name.as_str(), record.uuid.0, record.origin.to_string());
    assert_eq!((owner.volume.as_str(), owner.volume_uuid, owner.origin_path), expected);
}

impl VolumeWorld {
    fn disk(&self, path: &Path) -> ControlResult<SimDisk> {
        let is_hdd = path == Path::new(HDD);
        let hdd = is_hdd != self.0.swapped.get();
        if !is_hdd && path != Path::new(SSD) || !self.0.is_there(usize::from(hdd)) {
            return Err(ControlError::failed(format!("{} does not exist", path.display())));
        }
        Ok(if hdd { self.0.hdd.clone() } else { self.0.ssd.clone() })
    }

    fn disk_of(&self, device: &DeviceSpec) -> ControlResult<SimDisk> {
        self.disk(device.path().expect("a simulated drive has a path"))
    }

    fn put_in_front(
        &self,
        volume: &Volume<SimDrive>,
        record: &VolumeRecord,
        device: &DeviceSpec,
        start: CacheStart,
    ) -> ControlResult<Opened> {
        let disk = self.disk_of(device)?;
        let (volume, ssd, own) = (volume.clone(), SimDrive::Plain(disk.clone()), record.clone());
        let (opened, _) = self.0.run(async move {
            let front = front_of(&own, start, MemoryGate::default())?;
            let opened = put_in_front(&volume, ssd, front).await;
            opened.map_err(|error| front_refused(&own, start, error))
        })?;
        if !opened.evacuates {
            check_owner(record, &disk);
        }
        Ok(opened)
    }

    /// A cache that has served for the last time holds nothing any more.
    fn check_rest(&self, cache: Option<Cache<SimDrive, Rc<SimDrive>>>) {
        let Some(cache) = cache else { return };
        let audited = cache.audit();
        assert_eq!(audited, Ok(()), "not at rest");
    }

    fn volume(&self) -> ControlResult<Volume<SimDrive>> {
        let volume = self.0.volume.borrow().clone();
        volume.ok_or_else(|| ControlError::failed("the volume is not open"))
    }
}

impl FakeEngine for VolumeWorld {
    fn write_protection(&self, _: &Path) -> Option<WriteProtection> {
        None
    }

    fn examine(&self, path: &Path, _: Role) -> ControlResult<Examined> {
        self.0.step();
        let disk = self.disk(path)?;
        let is_ours = SUPERBLOCK_OFFSETS.into_iter().any(|offset| {
            let mut mark = [0; SUPERBLOCK_MAGIC.len()];
            disk.peek(Lba::from_bytes(offset), &mut mark);
            mark == SUPERBLOCK_MAGIC
        });
        let id = DeviceId::simulated(u64::from(path == Path::new(HDD)));
        let findings =
            if is_ours { vec![Finding::Content("a Voltier cache".into())] } else { Vec::new() };
        Ok(Examined {
            id,
            size_bytes: disk.limits().bytes(),
            findings,
            remote_identity: None,
            report: None,
        })
    }

    fn id_of(&self, path: &Path) -> Option<DeviceId> {
        self.disk(path).ok().map(|_| DeviceId::simulated(u64::from(path == Path::new(HDD))))
    }

    fn drive_identity(&self, path: &Path) -> Option<DriveIdentity> {
        let is_hdd = (path == Path::new(HDD)) != self.0.swapped.get();
        self.disk(path).ok().and_then(|_| self.0.identities.get().identity(is_hdd))
    }

    fn find_drive(&self, identity: &DriveIdentity, _: &Path) -> Option<PathBuf> {
        let mut places = [HDD, SSD].map(Path::new).into_iter();
        let found = places.find(|path| self.drive_identity(path).as_ref() == Some(identity));
        found.map(Path::to_owned)
    }

    fn draw_identity(&self) -> ControlResult<Identity> {
        Ok(self.0.draw_identity())
    }

    fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> {
        self.0.step();
        let ssd = SimDrive::Plain(self.disk_of(device)?);
        let size_bytes = ssd.limits().bytes();
        let found = async move { Cache::<SimDrive, SimDrive>::probe(&ssd).await };
        let found = self.0.run(found).map_err(one_line)?;
        Ok(found.map(|label| CacheLabel::of(label, size_bytes)))
    }

    fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        self.0.step();
        let ssd = SimDrive::Plain(self.disk_of(device)?);
        let erased = async move { Cache::<SimDrive, SimDrive>::erase(&ssd).await };
        self.0.run(erased).map_err(one_line)
    }

    fn label_of(&self, _: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        Err(ControlError::failed("this engine has no arrays"))
    }

    fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume> {
        self.0.step();
        let origin = SimDrive::any_sector(self.disk_of(&record.origin)?);
        let volume = Volume::plain(self.0.world.handle(), origin);
        let (opened, checked) = (volume.clone(), record.clone());
        self.0.run(async move {
            match &checked.cache {
                Some(cache) if origin_has_cache(&opened, cache.uuid.0).await => {
                    Err(changed_places(&checked))
                }
                _ => Ok(()),
            }
        })?;
        let (mut generation, mut evacuates) = (0, false);
        if let Some(cache) = record.cache.as_ref().filter(|cache| cache.failed.is_none()) {
            let opened = self.put_in_front(&volume, record, &cache.device, start)?;
            (generation, evacuates) = (opened.generation, opened.evacuates);
        }
        let size_bytes = volume.limits().bytes();
        let dirty_lines = volume.cache().map_or(0, |cache| cache.status().lines.dirty);
        self.0.volume.replace(Some(volume));
        self.0.step();
        Ok(OpenedVolume { size_bytes, generation, dirty_lines, evacuates })
    }

    fn close(&self, _: &VolumeName) -> ControlResult<()> {
        self.0.step();
        let Some(volume) = self.0.volume.take() else { return Ok(()) };
        self.0.stop_clients();
        let cache = volume.cache();
        self.0.run(async move { volume.stop().await }).map_err(one_line)?;
        self.check_rest(cache);
        self.0.step();
        Ok(())
    }

    fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus) {
        status.lines.dirty = self.health(name).dirty_lines.unwrap_or(0);
    }

    fn begin_evacuation(&self, _: &VolumeName) -> ControlResult<()> {
        self.0.step();
        self.volume()?.cache().iter().for_each(Cache::begin_evacuation);
        Ok(())
    }

    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
        self.0.step();
        let (volume, cache) = (self.volume()?, record.cache.as_ref());
        let device = &cache.expect("an attach brings a cache").device;
        let opened = self.put_in_front(&volume, record, device, CacheStart::Format)?;
        self.0.step();
        Ok(opened.generation)
    }

    fn quiesce(&self, _: &VolumeName) -> ControlResult<()> {
        self.0.step();
        let volume = self.volume()?;
        self.0.run(async move { volume.quiesce().await }).map_err(one_line)?;
        self.0.step();
        Ok(())
    }

    fn resume(&self, _: &VolumeName) {
        self.0.volume.borrow().iter().for_each(Volume::resume);
    }

    fn detach(&self, _: &VolumeName, write_back: bool) -> ControlResult<()> {
        self.0.step();
        let volume = self.volume()?;
        let cache = volume.cache();
        self.0.run(async move { volume.detach(write_back).await }).map_err(one_line)?;
        self.check_rest(cache);
        self.0.step();
        Ok(())
    }

    fn configure(&self, _: &VolumeName, settings: &Settings) -> ControlResult<()> {
        self.0.step();
        let (volume, settings) = (self.volume()?, settings.clone());
        self.0.run(
            async move { change_cache(&volume, settings.policy, settings.for_cache()).await },
        )?;
        self.0.step();
        Ok(())
    }

    fn start_drain(&self, _: &VolumeName) -> ControlResult<()> {
        self.0.step();
        let (volume, drain) = (self.volume()?, self.0.drain.clone());
        if drain.replace(Drain::Running) == Drain::Running {
            return Ok(());
        }
        drop(self.0.world.handle().spawn(async move {
            let outcome = match volume.drain().await {
                Ok(()) => Drain::Done,
                Err(error) => Drain::Failed(error.to_string()),
            };
            drain.replace(outcome);
        }));
        Ok(())
    }

    fn drain(&self, _: &VolumeName) -> Drain {
        if *self.0.drain.borrow() == Drain::Running {
            self.0.pass(DRAIN_STEP_NS);
        }
        self.0.drain.borrow().clone()
    }

    fn health(&self, _: &VolumeName) -> CacheHealth {
        let cache = self.0.volume.borrow().as_ref().and_then(Volume::cache);
        let dirty_lines = cache.map_or(0, |cache| cache.status().lines.dirty);
        // Time passes before the service makes use of the answer.
        self.0.step();
        CacheHealth { dirty_lines: Some(dirty_lines), ..CacheHealth::default() }
    }

    fn export(
        &self,
        _: &VolumeName,
        export: &ExportSpec,
        _: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        self.0.step();
        let count = self.0.client_count.get();
        if count > 0 {
            self.0.start_clients(count);
        }
        Ok(export.clone())
    }

    fn unexport(&self, _: &VolumeName, _: &ExportSpec, _: bool) -> ControlResult<()> {
        self.0.step();
        self.0.stop_clients();
        Ok(())
    }
}
