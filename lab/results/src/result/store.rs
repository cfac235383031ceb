//! The file of a run: written a line at a time, read back whole.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::de::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FORMAT, Manifest, Point, Rounds};
use crate::LabError;

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line {
    Manifest(Box<Manifest>),
    Point(Box<Point>),
    Rounds(Rounds),
    End,
}

/// The part of a manifest that is the same in every version.
#[derive(Deserialize)]
struct Head {
    version: u32,
    features: Vec<String>,
}

impl Line {
    /// Reads a line back. By hand: serde reads a tagged value through a copy in which the numbers of
    /// a histogram's bins are texts. Nothing of a manifest is believed before its version and features.
    fn read(text: &str) -> Result<Line, serde_json::Error> {
        let mut fields: serde_json::Map<String, Value> = serde_json::from_str(text)?;
        let record = fields.remove("record");
        let rest = Value::Object(fields);
        match record.as_ref().and_then(Value::as_str) {
            Some("manifest") => {
                let Head { version, features } = serde_json::from_value(rest.clone())?;
                let checked = FORMAT.check_names(version, &features);
                checked.map_err(serde_json::Error::custom)?;
                serde_json::from_value(rest).map(Line::Manifest)
            }
            Some("point") => serde_json::from_value(rest).map(Line::Point),
            Some("rounds") => serde_json::from_value(rest).map(Line::Rounds),
            Some("end") => Ok(Line::End),
            _ => Err(serde_json::Error::custom("no record of a run")),
        }
    }
}

/// A run as read back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The first line of the file.
    pub manifest: Manifest,
    /// The points in the order in which they were finished; of a repeated id the last.
    pub points: Vec<Point>,
    /// The rounds in which points were measured, of a repeated name the last.
    pub rounds: Vec<Rounds>,
    /// Whether the last line was cut off (the program was killed while it wrote).
    pub is_cut: bool,
    /// Whether the last line says that the plan was gone through. Runs that were imported, or are
    /// still running, do not say so.
    pub is_ended: bool,
}

impl Run {
    /// Reads the file of a run. A last line without its end is left out and marked; anything else
    /// that cannot be read is an error.
    ///
    /// # Errors
    /// When the file cannot be read, is not a run, is of a version or has a feature that this program
    /// does not know, or has a broken line.
    pub fn read(path: &Path) -> Result<Run, LabError> {
        let unreadable = |number: usize, why: String| LabError::Answer {
            what: format!("{}, line {number}", path.display()),
            detail: why,
        };
        let mut reader = BufReader::new(File::open(path).map_err(LabError::file(path))?);
        let mut run = None::<Run>;
        let (mut text, mut number) = (String::new(), 0);
        loop {
            text.clear();
            number += 1;
            if reader.read_line(&mut text).map_err(LabError::file(path))? == 0 {
                break;
            }
            let is_whole = text.ends_with('\n');
            let line = match Line::read(&text) {
                Ok(line) => line,
                Err(_) if !is_whole && run.is_some() => {
                    run.as_mut().expect("just seen").is_cut = true;
                    break;
                }
                Err(source) => return Err(unreadable(number, source.to_string())),
            };
            match (line, &mut run) {
                (Line::Manifest(manifest), None) => {
                    run = Some(Run { manifest: *manifest, ..Run::default() });
                }
                (Line::Point(point), Some(run)) => {
                    run.keep(*point);
                    run.is_ended = false;
                }
                (Line::Rounds(rounds), Some(run)) => run.keep_rounds(rounds),
                (Line::End, Some(run)) => run.is_ended = true,
                (Line::Manifest(_), Some(_)) => {
                    return Err(unreadable(number, "a second manifest".to_owned()));
                }
                (Line::Point(_) | Line::Rounds(_) | Line::End, None) => {
                    return Err(unreadable(number, "a point before the manifest".to_owned()));
                }
            }
        }
        run.ok_or_else(|| unreadable(1, "the file is empty".to_owned()))
    }

    /// The point of an id.
    pub fn point(&self, id: &str) -> Option<&Point> {
        self.points.iter().find(|point| point.id == id)
    }

