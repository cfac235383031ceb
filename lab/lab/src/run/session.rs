//! One run: every group of the plan in turn, every point on the disk before the next begins.

use std::path::{Path, PathBuf};
use std::time::Duration;

use voltier_results::analysis::demand;
use voltier_results::import::export_orion;
use voltier_results::report;
use voltier_results::result::{Axes, Point, Rounds, RoundsEnd, Run, RunWriter, Status};

use super::clients::Crowd;
use super::database::Server;
use super::folder::{POINT_BYTES, RAW_FOLDER, out_of_space};
use super::load::LoadRunner;
use super::model::Worlds;
use super::progress::{Ended, Progress};
use super::steady::{self, WINDOW};
use super::target::{Kind, Target};
use super::{files, purge, replay, replay_model};
use crate::LabError;
use crate::fio::Fio;
use crate::plan::step::{self, Choice, Group, Load, Pick, Planned, Work};
use crate::plan::{self, CacheModel, Method, Plan};
use crate::process::Stop;

/// A run under way.
pub(super) struct Session<'a> {
    plan: &'a Plan,
    groups: Vec<Group>,
    targets: Vec<Target>,
    fio: Option<Fio>,
    folder: PathBuf,
    raw: PathBuf,
    writer: RunWriter,
    run: Run,
    stop: Stop,
    server: Option<Server>,
    crowd: Option<Crowd>,
    worlds: Worlds,
}

