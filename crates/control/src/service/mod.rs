//! The daemon's mind: what is asked, what is allowed, what is recorded, in that order.
//!
//! One service exists per daemon. Commands take turns with its state and wait for devices apart from it (see
//! `desk`): clients' I/O never waits for either. The rule for every change: check everything, then record
//! what must be known after a crash, then do it, then answer.

mod acknowledge;
pub(crate) mod arrays;
mod dispatch;
mod import;
mod looks;
mod presence;
pub(crate) mod state;
pub(crate) mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::date::Date;
use crate::engine::{Engine, Waker};
use crate::error::ControlResult;
use crate::events::keep::Look;
use crate::protocol::{JobStatus, Request, Response};
use crate::registry::Registry;
use crate::safety::Machine;
use crate::smart::Book;

use arrays::scrub_book::ScrubBook;
use arrays::scrub_timer;
use arrays::spare_pools;
pub(crate) use dispatch::pong;
pub(crate) use looks::{Looks, Snapshot};
use presence::late;
pub use presence::late::DEVICE_WAIT_S;
use state::claims::ClaimId;
pub(crate) use state::crash_wait::{CRASH_STEP, CRASH_TRIES};
use state::desk::Desk;
pub(crate) use state::errands::{self, Errand};
use state::live::now;
use state::turn::Turn;
use state::{State, records};
use volumes::in_use;
use volumes::lost_ssds;
pub(crate) use volumes::reports::Reports;

/// Volumes, arrays, registry and jobs of one state folder. Clones are ways to the same one.
pub struct Service<E> {
    engine: Arc<E>,
    desk: Arc<Desk<State>>,
}

impl<E> Clone for Service<E> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine), desk: Arc::clone(&self.desk) }
    }
}

/// How long one step of a start may take before nobody waits for the start any more.
const START_HANG: Duration = Duration::from_secs(30);

impl<E: Engine> Service<E> {
    /// A service over a registry; nothing is open until [`Service::start`].
    pub fn new(engine: E, registry: Registry) -> Self {
        Self { engine: Arc::new(engine), desk: Desk::new(State::new(registry)) }
    }

    /// Waits for the state, which every turn gives back soon.
    pub(crate) fn turn(&self) -> Turn {
        Turn::new(Arc::clone(&self.engine) as Arc<dyn Engine>, Arc::clone(&self.desk))
    }

    /// Does errands one after the other, each in a turn of its own.
    fn run(&self, errands: impl IntoIterator<Item = Errand>, now: Instant) {
        errands.into_iter().for_each(|errand| errands::run(&mut self.turn(), &errand, now));
    }

    /// Sets the waker for the loss of an SSD.
    pub fn set_waker(&self, waker: Waker) {
        self.engine.set_waker(waker);
    }

    /// Sets how long a command waits for another one that has its volume or array.
    pub fn set_queue_wait(&self, wait: Duration) {
        self.turn().queue_wait = wait;
    }

    /// Answers one request, and gives spares to arrays that want some by then. Work that takes long is a job
    /// afterwards: see [`Service::step_jobs`].
    pub fn handle(&self, request: Request) -> Response {
        let response = self.answer(request);
        let spares = errands::due_spares(&self.turn());
        self.run(spares, now());
        response
    }

    /// Answers one request; all that may follow from it is left to errands.
    pub(crate) fn answer(&self, request: Request) -> Response {
        let mut turn = self.turn();
        if request.is_a_look() {
            errands::wait_for_a_quick_start(&mut turn);
        }
        dispatch::answer(&mut turn, request)
    }

    /// Brings every recorded array and volume up. One that cannot be served is shown as failed, with
    /// the reason; the others serve. One of which a device is missing waits for it as long as `device_wait`
    /// says, or longer where redundancy is at stake: see [`Service::look_for_devices`].
    ///
    /// After a crash the kernel may still be taking the daemon before apart. The sockets of that daemon
    /// answer and its locks hold for a moment longer than the process. Then what is busy is tried again.
    pub fn start(&self, after_crash: bool, device_wait: Duration) {
        let start = errands::begin_to_start(&mut self.turn(), after_crash, device_wait);
        self.run(start, now());
    }

    /// Looks for missing devices, and tries what waits for them, and exports that could not be opened.
    /// Returns how soon to look again, if there is anything to look for.
    pub fn look_for_devices(&self, now: Instant) -> Option<Duration> {
        let looks = errands::due_looks(&self.turn(), now);
        self.run(looks, now);
        let spares = errands::due_spares(&self.turn());
        self.run(spares, now);
        errands::next_look(&self.turn(), now)
    }

    /// Looks at every running job and ends those whose drain has ended. Returns whether any still
    /// runs: then call again soon.
    pub fn step_jobs(&self) -> bool {
        let jobs = errands::due_jobs(&mut self.turn());
        self.run(jobs, now());
        self.has_jobs()
    }

    pub(crate) fn has_jobs(&self) -> bool {
        !self.turn().jobs.all_running().is_empty()
    }

    /// Brings everything to rest: exports closed, logs checkpointed, dirty lines kept.
    pub fn stop(&self) {
        let stop = errands::begin_to_rest(&mut self.turn());
        self.run(stop.into_iter().flatten(), now());
    }

