//! `voltier setup`: an SSD in front of a disk that has data, mounted and back after every boot; and its undo.
//!
//! Each step knows how it is taken back. When one fails, those before it are.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use voltier_cli::output::{print, print_json};
use voltier_control::protocol::{NewCache, Request};
use voltier_control::{
    ControlError, ControlResult, DeviceSpec, ExportSpec, REGISTRY_FILE, Settings, VolumeName,
    VolumeState, parse_word,
};

use crate::args::Setup;
use crate::fstab::{Entry, Fstab};
use crate::mount::{Content, check_folder};
use crate::programs::run as run_program;
use crate::progress;
use crate::session::Session;

/// The unit and the rules as they are installed; they name the program by this path.
const UNIT: &str = include_str!("../../../packaging/systemd/voltier.service");
const RULES: &str = include_str!("../../../packaging/udev/61-voltier.rules");
const PACKAGED_PROGRAM: &str = "/usr/local/bin/voltier";
const UNIT_PATH: &str = "systemd/system/voltier.service";
const RULES_PATH: &str = "udev/rules.d/61-voltier.rules";

/// Where copies of registries go: not on a volume, and not in the state folder.
const BACKUPS: &str = "/var/backups";

/// Folders that hold what the daemon itself needs, or what the boot loader reads.
const OF_SYSTEM: [&str; 9] =
    ["/", "/boot", "/boot/efi", "/efi", "/usr", "/usr/local", "/var", "/var/lib", "/etc"];

/// Does what is asked, or says what it would do.
pub(crate) fn run(session: &Session<'_>, args: &Setup) -> ControlResult<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(ControlError::failed("a setup mounts and installs, which needs root"));
    }
    match &args.undo {
        Some(name) => undo(session, args, &name.parse()?),
        None => setup(session, args),
    }
}

/// What is going to be done.
struct Plan {
    name: VolumeName,
    ssd: DeviceSpec,
    disk: PathBuf,
    /// The file system that is on the disk.
    kind: String,
    folder: PathBuf,
    is_mounted: bool,
    settings: Settings,
    force: bool,
    export: ExportSpec,
    device: PathBuf,
    fstab: Fstab,
    new_fstab: Fstab,
    /// Files to install, with their contents: those that are missing.
    files: Vec<(PathBuf, String)>,
    has_systemd: bool,
    backup: PathBuf,
}

fn setup(session: &Session<'_>, args: &Setup) -> ControlResult<()> {
    let plan = Plan::of(session, args)?;
    let steps = plan.in_words();
    if args.dry_run {
        return if session.json { print_json(&steps) } else { print(&listed(&steps)) };
    }
    let mut done = Vec::new();
    if let Err(error) = plan.carry_out(session, &mut done) {
        let undone = plan.take_back(session, &done);
        return Err(match undone {
            Ok(()) => ControlError::failed(format!("{}; all of it was taken back", error.message)),
            Err(also) => ControlError::failed(format!(
                "{}; and taking it back failed: {}; see `voltier show` and {}",
                error.message,
                also.message,
                plan.fstab_path().display()
            )),
        });
    }
    if session.json {
        let (device, folder) =
            (plan.device.display().to_string(), plan.folder.display().to_string());
        return print_json(&json!({
            "name": plan.name, "device": device, "mounted_on": folder, "steps": steps
        }));
    }
    print(&format!(
        "{}{}: mounted on {}; `voltier setup --undo {}` takes it back\n",
        listed(&steps),
        plan.name,
        plan.folder.display(),
        plan.name
    ))
}

fn listed(steps: &[String]) -> String {
    steps.iter().enumerate().map(|(at, step)| format!("{}. {step}\n", at + 1)).collect()
}

/// The steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Files,
    Unmount,
    Create,
    Fstab,
    Mount,
}

/// A disk with a file system, and where that is mounted.
struct Disk {
    path: PathBuf,
    content: Content,
    mounted: Vec<PathBuf>,
    fstab: Fstab,
    /// The number of its line, and the line.
    entry: Option<(usize, Entry)>,
}

