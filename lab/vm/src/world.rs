//! The drives, which outlive a boot, and the machine that they are in now.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use xtask::{Failure, workspace};

use crate::agent::Answer;
use crate::drives::Drive;
use crate::image::{Image, path_of_root};
use crate::machine::{Machine, Parts};
use crate::patience;

/// The drive that machines boot from.
const ROOT: &str = "root";

/// The drives of a machine, on or off.
pub(crate) struct World {
    image: Image,
    folder: PathBuf,
    /// A file system with the files of the product, as a checkout has them after `make build`.
    share: PathBuf,
    drives: Vec<Drive>,
    machine: Option<Machine>,
    /// The drives that are plugged in at a start, in this order.
    plugged: Vec<String>,
    boots: u32,
}

impl World {
    /// New drives beside a fresh Debian, in a folder that is emptied.
    pub(crate) fn new(drives: &[(&'static str, u64)]) -> Result<Self, Failure> {
        let cache = workspace::metadata()?.target_directory.join("vm");
        let program = build_program()?;
        let image = Image::obtain(&cache)?;
        let folder = cache.join("world");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let root = folder.join("root.img");
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--reflink=auto"]).arg(&image.root).arg(&root);
        workspace::succeeded("copying the root file system", copy.status()?)?;
        let mut all = vec![Drive::of_file(ROOT, root)];
        for (number, &(serial, mib)) in (1..).zip(drives) {
            all.push(Drive::new(&folder, number, serial, mib)?);
        }
        let share = make_share(&folder, &program)?;
        Ok(Self { image, folder, share, drives: all, machine: None, plugged: Vec::new(), boots: 0 })
    }

    /// Switches a machine on that has these drives, in this order, and waits until the guest takes scripts.
    pub(crate) fn boot(&mut self, serials: &[&str]) -> Result<(), Failure> {
        self.plugged = serials.iter().map(|&serial| serial.to_owned()).collect();
        self.start()
    }

    fn start(&mut self) -> Result<(), Failure> {
        let serials = std::iter::once(ROOT).chain(self.plugged.iter().map(String::as_str));
        let drives = serials.map(|serial| self.drive(serial)).collect();
        self.boots += 1;
        let machine = Machine::power_on(&Parts {
            image: &self.image,
            folder: &self.folder,
            console: &self.console(),
            share: &self.share,
            drives,
        })?;
        self.machine.insert(machine).agent.await_boot()
    }

    /// The drive with this serial number.
    fn drive(&self, serial: &str) -> Drive {
        let mut found = self.drives.iter().filter(|drive| drive.serial == serial);
        found.next().unwrap_or_else(|| panic!("no scenario made a drive {serial}")).clone()
    }

    /// The console of the last power-on.
    pub(crate) fn console(&self) -> PathBuf {
        self.folder.join(format!("console-{}.log", self.boots))
    }

    /// The machine, which is on.
    pub(crate) fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("a scenario works with a machine that is on")
    }

    /// Runs a script of bash in the guest; any exit code.
    pub(crate) fn attempt(&mut self, script: &str) -> Result<Answer, Failure> {
        self.machine().agent.run(script)
    }

    /// Runs a script that must succeed; its output.
    pub(crate) fn run(&mut self, script: &str) -> Result<String, Failure> {
        let answer = self.attempt(script)?;
        match answer.code {
            0 => Ok(answer.text()),
            code => Err(format!("exit code {code} of:\n{script}\n{}", answer.text()).into()),
        }
    }

    /// The answer of `voltier ... --json`, whatever its exit code.
    pub(crate) fn json(&mut self, command: &str) -> Result<Value, Failure> {
        let text = self.attempt(&format!("voltier {command} --json 2>/dev/null"))?.text();
        serde_json::from_str(&text).map_err(|error| format!("{command}: {error}: {text}").into())
    }

    /// Asks `voltier ... --json` until the answer is as wished.
    pub(crate) fn until_json(
        &mut self,
        what: &str,
        command: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let mut last = Value::Null;
        let found = patience::until(what, || {
            last = self.json(command)?;
            Ok(is_so(&last).then(|| last.clone()))
        });
        found.map_err(|error| format!("{error}: {last}").into())
    }

    /// Waits until the boot is over; `running`, or `degraded` when units failed.
    pub(crate) fn boot_ends_as(&mut self, state: &str) -> Result<(), Failure> {
        let found = self.attempt("systemctl is-system-running --wait")?.text();
        if found.trim() == state {
            return Ok(());
        }
        let failed = self.attempt("systemctl --failed --no-legend; systemctl list-jobs")?.text();
        Err(format!("the boot ended as {found}, not as {state}: {failed}").into())
    }

    /// Has the guest start anew, in order.
    pub(crate) fn reboot(&mut self) -> Result<(), Failure> {
        self.machine().agent.send("systemctl reboot")?;
        self.machine.take().map_or(Ok(()), Machine::await_power_off)?;
        self.start()
    }

    /// Has later starts use an initial RAM disk that has these files too: an archive of cpio.
    pub(crate) fn add_to_initrd(&mut self, files: &[u8]) -> Result<(), Failure> {
        let mut initrd = fs::read(&self.image.initrd)?;
        // The kernel unpacks one archive after the other, each from a multiple of four bytes.
        initrd.resize(initrd.len().next_multiple_of(4), 0);
        initrd.extend_from_slice(files);
        self.image.initrd = self.folder.join("initrd");
        Ok(fs::write(&self.image.initrd, initrd)?)
    }

    /// Has the guest switch the machine off, in order.
    pub(crate) fn power_off(&mut self) -> Result<(), Failure> {
        self.machine().agent.send("systemctl poweroff")?;
        self.machine.take().map_or(Ok(()), Machine::await_power_off)
    }

    /// Takes the power away.
    pub(crate) fn cut_power(&mut self) -> Result<(), Failure> {
        self.machine.take().map_or(Ok(()), Machine::cut_power)
    }

    /// Plugs a drive in; it stays in over restarts.
    pub(crate) fn plug(&mut self, serial: &str) -> Result<(), Failure> {
        let drive = self.drive(serial);
        self.plugged.push(serial.to_owned());
        self.machine().plug(&drive)
    }

    /// Plugs a drive in as one of NVMe; it is out after a restart.
    pub(crate) fn plug_nvme(&mut self, serial: &str) -> Result<(), Failure> {
        let drive = self.drive(serial);
        self.machine().plug_nvme(&drive)
    }

    /// Pulls a drive out; it stays out over restarts.
    pub(crate) fn unplug(&mut self, serial: &str) -> Result<(), Failure> {
        self.plugged.retain(|plugged| plugged != serial);
        self.machine().unplug(serial)
    }

    /// Whether a machine is on.
    pub(crate) fn is_on(&self) -> bool {
        self.machine.is_some()
    }
}

/// Builds the program that users install; unoptimised, which compiles fast.
fn build_program() -> Result<PathBuf, Failure> {
    let mut build = workspace::cargo();
    build.args(["build", "--quiet", "--locked", "--package", "voltier"]);
    workspace::succeeded("cargo build --package voltier", build.status()?)?;
    Ok(workspace::metadata()?.target_directory.join("debug/voltier"))
}

/// The files that the guide's commands name, under the same paths, as a file system.
fn make_share(folder: &Path, program: &Path) -> Result<PathBuf, Failure> {
    let (files, image) = (folder.join("share"), folder.join("share.img"));
    fs::create_dir_all(files.join("target/release"))?;
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(files.join("target/release/voltier")).arg(program);
    workspace::succeeded("strip", strip.status()?)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(workspace::root().join("packaging")).arg(&files);
    workspace::succeeded("copying packaging", copy.status()?)?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-O", "^has_journal", "-L", "share", "-d"]);
    make.arg(&files).arg(&image).arg("128M").env("PATH", path_of_root());
    workspace::succeeded("mke2fs", make.status()?)?;
    Ok(image)
}
