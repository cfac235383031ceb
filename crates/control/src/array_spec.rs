//! Choices about an array when it is made: level, chunk, consistency.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use voltier_array::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Consistency, Geometry, Layout, Level};
use voltier_block::SECTOR_BYTES;

use crate::error::{ControlError, ControlResult};
use crate::suggest;
use crate::units::parse_size;
use crate::words::text_form;

/// Most members an array can have, spares apart.
pub const ARRAY_MEMBERS_MAX: usize = 64;

/// The levels that have a word, in the order of help and guide; those in groups have groups of no size here.
/// `N+M` is one more.
const LEVELS: [Level; 9] = [
    Level::Raid0,
    Level::Raid1,
    Level::Raid10,
    Level::Raid5,
    Level::Raid6,
    Level::Raid7_3,
    Level::Raid50 { group: 0 },
    Level::Raid60 { group: 0 },
    Level::Raid70 { group: 0 },
];

/// A level, written `6`, `4+2`, or `60:5` for groups of five members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArrayLevel(pub Level);

impl ArrayLevel {
    /// The words of all levels but `N+M`.
    pub fn words() -> [String; LEVELS.len()] {
        LEVELS.map(|level| Self(level).word())
    }

    /// The level of a word (`6`, `raid6`, `RAID-6`), for so many members. `group` is the number of members in a
    /// group; of two groups if it is not given.
    ///
    /// # Errors
    /// A usage error: an unknown word, or a group that is missing or has no place.
    pub fn of_word(word: &str, group: Option<usize>, members: usize) -> ControlResult<Self> {
        let word = without_raid(word);
        if Self::listed(word).and_then(Self::group).is_none() {
            if group.is_some() {
                return Err(ControlError::usage(format!(
                    "level {word} has no groups; --group goes with levels 50, 60 and 70"
                )));
            }
            return word.parse();
        }
        let group = match group {
            Some(group) => group,
            None if members > 0 && members.is_multiple_of(2) => members / 2,
            None => {
                return Err(ControlError::usage(format!(
                    "level {word} on {members} members: say with --group N how many of them \
                     make a group"
                )));
            }
        };
        if group > ARRAY_MEMBERS_MAX {
            return Err(ControlError::usage(format!(
                "groups of {group} members: an array has at most {ARRAY_MEMBERS_MAX} in all"
            )));
        }
        format!("{word}:{group}").parse()
    }

    /// The level in the list that has this word.
    fn listed(word: &str) -> Option<Self> {
        LEVELS.into_iter().map(Self).find(|level| level.word() == word)
    }

    /// The level's word, without groups.
    pub fn word(self) -> String {
        match self.0 {
            Level::Raid0 => "0".into(),
            Level::Raid1 => "1".into(),
            Level::Raid10 => "10".into(),
            Level::Raid5 => "5".into(),
            Level::Raid6 => "6".into(),
            Level::Raid7_3 => "7.3".into(),
            Level::Raid50 { .. } => "50".into(),
            Level::Raid60 { .. } => "60".into(),
            Level::Raid70 { .. } => "70".into(),
            Level::NPlusM { data, parity } => format!("{data}+{parity}"),
        }
    }

    /// Members in a group, for levels in groups.
    pub fn group(self) -> Option<usize> {
        match self.0 {
            Level::Raid50 { group } | Level::Raid60 { group } | Level::Raid70 { group } => {
                Some(group)
            }
            _ => None,
        }
    }

    /// The chunk of an array of this level when none is chosen, in bytes. Copies are cut in pieces of a
    /// chunk, so there it is long.
    pub fn default_chunk_bytes(self) -> u32 {
        if self.0 == Level::Raid1 { CHUNK_BYTES_MAX as u32 } else { 16 << 10 }
    }

    /// Whether blocks can be computed from others.
    pub fn has_redundancy(self) -> bool {
        self.0 != Level::Raid0
    }

    /// The default protection of parity against a crash.
    pub fn default_consistency(self) -> Consistency {
        if self.0 == Level::Raid0 { Consistency::None } else { Consistency::default() }
    }

    /// Whether an array of this level can have this shape, whatever its members are.
    ///
    /// # Errors
    /// A usage error that says what is possible.
    pub fn check(self, members: usize, chunk_bytes: u32) -> ControlResult<()> {
        if members > ARRAY_MEMBERS_MAX {
            return Err(ControlError::usage(format!(
                "{members} members: an array has at most {ARRAY_MEMBERS_MAX}"
            )));
        }
        let sectors = CHUNK_BYTES_MAX / SECTOR_BYTES;
        let shape = Geometry::new(self.0, Layout::default(), members, chunk_bytes.into(), sectors);
        shape.map(drop).map_err(|error| ControlError::usage(error.to_string()))
    }
}

/// The word of a level as other programs write it: `raid6`, `RAID 6`.
fn without_raid(word: &str) -> &str {
    let Some((raid, level)) = word.split_at_checked(4) else { return word };
    if raid.eq_ignore_ascii_case("raid") { level.trim_start_matches(['-', '_', ' ']) } else { word }
}

/// Levels that have names in other programs.
const NAMED: [(&str, &str); 6] =
    [("stripe", "0"), ("mirror", "1"), ("z", "5"), ("z1", "5"), ("z2", "6"), ("z3", "7.3")];

