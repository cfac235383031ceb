//! The state of the service, with what a look at it tells: no device is asked.

pub(crate) mod claims;
pub(crate) mod crash_wait;
pub(crate) mod desk;
pub(crate) mod errands;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod live;
pub(crate) mod records;
pub(crate) mod subjects;
pub(crate) mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ControlError, ControlResult};
use crate::events::event::{Event, EventKind};
use crate::export_spec::ExportSpec;
use crate::name::{ArrayName, PoolName, VolumeName};
use crate::records::{Identity, PoolRecord, RegisteredArray, VolumeRecord};
use crate::registry::Registry;
use crate::service::arrays::scrub_book::ScrubBook;
use crate::service::arrays::unfit_spare::UnfitSpare;
use crate::service::arrays::wanting::Wanting;
use crate::service::presence::absence::Absence;
use crate::service::state::claims::{ClaimId, Claims, Subject};
use crate::service::state::history::History;
use crate::service::state::jobs::Jobs;
use crate::service::state::live::{Live, LiveArray};
use crate::smart::Book;
use crate::suggest;

/// How long a command waits for another one that has its volume or array, unless told otherwise.
const QUEUE_WAIT: Duration = Duration::from_secs(30);

/// The state of a service: one turn at a time has it.
pub(crate) struct State {
    pub(crate) registry: Registry,
    pub(crate) live: BTreeMap<VolumeName, Live>,
    pub(crate) live_arrays: BTreeMap<ArrayName, LiveArray>,
    /// Arrays that wanted spares of their pools when they were last asked.
    pub(crate) wanting: Vec<Wanting>,
    /// Spares of pools that did not serve an array, until something changes there.
    pub(crate) unfit_spares: BTreeMap<(ArrayName, String), UnfitSpare>,
    /// Volumes whose users say that what their origins hold counts, until they have been opened once.
    pub(crate) adopted_origins: BTreeSet<VolumeName>,
    /// Volumes whose SSD went away with so many dirty lines, until they wait for that SSD.
    pub(crate) pulled: BTreeMap<VolumeName, u64>,
    /// Arrays that lost more members than their level allows while they served.
    pub(crate) fallen: BTreeSet<ArrayName>,
    pub(crate) jobs: Jobs,
    /// Volumes and arrays that failed alone since the daemon started, or that were not closed cleanly: the
    /// drives of these may have requests of before.
    pub(crate) crashed: BTreeSet<Subject>,
    pub(crate) claims: Claims,
    /// The claims of a start of the daemon that has not ended.
    pub(crate) starting: BTreeSet<ClaimId>,
    pub(crate) stopping: bool,
    /// Volumes and arrays come to rest, and nothing else is done.
    pub(crate) at_rest: bool,
    /// Attempts that a start has left for what is busy.
    pub(crate) crash_tries: u32,
    /// The program that this process is to become when everything is at rest.
    pub(crate) next_program: Option<PathBuf>,
    /// Whether the end of the daemon does not wait for clients.
    pub(crate) ends_now: bool,
    /// How long a recorded device that is not there is awaited.
    pub(crate) device_wait: Duration,
    /// How long a command waits for another one.
    pub(crate) queue_wait: Duration,
    /// Something was not recorded: told, and tried again.
    pub(crate) is_troubled: bool,
    /// Events since the daemon looked last.
    pub(crate) told: Vec<Event>,
    /// What volumes and arrays were asked for, in the last minute.
    pub(crate) history: History,
    /// What drives said of themselves.
    pub(crate) smart: Arc<Book>,
    /// The scrubs that come by themselves.
    pub(crate) scrubs: ScrubBook,
}

/// Events that are kept until the daemon looks; it does every other second.
const TOLD_MAX: usize = 1000;

