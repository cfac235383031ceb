//! The commands that are swept: what leads up to each, what it does, and what may be there after.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use voltier_array::{Consistency, Integrity, Level};
use voltier_control::protocol::{
    ArrayRequest, Growth, MemberName, NewArray, Repair, Request, Response,
};
use voltier_control::{ArrayDetail, ArrayLevel, ArrayName, DeviceSpec, Registry, Service};

use super::engine::{self, ArraySimEngine};
use super::fixture::{ArrayDaemonFixture, Left};
use crate::medium::Cut;
use crate::sweep::daemon;
use crate::sweep::harness::Fixture;

/// Clients at work while a command runs.
const CLIENTS: u64 = 2;
/// How long they work before it, and after it.
const WARM_UP_NS: u64 = 12_000_000;
const TAIL_NS: u64 = 3_000_000;
/// The member that goes, and the devices that come.
const MEMBER: u32 = 1;
const FRESH: usize = 4;
const SPARE: usize = 5;
const JOURNALS: [usize; 2] = [6, 7];

/// A management command of arrays, in the circumstances in which it is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayCommand {
    /// An array is made on drives that were used before.
    Create,
    /// The same with its journal on a device.
    CreateWithJournal,
    /// The array is stopped and forgotten.
    Delete,
    /// The array is stopped and forgotten, and its labels are erased.
    DeleteErase,
    /// An array that was forgotten is assembled.
    Assemble,
    /// The daemon stops in order.
    Stop,
    /// The daemon starts after a stop in order.
    Start,
    /// The daemon starts after a power cut.
    Recover,
    /// The same with the journal on a device.
    RecoverWithJournal,
    /// A member is taken out.
    Fail,
    /// A member is taken out, and a spare waits.
    FailWithSpare,
    /// A device comes in the place of a lost member.
    ReplaceLost,
    /// The lost member itself comes back.
    ReplaceBack,
    /// A device is filled beside a member in service.
    ReplaceOnline,
    /// A spare is added.
    AddSpare,
    /// A spare is taken back.
    RemoveSpare,
    /// A parity row, or a copy, is added.
    Grow,
    /// A member is added for capacity.
    GrowCapacity,
    /// The journal goes to a device.
    JournalToDevice,
    /// The journal goes to another device.
    JournalToAnother,
    /// The journal comes back to the members.
    JournalToMembers,
    /// Paces are set.
    SetPace,
    /// A scrub is begun.
    Scrub,
}

impl ArrayCommand {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Create,
        Self::CreateWithJournal,
        Self::Delete,
        Self::DeleteErase,
        Self::Assemble,
        Self::Stop,
        Self::Start,
        Self::Recover,
        Self::RecoverWithJournal,
        Self::Fail,
        Self::FailWithSpare,
        Self::ReplaceLost,
        Self::ReplaceBack,
        Self::ReplaceOnline,
        Self::AddSpare,
        Self::Grow,
        Self::GrowCapacity,
        Self::JournalToDevice,
        Self::JournalToAnother,
        Self::JournalToMembers,
        Self::SetPace,
        Self::Scrub,
        Self::RemoveSpare,
    ];

    /// The name as one word, for command lines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "array-create",
            Self::CreateWithJournal => "array-create-journal",
            Self::Delete => "array-delete",
            Self::DeleteErase => "array-delete-erase",
            Self::Assemble => "array-assemble",
            Self::Stop => "array-stop",
            Self::Start => "array-start",
            Self::Recover => "array-recover",
            Self::RecoverWithJournal => "array-recover-journal",
            Self::Fail => "array-fail",
            Self::FailWithSpare => "array-fail-spare",
            Self::ReplaceLost => "array-replace-lost",
            Self::ReplaceBack => "array-replace-back",
            Self::ReplaceOnline => "array-replace-online",
            Self::AddSpare => "array-add-spare",
            Self::RemoveSpare => "array-remove-spare",
            Self::Grow => "array-grow",
            Self::GrowCapacity => "array-grow-capacity",
            Self::JournalToDevice => "array-journal-device",
            Self::JournalToAnother => "array-journal-another",
            Self::JournalToMembers => "array-journal-members",
            Self::SetPace => "array-set",
            Self::Scrub => "array-scrub",
        }
    }

    /// The command of this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.word() == word)
    }
}

