//! Making a cache, recognising one, and bringing it back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba};
use voltier_ring::{Handle, Signal};

use crate::admission::Admission;
use crate::cache::{Cache, Inner, limits_over};
use crate::clean::stripes::Stripes;
use crate::config::{FormatOptions, Settings};
use crate::devices::fingerprint::fingerprint;
use crate::devices::health::Health;
use crate::devices::ssd::store_superblock;
use crate::format::geometry::Geometry;
use crate::format::intent::{INTENT_MAGIC, INTENT_OFFSETS, IntentHead};
use crate::format::superblock::{
    BLOCK_BYTES, FORMAT_VERSION, STATE_CLEAN, STATE_OPEN, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS,
    Superblock,
};
use crate::log::form::State;
use crate::log::intents::{self, Intents};
use crate::log::load::{load_before_replay, load_open_segments};
use crate::log::ordered::OrderedQueue;
use crate::log::replay::replay;
use crate::map::locks::LineLocks;
use crate::policy::{Policy, PolicyKind};
use crate::serve::coalescing::Turns;
use crate::serve::idle_origin::Congestion;
use crate::serve::shared_reads::SharedReads;
use crate::status::Counters;
use crate::stream::StreamDetector;

/// Why a cache cannot be made or brought back. Each is one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No superblock of ours is on the device.
    #[error("the SSD holds no Voltier cache")]
    NotACache,
    /// A cache, but not the one that belongs here.
    #[error("the SSD holds another cache ({found}); the one of this volume is {expected}")]
    Foreign {
        /// The uuid on the device.
        found: String,
        /// The uuid that was expected.
        expected: String,
    },
    /// An older state of the right cache.
    #[error(
        "the SSD holds an older state of this cache (generation {found}, expected {expected}): \
         it may be a stale copy or a snapshot, and is not trusted"
    )]
    Stale {
        /// The generation on the device.
        found: u64,
        /// The generation that was expected.
        expected: u64,
    },
    /// Somebody wrote to the origin while the cache was stopped, and dirty lines do not fit it.
    #[error(
        "the origin was changed while the cache was stopped, and {dirty} dirty lines on the SSD are \
         not on it; detach with --no-flush to give them up"
    )]
    OriginChanged {
        /// Dirty lines in question.
        dirty: u64,
    },
    /// The devices and the cache's layout do not fit.
    #[error("{0}")]
    Layout(String),
    /// The SSD is provably not what was written to it.
    #[error("the cache on the SSD is damaged: {0}")]
    Damaged(String),
    /// A device failed.
    #[error("{device}: {error}")]
    Io {
        /// Which of the two.
        device: &'static str,
        /// Its error.
        error: IoError,
    },
}

pub(crate) fn ssd_error(error: IoError) -> OpenError {
    OpenError::Io { device: "the SSD", error }
}

fn origin_error(error: IoError) -> OpenError {
    OpenError::Io { device: "the origin", error }
}

/// What a superblock says of a cache, without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Names the cache.
    pub uuid: [u8; 16],
    /// Grows with every opening.
    pub generation: u64,
    /// Whether it was stopped in order.
    pub clean: bool,
    /// Dirty lines at the last checkpoint.
    pub dirty_lines: u64,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Who leaves when it is full.
    pub policy: PolicyKind,
    /// Size of the origin it belongs to, in sectors.
    pub origin_sectors: u64,
}

/// How to open.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse any other cache.
    pub uuid: Option<[u8; 16]>,
    /// Refuse an older state.
    pub generation_min: u64,
    /// Settings to serve with.
    pub settings: Settings,
    /// Seed of what is left to chance (the policy `rand`).
    pub seed: u64,
}

