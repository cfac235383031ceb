//! The requests of several files in order of time, with the numbers of their volumes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use voltier_results::LabError;

use super::binary::Records;
use super::format::Format;
use super::input::{Input, Line};
use super::iolog::Iolog;
use super::options::ReadOptions;
use super::recognise::recognise;
use super::record::{Broken, Parsed, Record, Request, VOLUMES_MAX, Volume};
use super::text;

/// A file with too many broken records is given up before its end only behind so many.
const BROKEN_EARLY: u64 = 1000;

/// One file of a trace.
struct Reader {
    path: PathBuf,
    format: Format,
    block_bytes: u64,
    broken_max: f64,
    input: Input,
    line: Vec<u8>,
    records: Records,
    iolog: Iolog,
    /// Records, or lines, so far.
    count: u64,
    requests: u64,
    broken: Broken,
}

impl Reader {
    fn open(path: &Path, options: &ReadOptions) -> Result<Reader, LabError> {
        let (input, start) = Input::open(path)?;
        let refuse = |why: String| LabError::Unreadable { path: path.to_path_buf(), why };
        let format = options.format.or_else(|| recognise(&start)).ok_or_else(|| {
            let names = Format::names();
            refuse(format!("its format is not recognised: name it with --format ({names})"))
        })?;
        Ok(Reader {
            path: path.to_path_buf(),
            format,
            block_bytes: options.block_bytes,
            broken_max: options.broken_max_percent,
            input,
            line: Vec::new(),
            records: Records::new(format, &start).map_err(refuse)?,
            iolog: Iolog::default(),
            count: 0,
            requests: 0,
            broken: Broken::default(),
        })
    }

    /// The next request; broken records are counted and passed over.
    fn next(&mut self) -> Result<Option<Parsed>, LabError> {
        loop {
            let record = if self.format.is_text() { self.text()? } else { self.binary()? };
            let Some(record) = record else { return self.ended().map(|()| None) };
            self.count += 1;
            match record {
                Ok(Record::Request(parsed)) => {
                    self.requests += 1;
                    return Ok(Some(parsed));
                }
                Ok(Record::Other) => {}
                Err(why) => self.note(&why)?,
            }
        }
    }

    fn text(&mut self) -> Result<Option<Result<Record, String>>, LabError> {
        match self.input.line(&mut self.line)? {
            Line::End => return Ok(None),
            Line::TooLong => return Ok(Some(Err("a line of more than 4096 bytes".to_owned()))),
            Line::Read => {}
        }
        let Ok(line) = std::str::from_utf8(&self.line) else {
            return Ok(Some(Err("it is no text".to_owned())));
        };
        // A mark of UTF-8 at the start of a file belongs to no field.
        let line = if self.count == 0 { line.trim_start_matches('\u{feff}') } else { line };
        Ok(Some(match self.format {
            Format::Iolog => self.iolog.parse(line),
            Format::Lis => text::lis(line, self.block_bytes),
            _ if self.count == 0 && text::is_heading(line) => Ok(Record::Other),
            format => text::parse(format, line),
        }))
    }

    fn binary(&mut self) -> Result<Option<Result<Record, String>>, LabError> {
        self.records.next(&mut self.input, self.block_bytes)
    }

    fn note(&mut self, why: &str) -> Result<(), LabError> {
        self.broken.records += 1;
        let unit = if self.format.is_text() { "line" } else { "record" };
        self.broken.first.get_or_insert_with(|| {
            format!("{}, {unit} {}: {why}", self.path.display(), self.count)
        });
        if self.broken.records >= BROKEN_EARLY { self.judge() } else { Ok(()) }
    }

    fn judge(&self) -> Result<(), LabError> {
        let share = self.broken.records as f64 * 100.0 / self.count.max(1) as f64;
        if share <= self.broken_max {
            return Ok(());
        }
        let first = self.broken.first.as_deref().unwrap_or_default();
        Err(self.refuse(format!(
            "{} of {} records are broken, more than {} % (--max-broken); the first is {first}",
            self.broken.records, self.count, self.broken_max
        )))
    }

    fn ended(&self) -> Result<(), LabError> {
        match (self.requests, &self.broken.first) {
            (0, None) => Err(self.refuse(format!("no request is in it, read as {}", self.format))),
            (0, Some(first)) => Err(self.refuse(format!(
                "no request is in it, read as {} (--format names another); the first broken record \
                 is {first}",
                self.format
            ))),
            _ => self.judge(),
        }
    }

    fn refuse(&self, why: String) -> LabError {
        LabError::Unreadable { path: self.path.clone(), why }
    }
}

