//! What runs on a core: its volumes, and the tasks that open, change and close them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use voltier_block::{BlockDevice, Nanos};
use voltier_drive::model::Profile;
use voltier_export::fuse::FileDoor;
use voltier_export::nbd::{ExportInfo, NbdServer};
use voltier_ring::{Handle, StreamAddress};
use voltier_volume::{Drive, DriveSpec, OpenOptions, Volume};

use super::Failure;
use super::doors::refused;
use super::status::Facts;
use crate::engine::{CacheStart, OpenedVolume, Waker};
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::registry::{CacheRecord, VolumeRecord};
use crate::settings::Settings;
use crate::spec::{DeviceSpec, ModelBacking};

/// How often requests that wait for a loss to be recorded look whether it is.
const RECORDED_STEP_NS: Nanos = 5_000_000;

/// Lost ranges that are counted one by one; beyond it there are "at least" so many.
const LOST_RANGES_MAX: usize = 1 << 16;

/// One volume on its home core.
struct Resident {
    volume: Rc<Volume<Drive>>,
    servers: RefCell<Vec<(StreamAddress, NbdServer)>>,
}

thread_local! {
    /// The volumes of this core.
    static RESIDENTS: RefCell<BTreeMap<VolumeName, Rc<Resident>>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// What a lost SSD goes through before the origin may change.
pub(super) struct Gate {
    pub(super) failure: Arc<Failure>,
    pub(super) waker: Option<Waker>,
}

impl Gate {
    /// Tells the control plane, and waits until the loss is on record.
    pub(super) async fn pass(self, handle: Handle) {
        self.failure.happened.store(true, Ordering::Release);
        self.waker.iter().for_each(|wake| wake());
        while !self.failure.recorded.load(Ordering::Acquire) {
            handle.sleep(RECORDED_STEP_NS).await;
        }
    }
}

fn resident(name: &VolumeName) -> ControlResult<Rc<Resident>> {
    RESIDENTS
        .with_borrow(|residents| residents.get(name).cloned())
        .ok_or_else(|| ControlError::failed(format!("{name} is not open; see daemon.log")))
}

/// The profile of a modelled drive.
pub(super) fn profile(name: &str) -> ControlResult<&'static Profile> {
    Profile::find(name).map_err(|error| ControlError::usage(error.to_string()))
}

/// Opens a volume on this core.
pub(super) async fn open(
    handle: Handle,
    record: VolumeRecord,
    start: CacheStart,
    gate: Gate,
) -> ControlResult<OpenedVolume> {
    let origin = Drive::open_origin(&handle, &drive_spec(&record.origin)).map_err(one_line)?;
    let volume = Volume::plain(&handle, origin);
    let mut generation = 0;
    if let Some(cache) = record.cache.filter(|cache| cache.failed.is_none()) {
        generation = put_in_front(&handle, &volume, &cache, start, gate).await?;
    }
    let size_bytes = volume.limits().bytes();
    let resident = Resident { volume: Rc::new(volume), servers: RefCell::default() };
    RESIDENTS.with_borrow_mut(|all| all.insert(record.name, Rc::new(resident)));
    Ok(OpenedVolume { size_bytes, generation })
}

/// Opens or makes a cache in front of a volume; its generation.
async fn put_in_front(
    handle: &Handle,
    volume: &Volume<Drive>,
    cache: &CacheRecord,
    start: CacheStart,
    gate: Gate,
) -> ControlResult<u64> {
    let ssd = Drive::open_ssd(handle, &drive_spec(&cache.device)).map_err(one_line)?;
    let uuid = cache.uuid.0;
    let [seed, _] =
        [0, 8].map(|at| u64::from_le_bytes(*uuid[at..].first_chunk().expect("16 bytes")));
    let options = OpenOptions {
        uuid: Some(uuid),
        generation_min: cache.generation,
        settings: cache.settings.for_cache(),
        seed,
    };
    let opened = match start {
        CacheStart::Load => volume.attach_existing(ssd, options).await,
        CacheStart::Format => {
            volume.attach_new(ssd, &cache.settings.for_format(uuid)?, options).await
        }
    };
    let opened = opened
        .map_err(|error| ControlError::failed(format!("the cache on {}: {error}", cache.device)))?;
    if opened.origin_changed || opened.suspect_lines > 0 {
        eprintln!("voltier: the cache on {}: {opened:?}", cache.device);
    }
    let handle = handle.clone();
    volume.on_ssd_failure(move || Box::pin(gate.pass(handle)));
    Ok(opened.generation)
}

/// Stops a volume and forgets it.
pub(super) async fn close(name: VolumeName) -> ControlResult<()> {
    let Some(resident) = RESIDENTS.with_borrow_mut(|all| all.remove(&name)) else { return Ok(()) };
    let servers = std::mem::take(&mut *resident.servers.borrow_mut());
    for (_, server) in servers {
        server.stop().await;
    }
    let stopped = resident.volume.stop().await;
    stopped.map_err(|error| ControlError::failed(format!("stopping {name}: {error}")))
}

