//! Opening and closing exports, and trying again those that could not be opened.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::apart::apart;
use super::live::{ClosedExport, now};
use super::stops;
use super::turn::Turn;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::VolumeRecord;

/// The pause after the first failed attempt to open an export; it doubles from one to the next.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl<E: Engine> Turn<E> {
    pub(super) fn export(
        &mut self,
        name: &VolumeName,
        export: ExportSpec,
        insecure: bool,
        access: Option<ExportAccess>,
    ) -> ControlResult<Response> {
        let mut record = self.open_record(name)?;
        let uri = export.uri(name);
        check_access(&export, access.as_ref())?;
        let mut is_open = record.exports.contains(&export) && !self.is_closed(name, &export);
        if is_open && let Some(why) = self.engine.export_trouble(name, &export) {
            self.close_unreachable(&record, &export, why)?;
            is_open = false;
        }
        if is_open && access.is_some() && record.access_of(&export) != access.as_ref() {
            let before = record.access_of(&export);
            return Err(ControlError::failed(format!(
                "{uri} is open already with {}; `voltier unexport {name} {}`, then export it again",
                before.map_or_else(|| "mode 0600".to_owned(), ToString::to_string),
                export.option()
            )));
        }
        if is_open {
            return Ok(self.volume(name));
        }
        if export.leaves_host() && !insecure {
            return Err(ControlError::usage(format!(
                "{uri} would let every host that reaches the port read and write {name}: there is no \
                 password and no encryption; export a Unix socket and forward that (ssh -L), or say \
                 --insecure if only trusted hosts reach the port"
            )));
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
        let access = access.or_else(|| record.access_of(&export).cloned());
        let export = apart(self).export(name, &export, access.as_ref())?;
        record = self.record(name)?;
        record.forget_export(&export);
        record.exports.push(export.clone());
        record.export_access.extend(export.path().map(PathBuf::from).zip(access));
        if let Err(error) = self.registry.put(record) {
            let closed = apart(self).unexport(name, &export, false);
            self.note(name, closed);
            return Err(error);
        }
        if let Some(live) = self.live.get_mut(name) {
            live.closed_exports.retain(|closed| closed.export != export);
        }
        Ok(self.volume(name))
    }

    /// Closes an open export through which no client can come any more. The export stays on record, to be
    /// opened again.
    fn close_unreachable(
        &mut self,
        record: &VolumeRecord,
        export: &ExportSpec,
        why: String,
    ) -> ControlResult<()> {
        let name = &record.name;
        let closing = VolumeRecord { exports: vec![export.clone()], ..record.clone() };
        stops::is_unused(self, &closing, &format!("voltier unexport {name} --now"))?;
        apart(self).unexport(name, export, false)?;
        self.try_later(name, export, why);
        Ok(())
    }

    /// Opens what the record of a volume says. Those that cannot be opened now are tried again later.
    pub(super) fn open_exports(&mut self, record: &VolumeRecord) {
        let name = &record.name;
        for export in &record.exports {
            if export.leaves_host() {
                let line = format!(
                    "{} has no password and no encryption: every host that reaches the port reads and \
                     writes the volume",
                    export.uri(name)
                );
                self.log(name, &line);
            }
            let access = record.access_of(export);
            if let Err(error) = self.again(|service| apart(service).export(name, export, access)) {
                self.log(name, &error.message);
                self.try_later(name, export, error.message);
            }
        }
    }

    /// Notes that an export could not be opened; the watch tries again.
    pub(super) fn try_later(&mut self, name: &VolumeName, export: &ExportSpec, error: String) {
        if let Some(live) = self.live.get_mut(name) {
            let (pause, next) = (FIRST_PAUSE, now() + FIRST_PAUSE);
            live.closed_exports.push(ClosedExport { export: export.clone(), error, pause, next });
        }
    }

    /// The volumes with exports whose pause is over.
    pub(super) fn due_exports(&self, now: Instant) -> Vec<VolumeName> {
        let open = self.live.iter().filter(|(_, live)| live.is_open);
        let due = open.filter(|(_, live)| live.closed_exports.iter().any(|it| it.next <= now));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Tries again to open the exports of a volume whose pause is over: their address may be there now.
    pub(super) fn try_exports_again(&mut self, name: &VolumeName, now: Instant) {
        let Some(live) = self.live.get(name).filter(|live| live.is_open) else { return };
        let due = live.closed_exports.iter().filter(|closed| closed.next <= now);
        let due: Vec<ExportSpec> = due.map(|closed| closed.export.clone()).collect();
        for export in due {
            self.try_export_again(name, &export, now);
        }
    }

    /// How soon to try exports again, if there are any to try.
    pub(super) fn next_export(&self, now: Instant) -> Option<Duration> {
        let open = self.live.values().filter(|live| live.is_open);
        let next = open.flat_map(|live| &live.closed_exports).map(|closed| closed.next).min();
        next.map(|next| next.saturating_duration_since(now))
    }

    fn try_export_again(&mut self, name: &VolumeName, export: &ExportSpec, now: Instant) {
        let access = self.registry.find(name).and_then(|record| record.access_of(export)).cloned();
        let opened = apart(self).export(name, export, access.as_ref());
        let Some(live) = self.live.get_mut(name) else { return };
        let line = match opened {
            Ok(_) => {
                live.closed_exports.retain(|closed| closed.export != *export);
                Some(format!("{} is open", export.uri(name)))
            }
            Err(error) => {
                let closed = live.closed_exports.iter_mut().find(|it| it.export == *export);
                let Some(closed) = closed else { return };
                closed.pause = (closed.pause * 2).min(PAUSE_MAX);
                closed.next = now + closed.pause;
                let before = std::mem::replace(&mut closed.error, error.message.clone());
                (before != error.message).then_some(error.message)
            }
        };
        if let Some(line) = line {
            self.log(name, &line);
        }
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
                apart(self).unexport(&name, export, cut_off)?;
            }
            *record = self.record(&name)?;
            record.forget_export(export);
            self.registry.put(record.clone())?;
            if let Some(live) = self.live.get_mut(&name) {
                live.closed_exports.retain(|closed| closed.export != *export);
            }
        }
        Ok(())
    }

    /// Whether a recorded export could not be opened.
    pub(super) fn is_closed(&self, name: &VolumeName, export: &ExportSpec) -> bool {
        self.live
            .get(name)
            .is_some_and(|live| live.closed_exports.iter().any(|it| it.export == *export))
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

/// Refuses an access that the export cannot have. The command line checks words too; another client of the
/// control socket may not.
fn check_access(export: &ExportSpec, access: Option<&ExportAccess>) -> ControlResult<()> {
    let Some(access) = access else { return Ok(()) };
    if export.path().is_none() {
        return Err(ControlError::usage(
            "a TCP port has no mode, owner or group; export a Unix socket (--nbd unix:PATH) for them",
        ));
    }
    access.check()
}
