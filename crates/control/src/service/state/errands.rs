//! Errands: what the service does by itself, each with its claim. A daemon does each on a thread of its own,
//! so that a device that hangs keeps one of them ([why](../../../../docs/adr/0046-commands-wait-alone.md)).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::name::{ArrayName, VolumeName};
use crate::records::{Desired, VolumeRecord};
use crate::service::arrays;
use crate::service::arrays::spare_pools;
use crate::service::presence::{fallen, faults, late, pulled};
use crate::service::state::claims::{ClaimId, Subject};
use crate::service::state::crash_wait::{CRASH_STEP, CRASH_TRIES};
use crate::service::state::turn::Turn;
use crate::service::state::{State, subjects};
use crate::service::volumes::{drains, exports, finish, stacked, stops};

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
    /// Close a volume whose SSD is gone with dirty lines, until the SSD is back.
    Pulled(VolumeName),
    /// Look for the members of an array that has lost too many of them.
    Fallen(ArrayName),
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
        let all = subjects::with_neighbours(&state.registry, &BTreeSet::from([subject]));
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

/// Claims all that is on record for the start; the start itself, group by group.
pub(crate) fn begin_to_start(
    turn: &mut Turn,
    after_crash: bool,
    device_wait: Duration,
) -> Vec<Errand> {
    turn.device_wait = device_wait;
    turn.crash_tries = if after_crash { CRASH_TRIES } else { 1 };
    let mut errands = Vec::new();
    for mut group in groups(turn) {
        let claim = turn.claims.add("start", group.subjects());
        turn.starting.insert(claim);
        group.claim = Some(claim);
        errands.push(Errand::Start(group));
    }
    let volumes = turn.registry.volumes().to_vec();
    let serving = volumes.iter().filter(|record| record.desired != Desired::Stopped);
    let awaited: Vec<_> = serving.flat_map(|record| record.exports.iter().cloned()).collect();
    // Before anything looks at a path: the files that the daemon before left answer when their volumes are open.
    turn.apart("").end_kept_but(&awaited);
    for export in volumes.iter().flat_map(|record| &record.exports) {
        // Exports of volumes that will not come up are cleared, too: nobody else knows of them.
        turn.apart("").clear_dead(export);
    }
    // All of the start shares its patience.
    turn.busy_tries = turn.crash_tries;
    spare_pools::reconcile_pools(turn);
    turn.crash_tries = turn.busy_tries;
    errands
}

/// The errands of a look for devices that nothing is in the way of.
pub(crate) fn due_looks(turn: &Turn, now: Instant) -> Vec<Errand> {
    let (arrays, volumes) = late::looked_for(turn);
    let mut errands: Vec<Errand> = arrays.into_iter().map(Errand::Members).collect();
    errands.extend(volumes.into_iter().map(Errand::Drives));
    errands.extend(turn.fallen.iter().cloned().map(Errand::Fallen));
    errands.extend((!turn.unfit_spares.is_empty()).then_some(Errand::AskSpares));
    errands.extend(exports::due_exports(turn, now).into_iter().map(Errand::Exports));
    errands.retain(|errand| is_free(turn, errand));
    errands
}

/// How soon to look for devices again, if there is anything to look for.
pub(crate) fn next_look(turn: &Turn, now: Instant) -> Option<Duration> {
    let looks =
        [late::next_look(turn), spare_pools::next_asking(turn), exports::next_export(turn, now)];
    looks.into_iter().flatten().min()
}

/// The jobs whose drains have ended and that nothing is in the way of.
pub(crate) fn due_jobs(turn: &mut Turn) -> Vec<Errand> {
    let drained = drains::drained_jobs(turn).into_iter();
    let errands = drained.map(|(id, name)| Errand::Job(id, name));
    errands.filter(|errand| is_free(turn, errand)).collect()
}

/// The volumes whose SSDs went away with dirty lines, and that nothing is in the way of.
pub(crate) fn due_pulled(turn: &Turn) -> Vec<Errand> {
    let errands = turn.pulled.keys().cloned().map(Errand::Pulled);
    errands.filter(|errand| is_free(turn, errand)).collect()
}

