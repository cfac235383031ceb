//! The drives of the machine, as the service looks at them.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::ControlResult;
use crate::records::Identity;
use crate::remote::Remote;
use crate::safety::{
    self, DeviceId, DriveIdentity, Examined, Machine, Role, TakenImage, WriteProtection,
};
use crate::spec::DeviceSpec;

/// Looks at drives. An engine whose drives are not those of this machine answers for them itself.
pub trait Drives {
    /// The machine whose drives these are.
    fn machine(&self) -> &Machine;

    /// Size of a device in bytes as far as its name tells: `u64::MAX` for a path.
    ///
    /// # Errors
    /// When the device's profile is unknown.
    fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64>;

    /// Looks at a device before it is used. An engine whose devices are not this machine's answers
    /// for them itself.
    ///
    /// # Errors
    /// As [`safety::examine`].
    fn examine(&self, path: &Path, role: Role) -> ControlResult<Examined> {
        safety::examine(self.machine(), path, role)
    }

    /// Looks at a drive beyond this machine before it is used.
    ///
    /// # Errors
    /// As [`safety::examine_remote`].
    fn examine_remote(&self, remote: &Remote, role: Role) -> ControlResult<Examined> {
        safety::examine_remote(remote, role)
    }

    /// Takes a Ceph RBD image away from whoever has it.
    ///
    /// # Errors
    /// As [`safety::take_image_over`].
    fn take_image_over(&self, remote: &Remote, force: bool) -> ControlResult<TakenImage> {
        safety::take_image_over(remote, force)
    }

    /// The storage that a path leads to now; `None` when nothing is there.
    fn id_of(&self, path: &Path) -> Option<DeviceId> {
        DeviceId::of_path(self.machine(), path)
    }

    /// Whether a drive still has requests of a volume or an array of this daemon, which has let the drive go.
    /// Such a drive looks as if another program used it, and so does one whose file system does not answer.
    fn is_letting_go(&self, _path: &Path) -> bool {
        false
    }

    /// Whether a block device is at a path: the kernel gives such names in the order in which it finds
    /// drives.
    fn is_block_device(&self, path: &Path) -> bool {
        path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
    }

    /// The mark that the drive at a path is known by under any path. `None` when nothing is there, and of
    /// a drive without such a mark.
    fn drive_identity(&self, path: &Path) -> Option<DriveIdentity> {
        DriveIdentity::of_path(self.machine(), path)
    }

    /// The path of the drive with this identity, which was at `hint`; `None` when it is not here.
    fn find_drive(&self, identity: &DriveIdentity, hint: &Path) -> Option<PathBuf> {
        identity.find(self.machine(), hint)
    }

    /// All drives with this identity: several, if drives share it.
    fn drives_with(&self, identity: &DriveIdentity, hint: &Path) -> Vec<PathBuf> {
        identity.find_all(self.machine(), hint)
    }

    /// The block devices of the machine that have a mark of Voltier's.
    fn own_devices(&self) -> Vec<PathBuf> {
        safety::own_devices(self.machine())
    }

    /// The regular files of a folder that have a mark of Voltier's.
    fn own_files(&self, folder: &Path) -> Vec<PathBuf> {
        safety::own_files(self.machine(), folder)
    }

    /// The block devices of the machine and the regular files of these folders, as [`safety::around`] lists
    /// them.
    fn around(&self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
        safety::around(self.machine(), folders)
    }

    /// Why the drive at a path takes no writes, if that is so.
    fn write_protection(&self, path: &Path) -> Option<WriteProtection> {
        WriteProtection::of(self.machine(), path)
    }

    /// An identity for something new: never given before.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    fn draw_identity(&self) -> ControlResult<Identity> {
        Identity::random()
    }
}
