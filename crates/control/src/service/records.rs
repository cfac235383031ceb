//! Records that could not be written: tried again until the state folder takes them.

use super::{Service, faults, late};
use crate::engine::Engine;
use crate::error::ControlError;

impl<E: Engine> Service<E> {
    /// Records what the data path has done by itself, and what could not be recorded before. Whether all of
    /// it is on record: clients may wait for that, so what failed is tried again.
    pub(crate) fn record_news(&mut self) -> bool {
        let is_recorded = self.record_what_happened();
        if let Some(line) = self.registry.trouble().map(line_of)
            && !std::mem::replace(&mut self.is_troubled, true)
        {
            self.engine.warn(&line);
        }
        if !self.is_troubled {
            return is_recorded;
        }
        if self.registry.check_room().is_err() || !self.record_what_happened() {
            return false;
        }
        self.is_troubled = false;
        self.engine.log("the state folder takes records again");
        self.open_unrecorded();
        self.registry.trouble().is_none()
    }

    /// Shows what failed alone, and records lost SSDs and members. Whether all is on record.
    pub(super) fn record_what_happened(&mut self) -> bool {
        faults::notice(self);
        let are_ssds_recorded = self.notice_lost_ssds();
        self.notice_array_events();
        are_ssds_recorded && self.registry.trouble().is_none()
    }

    /// Opens the volumes that are not open for want of a record.
    fn open_unrecorded(&mut self) {
        for record in self.registry.volumes().to_vec() {
            let waits = self.live.get(&record.name).is_some_and(|live| live.is_unrecorded);
            if waits {
                late::bring_up(self, &record);
            }
        }
    }

    /// Has an error of `show` say that the state folder takes no records, while that is so.
    pub(super) fn add_trouble(&self, error: &mut String) {
        let Some(trouble) = self.registry.trouble() else { return };
        // An array or a volume that waits for its record says the same.
        if error.is_empty() || *error == trouble.message {
            *error = line_of(trouble);
        } else if !error.contains(&trouble.message) {
            *error = format!("{error}; {}", line_of(trouble));
        }
    }
}

fn line_of(trouble: &ControlError) -> String {
    format!("the state folder takes no records: {trouble}")
}
