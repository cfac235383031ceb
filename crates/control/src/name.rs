//! Names of volumes and arrays: they become socket names, export names and table rows, so they are
//! plain.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ControlError, ControlResult};
use crate::words::text_form;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Kinds of names, with what a message calls each.
macro_rules! names {
    ($($(#[$doc:meta])+ $name:ident, $what:literal;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ControlError;

            fn from_str(text: &str) -> ControlResult<Self> {
                plain($what, text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.pad(&self.0)
            }
        }

        text_form!($name);
    )+};
}

names! {
    /// A valid volume name: 1 to 63 of `A-Z a-z 0-9 . _ -`, starting with a letter or a digit.
    VolumeName, "a volume name";
    /// A valid array name, of the same letters. Arrays and volumes may have the same names.
    ArrayName, "an array name";
    /// A valid name of a pool of spares, of the same letters.
    PoolName, "a name of a spare pool";
}

/// The text, if it is plain enough for `what`.
fn plain(what: &str, text: &str) -> ControlResult<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.len() <= NAME_BYTES_MAX && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(ControlError::usage(format!(
        "`{}` is not {what}; use 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, \
         starting with a letter or a digit",
        text.escape_default()
    )))
}

impl ArrayName {
    /// The name of the volume that `array create` makes on the array.
    pub fn of_its_volume(&self) -> VolumeName {
        VolumeName(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_taken_and_odd_ones_refused_in_one_line() {
        for good in ["a", "cache1", "0", "A.b_c-d", &"x".repeat(63)] {
            assert!(good.parse::<VolumeName>().is_ok(), "{good}");
        }
        for bad in ["", ".hidden", "-x", "_x", "a/b", "a b", "ä", "a\nb", &"x".repeat(64)] {
            let error = bad.parse::<VolumeName>().unwrap_err();
            assert!(!error.message.contains('\n') && error.exit_code() == 2, "{bad}");
            let of_array = bad.parse::<ArrayName>().unwrap_err().message;
            assert_eq!(of_array, error.message.replace("a volume name", "an array name"));
        }
    }

    #[test]
    fn a_bad_name_does_not_come_in_through_json_either() {
        assert!(serde_json::from_str::<VolumeName>("\"../x\"").is_err());
        assert_eq!(serde_json::from_str::<VolumeName>("\"x\"").unwrap().as_str(), "x");
    }
}