/// Formats an SSD and puts it in front of an open volume; the cache's generation.
pub(super) async fn attach(
    handle: Handle,
    name: VolumeName,
    cache: CacheRecord,
    gate: Gate,
) -> ControlResult<u64> {
    let volume = resident(&name)?.volume.clone();
    put_in_front(&handle, &volume, &cache, CacheStart::Format, gate).await
}

/// Takes the cache away and unmarks the SSD.
pub(super) async fn detach(name: VolumeName, write_back: bool) -> ControlResult<()> {
    let volume = resident(&name)?.volume.clone();
    volume.detach(write_back).await.map_err(one_line)
}

/// Changes settings.
pub(super) async fn configure(name: VolumeName, settings: Settings) -> ControlResult<()> {
    let volume = resident(&name)?.volume.clone();
    let policy = volume.cache().map(|cache| cache.status().policy);
    if policy.is_some_and(|policy| policy != settings.policy) {
        return Err(ControlError::failed(format!(
            "the policy is chosen when a cache is made; `voltier detach {name}`, then \
             `voltier attach {name} -s SSD -r {}`",
            settings.policy
        )));
    }
    volume.configure(settings.for_cache()).map_err(ControlError::failed)
}

/// Writes every dirty line back.
pub(super) async fn drain(name: VolumeName) -> ControlResult<()> {
    let volume = resident(&name)?.volume.clone();
    volume.drain().await.map_err(one_line)
}

/// Lines the origin does not have yet.
pub(super) fn dirty_lines(name: &VolumeName) -> u64 {
    let cache = resident(name).ok().and_then(|resident| resident.volume.cache());
    cache.map_or(0, |cache| cache.status().lines_dirty)
}

/// What the data path knows of a volume.
pub(super) fn facts(name: &VolumeName) -> ControlResult<Facts> {
    let volume = resident(name)?.volume.clone();
    let cache = volume.cache();
    let lost = cache
        .as_ref()
        .map_or(0, |cache| cache.lost_ranges(LOST_RANGES_MAX).len() + cache.damaged_ranges().len());
    Ok(Facts {
        counted: volume.status(),
        origin_bytes: volume.origin().limits().bytes(),
        ssd_bytes: cache.map_or(0, |cache| cache.ssd().limits().bytes()),
        lost_ranges: lost as u64,
    })
}

fn drive_spec(device: &DeviceSpec) -> DriveSpec {
    match device.clone() {
        DeviceSpec::Path(path) => DriveSpec::File { path },
        DeviceSpec::Memory(bytes) => DriveSpec::Memory { bytes },
        DeviceSpec::Model { profile, over } => match over {
            ModelBacking::ProfileSize => DriveSpec::Model { profile, bytes: None },
            ModelBacking::Memory(bytes) => DriveSpec::Model { profile, bytes: Some(bytes) },
            ModelBacking::Path(path) => DriveSpec::ModelOverFile { profile, path },
        },
    }
}

fn one_line(error: impl std::fmt::Display) -> ControlError {
    ControlError::failed(error.to_string())
}

/// Starts an NBD server; where it listens.
pub(super) fn serve_nbd(
    handle: &Handle,
    name: &VolumeName,
    at: &StreamAddress,
) -> ControlResult<StreamAddress> {
    let resident = resident(name)?;
    let limits = resident.volume.limits().clone();
    let info = ExportInfo::new(name.as_str(), "Voltier volume", limits, false);
    let server = NbdServer::start(handle, resident.volume.clone(), info, at).map_err(refused)?;
    let bound = server.address().clone();
    resident.servers.borrow_mut().push((bound.clone(), server));
    Ok(bound)
}

/// Ends the NBD server at an address.
pub(super) async fn stop_nbd(name: VolumeName, at: StreamAddress) -> ControlResult<()> {
    let resident = resident(&name)?;
    let server = {
        let mut servers = resident.servers.borrow_mut();
        let index = servers.iter().position(|(address, _)| *address == at);
        index.map(|index| servers.swap_remove(index).1)
    };
    if let Some(server) = server {
        server.stop().await;
    }
    Ok(())
}

/// Connections to the NBD server at an address.
pub(super) fn nbd_clients(name: &VolumeName, at: &StreamAddress) -> u64 {
    let Ok(resident) = resident(name) else { return 0 };
    let servers = resident.servers.borrow();
    let server = servers.iter().find(|(address, _)| address == at);
    server.map_or(0, |(_, server)| server.counters().connections_open)
}

/// Starts serving a volume as a file; the control thread mounts it.
pub(super) fn serve_file(handle: &Handle, name: &VolumeName) -> ControlResult<FileDoor> {
    Ok(FileDoor::open(handle, resident(name)?.volume.clone()))
}