/// The requests of a trace of one or more files.
///
/// Those of one file come in its order, those of several in order of time.
pub struct Source {
    readers: Vec<Reader>,
    /// The next request of each reader, where there are several.
    heads: Vec<Option<Parsed>>,
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    wanted: Option<String>,
    left: u64,
}

impl Source {
    /// Opens the files and recognises their formats.
    ///
    /// # Errors
    /// One line with the file's name: it cannot be read, is empty, or of no format that is known.
    pub fn open(files: &[PathBuf], options: &ReadOptions) -> Result<Source, LabError> {
        let mut readers = Vec::new();
        for path in files {
            readers.push(Reader::open(path, options)?);
        }
        let mut heads = Vec::new();
        if readers.len() > 1 {
            for reader in &mut readers {
                heads.push(reader.next()?);
            }
        }
        Ok(Source {
            readers,
            heads,
            names: Vec::new(),
            numbers: BTreeMap::new(),
            wanted: options.volume.clone(),
            left: options.limit.unwrap_or(u64::MAX),
        })
    }

    /// The next request; `None` at the end.
    ///
    /// # Errors
    /// When a file cannot be read, or has too many broken records, or none but those. The trace that was
    /// made so far is then not to be used.
    pub fn next_request(&mut self) -> Result<Option<Request>, LabError> {
        while self.left > 0 {
            let Some((reader, parsed)) = self.take()? else { break };
            let Some(volume) = self.number(reader, parsed.volume)? else { continue };
            self.left -= 1;
            let Parsed { at_ns, op, offset, bytes, .. } = parsed;
            return Ok(Some(Request { at_ns, op, volume, offset, bytes }));
        }
        match &self.wanted {
            Some(wanted) if self.names.is_empty() => Err(LabError::Unreadable {
                path: self.readers.first().map(|reader| reader.path.clone()).unwrap_or_default(),
                why: format!("no volume in it is called {wanted}; `trace stats` lists them"),
            }),
            _ => Ok(None),
        }
    }

    /// The next request and the number of its file.
    fn take(&mut self) -> Result<Option<(usize, Parsed)>, LabError> {
        if self.heads.is_empty() {
            let Some(reader) = self.readers.first_mut() else { return Ok(None) };
            return Ok(reader.next()?.map(|parsed| (0, parsed)));
        }
        let first = self.heads.iter().enumerate();
        let first = first.filter_map(|(index, head)| Some((head.as_ref()?.at_ns, index))).min();
        let Some((_, index)) = first else { return Ok(None) };
        let next = self.readers[index].next()?;
        let taken = std::mem::replace(&mut self.heads[index], next);
        Ok(taken.map(|parsed| (index, parsed)))
    }

    /// The number of a volume; `None` when it is not the one that is wanted.
    fn number(&mut self, reader: usize, volume: Volume) -> Result<Option<u32>, LabError> {
        let path = &self.readers[reader].path;
        let name = match volume {
            Volume::Named(name) => name,
            Volume::Device(major, minor) => format!("{major},{minor}"),
            Volume::File => path.display().to_string(),
        };
        if let Some(number) = self.numbers.get(&name) {
            return Ok(Some(*number));
        }
        if self.wanted.as_ref().is_some_and(|wanted| *wanted != name) {
            return Ok(None);
        }
        if self.names.len() == VOLUMES_MAX {
            return Err(LabError::Unreadable {
                path: path.clone(),
                why: format!("it has more than {VOLUMES_MAX} volumes: choose one with --volume"),
            });
        }
        let number = self.names.len() as u32;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        Ok(Some(number))
    }

    /// Names of the volumes met so far, by number.
    pub fn volumes(&self) -> &[String] {
        &self.names
    }

    /// The formats of the files.
    pub fn formats(&self) -> Vec<Format> {
        self.readers.iter().map(|reader| reader.format).collect()
    }

    /// Whether all requests carry times.
    pub fn has_times(&self) -> bool {
        self.readers.iter().all(|reader| reader.format.has_times())
    }

