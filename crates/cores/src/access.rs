//! The numbers of the users and groups that may open an export, looked up on this machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Group, User};
use voltier_control::{ControlError, ControlResult, ExportAccess};
use voltier_export::FileAccess;

/// The number that `chown` takes for "leave it".
const NO_ID: u32 = u32::MAX;

/// Mode, owner and group of the file of an export at `path`, as the machine knows them now.
///
/// # Errors
/// When a user or group is not there, or when nobody but root could come to the file.
pub(super) fn resolved(access: Option<&ExportAccess>, path: &Path) -> ControlResult<FileAccess> {
    let Some(access) = access else { return Ok(FileAccess::default()) };
    let user = |name: &str| Ok(User::from_name(name)?.map(|user| user.uid.as_raw()));
    let group = |name: &str| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()));
    let resolved = FileAccess {
        mode: access.mode.bits(),
        owner: access.owner.as_ref().map(|word| number("user", word, user)).transpose()?,
        group: access.group.as_ref().map(|word| number("group", word, group)).transpose()?,
    };
    if access.mode.is_shared() || resolved.owner.is_some() {
        check_hands(path)?;
        check_way(path, resolved.owner)?;
    }
    Ok(resolved)
}

/// The number of a user or group that is given by name or number.
fn number(
    kind: &str,
    word: &str,
    find: impl FnOnce(&str) -> nix::Result<Option<u32>>,
) -> ControlResult<u32> {
    if word.bytes().all(|it| it.is_ascii_digit()) {
        let number = word.parse().ok().filter(|number| *number != NO_ID);
        return number.ok_or_else(|| {
            ControlError::usage(format!("{word} is too large for the number of a {kind}"))
        });
    }
    let database = if kind == "user" { "passwd" } else { "group" };
    match find(word) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(ControlError::usage(format!(
            "there is no {kind} `{word}` on this machine; make it, or export for one that \
             `getent {database}` lists"
        ))),
        Err(errno) => Err(ControlError::failed(format!(
            "looking the {kind} `{word}` up: {}; give its number instead",
            errno.desc()
        ))),
    }
}

/// Refuses a path that another user can change on the way: the access could go to another export.
fn check_hands(path: &Path) -> ControlResult<()> {
    let own = rustix::process::geteuid().as_raw();
    for folder in path.ancestors().skip(1) {
        let (Ok(named), Ok(facts)) = (fs::symlink_metadata(folder), fs::metadata(folder)) else {
            continue;
        };
        let is_ours = |uid: u32| uid == 0 || uid == own;
        let is_shared = facts.mode() & 0o022 != 0 && facts.mode() & 0o1000 == 0;
        if !is_ours(named.uid()) || !is_ours(facts.uid()) || is_shared {
            return Err(ControlError::failed(format!(
                "{} can be changed by other users, who could have the access go elsewhere; choose a path \
                 in a folder of root, for example in /run/voltier",
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a path with a folder that lets only its own user through: the access would be none.
fn check_way(path: &Path, owner: Option<u32>) -> ControlResult<()> {
    for folder in path.ancestors().skip(1) {
        // A folder that is not there is told about when the file cannot be made.
        let Ok(facts) = fs::metadata(folder) else { continue };
        let lets_others = facts.mode() & 0o011 != 0;
        if !lets_others && owner != Some(facts.uid()) && owner != Some(0) {
            let (folder, user) = (folder.display(), facts.uid());
            return Err(ControlError::failed(format!(
                "{folder} lets only root and user {user} through, so nobody else could open the export; \
                 choose a path elsewhere, for example in /run/voltier"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn access(mode: &str, owner: Option<&str>, group: Option<&str>) -> ExportAccess {
        ExportAccess::parse(Some(mode), owner, group).unwrap().unwrap()
    }

    #[test]
    fn names_become_numbers_and_numbers_stay() {
        let path = Path::new("/v.sock");
        let asked = access("0640", Some("root"), Some("4711"));
        let expected = FileAccess { mode: 0o640, owner: Some(0), group: Some(4711) };
        assert_eq!(resolved(Some(&asked), path).unwrap(), expected);
        assert_eq!(resolved(None, path).unwrap(), FileAccess::default());
        for (owner, group, words) in [
            (Some("nobodys-friend"), None, "no user `nobodys-friend` on this machine; make it"),
            (None, Some("no-such-group"), "no group `no-such-group`"),
            (Some("4294967295"), None, "too large"),
            (None, Some("99999999999"), "too large"),
        ] {
            let error = resolved(Some(&access("0660", owner, group)), path).unwrap_err();
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn a_path_that_nobody_else_can_reach_is_refused() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path().join("s");
        let own = fs::metadata(folder.path()).unwrap().uid().to_string();
        let private = fs::set_permissions(folder.path(), Permissions::from_mode(0o700));
        private.unwrap();
        let error = resolved(Some(&access("0660", None, Some("4711"))), &path).unwrap_err();
        assert!(error.message.contains("lets only root and user"), "{error}");
        resolved(Some(&access("0600", None, None)), &path).unwrap();
        resolved(Some(&access("0600", Some(&own), None)), &path).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        resolved(Some(&access("0660", None, Some("4711"))), &path).unwrap();
    }
    #[test]
    fn a_path_that_another_user_can_change_is_refused() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path().join("s");
        let shared = access("0660", None, Some("4711"));
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let error = resolved(Some(&shared), &path).unwrap_err();
        assert!(error.message.contains("can be changed by other users"), "{error}");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        resolved(Some(&shared), &path).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(4711), None).unwrap();
            let error = resolved(Some(&shared), &path).unwrap_err();
            assert!(error.message.contains("can be changed by other users"), "{error}");
        }
    }
}
