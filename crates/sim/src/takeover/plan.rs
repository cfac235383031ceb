//! What a takeover is to be: drawn by a seed.

use voltier_block::{Nanos, Prng};
use voltier_cache::{MaxUnshipped, Mode, Settings};

use crate::disk_spec::DiskSpec;
use crate::fault::FaultMix;
use crate::medium::Cut;
use crate::workload::Profile;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
pub(super) const TAKEOVER: u64 = 0x7461_6b65_6f76_01d8;
/// One seed of ordered worlds, and of worlds that do not write back, in so many has it.
const TAKEOVER_ONE_IN: u64 = 4;
/// Times for which a host is cut off before its lock is broken, and after that.
const CUT_OFF_NS: [Nanos; 5] = [0, 1_000_000, 200_000_000, 3_000_000_000, 45_000_000_000];
/// Times for which its SSD answers nothing: less than the deadline.
const HANG_NS: [Nanos; 4] = [0, 0, 50_000_000, 8_000_000_000];
/// Events among which the takeover falls, for each step of a client.
const EVENTS_PER_STEP: u64 = 5;

/// A takeover that is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All chance follows from it.
    pub(super) seed: u64,
    /// Crashes of the first host before it, and of the other one after.
    pub(super) crashes: (u64, u64),
    /// The event that begins it, of the cluster or of the first host's SSD.
    pub(super) event: u64,
    pub(super) is_event_of_ssd: bool,
    pub(super) cut_off_ns: Nanos,
    /// After the break of the lock.
    pub(super) stays_cut_off_ns: Nanos,
    pub(super) hang_ns: Nanos,
    /// With power cut for an image of which hosts have writes in a cache of their own until they flush.
    pub(super) image_cut: Cut,
    /// How the first host ends.
    pub(super) ssd_cut: Cut,
}

impl Plan {
    /// A takeover, if the seed draws one for this profile or `is_forced`; makes the profile one for it.
    pub(crate) fn draw(profile: &mut Profile, seed: u64, is_forced: bool) -> Option<Self> {
        let mut dice = Prng::new(seed ^ TAKEOVER);
        let is_drawn = dice.one_in(TAKEOVER_ONE_IN);
        let writes_back = profile.modes.iter().all(|mode| mode.writes_back());
        let writes_past = profile.modes.iter().all(|mode| !mode.writes_back());
        let is_fit = writes_past || (profile.ordered && writes_back);
        if !(is_forced || (is_drawn && is_fit)) {
            return None;
        }
        make_fit(profile, &mut dice, is_forced);
        let crashes = (u64::from(dice.one_in(3)), dice.below(3));
        Some(Self {
            seed,
            crashes,
            event: dice.below(40 + EVENTS_PER_STEP * profile.steps * profile.clients),
            is_event_of_ssd: dice.one_in(2),
            cut_off_ns: *dice.pick(&CUT_OFF_NS),
            stays_cut_off_ns: *dice.pick(&CUT_OFF_NS),
            hang_ns: *dice.pick(&HANG_NS),
            image_cut: if dice.one_in(4) { Cut::Power } else { Cut::Kill },
            ssd_cut: if dice.one_in(2) { Cut::Power } else { Cut::Kill },
        })
    }
}

/// An image in the place of the origin, and nothing else that goes wrong.
fn make_fit(profile: &mut Profile, dice: &mut Prng, is_forced: bool) {
    if is_forced {
        let writes_back = !dice.one_in(3);
        profile.modes.retain(|mode| mode.writes_back() == writes_back);
        if profile.modes.is_empty() {
            profile.modes.push(if writes_back { Mode::WriteBack } else { Mode::WriteThrough });
        }
        profile.ordered = writes_back;
        if !writes_back {
            profile.settings.max_unshipped = MaxUnshipped::default();
        }
    }
    (profile.ssd_faults, profile.origin_faults) = (FaultMix::default(), FaultMix::default());
    (profile.hangs, profile.remote) = (false, false);
    (profile.zeroes, profile.streams) = (false, false);
    profile.settings.deadline_ns = Settings::default().deadline_ns;
    profile.ssd.model = None;
    profile.origin = DiskSpec {
        block_bytes: 512,
        model: None,
        lies: false,
        zeroing_discards: false,
        stripe: None,
        ..profile.origin.clone()
    };
}