impl Disk {
    fn of(session: &Session<'_>, disk: &Path, fstab: Fstab) -> ControlResult<Self> {
        let path = stable_name(disk)?;
        let shown = path.display().to_string();
        if let Some(part @ ("origin" | "ssd")) = voltier_control::part_of(session.state, &path) {
            let part = if part == "origin" { "backing disk" } else { "SSD" };
            return Err(ControlError::failed(format!(
                "{shown} is the {part} of a volume already; `voltier show` lists them"
            )));
        }
        let content = Content::of(&shown)?;
        if content.usage != "filesystem" {
            return Err(ControlError::failed(match content.in_words() {
                empty if empty.is_empty() => format!(
                    "{shown} has no file system: for an empty disk `voltier create -s SSD -p {shown} NAME`, then \
                     `voltier mount NAME DIR --mkfs ext4`"
                ),
                found => format!(
                    "{shown} holds {found}, and a setup takes a file system: name the partition or volume that \
                     has one, or use `voltier create`"
                ),
            }));
        }
        let number = number_of(&path)?;
        let is_disk = |path: &Path| number_of(path).is_ok_and(|other| other == number);
        let entry = fstab.entry_of(is_disk, &content.names);
        Ok(Self { path, content, mounted: mounted_at(number), fstab, entry })
    }

    /// The folder where its volume is going to be mounted.
    fn folder(&self, given: Option<&Path>) -> ControlResult<PathBuf> {
        let (shown, table) = (self.path.display(), self.fstab.path().display());
        let folder = match (given, &self.entry, self.mounted.first()) {
            (Some(folder), ..) => std::path::absolute(folder).map_err(|error| {
                ControlError::io(format!("resolving {}", folder.display()), &error)
            })?,
            (None, Some((_, entry)), _) => entry.folder.clone(),
            (None, None, Some(folder)) => folder.clone(),
            (None, None, None) => {
                return Err(ControlError::usage(format!(
                    "{shown} is neither mounted nor in {table}; say where it is to be: voltier setup SSD DISK \
                     MOUNTPOINT"
                )));
            }
        };
        no_system_disk(&shown.to_string(), &self.mounted, &folder)?;
        if let Some(other) = self.mounted.iter().find(|at| **at != folder) {
            return Err(ControlError::failed(format!(
                "{shown} is mounted on {} too; unmount it there first",
                other.display()
            )));
        }
        let own = self.entry.as_ref().map(|(_, entry)| entry);
        if let Some(entry) = self.fstab.entry_at(&folder).filter(|entry| own != Some(entry)) {
            return Err(ControlError::failed(format!(
                "{table} mounts {} on {}; choose another folder, or change that line first",
                entry.source,
                folder.display()
            )));
        }
        if self.mounted.is_empty() {
            check_folder(&folder)?;
        }
        Ok(folder)
    }
}

impl Plan {
    fn of(session: &Session<'_>, args: &Setup) -> ControlResult<Self> {
        let (Some(ssd), Some(disk)) = (&args.ssd, &args.disk) else {
            return Err(ControlError::usage(
                "name the SSD and the disk: voltier setup SSD DISK [MOUNTPOINT]",
            ));
        };
        let disk = Disk::of(session, disk, Fstab::read(&args.etc.join("fstab"))?)?;
        let folder = disk.folder(args.folder.as_deref())?;
        let name = name_of(args.name.as_deref(), &folder)?;
        let mut settings = Settings::default();
        if let Some(mode) = &args.mode {
            settings.mode = parse_word(mode)?;
        }
        let device = session.state.device_link(&name);
        let file = session.state.device_file(&name);
        let mut new_fstab = disk.fstab.clone();
        let at = disk.entry.as_ref().map(|(at, _)| *at);
        new_fstab.replace(at, &name, &device, &folder, &disk.content.kind);
        let has_systemd = Path::new("/run/systemd/system").exists();
        let files = if has_systemd { missing_files(&args.etc)? } else { Vec::new() };
        let backup = args.backups.clone().unwrap_or_else(|| BACKUPS.into());
        Ok(Self {
            backup: backup.join(format!("voltier-{REGISTRY_FILE}")),
            ssd: ssd.parse::<DeviceSpec>()?.absolute()?,
            kind: disk.content.kind,
            force: args.force,
            export: ExportSpec::Loop { device: device.clone(), file },
            is_mounted: !disk.mounted.is_empty(),
            disk: disk.path,
            fstab: disk.fstab,
            name,
            folder,
            settings,
            device,
            new_fstab,
            files,
            has_systemd,
        })
    }