impl State {
    /// The state over a registry; nothing is open.
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry,
            live: BTreeMap::new(),
            live_arrays: BTreeMap::new(),
            wanting: Vec::new(),
            unfit_spares: BTreeMap::new(),
            adopted_origins: BTreeSet::new(),
            pulled: BTreeMap::new(),
            fallen: BTreeSet::new(),
            jobs: Jobs::default(),
            crashed: BTreeSet::new(),
            claims: Claims::default(),
            starting: BTreeSet::new(),
            stopping: false,
            at_rest: false,
            crash_tries: 1,
            next_program: None,
            ends_now: false,
            device_wait: Duration::ZERO,
            queue_wait: QUEUE_WAIT,
            is_troubled: false,
            told: Vec::new(),
            history: History::default(),
            smart: Arc::default(),
            scrubs: ScrubBook::default(),
        }
    }

    /// Something has happened that is no condition.
    pub(crate) fn tell(&mut self, kind: &EventKind, name: &str, text: impl Into<String>) {
        self.tell_event(Event::of(kind, name, text));
    }

    /// [`Self::tell`] of an event that is made already.
    pub(crate) fn tell_event(&mut self, event: Event) {
        // Only where nobody looks, as in tests of the service.
        if self.told.len() < TOLD_MAX {
            self.told.push(event);
        }
    }

    /// The record of a volume.
    pub(crate) fn record(&self, name: &VolumeName) -> ControlResult<VolumeRecord> {
        self.registry.find(name).cloned().ok_or_else(|| {
            let known = self.registry.volumes().iter().map(|volume| volume.name.as_str());
            unknown("volume", name.as_str(), known, "create")
        })
    }

    /// The record of a volume that is open, for requests that need the data path.
    pub(crate) fn open_record(&self, name: &VolumeName) -> ControlResult<VolumeRecord> {
        let record = self.record(name)?;
        record.must_not_be_stopped()?;
        match self.live.get(name) {
            Some(live) if live.is_open => Ok(record),
            Some(live) => {
                Err(ControlError::failed(format!("{name} is not served: {}", live.error)))
            }
            None => Err(ControlError::failed(format!("{name} is not served; see daemon.log"))),
        }
    }

    /// The record of an array.
    pub(crate) fn array_record(&self, name: &ArrayName) -> ControlResult<RegisteredArray> {
        self.registry.find_array(name).cloned().ok_or_else(|| {
            let known = self.registry.arrays().iter().map(|array| array.name.as_str());
            unknown("array", name.as_str(), known, "array create")
        })
    }

    /// The size of an array that is open, in bytes.
    pub(crate) fn size_of_array(&self, name: &ArrayName) -> ControlResult<u64> {
        let live = self.live_arrays.get(name);
        live.and_then(|live| live.size_bytes).ok_or_else(|| {
            let why = live.map_or("see daemon.log", |live| live.error.as_str());
            let message = format!("the array {name} is not assembled: {why}");
            match live.is_some_and(|live| live.is_unsupported) {
                true => ControlError::unsupported(message),
                false => ControlError::failed(message),
            }
        })
    }

    /// The record of a pool.
    pub(crate) fn pool_record(&self, pool: &PoolName) -> ControlResult<PoolRecord> {
        self.registry.find_pool(pool).cloned().ok_or_else(|| {
            let known = self.registry.pools().iter().map(|pool| pool.name.as_str());
            unknown("spare pool", pool.as_str(), known, "array spare-pool add")
        })
    }

    /// The absences of all arrays and volumes.
    pub(crate) fn absences(&self) -> impl Iterator<Item = &Absence> + Clone {
        let arrays = self.live_arrays.values().map(|live| &live.absence);
        arrays.chain(self.live.values().map(|live| &live.absence))
    }

    /// Whether the engine has a volume open.
    pub(crate) fn is_open(&self, name: &VolumeName) -> bool {
        self.live.get(name).is_some_and(|live| live.is_open)
    }

    /// The volume that stands on an array, other than the volume `but`.
    pub(crate) fn user_of_array(
        &self,
        name: &ArrayName,
        but: Option<Identity>,
    ) -> Option<VolumeName> {
        let mut others = self.registry.volumes().iter().filter(|volume| Some(volume.uuid) != but);
        let user = others.find(|volume| volume.devices().any(|it| it.array() == Some(name)));
        user.map(|volume| volume.name.clone())
    }

    /// Whether a recorded export could not be opened.
    pub(crate) fn is_closed(&self, name: &VolumeName, export: &ExportSpec) -> bool {
        self.live
            .get(name)
            .is_some_and(|live| live.closed_exports.iter().any(|it| it.export == *export))
    }

    /// Has an error of `show` say that the state folder takes no records, while that is so.
    pub(crate) fn add_trouble(&self, error: &mut String) {
        let Some(trouble) = self.registry.trouble() else { return };
        // An array or a volume that waits for its record says the same.
        if error.is_empty() || *error == trouble.message {
            *error = trouble_line(trouble);
        } else if !error.contains(&trouble.message) {
            *error = format!("{error}; {}", trouble_line(trouble));
        }
    }
}

/// The refusal of a name that is not on record; `verb` makes the first of its kind.
fn unknown<'a>(
    kind: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    verb: &str,
) -> ControlError {
    let names: Vec<&str> = known.collect();
    let hint = match names.is_empty() {
        true => format!("there are none yet: voltier {verb}"),
        false => suggest::hint(name, &names),
    };
    ControlError::failed(format!("no {kind} `{name}`; {hint}"))
}

/// The line for users while the state folder takes no records.
pub(crate) fn trouble_line(trouble: &ControlError) -> String {
    format!("the state folder cannot be written: {trouble}")
}