impl fmt::Display for ArrayCommand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// The registry's record of the array, in short. The text says whether the array is there, its level and
/// places, its journal's device, the pace of its rebuilds and how it merges.
pub(super) type Shape = Option<(ArrayLevel, usize, Option<DeviceSpec>, String)>;

pub(super) fn shape(registry: &Registry) -> Shape {
    let record = registry.find_array(&name())?;
    let pace = format!("{:?} {:?}", record.settings.rebuild, record.settings.merge);
    Some((record.level, record.members.len(), record.journal.clone(), pace))
}

pub(super) fn name() -> ArrayName {
    "a".parse().expect("a name")
}

/// Level and members of a seed.
pub(super) fn level_of(seed: u64) -> (Level, usize) {
    [(Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid1, 2)][seed as usize % 3]
}

/// Asks for something that must work.
pub(super) fn ask(
    fixture: &ArrayDaemonFixture,
    service: &mut Service<ArraySimEngine>,
    ask: ArrayRequest,
) {
    daemon::ask(fixture, service, Request::Array { ask });
}

/// The array as `voltier array show` has it.
pub(super) fn show(service: &mut Service<ArraySimEngine>) -> ArrayDetail {
    let ask = ArrayRequest::Show { name: Some(name()), over_s: None };
    match service.handle(Request::Array { ask }) {
        Response::Array { array, .. } => *array,
        other => panic!("{other:?}"),
    }
}

pub(super) fn create(
    fixture: &ArrayDaemonFixture,
    (level, members): (Level, usize),
    journal: Option<usize>,
) -> ArrayRequest {
    let array = NewArray {
        name: name(),
        level: ArrayLevel(level),
        chunk_bytes: 4096,
        consistency: Consistency::Journal,
        members: (0..members).map(|number| fixture.device(number)).collect(),
        spares: Vec::new(),
        journal: journal.map(|number| fixture.device(number)),
        force: true,
    };
    ArrayRequest::Create { array, integrity: Integrity::None, export: None }
}

impl ArrayCommand {
    fn level_of(self, seed: u64) -> (Level, usize) {
        match level_of(seed) {
            // A mirror takes no member for capacity.
            (Level::Raid1, _) if self == Self::GrowCapacity => (Level::Raid5, 4),
            it => it,
        }
    }

    /// Where the journal is before it.
    fn journal_before(self) -> Option<usize> {
        let is_on_device = matches!(
            self,
            Self::JournalToAnother | Self::JournalToMembers | Self::RecoverWithJournal
        );
        is_on_device.then_some(JOURNALS[0])
    }

    /// Whether a member may be missing in the end.
    pub(super) fn may_miss_one(self) -> bool {
        matches!(self, Self::Fail | Self::FailWithSpare | Self::ReplaceLost | Self::ReplaceBack)
    }

    /// The requests that it is.
    fn requests(self, fixture: &ArrayDaemonFixture, seed: u64) -> Vec<ArrayRequest> {
        let name = name();
        let device = |number| fixture.device(number);
        let replace = |new: usize| ArrayRequest::Replace {
            name: name.clone(),
            old: MemberName::Index(MEMBER),
            new: device(new),
            force: true,
        };
        let journal = |to: Option<usize>| ArrayRequest::SetJournal {
            name: name.clone(),
            journal: to.map(device),
            force: true,
        };
        let (level, members) = self.level_of(seed);
        let grow = |by: Growth| ArrayRequest::Grow {
            name: name.clone(),
            by,
            devices: vec![device(FRESH)],
            force: true,
        };
        vec![match self {
            Self::Create => create(fixture, (level, members), None),
            Self::CreateWithJournal => create(fixture, (level, members), Some(JOURNALS[0])),
            Self::Delete => ArrayRequest::Delete { name, erase: false },
            Self::DeleteErase => ArrayRequest::Delete { name, erase: true },
            Self::Assemble => {
                let devices = (0..members).rev().map(device).collect();
                ArrayRequest::Assemble { devices, force: false, read_only: false }
            }
            Self::Fail | Self::FailWithSpare => {
                ArrayRequest::Fail { name, member: MemberName::Index(MEMBER) }
            }
            Self::ReplaceLost | Self::ReplaceOnline => replace(FRESH),
            Self::ReplaceBack => replace(MEMBER as usize),
            Self::AddSpare => ArrayRequest::AddSpare { name, spare: device(SPARE), force: true },
            Self::RemoveSpare => ArrayRequest::RemoveSpare { name, spare: device(SPARE) },
            Self::Grow if level == Level::Raid1 => grow(Growth::Member),
            Self::Grow => grow(Growth::Parity),
            Self::GrowCapacity => grow(Growth::Capacity),
            Self::JournalToDevice => journal(Some(JOURNALS[0])),
            Self::JournalToAnother => journal(Some(JOURNALS[1])),
            Self::JournalToMembers => journal(None),
            Self::SetPace => {
                let merge: &[_] = if level.has_parity() { &[("merge", "always")] } else { &[] };
                let changes = [("rebuild_priority", "high")].iter().chain(merge);
                let changes = changes.map(|(key, value)| (key.to_string(), value.to_string()));
                ArrayRequest::Set { name, changes: changes.collect() }
            }
            Self::Scrub => ArrayRequest::Scrub { name, repair: Repair::Located },
            Self::Stop | Self::Start | Self::Recover | Self::RecoverWithJournal => {
                return Vec::new();
            }
        }]
    }

