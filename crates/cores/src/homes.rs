//! The control plane's view of open volumes and arrays: on which core they are, and the way there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voltier_control::engine::Drain;
use voltier_control::{ArrayName, ControlError, ControlResult, RegisteredArray, VolumeName};

use crate::call::Way;
use crate::exports::open_export::Opened;
use crate::fault::Fault;
use crate::loss::{KnownEvents, SsdLoss};
use crate::table;
use crate::volumes::DeviceNames;

/// Something that several threads of the control plane look at, never for longer than that.
pub(super) struct Held<T>(Mutex<T>);

impl<T> Held<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(super) fn get(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open array.
pub(super) struct ArrayHome {
    pub(super) core: usize,
    /// The way to the core for tasks of the array's own failure domain.
    pub(super) way: Way,
    pub(super) fault: Arc<Fault>,
    /// The record by which any core can assemble the array.
    pub(super) record: Held<RegisteredArray>,
    pub(super) known_events: Arc<KnownEvents>,
}

/// An open volume.
pub(super) struct Home {
    pub(super) core: usize,
    /// The way to the core for tasks of the volume's own failure domain.
    pub(super) way: Way,
    pub(super) fault: Arc<Fault>,
    pub(super) exports: Held<Vec<Opened>>,
    pub(super) drain: Arc<Held<Drain>>,
    pub(super) loss: Held<Arc<SsdLoss>>,
    pub(super) devices: Held<DeviceNames>,
    /// What it holds ends with the daemon.
    pub(super) is_volatile: bool,
    /// The identity of the volume.
    pub(super) uuid: [u8; 16],
}

/// All that is open.
pub(super) struct Homes {
    volumes: Held<BTreeMap<VolumeName, Arc<Home>>>,
    arrays: Held<BTreeMap<ArrayName, Arc<ArrayHome>>>,
}

impl Homes {
    pub(super) fn new() -> Self {
        Self { volumes: Held::new(BTreeMap::new()), arrays: Held::new(BTreeMap::new()) }
    }

    pub(super) fn find(&self, name: &VolumeName) -> Option<Arc<Home>> {
        self.volumes.get().get(name).cloned()
    }

    pub(super) fn volume(&self, name: &VolumeName) -> ControlResult<Arc<Home>> {
        let home = self.find(name);
        home.ok_or_else(|| ControlError::failed(format!("{name} is not open; see daemon.log")))
    }

    pub(super) fn add(&self, name: &VolumeName, home: Home) {
        self.volumes.get().insert(name.clone(), Arc::new(home));
    }

    pub(super) fn remove(&self, name: &VolumeName) -> Option<Arc<Home>> {
        self.volumes.get().remove(name)
    }

    pub(super) fn find_array(&self, name: &ArrayName) -> Option<Arc<ArrayHome>> {
        self.arrays.get().get(name).cloned()
    }

    pub(super) fn array(&self, name: &ArrayName) -> ControlResult<Arc<ArrayHome>> {
        self.find_array(name).ok_or_else(|| table::not_open(name))
    }

    pub(super) fn add_array(&self, name: &ArrayName, home: ArrayHome) {
        self.arrays.get().insert(name.clone(), Arc::new(home));
    }

    pub(super) fn remove_array(&self, name: &ArrayName) -> Option<Arc<ArrayHome>> {
        self.arrays.get().remove(name)
    }
}
