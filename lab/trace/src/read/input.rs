//! Files as streams of bytes, through gzip, zstd or xz where they are packed so.

use std::fs::File;
use std::io::{BufRead, BufReader, Chain, Cursor, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use voltier_results::LabError;

/// Bytes from the start that are looked at.
const START_BYTES: u64 = 64 << 10;

/// Bytes of a line at most.
const LINE_MAX: u64 = 4 << 10;

/// How packed files begin, the program that unpacks them, and its Debian package.
const PACKED: [(&[u8], &str, &str); 3] = [
    (&[0x1f, 0x8b], "gzip", "gzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz-utils"),
];

/// The bytes that were looked at to recognise the packing, and the rest of the file.
type Unpacked = Chain<Cursor<Vec<u8>>, Box<dyn Read>>;

/// A file, unpacked as it is read.
pub(super) struct Input {
    path: PathBuf,
    reader: BufReader<Unpacked>,
    unpacker: Option<(Child, &'static str)>,
}

/// The outcome of reading a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// There is one.
    Read,
    /// The line is longer than any format has it; its rest was passed over.
    TooLong,
    /// The file ended.
    End,
}

impl Input {
    /// Opens a file, and looks at its start.
    ///
    /// # Errors
    /// When the path is no file, cannot be read, is empty, or its unpacker is not installed.
    pub(super) fn open(path: &Path) -> Result<(Input, Vec<u8>), LabError> {
        let refuse =
            |why: &str| LabError::Unreadable { path: path.to_path_buf(), why: why.to_owned() };
        let mut file = File::open(path).map_err(LabError::file(path))?;
        if !file.metadata().map_err(LabError::file(path))?.is_file() {
            return Err(refuse("it is no file"));
        }
        let mut start = start_of(&mut file, path)?;
        let packed = PACKED.iter().find(|(magic, ..)| start.starts_with(magic));
        let (reader, unpacker): (Box<dyn Read>, _) = match packed {
            None => (Box::new(file), None),
            Some((_, program, package)) => {
                let mut child = unpack(path, program, package)?;
                let mut output = child.stdout.take().expect("it is piped");
                start = start_of(&mut output, path)?;
                (Box::new(output), Some((child, *program)))
            }
        };
        let chained = Cursor::new(start.clone()).chain(reader);
        let reader = BufReader::with_capacity(256 << 10, chained);
        let mut input = Input { path: path.to_path_buf(), reader, unpacker };
        if start.is_empty() {
            input.ended()?;
            return Err(refuse("it is empty"));
        }
        Ok((input, start))
    }

    /// Reads a line, without its end, over what `line` held.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged where it is packed.
    pub(super) fn line(&mut self, line: &mut Vec<u8>) -> Result<Line, LabError> {
        line.clear();
        let failed = LabError::file(&self.path);
        let mut limited = (&mut self.reader).take(LINE_MAX);
        if limited.read_until(b'\n', line).map_err(failed)? == 0 {
            return self.ended().map(|()| Line::End);
        }
        if line.last() != Some(&b'\n') && line.len() as u64 == LINE_MAX {
            self.reader.skip_until(b'\n').map_err(LabError::file(&self.path))?;
            return Ok(Line::TooLong);
        }
        while line.last().is_some_and(|byte| b"\r\n".contains(byte)) {
            line.pop();
        }
        Ok(Line::Read)
    }

    /// Fills `record` as far as the file goes; how many bytes there were.
    ///
    /// # Errors
    /// As [`Input::line`].
    pub(super) fn fill(&mut self, record: &mut [u8]) -> Result<usize, LabError> {
        let mut have = 0;
        while have < record.len() {
            match self.reader.read(&mut record[have..]) {
                Ok(0) => {
                    self.ended()?;
                    break;
                }
                Ok(more) => have += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(LabError::file(&self.path)(error)),
            }
        }
        Ok(have)
    }

    /// Passes over bytes; how many there were.
    ///
    /// # Errors
    /// As [`Input::line`].
    pub(super) fn skip(&mut self, bytes: u64) -> Result<u64, LabError> {
        let mut limited = (&mut self.reader).take(bytes);
        std::io::copy(&mut limited, &mut std::io::sink()).map_err(LabError::file(&self.path))
    }

    /// The verdict of the unpacker at the end of its output.
    fn ended(&mut self) -> Result<(), LabError> {
        let Some((mut child, program)) = self.unpacker.take() else { return Ok(()) };
        let status = child.wait().map_err(LabError::file(&self.path))?;
        if status.success() {
            return Ok(());
        }
        Err(LabError::Unreadable {
            path: self.path.clone(),
            why: format!("it is damaged or cut short: {program} ended with {status}"),
        })
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.unpacker.take() {
            // The unpacker may have ended by itself.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn start_of(reader: &mut impl Read, path: &Path) -> Result<Vec<u8>, LabError> {
    let mut start = Vec::new();
    reader.take(START_BYTES).read_to_end(&mut start).map_err(LabError::file(path))?;
    Ok(start)
}

fn unpack(path: &Path, program: &'static str, package: &'static str) -> Result<Child, LabError> {
    let mut command = Command::new(program);
    command.arg("-dc").arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => LabError::Missing { program, package },
        _ => LabError::File { path: path.to_path_buf(), source: error },
    })
}