    /// Whether the command can be given again after a crash that undid it, as it was.
    pub(super) fn changes_shape(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::CreateWithJournal
                | Self::Delete
                | Self::DeleteErase
                | Self::Assemble
                | Self::Grow
                | Self::GrowCapacity
                | Self::JournalToDevice
                | Self::JournalToAnother
                | Self::JournalToMembers
                | Self::SetPace
        )
    }

    /// Brings a world to where the command begins.
    pub(super) fn lead_up(
        self,
        fixture: &Rc<ArrayDaemonFixture>,
        seed: u64,
    ) -> Service<ArraySimEngine> {
        let mut service = engine::service(fixture);
        service.start(false, Duration::ZERO);
        fixture.client_count.set(CLIENTS);
        ask(fixture, &mut service, create(fixture, self.level_of(seed), self.journal_before()));
        fixture.pass(WARM_UP_NS);
        match self {
            Self::Create | Self::CreateWithJournal | Self::Assemble => {
                ask(fixture, &mut service, ArrayRequest::Delete { name: name(), erase: false });
            }
            Self::Start => {
                service.stop();
                service = engine::service(fixture);
            }
            Self::ReplaceLost | Self::ReplaceBack => {
                let member = MemberName::Index(MEMBER);
                ask(fixture, &mut service, ArrayRequest::Fail { name: name(), member });
                fixture.pass(WARM_UP_NS);
            }
            Self::FailWithSpare | Self::RemoveSpare => {
                let (name, spare) = (name(), fixture.device(SPARE));
                ask(fixture, &mut service, ArrayRequest::AddSpare { name, spare, force: true });
            }
            _ => {}
        }
        service
    }

    /// The crash that the command begins on.
    pub(super) fn crash_before(self, fixture: &ArrayDaemonFixture) -> Option<Left> {
        let crashes = matches!(self, Self::Recover | Self::RecoverWithJournal);
        crashes.then(|| fixture.left_by(Cut::Power, &mut fixture.world.prng()))
    }

    /// Does it, and has clients work on for a moment. `answered` is called when it is done.
    pub(super) fn act(
        self,
        fixture: &Rc<ArrayDaemonFixture>,
        service: &mut Service<ArraySimEngine>,
        seed: u64,
        answered: &dyn Fn(),
    ) {
        match self {
            Self::Stop => service.stop(),
            Self::Start | Self::Recover | Self::RecoverWithJournal => {
                service.start(false, Duration::ZERO)
            }
            _ => self.again(fixture, service, seed),
        }
        answered();
        fixture.step();
        fixture.pass(TAIL_NS);
    }

    /// Does it, if it is a request.
    pub(super) fn again(
        self,
        fixture: &Rc<ArrayDaemonFixture>,
        service: &mut Service<ArraySimEngine>,
        seed: u64,
    ) {
        for request in self.requests(fixture, seed) {
            ask(fixture, service, request);
        }
    }
}
