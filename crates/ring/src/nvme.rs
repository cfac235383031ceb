//! What an NVMe drive says of itself: its log of health, and who it is.
//!
//! The kernel waits for the drive, for a minute or longer, and the caller with it, whom no signal ends meanwhile. So
//! no core asks here: a process of its own does, which nobody waits for.
//!
//! UNSAFETY: the kernel has no safe call for commands of administration. It is given the address of a buffer that is
//! borrowed for the call, with its length, and the command is one that only reads.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of the log of health.
pub const NVME_HEALTH_BYTES: usize = 512;
/// Bytes of what a controller says of itself.
pub const NVME_CONTROLLER_BYTES: usize = 4096;

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const ADMIN_COMMAND: libc::Ioctl = 0xc048_4e41u32 as libc::Ioctl;

const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
/// All namespaces: the log is that of the controller.
const ALL_NAMESPACES: u32 = u32::MAX;
const HEALTH_LOG: u32 = 0x02;
const OF_CONTROLLER: u32 = 0x01;

/// `struct nvme_admin_cmd` of the kernel.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_and_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_to_15: [u32; 6],
    /// 0: the kernel's own. At the end of a shorter one the kernel would reset the drive.
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// Reads the log of health (page 02h) of the controller behind an open namespace or controller.
///
/// # Errors
/// When it is no NVMe drive, the caller may not ask, or the drive does not answer well.
pub fn nvme_health_log(drive: impl AsFd) -> io::Result<[u8; NVME_HEALTH_BYTES]> {
    let mut log = [0; NVME_HEALTH_BYTES];
    let dwords_but_one = (NVME_HEALTH_BYTES / 4 - 1) as u32;
    let word = dwords_but_one << 16 | HEALTH_LOG;
    read(&drive, GET_LOG_PAGE, ALL_NAMESPACES, word, &mut log)?;
    Ok(log)
}

/// Reads what the controller behind an open namespace or controller says of itself: Identify Controller.
///
/// # Errors
/// As [`nvme_health_log`].
pub fn nvme_controller(drive: impl AsFd) -> io::Result<[u8; NVME_CONTROLLER_BYTES]> {
    let mut data = [0; NVME_CONTROLLER_BYTES];
    read(&drive, IDENTIFY, 0, OF_CONTROLLER, &mut data)?;
    Ok(data)
}

/// Runs a command that fills `into`, and changes nothing.
fn read(
    drive: &impl AsFd,
    opcode: u8,
    namespace: u32,
    word_10: u32,
    into: &mut [u8],
) -> io::Result<()> {
    let mut command = AdminCommand {
        opcode,
        namespace,
        address: into.as_mut_ptr() as u64,
        data_bytes: u32::try_from(into.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        words_10_to_15: [word_10, 0, 0, 0, 0, 0],
        ..AdminCommand::default()
    };
    let fd = drive.as_fd().as_raw_fd();
    // SAFETY: `command` has the kernel's layout, checked above. The kernel writes at most `data_bytes` to `address`,
    // which is `into`, borrowed until the call returns; of another file it refuses the call.
    match unsafe { libc::ioctl(fd, ADMIN_COMMAND, &raw mut command) } {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        status => Err(io::Error::other(format!("the drive answered with status {status:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_nvme_drive_is_refused_and_nothing_is_written() {
        let file = tempfile::tempfile().unwrap();
        assert!(nvme_health_log(&file).is_err());
        assert!(nvme_controller(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
