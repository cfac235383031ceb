//! The output of `show --json`. The fields are documented and stable; later versions only add some.

use serde::{Deserialize, Serialize};
use voltier_block::MeterCounts;
use voltier_cache::{CacheCounts, DeviceBytes, LineCounts, OriginCounts, RequestCounts};

use crate::export_access::ExportAccess;
use crate::figures::{self, ShownFigure, of_group};
use crate::health_state::HealthSummary;
use crate::name::VolumeName;
use crate::recent::Recent;
use crate::smart::Smart;

/// State of a volume as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Serving, nothing wrong.
    #[default]
    Running,
    /// Writing dirty lines back on the way to a detach or a delete.
    Draining,
    /// Serving without its SSD, or with lost blocks.
    Degraded,
    /// Not served yet: a device that is missing is awaited.
    Waiting,
    /// Not served; `error` says why.
    Failed,
    /// Not served yet: a start opens its devices.
    Starting,
    /// At rest, as its user asked, until it is started.
    Stopped,
    /// On record, and no daemon runs.
    #[serde(rename = "not running")]
    NotRunning,
}

/// State of one device of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// Working.
    Online,
    /// Working: an array that has lost members.
    Degraded,
    /// An SSD that takes no writes: its dirty lines are being written to the origin.
    Evacuating,
    /// A drive that has answered nothing for the deadline, and is waited for.
    Silent,
    /// An HDD that has refused all that is written back for half a minute or longer.
    Refusing,
    /// Not there, and awaited.
    Missing,
    /// Given up after errors, or not to be opened.
    Failed,
    /// Not opened, because the volume is not to be served now.
    Offline,
    /// There is none.
    #[default]
    None,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// As the command line named it, or where it was found since; empty when there is none.
    pub path: String,
    /// The mark that the drive is known by whatever its path is; empty when the drive has no such mark.
    #[serde(default)]
    pub identity: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes at the end of the backing disk that no volume has, because they do not fill a block; absent when
    /// there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unused_tail_bytes: u64,
    /// State.
    pub state: DeviceState,
    /// For how many seconds it has answered nothing, when that is beyond the deadline; else 0. Of an SSD that
    /// was given up for that: how long it had.
    #[serde(default)]
    pub silent_seconds: u64,
    /// Requests of it that have failed since it was opened; absent when there are none, and of an array, which counts
    /// those of each member.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
    /// Errors of it that its user has taken note of (`voltier health --acknowledge`); absent when there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub acknowledged_errors: u64,
    /// What was asked of it in the last seconds; absent while it is not in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
    /// All that was asked of it since it was opened.
    #[serde(skip)]
    pub meter: Option<Box<MeterCounts>>,
    /// What the drives below it say of themselves: one, of LVM or md several; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smart: Vec<Smart>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A line about the end of a backing disk that no volume has.
pub fn unused_tail_text(path: &str, bytes: u64) -> String {
    format!(
        "the last {bytes} bytes of {path} are not part of the volume, because they do not fill a block; \
         make it a multiple of 4096 bytes long if they matter"
    )
}

/// Hit rates, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HitRates {
    /// Of reads.
    pub read: f64,
    /// Of writes.
    pub write: f64,
}

/// One export of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// The word of its kind, as `nbd`.
    pub kind: String,
    /// The address that a client opens.
    pub uri: String,
    /// The state of the export.
    pub state: ExportState,
    /// The reason why the export is not open; empty when the export is.
    #[serde(default)]
    pub error: String,
    /// The users who may open its socket or file, if that is not the user of the daemon alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<ExportAccess>,
    /// Who uses its file or block device now, in words: the first ones. Only of a volume that was asked for by
    /// name; absent when nobody does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
}

/// Whether clients can come through an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportState {
    /// Clients can.
    Open,
    /// The export could not be opened, or does not take clients any more.
    Failed,
    /// The volume is not served.
    Closed,
}

/// Choices of the cache as `voltier set` takes them, beside mode and policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// Admission rule.
    pub admission: String,
    /// Sequential cut-off, a size or `off`.
    pub seq_cutoff: String,
    /// Percent of dirty lines at which destaging works at full rate.
    pub dirty_high: u8,
    /// Percent of dirty lines at and below which destaging rests while clients are busy.
    pub dirty_low: u8,
    /// Time after which what is dirty is destaged, or `off`.
    #[serde(default)]
    pub dirty_age: String,
    /// Bytes a second that are written back at most, a size or `off`.
    #[serde(default)]
    pub destage_rate: String,
    /// Average wait for the SSD that counts as congestion, or `off`.
    #[serde(default)]
    pub congested: String,
    /// Time without an answer after which a drive counts as silent, or `off`.
    #[serde(default)]
    pub deadline: String,
    /// Whether the origin always holds a prefix of the writes.
    pub ordered: bool,
    /// Whether the cache is made anew when the SSD is empty at a start.
    #[serde(default)]
    pub ephemeral_ssd: bool,
    /// What a loss of the SSD may take at most, an age, a size or both; or `off`.
    #[serde(default)]
    pub max_unshipped: String,
}

