//! Formats of binary records.

use voltier_results::LabError;

use super::format::Format;
use super::input::Input;
use super::record::{Op, Record, Volume, checked, scaled};

const SECTOR: u64 = 512;

/// `blk_io_trace`: 0x65617400 and the version.
const BLKTRACE_MAGIC: u32 = 0x6561_7400;
const BLKTRACE_VERSION: u32 = 7;
const BLKTRACE_BYTES: usize = 48;
const ACTION_QUEUE: u32 = 1;
const CATEGORY_WRITE: u32 = 1 << 17;
const CATEGORY_NOTIFY: u32 = 1 << 26;
const CATEGORY_DISCARD: u32 = 1 << 29;

/// The largest of all records.
const RECORD_MAX: usize = 48;

/// Whether a file begins with an event of blktrace, in either byte order.
pub(super) fn is_blktrace(start: &[u8]) -> bool {
    start.get(..4).is_some_and(|magic| order_of(magic).is_some())
}

/// Whether an event's magic is in big-endian order; `None` when it is none.
fn order_of(magic: &[u8]) -> Option<bool> {
    let magic: [u8; 4] = magic.try_into().ok()?;
    let is_magic = |value: u32| value & !0xff == BLKTRACE_MAGIC;
    match (is_magic(u32::from_le_bytes(magic)), is_magic(u32::from_be_bytes(magic))) {
        (true, _) => Some(false),
        (_, true) => Some(true),
        _ => None,
    }
}

/// The version of a CloudPhysics trace that begins so: the first records must all say the same.
pub(super) fn vscsi_version(start: &[u8]) -> Option<u32> {
    let all_say = |version: u8, length: usize, place: usize| {
        let mut records = start.chunks_exact(length).take(8).peekable();
        records.peek().is_some()
            && records.all(|record| record[place + 1] == version && record[place - 1] == 0)
    };
    // Version 2 begins with the command, version 1 has it behind three words.
    if all_say(2, 40, 2) {
        Some(2)
    } else if all_say(1, 32, 14) {
        Some(1)
    } else {
        None
    }
}

/// The reader of binary records, and its memory from record to record.
#[derive(Debug)]
pub(super) struct Records {
    format: Format,
    vscsi: u32,
}

