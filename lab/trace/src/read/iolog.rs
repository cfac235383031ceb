//! fio's log of requests, versions 2 and 3.
//!
//! Version 3 has a time in microseconds on every line. Version 2 has none, only `wait` lines; what
//! they say is taken as fio's own replay takes it, milliseconds since the start.

use super::record::{Op, Record, Volume, checked, scaled};
use super::text::{number, shown};

const MARK: &[u8] = b"fio version ";

/// Whether a file begins as such a log does.
pub(super) fn is_iolog(start: &[u8]) -> bool {
    start.starts_with(MARK)
}

/// The reader of an iolog, and its memory from line to line.
#[derive(Debug, Default)]
pub(super) struct Iolog {
    version: u32,
    now_ns: u64,
}

impl Iolog {
    /// A line, the first one first.
    ///
    /// # Errors
    /// When the line is no entry of the log, or the log has an unknown version.
    pub(super) fn parse(&mut self, line: &str) -> Result<Record, String> {
        if self.version == 0 {
            self.version = match line.trim_end() {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                other => return Err(format!("`{}` is no version that is known", shown(other))),
            };
            return Ok(Record::Other);
        }
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            return Ok(Record::Other);
        }
        if self.version == 3 {
            self.now_ns = scaled(number(words.remove(0), "time")?, 1_000, "time")?;
        }
        let op = match words.as_slice() {
            [_, "add" | "open" | "close" | "unlink"] => return Ok(Record::Other),
            [_, "sync" | "datasync", ..] => return Ok(Record::Other),
            [_, "wait", time, ..] if self.version == 2 => {
                self.now_ns = self.now_ns.max(scaled(number(time, "wait")?, 1_000_000, "wait")?);
                return Ok(Record::Other);
            }
            [_, "read", _, _] => Op::Read,
            [_, "write", _, _] => Op::Write,
            [_, "trim", _, _] => Op::Discard,
            [_, action, ..] => {
                return Err(format!("action `{}` with {} words", shown(action), words.len()));
            }
            _ => return Err("one word".to_owned()),
        };
        let (offset, bytes) = (number(words[2], "offset")?, number(words[3], "length")?);
        checked(self.now_ns, op, Volume::Named(words[0].to_owned()), offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<Record, String>> {
        let mut log = Iolog::default();
        text.lines().map(|line| log.parse(line)).collect()
    }

    #[test]
    fn version_3_has_a_time_on_every_line() {
        let records = read(
            "fio version 3 iolog\n0 /dev/sdb add\n1 /dev/sdb open\n7 /dev/sdb write 4096 8192\n\
             9 /dev/sdb trim 0 4096\n9 /dev/sdb datasync 0 0\n10 /dev/sdb close\n",
        );
        assert_eq!(records[..3], [Ok(Record::Other), Ok(Record::Other), Ok(Record::Other)]);
        let Ok(Record::Request(write)) = &records[3] else { panic!("{:?}", records[3]) };
        assert_eq!(
            (write.at_ns, write.op, write.offset, write.bytes),
            (7000, Op::Write, 4096, 8192)
        );
        assert!(matches!(&records[4], Ok(Record::Request(trim)) if trim.op == Op::Discard));
        assert_eq!(records[5..], [Ok(Record::Other), Ok(Record::Other)]);
    }

    #[test]
    fn version_2_waits_until_a_time_in_milliseconds() {
        let records = read(
            "fio version 2 iolog\nd add\nd open\nd read 0 512\nd wait 5 0\nd read 512 512\nd close\n",
        );
        let times: Vec<u64> = records
            .iter()
            .filter_map(|record| match record {
                Ok(Record::Request(parsed)) => Some(parsed.at_ns),
                _ => None,
            })
            .collect();
        assert_eq!(times, [0, 5_000_000]);
    }

    #[test]
    fn what_does_not_belong_in_a_log_is_broken() {
        for line in [
            "x d read 0 512",
            "-1 d read 0 512",
            "1 d read 0",
            "1 d read 0 99999999999",
            "1 d read 18446744073709551615 1",
            "1 d wait 5 0",
            "1 d erase 0 512",
            "1",
            "99999999999999999999 d read 0 512",
        ] {
            assert!(read(&format!("fio version 3 iolog\n{line}"))[1].is_err(), "{line}");
        }
        assert!(read("fio version 4 iolog")[0].is_err());
    }
}
