//! The control protocol: one JSON request a line, one JSON answer a line, over the control socket.
//!
//! An answer comes at once. Work that takes long (a drain) answers with a job. The client asks for its
//! progress, and may go away and come back: the job belongs to the daemon.

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use voltier_array::{Consistency, Integrity, ScrubRepair};

use crate::array_spec::ArrayLevel;
use crate::array_status::{ArrayDetail, PoolStatus};
use crate::error::{ControlError, ControlResult};
use crate::events::event::Event;
use crate::events::hook::{HookStatus, HookTarget, HookTest};
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::health::Check;
use crate::image_report::ImageReport;
use crate::import_report::{ImportOrder, ImportReport};
use crate::name::{ArrayName, PoolName, VolumeName};
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::status::VolumeStatus;
use crate::words::as_word;

/// Longest line either side takes: 10,000 volumes of 3 KB fit in 32 MiB, each with what its drives say.
pub const LINE_BYTES_MAX: u64 = 32 << 20;

/// A cache to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCache {
    /// The SSD.
    pub device: DeviceSpec,
    /// Choices.
    pub settings: Settings,
    /// Overwrite what the SSD holds now.
    pub force: bool,
}

/// An array to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewArray {
    /// Name of the new array.
    pub name: ArrayName,
    /// Level.
    pub level: ArrayLevel,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Protection of parity against a crash.
    #[serde(with = "as_word")]
    pub consistency: Consistency,
    /// Devices, in the order of the array.
    pub members: Vec<DeviceSpec>,
    /// Devices that are to wait for a loss.
    #[serde(default)]
    pub spares: Vec<DeviceSpec>,
    /// A device for the journal; on the members without one.
    #[serde(default)]
    pub journal: Option<DeviceSpec>,
    /// Overwrite what they hold now.
    pub force: bool,
}

/// A member, by its device or by its index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberName {
    /// The device.
    Device(DeviceSpec),
    /// The index among the members, from 0: the device may be gone and unknown.
    #[serde(rename = "place")]
    Index(u32),
}

/// The way in which an array grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// A parity row.
    Parity,
    /// A member: of a mirror one more copy.
    Member,
    /// A member more, for capacity.
    Capacity,
}

/// The action of a scrub on blocks that do not match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// The scrub counts them.
    Nothing,
    /// The scrub rewrites blocks that it knows to be wrong: no data in regions written since they matched.
    #[default]
    Located,
    /// The scrub rewrites every located block, whatever was written since.
    RewriteData,
    /// Where the scrub cannot know, it takes the data for right and makes the parity match.
    Everything,
}

impl From<Repair> for ScrubRepair {
    fn from(repair: Repair) -> Self {
        match repair {
            Repair::Nothing => Self::Nothing,
            Repair::Located => Self::Located,
            Repair::RewriteData => Self::RewriteData,
            Repair::Everything => Self::Everything,
        }
    }
}

/// Requests about arrays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrayRequest {
    /// Make an array.
    Create {
        /// Everything about it.
        array: NewArray,
        /// The checksums that the members keep.
        #[serde(with = "as_word")]
        integrity: Integrity,
        /// An export of a volume of the same name on the array, made with it.
        #[serde(default)]
        export: Option<ExportSpec>,
    },
    /// State of one array, or of all.
    Show {
        /// The array; all without a name.
        name: Option<ArrayName>,
        /// The interval of rates and latencies, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over_s: Option<u32>,
    },
    /// Bring an array into service from its members.
    Assemble {
        /// Members, in any order.
        devices: Vec<DeviceSpec>,
        /// Also when some of the newest data may be wrong.
        force: bool,
        /// Write nothing to them, and take no changes.
        #[serde(default)]
        read_only: bool,
    },
    /// Assemble a recorded array now, with the members that are there.
    Start {
        /// The array.
        name: ArrayName,
    },
    /// Bring an array to rest, and leave it so until it is started.
    Stop {
        /// The array.
        name: ArrayName,
    },
    /// Take a member out of service.
    Fail {
        /// The array.
        name: ArrayName,
        /// The member.
        member: MemberName,
    },
    /// Put a device in the place of a member.
    Replace {
        /// The array.
        name: ArrayName,
        /// The member.
        old: MemberName,
        /// The device.
        new: DeviceSpec,
        /// Overwrite what it holds now.
        force: bool,
    },
    /// Give an array a device for the next loss.
    AddSpare {
        /// The array.
        name: ArrayName,
        /// The device.
        spare: DeviceSpec,
        /// Overwrite what it holds now.
        force: bool,
    },
    /// Take a spare back.
    RemoveSpare {
        /// The array.
        name: ArrayName,
        /// The device.
        spare: DeviceSpec,
    },
    /// Add a parity row, or a member for capacity.
    Grow {
        /// The array.
        name: ArrayName,
        /// The way in which the array grows.
        by: Growth,
        /// The devices, one for each group.
        devices: Vec<DeviceSpec>,
        /// Overwrite what they hold now.
        force: bool,
    },
    /// Go on with a rebuild.
    Rebuild {
        /// The array.
        name: ArrayName,
    },
    /// Read everything and hold it against its parity.
    Scrub {
        /// The array.
        name: ArrayName,
        /// The action on blocks that do not match.
        repair: Repair,
    },
    /// Change settings.
    Set {
        /// The array.
        name: ArrayName,
        /// Keys and values, in order.
        changes: Vec<(String, String)>,
    },
    /// Put devices into a pool of spares; one that is not known is made.
    PoolAdd {
        /// The pool.
        pool: PoolName,
        /// The devices.
        devices: Vec<DeviceSpec>,
        /// Overwrite what they hold now, when they are taken.
        force: bool,
    },
    /// Take devices out of a pool of spares.
    PoolRemove {
        /// The pool.
        pool: PoolName,
        /// The devices; without any, the pool itself is forgotten.
        devices: Vec<DeviceSpec>,
    },
    /// Pools of spares.
    PoolShow {
        /// The pool; all without a name.
        pool: Option<PoolName>,
    },
    /// Put the journal on another device, or back on the members.
    SetJournal {
        /// The array.
        name: ArrayName,
        /// The device; on the members without one.
        journal: Option<DeviceSpec>,
        /// Overwrite what it holds now.
        force: bool,
    },
    /// Stop and forget an array.
    Delete {
        /// The array.
        name: ArrayName,
        /// Erase the labels of its members: it can never be assembled again.
        erase: bool,
    },
}

