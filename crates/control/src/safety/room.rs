//! The memory and the file descriptors that are left for this process: asked for before a volume or an array
//! takes its share.
//!
//! The kernel gives the pages of a large structure when they are first written to. So what was promised to a
//! volume and not touched yet is not missing in the kernel's figures, and is taken off here.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, getrlimit};

use super::machine::Machine;
use crate::error::{ControlError, ControlResult};
use crate::units::format_size;

/// Descriptors that are left for clients and control connections when drives have theirs.
const DESCRIPTORS_KEPT: u64 = 32;

/// What limits the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Limit {
    /// The memory of the machine.
    Machine,
    /// A control group.
    Group(String),
    /// The address space of the process.
    AddressSpace,
}

impl fmt::Display for Limit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => write!(out, "MemAvailable in /proc/meminfo"),
            Self::Group(path) => write!(out, "memory limit of the control group {path}"),
            Self::AddressSpace => write!(out, "RLIMIT_AS, see `ulimit -v`"),
        }
    }
}

/// The memory and descriptors that are left at some moment.
#[derive(Clone, Debug)]
pub struct Room {
    limits: Vec<(Limit, u64)>,
    /// Memory that the process has touched, in bytes.
    touched_bytes: u64,
    descriptors_left: u64,
    descriptors_max: u64,
}

/// Too little memory is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    needed_bytes: u64,
    left_bytes: u64,
    limit: Limit,
}

impl Shortage {
    /// The bytes that are left.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [needed, left] = [self.needed_bytes, self.left_bytes].map(format_size);
        write!(out, "needs {needed} of memory, and {left} are left ({})", self.limit)
    }
}

impl Room {
    /// What is left now.
    pub fn now(machine: &Machine) -> Self {
        let mut limits = Vec::new();
        limits.extend(available(machine).map(|bytes| (Limit::Machine, bytes)));
        limits.extend(groups(machine));
        let mapped = kib_of(&machine.proc.join("self/status"), "VmSize:");
        if let (Some(most), Some(mapped)) = (getrlimit(Resource::As).current, mapped) {
            limits.push((Limit::AddressSpace, most.saturating_sub(mapped)));
        }
        let descriptors_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = fs::read_dir(machine.proc.join("self/fd")).map_or(0, Iterator::count) as u64;
        Self {
            limits,
            touched_bytes: touched(machine),
            descriptors_left: descriptors_max.saturating_sub(open),
            descriptors_max,
        }
    }

    /// Whether so many devices can be opened.
    ///
    /// # Errors
    /// One line for the user.
    pub fn has_descriptors(&self, devices: usize) -> ControlResult<()> {
        let needed = (devices as u64).saturating_add(DESCRIPTORS_KEPT);
        if devices == 0 || needed <= self.descriptors_left {
            return Ok(());
        }
        Err(ControlError::not_now(format!(
            "opening {devices} devices needs {needed} file descriptors with those for clients, and {} of {} \
             are left (RLIMIT_NOFILE); raise it with LimitNOFILE= in the unit or `ulimit -Hn`, and start the \
             daemon again",
            self.descriptors_left, self.descriptors_max
        )))
    }

    /// The tightest limit and what it leaves, with so many bytes promised and not touched yet.
    fn tightest(&self, untouched: u64) -> Option<(Limit, u64)> {
        let left = |(limit, bytes): &(Limit, u64)| match limit {
            // What is mapped counts, touched or not.
            Limit::AddressSpace => (limit.clone(), *bytes),
            Limit::Machine | Limit::Group(_) => (limit.clone(), bytes.saturating_sub(untouched)),
        };
        self.limits.iter().map(left).min_by_key(|(_, bytes)| *bytes)
    }
}

/// The memory promised to all volumes and arrays of the process.
#[derive(Debug)]
pub struct Promises {
    total_bytes: Mutex<u64>,
    /// Memory that the process had touched before it had any volume.
    own_bytes: u64,
}

impl Promises {
    /// Nothing is promised yet.
    pub fn new(machine: &Machine) -> Arc<Self> {
        Arc::new(Self { total_bytes: Mutex::new(0), own_bytes: touched(machine) })
    }

    /// Promises memory, if there is so much in `room`.
    ///
    /// # Errors
    /// How much is left, and by what limit.
    pub fn promise(self: &Arc<Self>, bytes: u64, room: &Room) -> Result<Promise, Shortage> {
        let mut total = self.total_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let touched = room.touched_bytes.saturating_sub(self.own_bytes);
        if let Some((limit, left_bytes)) = room.tightest(total.saturating_sub(touched))
            && left_bytes < bytes
        {
            return Err(Shortage { needed_bytes: bytes, left_bytes, limit });
        }
        *total += bytes;
        Ok(Promise { promises: self.clone(), bytes })
    }
}

/// Memory of one volume or array, until dropped.
#[derive(Debug)]
pub struct Promise {
    promises: Arc<Promises>,
    bytes: u64,
}

impl Promise {
    /// It needs as much as this now.
    pub fn change(&mut self, bytes: u64) {
        let mut total = self.promises.total_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *total = total.saturating_sub(self.bytes).saturating_add(bytes);
        self.bytes = bytes;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.change(0);
    }
}

