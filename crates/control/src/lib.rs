//! The control plane: registry, device safety, daemon, control protocol.
//!
//! ```text
//! cli -> client ~ socket ~ server -> Service -> Engine (the data path, on its cores)
//!                                       |
//!                                    Registry, safety
//! ```
//!
//! Nothing here is on the way of an I/O. Read `service` for what is allowed and in which order
//! things are written down, `engine` for what the data path is asked to do.
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `service/mod`, `service/dispatch` | checked, recorded, done, answered; which code answers a request |
//! | `service/state/turn`, `service/state`, `service/state/desk` | the state that commands share, one at a time |
//! | `service/state/claims`, `service/state/errands` | what a command keeps for itself; background jobs |
//! | `service/volumes/commands`, `service/arrays/commands`, `service/volumes/exports` | the commands |
//! | `service/presence/absence`, `service/presence/survey`, `service/presence/late` | drives that are awaited |
//! | `service/presence/label_search`, `service/presence/moved` | arrays whose devices have other paths by now |
//! | `service/presence/pulled`, `service/volumes/lost_ssds` | a volume whose SSD goes away |
//! | `service/volumes/stops`, `ending` | what a stop refuses; what the end of the daemon waits for |
//! | `service/import/mod` | records made anew from what drives say |
//! | `registry/mod`, `registry/body` | the file of records, and its versions |
//! | `safety/mod` | the checks before anything is written to a device |
//! | `engine/mod` | what the data path is asked to do |
//! | `server`, `protocol`, `client` | the control socket, from both sides |
//! | `health`, `service/looks`, `events/mod` | what is wrong; what became of that, kept and delivered |
//! | `smart/mod` | what drives say of themselves, read now and then |
//! | `status`, `array_status`, `figures` | the output of `show`; figures in it |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | turn | the short time in which one command has the state of the service |
//! | claim | the volumes, arrays and devices that a command keeps for itself until it ends |
//! | errand | a background job of the service, with its own claim |
//! | hold-off | how long a volume or an array is not opened because a recorded device is missing |
//! | drive identity | what a drive is known by: WWN, serial number, inode and time of birth |
//! | import | to put on record again what drives say, after the registry was lost |
//! | undrained | of a drive: I/O of a device that was given up is still in flight |

mod array_settings;
mod array_spec;
mod array_status;
mod client;
mod daemon;
mod date;
mod ending;
pub mod engine;
mod error;
mod events;
mod export_access;
mod export_spec;
mod figures;
mod file_lock;
mod front;
mod health;
mod health_state;
mod host;
mod image_report;
mod import_report;
mod interrupt;
mod keys;
pub mod log;
mod max_unshipped;
mod memory;
mod metrics;
mod name;
mod notify;
mod process;
pub mod protocol;
mod recent;
mod records;
mod registry;
mod remote;
pub mod safety;
mod server;
mod service;
mod settings;
mod smart;
mod spec;
mod state_dir;
mod status;
mod suggest;
mod units;
mod upgrade;
mod words;

pub use array_settings::{
    ARRAY_KEYS, ArraySettings, HealthSettings, JOURNAL_KEY, MergeSettings, TaskPace,
};
pub use array_spec::{ARRAY_MEMBERS_MAX, ArrayLevel, parse_chunk_bytes};
pub use array_status::{
    ArrayDetail, ArrayState, FailedDriveStatus, HealthStatus, JournalStatus, LatencyStatus,
    LimitsStatus, PlaceStatus, PoolStatus, ReshapeDetail, ScrubEnd, ScrubTimes, StuckStatus,
    TaskStatus,
};
pub use client::Client;
pub use daemon::{DaemonOptions, run_daemon};
pub use date::Date;
pub use ending::STOP_WAIT_S;
pub use error::{ControlError, ControlResult, ErrorKind};
pub use events::event::{
    ARRAY_NOTICE, Change, DAEMON_CRASHED, DAEMON_STARTED, DAEMON_STOPPED, EVENTS, Event, EventKind,
    LEFT_OUT, REBUILD_BEGUN, REBUILD_ENDED, SCRUB_BEGUN, SCRUB_ENDED, SPARE_USED, Severity,
    TAKEN_OVER, TEST, UPGRADED,
};
pub use events::file::recorded_events;
pub use events::hook::{Hook, HookStatus, HookTarget, HookTest, recorded_hooks};
pub use export_access::{ExportAccess, FileMode};
pub use export_spec::{EXPORT_KINDS, ExportKind, ExportSpec, NBD_PORT, NbdAddress};
pub use figures::{ShownFigure, of_group};
pub use front::{changed_places, front_of, front_refused, seed_of};
pub use health::{CONDITIONS, Check, Condition, Health, Part, UNKNOWN_EXIT_CODE};
pub use health_state::{HealthState, HealthSummary};
pub use host::{part_of, volume_at};
pub use image_report::{ImageReport, ImageUse};
pub use import_report::{ImportOrder, ImportReport, ImportedArray, ImportedVolume};
pub use interrupt::Interrupt;
pub use keys::{Key, keys_help, values_help};
pub use max_unshipped::MaxUnshipped;
pub use memory::{Memory, VolumeMemory};
pub use metrics::{Family, FamilyKind, address::MetricsAddress, families};
pub use name::{ArrayName, NAME_BYTES_MAX, PoolName, VolumeName};
pub use recent::{RECENT_S, Recent, RecentRequests};
pub use records::{
    CacheRecord, Desired, FailedDrive, Identity, LOST_RANGES_MAX, PoolRecord, PoolSpare,
    RegisteredArray, VolumeRecord,
};
pub use registry::{REGISTRY_FILE, REGISTRY_FORMAT, Registry, RegistryStore};
pub use remote::Remote;
pub use service::arrays::scrub_book::SCRUBS_FILE;
pub use service::volumes::show::{recorded_arrays, recorded_volumes};
pub use service::{DEVICE_WAIT_S, Service};
pub use settings::{KEYS, LINE_BYTES, ORIGIN_KEY, SSD_KEY, Settings, parse_line_bytes};
pub use smart::{
    KnownFigures, SMART_INTERVAL, Smart, SmartFigures, SmartInterval, SmartWarning, SpareSmart,
};
pub use spec::{
    ARRAY_KIND, DRIVE_KINDS, DeviceKind, DeviceSpec, ModelBacking, Storage, drive_forms,
};
pub use state_dir::{StateDir, StateLock};
pub use status::{
    ByteRange, DeviceState, DeviceStatus, ExportState, ExportStatus, HitRates, ShippedFlush,
    Tunables, UnshippedStatus, VolumeState, VolumeStatus, unused_tail_text,
};
pub use suggest::nearest;
pub use units::{exact_size, format_size, parse_size, seconds_text, wait_text};
pub use voltier_array::{Consistency, Integrity, ScrubFound};
pub use voltier_block::{Figure, FigureKind, FigureRow, Figures, Unit, Word};
pub use voltier_cache::policy::PolicyKind;
pub use voltier_cache::{Mode, RequestCounts};
pub use words::parse_word;