/// Requests about events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum EventsRequest {
    /// The events with higher numbers.
    Show {
        /// The number of the last event that is known already; 0 for all.
        after: u64,
    },
    /// Since when conditions stand.
    Date {
        /// What `health` found.
        checks: Vec<Check>,
    },
    /// How well the daemon does what it does beside volumes and arrays: hooks and metrics.
    OwnChecks,
    /// All hooks.
    Hooks,
    /// Add a hook.
    AddHook {
        /// Who is to be told.
        target: HookTarget,
    },
    /// Remove a hook.
    RemoveHook {
        /// Its number, or what was given when it was added.
        which: String,
    },
    /// Bring a test event to all hooks.
    Test,
}

/// Requests of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Is anybody there?
    Ping,
    /// Make a volume.
    Create {
        /// Name of the new volume.
        name: VolumeName,
        /// The slow side; its data stay in place.
        origin: DeviceSpec,
        /// The fast side.
        cache: Option<NewCache>,
        /// An export that is opened with the volume, or the volume is not made.
        #[serde(default)]
        export: Option<ExportSpec>,
    },
    /// Serve a volume here that another host has, and have the cluster refuse that host.
    TakeOver {
        /// Name of the volume.
        name: VolumeName,
        /// Its image; without it that on record here.
        origin: Option<DeviceSpec>,
        /// The fast side of a volume that is not on record here.
        cache: Option<NewCache>,
        /// An export that is opened with the volume.
        #[serde(default)]
        export: Option<ExportSpec>,
        /// Also from a host that is alive, and what only SSDs have is given up.
        force: bool,
    },
    /// Drain, then forget the volume; the origin is left plain.
    Delete {
        /// The volume.
        name: VolumeName,
        /// Write dirty lines back first; without it they are lost.
        flush: bool,
    },
    /// State of one volume, or of all.
    Show {
        /// The volume; all without a name.
        name: Option<VolumeName>,
        /// The interval of rates and latencies, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over_s: Option<u32>,
    },
    /// Metrics in the text format of Prometheus.
    Metrics,
    /// Take note of drives that have failed, so that `health` speaks of them no more.
    Acknowledge {
        /// The volume or array; all without a name.
        name: Option<String>,
    },
    /// Open a recorded volume now, with the devices that are there.
    Start {
        /// The volume.
        name: VolumeName,
    },
    /// Bring a volume to rest, and leave it so until it is started.
    Stop {
        /// The volume.
        name: VolumeName,
        /// Cut off clients that use it.
        now: bool,
    },
    /// Bring everything to rest, and end the daemon.
    StopDaemon {
        /// Cut off clients that use volumes.
        now: bool,
    },
    /// Pass everything that is open on to another program, which this process becomes.
    Upgrade {
        /// The program.
        program: PathBuf,
        /// The [form](crate::engine::Exports::handover) in which the program takes exports over.
        handover: u32,
    },
    /// Change choices of a cache.
    Set {
        /// The volume.
        name: VolumeName,
        /// Keys and values, in order.
        changes: Vec<(String, String)>,
    },
    /// Write all dirty lines back.
    Flush {
        /// The volume.
        name: VolumeName,
    },
    /// Put a cache in front of a volume that has none.
    Attach {
        /// The volume.
        name: VolumeName,
        /// The fast side.
        cache: NewCache,
    },
    /// Drain, then take the cache away.
    Detach {
        /// The volume.
        name: VolumeName,
        /// Write dirty lines back first; without it they are lost.
        flush: bool,
    },
    /// Open an export.
    Export {
        /// The volume.
        name: VolumeName,
        /// The export.
        export: ExportSpec,
        /// Other hosts may reach it, without a password.
        #[serde(default)]
        insecure: bool,
        /// The users who may open the socket or file; without it the user of the daemon alone.
        #[serde(default)]
        access: Option<ExportAccess>,
    },
    /// Close one export, or all.
    Unexport {
        /// The volume.
        name: VolumeName,
        /// The export; all without one.
        export: Option<ExportSpec>,
        /// Cut off clients that use it.
        #[serde(default)]
        now: bool,
    },
    /// Put volumes and arrays on record again that no registry knows.
    Import {
        /// The devices, and how.
        order: ImportOrder,
    },
    /// Something about arrays.
    Array {
        /// The request.
        ask: ArrayRequest,
    },
    /// Something about events.
    Events {
        /// The request.
        ask: EventsRequest,
    },
    /// How far is a job?
    Job {
        /// The job.
        id: u64,
    },
    /// Give a job up: what is dirty stays dirty. The answer says how far the job is; it ends soon.
    EndJob {
        /// The job.
        id: u64,
    },
}

