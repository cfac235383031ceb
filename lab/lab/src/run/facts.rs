//! The machine and its drives, asked and not typed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use voltier_control::VolumeStatus;
use voltier_results::result::Environment;

use crate::LabError;
use crate::machine::Machine;

type Facts = BTreeMap<String, String>;

/// Fact of a target that the run made and removes.
pub(super) const MADE: &str = "made_by_the_run";

/// The facts of a disk in sysfs, and their names in reports.
const DISK: [(&str, &str); 11] = [
    ("device/vendor", "vendor"),
    ("device/model", "model"),
    ("device/serial", "serial"),
    ("serial", "serial"),
    ("device/firmware_rev", "firmware"),
    ("device/rev", "firmware"),
    ("queue/rotational", "rotational"),
    ("queue/write_cache", "write_cache"),
    ("queue/scheduler", "scheduler"),
    ("queue/logical_block_size", "logical_block_bytes"),
    ("queue/nr_requests", "queue_requests"),
];

/// The facts of the link of a PCIe drive in sysfs, and their names in the file of a run.
const LINK: [(&str, &str); 4] = [
    ("current_link_speed", "link_speed"),
    ("current_link_width", "link_width"),
    ("max_link_speed", "max_link_speed"),
    ("max_link_width", "max_link_width"),
];

/// The machine, for the manifest.
pub fn environment(fio: &str) -> Environment {
    let machine = Machine::this();
    let mut facts = Facts::new();
    let mut add = |name: &str, path: &str| {
        facts.extend(read(path).map(|text| (name.to_owned(), text)));
    };
    add("governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    add("huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled");
    add("smt", "/sys/devices/system/cpu/smt/control");
    add("clock", "/sys/devices/system/clocksource/clocksource0/current_clocksource");
    facts.extend(mitigations().map(|text| ("mitigations".to_owned(), text)));
    Environment {
        host: read("/proc/sys/kernel/hostname").unwrap_or_default(),
        cpu: machine.cpu,
        cpus: machine.cpus as u32,
        memory_bytes: machine.memory_bytes,
        kernel: machine.kernel,
        system: machine.system,
        fio: fio.to_owned(),
        facts,
    }
}

/// The mitigations that are on, by the name of what they are against.
fn mitigations() -> Option<String> {
    let folder = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").ok()?;
    let mut on: Vec<String> = folder
        .filter_map(Result::ok)
        .filter(|entry| read(entry.path()).is_some_and(|text| text.starts_with("Mitigation")))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    on.sort();
    Some(if on.is_empty() { "none".to_owned() } else { on.join(", ") })
}

/// A file or a block device: the drive it is or lies on.
pub(super) fn of_path(path: &Path) -> Facts {
    let Ok(meta) = path.metadata() else { return Facts::new() };
    if !meta.file_type().is_block_device() {
        return of_folder(path);
    }
    let mut facts = Facts::from([("device".to_owned(), path.display().to_string())]);
    facts.extend(of_device(meta.rdev()));
    facts
}

/// The facts of the drive under a folder, or under a file in it.
pub(super) fn of_folder(path: &Path) -> Facts {
    let mut facts = Facts::new();
    let Some((file_system, source, options)) = mount_of(path) else { return facts };
    facts.insert("file_system".to_owned(), file_system);
    facts.insert("mounted_from".to_owned(), source);
    facts.insert("mount_options".to_owned(), options);
    if let Ok(meta) = path.metadata() {
        facts.extend(of_device(meta.dev()));
    }
    facts
}

/// A volume of ours: what it is made of.
pub(super) fn of_volume(status: &VolumeStatus) -> Facts {
    let mut facts = Facts::from([
        ("origin".to_owned(), status.hdd.path.clone()),
        ("mode".to_owned(), status.mode.clone()),
    ]);
    if !status.ssd.path.is_empty() {
        facts.insert("ssd".to_owned(), status.ssd.path.clone());
        facts.insert("ssd_bytes".to_owned(), status.ssd.size_bytes.to_string());
        facts.insert("policy".to_owned(), status.policy.clone());
        facts.insert("line_bytes".to_owned(), status.block_size.to_string());
        facts.insert("admission".to_owned(), status.tunables.admission.clone());
        facts.insert("seq_cutoff".to_owned(), status.tunables.seq_cutoff.clone());
    }
    facts
}

/// Serial number of a block device, if the system tells.
pub(super) fn serial(path: &Path) -> Option<String> {
    of_path(path).remove("serial")
}

/// Smallest request that a file or device takes with direct I/O.
pub(super) fn block_bytes(path: &Path) -> u64 {
    let facts = of_path(path);
    facts.get("logical_block_bytes").and_then(|text| text.parse().ok()).unwrap_or(512)
}

/// Free bytes of the file system of a folder.
///
/// # Errors
/// When the system does not tell.
pub(super) fn free_bytes(folder: &Path) -> Result<u64, LabError> {
    let stat = rustix::fs::statvfs(folder)
        .map_err(|errno| LabError::File { path: folder.to_path_buf(), source: errno.into() })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn of_device(number: u64) -> Facts {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let Ok(own) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return Facts::new();
    };
    // Of a partition the disk says more.
    let disk = match own.join("partition").exists() {
        true => own.parent().map_or(own.clone(), PathBuf::from),
        false => own,
    };
    let mut facts = Facts::new();
    for (file, name) in DISK {
        if let Some(text) = read(disk.join(file)) {
            facts.entry(name.to_owned()).or_insert(chosen(&text));
        }
    }
    facts.extend(of_link(&disk));
    facts
}

/// The link of a disk in sysfs: of a PCIe drive its own, of a SATA drive that of its port.
fn of_link(disk: &Path) -> Facts {
    let mut facts = Facts::new();
    for (file, name) in LINK {
        // Of an NVMe drive one folder above its controller.
        let found = [disk.join("device/device"), disk.join("device")];
        let text = found.iter().find_map(|folder| read(folder.join(file)));
        facts.extend(text.map(|text| (name.to_owned(), text)));
    }
    let port = disk.ancestors().find_map(|folder| {
        let number = folder.file_name()?.to_str()?.strip_prefix("ata")?;
        number.parse::<u32>().ok().map(|number| (folder, number))
    });
    let speed = port.and_then(|(folder, number)| {
        let link = format!("link{number}");
        read(folder.join(&link).join("ata_link").join(&link).join("sata_spd"))
    });
    let gigabits = speed.as_deref().and_then(|text| text.strip_suffix(" Gbps"));
    facts.extend(gigabits.map(|gigabits| ("interface".to_owned(), format!("SATA {gigabits}Gb/s"))));
    facts
}

/// "[none] mq-deadline" names the chosen one in brackets.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or_else(|| text.to_owned(), |(chosen, _)| chosen.to_owned())
}

