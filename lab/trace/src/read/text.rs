//! Formats of one line a request.

use super::format::Format;
use super::record::{Op, Record, Volume, checked, scaled};

const SECTOR: u64 = 512;

/// Words that begin the summary behind blkparse's events.
const SUMMARY: [&str; 11] = [
    "CPU",
    "Total",
    "Reads",
    "Writes",
    "Read",
    "Write",
    "IO",
    "PC",
    "Throughput",
    "Events",
    "Input",
];

/// A line of one of the formats, without its end.
///
/// # Errors
/// When the line is no entry of the format.
pub(super) fn parse(format: Format, line: &str) -> Result<Record, String> {
    if line.trim().is_empty() {
        return Ok(Record::Other);
    }
    match format {
        Format::Msr => msr(line),
        Format::Alibaba => alibaba(line),
        Format::Tencent => tencent(line),
        Format::Blkparse => blkparse(line),
        _ => unreachable!("{format} is not read line by line here"),
    }
}

/// Whether a line may be the heading of a table: no number in it.
pub(super) fn is_heading(line: &str) -> bool {
    line.contains(',') && !line.bytes().any(|byte| byte.is_ascii_digit())
}

fn fields<const N: usize>(line: &str) -> Result<[&str; N], String> {
    let all: Vec<&str> = line.split(',').map(str::trim).collect();
    let found = all.len();
    all.try_into().map_err(|_| format!("{found} fields, not {N}"))
}

pub(super) fn number(text: &str, what: &str) -> Result<u64, String> {
    // A plus sign would pass `parse`.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{what} `{}` is no number", shown(text)));
    }
    text.parse().map_err(|_| format!("{what} {} is too large", shown(text)))
}

/// A field as it may stand in a message: short, and of one line.
pub(super) fn shown(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    let short: String = plain.clone().take(24).collect();
    if plain.count() > 24 { format!("{short}...") } else { short }
}

/// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
fn msr(line: &str) -> Result<Record, String> {
    let [time, host, disk, op, offset, bytes, response] = fields(line)?;
    let at_ns = scaled(number(time, "time")?, 100, "time")?;
    let disk = number(disk, "disk")?;
    let op = match op {
        "Read" | "read" => Op::Read,
        "Write" | "write" => Op::Write,
        other => return Err(format!("type `{}`", shown(other))),
    };
    let (offset, bytes) = (number(offset, "offset")?, number(bytes, "size")?);
    number(response, "response time")?;
    checked(at_ns, op, Volume::Named(format!("{host}.{disk}")), offset, bytes)
}

/// `device_id,opcode,offset,length,timestamp`, bytes and microseconds.
fn alibaba(line: &str) -> Result<Record, String> {
    let [device, op, offset, bytes, time] = fields(line)?;
    number(device, "device")?;
    let op = match op {
        "R" => Op::Read,
        "W" => Op::Write,
        other => return Err(format!("opcode `{}`", shown(other))),
    };
    let at_ns = scaled(number(time, "time")?, 1_000, "time")?;
    let (offset, bytes) = (number(offset, "offset")?, number(bytes, "length")?);
    checked(at_ns, op, Volume::Named(device.to_owned()), offset, bytes)
}

/// `Timestamp,Offset,Size,IOType,VolumeID`, seconds and sectors.
fn tencent(line: &str) -> Result<Record, String> {
    let [time, sector, sectors, op, volume] = fields(line)?;
    let at_ns = scaled(number(time, "time")?, 1_000_000_000, "time")?;
    let op = match op {
        "0" => Op::Read,
        "1" => Op::Write,
        other => return Err(format!("type `{}`", shown(other))),
    };
    number(volume, "volume")?;
    let offset = scaled(number(sector, "offset")?, SECTOR, "offset")?;
    let bytes = scaled(number(sectors, "size")?, SECTOR, "size")?;
    checked(at_ns, op, Volume::Named(volume.to_owned()), offset, bytes)
}

/// `maj,min cpu seq time pid action rwbs sector + sectors ...`: requests as they were queued.
fn blkparse(line: &str) -> Result<Record, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let begin = words[0];
    if SUMMARY.iter().any(|word| begin.starts_with(word)) {
        return Ok(Record::Other);
    }
    let device = begin.split_once(',').ok_or("no device at the start of the line")?;
    let part = |text: &str| {
        let value = number(text, "device")?;
        u32::try_from(value).map_err(|_| format!("device {value} is too large"))
    };
    let device = Volume::Device(part(device.0)?, part(device.1)?);
    let [_, cpu, sequence, time, _, action, rest @ ..] = words.as_slice() else {
        return Err(format!("{} words", words.len()));
    };
    number(cpu, "processor")?;
    number(sequence, "sequence")?;
    if *action != "Q" {
        return Ok(Record::Other);
    }
    let (seconds, fraction) = time.split_once('.').ok_or("no time in seconds")?;
    if fraction.len() != 9 {
        return Err(format!("time `{}`", shown(time)));
    }
    let at_ns = scaled(number(seconds, "time")?, 1_000_000_000, "time")?
        .checked_add(number(fraction, "time")?)
        .ok_or("the time is too large")?;
    let [kind, sector, plus, sectors, ..] = rest else {
        // A flush has no address.
        return Ok(Record::Other);
    };
    if *plus != "+" {
        return Err(format!("`{}` where a + belongs", shown(plus)));
    }
    let op = match kind {
        kind if kind.contains('D') => Op::Discard,
        kind if kind.contains('W') => Op::Write,
        kind if kind.contains('R') => Op::Read,
        _ => return Ok(Record::Other),
    };
    let offset = scaled(number(sector, "sector")?, SECTOR, "sector")?;
    let bytes = scaled(number(sectors, "sectors")?, SECTOR, "sectors")?;
    checked(at_ns, op, device, offset, bytes)
}

