//! Dirty lines cut into what goes to the origin together: neighbours, and whole stripes. Pure.

use std::ops::Range;

use crate::clean::stripes::Stripes;
use crate::log::ordered::Version;
use crate::numbers::{Line, Slot};

/// A line to be written out: from the slot it is in, or (in ordered mode) a kept version of it.
#[derive(Clone, Copy)]
pub(crate) struct Dirty {
    pub(crate) line: Line,
    pub(crate) slot: Slot,
    pub(crate) version: Option<Kept>,
}

/// A version that the log kept when the batch was made.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) version: Version,
    /// The count of order switches at that time.
    pub(crate) order_switches: u64,
}

/// Lines that go to the origin together.
pub(crate) struct Run {
    pub(super) lines: Vec<Dirty>,
    /// All of these are written, also those between the dirty ones; none if there are no such.
    pub(super) whole: Option<Range<Line>>,
}

/// Cuts ascending lines into runs of neighbours, of so many lines at most.
pub(super) fn neighbours(lines: Vec<Dirty>, lines_max: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for dirty in lines {
        match runs.last_mut().map(|run| &mut run.lines) {
            Some(run) if run.len() < lines_max && run[run.len() - 1].line + 1 == dirty.line => {
                run.push(dirty);
            }
            _ => runs.push(Run { lines: vec![dirty], whole: None }),
        }
    }
    runs
}

/// Cuts ascending lines into runs that are whole stripes, where these are dirty or better written whole,
/// and into neighbours elsewhere.
pub(super) fn by_stripes(lines: &[Dirty], stripes: &Stripes) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let window_of = |dirty: &Dirty| stripes.window_of(dirty.line);
    for lines in lines.chunk_by(|one, next| window_of(one) == window_of(next)) {
        let window = window_of(&lines[0]);
        let parts = neighbours(lines.to_vec(), lines.len());
        let is_whole = lines.len() as u64 == window.end - window.start;
        let ranges: Vec<Range<Line>> = parts
            .iter()
            .map(|part| part.lines[0].line..part.lines[0].line + part.lines.len() as u64)
            .collect();
        if !is_whole && !stripes.is_better_whole(&window, &ranges) {
            runs.extend(parts);
            continue;
        }
        match runs.last_mut() {
            Some(Run { lines: before, whole: Some(whole) })
                if whole.end == window.start
                    && stripes.are_of_one_run(whole.start, window.start) =>
            {
                before.extend_from_slice(lines);
                whole.end = window.end;
            }
            _ => runs.push(Run { lines: lines.to_vec(), whole: Some(window) }),
        }
    }
    runs
}
