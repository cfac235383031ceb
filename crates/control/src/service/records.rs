//! Records that could not be written: tried again until the state folder takes them.

use super::turn::Turn;
use super::{faults, subjects};
use crate::engine::Engine;
use crate::error::ControlError;
use crate::records::{Desired, VolumeRecord};

impl<E: Engine> Turn<E> {
    /// Records what the data path has done by itself, and what could not be recorded before. Whether all of
    /// it is on record: clients may wait for that, so what failed is tried again.
    pub(super) fn record_news(&mut self) -> bool {
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
        self.record_stays();
        // Volumes that are not open for want of a record are opened by the next look for devices.
        self.registry.trouble().is_none()
    }

    /// Shows what failed alone, and records lost SSDs and members. Whether all is on record.
    pub(super) fn record_what_happened(&mut self) -> bool {
        faults::notice(self);
        let are_ssds_recorded = self.notice_lost_ssds();
        let are_arrays_recorded = self.record_array_events();
        are_ssds_recorded && are_arrays_recorded && self.registry.trouble().is_none()
    }

    /// Puts on record that volumes stay whose detach or delete has failed while no record could be written.
    fn record_stays(&mut self) {
        for record in self.registry.volumes().to_vec() {
            let is_leaving = matches!(record.desired, Desired::Detaching | Desired::Deleting);
            let subjects = subjects::of_volume(&self.registry, &record.name);
            let is_under_way = self.jobs.running(&record.name).is_some()
                || self.claims.taken(&subjects, self.own()).is_some();
            if is_leaving && self.is_open(&record.name) && !is_under_way {
                let name = record.name.clone();
                let stays = self.registry.put(VolumeRecord { desired: Desired::Serving, ..record });
                self.note(&name, stays);
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
