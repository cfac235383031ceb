//! Work that takes long: writing dirty lines back, alone or on the way to a detach or a delete.

use std::collections::BTreeMap;

use super::Service;
use crate::engine::{Drain, Engine};
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::{JobState, JobStatus, Response};
use crate::records::Desired;

/// Finished jobs that are remembered, for clients that ask late.
const FINISHED_MAX: usize = 64;

/// What a drain is for, and so what happens at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Flush,
    Detach,
    Delete,
}

impl Purpose {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Purpose::Flush => "flush",
            Purpose::Detach => "detach",
            Purpose::Delete => "delete",
        }
    }
}

struct Job {
    purpose: Purpose,
    volume: VolumeName,
    lines_total: u64,
    lines_dirty: u64,
    state: JobState,
    /// Whether a client has heard of its end.
    is_told: bool,
}

/// All jobs of the daemon, by number; at most one runs per volume.
#[derive(Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<u64, Job>,
    last_id: u64,
}

impl Jobs {
    /// The job that works on a volume now.
    pub(super) fn running(&self, name: &VolumeName) -> Option<(u64, Purpose)> {
        self.jobs
            .iter()
            .find(|(_, job)| job.volume == *name && job.state == JobState::Running)
            .map(|(id, job)| (*id, job.purpose))
    }

    pub(super) fn status(&self, id: u64) -> ControlResult<JobStatus> {
        let job = self.jobs.get(&id).ok_or_else(|| {
            ControlError::failed(format!("no job {id}; the daemon was restarted: ask again"))
        })?;
        Ok(JobStatus {
            id,
            verb: job.purpose.verb().to_owned(),
            volume: job.volume.clone(),
            lines_done: job.lines_total.saturating_sub(job.lines_dirty),
            lines_total: job.lines_total,
            state: job.state.clone(),
        })
    }

    /// A delete that ended well and whose client went away before it heard so.
    pub(super) fn untold_delete(&self, name: &VolumeName) -> Option<u64> {
        let is_it = |job: &Job| {
            let ended = job.purpose == Purpose::Delete && job.state == JobState::Done;
            ended && !job.is_told && job.volume == *name
        };
        self.jobs.iter().find(|(_, job)| is_it(job)).map(|(id, _)| *id)
    }

    fn add(&mut self, purpose: Purpose, volume: VolumeName, lines_dirty: u64) -> u64 {
        let finished: Vec<u64> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.state != JobState::Running)
            .map(|(id, _)| *id)
            .collect();
        for id in finished.iter().take(finished.len().saturating_sub(FINISHED_MAX)) {
            self.jobs.remove(id);
        }
        self.last_id += 1;
        let state = JobState::Running;
        let lines_total = lines_dirty;
        let job = Job { purpose, volume, lines_total, lines_dirty, state, is_told: false };
        self.jobs.insert(self.last_id, job);
        self.last_id
    }
}

impl<E: Engine> Service<E> {
    /// Starts a drain as a job, or joins the same one; a volume has one job at a time.
    pub(super) fn start_job(&mut self, name: &VolumeName, purpose: Purpose) -> ControlResult<u64> {
        if let Some((id, running)) = self.jobs.running(name) {
            return if running == purpose { Ok(id) } else { Err(busy(name, running)) };
        }
        self.engine.start_drain(name)?;
        let dirty = self.engine.health(name).dirty_lines;
        Ok(self.jobs.add(purpose, name.clone(), dirty))
    }

    /// Does at once what a job would do at the end of its drain, and reports it like one.
    pub(super) fn finish_now(
        &mut self,
        name: &VolumeName,
        purpose: Purpose,
        write_back: bool,
    ) -> ControlResult<Response> {
        self.finish(name, purpose, write_back)?;
        let id = self.jobs.add(purpose, name.clone(), 0);
        self.end_job(id, Ok(()));
        self.job_response(id)
    }

    /// A client has received this answer.
    pub fn job_is_told(&mut self, told: &JobStatus) {
        if let Some(job) = self.jobs.jobs.get_mut(&told.id) {
            job.is_told |= told.state != JobState::Running;
        }
    }

