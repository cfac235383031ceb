//! Making a cache, recognising one, and bringing it back.

use voltier_block::{
    Buf, Bytes, DriveControl, Durability, IoError, LabelPart, Lba, Limits, SECTOR_BYTES,
    clear_labels,
};

use crate::config::FormatOptions;
use crate::devices::ssd::store_superblock;
use crate::format::geometry::Geometry;
use crate::format::intent::{INTENT_MAGIC, INTENT_OFFSETS, IntentHead};
use crate::format::owner::Owner;
use crate::format::position::Position;
use crate::format::superblock::{
    BLOCK_BYTES, FORMAT, Rejected, STATE_CLEAN, STATE_OPEN, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS,
    Superblock, policy_number, policy_of,
};
use crate::log::form::LogState;
use crate::log::intents::{self, Intents};
use crate::log::judge_origin::{OriginFound, judge_origin};
use crate::log::load::{load_before_replay, load_open_segments};
use crate::log::open::{Label, OpenError, OpenOptions, Opened, origin_error, ssd_error};
use crate::log::replay::replay;
use crate::map::contents::Contents;
use crate::map::ranges::LineRanges;
use crate::needs::memory_of;
use crate::numbers::SegmentSlot;

/// A cache as its SSD has it, ready to serve when the SSD has the superblock of this generation.
pub(crate) struct Recovered {
    /// To be written before anything else.
    pub(crate) superblock: Superblock,
    pub(crate) owner: Owner,
    pub(crate) map: Contents,
    pub(crate) log: LogState,
    pub(crate) intents: Intents,
    /// Intent bits that the SSD does not have: the next start must not trust what this one distrusts.
    pub(crate) has_new_bits: bool,
    /// Lines of which the SSD may have something that does not count any more.
    pub(crate) passed: LineRanges,
    /// The origin has lost what an earlier process wrote there, or may have: no client knows.
    pub(crate) origin_may_lack: bool,
    pub(crate) opened: Opened,
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What an SSD shows at the place of a superblock.
enum Place {
    /// A superblock that is whole, and the owner that it names.
    Copy(Box<Superblock>, Owner),
    Damaged,
    /// The label of another part, whole or not.
    Other(LabelPart),
    Zeroes,
    /// Content of somebody else.
    Content,
    Unreadable(IoError),
}

impl Place {
    fn of(block: &[u8], copy: u32) -> Result<Self, OpenError> {
        Ok(match Superblock::decode(block, copy) {
            Ok(found) => Self::Copy(Box::new(found), Owner::decode(block)),
            // The mark of a partition table, where a superblock has zeroes: who makes one may leave the bytes
            // before the table.
            Err(Rejected::Damaged) if block.get(510..512) == Some(&[0x55, 0xaa]) => Self::Content,
            Err(Rejected::Damaged) => Self::Damaged,
            // The other copy does not make up for it: it may be the older one.
            Err(Rejected::Unsupported { uuid, why }) => {
                return Err(OpenError::Unsupported { uuid, why });
            }
            Err(Rejected::Absent) => match LabelPart::named_by(block) {
                Some(part) => Self::Other(part),
                None if block.iter().all(|byte| *byte == 0) => Self::Zeroes,
                None if is_rotten(block, copy) => Self::Damaged,
                None => Self::Content,
            },
        })
    }

    async fn read<S: DriveControl>(ssd: &S, copy: usize) -> Result<Self, OpenError> {
        let offset = SUPERBLOCK_OFFSETS[copy];
        if offset + BLOCK_BYTES as u64 > ssd.limits().bytes() {
            return Ok(Self::Zeroes);
        }
        match ssd.read(Lba::from_bytes(offset), Buf::new(BLOCK_BYTES)).await {
            Ok(block) => Self::of(&block, copy as u32),
            // Either copy is enough: what only the older one needs is kept until both are written.
            Err(error @ IoError::Medium) => Ok(Self::Unreadable(error)),
            Err(error) => Err(ssd_error(error)),
        }
    }

