//! The access of users to the socket or the file of an export.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ControlError, ControlResult, is_control};
use crate::words::text_form;

/// The mode of a socket or file that only its owner may open.
const PRIVATE_MODE: FileMode = FileMode(0o600);

/// The mode where a group is named and no mode.
const GROUP_MODE: FileMode = FileMode(0o660);

/// Longest name of a user or group, in bytes: eight times what `useradd` takes.
const NAME_BYTES_MAX: usize = 256;

/// Permission bits of a file, written as four octal digits; at most 0777.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileMode(u32);

impl FileMode {
    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether others than the owner may write: a client of an export must.
    pub fn is_shared(self) -> bool {
        self.0 & 0o022 != 0
    }
}

impl FromStr for FileMode {
    type Err = ControlError;

    fn from_str(text: &str) -> ControlResult<Self> {
        let is_octal =
            matches!(text.len(), 3 | 4) && text.bytes().all(|it| (b'0'..=b'7').contains(&it));
        let bits = is_octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
        bits.filter(|bits| *bits <= 0o777).map(Self).ok_or_else(|| {
            ControlError::usage(format!(
                "`{text}` is not a mode; write three octal digits from 000 to 777, for example 0660"
            ))
        })
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:04o}", self.0)
    }
}

text_form!(FileMode);

/// Owner and permissions of the socket or file of an export, where that is not for the user of the daemon
/// alone. Users and groups stay the words that the command line gave: each opening of the export looks
/// their numbers up. A recorded number would, after a reinstallation, give the export to whoever has the
/// number then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportAccess {
    /// The permission bits.
    pub mode: FileMode,
    /// Name or number of the user, if not the one of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name or number of the group, if not the one of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl ExportAccess {
    /// The access that a command line asks for; none when it says nothing about it. Without a mode a named
    /// group may read and write.
    ///
    /// # Errors
    /// A usage error for what is no mode, or cannot be the name of a user or group.
    pub fn parse(
        mode: Option<&str>,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> ControlResult<Option<Self>> {
        if mode.is_none() && owner.is_none() && group.is_none() {
            return Ok(None);
        }
        let usual = if group.is_some() { GROUP_MODE } else { PRIVATE_MODE };
        let access = Self {
            mode: mode.map(str::parse).transpose()?.unwrap_or(usual),
            owner: owner.map(str::to_owned),
            group: group.map(str::to_owned),
        };
        access.check()?;
        Ok(Some(access))
    }

    /// Refuses words that cannot be a user or group.
    ///
    /// # Errors
    /// A usage error that names the word.
    pub fn check(&self) -> ControlResult<()> {
        for (kind, name) in [("user", &self.owner), ("group", &self.group)] {
            let Some(name) = name else { continue };
            let is_one = !name.is_empty()
                && name.len() <= NAME_BYTES_MAX
                && !name.chars().any(|it| is_control(it) || matches!(it, ':' | '/' | ' '));
            if !is_one {
                return Err(ControlError::usage(format!(
                    "`{name}` is not the name or number of a {kind}; write for example --{} qemu",
                    if kind == "user" { "owner" } else { "group" }
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Display for ExportAccess {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "mode {}", self.mode)?;
        if let Some(owner) = &self.owner {
            write!(out, ", owner {owner}")?;
        }
        if let Some(group) = &self.group {
            write!(out, ", group {group}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_three_octal_digits_and_gives_no_special_bit() {
        for (text, bits) in [("0660", 0o660), ("660", 0o660), ("0777", 0o777), ("000", 0)] {
            let mode: FileMode = text.parse().unwrap();
            assert_eq!((mode.bits(), mode.to_string().parse()), (bits, Ok(mode)), "{text}");
        }
        for text in [
            "",
            "7",
            "66",
            "0o660",
            "+660",
            "-660",
            "0668",
            "1777",
            "4660",
            "00660",
            "rw",
            "６６０",
        ] {
            let error = text.parse::<FileMode>().unwrap_err();
            assert!(error.message.contains("for example 0660"), "{error}");
        }
    }

    #[test]
    fn a_named_group_may_read_and_write_unless_a_mode_is_given() {
        let parse = |mode, owner, group| {
            ExportAccess::parse(mode, owner, group).unwrap().map(|access| access.to_string())
        };
        assert_eq!(parse(None, None, None), None);
        assert_eq!(parse(None, None, Some("kvm")).unwrap(), "mode 0660, group kvm");
        assert_eq!(parse(None, Some("64055"), None).unwrap(), "mode 0600, owner 64055");
        let all = parse(Some("640"), Some("qemu"), Some("kvm"));
        assert_eq!(all.unwrap(), "mode 0640, owner qemu, group kvm");
        assert_eq!(parse(Some("0666"), None, None).unwrap(), "mode 0666");
    }

    #[test]
    fn words_that_are_no_users_are_refused_by_name() {
        for word in ["", "a b", "a:b", "../x", "a\nb", &"x".repeat(300)] {
            let error = ExportAccess::parse(None, Some(word), None).unwrap_err();
            assert!(error.message.contains("--owner"), "{error}");
        }
    }
}