/// Type, source and options of the file system a path lies on.
fn mount_of(path: &Path) -> Option<(String, String, String)> {
    let path = fs::canonicalize(path).ok()?;
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let behind: Vec<&str> = after.split(' ').collect();
        Some((fields.get(4)?.to_string(), fields.get(5)?.to_string(), behind))
    });
    let here = mounts.filter(|(at, ..)| path.starts_with(at));
    let (_, options, behind) = here.max_by_key(|(at, ..)| at.len())?;
    Some((behind.first()?.to_string(), behind.get(1)?.to_string(), options))
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_scheduler_is_the_one_in_brackets() {
        assert_eq!(chosen("[none] mq-deadline"), "none");
        assert_eq!(chosen("mq-deadline [kyber]"), "kyber");
        assert_eq!(chosen("write back"), "write back");
    }

    #[test]
    fn the_link_of_a_drive_has_the_names_that_the_limits_are_asked_by() {
        let sys = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("pci/nvme/nvme0n1/device/device/current_link_speed", "8.0 GT/s PCIe\n");
        put("pci/nvme/nvme0n1/device/device/current_link_width", "4\n");
        put("pci/ata7/link7/ata_link/link7/sata_spd", "6.0 Gbps\n");
        put("pci/ata7/host6/target6:0:0/6:0:0:0/block/sda/size", "1\n");
        let rate = |disk: &str| {
            let facts = of_link(&sys.path().join(disk));
            let target = voltier_results::result::TargetInfo {
                name: "disk".to_owned(),
                facts,
                ..Default::default()
            };
            let mut run = voltier_results::result::Run::default();
            run.manifest.targets = vec![target];
            voltier_results::analysis::limits::link_rate(&run, "disk")
        };
        let pcie = rate("pci/nvme/nvme0n1").unwrap();
        assert!((pcie - 3.938e9).abs() < 1e6, "{pcie}");
        assert_eq!(rate("pci/ata7/host6/target6:0:0/6:0:0:0/block/sda"), Some(6e8));
        assert_eq!(rate("pci"), None);
    }

    #[test]
    fn a_folder_names_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        assert!(of_folder(folder.path()).contains_key("file_system"));
        assert!(free_bytes(folder.path()).unwrap() > 0);
        assert_eq!(environment("fio-3.33").fio, "fio-3.33");
    }
}
