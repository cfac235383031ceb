//! The commands that are swept: what leads up to each, what it does, and what may be there after.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use voltier_cache::Mode;
use voltier_control::protocol::{NewCache, Request, Response};
use voltier_control::{
    DeviceSpec, ExportSpec, Registry, Service, Settings, VolumeName, VolumeStatus,
};
use voltier_volume::PolicyKind;

use super::engine::{self, HDD, SSD, SimEngine};
use super::fixture::{Left, VolumeFixture};
use crate::medium::{Cut, Medium};
pub(super) use crate::sweep::daemon::ask;
use crate::sweep::harness::Fixture;
use crate::workload::MODES;

/// Clients at work while a command runs.
const CLIENTS: u64 = 3;
/// How long they work before it, and after it.
const WARM_UP_NS: u64 = 25_000_000;
const TAIL_NS: u64 = 4_000_000;

/// The policy that a cache changes to.
const NEWEST_POLICY: PolicyKind = PolicyKind::ALL[PolicyKind::ALL.len() - 1];

/// A management command, in the circumstances in which it is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A volume with a cache is made on drives that were used before.
    Create(Mode),
    /// A volume without a cache is made.
    CreatePlain,
    /// A volume is deleted, its dirty lines written back.
    Delete(Mode),
    /// A volume without a cache is deleted.
    DeletePlain,
    /// A cache comes in front of a volume with data, under load.
    Attach(Mode),
    /// The cache goes away, under load.
    Detach(Mode),
    /// A cache that destages in order goes away, under load.
    DetachOrdered,
    /// The mode changes, under load.
    SetMode(Mode, Mode),
    /// The policy changes, under load.
    SetPolicy,
    /// Destaging takes an order, under load.
    SetOrdered,
    /// Admission, thresholds and the cut-off change, under load.
    SetRest,
    /// Everything is written back, under load.
    Flush,
    /// The mode ends writing back, and then everything is written back, under load.
    SetThenFlush,
    /// The volume is stopped by its name under load, and started again.
    StopAndStart,
    /// The daemon stops in order.
    Stop(Mode),
    /// The daemon starts after a stop in order.
    Start(Mode),
    /// The daemon starts after a power cut.
    Recover(Mode),
}

/// The registry's record of the volume, in short: whether the volume is there, and its cache's settings.
pub(super) type Shape = Option<Option<Settings>>;

impl fmt::Display for Command {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Create(mode) => write!(out, "create {mode}"),
            Command::CreatePlain => write!(out, "create plain"),
            Command::Delete(mode) => write!(out, "delete {mode}"),
            Command::DeletePlain => write!(out, "delete plain"),
            Command::Attach(mode) => write!(out, "attach {mode}"),
            Command::Detach(mode) => write!(out, "detach {mode}"),
            Command::DetachOrdered => write!(out, "detach ordered"),
            Command::SetMode(from, to) => write!(out, "set mode {from} to {to}"),
            Command::SetPolicy => write!(out, "set policy"),
            Command::SetOrdered => write!(out, "set ordered"),
            Command::SetRest => write!(out, "set the rest"),
            Command::Flush => write!(out, "flush"),
            Command::SetThenFlush => write!(out, "set wt, then flush"),
            Command::StopAndStart => write!(out, "stop by name, then start"),
            Command::Stop(mode) => write!(out, "stop {mode}"),
            Command::Start(mode) => write!(out, "start {mode}"),
            Command::Recover(mode) => write!(out, "recover {mode}"),
        }
    }
}

pub(super) fn name() -> VolumeName {
    "v".parse().expect("a name")
}

fn device(path: &str) -> DeviceSpec {
    path.parse().expect("a path")
}

/// A cache on the SSD, whatever is there.
pub(super) fn new_cache(settings: &Settings) -> NewCache {
    NewCache { device: device(SSD), settings: settings.clone(), force: true }
}

pub(super) fn create(settings: Option<&Settings>) -> Request {
    Request::Create {
        name: name(),
        origin: device(HDD),
        cache: settings.map(new_cache),
        export: None,
    }
}

