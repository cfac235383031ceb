//! What an NVMe drive says of itself, read by a process of its own: a drive that hangs keeps that process, and not
//! the daemon.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use voltier_ring::{nvme_controller, nvme_health_log};

/// Writes the log of health of an NVMe drive, and behind it what its controller says of itself, as they are: 512 and
/// 4096 bytes. A drive that says only the first is well understood.
///
/// # Errors
/// When it is no NVMe drive, this process may not ask, or nobody reads.
pub fn write_nvme_health(device: &Path, to: &mut impl Write) -> io::Result<()> {
    let drive = File::open(device)?;
    to.write_all(&nvme_health_log(&drive)?)?;
    if let Ok(controller) = nvme_controller(&drive) {
        to.write_all(&controller)?;
    }
    to.flush()
}