/// What the disk lacks: a loss of the SSD now would take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnshippedStatus {
    /// Bytes, at most.
    pub bytes: u64,
    /// The age of the oldest acknowledged write among them, at most, in seconds; null if there is none.
    pub age_seconds: Option<f64>,
    /// The age is counted from the start, and the write is older: nobody knows how much.
    pub age_is_minimum: bool,
    /// Writes that wait for the disk now because of `max_unshipped`.
    pub waiting_writes: u64,
    /// For how long some have waited whenever anybody looked; the daemon does every other second.
    #[serde(default)]
    pub writes_wait_seconds: u64,
    /// The newest flush that the disk has, with all before it; null without an order, and before the first.
    pub shipped_flush: Option<ShippedFlush>,
}

/// A flush of a client that the disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedFlush {
    /// The opening of the cache that served it.
    pub generation: u64,
    /// Its number in that opening.
    pub number: u64,
    /// When it was complete, or a little earlier, in milliseconds since 1970; null if that is not known.
    pub unix_ms: Option<u64>,
}

/// A part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// The begin of the range, in bytes.
    pub offset_bytes: u64,
    /// How long it is, in bytes.
    pub length_bytes: u64,
}

/// Everything about one volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Name.
    pub name: VolumeName,
    /// State.
    pub state: VolumeState,
    /// How well it is with the arrays that it stands on, as `voltier health` says it.
    #[serde(default)]
    pub health: HealthSummary,
    /// Whether the volume takes no writes, because its array is only read; absent when it takes some.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Cache mode; `pt` without a cache.
    pub mode: String,
    /// Replacement policy; `none` without a cache.
    pub policy: String,
    /// Bytes in a cache line.
    pub block_size: u32,
    /// The fast side.
    pub ssd: DeviceStatus,
    /// The slow side.
    pub hdd: DeviceStatus,
    /// Cache lines.
    #[serde(with = "figures")]
    pub lines: LineCounts,
    /// What the disk lacks; absent where nothing can be, without an SSD and after its loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unshipped: Option<UnshippedStatus>,
    /// Reads.
    #[serde(with = "figures")]
    pub reads: RequestCounts,
    /// Writes.
    #[serde(with = "figures")]
    pub writes: RequestCounts,
    /// What clients asked for in the last seconds, and how long it took; absent while the volume is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
    /// All that clients have asked for since it was opened.
    #[serde(skip)]
    pub meter: Option<Box<MeterCounts>>,
    /// Hits by lookups.
    pub hit_rate: HitRates,
    /// Bytes moved on the devices.
    #[serde(with = "figures")]
    pub device_bytes: DeviceBytes,
    /// Open exports.
    pub exports: Vec<ExportStatus>,
    /// Identity of the volume, 32 hexadecimal digits.
    pub uuid: String,
    /// Generation of the cache; 0 when there never was one.
    pub generation: u64,
    /// Ranges whose newest data were lost with the SSD, or are damaged on it: how many.
    pub lost_ranges: u64,
    /// Ranges lost with the SSD: the first ones, in order.
    #[serde(default)]
    pub lost: Vec<ByteRange>,
    /// Dirty lines that are damaged on the SSD: the first ranges, in order.
    #[serde(default)]
    pub damaged: Vec<ByteRange>,
    /// How many of `lost_ranges` are in neither list.
    #[serde(default)]
    pub lost_ranges_unlisted: u64,
    /// Further figures of the cache.
    #[serde(flatten, with = "figures")]
    pub counts: CacheCounts,
    /// Figures of the disk.
    #[serde(flatten, with = "figures")]
    pub origin: OriginCounts,
    /// Bytes written to the SSD, by whatever cause, per byte that clients wrote; 0 before the first.
    /// Fills after misses and moved lines are in it.
    pub write_amplification: f64,
    /// State of the destager: `idle`, `running`, `draining`.
    pub destage: String,
    /// Other choices.
    pub tunables: Tunables,
    /// Seconds since the volume was opened.
    pub uptime_seconds: u64,
    /// Devices that are not there and with which it is tried again when they come.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Seconds until a volume that waits is tried without them; null if it does not wait.
    #[serde(default)]
    pub waits_seconds: Option<u64>,
    /// The command that works on the volume now, what that command waits for, and since when; empty when
    /// there is none.
    #[serde(default)]
    pub under_way: String,
    /// What happened at the start that is no trouble; absent when nothing did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The reason why the volume failed or waits, or a trouble of the volume; empty when nothing is.
    pub error: String,
}

impl VolumeStatus {
    /// Its figures.
    pub fn figures(&self) -> impl Iterator<Item = ShownFigure> {
        of_group("lines", &self.lines)
            .chain(of_group("reads", &self.reads))
            .chain(of_group("writes", &self.writes))
            .chain(of_group("device_bytes", &self.device_bytes))
            .chain(of_group("", &self.counts))
            .chain(of_group("", &self.origin))
    }
}
