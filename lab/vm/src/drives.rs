//! Drives with a volatile write cache: what the guest has not flushed is gone when the power is.
//!
//! QEMU alone would not do. A write of QEMU is in the host's page cache when it completes, and outlives QEMU.
//! So each drive is an nbdkit that holds writes until a flush, and forgets them when it is killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use xtask::Failure;

use crate::patience;

/// World-wide names of registered makers begin with a 5.
const NAMES_FROM: u64 = 0x5000_c500_0000_0000;

/// One drive, in whatever machine.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    /// The serial number, which the drive keeps wherever it is plugged in.
    pub(crate) serial: &'static str,
    /// The name that no other drive of the world has.
    pub(crate) world_wide_name: u64,
    /// The medium.
    file: PathBuf,
}

/// A drive with power.
pub(crate) struct PoweredDrive {
    /// The serial number.
    pub(crate) serial: &'static str,
    /// The name that no other drive of the world has.
    pub(crate) world_wide_name: u64,
    /// Where the drive is reached.
    pub(crate) socket: PathBuf,
    server: Child,
}

impl Drive {
    /// A new drive of zeroes, the one of this number in its world.
    pub(crate) fn new(
        folder: &Path,
        number: u64,
        serial: &'static str,
        mib: u64,
    ) -> Result<Self, Failure> {
        let file = folder.join(format!("{serial}.img"));
        File::create(&file)?.set_len(mib << 20)?;
        Ok(Self { serial, world_wide_name: NAMES_FROM + number, file })
    }

    /// A drive that holds what the file does, the first of its world.
    pub(crate) fn of_file(serial: &'static str, file: PathBuf) -> Self {
        Self { serial, world_wide_name: NAMES_FROM, file }
    }

    /// Switches the drive on.
    pub(crate) fn power_on(&self) -> Result<PoweredDrive, Failure> {
        let socket = self.file.with_extension("sock");
        let _ = std::fs::remove_file(&socket);
        let mut server = Command::new("nbdkit");
        server.args(["--foreground", "--exit-with-parent", "--filter=cache", "--unix"]);
        server.arg(&socket).arg("file").arg(&self.file);
        server.args(["cache=writeback", "cache-min-block-size=4096"]);
        server.env("TMPDIR", self.file.parent().expect("a drive's file is in a folder"));
        let server = server.stdin(Stdio::null()).spawn()?;
        let drive = PoweredDrive {
            serial: self.serial,
            world_wide_name: self.world_wide_name,
            socket,
            server,
        };
        patience::until("nbdkit's socket", || Ok(drive.socket.exists().then_some(())))?;
        Ok(drive)
    }
}

impl PoweredDrive {
    /// Takes the power away, and with it all that was not flushed.
    pub(crate) fn power_off(&mut self) {
        // Both fail when nbdkit has ended by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Drop for PoweredDrive {
    fn drop(&mut self) {
        self.power_off();
    }
}