/// The memory that the machine could give without swapping, in bytes.
fn available(machine: &Machine) -> Option<u64> {
    kib_of(&machine.proc.join("meminfo"), "MemAvailable:")
}

/// Memory of the process that is no page of a file, in bytes.
fn touched(machine: &Machine) -> u64 {
    kib_of(&machine.proc.join("self/status"), "RssAnon:").unwrap_or(0)
}

/// The bytes in a line of KiB.
fn kib_of(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
}

/// The number with which a file begins; none of `max`.
fn first_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

/// The number behind a key of a file with one on each line.
fn number_of(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(' '));
    fields.find(|(name, _)| *name == key)?.1.trim().parse().ok()
}

/// What is left in the control groups of this process, of either version.
fn groups(machine: &Machine) -> Vec<(Limit, u64)> {
    let table = fs::read_to_string(machine.proc.join("self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in table.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let is_first = controllers.split(',').any(|name| name == "memory");
        if !is_first && !controllers.is_empty() {
            continue;
        }
        let (mount, files) = match is_first {
            true => ("fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
            false => ("fs/cgroup", ["memory.max", "memory.current"]),
        };
        // A group is held to the limits of those it is in.
        for group in Path::new(path).ancestors() {
            let inner = group.strip_prefix("/").unwrap_or(group);
            let folder = machine.sys.join(mount).join(inner);
            let [most, used] = files.map(|name| first_number(&folder.join(name)));
            let (Some(most), Some(used)) = (most, used) else { continue };
            let freed = ["active_file", "inactive_file", "slab_reclaimable"];
            let stat = folder.join("memory.stat");
            let freed: u64 = freed.iter().filter_map(|key| number_of(&stat, key)).sum();
            let left = most.saturating_sub(used.saturating_sub(freed));
            found.push((Limit::Group(group.display().to_string()), left));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with 1 GiB left, and this process in a group within a group.
    fn machine(dir: &Path) -> Machine {
        let machine = Machine::of_tables(dir.join("proc"), dir.join("sys"));
        fs::create_dir_all(dir.join("proc/self/fd")).unwrap();
        fs::write(dir.join("proc/meminfo"), "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
            .unwrap();
        fs::write(dir.join("proc/self/status"), "VmRSS:\t 300 kB\nRssAnon:\t 200 kB\n").unwrap();
        fs::write(dir.join("proc/self/cgroup"), "1:cpu:/\n0::/a.slice/v.service\n").unwrap();
        let group = dir.join("sys/fs/cgroup/a.slice/v.service");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(group.join("memory.current"), "5\n").unwrap();
        machine
    }

    fn set_group_limit(dir: &Path, most: u64) {
        let group = dir.join("sys/fs/cgroup/a.slice");
        fs::write(group.join("memory.max"), format!("{most}\n")).unwrap();
        fs::write(group.join("memory.current"), "1000\n").unwrap();
        let stat = "anon 200\nactive_file 500\ninactive_file 100\nslab_reclaimable 50\n";
        fs::write(group.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn the_tightest_limit_counts_and_what_the_kernel_can_take_back_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let promises = Promises::new(&machine);
        let ask = |bytes| promises.promise(bytes, &Room::now(&machine)).map(drop);
        assert_eq!(ask(1 << 30), Ok(()));
        let shortage = ask((1 << 30) + 1).unwrap_err();
        assert_eq!((shortage.left_bytes(), &shortage.limit), (1 << 30, &Limit::Machine));
        set_group_limit(dir.path(), 10_000);
        let shortage = ask(1 << 30).unwrap_err();
        let words =
            "needs 1G of memory, and 9.4K are left (memory limit of the control group /a.slice)";
        assert_eq!((shortage.left_bytes(), shortage.to_string().as_str()), (9650, words));
        assert_eq!(ask(9650), Ok(()));
    }

    #[test]
    fn what_is_promised_and_not_touched_yet_is_not_promised_twice() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let promises = Promises::new(&machine);
        let half = 1 << 29;
        let mut first = promises.promise(half, &Room::now(&machine)).unwrap();
        let second = promises.promise(half, &Room::now(&machine)).unwrap();
        assert!(promises.promise(1, &Room::now(&machine)).is_err());
        // The first volume uses a quarter of a gigabyte now, which the kernel counts.
        fs::write(dir.path().join("proc/self/status"), "RssAnon:\t 262344 kB\n").unwrap();
        fs::write(dir.path().join("proc/meminfo"), "MemAvailable: 786432 kB\n").unwrap();
        assert!(promises.promise(1, &Room::now(&machine)).is_err());
        drop(second);
        assert!(promises.promise(half, &Room::now(&machine)).is_ok());
        first.change(half + 1);
        assert!(promises.promise(half, &Room::now(&machine)).is_err());
    }

    #[test]
    fn descriptors_for_clients_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room { descriptors_left: 40, ..Room::now(&machine(dir.path())) };
        assert!(room.has_descriptors(8).is_ok());
        let error = room.has_descriptors(9).unwrap_err();
        assert!(error.message.contains("needs 41 file descriptors"), "{error}");
    }
}