/// What was found at the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whether the cache had been stopped in order.
    pub clean: bool,
    /// Generation now: to be remembered for the next start.
    pub generation: u64,
    /// Records replayed.
    pub records: u64,
    /// Clean lines dropped because the origin may be newer, of those that were loaded before the
    /// first request; the status counts the others too.
    pub suspect_lines: u64,
    /// The origin had been changed; all lines (clean ones) were dropped.
    pub origin_changed: bool,
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn load_superblock<S: BlockDevice>(ssd: &S) -> Result<Superblock, OpenError> {
    let mut newest: Option<Superblock> = None;
    let mut marked = false;
    for (copy, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        if offset + BLOCK_BYTES as u64 > ssd.limits().bytes() {
            continue;
        }
        let block =
            ssd.read(Lba::from_bytes(offset), Buf::new(BLOCK_BYTES)).await.map_err(ssd_error)?;
        marked |= block.starts_with(&SUPERBLOCK_MAGIC);
        let Some(found) = Superblock::decode(&block, copy as u32) else { continue };
        if newest.is_none_or(|other| found.sequence.get() > other.sequence.get()) {
            newest = Some(found);
        }
    }
    let Some(found) = newest else {
        return Err(if marked {
            OpenError::Damaged("neither copy of its superblock is whole".to_owned())
        } else {
            OpenError::NotACache
        });
    };
    if found.version.get() != FORMAT_VERSION {
        return Err(OpenError::Layout(format!(
            "the cache has format {}, this version reads {FORMAT_VERSION}",
            found.version
        )));
    }
    Ok(found)
}

impl<S: BlockDevice, O: BlockDevice> Cache<S, O> {
    /// Lays an empty cache out on the SSD. Whatever was there is lost.
    ///
    /// # Errors
    /// When the SSD is too small, the line size does not fit its blocks, or it fails.
    pub async fn format(ssd: &S, origin: &O, options: &FormatOptions) -> Result<(), OpenError> {
        let (ssd_bytes, sectors) = (ssd.limits().bytes(), origin.limits().sectors);
        let geometry = Geometry::plan(options, ssd_bytes, sectors).map_err(OpenError::Layout)?;
        let block_bytes = u64::from(ssd.limits().block_bytes);
        if geometry.unit_bytes % block_bytes != 0 {
            return Err(OpenError::Layout(format!(
                "block size {} does not fit the SSD, whose blocks have {block_bytes} bytes",
                geometry.line_bytes
            )));
        }
        for (copy, offset) in INTENT_OFFSETS.into_iter().enumerate() {
            let head = IntentHead {
                magic: INTENT_MAGIC.into(),
                crc: 0.into(),
                uuid: options.uuid,
                generation: 0.into(),
                sequence: (copy as u64).into(),
                reserved: [0; 24],
            };
            let block = Bytes::copy_of(&head.encode(&[])).into();
            ssd.write(Lba::from_bytes(offset), block, Durability::Durable)
                .await
                .map_err(ssd_error)?;
        }
        store_superblock(ssd, first_superblock(&geometry, options, ssd_bytes))
            .await
            .map_err(ssd_error)
    }

    /// What is on an SSD, without opening it; `None` if it is not a cache.
    ///
    /// # Errors
    /// When there is one, but not whole or not of this version.
    pub async fn probe(ssd: &S) -> Result<Option<Label>, OpenError> {
        let found = match load_superblock(ssd).await {
            Err(OpenError::NotACache) => return Ok(None),
            found => found?,
        };
        Ok(Some(Label {
            uuid: found.uuid,
            generation: found.generation.get(),
            clean: found.state.get() == STATE_CLEAN,
            dirty_lines: found.dirty_lines.get(),
            line_bytes: found.line_bytes.get().into(),
            policy: policy_of(found.policy.get()),
            origin_sectors: found.origin_sectors.get(),
        }))
    }

