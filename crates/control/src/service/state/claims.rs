//! Claims: what a command has for itself until it ends. Two commands never change the same volume, array or
//! pool at a time, and never take the same device.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::name::{ArrayName, PoolName, VolumeName};
use crate::safety::DeviceId;
use crate::service::state::live::now;

/// A thing that one command at a time works on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Array(ArrayName),
    Volume(VolumeName),
    Pool(PoolName),
    /// The search for spares for all arrays that want some.
    Spares,
    /// Imports: their names are known late.
    Imports,
}

impl Subject {
    /// The subject as a message names it.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Array(name) => format!("the array {name}"),
            Self::Volume(name) => name.to_string(),
            Self::Pool(name) => format!("the spare pool {name}"),
            Self::Spares => "spare pools".to_owned(),
            Self::Imports => "an import".to_owned(),
        }
    }
}

/// The number of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimId(u64);

/// A command under way, with its subjects.
struct Claim {
    command: String,
    subjects: BTreeSet<Subject>,
    /// The storage that the command is about to take.
    devices: Vec<DeviceId>,
    /// The device or the step that the command waits for.
    step: String,
    /// The beginning of that wait, or of the command.
    since: Instant,
}

impl Claim {
    fn waits_longer(&self, limit: Duration) -> bool {
        !self.step.is_empty() && self.since.elapsed() > limit
    }

    fn words(&self) -> String {
        let seconds = self.since.elapsed().as_secs();
        match self.step.as_str() {
            "" => self.command.clone(),
            step => format!("{}: {step}, since {seconds} s", self.command),
        }
    }
}

/// All claims, by number.
#[derive(Default)]
pub(crate) struct Claims {
    claims: BTreeMap<ClaimId, Claim>,
    last: u64,
}

impl Claims {
    /// A subject that another claim than `own` has.
    pub(crate) fn taken<'a>(
        &self,
        subjects: &'a BTreeSet<Subject>,
        own: Option<ClaimId>,
    ) -> Option<&'a Subject> {
        subjects.iter().find(|subject| self.holder(subject, own).is_some())
    }

    /// Gives free subjects to a new claim.
    pub(crate) fn add(&mut self, command: &str, subjects: BTreeSet<Subject>) -> ClaimId {
        self.last += 1;
        let (command, devices, step) = (command.to_owned(), Vec::new(), String::new());
        let claim = Claim { command, subjects, devices, step, since: now() };
        self.claims.insert(ClaimId(self.last), claim);
        ClaimId(self.last)
    }

    /// Gives more free subjects to a claim; those that it did not have.
    pub(crate) fn extend(
        &mut self,
        id: ClaimId,
        mut subjects: BTreeSet<Subject>,
    ) -> BTreeSet<Subject> {
        if let Some(claim) = self.claims.get_mut(&id) {
            subjects.retain(|subject| claim.subjects.insert(subject.clone()));
        }
        subjects
    }

    /// Ends a part of a claim.
    pub(crate) fn shrink(&mut self, id: ClaimId, subjects: &BTreeSet<Subject>) {
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.subjects.retain(|subject| !subjects.contains(subject));
        }
    }

    pub(crate) fn end(&mut self, id: ClaimId) {
        self.claims.remove(&id);
    }

    /// The command waits for this from now on; for nothing when it is empty.
    pub(crate) fn step(&mut self, id: ClaimId, step: String) {
        if let Some(claim) = self.claims.get_mut(&id) {
            (claim.step, claim.since) = (step, now());
        }
    }

    /// Whether a command that has one of these subjects waits for longer than `limit` already.
    pub(crate) fn waits_longer(&self, subjects: &BTreeSet<Subject>, limit: Duration) -> bool {
        let mut theirs = self.claims.values().filter(|it| !it.subjects.is_disjoint(subjects));
        theirs.any(|claim| claim.waits_longer(limit))
    }

    /// Whether a command waits for longer than `limit` already.
    pub(crate) fn hangs(&self, id: ClaimId, limit: Duration) -> bool {
        self.claims.get(&id).is_some_and(|claim| claim.waits_longer(limit))
    }

    /// What commands wait for longer than `limit` already, in words.
    pub(crate) fn long_waits(&self, limit: Duration) -> Vec<String> {
        self.claims.values().filter(|it| it.waits_longer(limit)).map(Claim::words).collect()
    }

    /// A command takes a storage that no record has yet.
    pub(crate) fn reserve(&mut self, id: ClaimId, device: DeviceId) {
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.devices.push(device);
        }
    }

    /// The command other than `own` that is about to take a storage.
    pub(crate) fn taker(&self, device: &DeviceId, own: Option<ClaimId>) -> Option<&str> {
        let others = self.others(own);
        let takers = others.filter(|claim| claim.devices.iter().any(|it| it.overlaps(device)));
        takers.map(|claim| claim.command.as_str()).next()
    }

    /// The command other than `own` that has a subject, and what it waits for.
    pub(crate) fn under_way(&self, subject: &Subject, own: Option<ClaimId>) -> Option<String> {
        self.holder(subject, own).map(Claim::words)
    }

    /// Whether a command other than `own` starts a subject.
    pub(crate) fn starts(&self, subject: &Subject, own: Option<ClaimId>) -> bool {
        let holder = self.holder(subject, own);
        holder.is_some_and(|claim| claim.command.ends_with("start"))
    }

    fn holder(&self, subject: &Subject, own: Option<ClaimId>) -> Option<&Claim> {
        self.others(own).find(|claim| claim.subjects.contains(subject))
    }

    fn others(&self, own: Option<ClaimId>) -> impl Iterator<Item = &Claim> {
        let others = self.claims.iter().filter(move |(id, _)| Some(**id) != own);
        others.map(|(_, claim)| claim)
    }
}
