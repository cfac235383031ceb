//! The output of `array show --json`. The fields are documented and stable; later versions only add
//! some.

use serde::{Deserialize, Serialize};
use voltier_array::{Consistency, Counts, Integrity, MemberCounts, MergeMode, ScrubFound};
use voltier_block::MeterCounts;

use crate::array_settings::{HealthSettings, MergeSettings, TaskPace};
use crate::date::Date;
use crate::figures::{self, ShownFigure, of_group};
use crate::health_state::HealthSummary;
use crate::name::{ArrayName, PoolName, VolumeName};
use crate::recent::Recent;
use crate::records::{FailedDrive, RegisteredArray};
use crate::smart::{Smart, SpareSmart};
use crate::spec::DeviceSpec;
use crate::status::ByteRange;
use crate::words::as_word;

/// State of an array as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrayState {
    /// Serving, all members in service.
    Running,
    /// Serving with members missing.
    Degraded,
    /// Not assembled yet: a device that is missing is awaited.
    Waiting,
    /// Not served; `error` says why.
    #[default]
    Failed,
    /// Not served yet: a start opens its devices.
    Starting,
    /// At rest, as its user asked, until it is started.
    Stopped,
    /// On record, and no daemon runs.
    #[serde(rename = "not running")]
    NotRunning,
}

/// One place of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlaceStatus {
    /// Number of the place in the array.
    pub index: u32,
    /// The device in it, as the command line named it; empty when it is not known.
    pub path: String,
    /// Identity of the member, 32 hexadecimal digits.
    pub uuid: String,
    /// `online`; `lost` (the array went on without it); `rebuilding`; `absent`; `unknown` while the
    /// array is not assembled.
    pub state: String,
    /// Size of its device, in bytes; 0 when it is not there.
    pub size_bytes: u64,
    /// What is wrong with the device of a lost member, as far as the kernel says so: `write-protected`; absent
    /// when nothing is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
    /// How well its device does.
    #[serde(flatten)]
    pub health: HealthStatus,
    /// What was asked of it in the last seconds; absent while it is not in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
    /// All that was asked of it since it was opened.
    #[serde(skip)]
    pub meter: Option<Box<MeterCounts>>,
    /// What the drives below it say of themselves; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smart: Vec<Smart>,
}

/// A member that was lost and of which nobody has taken note (`voltier health --acknowledge`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDriveStatus {
    /// The device, as the command line named it.
    pub path: String,
    /// Number of its place in the array.
    pub member: u32,
    /// When it was noticed.
    pub since: Date,
}

impl From<&FailedDrive> for FailedDriveStatus {
    fn from(drive: &FailedDrive) -> Self {
        Self { path: drive.device.to_string(), member: drive.member, since: drive.since }
    }
}

/// A part of an array that cannot be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckStatus {
    /// The part of the array.
    #[serde(flatten)]
    pub range: ByteRange,
    /// The devices that lack it.
    pub members: Vec<String>,
}

/// How long something took, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Samples that are remembered: 0 when nothing is known.
    pub samples: u32,
    /// Half of them took no longer, in microseconds.
    pub p50_us: u64,
    /// All but one in a hundred took no longer, in microseconds.
    pub p99_us: u64,
}

/// How well a member's device does, since it came or the array was assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthStatus {
    /// Its figures.
    #[serde(flatten, with = "figures")]
    pub counts: MemberCounts,
    /// Whether `errors_recent` is above `max_errors`, and the array cannot lose the member.
    #[serde(default)]
    pub too_many_errors: bool,
    /// Whether the member is slower than the others.
    #[serde(default)]
    pub slow: bool,
    /// Latency of the member's reads.
    #[serde(default)]
    pub read_latency: LatencyStatus,
    /// Latency of the member's writes.
    #[serde(default)]
    pub write_latency: LatencyStatus,
}

/// When a member has done too badly, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsStatus {
    /// `max_errors`.
    pub max_errors: u32,
    /// `error_window`, in seconds.
    pub error_window_s: u64,
    /// `slow_factor`.
    pub slow_factor: u32,
    /// `slow_window`, in seconds.
    pub slow_window_s: u64,
    /// `slow_action`: `show`, `avoid`, `fail`.
    pub slow_action: String,
    /// `deadline`, in seconds; 0 for none.
    #[serde(default)]
    pub deadline_s: u64,
}

impl Default for LimitsStatus {
    fn default() -> Self {
        HealthSettings::default().into()
    }
}

impl From<HealthSettings> for LimitsStatus {
    fn from(settings: HealthSettings) -> Self {
        Self {
            max_errors: settings.max_errors,
            error_window_s: settings.error_window_s,
            slow_factor: settings.slow_factor,
            slow_window_s: settings.slow_window_s,
            slow_action: settings.slow_action.name().to_owned(),
            deadline_s: settings.deadline_s,
        }
    }
}