    /// Ends the job of a volume whose dirty lines are given up instead: it need not be waited for.
    ///
    /// # Errors
    /// When the job leads elsewhere.
    pub(super) fn give_up_job(&mut self, name: &VolumeName, purpose: Purpose) -> ControlResult<()> {
        let Some((id, running)) = self.jobs.running(name) else { return Ok(()) };
        if running != Purpose::Flush && running != purpose {
            return Err(busy(name, running));
        }
        if let Some(job) = self.jobs.jobs.get_mut(&id) {
            let why =
                format!("{name}: its dirty lines were given up by a {} --no-flush", purpose.verb());
            job.state = JobState::Failed(ControlError::failed(why));
        }
        Ok(())
    }

    pub(super) fn job_response(&self, id: u64) -> ControlResult<Response> {
        self.jobs.status(id).map(|job| Response::Job { job })
    }

    /// Whether a request may change the volume: no detach or delete is under way.
    pub(super) fn not_leaving(&self, name: &VolumeName) -> ControlResult<()> {
        match self.jobs.running(name) {
            Some((_, purpose)) if purpose != Purpose::Flush => Err(busy(name, purpose)),
            _ => Ok(()),
        }
    }

    /// Looks at every running job and ends those whose drain has ended. Returns whether any still
    /// runs: then call again soon.
    pub fn step_jobs(&mut self) -> bool {
        let running: Vec<u64> = self
            .jobs
            .jobs
            .iter()
            .filter(|(_, job)| job.state == JobState::Running)
            .map(|(id, _)| *id)
            .collect();
        for id in running {
            self.step_job(id);
        }
        self.jobs.jobs.values().any(|job| job.state == JobState::Running)
    }

    fn step_job(&mut self, id: u64) {
        let Some(job) = self.jobs.jobs.get_mut(&id) else { return };
        let (name, purpose) = (job.volume.clone(), job.purpose);
        let dirty = self.engine.health(&name).dirty_lines;
        job.lines_total = job.lines_total.max(dirty);
        // Lines that clients dirty meanwhile do not make the bar run backwards.
        job.lines_dirty = job.lines_dirty.min(dirty);
        let outcome = match self.engine.drain(&name) {
            Drain::Running => return,
            // What clients dirtied meanwhile is written while they wait: see `forget_cache`.
            Drain::Done => self.finish(&name, purpose, true),
            Drain::Failed(why) => Err(ControlError::failed(why)),
        };
        self.end_job(id, outcome);
    }

    fn finish(
        &mut self,
        name: &VolumeName,
        purpose: Purpose,
        write_back: bool,
    ) -> ControlResult<()> {
        match purpose {
            Purpose::Flush => self.record_dirt(name, false),
            Purpose::Detach => self.drop_cache(name, write_back),
            Purpose::Delete => self.drop_volume(name, write_back),
        }
    }

    fn end_job(&mut self, id: u64, outcome: ControlResult<()>) {
        let Some(job) = self.jobs.jobs.get_mut(&id) else { return };
        match outcome {
            Ok(()) => {
                job.lines_dirty = 0;
                job.state = JobState::Done;
            }
            Err(error) => {
                job.state = JobState::Failed(error);
                let name = job.volume.clone();
                // The volume stays, and serves: its drain may be asked for again.
                self.stay(&name);
            }
        }
    }

    /// Takes back that a volume was to leave, as far as that can be done.
    fn stay(&mut self, name: &VolumeName) {
        let Some(mut record) = self.registry.find(name).cloned() else { return };
        record.desired = Desired::Serving;
        let settings = record.cache.as_ref().map(|cache| cache.settings.clone());
        let recorded = self.registry.put(record);
        self.note(name, recorded);
        if let Some(settings) = settings {
            let restored = self.engine.configure(name, &settings);
            self.note(name, restored);
        }
    }
}

fn busy(name: &VolumeName, purpose: Purpose) -> ControlError {
    let verb = purpose.verb();
    ControlError::failed(format!(
        "a {verb} of {name} is under way; watch it with `voltier {verb} {name}`, then try again"
    ))
}
