//! The command line as clap sees it. Values are checked later, by the types they become.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;
use voltier_cli::manual::Manual;
use voltier_control::{
    ARRAY_KIND, CONDITIONS, DEVICE_WAIT_S, EVENTS, KEYS, LINE_BYTES, MetricsAddress,
    SMART_INTERVAL, STOP_WAIT_S, Settings, SmartInterval, StateDir, drive_forms, keys_help,
    values_help,
};
use voltier_cores::{BUSY_POLL_US, KEEP_S};

use crate::array_args::ArrayArgs;
use crate::export_args::{self, ExportArg};

/// The heading of the options that every command has.
const COMMON: &str = "Common options";

/// Puts an SSD cache in front of a slower backing disk and serves the result as a fast volume.
#[derive(Debug, Parser)]
#[command(name = "voltier", version, propagate_version = true, max_term_width = 100)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(after_help = format!("DEV, SSD and DISK are {}; \
    SSD and DISK can also be {}.\nSizes take K, M, G, T (powers of 1024).\n\
    Exit codes: 0 success, 1 failure (of show: something is degraded or has failed), 2 wrong usage.",
    drive_forms(), ARRAY_KIND.form))]
pub(crate) struct Cli {
    /// Folder of the instance: registry, control socket, daemon.pid, default export sockets
    /// [default: /var/lib/voltier for root, else the user's state folder]
    #[arg(long, value_name = "DIR", env = StateDir::VARIABLE, global = true, hide_env_values = true)]
    #[arg(help_heading = COMMON)]
    pub(crate) state: Option<PathBuf>,
    /// Print state as JSON
    #[arg(long, global = true, help_heading = COMMON)]
    pub(crate) json: bool,
    /// Print help
    #[arg(short = 'h', long, global = true, action = ArgAction::Help, help_heading = COMMON)]
    help: Option<bool>,
    /// Print version
    #[arg(short = 'V', long, global = true, action = ArgAction::Version, help_heading = COMMON)]
    version: Option<bool>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Create a volume on a backing disk, with or without an SSD as its cache
    Create(Create),
    /// Serve a volume here that another host has: that host is shut out, and what is lost is said
    Takeover(Takeover),
    /// Move a volume on a Ceph RBD image to another host, without loss, by ssh
    Move(Move),
    /// Write dirty lines back and forget the volume; the backing disk keeps all data
    Delete(Leave),
    /// Start a volume that is stopped, waiting or failed; without a name, start the daemon
    Start(Start),
    /// Stop a volume until it is started again; without a name, stop the daemon
    Stop(Stop),
    /// Replace the daemon by this program while clients use volumes: they see a short pause
    Upgrade,
    /// Show state, mode, sizes, hit rates, dirty lines and exports
    #[command(aliases = ["status", "list", "ls", "info"])]
    Show(Show),
    /// Say what is wrong and what to do next, with the exit codes of monitoring plugins
    Health(HealthArgs),
    /// List what happened, and set who is told of it: a command, a mail address, a web hook
    Events(EventsArgs),
    /// Print metrics in the text format of Prometheus, or write them where node_exporter reads them
    Metrics(MetricsArgs),
    /// Change settings of a cache while the volume serves
    Set(Set),
    /// Write all dirty lines back to the backing disk
    Flush(Named),
    /// Add an SSD to a volume while clients use it
    Attach(Attach),
    /// Write dirty lines back and remove the SSD while clients use the volume
    Detach(Leave),
    #[command(about = export_args::about())]
    Export(OpenExport),
    /// Close one or all exports of a volume
    Unexport(Unexport),
    /// Mount the file system of a volume at a folder
    Mount(Mount),
    /// Put an SSD in front of a disk with data, mounted and back at every boot; --undo takes it back
    Setup(Setup),
    /// Check what this machine can do, what is missing, and what to install
    Doctor,
    /// Recover volumes and arrays from their drives when the state folder is lost
    Import(Import),
    /// Create, show and change arrays of drives
    Array(ArrayArgs),
    /// Measure drives and volumes and compare results
    Lab,
    /// Serve the state folder in the foreground until SIGTERM or SIGINT
    Daemon(Daemon),
    /// Print completions for a shell, which loads them from a file
    Completions(Completions),
    /// Write the manual pages, for packages
    #[command(hide = true)]
    Manual(Manual),
    /// Hold what the kernel would end with the daemon: the daemon starts it, with a listening socket
    #[command(hide = true)]
    Keeper(Keeper),
    /// Say whether a drive belongs to Voltier, for the udev rules
    #[command(hide = true)]
    Udev(Udev),
    /// Write what an NVMe drive says of itself: the daemon starts it
    #[command(hide = true)]
    NvmeHealth(Udev),
    /// Measure a disk, an SSD and the cached volume on modelled drives, and write a report
    Demo,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 ok, 1 warning, 2 degraded or failed, 3 unknown. \
    The first line is for a monitoring program.")]
pub(crate) struct HealthArgs {
    /// Volume or array; without it everything
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Also what is well
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Take note of drives that have failed: those that were replaced, and errors of the others so far
    #[arg(long, conflicts_with = "all")]
    pub(crate) acknowledge: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prometheus itself asks the daemon: `voltier daemon --metrics ADDRESS`, or VOLTIER_METRICS in its \
    environment."
)]
pub(crate) struct MetricsArgs {
    /// Put them into this file, whole at any moment: FOLDER/voltier.prom for node_exporter's textfile collector
    #[arg(long, value_name = "PATH")]
    pub(crate) textfile: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = events_help())]