    /// What the SSD shows there, in words.
    fn words(&self) -> String {
        match self {
            Self::Copy(found, _) => format!("the cache {}", uuid_text(&found.uuid)),
            Self::Damaged => "a damaged cache".to_owned(),
            Self::Other(part) => part.to_string(),
            Self::Zeroes | Self::Content | Self::Unreadable(_) => "other content".to_owned(),
        }
    }
}

/// Whether a block is a superblock but for its first bytes.
fn is_rotten(block: &[u8], copy: u32) -> bool {
    let mut block = block.to_vec();
    block[..SUPERBLOCK_MAGIC.len()].copy_from_slice(&SUPERBLOCK_MAGIC);
    Superblock::decode(&block, copy).is_ok()
}

/// The newest superblock, if the two places do not contradict each other. Whatever takes an SSD writes to its
/// start: a second copy behind something else there is what the cache of an earlier use has left.
async fn load_superblock<S: DriveControl>(ssd: &S) -> Result<(Superblock, Owner), OpenError> {
    let first = Place::read(ssd, 0).await?;
    let second = match Place::read(ssd, 1).await {
        // The other part overwrites this place some time, and no version of the cache has it any more.
        Err(OpenError::Unsupported { .. }) if matches!(first, Place::Other(_)) => Place::Content,
        second => second?,
    };
    let contradiction = || OpenError::Disagree {
        begins: first.words(),
        second: second.words(),
        is_labelled: !matches!(first, Place::Content),
    };
    match (&first, &second) {
        (Place::Copy(one, _), Place::Copy(other, _)) if one.uuid != other.uuid => {
            Err(contradiction())
        }
        (Place::Copy(one, owner), Place::Copy(other, _))
            if one.sequence.get() >= other.sequence.get() =>
        {
            Ok((**one, owner.clone()))
        }
        (Place::Other(_) | Place::Content, Place::Copy(..)) => Err(contradiction()),
        (_, Place::Copy(found, owner)) | (Place::Copy(found, owner), _) => {
            Ok((**found, owner.clone()))
        }
        (Place::Unreadable(error), _) | (_, Place::Unreadable(error)) => Err(ssd_error(*error)),
        (Place::Damaged, _) | (_, Place::Damaged) => {
            Err(OpenError::Damaged("neither copy of its superblock is whole".to_owned()))
        }
        _ => Err(OpenError::NotACache),
    }
}

/// Lays an empty cache out on the SSD. All older content of the SSD is lost.
///
/// # Errors
/// When the SSD is too small, the line size does not fit its blocks, or it fails.
pub(crate) async fn format<S: DriveControl>(
    ssd: &S,
    origin: &Limits,
    options: &FormatOptions,
) -> Result<(), OpenError> {
    let (ssd_bytes, sectors) = (ssd.limits().bytes(), origin.sectors);
    let geometry = Geometry::plan(options, ssd_bytes, sectors).map_err(OpenError::Layout)?;
    let block_bytes = u64::from(ssd.limits().block_bytes);
    if geometry.unit_bytes % block_bytes != 0 {
        return Err(OpenError::Layout(format!(
            "block size {} does not fit the SSD, whose blocks have {block_bytes} bytes",
            geometry.line_bytes
        )));
    }
    // Before anything else is written: what the SSD was before it is no more, or the superblock is not there.
    clear_labels(ssd, None).await.map_err(ssd_error)?;
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
        ssd.write(Lba::from_bytes(offset), block, Durability::Durable).await.map_err(ssd_error)?;
    }
    let superblock = first_superblock(&geometry, options, ssd_bytes);
    store_superblock(ssd, superblock, &Owner::default()).await.map_err(ssd_error)
}

/// Reads the label of the cache on an SSD; `None` if the SSD holds none.
///
/// # Errors
/// When there is one, and it is not whole or not readable by this program.
pub(crate) async fn probe<S: DriveControl>(ssd: &S) -> Result<Option<Label>, OpenError> {
    let (found, owner) = match load_superblock(ssd).await {
        Err(OpenError::NotACache) => return Ok(None),
        found => found?,
    };
    Ok(Some(Label::of(&found, owner)))
}

