//! Hooks: who is told of events, and how; kept in a file of the state folder.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::date::Date;
use crate::error::{ControlError, ControlResult, is_control};

/// The file of the hooks in the state folder.
const HOOKS_FILE: &str = "hooks.json";
/// The file of the last event that each hook has.
const DELIVERED_FILE: &str = "hooks.delivered";
/// The number of the form of these files.
const FORMAT: u32 = 1;
/// Each has a thread.
pub(crate) const HOOKS_MAX: usize = 16;
const TARGET_BYTES_MAX: usize = 4096;
/// Longest name of a hook, in letters.
const NAME_LETTERS_MAX: usize = 60;

/// Who is told of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookTarget {
    /// A command of the shell, with the event on standard input and in `VOLTIER_EVENT_*`.
    Command(String),
    /// A mail address, by `sendmail`.
    Mail(String),
    /// A URL to which the event is posted, by `curl`.
    Webhook(String),
}

impl HookTarget {
    /// The word of its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Command(_) => "command",
            Self::Mail(_) => "mail",
            Self::Webhook(_) => "webhook",
        }
    }

    /// What was given: a command, an address or a URL.
    pub fn text(&self) -> &str {
        match self {
            Self::Command(text) | Self::Mail(text) | Self::Webhook(text) => text,
        }
    }

    /// A short title; of a URL the host alone, because the rest is often a secret.
    pub fn title(&self) -> String {
        if let Self::Webhook(url) = self {
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = host.rsplit('@').next().unwrap_or_default();
            return format!("{scheme}://{host}/");
        }
        let text = self.text();
        match text.chars().count() > NAME_LETTERS_MAX {
            true => format!("{}…", text.chars().take(NAME_LETTERS_MAX).collect::<String>()),
            false => text.to_owned(),
        }
    }

    /// Refuses what can never be delivered to.
    ///
    /// # Errors
    /// A usage error, or that there is no such program.
    pub fn check(&self) -> ControlResult<()> {
        let (kind, text) = (self.kind(), self.text());
        if text.trim().is_empty() {
            return Err(ControlError::usage(format!("an empty {kind}; nobody could be told")));
        }
        if text.len() > TARGET_BYTES_MAX || text.contains(is_control) {
            return Err(ControlError::usage(format!(
                "the {kind} is longer than {TARGET_BYTES_MAX} bytes, or has control characters in it; put what it \
                 does into a script"
            )));
        }
        match self {
            Self::Command(text) => check_program(text),
            Self::Mail(address) => {
                let (user, host) = address.split_once('@').unwrap_or((address, "localhost"));
                let is_odd = |it: char| it.is_whitespace() || "<>()[],;:\\\"".contains(it);
                let is_good = !user.is_empty() && !host.is_empty() && !user.starts_with('-');
                if !is_good || address.contains(is_odd) || host.contains('@') {
                    return Err(ControlError::usage(format!(
                        "`{address}` is no mail address; write for example admin@example.org, or root"
                    )));
                }
                Ok(())
            }
            Self::Webhook(url) => {
                let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
                let is_good = rest.is_some_and(|rest| {
                    !rest.is_empty()
                        && !rest.starts_with('/')
                        && !rest.contains(char::is_whitespace)
                });
                if !is_good {
                    return Err(ControlError::usage(format!(
                        "`{url}` is no URL to post to; write for example https://example.org/hook"
                    )));
                }
                Ok(())
            }
        }
    }
}

/// A program that is named with a folder must be there; any other word may be one that the shell knows.
fn check_program(command: &str) -> ControlResult<()> {
    let word = command.split_whitespace().next().unwrap_or_default();
    let is_plain = word.chars().all(|it| it.is_alphanumeric() || "/._-+".contains(it));
    if !word.contains('/') || !is_plain {
        return Ok(());
    }
    if !word.starts_with('/') {
        return Err(ControlError::usage(format!(
            "the daemon does not run in this folder; give `{word}` with its full path"
        )));
    }
    let meta = fs::metadata(word)
        .map_err(|error| ControlError::io(format!("looking at {word}"), &error))?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err(ControlError::failed(format!(
            "{word} is no program; `chmod +x {word}` if it is a script"
        )));
    }
    Ok(())
}

/// A hook on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Its number.
    pub id: u32,
    /// Who is told.
    #[serde(flatten)]
    pub target: HookTarget,
}

/// A hook, and how it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookStatus {
    /// The hook.
    #[serde(flatten)]
    pub hook: Hook,
    /// Events that wait for their delivery.
    pub waiting: u64,
    /// Events that were delivered since the daemon started, alone or as one of several.
    pub delivered: u64,
    /// Attempts that failed since the last one that did not.
    pub failures: u32,
    /// When the last attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Date>,
    /// Why the last attempt failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl HookStatus {
    /// A hook that was told nothing yet.
    pub(crate) fn new(hook: Hook) -> Self {
        Self { hook, waiting: 0, delivered: 0, failures: 0, last: None, error: String::new() }
    }
}

