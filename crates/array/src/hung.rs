//! Members that do not answer: when one is given up, and when nobody is.
//!
//! A drive that hangs gives no error, and requests would wait for it for ever. So the array gives the
//! member up after the deadline. Reads are computed from the others. A change is acknowledged when the loss
//! is on record, as after any loss.
//!
//! Blame needs a difference to the peers. A drive is given up only while all others answer; those that
//! have nothing to do are asked for something. When more are late than the array can lose, the cause may be
//! one that they share (an adapter, a cable, a power supply). Then the array waits for all of them.
//!
//! Before an array serves nobody waits for it but its start. A start that would have to wait ends instead.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use voltier_block::{BlockDevice, Buf, DriveControl, Lba};
use voltier_deadline::{Answers, Guarded, Judge, Requests};

use crate::format::journal_record::RingIndex;
use crate::format::member_layout::SUPERBLOCK_BYTES;
use crate::generations::Generations;
use crate::geometry::numbers::MemberIndex;
use crate::members::event::MemberEvent;
use crate::members::health::HealthNews;
use crate::stripe::ground::Ground;

/// The use that the array has for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The member is in service with it.
    InService(MemberIndex),
    /// The member is being rebuilt on it: nobody counts on it yet.
    Rebuilt(MemberIndex),
    /// The device is filled, to take the place of the one of the member.
    Successor(MemberIndex),
    Journal,
}

impl Role {
    fn member(self) -> Option<MemberIndex> {
        match self {
            Self::InService(member) | Self::Rebuilt(member) | Self::Successor(member) => {
                Some(member)
            }
            Self::Journal => None,
        }
    }
}

/// A device that has a role, and how it answers.
struct Peer<D> {
    role: Role,
    device: Rc<Guarded<D>>,
    answers: Answers,
}

impl<D> Peer<D> {
    fn is_in_service(&self) -> bool {
        matches!(self.role, Role::InService(_))
    }

    /// Whether the member does not answer, as far as can be told already.
    fn is_silent(&self) -> bool {
        matches!(self.answers, Answers::Suspect | Answers::Late)
    }

    fn is_late(&self) -> bool {
        self.answers == Answers::Late
    }
}

/// Members that do not answer and cannot be given up: the start has ended for them.
pub(crate) type Silent = Rc<RefCell<Vec<usize>>>;

/// Judges the devices of an array, as long as it is there.
struct Jury<D> {
    array: Weak<Generations<Guarded<D>>>,
    /// While the array is started; none when it serves.
    start: Option<Silent>,
}

/// Has the devices of an array judged from now on.
pub(crate) fn install<D: DriveControl>(array: &Rc<Generations<Guarded<D>>>) {
    let jury = Jury { array: Rc::downgrade(array), start: None };
    array.ground.members.watch().set_judge(Rc::new(jury));
}

/// The same while the array is started, before anybody is served. When members do not answer that cannot be
/// given up, all requests end, and so does the start. The result names these members then.
pub(crate) fn install_for_start<D: DriveControl>(array: &Rc<Generations<Guarded<D>>>) -> Silent {
    let silent = Silent::default();
    let jury = Jury { array: Rc::downgrade(array), start: Some(silent.clone()) };
    array.ground.members.watch().set_judge(Rc::new(jury));
    silent
}

impl<D: DriveControl> Judge for Jury<D> {
    fn judge(&self) {
        let Some(array) = self.array.upgrade() else { return };
        let hearing = Hearing { start: self.start.clone(), ..Hearing::of(&array.ground) };
        hearing.release_strangers();
        hearing.ask_those_at_rest();
        hearing.give_helpers_up();
        hearing.judge_members();
    }
}

/// The devices that have a role at a tick, and what follows from how they answer.
struct Hearing<'a, D> {
    ground: &'a Ground<Guarded<D>>,
    peers: Vec<Peer<D>>,
    start: Option<Silent>,
}

impl<'a, D: DriveControl> Hearing<'a, D> {
    fn of(ground: &'a Ground<Guarded<D>>) -> Self {
        let (members, watch) = (&ground.members, ground.members.watch());
        let mut peers = Vec::new();
        let mut add = |role, device: Rc<Guarded<D>>| {
            let answers = watch.answers(device.requests());
            peers.push(Peer { role, device, answers });
        };
        for (index, member) in members.indexed() {
            if let Ok(device) = member.device() {
                let role = if member.is_online() { Role::InService } else { Role::Rebuilt };
                add(role(index), device);
            }
            if let Some(device) = member.succeeding() {
                add(Role::Successor(index), device);
            }
        }
        if let Ok(device) = ground.journal.placement().device_of_ring(RingIndex::DEVICE) {
            add(Role::Journal, device);
        }
        Self { ground, peers, start: None }
    }

    fn in_service(&self) -> impl Iterator<Item = &Peer<D>> {
        self.peers.iter().filter(|peer| peer.is_in_service())
    }

    /// Ends the requests of devices that are late and have no role: those that come, wait as spares, or are
    /// out.
    fn release_strangers(&self) {
        let watch = self.ground.members.watch();
        for device in watch.devices() {
            let has_role = self.peers.iter().any(|it| Rc::ptr_eq(it.device.requests(), &device));
            if !has_role && watch.answers(&device) == Answers::Late {
                device.release();
            }
        }
    }