pub(crate) struct EventsArgs {
    /// Volume, array or pool; without it everything
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Only what is younger: 90s, 5m, 2h, 7d, or a time of UTC as 2026-11-29T11:20:20Z
    #[arg(long, value_name = "TIME|AGE")]
    pub(crate) since: Option<String>,
    /// Go on with what happens from now on, until interrupted
    #[arg(long, short = 'f')]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) change: HookChange,
}

/// What is to become of the hooks.
#[derive(Debug, Args)]
#[group(multiple = false, conflicts_with_all = ["name", "since", "follow"])]
pub(crate) struct HookChange {
    /// Run a command of the shell for each event
    #[arg(long, value_name = "COMMAND")]
    pub(crate) hook: Option<String>,
    /// Send a mail for each event, by the program sendmail
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) mail: Option<String>,
    /// Post each event to a URL as JSON, by the program curl
    #[arg(long, value_name = "URL")]
    pub(crate) webhook: Option<String>,
    /// List commands, addresses and URLs, and how they do
    #[arg(long)]
    pub(crate) hooks: bool,
    /// Remove one of them, by its number or as it was given
    #[arg(long, value_name = "N")]
    pub(crate) remove: Option<String>,
    /// Send a test event to all of them, and say what came of each
    #[arg(long)]
    pub(crate) test: bool,
}

/// The name of a volume; `-c NAME` is EnhanceIO's spelling.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Name of the volume
    #[arg(value_name = "NAME", required_unless_present = "cache_name")]
    name: Option<String>,
    /// Name of the volume (EnhanceIO spelling)
    #[arg(
        short = 'c',
        value_name = "NAME",
        conflicts_with = "name",
        id = "cache_name",
        hide = true
    )]
    cache_name: Option<String>,
}

impl Named {
    pub(crate) fn text(&self) -> &str {
        self.name.as_deref().or(self.cache_name.as_deref()).unwrap_or_default()
    }
}

/// Choices about a cache when it is made.
#[derive(Debug, Args)]
pub(crate) struct CacheChoices {
    #[arg(short = 'r', long, value_name = "POLICY", help = policies())]
    pub(crate) policy: Option<String>,
    #[arg(short = 't', long, value_name = "MODE", short_alias = 'm', help = modes())]
    pub(crate) mode: Option<String>,
    #[arg(short = 'b', long, value_name = "SIZE", help = line_sizes())]
    pub(crate) block_size: Option<String>,
    /// Use the SSD even if it is not empty, and overwrite what it holds
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// The SSD may be empty, another one or missing at any start (clouds): its cache is made anew. Not in
    /// the modes wb and wo
    #[arg(long)]
    pub(crate) ephemeral_ssd: bool,
    /// Set more, as `voltier set` does: ordered=on, max_unshipped=5s
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) more: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "EnhanceIO's spelling works too: \
    voltier create -d DISK -s SSD -p POLICY -m MODE -b SIZE -c NAME.\n\
    With -d, -p is the replacement policy; without -d, -p is the backing disk.")]
