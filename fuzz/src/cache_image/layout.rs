//! Where the structures of a cache image are, and their fields: `docs/formats/cache.md` as code.
//!
//! Written from the document and not from the cache's own code, so that both are held to it.

use voltier_block::{KIB, Lba, MIB};
use voltier_sim::Medium;

const SUPERBLOCKS: [u64; 2] = [0, 64 * KIB];
const INTENTS: [u64; 2] = [128 * KIB, 132 * KIB];
const CHECKPOINTS: u64 = MIB;
const CHUNK_BYTES: usize = 256 << 10;
/// The images are so small that the map is one chunk, and so is the list of dirty lines; two areas.
const CHUNKS: u64 = 4;
const DIRTY_CHUNK_MAGIC: [u8; 4] = 0x4443_4c56_u32.to_le_bytes();
const RECORD_MAGIC: [u8; 4] = 0x4352_4c56_u32.to_le_bytes();
const RECORD_HEAD_BYTES: usize = 96;
const ENTRY_BYTES: usize = 40;
const KIND_DATA: u8 = 1;

/// The kind of a structure, which says what is in the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Superblock,
    Intents,
    Chunk,
    Record,
    Line,
}

/// A checksummed extent of the SSD.
#[derive(Clone, Copy, Debug)]
pub(super) struct Structure {
    pub(super) kind: Kind,
    pub(super) at: u64,
    pub(super) bytes: usize,
}

/// A number inside a structure: its place and its width, in bytes.
pub(super) type Field = (usize, usize);

const SUPERBLOCK_FIELDS: [Field; 31] = [
    (0, 8),
    (8, 4),
    (16, 8),
    (40, 8),
    (48, 4),
    (52, 4),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 4),
    (84, 4),
    (88, 4),
    (92, 4),
    (96, 4),
    (100, 4),
    (104, 8),
    (112, 8),
    (120, 4),
    (124, 4),
    (128, 4),
    (132, 4),
    (152, 8),
    (160, 8),
    (168, 4),
    (172, 4),
    (512, 8),
    (528, 4),
    (544, 8),
    (608, 8),
    (1024, 8),
    (32, 8),
];
const INTENT_FIELDS: [Field; 6] = [(0, 4), (8, 8), (24, 8), (32, 8), (64, 8), (72, 8)];
const CHUNK_FIELDS: [Field; 6] = [(0, 4), (8, 8), (24, 8), (32, 4), (36, 4), (40, 4)];
const RECORD_FIELDS: [Field; 13] = [
    (0, 4),
    (8, 8),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 4),
    (60, 4),
    (64, 4),
    (68, 4),
    (72, 4),
    (76, 4),
    (80, 2),
];
const ENTRY_FIELDS: [Field; 7] = [(0, 8), (8, 4), (12, 4), (16, 8), (24, 8), (32, 1), (33, 1)];

/// The structures of one image.
pub(super) struct Layout {
    pub(super) line_bytes: usize,
    structures: Vec<Structure>,
}

