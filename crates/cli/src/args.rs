//! The command line as clap sees it. Values are checked later, by the types they become.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use voltier_control::{DEVICE_WAIT_S, STOP_WAIT_S};

use crate::array_args::ArrayArgs;

/// Puts an SSD in front of a slow drive, and serves the fast volume that results.
#[derive(Debug, Parser)]
#[command(name = "voltier", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "DEV, SSD and HDD are a path, mem:SIZE or model:PROFILE[:SIZE], \
    SSD and HDD also array:NAME.\nSizes take K, M, G, T (binary).\n\
    Exit codes: 0 done, 1 failed (of show: something shown has failed), 2 wrong usage.")]
pub(crate) struct Cli {
    /// Folder of the instance: registry, control socket, daemon.pid, default export sockets
    /// [default: /var/lib/voltier for root, else the user's state folder]
    #[arg(long, value_name = "DIR", env = "VOLTIER_STATE", global = true, hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Print state as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a volume: an SSD in front of an HDD, or an HDD alone
    Create(Create),
    /// Write dirty lines back, then forget the volume; the HDD is left plain
    Delete(Leave),
    /// Open a volume that is stopped, waits for a device or failed, now; without a name, start the daemon
    Start(Start),
    /// Stop a volume until it is started; without a name, stop the daemon
    Stop(Stop),
    /// Show state, mode, sizes, hit rates, dirty lines and exports
    Show(Show),
    /// Change a cache while it serves
    Set(Set),
    /// Write all dirty lines back to the HDD
    Flush(Named),
    /// Put an SSD in front of a volume, while clients do I/O
    Attach(Attach),
    /// Write dirty lines back, then take the SSD away, while clients do I/O
    Detach(Leave),
    /// Export a volume: open a way to it
    Export(OpenExport),
    /// Close one export of a volume, or all
    Unexport(Unexport),
    /// Bring back volumes and arrays that the state folder has lost, from what their drives say
    Import(Import),
    /// Make arrays of drives, look at them and change them
    Array(ArrayArgs),
    /// Measure, explain and compare
    Lab,
    /// Serve the state folder in the foreground until SIGTERM or SIGINT
    Daemon(Daemon),
    /// Say whether a drive is Voltier's, for the rules of udev
    #[command(hide = true)]
    Udev(Udev),
    /// Measure an HDD, an SSD and the accelerated volume on modelled drives, and report
    Demo,
}

/// The name of a volume; `-c NAME` is EnhanceIO's spelling.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Name of the volume
    #[arg(value_name = "NAME", required_unless_present = "cache_name")]
    name: Option<String>,
    /// Name of the volume, in EnhanceIO's spelling
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
    /// Replacement policy: lru, fifo, rand, s3fifo [default: lru]
    #[arg(short = 'r', long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Cache mode: wt, wb, ro, wo, pt [default: wt] (EnhanceIO: -m)
    #[arg(short = 't', long, value_name = "MODE", short_alias = 'm')]
    pub(crate) mode: Option<String>,
    /// Bytes in a cache line: 2048, 4096, 8192, 16384, 32768, 65536 [default: 4096]
    #[arg(short = 'b', long, value_name = "SIZE")]
    pub(crate) block_size: Option<String>,
    /// Overwrite what the SSD holds now
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "EnhanceIO's spelling is taken too: \
    voltier create -d HDD -s SSD -p POLICY -m MODE -b SIZE -c NAME.\n\
    When -d names the source, -p is the policy; without -d, -p is the HDD.")]
pub(crate) struct Create {
    /// The fast side; without it the volume has no cache yet
    #[arg(short = 's', long, value_name = "SSD")]
    pub(crate) ssd: Option<String>,
    /// The slow side; its data stay in place (with -d: the replacement policy)
    #[arg(short = 'p', long, value_name = "HDD", required_unless_present = "source")]
    pub(crate) hdd: Option<String>,
    /// The slow side, in EnhanceIO's spelling; -p is the policy then
    #[arg(short = 'd', long, value_name = "HDD")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) choices: CacheChoices,
    #[command(flatten)]
    pub(crate) name: Named,
}

#[derive(Debug, Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    pub(crate) name: Named,
    /// The fast side
    #[arg(short = 's', long, value_name = "SSD")]
    pub(crate) ssd: String,
    #[command(flatten)]
    pub(crate) choices: CacheChoices,
}