/// The errand of arrays that want spares which a pool has, if there are any.
pub(crate) fn due_spares(turn: &Turn) -> Option<Errand> {
    (spare_pools::has_spares_to_give(turn) && is_free(turn, &Errand::Spares))
        .then_some(Errand::Spares)
}

/// The way to rest: each errand of a layer stops a group, and all of a layer end before the next one begins.
/// Volumes stop before those whose exports they stand on.
pub(crate) fn begin_to_rest(turn: &mut Turn) -> Vec<Vec<Errand>> {
    (turn.stopping, turn.at_rest) = (true, true);
    faults::notice(turn);
    let layers = layers(turn, groups(turn)).into_iter();
    layers.map(|groups| groups.into_iter().map(Errand::Stop).collect()).collect()
}

/// Groups by layers, those first that no other group stands on; the volumes of each in such an order, too.
fn layers(turn: &Turn, mut groups: Vec<Group>) -> Vec<Vec<Group>> {
    let stands_on = |upper: &VolumeName, lower: &VolumeName| {
        upper != lower && stacked::stands_on(turn, turn.engine.machine(), upper, lower)
    };
    for group in &mut groups {
        group.volumes = top_first(std::mem::take(&mut group.volumes), stands_on).concat();
    }
    top_first(groups, |upper, lower| {
        upper != lower
            && upper.volumes.iter().any(|it| lower.volumes.iter().any(|low| stands_on(it, low)))
    })
}

/// Things by layers: nothing that is left stands on one that is taken. A circle is one layer.
fn top_first<T>(mut left: Vec<T>, stands_on: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut layers = Vec::new();
    while !left.is_empty() {
        let is_below: Vec<bool> =
            left.iter().map(|it| left.iter().any(|other| stands_on(other, it))).collect();
        let is_circle = is_below.iter().all(|below| *below);
        let (mut layer, mut rest) = (Vec::new(), Vec::new());
        for (thing, below) in left.into_iter().zip(is_below) {
            if below && !is_circle { rest.push(thing) } else { layer.push(thing) }
        }
        layers.push(layer);
        left = rest;
    }
    layers
}

/// Does an errand, unless another command has its subjects by now.
pub(crate) fn run(turn: &mut Turn, errand: &Errand, now: Instant) {
    if let Errand::Start(group) = errand {
        return start_group(turn, group, now);
    }
    if let Errand::Stop(group) = errand {
        return stop_group(turn, group);
    }
    if turn.at_rest {
        return;
    }
    let subjects = subjects_of(turn, errand);
    // An errand that does not get its subjects comes again, if it is still needed.
    let _ = turn.with_claim(errand.words(), subjects, |turn| carry_out(turn, errand, now));
}

/// Waits for a start of the daemon as long as the start gets on.
pub(crate) fn wait_for_a_quick_start(turn: &mut Turn) {
    while is_starting_quickly(turn) {
        turn.pause(CRASH_STEP);
    }
}

/// Whether an errand waits for a device, and has done so for a while.
pub(crate) fn hangs(turn: &Turn, errand: &Errand) -> bool {
    let subjects = subjects_of(turn, errand);
    turn.claims.waits_longer(&subjects, QUICK_STEP)
}

impl Errand {
    fn words(&self) -> &'static str {
        match self {
            Self::Members(_) => "the search for members",
            Self::Drives(_) => "the search for drives",
            Self::Exports(_) => "opening exports",
            Self::Job(..) => "the end of a drain",
            Self::Pulled(_) => "the loss of an SSD",
            Self::Fallen(_) => "the search for lost members",
            Self::Spares | Self::AskSpares => "the search for spares",
            Self::Start(_) => "start",
            Self::Stop(_) => "stop",
        }
    }
}

