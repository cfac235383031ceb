//! Block devices that are volumes: a loop device over the file of a FUSE mount.

use std::path::Path;
use std::time::Duration;

use voltier_block::BlockDevice;
use voltier_control::{ControlError, ControlResult, ExportSpec, VolumeName};
use voltier_export::ExportError;
use voltier_export::fuse::FuseFile;
use voltier_export::loop_device::{DeviceShape, LoopDevice};

use crate::exports::fuse;
use crate::exports::keeping::Keeping;
use crate::exports::open_export::{OpenExport, Opened, Opener};
use crate::volumes;

/// How long the kernel may take to close the file of a device that was detached, in steps.
const CLOSE_STEPS: u32 = 100;
const CLOSE_STEP: Duration = Duration::from_millis(10);

struct Attached {
    name: VolumeName,
    // Detached before its file goes.
    device: LoopDevice,
    file: FuseFile,
}

pub(super) fn open(opener: Opener<'_>, device: &Path, file: &Path) -> ControlResult<Opened> {
    LoopDevice::check(device, file).map_err(ControlError::from_error)?;
    let volume = opener.name.clone();
    let shape = opener.way.call(move |_| async move {
        let resident = volumes::resident(&volume)?;
        let limits = resident.volume.limits();
        Ok(DeviceShape {
            // A partition table counts in blocks of the disk, whatever smaller ones the volume takes.
            block_bytes: resident.volume.origin().own_block_bytes(),
            read_only: limits.read_only,
            rotational: resident.is_rotational(),
        })
    })?;
    let (mounted, attached) = mount_and_attach(&opener, device, file, shape)?;
    if !attached.is_direct() {
        let (name, node) = (opener.name, attached.node());
        tracing::warn!("{name}: the kernel gives {node} no direct I/O, so it is slower");
    }
    let export = Attached { name: opener.name.clone(), device: attached, file: mounted };
    let spec = ExportSpec::Loop { device: device.to_owned(), file: file.to_owned() };
    Ok(Opened { spec, export: Box::new(export) })
}

/// Mounts the file and puts the device over it; both may be what an earlier daemon left.
fn mount_and_attach(
    opener: &Opener<'_>,
    device: &Path,
    file: &Path,
    shape: DeviceShape,
) -> ControlResult<(FuseFile, LoopDevice)> {
    let mut mounted = fuse::mount(opener, file)?;
    if mounted.is_adopted() {
        match LoopDevice::adopt(file, device, shape) {
            Ok(Some(attached)) => return Ok((mounted, attached)),
            // The daemon before died between the two, or somebody has detached it.
            Ok(None) => {}
            Err(why) => {
                let name = opener.name;
                tracing::warn!("{name}: users of {} are cut off: {why}", device.display());
                mounted.cut_off();
                voltier_export::loop_device::clear_dead(device, file);
                mounted = fuse::mount(opener, file)?;
            }
        }
    } else {
        // A file that could not be served on has its device still.
        voltier_export::loop_device::clear_dead(device, file);
    }
    let attached = LoopDevice::attach(file, device, shape).map_err(ControlError::from_error)?;
    Ok((mounted, attached))
}

impl OpenExport for Attached {
    fn close(&mut self, cut_off: bool) -> ControlResult<()> {
        let closed = self.device.detach().and_then(|()| self.stop_file());
        match closed {
            Err(ExportError::DeviceInUse { .. } | ExportError::FileInUse(_)) if cut_off => {
                self.device.let_go();
                self.file.cut_off();
                Ok(())
            }
            closed => closed.map_err(ControlError::from_error),
        }
    }

    fn pass_on(&mut self, keeping: &Keeping, _volume: [u8; 16]) -> Result<(), String> {
        // The device stays over the file.
        let passed = fuse::pass_on(&mut self.file, keeping);
        passed.inspect_err(|_| self.device.let_go())
    }

    fn trouble(&self) -> Option<String> {
        let why = match self.file.is_reachable() {
            true => self.device.trouble()?,
            false => format!("its file {} was unmounted or covered", self.file.path().display()),
        };
        let (name, link) = (&self.name, self.device.link().display());
        Some(format!("{why}; `voltier export {name} --loop {link}` opens it again"))
    }

    /// The loop device itself has the file open. Its own users are named by the tables of the kernel; here count those
    /// that no table has.
    fn clients(&self) -> u64 {
        let own = u64::from(self.device.trouble().is_none());
        self.file.handles().saturating_sub(own) + u64::from(self.device.is_claimed())
    }
}

impl Attached {
    /// Takes the file away. The kernel closes it a moment after the device has let go of it.
    fn stop_file(&mut self) -> Result<(), ExportError> {
        for _ in 0..CLOSE_STEPS {
            match self.file.stop() {
                Err(ExportError::FileInUse(_)) => std::thread::park_timeout(CLOSE_STEP),
                stopped => return stopped,
            }
        }
        self.file.stop()
    }
}
