//! Following a job: a bar on a terminal, a line at every tenth otherwise.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use voltier_control::protocol::{JobState, JobStatus, Request};
use voltier_control::{Client, ControlResult};

/// How often the daemon is asked.
const POLL: Duration = Duration::from_millis(100);

/// Waits for the end of a job. The job goes on in the daemon when this is interrupted.
///
/// # Errors
/// What the job failed with, or that the daemon went away.
pub(crate) fn follow(client: &mut Client, first: JobStatus) -> ControlResult<JobStatus> {
    let mut shown = Shown::new(&first);
    let mut job = first;
    loop {
        shown.update(&job);
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
        job = client.job(&Request::Job { id: job.id })?;
    }
}

enum Shown {
    Bar(ProgressBar),
    Lines { tenths: u64 },
}

impl Shown {
    fn new(job: &JobStatus) -> Self {
        if !std::io::stderr().is_terminal() {
            return Shown::Lines { tenths: 0 };
        }
        let bar =
            ProgressBar::with_draw_target(Some(job.lines_total), ProgressDrawTarget::stderr());
        let template = "{prefix} [{bar:40}] {percent}% {human_pos}/{human_len} lines, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(format!("{} {}", job.verb, job.volume));
        Shown::Bar(bar)
    }

    fn update(&mut self, job: &JobStatus) {
        match self {
            Shown::Bar(bar) => {
                bar.set_length(job.lines_total);
                bar.set_position(job.lines_done);
            }
            Shown::Lines { tenths } => {
                let now = (job.lines_done * 10).checked_div(job.lines_total).unwrap_or(0);
                if now > *tenths && job.state == JobState::Running {
                    *tenths = now;
                    eprintln!(
                        "{} {}: {} of {} lines written back",
                        job.verb, job.volume, job.lines_done, job.lines_total
                    );
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
