//! Traces written: fio's log, Alibaba's CSV, block numbers.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use voltier_results::LabError;

use super::{Op, Request};

/// A format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// fio's log, version 3.
    Iolog,
    /// Alibaba's CSV, which has no discards.
    Alibaba,
    /// Block numbers of 32 bits, of blocks of 4 KiB: no times, no writes.
    U32,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "iolog" => Ok(Target::Iolog),
            "alibaba" => Ok(Target::Alibaba),
            "u32" => Ok(Target::U32),
            _ => Err(format!("`{name}` is not written: iolog, alibaba or u32")),
        }
    }
}

/// Writes requests to a new file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    target: Target,
    /// Names of volumes that the log has opened, by number.
    opened: Vec<bool>,
    last_us: u64,
    written: u64,
    left_out: u64,
}

impl Writer {
    /// Begins a file.
    ///
    /// # Errors
    /// When there is such a file, or it cannot be written.
    pub fn create(path: &Path, target: Target) -> Result<Writer, LabError> {
        let file = File::options().write(true).create_new(true).open(path);
        let file = BufWriter::new(file.map_err(LabError::file(path))?);
        let opened = Vec::new();
        let mut writer = Writer {
            path: path.to_path_buf(),
            file,
            target,
            opened,
            last_us: 1,
            written: 0,
            left_out: 0,
        };
        if target == Target::Iolog {
            writer.write(b"fio version 3 iolog\n")?;
        }
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LabError> {
        self.file.write_all(bytes).map_err(LabError::file(&self.path))
    }

    /// Adds a request of the volume `name`; what the format has no word for is left out and counted.
    ///
    /// # Errors
    /// When the trace cannot be written, or a block number needs more than 32 bits.
    pub fn add(&mut self, request: &Request, name: &str) -> Result<(), LabError> {
        self.written += 1;
        match self.target {
            Target::Iolog => self.add_to_log(request, name),
            Target::Alibaba => {
                let op = match request.op {
                    Op::Read => 'R',
                    Op::Write => 'W',
                    Op::Discard => return self.leave_out(),
                };
                let Request { volume, offset, bytes, at_ns, .. } = request;
                let line = format!("{volume},{op},{offset},{bytes},{}\n", at_ns / 1000);
                self.write(line.as_bytes())
            }
            Target::U32 => {
                if request.op == Op::Discard {
                    return self.leave_out();
                }
                let block = super::make::BLOCK_BYTES;
                for number in
                    request.offset / block..(request.offset + request.bytes).div_ceil(block)
                {
                    let number = u32::try_from(number).map_err(|_| LabError::Failed {
                        what: format!("writing {}", self.path.display()),
                        detail: format!("block {number} has more than 32 bits"),
                    })?;
                    self.write(&number.to_le_bytes())?;
                }
                Ok(())
            }
        }
    }

    fn leave_out(&mut self) -> Result<(), LabError> {
        (self.written, self.left_out) = (self.written - 1, self.left_out + 1);
        Ok(())
    }

    /// Times of fio's log never go back, and begin at 1: it takes zero for none.
    fn add_to_log(&mut self, request: &Request, name: &str) -> Result<(), LabError> {
        // A blank ends a name there.
        let name = name.replace(char::is_whitespace, "_");
        let volume = request.volume as usize;
        self.last_us = self.last_us.max(request.at_ns / 1000);
        let at_us = self.last_us;
        if self.opened.len() <= volume {
            self.opened.resize(volume + 1, false);
        }
        if !std::mem::replace(&mut self.opened[volume], true) {
            self.write(format!("{at_us} {name} add\n{at_us} {name} open\n").as_bytes())?;
        }
        let action = match request.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Discard => "trim",
        };
        let Request { offset, bytes, .. } = request;
        self.write(format!("{at_us} {name} {action} {offset} {bytes}\n").as_bytes())
    }

    /// Ends the file: requests written, and left out.
    ///
    /// # Errors
    /// When the trace cannot be written.
    pub fn finish(mut self) -> Result<(u64, u64), LabError> {
        self.file.flush().map_err(LabError::file(&self.path))?;
        Ok((self.written, self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::super::make::{Made, Pattern, Recipe};
    use super::super::{ReadOptions, Source};
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let recipe = Recipe {
            pattern: Pattern::Mixed(0.9),
            requests: 500,
            blocks: 100,
            write_percent: 30,
            rate: 1e6,
            seed: 4,
        };
        for target in [Target::Iolog, Target::Alibaba] {
            let path = folder.path().join(format!("{target:?}"));
            let mut writer = Writer::create(&path, target).unwrap();
            for request in Made::new(recipe) {
                writer.add(&request, "a disk").unwrap();
            }
            assert_eq!(writer.finish().unwrap(), (500, 0));
            let mut source =
                Source::open(std::slice::from_ref(&path), &ReadOptions::default()).unwrap();
            for request in Made::new(recipe) {
                assert_eq!(source.next_request().unwrap(), Some(request));
            }
            assert_eq!(source.next_request().unwrap(), None);
            assert!(Writer::create(&path, target).is_err(), "nothing is overwritten");
        }
    }

    #[test]
    fn a_log_counts_from_one_and_never_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut writer = Writer::create(&path, Target::Iolog).unwrap();
        for at_us in [0, 9, 5] {
            let (at_ns, offset) = (at_us * 1000, at_us * 512);
            let request = Request { at_ns, op: Op::Discard, volume: 0, offset, bytes: 512 };
            writer.add(&request, "d").unwrap();
        }
        writer.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "fio version 3 iolog\n1 d add\n1 d open\n1 d trim 0 512\n9 d trim 4608 512\n\
                        9 d trim 2560 512\n";
        assert_eq!(text, expected);
    }
}