impl Layout {
    /// Finds them.
    pub(super) fn of(ssd: &Medium) -> Self {
        let superblock = read(ssd, SUPERBLOCKS[0], 4096);
        let field = |at: usize| u32::from_le_bytes(superblock[at..at + 4].try_into().unwrap());
        let (line_bytes, segment_bytes) = (field(80) as usize, u64::from(field(84)));
        let (unit_bytes, segments) = (field(88) as usize, u64::from(field(92)));
        let block = |kind| move |at| Structure { kind, at, bytes: 4096 };
        let mut structures: Vec<_> = SUPERBLOCKS.map(block(Kind::Superblock)).into();
        structures.extend(INTENTS.map(block(Kind::Intents)));
        let chunks = (0..CHUNKS).map(|number| CHECKPOINTS + number * CHUNK_BYTES as u64);
        structures.extend(chunks.map(|at| Structure { kind: Kind::Chunk, at, bytes: CHUNK_BYTES }));
        let log = CHECKPOINTS + CHUNKS * CHUNK_BYTES as u64;
        let (mut records, mut lines) = (Vec::new(), Vec::new());
        for at in (log..log + segments * segment_bytes).step_by(unit_bytes) {
            let unit = read(ssd, at, unit_bytes);
            if unit[..4] != RECORD_MAGIC || unit[8..24] != superblock[16..32] {
                continue;
            }
            let sequence = u64::from_le_bytes(unit[32..40].try_into().unwrap());
            records.push((sequence, Structure { kind: Kind::Record, at, bytes: unit_bytes }));
            let count = usize::from(u16::from_le_bytes([unit[80], unit[81]]));
            let entries = unit[RECORD_HEAD_BYTES..].chunks_exact(ENTRY_BYTES).take(count);
            for entry in entries.filter(|entry| entry[32] == KIND_DATA) {
                let slot = u64::from(u32::from_le_bytes(entry[8..12].try_into().unwrap()));
                let at = log + slot * line_bytes as u64;
                lines.push(Structure { kind: Kind::Line, at, bytes: line_bytes });
            }
        }
        records.sort_by_key(|(sequence, _)| *sequence);
        structures.extend(records.into_iter().map(|(_, record)| record));
        lines.sort_by_key(|line| line.at);
        lines.dedup_by_key(|line| line.at);
        structures.extend(lines);
        Self { line_bytes, structures }
    }

    /// All structures of a kind: records in the order of the log, the rest by place.
    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = Structure> {
        self.structures.iter().copied().filter(move |structure| structure.kind == kind)
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.all(kind).count()
    }

    /// Field `number` of a structure, of which `bytes` are the content; the numbers go round.
    pub(super) fn field(&self, kind: Kind, bytes: &[u8], number: usize) -> Field {
        match kind {
            Kind::Superblock => SUPERBLOCK_FIELDS[number % SUPERBLOCK_FIELDS.len()],
            Kind::Intents => INTENT_FIELDS[number % INTENT_FIELDS.len()],
            Kind::Chunk => {
                let mask_bytes = (self.line_bytes / 512).div_ceil(8);
                // In the list of dirty lines the slot's number stands before its state.
                let state = if bytes[..4] == DIRTY_CHUNK_MAGIC { 4 } else { 0 };
                let size = state + 9 + mask_bytes;
                let of_state = [(0, 4), (4, 1), (5, 1), (6, 2), (9, mask_bytes.min(8))];
                let mut of_slot = of_state.map(|(at, width)| (state + at, width)).to_vec();
                of_slot.extend((state > 0).then_some((0, 4)));
                let slots = (bytes.len() - 64) / size;
                inner(&CHUNK_FIELDS, (64, size, slots), &of_slot, number)
            }
            Kind::Record => {
                let count = usize::from(u16::from_le_bytes([bytes[80], bytes[81]]));
                let room = (bytes.len() - RECORD_HEAD_BYTES) / ENTRY_BYTES;
                let count = (count + 1).min(room);
                let entries = (RECORD_HEAD_BYTES, ENTRY_BYTES, count);
                inner(&RECORD_FIELDS, entries, &ENTRY_FIELDS, number)
            }
            Kind::Line => (number * 8 % bytes.len(), 8),
        }
    }
}

/// A field of the head, or of one of the items behind it: where they start, their size and count.
fn inner(head: &[Field], items: (usize, usize, usize), of_item: &[Field], number: usize) -> Field {
    if number < head.len() {
        return head[number];
    }
    let (start, size, count) = items;
    let number = number - head.len();
    let item = number / of_item.len() % count.max(1);
    let (at, width) = of_item[number % of_item.len()];
    (start + item * size + at, width)
}

/// Makes the checksum of a structure right again; a line's is in its record.
pub(super) fn seal(kind: Kind, bytes: &mut [u8]) {
    let at = match kind {
        Kind::Superblock => 12,
        Kind::Intents | Kind::Chunk | Kind::Record => 4,
        Kind::Line => return,
    };
    bytes[at..at + 4].fill(0);
    let crc = crc_fast::crc32_iscsi(bytes);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Bytes of a medium.
pub(super) fn read(medium: &Medium, at: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    medium.peek(Lba::from_bytes(at), &mut content);
    content
}