fn u16_at(bytes: &[u8], place: usize) -> u16 {
    u16::from_le_bytes(bytes[place..place + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], place: usize) -> u32 {
    u32::from_le_bytes(bytes[place..place + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(bytes[place..place + 8].try_into().expect("eight bytes"))
}

impl Records {
    /// Records of a file that begins so.
    ///
    /// # Errors
    /// When the format needs a version that the file does not tell.
    pub(super) fn new(format: Format, start: &[u8]) -> Result<Self, String> {
        let vscsi = match format {
            Format::CloudPhysics => {
                vscsi_version(start).ok_or("it holds no vscsi records of version 1 or 2")?
            }
            _ => 0,
        };
        Ok(Self { format, vscsi })
    }

    fn length(&self) -> usize {
        match (self.format, self.vscsi) {
            (Format::Blktrace, _) => BLKTRACE_BYTES,
            (Format::CloudPhysics, 2) => 40,
            (Format::CloudPhysics, _) => 32,
            (Format::OracleGeneral, _) => 24,
            _ => 4,
        }
    }

    /// The next record; `None` at the end. The inner result says why a record is no good.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn next(
        &self,
        input: &mut Input,
        block_bytes: u64,
    ) -> Result<Option<Result<Record, String>>, LabError> {
        let mut record = [0; RECORD_MAX];
        let record = &mut record[..self.length()];
        match input.fill(record)? {
            0 => return Ok(None),
            part if part < record.len() => {
                return Ok(Some(Err(format!("{part} of {} bytes", record.len()))));
            }
            _ => {}
        }
        Ok(Some(match self.format {
            Format::Blktrace => {
                let (more, parsed) = blktrace(record);
                let skipped = input.skip(more)?;
                if skipped < more { Err("its data are cut".to_owned()) } else { parsed }
            }
            Format::CloudPhysics => vscsi(record, self.vscsi),
            Format::OracleGeneral => oracle_general(record, block_bytes),
            _ => scaled(u64::from(u32_at(record, 0)), block_bytes, "block")
                .and_then(|offset| checked(0, Op::Read, Volume::File, offset, block_bytes)),
        }))
    }
}

/// An event, and how many bytes follow it.
fn blktrace(event: &mut [u8]) -> (u64, Result<Record, String>) {
    let Some(is_swapped) = order_of(&event[..4]) else {
        return (0, Err("no event begins here".to_owned()));
    };
    if is_swapped {
        for (from, to) in [(0, 4), (4, 8), (8, 16), (16, 24), (24, 28), (28, 32), (32, 36)] {
            event[from..to].reverse();
        }
        for (from, to) in [(36, 40), (40, 44), (44, 46), (46, 48)] {
            event[from..to].reverse();
        }
    }
    let version = u32_at(event, 0) & 0xff;
    if version != BLKTRACE_VERSION {
        return (0, Err(format!("version {version}, not {BLKTRACE_VERSION}")));
    }
    let more = u64::from(u16_at(event, 46));
    let action = u32_at(event, 28);
    // A cgroup's number may stand above the action.
    if action & 0xff != ACTION_QUEUE || action & CATEGORY_NOTIFY != 0 {
        return (more, Ok(Record::Other));
    }
    let op = match action {
        action if action & CATEGORY_DISCARD != 0 => Op::Discard,
        action if action & CATEGORY_WRITE != 0 => Op::Write,
        _ => Op::Read,
    };
    let device = u32_at(event, 36);
    let volume = Volume::Device(device >> 20, device & 0xf_ffff);
    let (at_ns, bytes) = (u64_at(event, 8), u64::from(u32_at(event, 24)));
    let offset = scaled(u64_at(event, 16), SECTOR, "sector");
    (more, offset.and_then(|offset| checked(at_ns, op, volume, offset, bytes)))
}

fn vscsi(record: &[u8], version: u32) -> Result<Record, String> {
    let (length, command, said) = match version {
        2 => (u32_at(record, 8), u16_at(record, 0), u16_at(record, 2)),
        _ => (u32_at(record, 4), u16_at(record, 12), u16_at(record, 14)),
    };
    if u32::from(said >> 8) != version {
        return Err(format!("version {}, not {version}", said >> 8));
    }
    let op = match command {
        0x08 | 0x28 | 0x88 | 0xa8 => Op::Read,
        0x0a | 0x2a | 0x8a | 0xaa => Op::Write,
        0x42 => Op::Discard,
        _ => return Ok(Record::Other),
    };
    let offset = scaled(u64_at(record, 16), SECTOR, "block")?;
    let at_ns = scaled(u64_at(record, 24), 1_000, "time")?;
    checked(at_ns, op, Volume::File, offset, u64::from(length))
}

fn oracle_general(record: &[u8], block_bytes: u64) -> Result<Record, String> {
    let at_ns = u64::from(u32_at(record, 0)) * 1_000_000_000;
    let offset = scaled(u64_at(record, 4), block_bytes, "block")?;
    checked(at_ns, Op::Read, Volume::File, offset, u64::from(u32_at(record, 12)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An event as the kernel writes it.
    pub(in super::super) fn event(time: u64, sector: u64, bytes: u32, action: u32) -> Vec<u8> {
        let mut event = Vec::new();
        event.extend((BLKTRACE_MAGIC | BLKTRACE_VERSION).to_le_bytes());
        event.extend(1_u32.to_le_bytes());
        event.extend(time.to_le_bytes());
        event.extend(sector.to_le_bytes());
        for word in [bytes, action, 77, 8 << 20 | 16, 0] {
            event.extend(word.to_le_bytes());
        }
        event.extend([0; 4]);
        event
    }

    #[test]
    fn an_event_of_either_byte_order_is_read() {
        let mut little = event(123, 8, 4096, ACTION_QUEUE | CATEGORY_WRITE);
        let mut big = little.clone();
        for (from, to) in
            [(0, 4), (4, 8), (8, 16), (16, 24), (24, 28), (28, 32), (32, 36), (36, 40)]
        {
            big[from..to].reverse();
        }
        assert!(is_blktrace(&little) && is_blktrace(&big));
        for event in [&mut little, &mut big] {
            let (0, Ok(Record::Request(write))) = blktrace(event) else { panic!() };
            assert_eq!((write.at_ns, write.offset, write.bytes), (123, 4096, 4096));
            assert_eq!((write.op, write.volume), (Op::Write, Volume::Device(8, 16)));
        }
        let (_, done) = blktrace(&mut event(1, 8, 4096, 8 | 1 << 23));
        assert_eq!(done, Ok(Record::Other));
        let (_, far) = blktrace(&mut event(1, u64::MAX, 4096, ACTION_QUEUE));
        assert!(far.is_err());
        assert!(blktrace(&mut [0; 48]).1.is_err());
    }

    pub(in super::super) fn vscsi_1(command: u16, block: u64, length: u32, us: u64) -> Vec<u8> {
        let mut record = Vec::new();
        for word in [1_u32, length, 1] {
            record.extend(word.to_le_bytes());
        }
        record.extend(command.to_le_bytes());
        record.extend(0x0100_u16.to_le_bytes());
        record.extend(block.to_le_bytes());
        record.extend(us.to_le_bytes());
        record
    }

    #[test]
    fn both_versions_of_vscsi_have_sectors_and_microseconds() {
        let one = vscsi_1(0x2a, 16, 8192, 5).repeat(3);
        assert_eq!(vscsi_version(&one), Some(1));
        let Ok(Record::Request(write)) = vscsi(&one[..32], 1) else { panic!() };
        assert_eq!((write.op, write.offset, write.bytes), (Op::Write, 8192, 8192));
        assert_eq!(write.at_ns, 5000);
        let mut two = Vec::new();
        two.extend(0x28_u16.to_le_bytes());
        two.extend(0x0200_u16.to_le_bytes());
        for word in [1_u32, 4096, 1] {
            two.extend(word.to_le_bytes());
        }
        for word in [24_u64, 9, 100] {
            two.extend(word.to_le_bytes());
        }
        assert_eq!(vscsi_version(&two.repeat(2)), Some(2));
        let Ok(Record::Request(read)) = vscsi(&two, 2) else { panic!() };
        assert_eq!((read.op, read.offset, read.bytes), (Op::Read, 24 * 512, 4096));
        assert_eq!(read.at_ns, 9000);
    }

    #[test]
    fn commands_that_move_nothing_are_no_requests_and_far_blocks_are_broken() {
        assert_eq!(vscsi(&vscsi_1(0x00, 0, 0, 1), 1), Ok(Record::Other));
        assert!(vscsi(&vscsi_1(0x28, u64::MAX, 512, 1), 1).is_err());
        assert!(vscsi(&vscsi_1(0x28, 0, u32::MAX, 1), 1).is_err());
        assert!(vscsi(&vscsi_1(0x28, 0, 512, u64::MAX), 1).is_err());
        assert_eq!(vscsi_version(b"hello, this is a text of some length, not a trace\n"), None);
    }
}