#[derive(Debug, Args)]
pub(crate) struct Leave {
    #[command(flatten)]
    pub(crate) name: Named,
    /// Give dirty lines up instead of writing them back: the newest data are lost
    #[arg(long)]
    pub(crate) no_flush: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the volume; without it the daemon starts in the background, if none runs
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the volume, in EnhanceIO's spelling
    #[arg(short = 'c', value_name = "NAME", conflicts_with = "name", hide = true)]
    pub(crate) cache_name: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Dirty lines stay on their SSDs: the next start is warm. A volume that is stopped by name \
    stays stopped\nover restarts; volumes that the end of the daemon stops are served again by the next one."
)]
pub(crate) struct Stop {
    /// Name of the volume; without it everything stops, and the daemon ends
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the volume, in EnhanceIO's spelling
    #[arg(short = 'c', value_name = "NAME", conflicts_with = "name", hide = true)]
    pub(crate) cache_name: Option<String>,
    /// Cut off clients that use it: what they have not written yet is lost
    #[arg(long)]
    pub(crate) now: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Name of the volume; all without it
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the volume, in EnhanceIO's spelling
    #[arg(short = 'c', value_name = "NAME", conflicts_with = "name", hide = true)]
    pub(crate) cache_name: Option<String>,
    /// Show again every second, until interrupted
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Keys: mode=wt|wb|ro|wo|pt, policy=lru|fifo|rand|s3fifo, \
    admission=always|touches:N|learned,\nseq_cutoff=SIZE|off, dirty_high=PERCENT, \
    dirty_low=PERCENT, congested=TIME|off (2ms), deadline=TIME|off (30s),\nordered=on|off.\n\
    Alone, while the volume is not served: hdd=DEV, a drive that holds the data of the HDD.")]
pub(crate) struct Set {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The settings to change
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) changes: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "ADDR is unix:PATH, a path, or tcp:HOST[:PORT]; \
    without it a socket in the state folder.")]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) name: Named,
    /// NBD on a Unix or TCP socket
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "")]
    pub(crate) nbd: Option<String>,
    /// A file that is the volume (FUSE)
    #[arg(long, value_name = "FILE", conflicts_with = "nbd")]
    pub(crate) fuse: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct OpenExport {
    #[command(flatten)]
    pub(crate) export: Export,
    /// Let other hosts reach it: whoever reaches the port reads and writes, without a password
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
    /// Cut off clients that use it: what they have not written yet is lost
    #[arg(long)]
    pub(crate) now: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is formatted. An origin is found by the mark that the SSD has for it.\n\
    Give it as well if it is another drive now. Members of arrays are looked for on all block devices;\n\
    files must be given."
)]
pub(crate) struct Import {
    /// SSDs with caches, members of arrays, origins, in any order
    #[arg(value_name = "DEVICE", required = true)]
    pub(crate) devices: Vec<String>,
    /// Another name than the drives have: of the volume, or of the array if there is no volume
    #[arg(long, value_name = "NEW")]
    pub(crate) name: Option<String>,
    /// The content of the origin counts, though the SSD knows another one: dirty lines come over it
    #[arg(long)]
    pub(crate) changed_origin: bool,
    /// Say what would be imported, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Udev {
    /// The node of the drive
    #[arg(value_name = "DEV")]
    pub(crate) device: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// Threads of the data path [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) cores: Option<u16>,
    /// Seconds that a start waits for devices that are not there; three times as long for arrays that
    /// would have no redundancy left
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VOLTIER_DEVICE_WAIT",
        hide_env_values = true,
        default_value_t = DEVICE_WAIT_S,
        value_parser = clap::value_parser!(u16).range(..=3600)
    )]
    pub(crate) device_wait: u16,
    /// Seconds that SIGTERM and SIGINT wait for clients that use volumes; a second signal ends the wait
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VOLTIER_STOP_WAIT",
        hide_env_values = true,
        default_value_t = STOP_WAIT_S,
        value_parser = clap::value_parser!(u16).range(..=3600)
    )]
    pub(crate) stop_wait: u16,
    /// Leave the terminal; the command line starts the daemon so
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}