pub(crate) struct Create {
    /// SSD for the cache; without it the volume has no cache
    #[arg(short = 's', long, value_name = "SSD")]
    pub(crate) ssd: Option<String>,
    /// Backing disk; its data stay in place (with -d: the replacement policy)
    #[arg(short = 'p', long, value_name = "DISK", required_unless_present_any = ["source", "plain"])]
    pub(crate) hdd: Option<String>,
    /// Backing disk, in EnhanceIO's spelling; -p is then the policy
    #[arg(short = 'd', long, value_name = "DISK")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) choices: CacheChoices,
    #[command(flatten)]
    pub(crate) export: NewExport,
    #[command(flatten)]
    pub(crate) name: Named,
    /// A disk and an SSD without their options, which are refused: nobody knows which is which
    #[arg(hide = true, num_args = 0..=2)]
    pub(crate) plain: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The disk is a Ceph RBD image, rbd:POOL/IMAGE: its cluster carries out nothing more of the host \
    that has it. Of a volume that is on record here, which another host took, NAME alone is enough."
)]
pub(crate) struct Takeover {
    /// Name of the volume here
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The image; what it holds is the volume
    #[arg(short = 'p', long, value_name = "IMAGE")]
    pub(crate) hdd: Option<String>,
    /// SSD of this host for a new cache; without it the volume has no cache
    #[arg(short = 's', long, value_name = "SSD", requires = "hdd")]
    pub(crate) ssd: Option<String>,
    #[command(flatten)]
    pub(crate) choices: CacheChoices,
    #[command(flatten)]
    pub(crate) export: NewExport,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Everything is written back, the volume is deleted here and made there with the same settings. \
    HOST is reached with `ssh HOST voltier ...`; VOLTIER_RSH names another program than ssh. Nobody may use the \
    volume meanwhile."
)]
pub(crate) struct Move {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The other host, as ssh knows it
    #[arg(value_name = "HOST")]
    pub(crate) host: String,
    /// SSD of that host for a new cache; without it the volume has no cache there
    #[arg(short = 's', long, value_name = "SSD")]
    pub(crate) ssd: Option<String>,
    /// Use that SSD even if it is not empty, and overwrite what it holds
    #[arg(short = 'f', long, requires = "ssd")]
    pub(crate) force: bool,
    /// How the volume is reached there, as of `create`
    #[arg(long, value_name = "KIND")]
    pub(crate) export: Option<String>,
}

/// How a new volume is reached.
#[derive(Debug, Args)]
pub(crate) struct NewExport {
    #[arg(
        long = "export",
        value_name = "KIND",
        env = "VOLTIER_EXPORT",
        hide_env_values = true,
        help = export_args::help_of_new()
    )]
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    pub(crate) name: Named,
    /// SSD for the cache
    #[arg(short = 's', long, value_name = "SSD")]
    pub(crate) ssd: String,
    #[command(flatten)]
    pub(crate) choices: CacheChoices,
}

