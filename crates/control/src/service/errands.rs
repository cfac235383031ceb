//! Errands: what the service does by itself, each with its claim. A daemon does each on a thread of its own,
//! so that a device that hangs keeps one of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::claims::{ClaimId, Subject};
use super::crash_wait::{CRASH_STEP, CRASH_TRIES};
use super::live::now;
use super::turn::Turn;
use super::{Service, State, faults, late, pulled, stops, subjects};
use crate::engine::Engine;
use crate::name::{ArrayName, VolumeName};
use crate::records::Desired;

/// How long one step of a start may take before whoever looks at the volumes waits no longer for the start.
const QUICK_STEP: Duration = Duration::from_millis(500);

/// Something that the service does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Look for missing members of an array.
    Members(ArrayName),
    /// Look for missing drives of a volume.
    Drives(VolumeName),
    /// Try exports of a volume again.
    Exports(VolumeName),
    /// End a job whose drain has ended.
    Job(u64, VolumeName),
    /// Have a volume wait for its SSD, which went away with dirty lines.
    Pulled(VolumeName),
    /// Give spares of pools to arrays that want some.
    Spares,
    /// Ask spares again that did not serve.
    AskSpares,
    /// Bring up volumes and arrays when the daemon starts.
    Start(Group),
    /// Bring volumes and arrays to rest when the daemon ends.
    Stop(Group),
}

/// Volumes and arrays that stand on each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    arrays: Vec<ArrayName>,
    volumes: Vec<VolumeName>,
    /// The claim of a start.
    claim: Option<ClaimId>,
}

impl Group {
    fn subjects(&self) -> BTreeSet<Subject> {
        let arrays = self.arrays.iter().cloned().map(Subject::Array);
        arrays.chain(self.volumes.iter().cloned().map(Subject::Volume)).collect()
    }
}

/// All recorded volumes and arrays, in groups, arrays first.
fn groups(state: &State) -> Vec<Group> {
    let mut seen = BTreeSet::new();
    let mut groups = Vec::new();
    let arrays = state.registry.arrays().iter().map(|array| Subject::Array(array.name.clone()));
    let volumes = state.registry.volumes().iter();
    let volumes = volumes.map(|volume| Subject::Volume(volume.name.clone()));
    for subject in arrays.chain(volumes) {
        if seen.contains(&subject) {
            continue;
        }
        let all = subjects::with_neighbours(state, &BTreeSet::from([subject]));
        let mut group = Group { arrays: Vec::new(), volumes: Vec::new(), claim: None };
        for subject in &all {
            match subject {
                Subject::Array(name) => group.arrays.push(name.clone()),
                Subject::Volume(name) => group.volumes.push(name.clone()),
                Subject::Pool(_) | Subject::Spares | Subject::Imports => {}
            }
        }
        seen.extend(all);
        groups.push(group);
    }
    groups
}

impl<E: Engine> Service<E> {
    /// Brings every recorded array and volume up. One that cannot be served is shown as failed, with
    /// the reason; the others serve. One of which a device is missing waits for it as long as `device_wait`
    /// says, or longer where redundancy is at stake: see [`Service::look_for_devices`].
    ///
    /// After a crash the kernel may still be taking the daemon before apart. The sockets of that daemon
    /// answer and its locks hold for a moment longer than the process. Then what is busy is tried again.
    pub fn start(&self, after_crash: bool, device_wait: Duration) {
        for errand in self.begin_to_start(after_crash, device_wait) {
            self.run_errand(&errand, now());
        }
    }

    /// Claims all that is on record for the start; the start itself, group by group.
    pub(crate) fn begin_to_start(&self, after_crash: bool, device_wait: Duration) -> Vec<Errand> {
        let mut turn = self.turn();
        turn.device_wait = device_wait;
        turn.crash_tries = if after_crash { CRASH_TRIES } else { 1 };
        let mut errands = Vec::new();
        for mut group in groups(&turn) {
            let claim = turn.claims.add("start", group.subjects());
            turn.starting.insert(claim);
            group.claim = Some(claim);
            errands.push(Errand::Start(group));
        }
        let volumes = turn.registry.volumes().to_vec();
        for export in volumes.iter().flat_map(|record| &record.exports) {
            // Also those of volumes that will not come up: nobody else knows whose they were.
            turn.apart().clear_dead(export);
        }
        // All of the start shares its patience.
        turn.busy_tries = turn.crash_tries;
        turn.reconcile_pools();
        turn.crash_tries = turn.busy_tries;
        errands
    }

