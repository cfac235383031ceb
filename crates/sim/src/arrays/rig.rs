//! An array on simulated drives, and a stand-in for its superblocks: who is lost, durably.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_array::{Array, ArrayError, JournalOptions, JournalStart, RecordLosses, ReplayReport};
use voltier_block::{BlockDevice, Buf, Durability, Lba, Limits, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::scrub;
use crate::arrays::setup::{Harm, Setup};
use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::world::World;

/// Name of every array here.
const ARRAY: [u8; 16] = *b"an array of sims";
const SECTOR: usize = SECTOR_BYTES as usize;

/// What is left of a life: the drives, and what they may hold.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) media: Vec<Medium>,
    pub(crate) model: Model,
    /// Members on record as lost: others may have what they miss, and they are never back.
    pub(crate) recorded: u64,
    /// Lives up to now.
    pub(crate) lives: u64,
}

/// Events of a life are above those of all lives before it: a register that was on its way when an
/// earlier one ended is older than any of a life that began without the drive that has it. Superblocks
/// know that by the event since which they call each member lost.
const EVENTS_OF_A_LIFE: u64 = 1 << 32;

/// Who is lost, as one drive has it.
#[derive(Clone, Copy)]
struct Register {
    event: u64,
    lost: u64,
}

impl Register {
    fn encode(self, block_bytes: u32) -> Buf {
        let mut block = Buf::zeroed(block_bytes as usize);
        block[..8].copy_from_slice(&self.event.to_le_bytes());
        block[8..16].copy_from_slice(&self.lost.to_le_bytes());
        block
    }

    fn of(medium: &Medium, at: Lba) -> Self {
        let mut bytes = [0; 16];
        medium.peek(at, &mut bytes);
        let word =
            |from: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[from + index]));
        Self { event: word(0), lost: word(8) }
    }
}

impl Left {
    pub(crate) fn new(setup: &Setup) -> Self {
        let medium = |member| Medium::zeroed(setup.disk(member).bytes);
        Self {
            media: (0..setup.geometry.member_count()).map(medium).collect(),
            model: Model::new(setup.geometry.sectors()),
            recorded: 0,
            lives: 0,
        }
    }

    /// Whether the array can be what it was without the members of `away`.
    pub(crate) fn can_do_without(&self, setup: &Setup, away: u64) -> bool {
        setup.can_lose(self.lost_without(setup, away) | self.recorded)
    }

    /// Members that are not in service when those of `away` are not given: the newest register of the
    /// others counts.
    pub(crate) fn lost_without(&self, setup: &Setup, away: u64) -> u64 {
        let given = self.media.iter().enumerate().filter(|(at, _)| away >> at & 1 == 0);
        let registers = given.map(|(_, medium)| Register::of(medium, setup.register_at()));
        let newest = registers.max_by_key(|register| register.event);
        newest.map_or(away, |newest| newest.lost | away)
    }
}

/// An array that serves.
pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) setup: Rc<Setup>,
    pub(crate) disks: Vec<SimDisk>,
    /// None until it has begun.
    array: RefCell<Option<Array<SimDisk>>>,
    pub(crate) model: RefCell<Model>,
    /// Members not in service from the start.
    lost: u64,
    event: Rc<Cell<u64>>,
    recorded: Rc<Cell<u64>>,
    lives: u64,
}

impl Rig {
    /// Drives in a world, with what is left on them; members of `away` are not used.
    pub(crate) fn new(world: &World, setup: &Rc<Setup>, left: Left, away: u64) -> Rc<Self> {
        let lost = left.lost_without(setup, away);
        let lives = left.lives + 1;
        let disk = |(member, medium)| SimDisk::new(world, &setup.disk(member), medium);
        Rc::new(Self {
            world: world.clone(),
            setup: setup.clone(),
            disks: left.media.into_iter().enumerate().map(disk).collect(),
            array: RefCell::default(),
            model: RefCell::new(left.model),
            lost,
            event: Rc::new(Cell::new(lives * EVENTS_OF_A_LIFE)),
            recorded: Rc::new(Cell::new(left.recorded)),
            lives,
        })
    }

    /// What `cut` leaves at this moment.
    pub(crate) fn left_by(&self, cut: Cut, prng: &mut Prng, ledger: &Ledger) -> Left {
        let media = self.disks.iter().map(|disk| disk.after(cut, prng)).collect();
        let mut model = self.model.borrow().apart();
        ledger.count(|counts| counts.crash_points += 1);
        match cut {
            Cut::Power => model.power_cut(),
            Cut::Kill => model.kill(),
        }
        let kind = if cut == Cut::Power { FaultKind::PowerCut } else { FaultKind::DaemonKill };
        ledger.fault(kind);
        Left { media, model, recorded: self.recorded.get(), lives: self.lives }
    }

