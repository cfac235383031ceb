//! Opening and closing exports.

use super::{Service, stops};
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
                "{} is an export of volume {other}; choose another address",
                export.uri(&other)
            )));
        }
        let export = self.engine.export(name, &export)?;
        record.exports.retain(|known| *known != export);
        record.exports.push(export.clone());
        if let Err(error) = self.registry.put(record) {
            let closed = self.engine.unexport(name, &export, false);
            self.note(name, closed);
            return Err(error);
        }
        if let Some(live) = self.live.get_mut(name) {
            live.closed_exports.retain(|(known, _)| *known != export);
        }
        Ok(self.volume(name))
    }

    pub(super) fn unexport(
        &mut self,
        name: &VolumeName,
        export: Option<&ExportSpec>,
        now: bool,
    ) -> ControlResult<Response> {
        let mut record = self.record(name)?;
        let exports = match export {
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
        if !now {
            let closing = VolumeRecord { exports: exports.clone(), ..record.clone() };
            stops::is_unused(self, &closing, &format!("voltier unexport {name} --now"))?;
        }
        self.close_these(&mut record, &exports, now)?;
        Ok(self.volume(name))
    }

    /// Closes every export of a volume for good.
    pub(super) fn close_exports(&mut self, record: &mut VolumeRecord) -> ControlResult<()> {
        let exports = record.exports.clone();
        self.close_these(record, &exports, false)
    }

    fn close_these(
        &mut self,
        record: &mut VolumeRecord,
        exports: &[ExportSpec],
        cut_off: bool,
    ) -> ControlResult<()> {
        let name = record.name.clone();
        if cut_off {
            stops::sync_above(self, &name, exports);
        }
        // Files first: one that is in use refuses, and then nothing has changed.
        let (files, others): (Vec<_>, Vec<_>) =
            exports.iter().partition(|export| matches!(export, ExportSpec::Fuse(_)));
        for export in files.into_iter().chain(others) {
            if self.is_open(&name) && !self.is_closed(&name, export) {
                self.engine.unexport(&name, export, cut_off)?;
            }
            record.exports.retain(|known| known != export);
            self.registry.put(record.clone())?;
            if let Some(live) = self.live.get_mut(&name) {
                live.closed_exports.retain(|(known, _)| known != export);
            }
        }
        Ok(())
    }

    /// Whether a recorded export could not be opened.
    pub(super) fn is_closed(&self, name: &VolumeName, export: &ExportSpec) -> bool {
        self.live
            .get(name)
            .is_some_and(|live| live.closed_exports.iter().any(|(known, _)| known == export))
    }

    /// Another volume that has this very export.
    fn holder_of(&self, name: &VolumeName, export: &ExportSpec) -> Option<VolumeName> {
        self.registry
            .volumes()
            .iter()
            .find(|volume| volume.name != *name && volume.exports.contains(export))
            .map(|volume| volume.name.clone())
    }
}
