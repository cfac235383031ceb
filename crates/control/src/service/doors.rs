//! Opening and closing doors.

use super::Service;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::VolumeRecord;

impl<E: Engine> Service<E> {
    pub(super) fn export(
        &mut self,
        name: &VolumeName,
        export: ExportSpec,
    ) -> ControlResult<Response> {
        let mut record = self.open_record(name)?;
        let is_open = record.exports.contains(&export) && !self.is_closed(name, &export);
        if is_open {
            return Ok(self.volume(name));
        }
        if self.jobs.running(name).is_some_and(|(_, purpose)| purpose.verb() == "delete") {
            return Err(ControlError::failed(format!("{name} is being deleted; export another")));
        }
        if let Some(other) = self.holder_of(name, &export) {
            return Err(ControlError::failed(format!(
                "{} is a door of volume {other}; choose another address",
                export.uri(&other)
            )));
        }
        let export = self.engine.export(name, &export)?;
        record.exports.retain(|known| *known != export);
        record.exports.push(export.clone());
        if let Err(error) = self.registry.put(record) {
            let closed = self.engine.unexport(name, &export);
            self.note(name, closed);
            return Err(error);
        }
        if let Some(live) = self.live.get_mut(name) {
            live.closed_doors.retain(|(known, _)| *known != export);
        }
        Ok(self.volume(name))
    }

    pub(super) fn unexport(
        &mut self,
        name: &VolumeName,
        export: Option<&ExportSpec>,
    ) -> ControlResult<Response> {
        let mut record = self.record(name)?;
        let doors = match export {
            None => record.exports.clone(),
            Some(one) if record.exports.contains(one) => vec![one.clone()],
            Some(one) => {
                let known: Vec<String> =
                    record.exports.iter().map(|export| export.uri(name)).collect();
                let known =
                    if known.is_empty() { "it has none".to_owned() } else { known.join(", ") };
                return Err(ControlError::failed(format!(
                    "{name} has no export {}; its exports: {known}",
                    one.uri(name)
                )));
            }
        };
        self.close_these(&mut record, &doors)?;
        Ok(self.volume(name))
    }

    /// Closes every door of a volume for good.
    pub(super) fn close_doors(&mut self, record: &mut VolumeRecord) -> ControlResult<()> {
        let doors = record.exports.clone();
        self.close_these(record, &doors)
    }

    fn close_these(
        &mut self,
        record: &mut VolumeRecord,
        doors: &[ExportSpec],
    ) -> ControlResult<()> {
        let name = record.name.clone();
        // Files first: one that is in use refuses, and then nothing has changed.
        let (files, others): (Vec<_>, Vec<_>) =
            doors.iter().partition(|door| matches!(door, ExportSpec::Fuse(_)));
        for door in files.into_iter().chain(others) {
            if self.is_open(&name) && !self.is_closed(&name, door) {
                self.engine.unexport(&name, door)?;
            }
            record.exports.retain(|known| known != door);
            self.registry.put(record.clone())?;
            if let Some(live) = self.live.get_mut(&name) {
                live.closed_doors.retain(|(known, _)| known != door);
            }
        }
        Ok(())
    }

    /// Refuses while clients are connected.
    pub(super) fn no_clients(&mut self, record: &VolumeRecord) -> ControlResult<()> {
        let name = &record.name;
        if !self.is_open(name) {
            return Ok(());
        }
        for door in &record.exports {
            let clients = self.engine.clients(name, door);
            if clients > 0 {
                return Err(ControlError::failed(format!(
                    "{clients} client(s) use {}; disconnect them, \
                     or cut them off with `voltier unexport {name}`",
                    door.uri(name)
                )));
            }
        }
        Ok(())
    }

    /// Whether a recorded door could not be opened.
    pub(super) fn is_closed(&self, name: &VolumeName, door: &ExportSpec) -> bool {
        self.live
            .get(name)
            .is_some_and(|live| live.closed_doors.iter().any(|(known, _)| known == door))
    }

    /// Another volume that has this very door.
    fn holder_of(&self, name: &VolumeName, export: &ExportSpec) -> Option<VolumeName> {
        self.registry
            .volumes()
            .iter()
            .find(|volume| volume.name != *name && volume.exports.contains(export))
            .map(|volume| volume.name.clone())
    }
}