    /// The rounds that a point is of; `None` of a point without rounds, and where the file does not
    /// tell.
    pub fn rounds_of(&self, point: &Point) -> Option<&Rounds> {
        let name = point.rounds.as_ref()?;
        self.rounds.iter().find(|rounds| rounds.name == *name)
    }

    /// Whether points were measured in rounds that the file does not explain: what was tracked, and
    /// which rounds count. Files of other programs lack that.
    pub fn lacks_rounds(&self) -> bool {
        self.points.iter().any(|point| point.axes.round.is_some() && point.rounds.is_none())
    }

    /// Adds a point, in the place of the one that has its id.
    pub fn keep(&mut self, point: Point) {
        match self.points.iter_mut().find(|kept| kept.id == point.id) {
            Some(kept) => *kept = point,
            None => self.points.push(point),
        }
    }

    /// Adds rounds, in the place of those that have their name.
    pub fn keep_rounds(&mut self, rounds: Rounds) {
        match self.rounds.iter_mut().find(|kept| kept.name == rounds.name) {
            Some(kept) => *kept = rounds,
            None => self.rounds.push(rounds),
        }
    }
}

/// Appends to the file of a run. Every line is on the disk before the next point begins.
#[derive(Debug)]
pub struct RunWriter {
    file: File,
    path: PathBuf,
}