impl FromStr for ArrayLevel {
    type Err = ControlError;

    fn from_str(text: &str) -> ControlResult<Self> {
        let wrong = || {
            let words = Self::words();
            let named = NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            let hint = match named {
                Some((_, level)) => {
                    format!("did you mean `{level}`? (known: {})", words.join(", "))
                }
                None => suggest::hint(text, &words.each_ref().map(String::as_str)),
            };
            let shown = text.escape_default();
            ControlError::usage(format!("`{shown}` is not a level; {hint}, N+M"))
        };
        let number = |text: &str| match text.parse::<usize>() {
            Ok(number) if number <= ARRAY_MEMBERS_MAX => Ok(number),
            _ => Err(wrong()),
        };
        if let Some((data, parity)) = text.split_once('+') {
            let (data, parity) = (number(data)?, number(parity)?);
            return Ok(Self(Level::NPlusM { data, parity }));
        }
        let (word, size) = match text.split_once(':') {
            Some((word, size)) => (word, Some(number(size)?)),
            None => (text, None),
        };
        let level = Self::listed(word).ok_or_else(wrong)?.0;
        Ok(Self(match (level, size) {
            (Level::Raid50 { .. }, Some(group)) => Level::Raid50 { group },
            (Level::Raid60 { .. }, Some(group)) => Level::Raid60 { group },
            (Level::Raid70 { .. }, Some(group)) => Level::Raid70 { group },
            (level, None) if Self(level).group().is_none() => level,
            _ => return Err(wrong()),
        }))
    }
}

impl fmt::Display for ArrayLevel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.word())?;
        self.group().map_or(Ok(()), |group| write!(out, ":{group}"))
    }
}

text_form!(ArrayLevel);

/// Parses the size of a chunk, in bytes.
///
/// # Errors
/// A usage error that says which are possible.
pub fn parse_chunk_bytes(text: &str) -> ControlResult<u32> {
    let bytes = parse_size(text)?;
    let in_range = (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes);
    if in_range && bytes.is_power_of_two() {
        return Ok(bytes as u32);
    }
    Err(ControlError::usage(format!(
        "`{text}`: a chunk is a power of two from 4K to 1M; write for example --chunk 16K"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_taken_as_other_programs_write_them() {
        for (typed, level) in [
            ("raid5", "5"),
            ("RAID6", "6"),
            ("raid-10", "10"),
            ("Raid 7.3", "7.3"),
            ("raid0", "0"),
            ("raid4+2", "4+2"),
        ] {
            assert_eq!(ArrayLevel::of_word(typed, None, 6).unwrap().word(), level, "{typed}");
        }
        assert_eq!(ArrayLevel::of_word("raid60", None, 8).unwrap().to_string(), "60:4");
        for (typed, words) in [
            ("mirror", "did you mean `1`?"),
            ("raidz2", "did you mean `6`?"),
            ("raid", "is not a level"),
            ("raid55", "is not a level"),
            ("é5", "is not a level"),
        ] {
            let error = ArrayLevel::of_word(typed, None, 4).unwrap_err();
            assert!(error.message.contains(words) && error.exit_code() == 2, "{error}");
        }
    }

    #[test]
    fn every_level_is_read_and_written_back_the_same() {
        for text in ["0", "1", "10", "5", "6", "7.3", "50:3", "60:4", "70:5", "8+2", "4+8"] {
            assert_eq!(text.parse::<ArrayLevel>().unwrap().to_string(), text);
        }
        for text in
            ["", "2", "7", "50", "6:4", "60:", "60:x", "+", "1+", "a+b", "4+2+1", "-1+2", "60:99"]
        {
            assert_eq!(text.parse::<ArrayLevel>().unwrap_err().exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn groups_are_given_or_two_and_go_with_grouped_levels_only() {
        let level = |word, group, members| ArrayLevel::of_word(word, group, members);
        assert_eq!(level("60", Some(5), 20).unwrap().to_string(), "60:5");
        assert_eq!(level("50", None, 8).unwrap().to_string(), "50:4");
        assert!(level("50", None, 7).unwrap_err().message.contains("--group"));
        assert!(level("50", Some(99), 99).unwrap_err().message.contains("at most 64"));
        assert!(level("6", Some(4), 8).unwrap_err().message.contains("no groups"));
    }

    #[test]
    fn shapes_that_cannot_be_are_usage_errors() {
        let check =
            |text: &str, members, chunk| text.parse::<ArrayLevel>().unwrap().check(members, chunk);
        check("6", 4, 16 << 10).unwrap();
        check("8+2", 10, 4096).unwrap();
        let cases = [("6", 3), ("5", 2), ("1", 1), ("10", 5), ("60:4", 9), ("8+2", 9), ("6", 65)];
        for (level, members) in cases {
            let error = check(level, members, 16 << 10).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{level} on {members}");
        }
        assert!(check("6", 6, 5000).is_err() && check("6", 6, 2 << 20).is_err());
    }

    #[test]
    fn chunks_are_powers_of_two_from_4k_to_1m() {
        assert_eq!(parse_chunk_bytes("16K").unwrap(), 16384);
        for bad in ["2K", "2M", "5000", "12K", "x", "0"] {
            assert_eq!(parse_chunk_bytes(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