    /// Brings the cache on `ssd` back in front of `origin`.
    ///
    /// # Errors
    /// When it is not the expected cache, does not fit, or is damaged; nothing is changed then.
    pub async fn open(
        handle: &Handle,
        ssd: S,
        origin: O,
        options: OpenOptions,
    ) -> Result<(Self, Opened), OpenError> {
        let found = load_superblock(&ssd).await?;
        check_expected(&found, &options)?;
        let geometry = Geometry::of(&found, ssd.limits().bytes()).map_err(OpenError::Layout)?;
        if geometry.origin_sectors != origin.limits().sectors {
            return Err(OpenError::Layout(format!(
                "the cache belongs to a device of {} sectors, but this one has {}",
                geometry.origin_sectors,
                origin.limits().sectors
            )));
        }
        let clean = found.state.get() == STATE_CLEAN;
        let policy = policy_for(policy_of(found.policy.get()), &geometry, options.seed);
        let mut state = State::new(geometry.clone(), found.uuid, policy);
        state.ordered = options.settings.ordered.then(OrderedQueue::default);
        load_before_replay(&ssd, &found, &mut state).await?;
        let records = replay(&ssd, &found, &mut state).await?;
        // What was replayed may sit in a volatile cache: nothing may build on it before.
        ssd.flush().await.map_err(ssd_error)?;
        let changed = clean
            && fingerprint(&origin).await.map_err(origin_error)? != found.fingerprint.get()
            && state.lines_expected() > 0;
        if changed && state.index.dirty_lines() > 0 {
            return Err(OpenError::OriginChanged { dirty: state.index.dirty_lines() });
        }
        state.generation = found.generation.get() + 1;
        // A replay from an earlier life (ordered mode) brings back what that life's end made suspect,
        // after a stop in order too.
        let trusted = clean && found.replay_sequence.get() >= found.first_sequence.get();
        let intents = load_intents(&ssd, &mut state, trusted, changed).await?;
        // Only now is it known which lines live where the log stands, and so where it may write.
        load_open_segments(&ssd, &mut state).await?;
        state.resume(state.position);
        insert_into_policy(&mut state);
        let superblock = Superblock {
            generation: state.generation.into(),
            sequence: (found.sequence.get() + 1).into(),
            state: STATE_OPEN.into(),
            first_sequence: state.next_sequence.into(),
            ..found
        };
        store_superblock(&ssd, superblock).await.map_err(ssd_error)?;
        let opened = Opened {
            clean,
            generation: state.generation,
            records,
            suspect_lines: state.counts.suspect_lines,
            origin_changed: changed,
        };
        let parts = Parts { handle: handle.clone(), ssd, origin, superblock, state, intents };
        let cache = Cache::start(assemble(parts, options.settings, records));
        if changed {
            // No mark tells the next start that these lines were dropped: a checkpoint does.
            cache.0.checkpoint().await.map_err(ssd_error)?;
        }
        Ok((cache, opened))
    }
}

fn check_expected(found: &Superblock, options: &OpenOptions) -> Result<(), OpenError> {
    if let Some(expected) = options.uuid
        && expected != found.uuid
    {
        let (found, expected) = (uuid_text(&found.uuid), uuid_text(&expected));
        return Err(OpenError::Foreign { found, expected });
    }
    let generation = found.generation.get();
    if generation < options.generation_min {
        return Err(OpenError::Stale { found: generation, expected: options.generation_min });
    }
    Ok(())
}

fn first_superblock(geometry: &Geometry, options: &FormatOptions, ssd_bytes: u64) -> Superblock {
    Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: FORMAT_VERSION.into(),
        crc: 0.into(),
        uuid: options.uuid,
        sequence: 1.into(),
        copy: 0.into(),
        state: STATE_CLEAN.into(),
        generation: 0.into(),
        ssd_bytes: ssd_bytes.into(),
        origin_sectors: geometry.origin_sectors.into(),
        line_bytes: (geometry.line_bytes as u32).into(),
        segment_bytes: (geometry.segment_bytes as u32).into(),
        unit_bytes: (geometry.unit_bytes as u32).into(),
        segment_count: geometry.segment_count.into(),
        policy: policy_number(options.policy).into(),
        checkpoint_area: 0.into(),
        checkpoint_chunks: 0.into(),
        replay_sequence: 1.into(),
        replay_segment: 0.into(),
        replay_unit: geometry.first_head_in(0).into(),
        next_segment: 1.into(),
        next_segment_unit: geometry.first_head_in(0).into(),
        fingerprint: 0.into(),
        dirty_lines: 0.into(),
        first_sequence: 1.into(),
        checkpoint_lines: 0.into(),
        dirty_chunks: 0.into(),
        replay_slot: 1.into(),
    }
}

pub(crate) fn policy_number(policy: PolicyKind) -> u32 {
    PolicyKind::ALL.iter().position(|kind| *kind == policy).expect("all are listed") as u32
}

/// A policy for a cache of this geometry, with room for the moment when nothing can be evicted (see
/// `State::make_room`).
pub(crate) fn policy_for(kind: PolicyKind, geometry: &Geometry, seed: u64) -> Policy {
    let capacity = geometry.capacity_lines();
    let slots = geometry.slot_count();
    Policy::new(kind, slots, capacity + capacity / 32, geometry.origin_lines(), seed)
}

fn policy_of(number: u32) -> PolicyKind {
    PolicyKind::ALL.get(number as usize).copied().unwrap_or(PolicyKind::Lru)
}

struct Parts<S, O> {
    handle: Handle,
    ssd: S,
    origin: O,
    superblock: Superblock,
    state: State,
    intents: Intents,
}

