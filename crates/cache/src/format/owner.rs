//! The volume that a cache belongs to, as the superblock names it: for whoever has lost the registry.
//!
//! The cache itself needs none of it. Zeroes say that nothing is recorded.

use std::ops::Range;

use crate::config::{Mode, Settings};
use crate::format::superblock::BLOCK_BYTES;

const UUID_AT: Range<usize> = 512..528;
const MODE_AT: Range<usize> = 528..532;
const ORDERED_AT: usize = 532;
const VOLUME_AT: Range<usize> = 544..608;
const ORIGIN_IDENTITY_AT: Range<usize> = 608..1024;
const ORIGIN_PATH_AT: Range<usize> = 1024..2048;

/// The volume of a cache. A text that is not recorded is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Identity of the volume; zero when nothing is recorded.
    pub volume_uuid: [u8; 16],
    /// Name of the volume.
    pub volume: String,
    /// The identity that the origin is known by.
    pub origin_identity: String,
    /// Where the origin was last.
    pub origin_path: String,
    /// The mode of the cache, when it was last recorded.
    pub mode: Option<Mode>,
    /// Whether the cache destaged in order then.
    pub ordered: bool,
}

impl Owner {
    /// Puts the owner into a superblock whose checksum is made afterwards. A text that does not fit, or
    /// has control characters, is left out: half an identity or path would name something else.
    pub(crate) fn encode_into(&self, block: &mut [u8; BLOCK_BYTES]) {
        block[UUID_AT].copy_from_slice(&self.volume_uuid);
        // From 1 on: 0 says that none is recorded.
        let number = self.mode.and_then(|mode| Mode::ALL.iter().position(|known| *known == mode));
        let number = number.map_or(0, |at| at as u32 + 1);
        block[MODE_AT].copy_from_slice(&number.to_le_bytes());
        block[ORDERED_AT] = self.ordered.into();
        put_text(&mut block[VOLUME_AT], &self.volume);
        put_text(&mut block[ORIGIN_IDENTITY_AT], &self.origin_identity);
        put_text(&mut block[ORIGIN_PATH_AT], &self.origin_path);
    }

    /// The owner in a superblock that is whole. A part that makes no sense counts as not recorded.
    pub(crate) fn decode(block: &[u8]) -> Self {
        let Some(block) = block.first_chunk::<BLOCK_BYTES>() else { return Self::default() };
        let number = block[MODE_AT].try_into().map_or(0, u32::from_le_bytes);
        let mode = (number as usize).checked_sub(1).and_then(|at| Mode::ALL.get(at).copied());
        Self {
            volume_uuid: block[UUID_AT].try_into().unwrap_or_default(),
            volume: text_of(&block[VOLUME_AT]),
            origin_identity: text_of(&block[ORIGIN_IDENTITY_AT]),
            origin_path: text_of(&block[ORIGIN_PATH_AT]),
            mode,
            ordered: block[ORDERED_AT] == 1,
        }
    }

    /// The same owner of a cache with these settings.
    pub(crate) fn with(self, settings: &Settings) -> Self {
        let is_recorded = self.is_recorded();
        Self {
            mode: is_recorded.then_some(settings.mode),
            ordered: is_recorded && settings.ordered,
            ..self
        }
    }

    /// Whether the superblock names a volume.
    pub fn is_recorded(&self) -> bool {
        !self.volume.is_empty()
    }
}

fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn put_text(field: &mut [u8], text: &str) {
    field.fill(0);
    if text.len() <= field.len() && is_plain(text) {
        field[..text.len()].copy_from_slice(text.as_bytes());
    }
}

fn text_of(field: &[u8]) -> String {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).ok().filter(|text| is_plain(text));
    text.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;
    use voltier_block::Prng;

    #[test]
    fn the_numbers_of_modes_and_policies_on_the_ssd_stay_what_they_are() {
        use Mode::*;
        let on_ssd = [WriteThrough, WriteBack, ReadOnly, WriteOnly, PassThrough];
        assert_eq!(Mode::ALL, on_ssd, "1 to 5");
        let on_ssd = [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Rand, PolicyKind::S3Fifo];
        assert_eq!(PolicyKind::ALL[..4], on_ssd, "0 to 3: a new one goes to the end");
    }

    fn owner() -> Owner {
        Owner {
            volume_uuid: [7; 16],
            volume: "fast".into(),
            origin_identity: "wwid:naa.5000;start=2048".into(),
            origin_path: "/dev/sdb1".into(),
            mode: Some(Mode::WriteBack),
            ordered: true,
        }
    }

    fn written(owner: &Owner) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        owner.encode_into(&mut block);
        block
    }

    #[test]
    fn what_is_written_is_read_in_every_mode_and_up_to_the_longest_texts() {
        for mode in Mode::ALL.map(Some).into_iter().chain([None]) {
            let owner = Owner { mode, ..owner() };
            assert_eq!(Owner::decode(&written(&owner)), owner);
        }
        let longest = Owner {
            volume: "v".repeat(64),
            origin_identity: "m".repeat(416),
            origin_path: "p".repeat(1024),
            ..owner()
        };
        assert_eq!(Owner::decode(&written(&longest)), longest);
    }

    #[test]
    fn a_text_that_does_not_fit_is_left_out_whole() {
        let odd = Owner {
            volume: "v".repeat(65),
            origin_identity: "a\nb".into(),
            origin_path: "p".repeat(1025),
            ..owner()
        };
        let found = Owner::decode(&written(&odd));
        assert_eq!((found.volume, found.origin_identity), (String::new(), String::new()));
        assert_eq!((found.origin_path, found.mode), (String::new(), Some(Mode::WriteBack)));
    }

    #[test]
    fn zeroes_record_nothing_and_any_bytes_are_read_without_a_panic() {
        assert_eq!(Owner::decode(&[0; BLOCK_BYTES]), Owner::default());
        assert!(!Owner::default().is_recorded());
        let mut dice = Prng::new(42);
        for _ in 0..200 {
            let block: Vec<u8> = (0..BLOCK_BYTES).map(|_| dice.next_u64() as u8).collect();
            let found = Owner::decode(&block);
            assert!(
                [found.volume, found.origin_identity, found.origin_path]
                    .iter()
                    .all(|it| is_plain(it))
            );
        }
    }
}