    fn fstab_path(&self) -> &Path {
        self.fstab.path()
    }

    /// The steps, for people.
    fn in_words(&self) -> Vec<String> {
        let (disk, folder, device) =
            (self.disk.display(), self.folder.display(), self.device.display());
        let mut steps: Vec<String> =
            self.files.iter().map(|(path, _)| format!("install {}", path.display())).collect();
        if self.has_systemd {
            steps.push("start the daemon as voltier.service, now and at every boot".to_owned());
        }
        if self.is_mounted {
            steps.push(format!("unmount {folder}"));
        }
        let (name, mode, ssd) = (&self.name, &self.settings.mode, &self.ssd);
        steps.push(format!(
            "make the volume {name}: {disk} with its data in place, {ssd} as its cache (mode {mode}); {device}"
        ));
        let table = self.fstab_path().display();
        steps.push(format!("{table}: mount {device} on {folder} in place of the disk"));
        steps.push(format!("mount {device} on {folder} ({})", self.kind));
        steps.push(format!("copy the registry to {}", self.backup.display()));
        steps
    }

    fn carry_out(&self, session: &Session<'_>, done: &mut Vec<Step>) -> ControlResult<()> {
        done.push(Step::Files);
        for (path, text) in &self.files {
            write_file(path, text)?;
        }
        if self.has_systemd {
            self.start_unit(session)?;
        }
        if self.is_mounted {
            unmount(&self.folder)?;
        }
        done.push(Step::Unmount);
        let origin: DeviceSpec = self.disk.display().to_string().parse()?;
        let (device, settings, force) = (self.ssd.clone(), self.settings.clone(), self.force);
        let cache = Some(NewCache { device, settings, force });
        let (name, export) = (self.name.clone(), Some(self.export.clone()));
        session.client()?.volume(&Request::Create { name, origin, cache, export })?;
        done.push(Step::Create);
        self.new_fstab.write()?;
        done.push(Step::Fstab);
        if self.has_systemd {
            run_program(Command::new("systemctl").arg("daemon-reload"), "systemctl", "systemctl")?;
        }
        mount(&self.new_fstab, &self.device, &self.folder)?;
        done.push(Step::Mount);
        copy_registry(session, &self.backup)
    }

    /// Has the unit serve, and no daemon of a command's.
    fn start_unit(&self, session: &Session<'_>) -> ControlResult<()> {
        let systemctl = |arguments: &[&str]| {
            let doing = format!("systemctl {}", arguments.join(" "));
            run_program(Command::new("systemctl").args(arguments), "systemctl", &doing)
        };
        let reload = ["control", "--reload"];
        // Without udev there are no rules to reload.
        let _ = run_program(Command::new("udevadm").args(reload), "udevadm", "udevadm");
        systemctl(&["daemon-reload"])?;
        if systemctl(&["is-active", "--quiet", "voltier"]).is_err()
            && let Some(client) = session.running_client()?
        {
            client.stop(session.state, false, |_| {})?;
        }
        systemctl(&["enable", "--now", "voltier"])
    }

    /// Takes the steps back that were done, last first. Installed files stay: they change nothing by themselves.
    fn take_back(&self, session: &Session<'_>, done: &[Step]) -> ControlResult<()> {
        for step in done.iter().rev() {
            match step {
                Step::Mount => unmount(&self.folder)?,
                Step::Fstab => self.fstab.write()?,
                Step::Create => delete(session, &self.name)?,
                Step::Unmount if self.is_mounted => mount(&self.fstab, &self.disk, &self.folder)?,
                Step::Unmount | Step::Files => {}
            }
        }
        Ok(())
    }
}