    /// Looks for missing devices, and tries what waits for them, and exports that could not be opened.
    /// Returns how soon to look again, if there is anything to look for.
    pub fn look_for_devices(&self, now: Instant) -> Option<Duration> {
        for errand in self.due_looks(now) {
            self.run_errand(&errand, now);
        }
        self.due_spares().inspect(|errand| self.run_errand(errand, now));
        self.next_look(now)
    }

    /// The errands of a look for devices that nothing is in the way of.
    pub(crate) fn due_looks(&self, now: Instant) -> Vec<Errand> {
        let turn = self.turn();
        let (arrays, volumes) = late::looked_for(&turn);
        let mut errands: Vec<Errand> = arrays.into_iter().map(Errand::Members).collect();
        errands.extend(volumes.into_iter().map(Errand::Drives));
        errands.extend((!turn.unfit_spares.is_empty()).then_some(Errand::AskSpares));
        errands.extend(turn.due_exports(now).into_iter().map(Errand::Exports));
        errands.retain(|errand| turn.is_free(errand));
        errands
    }

    /// How soon to look for devices again, if there is anything to look for.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Duration> {
        let turn = self.turn();
        let looks = [late::next_look(&turn), turn.next_asking(), turn.next_export(now)];
        looks.into_iter().flatten().min()
    }

    /// Looks at every running job and ends those whose drain has ended. Returns whether any still
    /// runs: then call again soon.
    pub fn step_jobs(&self) -> bool {
        for errand in self.due_jobs() {
            self.run_errand(&errand, now());
        }
        self.has_jobs()
    }

    /// The jobs whose drains have ended and that nothing is in the way of.
    pub(crate) fn due_jobs(&self) -> Vec<Errand> {
        let mut turn = self.turn();
        let drained = turn.drained_jobs().into_iter();
        let errands = drained.map(|(id, name)| Errand::Job(id, name));
        errands.filter(|errand| turn.is_free(errand)).collect()
    }

    /// The volumes whose SSDs went away with dirty lines, and that nothing is in the way of.
    pub(crate) fn due_pulled(&self) -> Vec<Errand> {
        let turn = self.turn();
        let errands = turn.pulled.keys().cloned().map(Errand::Pulled);
        errands.filter(|errand| turn.is_free(errand)).collect()
    }

    pub(crate) fn has_jobs(&self) -> bool {
        !self.turn().jobs.all_running().is_empty()
    }

    /// The errand of arrays that want spares which a pool has, if there are any.
    pub(crate) fn due_spares(&self) -> Option<Errand> {
        let turn = self.turn();
        (turn.has_spares_to_give() && turn.is_free(&Errand::Spares)).then_some(Errand::Spares)
    }

    /// Brings everything to rest: exports closed, logs checkpointed, dirty lines kept.
    pub fn stop(&self) {
        for errand in self.begin_to_rest() {
            self.run_errand(&errand, now());
        }
    }

    /// The way to rest, group by group.
    pub(crate) fn begin_to_rest(&self) -> Vec<Errand> {
        let mut turn = self.turn();
        (turn.stopping, turn.at_rest) = (true, true);
        faults::notice(&mut turn);
        groups(&turn).into_iter().map(Errand::Stop).collect()
    }

    /// Does an errand, unless another command has its subjects by now.
    pub(crate) fn run_errand(&self, errand: &Errand, now: Instant) {
        let mut turn = self.turn();
        if let Errand::Start(group) = errand {
            return turn.start_group(group, now);
        }
        if let Errand::Stop(group) = errand {
            return turn.stop_group(group);
        }
        if turn.at_rest {
            return;
        }
        let subjects = turn.subjects_of(errand);
        // Whoever has them now leaves them as they are to be, or the errand comes again.
        let _ = turn.with_claim(errand.words(), subjects, |turn| turn.run(errand, now));
    }

    /// Waits for a start of the daemon as long as the start gets on.
    pub(crate) fn wait_for_a_quick_start(&self) {
        while self.turn().is_starting_quickly() {
            std::thread::park_timeout(CRASH_STEP);
        }
    }

    /// Whether an errand waits for a device, and has done so for a while.
    pub(crate) fn hangs(&self, errand: &Errand) -> bool {
        let turn = self.turn();
        let subjects = turn.subjects_of(errand);
        turn.claims.waits_longer(&subjects, QUICK_STEP)
    }
}