fn subjects_of(turn: &Turn, errand: &Errand) -> BTreeSet<Subject> {
    match errand {
        Errand::Members(name) | Errand::Fallen(name) => subjects::of_array(&turn.registry, name),
        Errand::Drives(name)
        | Errand::Exports(name)
        | Errand::Job(_, name)
        | Errand::Pulled(name) => subjects::of_volume(&turn.registry, name),
        Errand::Spares | Errand::AskSpares => BTreeSet::from([Subject::Spares]),
        Errand::Start(group) | Errand::Stop(group) => group.subjects(),
    }
}

fn is_free(turn: &Turn, errand: &Errand) -> bool {
    turn.claims.taken(&subjects_of(turn, errand), turn.own()).is_none()
}

fn carry_out(turn: &mut Turn, errand: &Errand, now: Instant) {
    match errand {
        Errand::Members(name) => late::look_for_members(turn, name, now),
        Errand::Drives(name) => late::look_for_drives(turn, name, now),
        Errand::Exports(name) => exports::try_exports_again(turn, name, now),
        Errand::Job(id, name) => finish::end_drained(turn, *id, name),
        Errand::Pulled(name) => pulled::wait_for_ssd(turn, name, now),
        Errand::Fallen(name) => fallen::look_for_members(turn, name, now),
        Errand::Spares => spare_pools::notice_array_events(turn),
        Errand::AskSpares => spare_pools::ask_spares_again(turn, now),
        Errand::Start(_) | Errand::Stop(_) => {}
    }
}

fn start_group(turn: &mut Turn, group: &Group, now: Instant) {
    if let Some(claim) = group.claim {
        turn.adopt(claim);
    }
    if !turn.stopping {
        turn.busy_tries = turn.crash_tries;
        for name in &group.arrays {
            arrays::commands::start(turn, name, now);
        }
        for name in &group.volumes {
            let Some(record) = turn.registry.find(name).cloned() else { continue };
            if record.desired != Desired::Stopped {
                late::try_volume(turn, &record, Some(now), now);
                end_kept_of_failed(turn, &record);
            }
        }
        turn.crash_tries = turn.crash_tries.min(turn.busy_tries);
    }
}

/// Ends the files that the daemon before left of a volume that cannot be opened, and waits for nothing.
fn end_kept_of_failed(turn: &mut Turn, record: &VolumeRecord) {
    let Some(live) = turn.live.get(&record.name) else { return };
    // One that is looked for is tried again soon; the files wait so long, and for no longer than a while.
    if live.is_open || live.absence.since.is_some() || live.is_unrecorded {
        return;
    }
    let why = live.error.clone();
    for export in &record.exports {
        turn.closing(export.uri(&record.name)).end_kept(export, &why);
    }
}

fn stop_group(turn: &mut Turn, group: &Group) {
    while turn.claims.taken(&group.subjects(), None).is_some() {
        turn.pause(CRASH_STEP);
    }
    let subjects = group.subjects();
    let _ = turn.with_claim("stop", subjects, |turn| {
        for name in &group.volumes {
            let record = turn.registry.find(name).cloned();
            if let Some(record) = record.filter(|_| turn.is_open(name)) {
                let closed = stops::bring_to_rest(turn, &record);
                turn.note(name, closed);
            }
            turn.live.remove(name);
        }
        group.arrays.iter().for_each(|name| arrays::open::bring_to_rest(turn, name));
    });
}

fn is_starting_quickly(turn: &Turn) -> bool {
    let mut starting = turn.starting.iter();
    !starting.clone().any(|claim| turn.claims.hangs(*claim, QUICK_STEP))
        && starting.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_something_goes_before_it_and_a_circle_goes_at_once() {
        let stands_on =
            |upper: &u32, lower: &u32| [(3, 1), (4, 3), (5, 2)].contains(&(*upper, *lower));
        assert_eq!(
            top_first(vec![1, 2, 3, 4, 5, 6], stands_on),
            [vec![4, 5, 6], vec![2, 3], vec![1]]
        );
        let circle = |upper: &u32, lower: &u32| [(1, 2), (2, 1)].contains(&(*upper, *lower));
        assert_eq!(top_first(vec![1, 2], circle), [[1, 2]]);
    }
}