/// The device of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// The device, as the command line named it.
    pub path: String,
    /// Identity of the journal, 32 hexadecimal digits; empty while the array is not assembled.
    pub uuid: String,
    /// `online`; `lost` (it was given up, the journal is on the members); `unknown` while the array is not
    /// assembled.
    pub state: String,
    /// Size of the device, in bytes; 0 when it is not there.
    pub size_bytes: u64,
    /// What the drives below it say of themselves; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smart: Vec<Smart>,
}

/// A background task of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Whether the task is at work.
    pub running: bool,
    /// Bytes of members done.
    pub done_bytes: u64,
    /// Bytes of members to do in all.
    pub total_bytes: u64,
    /// Recent rate, in bytes of members.
    pub bytes_per_second: u64,
    /// The time until the task is through at this rate; null while there is no rate.
    pub eta_seconds: Option<u64>,
    /// How fast it goes.
    pub pace: TaskPace,
}

/// The move of an array to more members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshapeDetail {
    /// Members before it.
    pub from_members: u32,
    /// Members after it.
    pub to_members: u32,
    /// The size of the array after it, in bytes.
    pub size_bytes_after: u64,
    /// The reason why the move waits: `members` (missing, or being filled), `resync` (parity is made
    /// anew after a crash), `failed_writes`; null while it goes on.
    pub waits_for: Option<String>,
    /// The error of the last attempt that did not go on; null if it did.
    pub error: Option<String>,
    /// Progress of the move, in bytes of the array. The pace is the rebuild's.
    #[serde(flatten)]
    pub task: TaskStatus,
}

/// A pool of spares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Name.
    pub name: PoolName,
    /// The spares that wait, in the order in which they are taken.
    pub spares: Vec<String>,
    /// The arrays that take from it.
    pub arrays: Vec<ArrayName>,
    /// Spares that an array wanted and could not take, and why: a line each.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// What the drives below its spares say of themselves; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares_smart: Vec<SpareSmart>,
}

/// The end of a scrub that went over everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScrubEnd {
    /// When it ended.
    pub at: Date,
    /// What it found.
    #[serde(with = "figures")]
    pub found: ScrubFound,
}

/// When an array is scrubbed by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubTimes {
    /// How often, in seconds; 0 for never.
    pub every_s: u64,
    /// The last scrub that was complete, if one is known.
    pub last: Option<ScrubEnd>,
    /// When the next one is due; null if none is.
    pub next: Option<Date>,
}

/// Everything about one array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayDetail {
    /// Name.
    pub name: ArrayName,
    /// State.
    pub state: ArrayState,
    /// How well it is, as `voltier health` says it.
    #[serde(default)]
    pub health: HealthSummary,
    /// Level: `0` `1` `10` `5` `6` `7.3` `50` `60` `70`, or `N+M`.
    pub level: String,
    /// Members in a group, for levels in groups; else 0.
    pub group_members: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Protection of parity against a crash: `journal`, `bitmap`, `none`.
    #[serde(with = "as_word")]
    pub consistency: Consistency,
    /// The checksums that the members keep: `none`, `crc32c`.
    #[serde(default, with = "as_word")]
    pub integrity: Integrity,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Identity, 32 hexadecimal digits.
    pub uuid: String,
    /// Places of the array, in their order.
    pub members: Vec<PlaceStatus>,
    /// The device of the journal, if it has one of its own.
    #[serde(default)]
    pub journal_device: Option<JournalStatus>,
    /// Whether members do not answer and none of them is failed: requests wait for them.
    #[serde(default)]
    pub members_awaited: bool,
    /// Devices that wait to replace a lost member.
    #[serde(default)]
    pub spares: Vec<String>,
    /// What the drives below these say of themselves; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares_smart: Vec<SpareSmart>,
    /// The pool whose spares the array may take, if the array has a pool.
    #[serde(default)]
    pub spare_pool: Option<PoolName>,
    /// The spares that wait in that pool.
    #[serde(default)]
    pub pool_spares: Vec<String>,
    /// Members that were lost and of which nobody has taken note, also when another drive has their place; absent
    /// when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_drives: Vec<FailedDriveStatus>,
    /// When a member has done too badly.
    #[serde(default)]
    pub limits: LimitsStatus,
    /// How small writes are merged; `off` for levels that have nothing to gain.
    #[serde(default)]
    pub merge: MergeSettings,
    /// The rebuild.
    #[serde(default)]
    pub rebuild: TaskStatus,
    /// Regions that the rebuild cannot fill, because too much of them cannot be read.
    #[serde(default)]
    pub rebuild_stuck_regions: u64,
    /// The data in these regions; the first of them, neighbours as one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rebuild_stuck: Vec<StuckStatus>,
    /// The move to more members; null if there is none.
    #[serde(default)]
    pub reshape: Option<ReshapeDetail>,
    /// The scrub.
    #[serde(default)]
    pub scrub: TaskStatus,
    /// Findings of the scrub.
    #[serde(default, with = "figures")]
    pub scrub_found: ScrubFound,
    /// The scrubs that come by themselves.
    #[serde(default)]
    pub scrub_times: ScrubTimes,
    /// How many more members may be lost, wherever they are.
    pub may_lose: u32,
    /// Whether nothing is written to the devices, and changes are refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The volume that stands on the array, if a volume does.
    pub used_by: Option<VolumeName>,
    /// Changes of membership on record.
    pub events: u64,
    /// What the array was asked for in the last seconds, and how long it took; absent while it is not assembled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
    /// All that it was asked for since it was assembled.
    #[serde(skip)]
    pub meter: Option<Box<MeterCounts>>,
    /// Counters.
    #[serde(with = "figures")]
    pub counts: Counts,
    /// Devices that were found under other paths than those on record since the daemon started: a line each.
    #[serde(default)]
    pub moved: Vec<String>,
    /// Devices of the record that were not taken into service at the last start, and why.
    pub left_out: Vec<String>,
    /// Devices that are not there and that come into service by themselves when they are.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Seconds until an array that waits is assembled without them; null if it does not wait.
    #[serde(default)]
    pub waits_seconds: Option<u64>,
    /// The command that works on the array now, what that command waits for, and since when; empty when there
    /// is none.
    #[serde(default)]
    pub under_way: String,
    /// The reason why the array failed or waits, or a trouble of the array; empty when nothing is.
    pub error: String,
}