    /// Writes who is lost to all others, as superblocks would.
    fn recorder(&self) -> RecordLosses {
        let (disks, event) = (self.disks.clone(), self.event.clone());
        let recorded = self.recorded.clone();
        let (handle, setup) = (self.world.handle().clone(), self.setup.clone());
        let record = move |lost: Vec<usize>| {
            event.set(event.get() + 1);
            let mask = lost.iter().fold(0, |mask, member| mask | 1 << member);
            let register = Register { event: event.get(), lost: mask };
            let (handle, at) = (handle.clone(), setup.register_at());
            let block = register.encode(setup.block_bytes).freeze();
            let others = disks.iter().cloned().enumerate();
            let others: Vec<_> = others.filter(|(member, _)| !lost.contains(member)).collect();
            let writes: Vec<_> = others
                .into_iter()
                .map(|(member, disk)| {
                    let data = block.clone().into();
                    let write = async move { disk.write(at, data, Durability::Durable).await };
                    (member, handle.spawn(write))
                })
                .collect();
            let recorded = recorded.clone();
            let all = async move {
                let mut failed = Vec::new();
                for (member, write) in writes {
                    if write.await.is_err() {
                        failed.push(member);
                    }
                }
                if failed.is_empty() {
                    recorded.set(recorded.get() | mask);
                }
                failed
            };
            Box::pin(all) as Pin<Box<dyn Future<Output = Vec<usize>>>>
        };
        Rc::new(record)
    }

    /// Starts the array.
    pub(crate) async fn start(&self, start: JournalStart) -> Result<ReplayReport, ArrayError> {
        let member = |(member, disk): (usize, &SimDisk)| {
            (self.lost >> member & 1 == 0).then(|| disk.clone())
        };
        let members = self.disks.iter().enumerate().map(member).collect();
        let places = vec![self.setup.ring(); self.disks.len()];
        let options = JournalOptions { array: ARRAY, places };
        let geometry = self.setup.geometry.clone();
        let handle = self.world.handle();
        let begun = Array::with_journal(handle, geometry, members, options, start, self.recorder());
        let (array, report) = begun.await?;
        self.array.replace(Some(array));
        Ok(report)
    }

    /// The array, which has begun.
    pub(crate) fn array(&self) -> Array<SimDisk> {
        self.array.borrow().clone().expect("it has begun")
    }

    pub(crate) fn limits(&self) -> Limits {
        self.array().limits().clone()
    }

    /// Whether what is acknowledged is durable.
    pub(crate) fn has_journal(&self) -> bool {
        self.setup.geometry.parity_chunks() > 0
    }

    /// Ends the life in memory: nothing of the array is left but its tasks.
    pub(crate) fn drop_array(&self) {
        self.array.replace(None);
    }

    /// Does harm to a member.
    pub(crate) fn harm(&self, member: usize, harm: Harm) {
        let disk = &self.disks[member];
        let (data, ring) = (self.setup.geometry.member_sectors(), self.setup.ring());
        let some = |start: Lba, sectors: u64| {
            let blocks = sectors / 8;
            let (first, count) = (self.world.below(blocks), 1 + self.world.below(4));
            SectorRange::new(start.plus(first * 8), count.min(blocks - first) * 8)
        };
        self.world.tell(|| format!("harm: member {member} {harm:?}"));
        match harm {
            Harm::Gone => disk.lose(),
            Harm::Failed => self.array().fail(member).expect("as many as can be lost"),
            Harm::DataWrites => disk.fail_writes(some(Lba(0), data)),
            Harm::RingWrites => disk.fail_writes(some(ring.start, ring.sectors)),
            Harm::RegisterWrites => {
                disk.fail_writes(SectorRange::new(self.setup.register_at(), 8));
            }
            Harm::Flushes => disk.fail_flushes(),
            Harm::Reads => disk.fail_reads(some(Lba(0), data)),
        }
    }

    /// Reads the whole volume and holds it to the model, then every stripe to parity. Nothing may be
    /// under way.
    ///
    /// # Panics
    /// When something is not as it must be.
    pub(crate) async fn check_all(&self, when: &str) {
        let array = self.array();
        let read = self.model.borrow_mut().begin_read();
        let into = Buf::new(self.setup.geometry.sectors() as usize * SECTOR);
        let volume = match array.read(Lba(0), into).await {
            Ok(volume) => volume,
            Err(error) => panic!("reading all fails {when}: {error}"),
        };
        if let Err(violation) = self.model.borrow_mut().end_read(read, Lba(0), &volume) {
            panic!("{violation}, {when}");
        }
        let chunk_bytes = self.setup.geometry.chunk_sectors() as usize * SECTOR;
        scrub::check(&self.setup.geometry, &volume, when, |member, at| {
            if !array.is_online(member) {
                return None;
            }
            let mut chunk = vec![0; chunk_bytes];
            self.disks[member].peek(Lba(at), &mut chunk);
            Some(chunk)
        });
    }
}
