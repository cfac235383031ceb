//! Admission: whether a line that missed is worth a place in the cache.
//!
//! The cache asks once for every line a read (or a write that goes to the origin) missed. Writes
//! in write-back mode are admitted always, whatever the choice here: the SSD is where they live.
//! Memory is fixed by [`Admission::new`]; no question allocates or takes more than one probe.

use std::fmt;
use std::str::FromStr;

use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::Line;

/// The fewest touches that can be asked for: one would be `always`.
pub const TOUCHES_MIN: u8 = 2;

/// The most touches that can be asked for: the counters have four bits.
pub const TOUCHES_MAX: u8 = 15;

/// Lines in a region of `learned`: 64 KiB at the default line size of 4 KiB.
const REGION_LINES: u64 = 16;

/// Repetitions that make a region hot. One would admit what two scans have read.
const HOT_REPEATS: u32 = 2;

/// How hot a region gets, so how long it stays hot once the repetitions end.
const REPEATS_MAX: u32 = 7;

/// The whole table of regions cools by one repetition in this many questions per entry.
const QUESTIONS_PER_COOLING: u64 = 16;

/// Entries in a set, searched together.
const WAYS: usize = 8;

/// Fewest entries of a table, so that small caches learn too.
const ENTRIES_MIN: u64 = 1024;

/// Kinds of admission, by the names of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionKind {
    /// Every line.
    Always,
    /// A line at its n-th miss, [`TOUCHES_MIN`] to [`TOUCHES_MAX`], if not too many other lines (about
    /// as many as the cache holds) missed in between.
    Touches(u8),
    /// Every line of a region that has proved hot by repetition; regions cool with time.
    Learned,
}

impl AdmissionKind {
    /// One of every kind, with the least number where a kind has one. Names, the message about a wrong
    /// name and the simulator go by this list.
    pub const ALL: [Self; 3] = [Self::Always, Self::Touches(TOUCHES_MIN), Self::Learned];

    /// The word on the command line, in front of a number if the kind has one.
    const fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Touches(_) => "touches",
            Self::Learned => "learned",
        }
    }

    /// The word as help has it, with `:N` behind it if a number follows.
    pub fn form(self) -> String {
        let has_number = self.to_string() != self.word();
        format!("{}{}", self.word(), if has_number { ":N" } else { "" })
    }

    /// The kind with this number in the place of its own; `None` when the kind has no such number.
    fn with_number(self, number: &str) -> Option<Self> {
        match self {
            Self::Touches(_) => {
                let touches = number.parse().ok()?;
                (TOUCHES_MIN..=TOUCHES_MAX).contains(&touches).then_some(Self::Touches(touches))
            }
            Self::Always | Self::Learned => None,
        }
    }
}

impl fmt::Display for AdmissionKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Touches(touches) => out.pad(&format!("{}:{touches}", self.word())),
            Self::Always | Self::Learned => out.pad(self.word()),
        }
    }
}

/// An admission name that is not one; the message lists those that are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAdmission(String);