/// Takes a setup back: the bare disk is mounted as before.
fn undo(session: &Session<'_>, args: &Setup, name: &VolumeName) -> ControlResult<()> {
    let path = args.etc.join("fstab");
    let fstab = Fstab::read(&path)?;
    let mut restored = fstab.clone();
    let Some(folder) = restored.restore(name) else {
        return Err(ControlError::failed(format!(
            "{} has no line of `voltier setup` for {name}; `voltier delete {name}` takes a volume away that was made \
             by hand",
            path.display()
        )));
    };
    let volume = session.client()?.show(Some(name))?;
    let volume =
        volume.first().ok_or_else(|| ControlError::failed("the daemon shows no volume"))?;
    if !matches!(volume.state, VolumeState::Running | VolumeState::Degraded) {
        return Err(ControlError::failed(format!(
            "{name} is not served, and its newest data may be on the SSD alone; `voltier show {name}` says why"
        )));
    }
    let disk = PathBuf::from(&volume.hdd.path);
    let device = volume.exports.iter().find(|export| export.kind == "loop");
    let number = device.and_then(|export| number_of(Path::new(&export.uri)).ok());
    let is_mounted = number.is_some_and(|number| mounted_at(number).contains(&folder));
    let shown = (folder.display(), disk.display());
    let mut steps = vec![
        format!("write what is dirty to {} and forget {name}", shown.1),
        format!("{}: the line of the disk as it was", path.display()),
    ];
    if is_mounted {
        steps.insert(0, format!("unmount {}", shown.0));
        steps.push(format!("mount {} on {}", shown.1, shown.0));
    }
    if args.dry_run {
        return if session.json { print_json(&steps) } else { print(&listed(&steps)) };
    }
    if is_mounted {
        unmount(&folder)?;
    }
    if let Err(error) = delete(session, name) {
        if let (true, Some(device)) = (is_mounted, device) {
            mount(&fstab, Path::new(&device.uri), &folder)?;
        }
        return Err(error);
    }
    restored.write()?;
    if Path::new("/run/systemd/system").exists() {
        run_program(Command::new("systemctl").arg("daemon-reload"), "systemctl", "systemctl")?;
    }
    if is_mounted {
        mount(&restored, &disk, &folder)?;
    }
    if session.json {
        return print_json(&json!({ "name": name, "steps": steps }));
    }
    print(&format!("{}{name}: taken back\n", listed(&steps)))
}

fn delete(session: &Session<'_>, name: &VolumeName) -> ControlResult<()> {
    let mut client = session.client()?;
    let request = Request::Delete { name: name.clone(), flush: true };
    let interrupt = voltier_control::Interrupt::noted()?;
    let job = client.job(&request)?;
    progress::follow(&mut client, job, &interrupt).map(drop)
}

fn unmount(folder: &Path) -> ControlResult<()> {
    let doing = format!("unmounting {}", folder.display());
    run_program(Command::new("umount").arg(folder), "umount", &doing)
}

/// Mounts a device at its folder, with the options that the table has for it.
fn mount(table: &Fstab, device: &Path, folder: &Path) -> ControlResult<()> {
    let doing = format!("mounting {} on {}", device.display(), folder.display());
    let mut command = Command::new("mount");
    match table.entry_at(folder) {
        Some(_) => command.arg("--fstab").arg(table.path()).arg(folder),
        None => command.arg("--").arg(device).arg(folder),
    };
    run_program(&mut command, "mount", &doing)
}

fn copy_registry(session: &Session<'_>, to: &Path) -> ControlResult<()> {
    let from = session.state.path().join(REGISTRY_FILE);
    let copy = || {
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(&from, to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o600))
    };
    copy().map_err(|error| {
        ControlError::io(format!("copying the registry to {}", to.display()), &error)
    })
}

/// The unit and the rules, as far as they are not there, for the program that runs.
fn missing_files(etc: &Path) -> ControlResult<Vec<(PathBuf, String)>> {
    let program = std::env::current_exe()
        .map_err(|error| ControlError::io("finding this program's file", &error))?;
    let program = program.display().to_string();
    let files = [(UNIT_PATH, UNIT), (RULES_PATH, RULES)];
    let missing = files.into_iter().filter(|(path, _)| {
        ["/usr/lib", "/usr/local/lib"].iter().all(|lib| !Path::new(lib).join(path).exists())
            && !etc.join(path).exists()
    });
    Ok(missing
        .map(|(path, text)| (etc.join(path), text.replace(PACKAGED_PROGRAM, &program)))
        .collect())
}

fn write_file(path: &Path, text: &str) -> ControlResult<()> {
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)
    };
    write().map_err(|error| ControlError::io(format!("writing {}", path.display()), &error))
}