#[derive(Debug, Args)]
pub(crate) struct Leave {
    #[command(flatten)]
    pub(crate) name: Named,
    /// Discard dirty lines instead of writing them back: the newest data are lost
    #[arg(long)]
    pub(crate) no_flush: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the volume; without it, start the daemon in the background if none runs
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the volume (EnhanceIO spelling)
    #[arg(short = 'c', value_name = "NAME", conflicts_with = "name", hide = true)]
    pub(crate) cache_name: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Dirty lines stay on their SSDs, and the cache is warm at the next start. A volume stopped \
    by name stays stopped until `voltier start NAME`; volumes that stop with the daemon start again with it."
)]
pub(crate) struct Stop {
    /// Name of the volume; without it, stop all volumes and the daemon
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the volume (EnhanceIO spelling)
    #[arg(short = 'c', value_name = "NAME", conflicts_with = "name", hide = true)]
    pub(crate) cache_name: Option<String>,
    /// Disconnect clients that are using it; what they have not written yet is lost
    #[arg(long)]
    pub(crate) now: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Name of the volume; without it, all volumes
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the volume (EnhanceIO spelling)
    #[arg(short = 'c', value_name = "NAME", conflicts_with = "name", hide = true)]
    pub(crate) cache_name: Option<String>,
    /// Repeat every second until interrupted
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
#[command(after_help = keys())]
pub(crate) struct Set {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Settings to change
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) changes: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = export_args::values_help())]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) name: Named,
    #[command(flatten)]
    pub(crate) at: ExportArg,
}

#[derive(Debug, Args)]
pub(crate) struct OpenExport {
    #[command(flatten)]
    pub(crate) export: Export,
    /// Allow access from other hosts; anyone who reaches the port can read and write, without a password
    #[arg(long, requires = "nbd")]
    pub(crate) insecure: bool,
    /// Permissions of the socket or file [default: 0600, with --group 0660]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// User that owns the socket or file, by name or number [default: the user of the daemon]
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Group of the socket or file, by name or number [default: the group of the daemon]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Unexport {
    #[command(flatten)]
    pub(crate) export: Export,
    /// Disconnect clients that are using it; what they have not written yet is lost
    #[arg(long)]
    pub(crate) now: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The data stay in place. The plan: install the systemd unit and the udev rules if they are \
    missing, unmount the disk, make the volume, give its line in /etc/fstab to the volume, mount it, copy the \
    registry to /var/backups. If a step fails, those before it are taken back."
)]
pub(crate) struct Setup {
    /// SSD for the cache
    #[arg(value_name = "SSD", required_unless_present = "undo")]
    pub(crate) ssd: Option<String>,
    /// Disk with a file system
    #[arg(value_name = "DISK", required_unless_present = "undo")]
    pub(crate) disk: Option<PathBuf>,
    /// Where the file system is mounted [default: where it is now, or by /etc/fstab]
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) folder: Option<PathBuf>,
    /// Name of the volume [default: the last part of MOUNTPOINT]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[arg(short = 't', long, value_name = "MODE", help = modes())]
    pub(crate) mode: Option<String>,
    /// Use the SSD even if it is not empty, and overwrite what it holds
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Print the plan and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Take the setup of this volume back: write everything to the disk, and mount the disk as before
    #[arg(long, value_name = "NAME", conflicts_with_all = ["ssd", "name", "mode", "force"])]
    pub(crate) undo: Option<String>,
    /// Folder in the place of /etc
    #[arg(long, value_name = "DIR", default_value = "/etc", hide = true)]
    pub(crate) etc: PathBuf,
    /// Folder in the place of /var/backups
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) backups: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// An empty folder
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Options of mount(8), as noatime
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Make an empty file system of this type first; refused if the volume holds anything
    #[arg(long, value_name = "TYPE")]
    pub(crate) mkfs: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is formatted. A backing disk is found by its identity (WWN or serial number), which \
    the SSD knows; give it as well if the SSD may have dirty lines, or if it is now another drive. A drive that \
    is given is used, or refused, and no other one instead. Members of arrays are searched on all \
    block devices; files must be given."
)]
pub(crate) struct Import {
    /// SSDs with caches, members of arrays and backing disks, in any order
    #[arg(value_name = "DEVICE", required = true)]
    pub(crate) devices: Vec<String>,
    /// A new name for the volume, or for the array if there is no volume
    #[arg(long, value_name = "NEW")]
    pub(crate) name: Option<String>,
    /// Accept a backing disk that was changed or replaced: dirty lines are written over its content
    #[arg(long)]
    pub(crate) changed_origin: bool,
    /// Show what would be imported without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "bash: voltier completions bash >~/.local/share/bash-completion/completions/voltier\n\
    fish: voltier completions fish >~/.config/fish/completions/voltier.fish\n\
    zsh: voltier completions zsh >DIR/_voltier, where DIR is a folder of $fpath\n\
    The packages have them. The verbs of `voltier lab` are completed if voltier-lab is installed."
)]
pub(crate) struct Completions {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Udev {
    /// The node of the drive
    #[arg(value_name = "DEV")]
    pub(crate) device: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Keeper {
    /// Seconds for which block devices and FUSE files wait for a new daemon when this one is killed
    #[arg(
        long = "keep",
        value_name = "SECONDS",
        env = "VOLTIER_KEEP",
        hide_env_values = true,
        default_value_t = KEEP_S,
        value_parser = clap::value_parser!(u16).range(1..=3600)
    )]
    pub(crate) patience_s: u16,
}