    /// Broken records so far, of all files.
    pub fn broken(&self) -> Broken {
        let mut all = Broken::default();
        for reader in &self.readers {
            all.records += reader.broken.records;
            all.first = all.first.or_else(|| reader.broken.first.clone());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::binary::tests::{event, vscsi_1};
    use super::*;
    use std::fs;

    fn read(files: &[PathBuf], options: &ReadOptions) -> Result<(Vec<Request>, Source), LabError> {
        let mut source = Source::open(files, options)?;
        let mut requests = Vec::new();
        while let Some(request) = source.next_request()? {
            requests.push(request);
        }
        Ok((requests, source))
    }

    fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn formats_are_recognised_and_broken_lines_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\r\n".to_owned();
        for number in 0..300 {
            text.push_str(&format!("{},web,1,Write,{},4096,10\r\n", 1000 + number, number * 4096));
        }
        text.push_str("1300,web,1,Write,-1,4096,10\r\n1301,web,1,Wri");
        let path = file(folder.path(), "web_1.csv", &text);
        let (requests, source) =
            read(std::slice::from_ref(&path), &ReadOptions::default()).unwrap();
        assert_eq!((requests.len(), source.formats()), (300, vec![Format::Msr]));
        assert_eq!((source.volumes(), requests[7].at_ns), (&["web.1".to_owned()][..], 100_700));
        let broken = source.broken();
        assert_eq!(broken.records, 2);
        assert!(broken.first.unwrap().contains("web_1.csv, line 302: offset `-1` is no number"));
        let strict = ReadOptions { broken_max_percent: 0.5, ..ReadOptions::default() };
        let message = read(&[path], &strict).err().unwrap().to_string();
        assert!(message.contains("2 of 303 records are broken, more than 0.5 %"), "{message}");
        assert!(message.contains("line 302") && message.lines().count() == 1, "{message}");
    }

    #[test]
    fn what_cannot_be_read_says_so_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, content: &str| file(folder.path(), name, content);
        let alibaba = ReadOptions { format: Some(Format::Alibaba), ..ReadOptions::default() };
        for (path, options, part) in [
            (path("empty", ""), ReadOptions::default(), "it is empty"),
            (path("text", "hello\nworld\n"), ReadOptions::default(), "--format (msr, cloudphysics"),
            (path("other", "hello\nworld\n"), alibaba, "line 1: 1 fields, not 5"),
            (folder.path().to_path_buf(), ReadOptions::default(), "it is no file"),
            (folder.path().join("nothing"), ReadOptions::default(), "No such file"),
            (
                path("v9", "fio version 9 iolog\n1 d read 0 512\n"),
                ReadOptions::default(),
                "version 9",
            ),
        ] {
            let message = read(&[path], &options).err().unwrap().to_string();
            assert!(message.contains(part), "{part}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn files_of_processors_are_merged_by_time_and_a_cut_event_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let queue = |time: u64| event(time, time * 8, 4096, 1 | 1 << 16);
        let odd: Vec<u8> = (0..200).flat_map(|number| queue(2 * number + 1)).collect();
        let mut even: Vec<u8> = (0..200).flat_map(|number| queue(2 * number)).collect();
        even.extend(&queue(1000)[..20]);
        let files = [file(folder.path(), "a.0", odd), file(folder.path(), "a.1", even)];
        let (requests, source) = read(&files, &ReadOptions::default()).unwrap();
        assert!(requests.iter().enumerate().all(|(index, request)| request.at_ns == index as u64));
        assert_eq!((requests.len(), source.volumes()), (400, &["8,16".to_owned()][..]));
        assert!(source.broken().first.unwrap().ends_with("a.1, record 201: 20 of 48 bytes"));
    }

    #[test]
    fn packed_files_are_unpacked_and_damaged_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let plain = file(folder.path(), "vm", vscsi_1(0x28, 8, 4096, 3).repeat(5000));
        for program in ["gzip", "zstd", "xz"] {
            let output = std::process::Command::new(program).arg("-c").arg(&plain).output();
            let Ok(output) = output else {
                eprintln!("left out: {program} is missing");
                continue;
            };
            let packed = file(folder.path(), "packed", &output.stdout);
            let (requests, source) =
                read(std::slice::from_ref(&packed), &ReadOptions::default()).unwrap();
            assert_eq!((requests.len(), source.formats()), (5000, vec![Format::CloudPhysics]));
            let half = &output.stdout[..output.stdout.len() - 6];
            let cut = file(folder.path(), "cut", half);
            let message = read(&[cut], &ReadOptions::default()).err().unwrap().to_string();
            assert!(
                message.contains("damaged or cut short") || message.contains("empty"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_volume_and_a_number_of_requests_are_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = (0..100)
            .map(|number| format!("{},W,{},512,{number}\n", number % 3, number * 512))
            .collect();
        let files = [file(folder.path(), "io.csv", lines)];
        let chosen = |volume: &str, limit| {
            let volume = Some(volume.to_owned());
            read(&files, &ReadOptions { volume, limit, ..ReadOptions::default() })
        };
        let (requests, source) = chosen("2", None).unwrap();
        assert_eq!((requests.len(), source.volumes()), (33, &["2".to_owned()][..]));
        let (requests, _) = chosen("0", Some(5)).unwrap();
        assert_eq!((requests.len(), requests[4].offset), (5, 12 * 512));
        assert_eq!(requests[0].op, Op::Write);
        let message = chosen("7", None).err().unwrap().to_string();
        assert!(message.contains("no volume in it is called 7"), "{message}");
    }
}
