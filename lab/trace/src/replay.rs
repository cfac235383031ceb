//! A trace as requests of a target: its times scaled, its addresses fitted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use voltier_results::LabError;
use voltier_results::size::{bytes_in_words, format_bytes};

use super::lines::is_data;
use super::{Op, ReadOptions, Request, Source};

/// The most bytes of a discard that is replayed; of a longer one the rest is left out.
const DISCARD_MAX: u64 = 1 << 30;

/// Volumes that a message names.
const VOLUMES_NAMED: usize = 5;

/// The fate of addresses beyond the end of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// The trace is refused.
    Refuse,
    /// Addresses begin again at the target's start.
    Wrap,
    /// All addresses shrink in proportion.
    Scale,
}

/// The demands of a trace on a target, found in a pass over the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Requests that are replayed.
    pub requests: u64,
    /// Writes and discards among them.
    pub changing: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Where the last byte ends.
    pub end: u64,
    /// When the first request was made, by the trace's clock.
    pub first_ns: u64,
    /// From the first request to the last.
    pub span_ns: u64,
}

/// A trace to be replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The files of the trace.
    pub files: Vec<PathBuf>,
    /// How they are read.
    pub options: ReadOptions,
    /// Times run so many times as fast; zero is as fast as possible.
    pub speed: f64,
    /// Addresses beyond the target.
    pub fit: Fit,
    /// Requests in flight at most.
    pub depth: u32,
    /// Writes and discards are left out.
    pub is_reads_only: bool,
    /// The findings of a pass over the trace.
    pub survey: Survey,
}

impl PartialEq for Replay {
    fn eq(&self, other: &Replay) -> bool {
        (&self.files, self.speed, self.fit, self.depth, &self.survey)
            == (&other.files, other.speed, other.fit, other.depth, &other.survey)
    }
}

impl Replay {
    /// Reads the trace once, and checks that it can be replayed at all.
    ///
    /// # Errors
    /// One line: unreadable, several volumes, times that it does not have, nothing to replay.
    pub fn survey(&mut self) -> Result<(), LabError> {
        let mut source = Source::open(&self.files, &self.options)?;
        let mut survey = Survey::default();
        let mut last_ns = 0;
        while let Some(request) = source.next_request()? {
            if self.is_reads_only && request.op != Op::Read {
                continue;
            }
            if survey.requests == 0 {
                (survey.first_ns, last_ns) = (request.at_ns, request.at_ns);
            }
            survey.requests += 1;
            survey.changing += u64::from(request.op != Op::Read);
            if request.op == Op::Write {
                survey.written_bytes += request.bytes;
            }
            survey.end = survey.end.max(request.offset + request.bytes);
            last_ns = last_ns.max(request.at_ns);
        }
        survey.span_ns = last_ns - survey.first_ns;
        let refuse = |why: String| LabError::Unreadable {
            path: self.files.first().cloned().unwrap_or_default(),
            why,
        };
        if survey.requests == 0 {
            return Err(refuse("no request in it is to be replayed".to_owned()));
        }
        if let names @ [_, _, ..] = source.volumes() {
            let more = if names.len() > VOLUMES_NAMED { ", ..." } else { "" };
            let named = names[..names.len().min(VOLUMES_NAMED)].join(", ");
            let count = names.len();
            let why = format!("it has {count} volumes: choose one with --volume ({named}{more})");
            return Err(refuse(why));
        }
        if self.speed > 0.0 && !source.has_times() {
            return Err(refuse("it has no times: replay it with --speed max".to_owned()));
        }
        self.survey = survey;
        Ok(())
    }

    /// Checks that the addresses fit on a target.
    ///
    /// # Errors
    /// One line when they do not, and nothing says what to do with them.
    pub fn check_fit(&self, target: &str, size_bytes: u64) -> Result<(), LabError> {
        if self.fit != Fit::Refuse || self.survey.end <= size_bytes {
            return Ok(());
        }
        Err(LabError::Target {
            target: target.to_owned(),
            why: format!(
                "is too small: {} are used of it and the trace reaches to {}; give a larger one, or \
                 --fit wrap or --fit scale",
                format_bytes(size_bytes),
                bytes_in_words(self.survey.end)
            ),
        })
    }

    /// How long it takes at its speed, nanoseconds; zero when it goes as fast as possible.
    pub fn span_ns(&self) -> u64 {
        if self.speed > 0.0 { (self.survey.span_ns as f64 / self.speed) as u64 } else { 0 }
    }

    /// The requests for a target of so many bytes in blocks of so many.
    ///
    /// # Errors
    /// When the files cannot be opened.
    pub fn requests(&self, size_bytes: u64, block_bytes: u64) -> Result<Requests, LabError> {
        let source = Source::open(&self.files, &self.options)?;
        let replay = self.clone();
        Ok(Requests { source, replay, size_bytes, block_bytes, last_ns: 0, widened: 0 })
    }
}