impl<'a> Session<'a> {
    #[expect(
        clippy::too_many_arguments,
        reason = "called where a run begins and where one goes on"
    )]
    pub(super) fn new(
        plan: &'a Plan,
        groups: Vec<Group>,
        targets: Vec<Target>,
        fio: Option<Fio>,
        folder: &Path,
        writer: RunWriter,
        run: Run,
        stop: Stop,
    ) -> Session<'a> {
        // fio is told absolute paths: it works elsewhere.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
        let raw = folder.join(RAW_FOLDER);
        let worlds = Worlds::new(&targets);
        let (server, crowd) = (None, None);
        Session {
            plan,
            groups,
            targets,
            fio,
            folder,
            raw,
            writer,
            run,
            stop,
            server,
            crowd,
            worlds,
        }
    }

    /// Measures everything, and puts the targets away.
    pub(super) fn measure(mut self, progress: &mut dyn Progress) -> Result<Ended, LabError> {
        let result = self.all(progress);
        if let Some(server) = self.server.take() {
            server.stop(&self.targets);
        }
        self.crowd = None;
        for target in &mut self.targets {
            target.close(result.is_ok());
        }
        let ended = result.and_then(|()| self.writer.end());
        self.run.is_ended = ended.is_ok();
        let report = self.report();
        if let Err(error) = ended {
            self.say_partial(report, progress);
            return Err(out_of_space(error, &self.folder));
        }
        let is_good = |point: &Point| point.axes.small.is_some() && point.status == Status::Ok;
        if let Method::Orion(orion) = &self.plan.method
            && self.run.points.iter().any(is_good)
        {
            export_orion(&self.run, &orion.testname, &self.folder)?;
        }
        let failed: Vec<&String> = self
            .run
            .points
            .iter()
            .filter_map(|point| match &point.status {
                Status::Failed(why) => Some(why),
                _ => None,
            })
            .collect();
        Ok(Ended {
            folder: self.folder.clone(),
            report: report?,
            measured: self.run.points.len() - failed.len(),
            failed: failed.first().map(|why| (failed.len(), (*why).clone())),
        })
    }

    /// Writes the report of what there is, also of a run that was interrupted.
    fn report(&self) -> Result<PathBuf, LabError> {
        if self.run.points.is_empty() {
            return Ok(PathBuf::new());
        }
        report::write(&self.run, plan::facts::of(&self.run).as_ref(), &[], &self.folder)
            .map(|written| written.html)
    }

    /// A run that ends with an error still has a report of what it has.
    fn say_partial(&self, report: Result<PathBuf, LabError>, progress: &mut dyn Progress) {
        match report {
            Ok(page) if page.as_os_str().is_empty() => {}
            Ok(page) => progress.say(&format!("partial report: {}", page.display())),
            Err(error) => progress.say(&format!("no report: {error}")),
        }
    }

    fn all(&mut self, progress: &mut dyn Progress) -> Result<(), LabError> {
        let groups = std::mem::take(&mut self.groups);
        let total: Duration = groups.iter().map(time_max).sum();
        let mut before = Duration::ZERO;
        for group in &groups {
            self.group(group, (before, total), progress)?;
            before += time_max(group);
        }
        progress.at(total, total, "");
        Ok(())
    }

    /// One group, in rounds if it has them.
    fn group(
        &mut self,
        group: &Group,
        (before, total): (Duration, Duration),
        progress: &mut dyn Progress,
    ) -> Result<(), LabError> {
        let record = steady::record(group);
        if let Some(record) = &record {
            self.keep_rounds(record.clone())?;
        }
        let mut rounds = Vec::<Vec<Point>>::new();
        let (mut done, mut written) = (before, 0);
        let end = 'rounds: loop {
            let round = rounds.len() as u32 + 1;
            let mut points = Vec::new();
            for planned in group.round(round) {
                progress.at(done, total, &planned.id());
                let point = self.point(group, &planned, progress)?;
                done += planned.time();
                written += point.write.as_ref().map_or(0, |flow| flow.bytes);
                points.push(point);
                // A fast drive takes all the bytes long before a round of samples is over.
                let is_cut = points.len() < group.points.len();
                if is_cut && steady::end(&rounds, written, group) == Some(RoundsEnd::BytesMax) {
                    break 'rounds RoundsEnd::BytesMax;
                }
            }
            rounds.push(points);
            if record.is_none() {
                return Ok(());
            }
            if let Some(end) = steady::end(&rounds, written, group) {
                break end;
            }
        };
        let Some(record) = record else { return Ok(()) };
        if end == RoundsEnd::RoundsMax {
            progress.say(&format!("{}: not steady after {} rounds", record.name, rounds.len()));
            self.note_unsteady(&rounds)?;
        }
        let window = steady::window(rounds.len());
        self.keep_rounds(Rounds { window, end: Some(end), ..record })
    }

    /// Marks the window of a group that did not become steady.
    fn note_unsteady(&mut self, rounds: &[Vec<Point>]) -> Result<(), LabError> {
        for point in rounds[rounds.len().saturating_sub(WINDOW)..].iter().flatten() {
            if point.status == Status::Ok {
                self.keep(Point { status: Status::NotSteady, ..point.clone() })?;
            }
        }
        Ok(())
    }

    /// A point: as it is known from before, or measured now.
    fn point(
        &mut self,
        group: &Group,
        planned: &Planned,
        progress: &mut dyn Progress,
    ) -> Result<Point, LabError> {
        let id = planned.id();
        if let Some(known) = self.run.point(&id)
            && is_done(&known.status)
            && !is_needed_again(&planned.work)
        {
            return Ok(known.clone());
        }
        self.stop.check()?;
        let mut point = Point {
            id,
            axes: planned.axes.clone(),
            role: planned.role,
            test: group.test,
            rounds: group.rounds_name(),
            started_unix_ms: super::meter::unix_ms(),
            ..Point::default()
        };
        match self.work(planned, &mut point) {
            Ok(()) => {}
            Err(LabError::Interrupted) => {
                // Nothing is worth keeping; what was measured before is kept already.
                return Err(LabError::Interrupted);
            }
            Err(error) => self.failed(planned, &mut point, error)?,
        }
        if let Status::Failed(why) = &point.status {
            progress.say(&format!("{}: {why}", point.id));
        }
        let was_cut = matches!(point.status, Status::Partial(_));
        self.keep(point.clone())?;
        if was_cut { Err(LabError::Interrupted) } else { Ok(point) }
    }

    /// A failed point is marked; what everything after rests on ends the run.
    fn failed(
        &mut self,
        planned: &Planned,
        point: &mut Point,
        error: LabError,
    ) -> Result<(), LabError> {
        if super::facts::free_bytes(&self.folder)? < POINT_BYTES {
            return Err(LabError::NoSpace { folder: self.folder.clone() });
        }
        point.status = Status::Failed(error.to_string());
        (point.read, point.write, point.cpu) = (None, None, None);
        if is_foundation(planned) {
            self.keep(point.clone())?;
            return Err(error);
        }
        Ok(())
    }

    fn keep(&mut self, point: Point) -> Result<(), LabError> {
        self.writer.point(&point)?;
        self.run.keep(point);
        Ok(())
    }

    fn keep_rounds(&mut self, rounds: Rounds) -> Result<(), LabError> {
        self.writer.rounds(&rounds)?;
        self.run.keep_rounds(rounds);
        Ok(())
    }

    fn work(&mut self, planned: &Planned, point: &mut Point) -> Result<(), LabError> {
        let axes = &planned.axes;
        let index = self.targets.iter().position(|target| target.name == axes.target);
        let index = index.expect("plans name the targets they were given");
        if let Some(block) = axes.block_bytes
            && !block.is_multiple_of(self.targets[index].block_bytes)
        {
            let of = self.targets[index].block_bytes;
            point.status = Status::Skipped(format!("the target has blocks of {of} bytes"));
            return Ok(());
        }
        if let (Kind::Model(profile), Work::Replay(replay)) =
            (&self.targets[index].kind, &planned.work)
        {
            let Method::Trace(plan) = &self.plan.method else { return Ok(()) };
            let cache = CacheModel::of(plan)
                .map_err(|why| LabError::Plan { what: self.plan.name.clone(), why })?;
            let size_bytes = self.targets[index].size_bytes;
            return replay_model::replay(profile, size_bytes, cache, replay, point);
        }
        if let Kind::Model(_) = self.targets[index].kind {
            return self.worlds.measure(index, &self.chosen(planned)?, point);
        }
        let target = &self.targets[index];
        let fio = self.fio.as_ref().expect("real targets are measured by fio");
        let engine = if fio.has_engine("io_uring") { "io_uring" } else { "libaio" };
        let runner = LoadRunner { fio, raw: &self.raw, engine, stop: &self.stop };
        match &planned.work {
            Work::Purge => purge::purge(&runner, target, point),
            Work::Cache { on } => target.switch_cache(*on),
            Work::Load(_) => {
                let Work::Load(load) = self.chosen(planned)? else { return Ok(()) };
                runner.measure(&load, target, point)?;
                add_files_per_second(self.plan, point);
                Ok(())
            }
            Work::Bursts { load, count, idle } => {
                runner.bursts(load, (*count, *idle), target, point)
            }
            Work::Replay(replay) => replay::by_fio(&runner, replay, target, planned, point),
            Work::Files(pass) => files::pass(*pass, target, &self.stop, point),
            Work::Database(step) => {
                let Method::Database(plan) = &self.plan.method else { return Ok(()) };
                super::database::step(*step, plan, target, &mut self.server, &self.stop, point)
            }
            Work::Clients(job) => {
                let Method::Clients(plan) = &self.plan.method else { return Ok(()) };
                if self.crowd.is_none() {
                    self.crowd = Some(Crowd::gather(plan, &self.stop)?);
                }
                let crowd = self.crowd.as_ref().expect("just gathered");
                crowd.measure(&runner, job, target, point)
            }
        }
    }

    /// The work, its load filled in where an earlier point decides it.
    fn chosen(&self, planned: &Planned) -> Result<Work, LabError> {
        let Work::Load(load) = &planned.work else { return Ok(planned.work.clone()) };
        let Some(choice) = &load.pick else { return Ok(planned.work.clone()) };
        let (jobs, depth) = self.picked(&planned.axes, choice).ok_or_else(|| LabError::Failed {
            what: planned.id(),
            detail: "the demand curve has no point to choose".to_owned(),
        })?;
        let mut load: Load = load.clone();
        for job in &mut load.jobs {
            (job.numjobs, job.iodepth) = (jobs, depth);
        }
        Ok(Work::Load(load))
    }

    /// Jobs and depth of the chosen point of the last round of the demand curve.
    fn picked(&self, axes: &Axes, choice: &Choice) -> Option<(u32, u32)> {
        let curve = Some(step::rounds_name(&axes.target, &choice.curve));
        let is_of_curve = |point: &&Point| point.rounds == curve && point.role.is_measured();
        let curve: Vec<&Point> = self.run.points.iter().filter(is_of_curve).collect();
        let choices = demand::choices(&curve);
        // Where even a single request takes longer than the limit, the least load is chosen.
        let chosen = match choice.pick {
            Pick::Most => choices.max.or(choices.min),
            Pick::Middle => choices.middle.or(choices.min),
            Pick::Least => choices.min,
        };
        chosen.map(|demand| (demand.jobs, demand.depth))
    }
}

/// Passes over extents are told in files, as those over files.
fn add_files_per_second(plan: &Plan, point: &mut Point) {
    if let (Method::HotFiles(_), Some(iops)) = (&plan.method, point.iops())
        && point.axes.pass.is_some()
    {
        point.metrics.insert("files_per_second".to_owned(), iops);
    }
}

/// Whether a point of before needs not be measured again.
fn is_done(status: &Status) -> bool {
    matches!(status, Status::Ok | Status::NotSteady | Status::Skipped(_) | Status::Overloaded(_))
}

/// Whether the work leaves something behind that ends with the run.
fn is_needed_again(work: &Work) -> bool {
    matches!(work, Work::Cache { .. } | Work::Database(step::DatabaseStep::Make))
}

/// Whether all later points rest on this one: purge, fill, a database that is to be measured.
fn is_foundation(planned: &Planned) -> bool {
    match &planned.work {
        Work::Purge | Work::Cache { .. } | Work::Database(step::DatabaseStep::Make) => true,
        Work::Files(pass) => pass.is_write,
        _ => planned.bytes_written() > 0,
    }
}

fn time_max(group: &Group) -> Duration {
    let time: Duration = group.points.iter().map(Planned::time).sum();
    time * group.rounds().1
}