    /// When a device does not answer, reads something from those that have nothing to do: without that nobody
    /// knows whether they answer.
    fn ask_those_at_rest(&self) {
        if !self.peers.iter().any(Peer::is_silent) {
            return;
        }
        for Peer { device, .. } in &self.peers {
            if !device.requests().are_any() {
                let device = device.clone();
                drop(self.ground.handle.spawn(async move {
                    // Any answer is one, also an error.
                    let _ = device.read(Lba(0), Buf::new(SUPERBLOCK_BYTES as usize)).await;
                }));
            }
        }
    }

    /// Gives up what no data depend on: devices that are being filled, and that of the journal. While a
    /// member in service does not answer, the cause may be a common one: then only after several deadlines.
    fn give_helpers_up(&self) {
        let (members, watch) = (&self.ground.members, self.ground.members.watch());
        let is_alone = self.in_service().all(|peer| peer.answers == Answers::Promptly);
        for peer in self.peers.iter().filter(|peer| peer.is_late() && !peer.is_in_service()) {
            let requests: &Requests = peer.device.requests();
            if !is_alone && !watch.is_overdue(requests) {
                continue;
            }
            let waited_ns = watch.waited_ns(requests);
            let news = match peer.role {
                Role::Successor(member) => {
                    members.give_successor_up(member, &peer.device);
                    watch.note_left(member, peer.device.under_way());
                    HealthNews::SuccessorHung { member: member.0, waited_ns }
                }
                Role::Journal => {
                    self.ground.journal.placement().lose_device(&peer.device);
                    members.emit(MemberEvent::GivenUp);
                    HealthNews::JournalHung { waited_ns }
                }
                Role::Rebuilt(member) | Role::InService(member) => {
                    members.give_up(member);
                    HealthNews::Hung { member: member.0, waited_ns }
                }
            };
            peer.device.abandon();
            members.health().say(news);
        }
    }

    /// Gives up members in service that are late, in groups that can lose all that do not answer.
    fn judge_members(&self) {
        let (members, watch) = (&self.ground.members, self.ground.members.watch());
        let late: Vec<&Peer<D>> = self.in_service().filter(|peer| peer.is_late()).collect();
        let is_blocked = |peer: &&&Peer<D>| {
            peer.role.member().is_some_and(|member| !self.can_lose_the_silent(member))
        };
        let blocked: Vec<&Peer<D>> = late.iter().filter(is_blocked).copied().collect();
        if let Some(start) = self.start.as_ref().filter(|_| !blocked.is_empty()) {
            return self.end_start(start, &blocked);
        }
        self.tell_of_waiting(&blocked);
        let is_known = self.in_service().all(|peer| peer.answers != Answers::Unknown);
        if !blocked.is_empty() || !is_known || watch.is_in_grace() {
            return;
        }
        for peer in late {
            let Role::InService(member) = peer.role else { continue };
            // The ones before may have changed what can be lost.
            if !members.can_spare(member, 0) {
                continue;
            }
            let waited_ns = watch.waited_ns(peer.device.requests());
            members.give_up(member);
            peer.device.abandon();
            members.health().say(HealthNews::Hung { member: member.0, waited_ns });
        }
    }

    /// Ends a start that would have to wait, as a crash would: nobody is lost on record when all are gone.
    fn end_start(&self, start: &Silent, blocked: &[&Peer<D>]) {
        let members = blocked.iter().filter_map(|peer| peer.role.member());
        start.replace(members.map(|member| member.0).collect());
        self.peers.iter().for_each(|peer| peer.device.abandon());
    }

    /// Says that the array begins to wait for devices that cannot be given up, or waits no more.
    fn tell_of_waiting(&self, blocked: &[&Peer<D>]) {
        let (members, watch) = (&self.ground.members, self.ground.members.watch());
        if !watch.set_waiting(!blocked.is_empty()) {
            return;
        }
        if blocked.is_empty() {
            // Requests that others held up get a whole deadline of their own.
            watch.give_grace();
            members.health().say(HealthNews::WaitingEnded);
        } else {
            let waited_ns = blocked.iter().map(|peer| watch.waited_ns(peer.device.requests()));
            let waited_ns = waited_ns.max().unwrap_or(0);
            let silent = self.in_service().filter(|peer| peer.is_silent()).count();
            members.health().say(HealthNews::Waiting { members: silent, waited_ns });
        }
    }

    /// Whether the group of a member can lose all of its devices that do not answer, and those lost already.
    fn can_lose_the_silent(&self, member: MemberIndex) -> bool {
        let Ground { geometry, members, .. } = self.ground;
        let group = geometry.group_of_member(member);
        // A member that is being rebuilt counts as lost whether it answers or not. An overdue successor is
        // out.
        let is_counted = |peer: &&Peer<D>| {
            let is_of_group =
                peer.role.member().is_none_or(|own| geometry.group_of_member(own) == group);
            let is_helper = !peer.is_in_service();
            let is_out = is_helper && members.watch().is_overdue(peer.device.requests());
            is_of_group && peer.is_silent() && !is_out && !matches!(peer.role, Role::Rebuilt(_))
        };
        let silent = self.peers.iter().filter(is_counted).count();
        let lost = members.lost_in(group);
        silent + lost <= geometry.parity_chunks() && members.can_spare(member, 0)
    }
}
