//! Writing dirty lines back as a job, alone or on the way to a detach or a delete.

use super::apart::apart;
use super::jobs::Purpose;
use super::turn::Turn;
use crate::engine::{Drain, Engine};
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::Desired;

impl<E: Engine> Turn<E> {
    /// Starts a drain as a job, or joins the same one; a volume has one job at a time.
    pub(super) fn start_job(&mut self, name: &VolumeName, purpose: Purpose) -> ControlResult<u64> {
        if let Some((id, running)) = self.jobs.running(name) {
            return if running == purpose { Ok(id) } else { Err(busy(name, running)) };
        }
        self.engine.start_drain(name)?;
        let dirty = self.dirty_lines(name);
        Ok(self.jobs.add(purpose, name.clone(), dirty))
    }

    /// Does at once what a job would do at the end of its drain, and reports it like one.
    pub(super) fn finish_now(
        &mut self,
        name: &VolumeName,
        purpose: Purpose,
        write_back: bool,
    ) -> ControlResult<Response> {
        let lines = self.dirty_lines(name);
        self.finish(name, purpose, write_back)?;
        let id = self.jobs.add(purpose, name.clone(), 0);
        self.jobs.gave_up(id, if write_back { 0 } else { lines });
        self.end_job(id, Ok(()));
        self.job_response(id)
    }

    /// Dirty lines of a volume; of one that is not open, as last counted.
    fn dirty_lines(&mut self, name: &VolumeName) -> u64 {
        if self.is_open(name) {
            let known = self.engine.health(name).dirty_lines;
            if let Some(dirty_lines) = known {
                return dirty_lines;
            }
        }
        if let Some(label) = self.live.get(name).and_then(|live| live.ssd_label.as_ref()) {
            return label.dirty_lines;
        }
        let cache = self.registry.find(name).and_then(|record| record.cache.as_ref());
        cache.map_or(0, |cache| cache.dirty_lines)
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
        let verb = purpose.verb();
        let why = format!("{name}: its dirty lines were given up by a {verb} --no-flush");
        self.jobs.end(id, Err(ControlError::failed(why)));
        Ok(())
    }

    pub(super) fn job_response(&self, id: u64) -> ControlResult<Response> {
        self.jobs.status(id).map(|job| Response::Job { job })
    }

    /// Whether nothing is under way on the volume.
    pub(super) fn has_no_job(&self, name: &VolumeName) -> ControlResult<()> {
        self.jobs.running(name).map_or(Ok(()), |(_, purpose)| Err(busy(name, purpose)))
    }

    /// Whether a request may change the volume: no detach or delete is under way.
    pub(super) fn not_leaving(&self, name: &VolumeName) -> ControlResult<()> {
        match self.jobs.running(name) {
            Some((_, purpose)) if purpose != Purpose::Flush => Err(busy(name, purpose)),
            _ => Ok(()),
        }
    }

    /// Notes how far the running jobs are. The jobs whose drains have ended, with their volumes.
    pub(super) fn drained_jobs(&mut self) -> Vec<(u64, VolumeName)> {
        let mut drained = Vec::new();
        for (id, name, _) in self.jobs.all_running() {
            let dirty = self.dirty_lines(&name);
            self.jobs.progress(id, dirty);
            if self.engine.drain(&name) != Drain::Running {
                drained.push((id, name));
            }
        }
        drained
    }

    /// Ends a job whose drain has ended.
    pub(super) fn end_drained(&mut self, id: u64, name: &VolumeName) {
        let Some((_, purpose)) = self.jobs.running(name).filter(|(own, _)| *own == id) else {
            return;
        };
        let outcome = match self.engine.drain(name) {
            Drain::Running => return,
            // Lines that clients dirtied meanwhile are written while they wait: see `forget_cache`.
            Drain::Done => self.finish(name, purpose, true),
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
        let has_failed = outcome.is_err();
        let volume = self.jobs.end(id, outcome);
        // The volume stays, and serves: its drain may be asked for again.
        if let Some(name) = volume.filter(|_| has_failed) {
            self.stay(&name);
        }
    }

    /// Undoes that a volume was to leave, as far as that can be done.
    pub(super) fn stay(&mut self, name: &VolumeName) {
        let Some(mut record) = self.registry.find(name).cloned() else { return };
        record.desired = Desired::Serving;
        let settings = record.cache.as_ref().map(|cache| cache.settings.clone());
        let recorded = self.registry.put(record);
        self.note(name, recorded);
        if let Some(settings) = settings {
            let restored = apart(self).configure(name, &settings);
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
