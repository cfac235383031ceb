//! The users of a device now, as `/proc` and `/sys` tell.

use std::path::Path;

use super::finding::Finding;
use super::identity::DeviceId;
use super::machine::{Machine, names};

/// Everything that uses the device now.
pub(super) fn findings(machine: &Machine, id: &DeviceId) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(number) = id.block_number() {
        found.extend(of_block(machine, number));
        for (name, number) in machine.partitions(number.0, number.1) {
            let inner = of_block(machine, number);
            found.extend(inner.first().map(|f| Finding::PartitionInUse(format!("{name} {f}"))));
        }
    }
    if let Some(number) = id.file_number()
        && let Some(name) = machine.loop_over(number)
    {
        found.push(Finding::Held(format!("/dev/{name}")));
    }
    if is_swap(machine, id) {
        found.push(Finding::Swap);
    }
    found
}

/// Whether the kernel swaps to a block device or a file.
fn is_swap(machine: &Machine, id: &DeviceId) -> bool {
    let is_it =
        |path: &Path| path.metadata().is_ok_and(|meta| DeviceId::of(machine, &meta).overlaps(id));
    machine.swaps().iter().any(|path| is_it(path))
}

fn of_block(machine: &Machine, number: (u32, u32)) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        machine.mount_point(number).map(Finding::Mounted).into_iter().collect();
    let holders = names(&machine.block_dir(number.0, number.1).join("holders"));
    found.extend(holders.first().map(|name| Finding::Held(format!("/dev/{name}"))));
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A machine with sda (partition sda1 mounted), sdb held by dm-0, sdc idle.
    fn machine(dir: &Path) -> Machine {
        let machine = Machine::of_tables(dir.join("proc"), dir.join("sys"));
        let block = dir.join("sys/dev/block");
        let disk = dir.join("sys/devices/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::write(disk.join("dev"), "8:0\n").unwrap();
        fs::write(disk.join("sda1/dev"), "8:1\n").unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        fs::create_dir_all(dir.join("sys/devices/sdb/holders/dm-0")).unwrap();
        fs::create_dir_all(dir.join("sys/devices/sdc/holders")).unwrap();
        fs::create_dir_all(&block).unwrap();
        for (number, path) in
            [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:16", "sdb"), ("8:32", "sdc")]
        {
            let target = dir.join("sys/devices").join(path);
            std::os::unix::fs::symlink(target, block.join(number)).unwrap();
        }
        fs::create_dir_all(dir.join("proc/self")).unwrap();
        let mounts = "36 35 8:1 / /mnt/my\\040data rw - ext4 /dev/sda1 rw\n";
        fs::write(dir.join("proc/self/mountinfo"), mounts).unwrap();
        machine
    }

    #[test]
    fn mounts_holders_and_partitions_in_use_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let mounted = Finding::Mounted(PathBuf::from("/mnt/my data"));
        assert_eq!(of_block(&machine, (8, 1)), [mounted]);
        assert_eq!(of_block(&machine, (8, 16)), [Finding::Held("/dev/dm-0".into())]);
        assert_eq!(of_block(&machine, (8, 32)), []);
        assert_eq!(machine.partitions(8, 0), [("sda1".to_owned(), (8, 1))]);
        assert_eq!(machine.disk_of_partition(8, 1), Some((8, 0)));
        assert_eq!(machine.disk_of_partition(8, 0), None);
    }

    #[test]
    fn a_swap_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let file = dir.path().join("swap file");
        fs::write(&file, "x").unwrap();
        let shown = file.display().to_string().replace(' ', "\\040");
        let table = format!("Filename Type Size Used Priority\n{shown} file 1 0 -2\n");
        fs::write(dir.path().join("proc/swaps"), table).unwrap();
        let id = DeviceId::of(&machine, &file.metadata().unwrap());
        assert_eq!(findings(&machine, &id), [Finding::Swap]);
    }
}
