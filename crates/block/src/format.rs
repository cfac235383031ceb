//! Formats of what is stored: a version, and features that a reader has to know.
//!
//! A feature is part of the stored bytes that not all of them have, and that a program which does not know
//! it would misread. It has a bit in binary formats and a name everywhere. A reader refuses a version or a
//! feature that it does not know, before it believes anything else, and writes nothing then.

use std::fmt;

/// A feature that stored bytes may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The bit that says so in a binary format, from 0.
    pub bit: u32,
    /// The name, for people and for formats that are text.
    pub name: &'static str,
    /// What the feature changes, in one line.
    pub meaning: &'static str,
}

impl Feature {
    /// The word with the bit of this feature alone.
    pub const fn flag(self) -> u64 {
        1 << self.bit
    }
}

/// A format as this program knows it.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The version that is written, and the only one that is read.
    pub version: u32,
    /// All features that are read.
    pub features: &'static [Feature],
}

impl Format {
    /// Whether this program can read bytes of this version with these features.
    ///
    /// # Errors
    /// The version, or all features, that it does not know.
    pub fn check(&self, version: u32, flags: u64) -> Result<(), Unsupported> {
        let known = self.features.iter().fold(0, |word, feature| word | feature.flag());
        match flags & !known {
            _ if version != self.version => {
                Err(Unsupported::Version { found: version, read: self.version })
            }
            0 => Ok(()),
            unknown => Err(Unsupported::Flags(unknown)),
        }
    }

    /// [`Self::check`] for a format that is text and names its features.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_names(&self, version: u32, names: &[String]) -> Result<(), Unsupported> {
        let is_known = |name: &str| self.features.iter().any(|feature| feature.name == name);
        let unknown: Vec<String> = names.iter().filter(|name| !is_known(name)).cloned().collect();
        if version != self.version {
            Err(Unsupported::Version { found: version, read: self.version })
        } else if unknown.is_empty() {
            Ok(())
        } else {
            Err(Unsupported::Names(unknown))
        }
    }
}

/// Why this program cannot read stored bytes that are whole. A part of a line that begins with the name of
/// what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The bytes are of another version.
    Version {
        /// The version of the bytes.
        found: u32,
        /// The version that this program reads.
        read: u32,
    },
    /// The bytes have features with these bits.
    Flags(u64),
    /// The bytes have features with these names.
    Names(Vec<String>),
    /// The bytes have, without a feature for it, what does not fit this program's form of them.
    Content(String),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown: Vec<String> = match self {
            Self::Version { found, read } => {
                write!(out, "format version {found}, and this Voltier reads version {read}")?;
                Vec::new()
            }
            Self::Flags(word) => (0..u64::BITS)
                .filter(|bit| word >> bit & 1 == 1)
                .map(|bit| format!("bit {bit}"))
                .collect(),
            Self::Content(what) => {
                write!(out, "it has what is unknown here ({})", what.escape_debug())?;
                Vec::new()
            }
            // Names come from a file: they must not break the line.
            Self::Names(names) => {
                names.iter().map(|name| name.escape_debug().to_string()).collect()
            }
        };
        match unknown.len() {
            0 => {}
            1 => write!(out, "feature {} is unknown here", unknown[0])?,
            _ => write!(out, "features {} are unknown here", unknown.join(", "))?,
        }
        out.write_str("; written by a newer Voltier: update this one")
    }
}

impl std::error::Error for Unsupported {}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format {
        version: 1,
        features: &[
            Feature { bit: 0, name: "first", meaning: "the first" },
            Feature { bit: 5, name: "sixth", meaning: "the sixth" },
        ],
    };

    #[test]
    fn known_features_are_read_and_all_unknown_ones_are_named() {
        for flags in [0, 1, 1 << 5, 1 | 1 << 5] {
            assert_eq!(FORMAT.check(1, flags), Ok(()));
        }
        let said = |flags| FORMAT.check(1, flags).unwrap_err().to_string();
        assert!(said(0b11).starts_with("feature bit 1 is unknown here; "), "{}", said(0b11));
        let both = said(1 << 63 | 1 << 5 | 1 << 6);
        assert!(both.starts_with("features bit 6, bit 63 are unknown here; "), "{both}");
        assert!(both.ends_with("written by a newer Voltier: update this one"), "{both}");
    }

    #[test]
    fn another_version_is_named_whatever_its_features() {
        for version in [0, 2, u32::MAX] {
            let found = FORMAT.check(version, u64::MAX);
            assert_eq!(found, Err(Unsupported::Version { found: version, read: 1 }));
            assert_eq!(FORMAT.check_names(version, &["x".into()]), found);
            let said = found.unwrap_err().to_string();
            assert!(said.starts_with(&format!("format version {version}, and this")), "{said}");
        }
    }

    #[test]
    fn names_are_checked_and_shown_on_one_line() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(FORMAT.check_names(1, &names(&["sixth", "first"])), Ok(()));
        let found = FORMAT.check_names(1, &names(&["first", "quota", "a\nb"])).unwrap_err();
        let said = found.to_string();
        assert!(said.starts_with("features quota, a\\nb are unknown here; "), "{said}");
        let said = Unsupported::Content("a\nb".into()).to_string();
        assert!(said.starts_with("it has what is unknown here (a\\nb); written by"), "{said}");
    }
}
