//! Choices by the words of the command line: parsed with a hint at the nearest word, and in JSON.

use voltier_block::Word;

use crate::error::{ControlError, ControlResult};
use crate::suggest;

/// Words that people know from other programs, and ours for the same.
const SPELLINGS: [(&str, &str); 6] = [
    ("writeback", "wb"),
    ("writethrough", "wt"),
    ("writearound", "ro"),
    ("readonly", "ro"),
    ("writeonly", "wo"),
    ("passthrough", "pt"),
];

/// The word for a spelling that other programs have, if it is one of these.
fn spelled(word: &str, known: &[&str]) -> Option<&'static str> {
    let plain: String = word.chars().filter(|it| !matches!(it, '-' | '_' | ' ')).collect();
    let (_, own) = SPELLINGS.iter().find(|(spelling, _)| *spelling == plain)?;
    known.contains(own).then_some(*own)
}

/// Parses a word that a person typed, in letters of any case, or as other programs spell it.
///
/// # Errors
/// A usage error that names the nearest word.
pub fn parse_word<T: Word>(word: &str) -> ControlResult<T> {
    let lower = word.to_ascii_lowercase();
    T::of_name(spelled(&lower, &T::names()).unwrap_or(&lower)).map_err(|_| {
        let hint = suggest::hint(word, &T::names());
        ControlError::usage(format!("`{}` is {}; {hint}", word.escape_default(), T::WRONG))
    })
}

/// JSON of a type by its text.
macro_rules! text_form {
    ($of:ty) => {
        impl TryFrom<String> for $of {
            type Error = ControlError;

            fn try_from(text: String) -> Result<Self, ControlError> {
                text.parse()
            }
        }

        impl From<$of> for String {
            fn from(value: $of) -> String {
                value.to_string()
            }
        }
    };
}
pub(crate) use text_form;

/// JSON by the words of the command line.
pub(crate) mod as_word {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D, T>(from: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_array::Integrity;
    use voltier_cache::Mode;

    #[test]
    fn letters_may_be_of_any_case_and_another_word_names_the_nearest() {
        assert_eq!(parse_word::<Mode>("WB").unwrap(), Mode::WriteBack);
        let error = parse_word::<Integrity>("crc32").unwrap_err().to_string();
        assert!(error.starts_with("`crc32` is no integrity; did you mean `crc32c`?"), "{error}");
    }
}