impl ArrayDetail {
    /// Its figures, without those of its members.
    pub fn figures(&self) -> impl Iterator<Item = ShownFigure> {
        of_group("scrub_found", &self.scrub_found).chain(of_group("counts", &self.counts))
    }

    /// The status as far as the record alone tells.
    pub(crate) fn recorded(record: &RegisteredArray) -> Self {
        Self {
            name: record.name.clone(),
            state: if record.stopped { ArrayState::Stopped } else { ArrayState::Failed },
            health: HealthSummary::default(),
            level: record.level.word(),
            group_members: record.level.group().unwrap_or(0) as u32,
            chunk_bytes: record.chunk_bytes,
            consistency: record.consistency,
            integrity: record.integrity,
            size_bytes: record.size_bytes,
            uuid: record.uuid.to_string(),
            members: record.members.iter().enumerate().map(recorded_member).collect(),
            members_awaited: false,
            journal_device: record.journal.as_ref().map(|device| JournalStatus {
                path: device.to_string(),
                uuid: String::new(),
                state: "unknown".to_owned(),
                size_bytes: 0,
                smart: Vec::new(),
            }),
            spares: record.spares.iter().map(ToString::to_string).collect(),
            spares_smart: Vec::new(),
            spare_pool: record.settings.spare_pool.clone(),
            pool_spares: Vec::new(),
            failed_drives: record.failed_drives.iter().map(Into::into).collect(),
            limits: record.settings.health.into(),
            merge: recorded_merge(record),
            rebuild: TaskStatus { pace: record.settings.rebuild, ..TaskStatus::default() },
            rebuild_stuck_regions: 0,
            rebuild_stuck: Vec::new(),
            reshape: None,
            scrub: TaskStatus { pace: record.settings.scrub, ..TaskStatus::default() },
            scrub_found: ScrubFound::default(),
            scrub_times: ScrubTimes { every_s: record.scrub_every_s(), ..ScrubTimes::default() },
            may_lose: 0,
            read_only: record.read_only,
            used_by: None,
            events: 0,
            recent: None,
            meter: None,
            counts: Counts::default(),
            moved: Vec::new(),
            left_out: Vec::new(),
            waits_for: Vec::new(),
            waits_seconds: None,
            under_way: String::new(),
            error: String::new(),
        }
    }
}

fn recorded_merge(record: &RegisteredArray) -> MergeSettings {
    let merge = record.settings.merge;
    let mode = if record.level.0.has_parity() { merge.mode } else { MergeMode::Off };
    MergeSettings { mode, ..merge }
}

fn recorded_member((index, device): (usize, &Option<DeviceSpec>)) -> PlaceStatus {
    PlaceStatus {
        index: index as u32,
        path: device.as_ref().map(ToString::to_string).unwrap_or_default(),
        uuid: String::new(),
        state: "unknown".to_owned(),
        size_bytes: 0,
        trouble: String::new(),
        health: HealthStatus::default(),
        recent: None,
        meter: None,
        smart: Vec::new(),
    }
}
