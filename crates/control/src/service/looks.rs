//! The looks at the health of everything that the daemon takes by itself.
//!
//! Each volume and array has a turn of its own, and the cores answer within a bounded time: nobody waits for a look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::array_status::{ArrayDetail, PoolStatus};
use crate::date::Date;
use crate::events::keep::Look;
use crate::health::{self, Check};
use crate::service::arrays::{self, spare_pools};
use crate::service::state::claims::Subject;
use crate::service::state::live::now;
use crate::service::state::turn::Turn;
use crate::service::volumes::show;
use crate::status::VolumeStatus;

/// A status that takes longer is not asked for in every look: the others are to be seen meanwhile.
const SLOW: Duration = Duration::from_millis(300);
/// The interval of the rates that a look takes: from one look to the next.
const STEP: Duration = Duration::from_secs(2);
/// For how many times as long a slow one is left alone.
const REST_TIMES: u32 = 8;

enum Status {
    Volume(Box<VolumeStatus>),
    Array(Box<ArrayDetail>),
}

/// Everything of an instance, as the last look has seen it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    /// When it was seen.
    pub(crate) time: Date,
    pub(crate) volumes: Vec<VolumeStatus>,
    pub(crate) arrays: Vec<ArrayDetail>,
    pub(crate) pools: Vec<PoolStatus>,
}

/// What is known of each volume and array from the last look.
#[derive(Default)]
pub(crate) struct Looks {
    seen: BTreeMap<Subject, Seen>,
    pools: Vec<PoolStatus>,
}

struct Seen {
    checks: Vec<Check>,
    status: Status,
    /// When it is looked at again.
    due: Instant,
}

impl Looks {
    /// Looks at everything. `None` when the daemon comes to rest: what is not served any more is no trouble.
    pub(crate) fn look(&mut self, new_turn: impl Fn() -> Turn) -> Option<Look> {
        let mut turn = new_turn();
        if turn.at_rest || turn.stopping {
            return None;
        }
        let told = std::mem::take(&mut turn.told);
        let is_starting = !turn.starting.is_empty();
        let registry_trouble = turn.registry.trouble().map(|it| it.message.clone());
        let volumes = turn.registry.volumes().iter().map(|it| Subject::Volume(it.name.clone()));
        let arrays = turn.registry.arrays().iter().map(|it| Subject::Array(it.name.clone()));
        let subjects: BTreeSet<Subject> = volumes.chain(arrays).collect();
        self.pools = spare_pools::all_pools(&turn);
        let mut checks: Vec<Check> = self.pools.iter().flat_map(health::of_pool).collect();
        turn.history.retain(|subject| subjects.contains(subject));
        drop(turn);
        self.seen.retain(|subject, _| subjects.contains(subject));
        for subject in subjects {
            let began = now();
            if self.seen.get(&subject).is_none_or(|seen| seen.due <= began) {
                let Some((checks, status)) = look_at(&mut new_turn(), &subject) else { continue };
                let took = began.elapsed();
                let rest = if took > SLOW { took * REST_TIMES } else { Duration::ZERO };
                self.seen.insert(subject.clone(), Seen { checks, status, due: now() + rest });
            }
            checks.extend(self.seen.get(&subject).into_iter().flat_map(|it| it.checks.clone()));
        }
        Some(Look { checks, is_starting, told, registry_trouble })
    }

    /// What the last look has seen.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot =
            Snapshot { time: Date::now(), pools: self.pools.clone(), ..Snapshot::default() };
        for seen in self.seen.values() {
            match &seen.status {
                Status::Volume(volume) => snapshot.volumes.push((**volume).clone()),
                Status::Array(array) => snapshot.arrays.push((**array).clone()),
            }
        }
        snapshot
    }
}

/// The checks of a volume or array and its status; `None` when it is not on record any more.
fn look_at(turn: &mut Turn, subject: &Subject) -> Option<(Vec<Check>, Status)> {
    match subject {
        Subject::Volume(name) => {
            let record = turn.registry.find(name).cloned()?;
            let volume = show::recent_status(turn, &record, STEP);
            Some((health::of_volume(&volume), Status::Volume(Box::new(volume))))
        }
        Subject::Array(name) => {
            let record = turn.registry.find_array(name).cloned()?;
            let array = arrays::show::recent_status(turn, &record, STEP);
            Some((health::of_array(&array), Status::Array(Box::new(array))))
        }
        Subject::Pool(_) | Subject::Spares | Subject::Imports => None,
    }
}
