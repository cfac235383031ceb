//! Following a job: a bar on a terminal, a line at every tenth otherwise.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use voltier_control::protocol::{JobState, JobStatus, Request};
use voltier_control::{
    ArrayDetail, Client, ControlError, ControlResult, Interrupt, TaskStatus, format_size,
};

/// How often the daemon is asked.
const POLL: Duration = Duration::from_millis(100);

/// Waits for the end of a job. An interrupt ends the job in the daemon: what is dirty stays dirty. (When this
/// program dies otherwise, the job goes on.)
///
/// # Errors
/// When the job failed or was ended, or the daemon went away.
pub(crate) fn follow(
    client: &mut Client,
    first: JobStatus,
    interrupt: &Interrupt,
) -> ControlResult<JobStatus> {
    let mut is_ended = false;
    let mut shown = Shown::of(&format!("{} {}", first.verb, first.volume), BarUnit::Lines);
    let mut job = first;
    loop {
        shown.update(job.lines_done, job.lines_total);
        match job.state {
            JobState::Running => std::thread::park_timeout(POLL),
            JobState::Done => {
                shown.clear();
                return Ok(job);
            }
            JobState::Failed(error) => {
                shown.clear();
                return Err(error);
            }
        }
        let id = job.id;
        let ends = interrupt.has_come() && !is_ended;
        is_ended |= ends;
        job = client.job(&if ends { Request::EndJob { id } } else { Request::Job { id } })?;
    }
}

/// A background task of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Rebuild,
    Grow,
    Reshape,
    Scrub,
}

impl Task {
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Task::Rebuild => "rebuild",
            Task::Grow | Task::Reshape => "grow",
            Task::Scrub => "scrub",
        }
    }

    fn of(self, array: &ArrayDetail) -> TaskStatus {
        match self {
            Task::Rebuild | Task::Grow => array.rebuild,
            Task::Reshape => array.reshape.as_ref().map(|it| it.task).unwrap_or_default(),
            Task::Scrub => array.scrub,
        }
    }
}

/// Waits for the end of a background task. An interrupt ends the wait; the task goes on in the daemon.
///
/// # Errors
/// When the task ended early, or the daemon went away.
pub(crate) fn follow_array(
    client: &mut Client,
    first: ArrayDetail,
    task: Task,
) -> ControlResult<ArrayDetail> {
    let name = first.name.clone();
    let mut shown = Shown::of(&format!("{} {name}", task.verb()), BarUnit::Bytes);
    let mut array = first;
    while task.of(&array).running {
        let TaskStatus { done_bytes, total_bytes, .. } = task.of(&array);
        shown.update(done_bytes, total_bytes);
        std::thread::park_timeout(POLL);
        let now = client.arrays(Some(&name))?;
        array = now.into_iter().next().unwrap_or(array);
        check_move(&array, task)?;
    }
    shown.clear();
    let stuck = array.rebuild_stuck_regions;
    if task != Task::Scrub && stuck > 0 {
        return Err(ControlError::failed(format!(
            "{name}: {stuck} regions cannot be rebuilt, because too much of them cannot be read; \
             see `dmesg`, then `voltier array rebuild {name}` tries again"
        )));
    }
    Ok(array)
}

/// A move that waits for something may do so for ever: who follows it is told.
fn check_move(array: &ArrayDetail, task: Task) -> ControlResult<()> {
    let Some(reshape) = array.reshape.as_ref().filter(|_| task == Task::Reshape) else {
        return Ok(());
    };
    let name = &array.name;
    let why = match (reshape.waits_for.as_deref(), &reshape.error) {
        (Some("members"), _) => "members are missing or being filled".to_owned(),
        (Some("failed_writes"), _) => "writes to it have failed".to_owned(),
        (None, Some(error)) => error.clone(),
        _ => return Ok(()),
    };
    Err(ControlError::failed(format!(
        "{name}: the data are not being moved: {why}; see `voltier array show {name}`. The move \
         goes on by itself when that is repaired"
    )))
}

/// The unit in which a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BarUnit {
    Lines,
    Bytes,
}

/// How far something is, on a terminal or elsewhere.
enum Shown {
    Bar(ProgressBar),
    Lines { what: String, unit: BarUnit, tenths: u64 },
}

impl Shown {
    fn of(what: &str, unit: BarUnit) -> Self {
        if !std::io::stderr().is_terminal() {
            return Shown::Lines { what: what.to_owned(), unit, tenths: 0 };
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = match unit {
            BarUnit::Lines => {
                "{prefix} [{bar:40}] {percent}% {human_pos}/{human_len} lines, {eta} left"
            }
            BarUnit::Bytes => {
                "{prefix} [{bar:40}] {percent}% {binary_bytes}/{binary_total_bytes}, \
                 {binary_bytes_per_sec}, {eta} left"
            }
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        Shown::Bar(bar)
    }

    fn update(&mut self, done: u64, total: u64) {
        match self {
            Shown::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Shown::Lines { what, unit, tenths } => {
                let now = (u128::from(done) * 10).checked_div(total.into()).unwrap_or(0) as u64;
                if now > *tenths && done < total {
                    *tenths = now;
                    match unit {
                        BarUnit::Lines => eprintln!("{what}: {done} of {total} lines written back"),
                        BarUnit::Bytes => {
                            let (done, total) = (format_size(done), format_size(total));
                            eprintln!("{what}: {done} of {total} done");
                        }
                    }
                }
            }
        }
    }

    fn clear(&self) {
        if let Shown::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