/// What came of a test of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTest {
    /// The hook.
    #[serde(flatten)]
    pub hook: Hook,
    /// Why it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

#[derive(Default, Serialize, Deserialize)]
struct HooksFile {
    format: u32,
    hooks: Vec<Hook>,
}

/// The hooks of a state folder.
///
/// # Errors
/// When the file cannot be read, or is refused.
pub fn recorded_hooks(folder: &Path) -> ControlResult<Vec<Hook>> {
    let path = folder.join(HOOKS_FILE);
    let doing = || format!("reading {}", path.display());
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ControlError::io(doing(), &error)),
    };
    let refused = |why: String| ControlError::failed(format!("{}: {why}; delete it", doing()));
    let file: HooksFile =
        serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    match file.format {
        FORMAT => Ok(file.hooks),
        newer => Err(refused(format!("its format is {newer}, and this program knows {FORMAT}"))),
    }
}

/// Puts the hooks on record; nobody else may read them.
pub(crate) fn record_hooks(folder: &Path, hooks: &[Hook]) -> ControlResult<()> {
    let file = HooksFile { format: FORMAT, hooks: hooks.to_vec() };
    let mut bytes = serde_json::to_vec_pretty(&file).map_err(ControlError::from_error)?;
    bytes.push(b'\n');
    replace(&folder.join(HOOKS_FILE), &bytes)
        .map_err(|error| ControlError::io("recording the hooks", &error))
}

/// The number of the last event that each hook has.
pub(crate) fn recorded_cursors(folder: &Path) -> BTreeMap<u32, u64> {
    // What cannot be read is delivered again, or not any more: never a reason not to serve.
    let bytes = fs::read(folder.join(DELIVERED_FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

pub(crate) fn record_cursors(folder: &Path, cursors: &BTreeMap<u32, u64>) -> io::Result<()> {
    replace(&folder.join(DELIVERED_FILE), &serde_json::to_vec(cursors)?)
}

/// Gives a file new content, whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = PathBuf::from(format!("{}.new", path.display()));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let replaced = written.and_then(|()| fs::rename(&fresh, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_be_delivered_to_is_refused_in_one_line() {
        let command = |it: &str| HookTarget::Command(it.into());
        let mail = |it: &str| HookTarget::Mail(it.into());
        let webhook = |it: &str| HookTarget::Webhook(it.into());
        for target in [
            command(" "),
            command("a\nb"),
            command("./mine"),
            command("/no/such/program --now"),
            command("/etc/passwd"),
            mail("two words"),
            mail("-oQ/tmp"),
            mail("a@"),
            mail("a@b@c"),
            mail("a,b@c"),
            webhook("example.org"),
            webhook("ftp://example.org/"),
            webhook("http://"),
            webhook("https:///x"),
            webhook("http://a b"),
        ] {
            let error = target.check().unwrap_err();
            assert_eq!(error.message.lines().count(), 1, "{target:?}");
        }
        for target in [
            command("logger -t voltier"),
            command("/bin/sh -c true"),
            command("cat >> /tmp/x"),
            command("$HOME/mine"),
            mail("root"),
            mail("a.b+c@example.org"),
            webhook("http://[::1]:8080/a?b=c"),
        ] {
            target.check().unwrap_or_else(|error| panic!("{target:?}: {error}"));
        }
    }

    #[test]
    fn a_name_is_short_and_has_no_secret() {
        let url = HookTarget::Webhook("https://me:word@example.org:8443/secret?key=1".into());
        assert_eq!(url.title(), "https://example.org:8443/");
        let long = HookTarget::Command("ä".repeat(100));
        assert_eq!(long.title().chars().count(), NAME_LETTERS_MAX + 1);
    }

    #[test]
    fn hooks_are_read_as_they_were_recorded_and_nobody_else_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(recorded_hooks(folder.path()), Ok(Vec::new()));
        let hooks = vec![
            Hook { id: 1, target: HookTarget::Command("logger".into()) },
            Hook { id: 7, target: HookTarget::Mail("root".into()) },
        ];
        record_hooks(folder.path(), &hooks).unwrap();
        assert_eq!(recorded_hooks(folder.path()), Ok(hooks));
        let path = folder.path().join(HOOKS_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "{").unwrap();
        assert!(recorded_hooks(folder.path()).unwrap_err().message.contains("delete it"));
        fs::write(&path, "{\"format\":2,\"hooks\":[]}").unwrap();
        assert!(recorded_hooks(folder.path()).unwrap_err().message.contains("format is 2"));
    }
}
