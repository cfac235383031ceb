//! Exports of open volumes.

use voltier_control::engine::Exports;
use voltier_control::{ControlResult, ExportAccess, ExportSpec, VolumeName};

use crate::HANDOVER;
use crate::core_engine::CoreEngine;
use crate::exports;

impl Exports for CoreEngine {
    fn export(
        &self,
        name: &VolumeName,
        export: &ExportSpec,
        access: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        let home = self.homes.volume(name)?;
        // Memory ends with the daemon: a file over it must not seem to live on.
        let keeping = self.keeping.get().filter(|_| !home.is_volatile).map(|it| &**it);
        let keeping = keeping.map(|keeping| (keeping, home.uuid));
        let opened = exports::open(&home.way, name, export, access, &self.budget, keeping)?;
        let real = opened.spec.clone();
        home.exports.get().push(opened);
        Ok(real)
    }

    fn check_export(&self, export: &ExportSpec) -> ControlResult<()> {
        exports::check(export)
    }

    fn unexport(&self, name: &VolumeName, export: &ExportSpec, cut_off: bool) -> ControlResult<()> {
        let Some(home) = self.homes.find(name) else { return Ok(()) };
        let taken = {
            let mut exports = home.exports.get();
            let at = exports.iter().position(|open| open.spec == *export);
            at.map(|at| exports.swap_remove(at))
        };
        let Some(mut open) = taken else { return Ok(()) };
        let closed = open.export.close(cut_off);
        if closed.is_err() {
            home.exports.get().push(open);
        }
        closed
    }

    fn pass_on(&self, name: &VolumeName, export: &ExportSpec) {
        let (Some(home), Some(keeping)) = (self.homes.find(name), self.keeping.get()) else {
            return;
        };
        let taken = {
            let mut exports = home.exports.get();
            let at = exports.iter().position(|open| open.spec == *export);
            at.map(|at| exports.swap_remove(at))
        };
        let passed = taken.map_or(Ok(()), |mut open| open.export.pass_on(keeping, home.uuid));
        if let Err(why) = passed {
            tracing::warn!("{name}: users of {} are cut off: {why}", export.uri(name));
        }
    }

    fn clear_dead(&self, export: &ExportSpec) {
        let is_kept = |file| self.keeping.get().is_some_and(|keeping| keeping.has(file));
        if !export.file().is_some_and(is_kept) {
            exports::clear_dead(export);
        }
    }

    fn end_kept_but(&self, awaited: &[ExportSpec]) {
        let Some(keeping) = self.keeping.get() else { return };
        keeping.end_all_but(&awaited.iter().filter_map(ExportSpec::file).collect());
        let addresses: Vec<_> = awaited.iter().filter_map(exports::listens_at).collect();
        keeping.end_sockets_but(&addresses);
    }

    fn is_kept(&self, export: &ExportSpec) -> bool {
        let Some(keeping) = self.keeping.get() else { return false };
        let has_sockets = exports::listens_at(export).is_some_and(|at| keeping.has_sockets(&at));
        has_sockets || export.file().is_some_and(|file| keeping.has(file))
    }

    fn end_kept(&self, export: &ExportSpec, why: &str) {
        let Some(keeping) = self.keeping.get() else { return };
        if let Some(at) = exports::listens_at(export) {
            keeping.end_sockets(&at);
        }
        if let Some(file) = export.file()
            && keeping.has(file)
        {
            keeping.end(file, why);
            exports::clear_dead(export);
        }
    }

    fn keep_nothing(&self) {
        self.keeping.get().into_iter().for_each(|keeping| keeping.stop());
    }

    fn handover(&self) -> u32 {
        HANDOVER
    }

    fn begin_to_pass(&self) {
        self.keeping.get().into_iter().for_each(|keeping| keeping.begin_to_pass());
    }

    fn passed(&self) -> ControlResult<Vec<(String, Option<String>)>> {
        self.keeping.get().map_or_else(|| Ok(Vec::new()), |keeping| keeping.passed())
    }

    fn export_trouble(&self, name: &VolumeName, export: &ExportSpec) -> Option<String> {
        let home = self.homes.find(name)?;
        let exports = home.exports.get();
        exports.iter().find(|open| open.spec == *export)?.export.trouble()
    }

    fn clients(&self, name: &VolumeName, export: &ExportSpec) -> u64 {
        let Some(home) = self.homes.find(name) else { return 0 };
        let exports = home.exports.get();
        let open = exports.iter().find(|open| open.spec == *export);
        open.map_or(0, |open| open.export.clients())
    }
}