impl Request {
    /// Whether the request only looks, and waits for no device.
    pub fn is_a_look(&self) -> bool {
        use ArrayRequest as Ask;
        match self {
            Self::Ping | Self::Metrics | Self::Show { .. } | Self::Job { .. } => true,
            Self::Array { ask } => matches!(ask, Ask::Show { .. } | Ask::PoolShow { .. }),
            Self::Events { ask } => ask.is_a_look(),
            _ => false,
        }
    }

    /// The command that the request is for, as a user gives it.
    pub fn command(&self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Create { .. } => "create",
            Self::TakeOver { .. } => "takeover",
            Self::Delete { .. } => "delete",
            Self::Show { .. } => "show",
            Self::Metrics => "metrics",
            Self::Acknowledge { .. } => "health --acknowledge",
            Self::Start { .. } => "start",
            Self::Stop { .. } | Self::StopDaemon { .. } => "stop",
            Self::Upgrade { .. } => "upgrade",
            Self::Set { .. } => "set",
            Self::Flush { .. } => "flush",
            Self::Attach { .. } => "attach",
            Self::Detach { .. } => "detach",
            Self::Export { .. } => "export",
            Self::Unexport { .. } => "unexport",
            Self::Import { .. } => "import",
            Self::Events { .. } => "events",
            Self::Job { .. } => "job status",
            Self::EndJob { .. } => "the end of a job",
            Self::Array { ask } => ask.command(),
        }
    }
}

impl EventsRequest {
    fn is_a_look(&self) -> bool {
        matches!(self, Self::Show { .. } | Self::Date { .. } | Self::OwnChecks | Self::Hooks)
    }
}

impl ArrayRequest {
    /// The command that the request is for, as a user gives it.
    fn command(&self) -> &'static str {
        match self {
            Self::Create { .. } => "array create",
            Self::Show { .. } => "array show",
            Self::Assemble { .. } => "array assemble",
            Self::Start { .. } => "array start",
            Self::Stop { .. } => "array stop",
            Self::Fail { .. } => "array fail",
            Self::Replace { .. } => "array replace",
            Self::AddSpare { .. } => "array add-spare",
            Self::RemoveSpare { .. } => "array remove-spare",
            Self::Grow { .. } => "array grow",
            Self::Rebuild { .. } => "array rebuild",
            Self::Scrub { .. } => "array scrub",
            Self::Set { .. } | Self::SetJournal { .. } => "array set",
            Self::PoolAdd { .. } => "array spare-pool add",
            Self::PoolRemove { .. } => "array spare-pool remove",
            Self::PoolShow { .. } => "array spare-pool show",
            Self::Delete { .. } => "array delete",
        }
    }
}