fn assemble<S: BlockDevice, O: BlockDevice>(
    parts: Parts<S, O>,
    settings: Settings,
    records: u64,
) -> Rc<Inner<S, O>> {
    let Parts { handle, ssd, origin, superblock, state, intents } = parts;
    let geometry = state.geometry.clone();
    Rc::new_cyclic(|me| Inner {
        me: me.clone(),
        limits: limits_over(origin.limits(), geometry.line_bytes),
        stripes: Stripes::of(origin.limits(), &geometry),
        admission: RefCell::new(Admission::new(settings.admission, geometry.capacity_lines())),
        requests_seen: Cell::new((0, handle.now())),
        turns: Turns::new(&geometry),
        congestion: Congestion::default(),
        handle,
        ssd,
        origin,
        geometry,
        superblock: RefCell::new(superblock),
        state: RefCell::new(state),
        settings: RefCell::new(settings),
        streams: RefCell::new(StreamDetector::new()),
        locks: LineLocks::new(),
        shared_reads: SharedReads::default(),
        origin_locks: LineLocks::new(),
        intents,
        counters: Counters::default(),
        damaged: RefCell::new(BTreeSet::new()),
        sweeps: Cell::new(0),
        destage_errors: Cell::new(0),
        health: Cell::new(Health::Online),
        unflushed_loss: Cell::new(false),
        hurry: Signal::new(),
        failure_gate: RefCell::new(None),
        gate_open: Cell::new(true),
        gate_opened: Signal::new(),
        log_work: Signal::new(),
        log_progress: Signal::new(),
        reclaim_work: Signal::new(),
        dirty_changed: Signal::new(),
        flushed: Signal::new(),
        flushing: Cell::new(false),
        // What an earlier life wrote may still be in the origin's cache.
        origin_changes: Cell::new(1),
        origin_durable: Cell::new(0),
        origin_flushing: Cell::new(false),
        origin_flushed: Signal::new(),
        records_since_checkpoint: Cell::new(records),
        entries_at_checkpoint: Cell::new(0),
        loading_progress: Signal::new(),
        checkpointing: Cell::new(false),
        draining: Cell::new(0),
        log_waits_for_cleaner: Cell::new(false),
        resting: Cell::new(false),
        stopping: Cell::new(false),
        log_ending: Cell::new(false),
        tasks: RefCell::new(Vec::new()),
    })
}

/// Reads the intent marks, and drops the lines that may be older than the origin.
async fn load_intents<S: BlockDevice>(
    ssd: &S,
    state: &mut State,
    trusted: bool,
    changed: bool,
) -> Result<Intents, OpenError> {
    let (newest, whole) = intents::load_block(ssd, &state.uuid).await.map_err(ssd_error)?;
    let sequence = newest.as_ref().map_or(0, |(head, _)| head.sequence.get());
    let intents = Intents::new(&state.geometry, state.uuid, state.generation, sequence);
    match &newest {
        Some((_, block)) if whole && !changed => intents.load_bits(block),
        _ => intents.mark_all(),
    }
    if changed {
        // On the medium before the cache is open: a crash must not make the lines trusted again.
        intents.persist_marks(ssd).await.map_err(ssd_error)?;
        state.counts.suspect_lines += state.loading.take().map_or(0, |it| it.lines_left());
    }
    if trusted && !changed {
        return Ok(intents);
    }
    let marks = intents.marks();
    let line_sectors = state.geometry.line_sectors();
    for slot in used_slots(state) {
        let line = state.index.line_of(slot);
        if !state.index.is_dirty(slot) && marks.is_marked(line * line_sectors) {
            // The log need not hear of it: the marks stay until a checkpoint is without these lines.
            state.index.remove(slot);
            state.counts.suspect_lines += 1;
        }
    }
    if let Some(loading) = &mut state.loading {
        loading.distrust(marks);
    }
    Ok(intents)
}

/// Slots with a line in them.
fn used_slots(state: &State) -> Vec<u32> {
    let per_segment = state.geometry.slots_per_segment;
    let segments = 0..state.geometry.segment_count;
    let live = segments.filter(|segment| state.index.live_in(*segment) > 0);
    let slots = live.flat_map(|segment| segment * per_segment..(segment + 1) * per_segment);
    slots.filter(|slot| state.index.is_used(*slot)).collect()
}

/// Tells the policy of every line, in the order of the slots.
pub(crate) fn insert_into_policy(state: &mut State) {
    for slot in used_slots(state) {
        state.policy.insert(slot, state.index.line_of(slot));
    }
}
