//! The times of a modelled drive, and how long the drive was asked for something.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{Nanos, SectorRange};
use voltier_drive::model::{Clockwork, ModelOp, Profile};

use crate::world::World;

/// The mechanism of a modelled drive.
pub(crate) struct Mechanism {
    clockwork: Rc<Clockwork>,
    /// Requests under way, and since when there are any.
    requests: Cell<u64>,
    since: Cell<Nanos>,
}

/// A request that a mechanism has.
struct AtWork<'a>(&'a World, &'a Mechanism);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let Self(world, mechanism) = self;
        mechanism.requests.set(mechanism.requests.get() - 1);
        if mechanism.requests.get() == 0 {
            let time_ns = world.handle().now() - mechanism.since.get();
            world.ledger().count(|counts| counts.disk_ns += time_ns);
        }
    }
}

impl Mechanism {
    /// The mechanism of the drive model with this name.
    pub(crate) fn new(world: &World, model: &str, bytes: u64) -> Self {
        let profile = Profile::find(model).expect("a drive model");
        let clockwork = Clockwork::new(world.handle().clone(), profile, bytes);
        Self { clockwork, requests: Cell::new(0), since: Cell::new(0) }
    }

    /// Lets the mechanism do a request.
    pub(crate) async fn work(&self, world: &World, op: ModelOp, range: SectorRange) {
        if self.requests.replace(self.requests.get() + 1) == 0 {
            self.since.set(world.handle().now());
        }
        let _at_work = AtWork(world, self);
        self.clockwork.arrive(op, range).await;
    }
}