/// Answers of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Response {
    /// Here, serving.
    Pong {
        /// Process id of the daemon.
        pid: u32,
        /// Version of the daemon.
        version: String,
    },
    /// Done; nothing to say.
    Done,
    /// The daemon comes to rest now, and ends.
    Stopping,
    /// The daemon comes to rest now, and becomes another program. The connection ends then.
    Upgrading,
    /// State of the volume asked for, or changed.
    Volume {
        /// The volume.
        volume: Box<VolumeStatus>,
    },
    /// A volume that was taken over.
    TakenOver {
        /// What came of it.
        taken: Box<TakenVolume>,
    },
    /// State of all volumes.
    Volumes {
        /// In the order of their names.
        volumes: Vec<VolumeStatus>,
    },
    /// Metrics.
    Metrics {
        /// In the text format of Prometheus.
        text: String,
    },
    /// Drives that `health` speaks of no more.
    Acknowledged {
        /// A line for each.
        drives: Vec<String>,
    },
    /// State of the array asked for, or changed.
    Array {
        /// The array.
        array: Box<ArrayDetail>,
        /// Notes for the user about the change: a line each.
        notes: Vec<String>,
    },
    /// State of all arrays.
    Arrays {
        /// In the order of their names.
        arrays: Vec<ArrayDetail>,
    },
    /// State of the pools of spares asked for, or changed.
    Pools {
        /// In the order of their names.
        pools: Vec<PoolStatus>,
        /// Notes for the user about the change: a line each.
        notes: Vec<String>,
    },
    /// Volumes and arrays that were imported, or would be.
    Imported {
        /// The results.
        report: Box<ImportReport>,
    },
    /// Events.
    Events {
        /// In the order of their numbers.
        events: Vec<Event>,
    },
    /// What `health` found, with dates.
    Checks {
        /// As they were asked about, each with since when its condition stands.
        checks: Vec<Check>,
    },
    /// All hooks, or the one that was added or removed.
    Hooks {
        /// In the order of their numbers.
        hooks: Vec<HookStatus>,
    },
    /// What came of a test.
    HookTests {
        /// For each hook.
        tests: Vec<HookTest>,
    },
    /// Work that goes on, or has ended.
    Job {
        /// How far it is.
        job: JobStatus,
    },
    /// Refused or failed; nothing changed.
    Error {
        /// Why.
        error: ControlError,
    },
}

/// A volume that was taken over from another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakenVolume {
    /// Its state here.
    pub volume: VolumeStatus,
    /// The clients that were pushed off, in words.
    pub from: Vec<String>,
    /// What the last owner reported, if it was a Voltier.
    pub report: Option<ImageReport>,
    /// What is lost, in a sentence.
    pub loss: String,
    /// Dirty lines of an older cache that were given up here.
    pub lines_given_up: u64,
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Number to ask with.
    pub id: u64,
    /// `flush`, `detach` or `delete`.
    pub verb: String,
    /// Volume it works on.
    pub volume: VolumeName,
    /// Dirty lines written back so far.
    pub lines_done: u64,
    /// Dirty lines there were, and came since.
    pub lines_total: u64,
    /// Dirty lines that were given up instead.
    #[serde(default)]
    pub lines_given_up: u64,
    /// The state of the job.
    pub state: JobState,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Going on.
    Running,
    /// Ended well.
    Done,
    /// Ended with an error.
    Failed(ControlError),
}

/// Reads one message; `None` when the other side has hung up.
///
/// # Errors
/// When the line is too long, broken off, or no message.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> ControlResult<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)
        .map_err(|error| ControlError::io("reading from the control socket", &error))?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(ControlError::usage("a control message was cut off, or is too long"));
    }
    serde_json::from_slice(&line).map(Some).map_err(|error| {
        ControlError::usage(format!(
            "a control message was not understood ({error}); \
             use the same version of voltier as the daemon"
        ))
    })
}

/// Sends one message.
///
/// # Errors
/// When the other side is gone.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> ControlResult<()> {
    let mut line = serde_json::to_vec(message).expect("messages have only plain values");
    line.push(b'\n');
    to.write_all(&line)
        .and_then(|()| to.flush())
        .map_err(|error| ControlError::io("writing to the control socket", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_through_as_it_was_sent() {
        let request = Request::Set {
            name: "a".parse().unwrap(),
            changes: vec![("mode".into(), "wb".into())],
        };
        let mut wire = Vec::new();
        send(&mut wire, &request).unwrap();
        let mut wire = wire.as_slice();
        assert_eq!(receive::<Request>(&mut wire).unwrap(), Some(request));
        assert_eq!(receive::<Request>(&mut wire).unwrap(), None);
    }

    #[test]
    fn hostile_lines_are_errors_not_panics() {
        for line in [
            "\n",
            "{}\n",
            "{\"op\":\"ping\"",
            "{\"op\":\"fly\"}\n",
            "\u{0}\u{1}\n",
            "{\"op\":\"show\",\"name\":\"../x\"}\n",
            "[[[[[[[[\n",
        ] {
            assert!(receive::<Request>(&mut line.as_bytes()).is_err(), "{line:?}");
        }
    }
}
