//! The jobs of the daemon, by number: drains of volumes, alone or on the way to a detach or a delete.

use std::collections::BTreeMap;

use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::{JobState, JobStatus};

/// Finished jobs that are remembered, for clients that ask late.
const FINISHED_MAX: usize = 64;

/// The purpose of a drain, and so the step at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Flush,
    Detach,
    Delete,
}

impl Purpose {
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Purpose::Flush => "flush",
            Purpose::Detach => "detach",
            Purpose::Delete => "delete",
        }
    }
}

struct Job {
    purpose: Purpose,
    /// As a client sees it.
    status: JobStatus,
    /// A user has asked for its early end.
    is_to_end: bool,
    /// Whether a client has heard of its end.
    is_told: bool,
}

impl Job {
    fn is_running(&self) -> bool {
        self.status.state == JobState::Running
    }
}

/// All jobs of the daemon, by number; at most one runs per volume.
#[derive(Default)]
pub(crate) struct Jobs {
    jobs: BTreeMap<u64, Job>,
    last_id: u64,
}

impl Jobs {
    /// The job that works on a volume now.
    pub(crate) fn running(&self, name: &VolumeName) -> Option<(u64, Purpose)> {
        self.jobs
            .iter()
            .find(|(_, job)| job.status.volume == *name && job.is_running())
            .map(|(id, job)| (*id, job.purpose))
    }

    pub(crate) fn status(&self, id: u64) -> ControlResult<JobStatus> {
        self.jobs.get(&id).map(|job| job.status.clone()).ok_or_else(|| {
            ControlError::failed(format!(
                "the daemon was restarted and does not know job {id}; \
                                          give the command again"
            ))
        })
    }

    /// A delete that ended well and whose client went away before it heard so.
    pub(crate) fn untold_delete(&self, name: &VolumeName) -> Option<u64> {
        let is_it = |job: &Job| {
            let ended = job.purpose == Purpose::Delete && job.status.state == JobState::Done;
            ended && !job.is_told && job.status.volume == *name
        };
        self.jobs.iter().find(|(_, job)| is_it(job)).map(|(id, _)| *id)
    }

    pub(crate) fn add(&mut self, purpose: Purpose, volume: VolumeName, lines_dirty: u64) -> u64 {
        let finished = self.jobs.iter().filter(|(_, job)| !job.is_running());
        let finished: Vec<u64> = finished.map(|(id, _)| *id).collect();
        for id in finished.iter().take(finished.len().saturating_sub(FINISHED_MAX)) {
            self.jobs.remove(id);
        }
        self.last_id += 1;
        let status = JobStatus {
            id: self.last_id,
            verb: purpose.verb().to_owned(),
            volume,
            lines_done: 0,
            lines_total: lines_dirty,
            lines_given_up: 0,
            state: JobState::Running,
        };
        let job = Job { purpose, status, is_to_end: false, is_told: false };
        self.jobs.insert(self.last_id, job);
        self.last_id
    }

    /// The jobs that have not ended.
    pub(crate) fn all_running(&self) -> Vec<(u64, VolumeName, Purpose)> {
        let running = self.jobs.iter().filter(|(_, job)| job.is_running());
        running.map(|(id, job)| (*id, job.status.volume.clone(), job.purpose)).collect()
    }

    /// Notes that a job is to end early. Its volume, if the job runs.
    pub(crate) fn ask_to_end(&mut self, id: u64) -> Option<VolumeName> {
        let job = self.jobs.get_mut(&id).filter(|job| job.is_running())?;
        job.is_to_end = true;
        Some(job.status.volume.clone())
    }

    /// Whether a user has asked for the early end of a job.
    pub(crate) fn is_to_end(&self, id: u64) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.is_to_end)
    }

    /// How many dirty lines a job has still to write back.
    pub(crate) fn progress(&mut self, id: u64, dirty: u64) {
        let Some(Job { status, .. }) = self.jobs.get_mut(&id) else { return };
        // Lines that clients dirty meanwhile do not make the bar run backwards.
        let left = dirty.min(status.lines_total - status.lines_done);
        status.lines_total = status.lines_total.max(dirty);
        status.lines_done = status.lines_total - left;
    }

    /// How many dirty lines a job gave up instead of writing them back.
    pub(crate) fn gave_up(&mut self, id: u64, lines: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.status.lines_given_up = lines;
        }
    }

    /// Ends a job; its volume.
    pub(crate) fn end(&mut self, id: u64, outcome: ControlResult<()>) -> Option<VolumeName> {
        let status = &mut self.jobs.get_mut(&id)?.status;
        status.state = match outcome {
            Ok(()) => {
                status.lines_done = status.lines_total;
                JobState::Done
            }
            Err(error) => JobState::Failed(error),
        };
        Some(status.volume.clone())
    }

    /// A client has received this status.
    pub(crate) fn tell(&mut self, told: &JobStatus) {
        if let Some(job) = self.jobs.get_mut(&told.id) {
            job.is_told |= told.state != JobState::Running;
        }
    }
}
