//! The users of exports, from whom nothing is taken away unless a command says so.

use crate::error::{ControlError, ControlResult};
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::records::VolumeRecord;
use crate::safety::users;
use crate::service::state::turn::Turn;
use crate::service::volumes::stacked;

/// Has file systems on files in use write out what they hold, before the files are taken from them.
pub(crate) fn sync_above(turn: &mut Turn, name: &VolumeName, exports: &[ExportSpec]) {
    for export in exports {
        if let Some(path) = export.file()
            && (export.is_device() || turn.engine.clients(name, export) > 0)
        {
            let step = format!("syncing what is mounted over {}", path.display());
            users::sync_above(turn.apart(step).machine(), path);
        }
    }
}

/// Everybody who uses an export now, in words.
pub(crate) fn users(turn: &mut Turn) -> Vec<String> {
    let records = turn.registry.volumes().to_vec();
    records.iter().flat_map(|record| users_of(turn, record, Own::StopsFirst)).collect()
}

/// The part of other volumes of this daemon that use an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// They are users like others.
    Counts,
    /// They stop before the volume that they use.
    StopsFirst,
}

fn users_of(turn: &mut Turn, record: &VolumeRecord, own: Own) -> Vec<String> {
    let name = &record.name;
    let is_open = turn.is_open(name);
    let in_words = |export: &ExportSpec| {
        let (uri, is_device) = (export.uri(name), export.is_device());
        // A file that the daemon before left has the users that it had then, but tells nobody how many.
        let is_kept = !is_open && turn.engine.is_kept(export);
        let clients = match is_open {
            true => turn.engine.clients(name, export),
            false => u64::from(is_kept && !is_device),
        };
        if !is_open && !is_kept {
            return None;
        }
        if clients == 0 && !is_device {
            return None;
        }
        let Some(path) = export.file() else {
            return Some(format!("{clients} client(s) use {uri} of {name}"));
        };
        let (volumes, devices) = stacked::users_of(turn, turn.engine.machine(), path);
        let others = users::users_of_file(turn.engine.machine(), path, is_device, &devices);
        if own == Own::StopsFirst && !volumes.is_empty() && others.is_empty() {
            return None;
        }
        let volumes =
            volumes.into_iter().map(|it| format!("volume {it} (`voltier stop {it}` first)"));
        match volumes.chain(others).collect::<Vec<_>>().join(", ") {
            known if !known.is_empty() => Some(format!("{uri} of {name} is in use by {known}")),
            _ if clients > 0 && is_device => Some(format!(
                "{uri} of {name} is in use by something that the host's tables do not show here (a mount in another \
                 namespace, a target of the kernel)"
            )),
            _ if clients > 0 => Some(format!("{uri} of {name} is open")),
            _ => None,
        }
    };
    record.exports.iter().filter_map(in_words).collect()
}

/// Refuses while somebody uses an export of a volume; `cut_off` is the command that does it all the same.
pub(crate) fn is_unused(
    turn: &mut Turn,
    record: &VolumeRecord,
    cut_off: &str,
) -> ControlResult<()> {
    refuse(&users_of(turn, record, Own::Counts), cut_off)
}

pub(crate) fn refuse(users: &[String], cut_off: &str) -> ControlResult<()> {
    if users.is_empty() {
        return Ok(());
    }
    Err(ControlError::in_use(format!(
        "{}; unmount and disconnect, or cut them off with `{cut_off}`: what they have not written is \
         lost then",
        users.join("; ")
    )))
}