    /// Whether something recorded is not open yet because a device of it is awaited, or not tried yet.
    pub(crate) fn waits_for_devices(&self) -> bool {
        let turn = self.turn();
        let hangs = |claim: &ClaimId| turn.claims.hangs(*claim, START_HANG);
        let is_waiting = turn.absences().any(|absence| absence.is_waiting());
        is_waiting || !turn.starting.iter().all(hangs)
    }

    /// The devices that the next start or look will open, to be knocked at.
    pub(crate) fn knock(&self) {
        let paths = late::paths_to_open(&self.turn());
        self.engine.machine().knock(paths);
    }

    /// Records SSDs that the data path gave up, so that they are not trusted after a restart. Whether all of
    /// them are on record: clients wait for that, so a record that failed is tried again.
    pub fn notice_lost_ssds(&self) -> bool {
        let all_recorded = lost_ssds::notice(&mut self.turn());
        let pulled = errands::due_pulled(&self.turn());
        self.run(pulled, now());
        all_recorded
    }

    /// Records what changed in arrays by itself. A member that was lost is old from then on. This
    /// instance must know that when the member is the only one that comes back; spares take places. Then
    /// gives spares of pools to arrays that want some.
    pub fn notice_array_events(&self) {
        spare_pools::notice_array_events(&mut self.turn());
    }

    /// Records what the data path has done by itself, and what could not be recorded before. Whether all of
    /// it is on record: clients may wait for that, so what failed is tried again.
    pub fn record_news(&self) -> bool {
        records::record_news(&mut self.turn())
    }

    /// Looks at the health of everything; `None` when the daemon comes to rest.
    pub(crate) fn look_at_all(&self, looks: &mut Looks) -> Option<Look> {
        looks.look(|| self.turn())
    }

    /// What drives said of themselves.
    pub(crate) fn smart(&self) -> Arc<Book> {
        Arc::clone(&self.turn().smart)
    }

    /// The machine whose drives are served.
    pub(crate) fn machine(&self) -> Machine {
        self.engine.machine().clone()
    }

    /// The paths of all devices on record, by the names that `show` has for them.
    pub(crate) fn device_paths(&self) -> BTreeMap<String, PathBuf> {
        let turn = self.turn();
        let of_volumes = turn.registry.volumes().iter().flat_map(|it| it.devices());
        let of_arrays = turn.registry.arrays().iter().flat_map(|it| it.devices());
        let of_pools = turn.registry.pools().iter().flat_map(|it| &it.spares);
        let devices = of_volumes.chain(of_arrays).chain(of_pools.map(|it| &it.device));
        devices.filter_map(|it| Some((it.to_string(), it.path()?.to_owned()))).collect()
    }

    /// Takes over what a state folder knows of the last scrubs of arrays.
    pub fn know_scrubs(&self, folder: &Path) {
        let scrubs = ScrubBook::of(folder);
        self.turn().scrubs = scrubs;
    }

    /// Begins the scrub of an array that is due by this clock. The last scrubs of all arrays, as the bytes of their
    /// file in the state folder ([`SCRUBS_FILE`](crate::SCRUBS_FILE)), if they have changed.
    pub fn step_scrubs(&self, now: Date) -> Option<Vec<u8>> {
        scrub_timer::step(&mut self.turn(), now)
    }

    /// A client has received this answer.
    pub fn job_is_told(&self, told: &JobStatus) {
        self.turn().jobs.tell(told);
    }

    /// Has volumes over Ceph RBD images report how far the images are behind.
    pub(crate) fn report(&self, reports: &mut Reports) {
        reports.tell(&mut self.turn());
    }

    /// From here on the service takes no changes, and goes on to serve clients.
    pub fn begin_to_stop(&self) {
        self.turn().stopping = true;
    }

    /// Whether a volume has an SSD.
    pub(crate) fn has_ssds(&self) -> bool {
        self.turn().registry.volumes().iter().any(|volume| volume.cache.is_some())
    }

    /// From here on the end of this process is the end of every export, however it comes.
    pub(crate) fn keep_nothing(&self) {
        self.engine.keep_nothing();
    }

    /// The program that this process is to become, if it is to become one. Nothing changes that any more.
    pub(crate) fn begin_to_pass(&self) -> Option<PathBuf> {
        let program = {
            let mut turn = self.turn();
            turn.stopping = true;
            turn.next_program.clone()?
        };
        self.engine.begin_to_pass();
        Some(program)
    }

    /// See [`Exports::passed`](crate::engine::Exports::passed).
    pub(crate) fn passed(&self) -> ControlResult<Vec<(String, Option<String>)>> {
        self.engine.passed()
    }

    /// Whether the daemon was told to end without waiting for clients.
    pub fn ends_now(&self) -> bool {
        self.turn().ends_now
    }

    /// Everybody who uses an export now, in words.
    pub(crate) fn users(&self) -> Vec<String> {
        in_use::users(&mut self.turn())
    }

    /// One line of the daemon's log, about no volume.
    pub(crate) fn say(&self, text: &str) {
        self.engine.log(text);
    }
}
