//! One machine from its power on to its power off: a QEMU, its drives, and what is plugged in meanwhile.

use std::fs;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use xtask::Failure;

use crate::agent::Agent;
use crate::drives::{Drive, PoweredDrive};
use crate::image::Image;
use crate::patience;
use crate::qmp::Qmp;

const MEMORY_MIB: &str = "1024";

/// Software emulation is everywhere; `VM_ACCEL=kvm` is for a machine whose `/dev/kvm` runs guests.
const ACCEL: &str = "tcg,thread=multi";

/// A machine with power.
pub(crate) struct Machine {
    /// Before the drives: without a QEMU nobody misses them.
    qemu: Qemu,
    qmp: Qmp,
    /// Scripts for the guest.
    pub(crate) agent: Agent,
    /// The lines that programs of the guest write to the port `voltier.acks`.
    pub(crate) acks: BufReader<UnixStream>,
    drives: Vec<PoweredDrive>,
}

/// The process; ended when it is dropped.
struct Qemu(Child);

/// The parts from which a machine is put together.
pub(crate) struct Parts<'a> {
    /// Kernel and initial RAM disk.
    pub(crate) image: &'a Image,
    /// A folder for sockets.
    pub(crate) folder: &'a Path,
    /// Where the console goes.
    pub(crate) console: &'a Path,
    /// A file system to read from, for installations.
    pub(crate) share: &'a Path,
    /// The first drive is the one that the machine boots from. The kernel finds the others in this order,
    /// and names them in it.
    pub(crate) drives: Vec<Drive>,
}

impl Machine {
    /// Switches a machine on.
    pub(crate) fn power_on(parts: &Parts) -> Result<Self, Failure> {
        let drives = parts.drives.iter().map(Drive::power_on).collect::<Result<Vec<_>, _>>()?;
        let sockets = ["qmp", "agent", "acks"].map(|name| parts.folder.join(name));
        for socket in &sockets {
            let _ = fs::remove_file(socket);
        }
        let mut command = qemu(parts, &sockets);
        for (place, drive) in drives.iter().enumerate() {
            let device = match place {
                0 => "virtio-blk-pci".to_owned(),
                _ => format!("scsi-hd,bus=scsi.0,scsi-id={place},wwn={}", drive.world_wide_name),
            };
            let (serial, id) = (drive.serial, device_id(drive.serial));
            command.arg("-blockdev").arg(block_node(drive).to_string());
            command.arg("-device").arg(format!("{device},drive={serial},serial={serial},id={id}"));
        }
        command.arg("-drive");
        command.arg(format!("file={},format=raw,if=virtio,readonly=on", parts.share.display()));
        let mut qemu = Qemu(command.spawn()?);
        let [qmp, agent, acks] = &sockets;
        let qmp = patience::until("QEMU takes connections", || match qemu.0.try_wait()? {
            Some(status) => Err(format!("QEMU ended: {status}").into()),
            None => Ok(UnixStream::connect(qmp).ok()),
        })?;
        let (qmp, agent) = (Qmp::new(qmp)?, Agent::connect(agent)?);
        let acks = UnixStream::connect(acks)?;
        acks.set_read_timeout(Some(patience::SILENCE_MAX))?;
        Ok(Self { qemu, qmp, agent, acks: BufReader::new(acks), drives })
    }

    /// Plugs a drive in.
    pub(crate) fn plug(&mut self, drive: &Drive) -> Result<(), Failure> {
        let (serial, id) = (drive.serial, device_id(drive.serial));
        self.plug_as(
            drive,
            json!({
                "driver": "scsi-hd", "bus": "scsi.0", "drive": serial, "serial": serial, "id": id,
                "wwn": drive.world_wide_name,
            }),
        )
    }

    /// Plugs a drive in as one of NVMe.
    pub(crate) fn plug_nvme(&mut self, drive: &Drive) -> Result<(), Failure> {
        let (serial, id) = (drive.serial, device_id(drive.serial));
        self.plug_as(
            drive,
            json!({ "driver": "nvme", "drive": serial, "serial": serial, "id": id }),
        )
    }

    fn plug_as(&mut self, drive: &Drive, device: Value) -> Result<(), Failure> {
        let powered = drive.power_on()?;
        self.qmp.execute("blockdev-add", block_node(&powered))?;
        self.qmp.execute("device_add", device)?;
        self.drives.push(powered);
        Ok(())
    }

    /// Has a drive of NVMe warn of something: the bits of its critical warning.
    pub(crate) fn warn(&mut self, serial: &str, bits: u8) -> Result<(), Failure> {
        let path = format!("/machine/peripheral/{}", device_id(serial));
        let change = json!({ "path": path, "property": "smart_critical_warning", "value": bits });
        self.qmp.execute("qom-set", change).map(drop)
    }

    /// Pulls a drive out.
    pub(crate) fn unplug(&mut self, serial: &str) -> Result<(), Failure> {
        let id = device_id(serial);
        self.qmp.execute("device_del", json!({ "id": id }))?;
        self.qmp.await_event("DEVICE_DELETED", &id)?;
        self.qmp.execute("blockdev-del", json!({ "node-name": serial }))?;
        self.drives.retain(|drive| drive.serial != serial);
        Ok(())
    }

    /// Waits until the guest has switched the machine off.
    pub(crate) fn await_power_off(mut self) -> Result<(), Failure> {
        patience::until("the guest switches off", || Ok(self.qemu.0.try_wait()?))?;
        Ok(())
    }

    /// Takes the power away: all drives lose what was not flushed, at one moment.
    pub(crate) fn cut_power(mut self) -> Result<(), Failure> {
        // Nothing is written while the drives go, one by one.
        kill_process(Pid::from_child(&self.qemu.0), Signal::STOP)?;
        self.drives.iter_mut().for_each(PoweredDrive::power_off);
        Ok(())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail when QEMU has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn device_id(serial: &str) -> String {
    format!("device-{serial}")
}

fn block_node(drive: &PoweredDrive) -> Value {
    json!({
        "driver": "nbd",
        "node-name": drive.serial,
        "server": { "type": "unix", "path": drive.socket },
        "discard": "unmap",
    })
}

/// QEMU without drives. QEMU ends with the thread that starts it.
fn qemu(parts: &Parts, sockets: &[PathBuf; 3]) -> Command {
    let accel = std::env::var("VM_ACCEL").unwrap_or_else(|_| ACCEL.to_owned());
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-no-user-config"]);
    command.args(["-display", "none", "-accel", &accel, "-cpu", "max", "-smp", "2"]);
    command.args(["-m", MEMORY_MIB]);
    command.arg("-kernel").arg(&parts.image.kernel).arg("-initrd").arg(&parts.image.initrd);
    command.args(["-append", "root=/dev/vda rw console=ttyS0 quiet panic=1 nowatchdog"]);
    // A restart is the end of this QEMU, and the beginning of another one.
    command.arg("-no-reboot");
    command.arg("-serial").arg(format!("file:{}", parts.console.display()));
    command.args(["-device", "virtio-scsi-pci,id=scsi", "-device", "virtio-serial-pci"]);
    let [qmp, ports @ ..] = sockets;
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
    for (name, socket) in ["agent", "acks"].into_iter().zip(ports) {
        let chardev = format!("socket,id={name},path={},server=on,wait=off", socket.display());
        let port = format!("virtserialport,chardev={name},name=voltier.{name}");
        command.args(["-chardev", &chardev, "-device", &port]);
    }
    command.stdin(Stdio::null());
    command
}