#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// Number of data path threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) cores: Option<u16>,
    /// Seconds to wait for missing devices at a start; three times as long for arrays that would have
    /// no redundancy left
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VOLTIER_DEVICE_WAIT",
        hide_env_values = true,
        default_value_t = DEVICE_WAIT_S,
        value_parser = clap::value_parser!(u16).range(..=3600)
    )]
    pub(crate) device_wait: u16,
    /// Seconds to wait for clients after SIGTERM or SIGINT; a second signal ends the wait
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VOLTIER_STOP_WAIT",
        hide_env_values = true,
        default_value_t = STOP_WAIT_S,
        value_parser = clap::value_parser!(u16).range(..=3600)
    )]
    pub(crate) stop_wait: u16,
    /// Microseconds for which a data path thread looks for requests before it sleeps, while they come as quickly;
    /// 0 saves the processor time, and a lone request waits for a wake-up
    #[arg(
        long,
        value_name = "MICROSECONDS",
        env = "VOLTIER_BUSY_POLL",
        hide_env_values = true,
        default_value_t = BUSY_POLL_US,
        value_parser = clap::value_parser!(u16).range(..=1000)
    )]
    pub(crate) busy_poll: u16,
    /// Answer Prometheus at a port of this machine alone, 127.0.0.1:9810 as an example, or at unix:PATH
    #[arg(long, value_name = "ADDRESS", env = "VOLTIER_METRICS", hide_env_values = true)]
    pub(crate) metrics: Option<MetricsAddress>,
    /// How often drives are asked for their health (SMART): a time from 1s to 1d, or off
    #[arg(
        long,
        value_name = "INTERVAL|off",
        env = "VOLTIER_SMART",
        hide_env_values = true,
        default_value_t = SMART_INTERVAL
    )]
    pub(crate) smart: SmartInterval,
    #[command(flatten)]
    pub(crate) keeper: Keeper,
    /// Detach from the terminal
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

fn events_help() -> String {
    let words = |words: Vec<&str>| words.join(", ");
    let kinds = words(EVENTS.iter().map(|it| it.word).collect());
    let conditions = words(CONDITIONS.iter().map(|it| it.word).collect());
    format!(
        "A command has the event as JSON on standard input, and in VOLTIER_EVENT_KIND, _CHANGE, _SEVERITY, _PART, \
         _NAME, _OF, _TEXT, _NEXT, _TIME and _SEQ. \
         What fails is tried again, and `voltier health` says so.\n\
         Kinds of events: {kinds}.\n\
         Conditions of `voltier health`, which begin, change and end: {conditions}."
    )
}

fn policies() -> String {
    format!("Replacement policy: {}", values_help(KEYS, "policy"))
}

fn modes() -> String {
    format!("Cache mode: {} (EnhanceIO: -m)", values_help(KEYS, "mode"))
}

fn line_sizes() -> String {
    let default = Settings::default().line_bytes;
    let sizes = LINE_BYTES.map(|bytes| bytes.to_string()).join(", ");
    format!("Bytes per cache line: {sizes} [default: {default}]")
}

fn keys() -> String {
    format!(
        "Keys:{}\nAlone, and only while the volume is not served: hdd=DEV, a drive with the data of the backing \
         disk; ssd=DEV, a copy of the SSD, for example on a larger one.",
        keys_help(KEYS)
    )
}