/// Requests of a replay, in order.
pub struct Requests {
    source: Source,
    replay: Replay,
    size_bytes: u64,
    block_bytes: u64,
    last_ns: u64,
    /// Requests that had to be widened to whole blocks of the target.
    pub widened: u64,
}

impl Requests {
    /// The next one; its time is from the start of the replay, and never goes back.
    ///
    /// # Errors
    /// As [`Source::next_request`].
    pub fn next_request(&mut self) -> Result<Option<Request>, LabError> {
        while let Some(request) = self.source.next_request()? {
            if self.replay.is_reads_only && request.op != Op::Read {
                continue;
            }
            return Ok(Some(self.fitted(request)));
        }
        Ok(None)
    }

    fn fitted(&mut self, mut request: Request) -> Request {
        let Replay { speed, fit, survey, .. } = &self.replay;
        let since = request.at_ns.saturating_sub(survey.first_ns);
        let at_ns = if *speed > 0.0 { (since as f64 / speed) as u64 } else { 0 };
        self.last_ns = self.last_ns.max(at_ns);
        request.at_ns = self.last_ns;
        if !is_data(&request) {
            request.bytes = request.bytes.min(DISCARD_MAX);
        }
        let size = self.size_bytes / self.block_bytes * self.block_bytes;
        let offset = match fit {
            Fit::Scale if survey.end > size => {
                let scaled = u128::from(request.offset) * u128::from(size);
                (scaled / u128::from(survey.end)) as u64
            }
            Fit::Wrap => request.offset % size,
            _ => request.offset,
        };
        let begin = offset / self.block_bytes * self.block_bytes;
        let end = (offset + request.bytes).next_multiple_of(self.block_bytes);
        if end - begin != request.bytes {
            self.widened += 1;
        }
        request.bytes = (end - begin).min(size);
        request.offset = begin.min(size - request.bytes);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(folder: &std::path::Path, text: &str) -> Replay {
        let path = folder.join("trace.csv");
        std::fs::write(&path, text).unwrap();
        Replay {
            files: vec![path],
            options: ReadOptions::default(),
            speed: 2.0,
            fit: Fit::Refuse,
            depth: 4,
            is_reads_only: false,
            survey: Survey::default(),
        }
    }

    fn all(replay: &Replay, size: u64, block: u64) -> Vec<(u64, u64, u64)> {
        let mut requests = replay.requests(size, block).unwrap();
        std::iter::from_fn(|| requests.next_request().unwrap())
            .map(|request| (request.at_ns, request.offset, request.bytes))
            .collect()
    }

    #[test]
    fn times_and_addresses_are_fitted_as_asked() {
        let folder = tempfile::tempdir().unwrap();
        let text = "1,R,512,512,1000\n1,W,1048576,8192,1200\n1,R,2093056,4096,1100\n";
        let mut replay = replay(folder.path(), text);
        replay.survey().unwrap();
        let Survey { requests, changing, written_bytes, end, span_ns, .. } = replay.survey;
        assert_eq!((requests, changing, written_bytes), (3, 1, 8192));
        assert_eq!((end, span_ns, replay.span_ns()), (2_097_152, 200_000, 100_000));
        let message = replay.check_fit("disk", 1 << 20).unwrap_err().to_string();
        assert!(message.contains("reaches to 2M") && message.contains("--fit wrap"), "{message}");
        replay.check_fit("disk", 2 << 20).unwrap();
        let plain = [(0, 512, 512), (100_000, 1 << 20, 8192), (100_000, 2_093_056, 4096)];
        assert_eq!(all(&replay, 2 << 20, 512), plain);
        assert_eq!(all(&replay, 2 << 20, 4096)[0], (0, 0, 4096));
        replay.fit = Fit::Wrap;
        let wrapped = [(0, 512, 512), (100_000, 0, 8192), (100_000, 1_044_480, 4096)];
        assert_eq!(all(&replay, 1 << 20, 512), wrapped);
        replay.fit = Fit::Scale;
        replay.speed = 0.0;
        let scaled = [(0, 0, 1024), (0, 524_288, 8192), (0, 1_044_480, 4096)];
        assert_eq!(all(&replay, 1 << 20, 512)[1..], scaled[1..]);
        replay.is_reads_only = true;
        assert_eq!(all(&replay, 1 << 20, 512).len(), 2);
    }

    #[test]
    fn what_cannot_be_replayed_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let mut several = replay(folder.path(), "1,R,0,512,1\n2,R,0,512,2\n");
        let message = several.survey().unwrap_err().to_string();
        assert!(message.contains("2 volumes: choose one with --volume (1, 2)"), "{message}");
        let mut writes = replay(folder.path(), "1,W,0,512,1\n");
        writes.is_reads_only = true;
        assert!(writes.survey().unwrap_err().to_string().contains("no request"));
        let mut timeless = replay(folder.path(), "1 2 0 0\n");
        timeless.options.format = Some(super::super::Format::Lis);
        assert!(timeless.survey().unwrap_err().to_string().contains("--speed max"));
    }
}