/// A call with the two drives in the wrong order.
pub(super) fn create_swapped() -> Request {
    let cache = NewCache { device: device(HDD), ..new_cache(&Settings::default()) };
    Request::Create { name: name(), origin: device(SSD), cache: Some(cache), export: None }
}

fn with(mode: Mode) -> Settings {
    Settings { mode, ..Settings::default() }
}

impl Command {
    /// Every command, in all circumstances.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::CreatePlain, Self::DeletePlain, Self::DetachOrdered];
        all.extend([Self::SetPolicy, Self::SetOrdered, Self::SetRest]);
        all.extend([Self::Flush, Self::SetThenFlush, Self::StopAndStart]);
        for mode in MODES {
            all.extend([Self::Create(mode), Self::Delete(mode)]);
            all.extend([Self::Attach(mode), Self::Detach(mode)]);
            all.extend([Self::Stop(mode), Self::Start(mode), Self::Recover(mode)]);
            let others = MODES.into_iter().filter(|to| *to != mode);
            all.extend(others.map(|to| Self::SetMode(mode, to)));
        }
        all
    }

    /// The name as one word, for command lines.
    pub fn word(self) -> String {
        self.to_string().replace(", ", "-").replace(' ', "-")
    }

    /// The command of this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::all().into_iter().find(|command| command.word() == word)
    }

    /// The settings of the cache before the command; `None` without a cache.
    fn settings_before(self) -> Option<Settings> {
        match self {
            Self::Create(_) | Self::CreatePlain | Self::DeletePlain | Self::Attach(_) => None,
            Self::Delete(mode)
            | Self::Detach(mode)
            | Self::SetMode(mode, _)
            | Self::Stop(mode)
            | Self::Start(mode)
            | Self::Recover(mode) => Some(with(mode)),
            Self::DetachOrdered => Some(Settings { ordered: true, ..with(Mode::WriteBack) }),
            // Dirty lines would have no order yet.
            Self::SetOrdered => Some(with(Mode::WriteThrough)),
            Self::SetPolicy
            | Self::SetRest
            | Self::Flush
            | Self::SetThenFlush
            | Self::StopAndStart => Some(with(Mode::WriteBack)),
        }
    }

    /// The record before the command.
    pub(super) fn before(self) -> Shape {
        match self {
            Self::Create(_) | Self::CreatePlain => None,
            _ => Some(self.settings_before()),
        }
    }

    /// The record after the command.
    pub(super) fn after(self) -> Shape {
        match self {
            Self::Create(mode) | Self::Attach(mode) | Self::SetMode(_, mode) => {
                Some(Some(with(mode)))
            }
            Self::CreatePlain | Self::Detach(_) | Self::DetachOrdered => Some(None),
            Self::Delete(_) | Self::DeletePlain => None,
            Self::SetThenFlush => Some(Some(with(Mode::WriteThrough))),
            Self::SetPolicy | Self::SetOrdered | Self::SetRest => {
                let mut settings = self.settings_before().expect("a cache");
                for (key, value) in self.changes() {
                    settings.apply(&key, &value).expect("a known key");
                }
                Some(Some(settings))
            }
            Self::Flush
            | Self::StopAndStart
            | Self::Stop(_)
            | Self::Start(_)
            | Self::Recover(_) => self.before(),
        }
    }

    fn changes(self) -> Vec<(String, String)> {
        let mode;
        let changes: &[(&str, &str)] = match self {
            Self::SetMode(_, to) => {
                mode = to.to_string();
                &[("mode", mode.as_str())]
            }
            Self::SetThenFlush => &[("mode", "wt")],
            Self::SetPolicy => &[("policy", NEWEST_POLICY.name())],
            Self::SetOrdered => &[("ordered", "on")],
            _ => &[("admission", "touches:2"), ("seq_cutoff", "16K"), ("dirty_high", "80")],
        };
        changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Clients at work. In order, each flush of theirs is a batch of its own on the origin: more of
    /// them would only make a drain longer.
    fn clients(self) -> u64 {
        if self == Self::DetachOrdered { 1 } else { CLIENTS }
    }

    /// The requests that it is.
    fn requests(self) -> Vec<Request> {
        let set = |command: Self| Request::Set { name: name(), changes: command.changes() };
        match self {
            Self::Create(mode) => vec![create(Some(&with(mode)))],
            Self::CreatePlain => vec![create(None)],
            Self::Delete(_) | Self::DeletePlain => {
                vec![Request::Delete { name: name(), flush: true }]
            }
            Self::Attach(mode) => {
                vec![Request::Attach { name: name(), cache: new_cache(&with(mode)) }]
            }
            Self::Detach(_) | Self::DetachOrdered => {
                vec![Request::Detach { name: name(), flush: true }]
            }
            Self::SetMode(..) | Self::SetPolicy | Self::SetOrdered | Self::SetRest => {
                vec![set(self)]
            }
            Self::Flush => vec![Request::Flush { name: name() }],
            Self::SetThenFlush => vec![set(self), Request::Flush { name: name() }],
            Self::StopAndStart => {
                vec![Request::Stop { name: name(), now: false }, Request::Start { name: name() }]
            }
            Self::Stop(_) | Self::Start(_) | Self::Recover(_) => Vec::new(),
        }
    }

    /// Brings a world to where the command begins; also the SSD as it was some openings ago.
    pub(super) fn lead_up(
        self,
        fixture: &Rc<VolumeFixture>,
    ) -> (Service<SimEngine>, Option<Medium>) {
        let settings = self.settings_before();
        let mut service = engine::service(fixture);
        service.start(false, Duration::ZERO);
        fixture.client_count.set(self.clients());
        ask(fixture, &mut service, create(settings.as_ref()));
        let at = ExportSpec::Nbd("unix:/run/v.sock".parse().expect("an address"));
        ask(
            fixture,
            &mut service,
            Request::Export { name: name(), export: at, insecure: false, access: None },
        );
        fixture.pass(WARM_UP_NS);
        service.stop();
        let stale = settings.is_some().then(|| fixture.ssd.medium());
        service = engine::service(fixture);
        service.start(false, Duration::ZERO);
        fixture.pass(WARM_UP_NS);
        match self {
            Self::Create(_) | Self::CreatePlain => {
                ask(fixture, &mut service, Request::Delete { name: name(), flush: true });
            }
            Self::Start(_) => {
                service.stop();
                service = engine::service(fixture);
            }
            _ => {}
        }
        (service, stale)
    }

    /// The crash that the command begins on: `Recover` alone.
    pub(super) fn crash_before(self, fixture: &VolumeFixture) -> Option<Left> {
        let crashes = matches!(self, Self::Recover(_));
        crashes.then(|| fixture.left_by(Cut::Power, &mut fixture.world.prng()))
    }

    /// Does it, and has clients work on for a moment. `answered` is called when it is done.
    pub(super) fn act(
        self,
        fixture: &Rc<VolumeFixture>,
        service: &mut Service<SimEngine>,
        answered: &dyn Fn(),
    ) {
        match self {
            Self::Stop(_) => service.stop(),
            Self::Start(_) | Self::Recover(_) => service.start(false, Duration::ZERO),
            _ => {
                for request in self.requests() {
                    ask(fixture, service, request);
                }
            }
        }
        answered();
        fixture.step();
        if fixture.clients.borrow().is_some() {
            fixture.pass(TAIL_NS);
        }
    }

    /// Does it again after a crash that undid it.
    pub(super) fn again(self, fixture: &Rc<VolumeFixture>, service: &mut Service<SimEngine>) {
        for request in self.requests() {
            ask(fixture, service, request);
        }
    }
}

/// The record, in short.
pub(super) fn shape(registry: &Registry) -> Shape {
    let record = registry.find(&name())?;
    let live = record.cache.as_ref().filter(|cache| cache.failed.is_none());
    Some(live.map(|cache| cache.settings.clone()))
}

/// The volume as `voltier show` has it.
pub(super) fn show(service: &mut Service<SimEngine>) -> VolumeStatus {
    match service.handle(Request::Show { name: Some(name()), over_s: None }) {
        Response::Volume { volume } => *volume,
        other => panic!("{other:?}"),
    }
}
