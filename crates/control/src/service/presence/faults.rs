//! Volumes and arrays that fail alone, by an assertion in the code that serves them, while the daemon lives
//! ([why](../../../../docs/adr/0043-a-panic-fails-one-volume.md)).
//!
//! Such a failure is a crash of one volume. Nothing is recorded, and the next start replays the log, or makes
//! parity match. A user starts it: a bug that comes back at once would come back for ever.

use crate::error::ControlError;
use crate::name::{ArrayName, VolumeName};
use crate::service::state::claims::Subject;
use crate::service::state::crash_wait::CRASH_TRIES;
use crate::service::state::live::{Live, LiveArray};
use crate::service::state::turn::Turn;

/// Shows volumes and arrays as failed that the engine has given up.
pub(crate) fn notice(service: &mut Turn) {
    let arrays: Vec<ArrayName> = service.live_arrays.keys().cloned().collect();
    for name in arrays {
        let Some(why) = service.engine.take_array_fault(&name) else { continue };
        let error = in_words(&why, &format!("voltier array start {name}"));
        service.engine.warn(&format!("array {name}: {error}"));
        service.crashed.insert(Subject::Array(name.clone()));
        service.live_arrays.insert(name, LiveArray { error, ..LiveArray::default() });
    }
    let volumes: Vec<VolumeName> = service.live.keys().cloned().collect();
    for name in volumes {
        let Some(why) = service.engine.take_fault(&name) else { continue };
        let error = ControlError::failed(in_words(&why, &format!("voltier start {name}")));
        service.crashed.insert(Subject::Volume(name.clone()));
        service.live.insert(name.clone(), Live::new());
        service.note_end(&name, error);
    }
}

fn in_words(why: &str, start: &str) -> String {
    format!(
        "{why}; the other volumes serve; `{start}` starts it as after a crash; please report this"
    )
}

/// Tries to open a volume or an array. After a failure alone, and after a stop that left requests behind, the
/// attempt is patient, as a start after a crash is. The drives are busy until they have ended these requests.
pub(crate) fn attempt(service: &mut Turn, is_patient: bool, open: impl FnOnce(&mut Turn)) {
    let before = service.busy_tries;
    if is_patient {
        service.busy_tries = CRASH_TRIES;
    }
    open(service);
    if is_patient {
        service.busy_tries = before;
    }
}