impl Errand {
    fn words(&self) -> &'static str {
        match self {
            Self::Members(_) => "a look for members",
            Self::Drives(_) => "a look for drives",
            Self::Exports(_) => "an attempt to open exports",
            Self::Job(..) => "the end of a drain",
            Self::Pulled(_) => "the loss of an SSD",
            Self::Spares | Self::AskSpares => "a look for spares",
            Self::Start(_) => "start",
            Self::Stop(_) => "stop",
        }
    }
}

impl<E: Engine> Turn<E> {
    fn subjects_of(&self, errand: &Errand) -> BTreeSet<Subject> {
        match errand {
            Errand::Members(name) => subjects::of_array(self, name),
            Errand::Drives(name)
            | Errand::Exports(name)
            | Errand::Job(_, name)
            | Errand::Pulled(name) => subjects::of_volume(self, name),
            Errand::Spares | Errand::AskSpares => BTreeSet::from([Subject::Spares]),
            Errand::Start(group) | Errand::Stop(group) => group.subjects(),
        }
    }

    fn is_free(&self, errand: &Errand) -> bool {
        self.claims.taken(&self.subjects_of(errand), self.own()).is_none()
    }

    fn run(&mut self, errand: &Errand, now: Instant) {
        match errand {
            Errand::Members(name) => late::look_for_members(self, name, now),
            Errand::Drives(name) => late::look_for_drives(self, name, now),
            Errand::Exports(name) => self.try_exports_again(name, now),
            Errand::Job(id, name) => self.end_drained(*id, name),
            Errand::Pulled(name) => pulled::wait_for_ssd(self, name, now),
            Errand::Spares => self.notice_array_events(),
            Errand::AskSpares => self.ask_spares_again(now),
            Errand::Start(_) | Errand::Stop(_) => {}
        }
    }

    fn start_group(&mut self, group: &Group, now: Instant) {
        if let Some(claim) = group.claim {
            self.adopt(claim);
        }
        if !self.stopping {
            self.busy_tries = self.crash_tries;
            for name in &group.arrays {
                self.start_array(name, now);
            }
            for name in &group.volumes {
                let Some(record) = self.registry.find(name).cloned() else { continue };
                if record.desired != Desired::Stopped {
                    late::try_volume(self, &record, Some(now), now);
                }
            }
            self.crash_tries = self.crash_tries.min(self.busy_tries);
        }
    }

    fn stop_group(&mut self, group: &Group) {
        while self.claims.taken(&group.subjects(), None).is_some() {
            self.pause(CRASH_STEP);
        }
        let subjects = group.subjects();
        let _ = self.with_claim("stop", subjects, |turn| {
            for name in &group.volumes {
                let record = turn.registry.find(name).cloned();
                if let Some(record) = record.filter(|_| turn.is_open(name)) {
                    let closed = stops::bring_to_rest(turn, &record);
                    turn.note(name, closed);
                }
                turn.live.remove(name);
            }
            group.arrays.iter().for_each(|name| turn.bring_array_to_rest(name));
        });
    }

    fn is_starting_quickly(&self) -> bool {
        let mut starting = self.starting.iter();
        !starting.clone().any(|claim| self.claims.hangs(*claim, QUICK_STEP))
            && starting.next().is_some()
    }
}
