//! Why an array takes no changes, in words.

use voltier_block::IoError;
use voltier_control::ArrayName;

/// Why an array that is assembled takes no changes, and what becomes of that.
pub(super) fn failure_in_words(name: &ArrayName, error: IoError) -> String {
    match error {
        IoError::Gone => format!(
            "more members are lost than its level allows, and what needs them fails; connect them again: then \
             it is assembled anew by itself, or by `voltier array start {name}`"
        ),
        error => format!(
            "its members refuse writes ({error}): writes fail until they take some again; that is tried \
             every second, and all that was acknowledged is kept; see `dmesg`"
        ),
    }
}