/// A volume has the name of its folder, unless one is given.
fn name_of(given: Option<&str>, folder: &Path) -> ControlResult<VolumeName> {
    if let Some(name) = given {
        return name.parse();
    }
    let last = folder.file_name().unwrap_or_default().to_string_lossy();
    last.parse().map_err(|_: ControlError| {
        ControlError::usage(format!(
            "`{last}` is no name for a volume; choose one with --name NAME"
        ))
    })
}

/// Refuses disks that the machine needs before a daemon can serve.
fn no_system_disk(disk: &str, mounted: &[PathBuf], folder: &Path) -> ControlResult<()> {
    let is_of_system =
        |at: &&PathBuf| OF_SYSTEM.iter().any(|system| Path::new(system) == at.as_path());
    let Some(at) = mounted.iter().chain([&folder.to_owned()]).find(is_of_system).cloned() else {
        return Ok(());
    };
    Err(ControlError::failed(format!(
        "{disk} holds {}, which the machine needs before it can serve a volume: give data a disk or partition of \
         their own, as /home or /srv",
        at.display()
    )))
}

/// The number of a block device.
fn number_of(path: &Path) -> ControlResult<u64> {
    let meta = fs::metadata(path)
        .map_err(|error| ControlError::io(format!("looking at {}", path.display()), &error))?;
    if !meta.file_type().is_block_device() {
        return Err(ControlError::failed(format!(
            "{} is no block device; a setup is for disks, `voltier create` takes files too",
            path.display()
        )));
    }
    Ok(meta.rdev())
}

/// A name of a disk that stays when disks are numbered anew, if there is one.
fn stable_name(disk: &Path) -> ControlResult<PathBuf> {
    let number = number_of(disk)?;
    if disk.starts_with("/dev/disk/by-id") {
        return Ok(disk.to_owned());
    }
    let entries = fs::read_dir("/dev/disk/by-id").into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| number_of(path).is_ok_and(|other| other == number))
        .collect();
    // A name with the model and serial number says more than a world-wide name.
    names.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name.starts_with("wwn-") || name.starts_with("nvme-eui"), name)
    });
    let own = || {
        std::path::absolute(disk)
            .map_err(|error| ControlError::io(format!("resolving {}", disk.display()), &error))
    };
    names.into_iter().next().map_or_else(own, Ok)
}

/// The folders where a block device is mounted.
fn mounted_at(number: u64) -> Vec<PathBuf> {
    let wanted = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_it = |fields: &[&str]| {
        let source = fields.iter().position(|field| *field == "-").map(|at| at + 2);
        let source = source.and_then(|at| fields.get(at)).map(Path::new);
        // btrfs shows a number of its own: the source tells.
        fields.get(2) == Some(&wanted.as_str())
            || source
                .filter(|it| it.starts_with("/dev"))
                .is_some_and(|it| number_of(it).is_ok_and(|other| other == number))
    };
    let folders = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        is_it(&fields).then(|| PathBuf::from(fields.get(4).unwrap_or(&"").replace("\\040", " ")))
    });
    folders.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_the_name_of_its_folder_and_no_system_disk_is_taken() {
        let name = |given, folder: &str| name_of(given, Path::new(folder)).map(|it| it.to_string());
        assert_eq!(name(None, "/srv/data").unwrap(), "data");
        assert_eq!(name(Some("v"), "/srv/data").unwrap(), "v");
        assert!(name(None, "/srv/my data").unwrap_err().message.contains("--name"));
        let refused = |mounted: &[&str], folder: &str| {
            let mounted: Vec<PathBuf> = mounted.iter().map(PathBuf::from).collect();
            no_system_disk("/dev/sda1", &mounted, Path::new(folder)).is_err()
        };
        assert!(
            refused(&["/"], "/srv/x")
                && refused(&[], "/boot")
                && refused(&["/srv", "/var"], "/srv")
        );
        assert!(!refused(&["/home"], "/home"));
    }

    #[test]
    fn what_is_installed_names_the_program_that_runs() {
        let etc = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap().display().to_string();
        for (path, text) in missing_files(etc.path()).unwrap() {
            assert!(
                text.contains(&program) && !text.contains(PACKAGED_PROGRAM),
                "{}",
                path.display()
            );
        }
    }
}