/// A line of `start count ignored sequence`, in blocks of so many bytes.
pub(super) fn lis(line: &str, block_bytes: u64) -> Result<Record, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [start, count, ..] = words.as_slice() else {
        return if words.is_empty() { Ok(Record::Other) } else { Err("one word".to_owned()) };
    };
    let offset = scaled(number(start, "block")?, block_bytes, "block")?;
    let bytes = scaled(number(count, "count")?, block_bytes, "count")?;
    checked(0, Op::Read, Volume::File, offset, bytes)
}

#[cfg(test)]
mod tests {
    use super::super::record::Parsed;
    use super::*;

    fn request(format: Format, line: &str) -> Parsed {
        match parse(format, line) {
            Ok(Record::Request(parsed)) => parsed,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn is_broken(format: Format, lines: &[&str]) {
        for line in lines {
            let why = parse(format, line).expect_err(line);
            assert!(!why.is_empty() && why.len() < 120 && why.lines().count() == 1, "{why}");
        }
    }

    #[test]
    fn msr_has_windows_time_and_bytes() {
        let line = "128166372003061629,src1,0,Read,7014609920,24576,41286";
        let parsed = request(Format::Msr, line);
        assert_eq!(parsed.at_ns, 12_816_637_200_306_162_900);
        assert_eq!((parsed.op, parsed.offset, parsed.bytes), (Op::Read, 7_014_609_920, 24_576));
        assert_eq!(parsed.volume, Volume::Named("src1.0".to_owned()));
        is_broken(
            Format::Msr,
            &[
                "128166372003061629,src1,0,Read,7014609920,24576",
                "128166372003061629,src1,0,Trim,7014609920,24576,1",
                "99999999999999999999,src1,0,Read,0,512,1",
                "999999999999999999,src1,0,Read,0,512,1",
                "1,src1,0,Read,18446744073709551615,512,1",
                "1,src1,0,Read,18446744073709551616,512,1",
                "1,src1,0,Read,-512,512,1",
                "1,src1,0,Read,0,+512,1",
                "1,src1,0,Read,0,4294967296,1",
                "1,src1,x,Read,0,512,1",
                "1,src1,0,Read,9007199254740992,512,1",
            ],
        );
    }

    #[test]
    fn alibaba_has_bytes_and_microseconds() {
        let parsed = request(Format::Alibaba, "419,W,8792731648,16384,1577808144360767");
        assert_eq!(parsed.at_ns, 1_577_808_144_360_767_000);
        assert_eq!((parsed.op, parsed.offset, parsed.bytes), (Op::Write, 8_792_731_648, 16_384));
        assert_eq!(parsed.volume, Volume::Named("419".to_owned()));
        let broken =
            ["419,w,0,512,1", "419,R,0,512", "a,R,0,512,1", "419,R,0,512,1.5", "419,R,,512,1"];
        is_broken(Format::Alibaba, &broken);
    }

    #[test]
    fn tencent_has_sectors_and_seconds() {
        let parsed = request(Format::Tencent, "1538323200,12910952,128,0,1063");
        assert_eq!(parsed.at_ns, 1_538_323_200_000_000_000);
        assert_eq!((parsed.op, parsed.offset, parsed.bytes), (Op::Read, 12_910_952 * 512, 65_536));
        let broken =
            ["1,36028797018963968,8,0,1", "1,0,8,2,1", "1,0,36028797018963968,0,1", "1,0,8,0"];
        is_broken(Format::Tencent, &broken);
    }

    #[test]
    fn blkparse_gives_what_was_queued() {
        let line = "  8,0    3        1     0.000000123   697  Q  WS 223490 + 8 [kjournald]";
        let parsed = request(Format::Blkparse, line);
        assert_eq!((parsed.at_ns, parsed.op), (123, Op::Write));
        assert_eq!((parsed.offset, parsed.bytes), (223_490 * 512, 4096));
        assert_eq!(parsed.volume, Volume::Device(8, 0));
        for other in [
            "  8,0    3        1     0.000000123   697  C  WS 223490 + 8 [0]",
            "  8,0    3        1     0.000000123   697  Q FWS [jbd2/sda1-8]",
            "CPU0 (sda):",
            " Reads Queued:           0,        0KiB\t Writes Queued:",
            "Total (sda):",
            "Throughput (R/W): 0KiB/s / 13KiB/s",
            "",
        ] {
            assert_eq!(parse(Format::Blkparse, other), Ok(Record::Other), "{other}");
        }
        is_broken(
            Format::Blkparse,
            &[
                "8,0 3 1",
                "hello world",
                "8,0 3 1 0.000000123 697 Q R 1 - 8",
                "8,0 3 1 0.1 697 Q R 1 + 8",
                "8,0 3 1 0.000000123 697 Q R 99999999999999999999 + 8",
                "8,99999999999 3 1 0.000000123 697 Q R 1 + 8",
            ],
        );
    }

    #[test]
    fn lis_counts_blocks_and_what_is_empty_is_no_request() {
        let Ok(Record::Request(parsed)) = lis("100 3 0 7", 4096) else { panic!() };
        assert_eq!((parsed.offset, parsed.bytes), (409_600, 12_288));
        assert_eq!(lis("100 0 0 7", 4096), Ok(Record::Other));
        assert!(lis("100", 4096).is_err() && lis("-1 3 0 0", 4096).is_err());
        assert_eq!(parse(Format::Tencent, "1,0,0,0,1"), Ok(Record::Other));
        assert!(is_heading("Timestamp,Offset,Size") && !is_heading("1,x"));
    }
}