impl fmt::Display for UnknownAdmission {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "unknown admission {:?}: use", self.0)?;
        for (index, kind) in AdmissionKind::ALL.into_iter().enumerate() {
            let is_last = index + 1 == AdmissionKind::ALL.len();
            let before = if index == 0 { "" } else { "," };
            write!(out, "{before}{} {}", if is_last { " or" } else { "" }, kind.form())?;
            if let AdmissionKind::Touches(_) = kind {
                write!(out, " with N from {TOUCHES_MIN} to {TOUCHES_MAX}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for UnknownAdmission {}

impl FromStr for AdmissionKind {
    type Err = UnknownAdmission;

    fn from_str(name: &str) -> Result<Self, UnknownAdmission> {
        let kind = match name.split_once(':') {
            Some((word, number)) => Self::ALL
                .into_iter()
                .find(|kind| kind.word() == word)
                .and_then(|kind| kind.with_number(number)),
            None => Self::ALL.into_iter().find(|kind| kind.to_string() == name),
        };
        kind.ok_or_else(|| UnknownAdmission(name.to_owned()))
    }
}

/// The judge of misses. See the module for when to ask.
#[derive(Debug)]
pub struct Admission(Judge);

#[derive(Debug)]
enum Judge {
    Always,
    Touches { needed: u8, recent: RecentTouches },
    Learned(Regions),
}

impl Admission {
    /// A judge with nothing learned, for a cache of `capacity_lines` lines. The judge takes 2 bytes
    /// per line for `touches`, 1 for `learned`.
    ///
    /// # Errors
    /// When the system gives no memory for it.
    pub fn new(kind: AdmissionKind, capacity_lines: u64) -> Result<Self, NoMemory> {
        Ok(Self(match kind {
            AdmissionKind::Always => Judge::Always,
            AdmissionKind::Touches(needed) => {
                assert!((TOUCHES_MIN..=TOUCHES_MAX).contains(&needed));
                Judge::Touches { needed, recent: RecentTouches::new(capacity_lines)? }
            }
            AdmissionKind::Learned => Judge::Learned(Regions::new(capacity_lines)?),
        }))
    }

    /// The memory of a judge for a cache of `capacity_lines` lines, in bytes.
    pub fn bytes_for(kind: AdmissionKind, capacity_lines: u64) -> u64 {
        size_of::<Self>() as u64
            + match kind {
                AdmissionKind::Always => 0,
                AdmissionKind::Touches(_) => bytes_of::<[u16; WAYS]>(sets_for(capacity_lines)),
                AdmissionKind::Learned => bytes_of::<[u32; WAYS]>(Regions::sets(capacity_lines)),
            }
    }

    /// The kind of this judge.
    pub fn kind(&self) -> AdmissionKind {
        match &self.0 {
            Judge::Always => AdmissionKind::Always,
            Judge::Touches { needed, .. } => AdmissionKind::Touches(*needed),
            Judge::Learned(_) => AdmissionKind::Learned,
        }
    }

    /// Whether a line that was just missed goes into the cache. Counts the miss.
    #[inline]
    pub fn admit(&mut self, line: Line) -> bool {
        match &mut self.0 {
            Judge::Always => true,
            Judge::Touches { needed, recent } => recent.touch(line, *needed),
            Judge::Learned(regions) => regions.touch(line),
        }
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.0 {
                Judge::Always => 0,
                Judge::Touches { recent, .. } => size_of_val(&*recent.sets),
                Judge::Learned(regions) => size_of_val(&*regions.sets),
            }
    }
}

/// The set a key belongs to, and spread bits to know it by.
#[inline]
fn place(key: u64, sets: usize) -> (usize, u32) {
    let spread = u128::from((key ^ (key >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (((spread * sets as u128) >> 64) as usize, (spread as u32) ^ (spread >> 20) as u32)
}

fn sets_for(entries: u64) -> u64 {
    entries.max(ENTRIES_MIN).div_ceil(WAYS as u64)
}

/// Misses counted per line: twelve bits of fingerprint, four of count, most recent first in each
/// set; the least recent falls out. A stranger is taken for a known line once in five hundred.
#[derive(Debug)]
struct RecentTouches {
    sets: Vec<[u16; WAYS]>,
}

impl RecentTouches {
    fn new(entries: u64) -> Result<Self, NoMemory> {
        Ok(Self { sets: memory::zeroes(sets_for(entries))? })
    }

    fn touch(&mut self, line: Line, needed: u8) -> bool {
        let (set, spread) = place(line.0, self.sets.len());
        let set = &mut self.sets[set];
        let fingerprint = (spread as u16) & 0xfff0;
        let known = set.iter().position(|&entry| entry & 0xfff0 == fingerprint && entry & 15 > 0);
        let way = known.unwrap_or(WAYS - 1);
        let touches = if known.is_some() { set[way] & 15 } else { 0 } + 1;
        set.copy_within(0..way, 1);
        let admitted = touches >= u16::from(needed);
        // An admitted line starts over when it misses again: it had its time in the cache.
        set[0] = fingerprint | if admitted { 0 } else { touches };
        admitted
    }
}

/// Lessons about each region, as in a learning read cache. A region gets hotter when a part of it is read
/// *again*: reading through it once teaches nothing.
///
/// An entry has 13 bits of fingerprint, 3 of repetitions, and one for each line read since
/// the last repetition.
#[derive(Debug)]
struct Regions {
    sets: Vec<[u32; WAYS]>,
    questions: u64,
    coolest: usize,
}

impl Regions {
    const FINGERPRINT: u32 = 0xfff8_0000;
    const SEEN: u32 = 0xffff;

    fn new(capacity_lines: u64) -> Result<Self, NoMemory> {
        let sets = memory::zeroes(Self::sets(capacity_lines))?;
        Ok(Self { sets, questions: 0, coolest: 0 })
    }

    /// Four times the cache's size in regions of sixteen lines.
    fn sets(capacity_lines: u64) -> u64 {
        sets_for(capacity_lines / 4)
    }

    fn touch(&mut self, line: Line) -> bool {
        self.cool();
        let (set, spread) = place(line.0 / REGION_LINES, self.sets.len());
        let set = &mut self.sets[set];
        let fingerprint = spread & Self::FINGERPRINT;
        let known =
            set.iter().position(|&entry| entry & Self::FINGERPRINT == fingerprint && entry != 0);
        let way = known.unwrap_or(WAYS - 1);
        let entry = if known.is_some() { set[way] } else { fingerprint };
        let (mut repeats, mut seen) = (entry >> 16 & REPEATS_MAX, entry & Self::SEEN);
        let part = 1 << (line.0 % REGION_LINES);
        if seen & part != 0 {
            repeats = REPEATS_MAX.min(repeats + 1);
            seen = 0;
        }
        set.copy_within(0..way, 1);
        set[0] = fingerprint | repeats << 16 | seen | part;
        repeats >= HOT_REPEATS
    }

    /// Cools one set now and then, so that the whole table cools steadily and never all at once.
    fn cool(&mut self) {
        self.questions += 1;
        if !self.questions.is_multiple_of(QUESTIONS_PER_COOLING * WAYS as u64) {
            return;
        }
        for entry in &mut self.sets[self.coolest] {
            let repeats = (*entry >> 16 & REPEATS_MAX).saturating_sub(1);
            *entry = *entry & !(REPEATS_MAX << 16) | repeats << 16;
        }
        self.coolest = (self.coolest + 1) % self.sets.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::Prng;

    fn admission(kind: AdmissionKind) -> Admission {
        Admission::new(kind, 10_000).unwrap()
    }

    #[test]
    fn names_read_back_and_wrong_ones_say_what_is_right() {
        assert_eq!(
            AdmissionKind::ALL.map(|kind| kind.to_string()),
            ["always", "touches:2", "learned"]
        );
        for name in ["always", "touches:2", "touches:15", "learned"] {
            let kind: AdmissionKind = name.parse().expect("a name");
            assert_eq!(kind.to_string(), name);
            assert_eq!(admission(kind).kind(), kind);
        }
        let wrong = ["", "touches", "touches:", "touches:1", "touches:16", "touches:-2", "Learned"];
        for name in wrong.into_iter().chain(["always:", "learned:2", "touches:2:2"]) {
            let error = name.parse::<AdmissionKind>().expect_err(name).to_string();
            assert_eq!(
                error,
                format!(
                    "unknown admission {name:?}: use always, touches:N with N from 2 to 15, or learned"
                )
            );
        }
    }

    #[test]
    fn touches_admits_at_the_nth_miss_and_counts_afresh_afterwards() {
        let mut judge = admission(AdmissionKind::Touches(3));
        for _ in 0..4 {
            let answers: Vec<bool> = (0..3).map(|_| judge.admit(Line(77))).collect();
            assert_eq!(answers, [false, false, true]);
        }
    }

    #[test]
    fn touches_forgets_what_was_long_ago() {
        let mut judge = admission(AdmissionKind::Touches(2));
        assert!(!judge.admit(Line(1)));
        for line in 1000..101_000 {
            judge.admit(Line(line));
        }
        assert!(!judge.admit(Line(1)));
    }

    #[test]
    fn touches_remembers_most_of_what_was_within_half_the_cache() {
        let mut judge = admission(AdmissionKind::Touches(2));
        let early = (0..5000).filter(|line| judge.admit(Line(line * 977))).count();
        let second = (0..5000).filter(|line| judge.admit(Line(line * 977))).count();
        assert!(early < 50 && second > 4500, "{early} strangers admitted, {second} known");
    }

    #[test]
    fn learned_learns_by_repetition_and_not_from_one_pass() {
        let mut judge = admission(AdmissionKind::Learned);
        let mut pass = || (0..4000).filter(|&line| judge.admit(Line(line))).count();
        let passes: Vec<usize> = (0..4).map(|_| pass()).collect();
        assert_eq!(passes[0], 0);
        assert!(passes[1] < 100, "one repetition is not enough: {passes:?}");
        assert!(passes[2] > 3500 && passes[3] > 3500, "{passes:?}");
    }

    #[test]
    fn learned_admits_the_unread_part_of_a_hot_region() {
        let mut judge = admission(AdmissionKind::Learned);
        assert!(!judge.admit(Line(160)) && !judge.admit(Line(160)) && judge.admit(Line(160)));
        assert!(judge.admit(Line(167)) && !judge.admit(Line(176)));
    }

    #[test]
    fn learned_cools_when_other_regions_are_read() {
        let mut judge = Admission::new(AdmissionKind::Learned, 4096).unwrap();
        for _ in 0..8 {
            judge.admit(Line(5));
        }
        assert!(judge.admit(Line(6)));
        let mut prng = Prng::new(1);
        for _ in 0..200_000 {
            judge.admit(Line(1000 + prng.below(400)));
        }
        assert!(!judge.admit(Line(7)));
    }

    #[test]
    fn memory_is_bounded_per_line() {
        let lines = 1 << 20;
        let bytes = |kind| {
            let bytes = Admission::new(kind, lines).unwrap().memory_bytes() as u64;
            assert_eq!(bytes, Admission::bytes_for(kind, lines));
            bytes
        };
        assert!(bytes(AdmissionKind::Always) < 200);
        assert!(bytes(AdmissionKind::Touches(3)) <= 2 * lines + 200);
        assert!(bytes(AdmissionKind::Learned) <= lines + 200);
    }
}
