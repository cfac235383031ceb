//! The control plane's error: whose fault it is, and one line that says what to do next.

use serde::{Deserialize, Serialize};

/// The party that has to act, and so the exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorKind {
    /// The request itself is wrong: exit code 2.
    Usage,
    /// The request was understood and could not be done; nothing changed: exit code 1.
    Failed,
    /// Somebody uses what the request would take away; nothing changed: exit code 1.
    InUse,
    /// Only a newer program can read what is stored; nothing changed: exit code 1.
    Unsupported,
    /// The machine has no memory or no descriptors for it, or a drive is not as it was, and another start may
    /// find what is needed; nothing changed: exit code 1.
    NotNow,
}

/// How the labels of a device contradict each other: it is believed by none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// The device begins with a label, and another place has one of another use.
    Labels,
    /// The device begins with something else, and another place has a label.
    Content,
}

/// Why a request was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// The party that has to act.
    pub kind: ErrorKind,
    /// One line: what is wrong, then `; ` and what to do.
    pub message: String,
    /// The identity of the array or cache of a label that only a newer program can read. Clients are not told.
    #[serde(skip)]
    pub label_of: Option<[u8; 16]>,
    /// Set when labels of a device contradict each other. Clients are not told.
    #[serde(skip)]
    pub clash: Option<Clash>,
}

/// Result of a control-plane operation.
pub type ControlResult<T> = Result<T, ControlError>;

impl ControlError {
    /// The request is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// The request could not be done.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// The request would take something away from somebody who uses it.
    pub fn in_use(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InUse, message)
    }

    /// The request could not be done as the machine and its drives are now.
    pub fn not_now(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotNow, message)
    }

    /// Only a newer program can read what is stored.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Only a newer program can read the label of this array or cache, or of a spare of this owner.
    pub fn unsupported_label(of: impl Into<[u8; 16]>, message: impl Into<String>) -> Self {
        Self { label_of: Some(of.into()), ..Self::unsupported(message) }
    }

    /// Labels of a device contradict each other; `is_labelled` says whether the device begins with one.
    pub fn label_clash(is_labelled: bool, message: impl Into<String>) -> Self {
        let clash = if is_labelled { Clash::Labels } else { Clash::Content };
        Self { clash: Some(clash), ..Self::failed(message) }
    }

    /// Whether only a newer program can read a label of this array or cache.
    pub fn is_unsupported_label(&self, of: impl Into<[u8; 16]>) -> bool {
        self.label_of == Some(of.into())
    }

    /// The request could not be done, for the reason that another error gives.
    pub fn from_error(error: impl std::fmt::Display) -> Self {
        Self::failed(error.to_string())
    }

    /// The system answered `doing` with an error.
    pub fn io(doing: impl std::fmt::Display, error: &std::io::Error) -> Self {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; run as root or change its permissions",
            std::io::ErrorKind::StorageFull => "; free some space there",
            _ => "",
        };
        Self::failed(format!("{doing}: {}{hint}", plain(error)))
    }

    /// The exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Failed | ErrorKind::InUse | ErrorKind::Unsupported | ErrorKind::NotNow => 1,
            ErrorKind::Usage => 2,
        }
    }

    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message: String = message.into().replace(['\n', '\r'], " ");
        if message.contains(is_control) {
            let escaped = |it: char| match is_control(it) {
                true => it.escape_default().to_string(),
                false => it.to_string(),
            };
            message = message.chars().map(escaped).collect();
        }
        Self { kind, message, label_of: None, clash: None }
    }
}

/// Whether a character of a name or path would end a line, move a terminal's cursor or turn a line around.
pub(crate) fn is_control(letter: char) -> bool {
    let turns = matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || turns
}

/// The system's words without Rust's "(os error N)".
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    plain.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_always_one_line() {
        assert_eq!(ControlError::failed("a\nb").message, "a b");
    }

    #[test]
    fn a_path_in_a_message_moves_no_cursor() {
        assert_eq!(ControlError::failed("/dev/\u{1b}[2J").message, "/dev/\\u{1b}[2J");
    }

    #[test]
    fn a_system_error_reads_as_plain_words_with_a_hint() {
        let denied = std::io::Error::from_raw_os_error(13);
        let error = ControlError::io("opening /dev/sdb", &denied);
        let want = "opening /dev/sdb: permission denied; run as root or change its permissions";
        assert_eq!(error.message, want);
    }
}