/// Reads the state of the cache on `ssd`.
///
/// # Errors
/// When the SSD holds another cache, does not fit, or is damaged; nothing is changed then.
pub(crate) async fn recover<S: DriveControl, O: DriveControl>(
    ssd: &S,
    origin: &O,
    options: &OpenOptions,
) -> Result<Recovered, OpenError> {
    let (found, owner) = load_superblock(ssd).await?;
    check_expected(&found, options)?;
    let geometry = Geometry::of(&found, ssd.limits().bytes()).map_err(OpenError::Layout)?;
    let (had, has) = (geometry.origin_sectors, origin.limits().sectors);
    if had > has {
        return Err(OpenError::OriginShrunk { had: had * SECTOR_BYTES, has: has * SECTOR_BYTES });
    }
    let clean = found.state.get() == STATE_CLEAN;
    let policy = policy_of(found.policy.get());
    let needed = memory_of(&geometry, policy, options.settings.admission);
    options.memory.ask(needed).map_err(OpenError::NoRoom)?;
    let mut map = Contents::new(geometry.clone(), policy, options.seed)?;
    let mut log = LogState::new(geometry, found.uuid, options.settings.ordered);
    load_before_replay(ssd, &found, &mut map, found.uuid).await?;
    let records = replay(ssd, &found, &mut map, &mut log).await?;
    // Replayed records may sit in a volatile cache of the SSD: nothing may build on them before.
    ssd.flush().await.map_err(ssd_error)?;
    let is_flushed = flush_origin(origin, found.generation.get() == 0).await?;
    log.begin_generation(found.generation.get() + 1);
    // A replay from an earlier life (ordered mode) brings back what that life's end made suspect,
    // after a stop in order too.
    let trusted = clean && found.replay_sequence.get() >= found.first_sequence.get();
    let (intents, is_whole) = load_intents(ssd, &map, &log).await?;
    let passed = lines_passed(map.geometry(), options);
    map.drop_passed(&passed);
    let devices = (ssd, origin);
    let OriginFound { changed, sample } =
        judge_origin(devices, &found, &map, &intents.bits(), options).await?;
    if changed {
        intents.set_all();
    }
    if changed || !passed.is_empty() {
        // A checkpoint follows, which has the whole map.
        map.drop_unloaded();
    }
    if changed || !trusted {
        drop_suspects(&mut map, &intents);
    }
    // Only now is it known which lines live where the log stands, and so where it may write.
    let Position { segment, next_segment, .. } = log.position();
    let open = [segment, next_segment];
    load_open_segments(ssd, &mut map, found.uuid, open).await?;
    log.resume(&mut map);
    map.tell_policy();
    let superblock = Superblock {
        generation: log.generation().into(),
        sequence: (found.sequence.get() + 1).into(),
        state: STATE_OPEN.into(),
        first_sequence: log.next_sequence().into(),
        ..found
    };
    let opened = Opened {
        clean,
        generation: found.generation.get(),
        records,
        suspect_lines: map.suspect_lines(),
        origin_changed: changed,
        sampled_lines: sample.compared,
        differing_lines: sample.differing,
        evacuates: false,
    };
    Ok(Recovered {
        superblock,
        owner: owner_now(owner, options),
        map,
        log,
        intents,
        has_new_bits: changed || !is_whole,
        passed,
        // A stop in order has flushed the origin itself.
        origin_may_lack: !is_flushed && !clean,
        opened,
    })
}

/// The lines that an evacuation has let clients change past the SSD.
fn lines_passed(geometry: &Geometry, options: &OpenOptions) -> LineRanges {
    let mut passed = LineRanges::default();
    for range in options.passed.iter().filter(|range| !range.is_empty()) {
        let (first, last) = geometry.lines_of(*range);
        passed.insert(first, last);
    }
    passed
}

/// Makes durable what an earlier process has left in the volatile cache of the origin. The SSD would keep a
/// line of it that the origin loses with the power, and no intent bit tells of that process. Whether the
/// flush has worked.
///
/// # Errors
/// The origin's, if the cache is new. Others are of more use open, with lines that are dirty.
async fn flush_origin<O: DriveControl>(origin: &O, is_new: bool) -> Result<bool, OpenError> {
    match origin.flush().await {
        Ok(()) => Ok(true),
        Err(error) => {
            origin.forget_failed_flush();
            if is_new { Err(origin_error(error)) } else { Ok(false) }
        }
    }
}

/// The owner that the superblock of this opening names.
fn owner_now(found: Owner, options: &OpenOptions) -> Owner {
    options.owner.clone().unwrap_or(found).with(&options.settings)
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
    let sequence = found.sequence.get();
    if sequence < options.sequence_min {
        return Err(OpenError::BeforeStop { found: sequence, expected: options.sequence_min });
    }
    Ok(())
}

fn first_superblock(geometry: &Geometry, options: &FormatOptions, ssd_bytes: u64) -> Superblock {
    Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: FORMAT.version.into(),
        crc: 0.into(),
        uuid: options.uuid,
        features: 0.into(),
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
        replay_unit: geometry.first_head_in(SegmentSlot(0)).into(),
        next_segment: 1.into(),
        next_segment_unit: geometry.first_head_in(SegmentSlot(0)).into(),
        fingerprint: 0.into(),
        dirty_lines: 0.into(),
        first_sequence: 1.into(),
        checkpoint_lines: 0.into(),
        dirty_chunks: 0.into(),
        replay_slot: 1.into(),
    }
}

/// Reads the intent bits: the regions in which a clean line may be older than the origin, after a crash. And
/// whether both copies were whole.
async fn load_intents<S: DriveControl>(
    ssd: &S,
    map: &Contents,
    log: &LogState,
) -> Result<(Intents, bool), OpenError> {
    let (newest, whole) = intents::load_block(ssd, &log.uuid()).await.map_err(ssd_error)?;
    let sequence = newest.as_ref().map_or(0, |(head, _)| head.sequence.get());
    let intents = Intents::new(map.geometry(), log.uuid(), log.generation(), sequence);
    match &newest {
        Some((_, block)) if whole => intents.load_bits(block),
        _ => intents.set_all(),
    }
    Ok((intents, whole))
}

/// Drops the lines that may be older than the origin: clean ones of regions with an intent bit.
fn drop_suspects(map: &mut Contents, intents: &Intents) {
    let bits = intents.bits();
    map.drop_suspects(|sector| bits.is_set(sector));
    if let Some(loading) = map.loading_mut() {
        loading.distrust(bits);
    }
}