impl RunWriter {
    /// Begins a new file with its manifest.
    ///
    /// # Errors
    /// When there is such a file, or it cannot be written.
    pub fn create(path: &Path, manifest: &Manifest) -> Result<RunWriter, LabError> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let mut writer =
            RunWriter { file: file.map_err(LabError::file(path))?, path: path.to_path_buf() };
        writer.append(&Line::Manifest(Box::new(manifest.clone())))?;
        Ok(writer)
    }

    /// Goes on with a file, after what it has; a cut last line is taken away first.
    ///
    /// # Errors
    /// As [`Run::read`], or when the file cannot be written.
    pub fn resume(path: &Path) -> Result<(RunWriter, Run), LabError> {
        let run = Run::read(path)?;
        let file = OpenOptions::new().read(true).append(true).open(path);
        let file = file.map_err(LabError::file(path))?;
        if run.is_cut {
            let text = std::fs::read(path).map_err(LabError::file(path))?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            file.set_len(whole as u64).map_err(LabError::file(path))?;
        }
        let run = Run { is_cut: false, is_ended: false, ..run };
        Ok((RunWriter { file, path: path.to_path_buf() }, run))
    }

    /// Stores a finished point.
    ///
    /// # Errors
    /// When the point cannot be written: the disk of the results is full, for one.
    pub fn point(&mut self, point: &Point) -> Result<(), LabError> {
        self.append(&Line::Point(Box::new(point.clone())))
    }

    /// Stores what is watched in rounds, and which of them count.
    ///
    /// # Errors
    /// As [`RunWriter::point`].
    pub fn rounds(&mut self, rounds: &Rounds) -> Result<(), LabError> {
        self.append(&Line::Rounds(rounds.clone()))
    }

    /// Says that the plan was gone through: what is not there will not come.
    ///
    /// # Errors
    /// As [`RunWriter::point`].
    pub fn end(&mut self) -> Result<(), LabError> {
        self.append(&Line::End)
    }

    fn append(&mut self, line: &Line) -> Result<(), LabError> {
        let mut text = serde_json::to_string(line).map_err(|source| LabError::Answer {
            what: self.path.display().to_string(),
            detail: source.to_string(),
        })?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(LabError::file(&self.path))?;
        self.file.sync_data().map_err(LabError::file(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Flow, Histogram, Status};

    fn point(id: &str, iops: f64) -> Point {
        let mut histogram = Histogram::default();
        histogram.record(123_456);
        let histogram = Some(histogram);
        let read = Flow { requests: 1, iops, histogram, ..Flow::default() };
        Point { id: id.to_owned(), read: Some(read), ..Point::default() }
    }

    #[test]
    fn a_killed_run_keeps_its_whole_lines_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let manifest = Manifest { plan: "pts".to_owned(), ..Manifest::default() };
        let mut writer = RunWriter::create(&path, &manifest).unwrap();
        writer.point(&point("a", 1.5)).unwrap();
        writer.point(&point("b", 2.0)).unwrap();
        drop(writer);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 7]).unwrap();
        let run = Run::read(&path).unwrap();
        assert!(run.is_cut);
        assert_eq!(run.points, [point("a", 1.5)]);

        let (mut writer, run) = RunWriter::resume(&path).unwrap();
        assert_eq!(run.points.len(), 1);
        writer.point(&point("b", 3.0)).unwrap();
        let failed = Status::Failed("fio ended with 1".to_owned());
        writer.point(&Point { status: failed.clone(), ..point("a", 0.0) }).unwrap();
        let run = Run::read(&path).unwrap();
        assert!(!run.is_cut && !run.is_ended);
        assert_eq!(run.point("b").unwrap().iops(), Some(3.0));
        assert_eq!(run.point("a").unwrap().status, failed);

        writer.end().unwrap();
        assert!(Run::read(&path).unwrap().is_ended);
        let (mut writer, _) = RunWriter::resume(&path).unwrap();
        writer.point(&point("c", 1.0)).unwrap();
        assert!(!Run::read(&path).unwrap().is_ended, "a point after the end: it goes on");
    }

    #[test]
    fn rounds_are_read_back_and_points_whose_rounds_nobody_explains_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let mut writer = RunWriter::create(&path, &Manifest::default()).unwrap();
        let mut rounds =
            Rounds { name: "ssd/tp".to_owned(), trackers: Vec::new(), window: None, end: None };
        writer.rounds(&rounds).unwrap();
        rounds.window = Some((3, 7));
        writer.rounds(&rounds).unwrap();
        let of_rounds = Point { rounds: Some("ssd/tp".to_owned()), ..point("a", 1.0) };
        writer.point(&of_rounds).unwrap();
        let run = Run::read(&path).unwrap();
        assert_eq!(run.rounds_of(&of_rounds).unwrap().window, Some((3, 7)));
        assert_eq!((run.rounds.len(), run.lacks_rounds()), (1, false));

        let text = std::fs::read_to_string(&path).unwrap();
        let manifest = text.lines().next().unwrap();
        let of_no_rounds = concat!(
            r#"{"record":"point","id":"a","axes":{"target":"ssd","phase":"iops","round":1},"#,
            r#""status":{"state":"ok"},"started_unix_ms":1}"#
        );
        std::fs::write(&path, format!("{manifest}\n{of_no_rounds}\n")).unwrap();
        let run = Run::read(&path).unwrap();
        assert_eq!((run.points.len(), run.lacks_rounds()), (1, true));
    }

    #[test]
    fn an_unknown_version_or_feature_is_refused_by_name_and_the_file_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        RunWriter::create(&path, &Manifest::default()).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let (version, features) = ("\"version\":1,", "\"features\":[]");
        for (said, other, words) in [
            (
                version,
                "\"version\":2,\"new\":0,",
                "format version 2, and this Voltier reads version 1",
            ),
            (version, "\"version\":0,", "format version 0, "),
            (features, "\"features\":[\"phases\"]", "feature phases is unknown here"),
            (features, "\"features\":[],\"new\":0", "unknown field `new`"),
            (version, "", "missing field `version`"),
        ] {
            assert!(good.contains(said), "{good}");
            let text = good.replacen(said, other, 1);
            std::fs::write(&path, &text).unwrap();
            for message in [
                Run::read(&path).unwrap_err().to_string(),
                RunWriter::resume(&path).unwrap_err().to_string(),
            ] {
                assert!(message.contains(words), "{message}");
                assert!(message.contains(&path.display().to_string()), "{message}");
                assert_eq!(message.lines().count(), 1);
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_is_not_a_run_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        for (text, part) in
            [("", "empty"), ("{\"jobs\":[]}\n", "line 1"), ("{\"record\":\"point\"}\n", "line 1")]
        {
            std::fs::write(&path, text).unwrap();
            let message = Run::read(&path).unwrap_err().to_string();
            assert!(message.contains(part), "{text:?}: {message}");
            assert_eq!(message.lines().count(), 1);
        }
        RunWriter::create(&path, &Manifest::default()).unwrap_err();
    }
}
