//! Everything that is left of a life: media, model, and knowledge beside them.

use std::collections::BTreeSet;

use voltier_array::{AREA_ALIGN_BYTES, Geometry};
use voltier_block::{Lba, Prng};

use crate::arrays::bit_rot::BitRot;
use crate::arrays::known::Known;
use crate::arrays::sets::MemberSet;
use crate::arrays::setup::Setup;
use crate::arrays::uncovered::Uncovered;
use crate::medium::Medium;
use crate::model::Model;

/// Knowledge of the device of a journal, without the array's help.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JournalFate {
    /// A change was acknowledged that began when the device was lost: the members say so.
    pub(crate) is_out: bool,
    /// A start was forced without it, and may be forced again: what was begun is known to nobody.
    pub(crate) is_content_lost: bool,
    /// How often the journal was put elsewhere.
    pub(crate) moves: u64,
    /// Whether the journal is being put elsewhere.
    pub(crate) is_moving: bool,
}

/// Everything that is left of a life: the drives, and what they may hold.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) media: Vec<Medium>,
    pub(crate) model: Model,
    /// The number of the life that ended.
    pub(crate) life: u64,
    /// For each drive the last life that it was part of.
    pub(crate) lives: Vec<u64>,
    /// Whether the drives kept what they had in their caches.
    pub(crate) is_cached: bool,
    /// Whether the making of the array was acknowledged.
    pub(crate) is_made: bool,
    /// Whether the stop was.
    pub(crate) is_stopped: bool,
    /// Members that were in service and never missed anything.
    pub(crate) online: MemberSet,
    /// The shape that the array had in memory.
    pub(crate) geometry: Geometry,
    /// Knowledge of a journal on a device of its own.
    pub(crate) journal: JournalFate,
    /// Writes whose stripes may not match.
    pub(crate) uncovered: Uncovered,
    /// Regions in which a write was acknowledged.
    pub(crate) written: BTreeSet<u64>,
    /// The block that a drive returns otherwise than it was written.
    pub(crate) bit_rot: Option<BitRot>,
    /// For uuids.
    pub(crate) drives_named: u64,
    /// The end of what requests that were answered were for.
    pub(crate) used_end: Lba,
}

impl Left {
    /// Drives that nothing was done with.
    pub(crate) fn new(setup: &Setup, seed: u64) -> Self {
        let mut dice = Prng::new(seed ^ 0x6a75_6e6b);
        let count = setup.drives.len();
        Self {
            media: (0..count).map(|number| new_medium(setup, number, &mut dice)).collect(),
            model: Model::new(setup.most_sectors()),
            life: 0,
            is_cached: false,
            lives: vec![0; count],
            is_made: false,
            is_stopped: false,
            online: MemberSet::EMPTY,
            geometry: setup.geometry.clone(),
            journal: JournalFate::default(),
            uncovered: Uncovered::default(),
            written: BTreeSet::new(),
            bit_rot: None,
            drives_named: setup.geometry.member_count() as u64,
            used_end: Lba(0),
        }
    }

    /// The superblocks on the media.
    pub(crate) fn known(&self, setup: &Setup) -> Known {
        Known::of(setup, self.media.iter().map(Medium::snapshot))
    }
}

/// A drive, with something in the place of the chunks.
fn new_medium(setup: &Setup, number: usize, dice: &mut Prng) -> Medium {
    let mut medium = Medium::zeroed(setup.drives[number].bytes);
    if setup.has_junk && number >= setup.member_drives() {
        let mut junk = vec![0; 8192];
        dice.fill(&mut junk);
        medium.overwrite(AREA_ALIGN_BYTES, &junk);
    } else if setup.has_junk {
        let chunk_bytes = (setup.geometry.chunk_sectors() * 512) as usize;
        let start = setup.layout().data.start;
        for stripe in setup.stripes() {
            let mut junk = vec![0; chunk_bytes];
            dice.fill(&mut junk);
            medium.overwrite(start.plus(setup.geometry.member_lba(stripe, 0).0).bytes(), &junk);
        }
    }
    medium
}
