//! Exports of open volumes.

use voltier_control::engine::Exports;
use voltier_control::{ControlResult, ExportAccess, ExportSpec, VolumeName};

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

    fn clear_dead(&self, export: &ExportSpec) {
        let is_kept = |file| self.keeping.get().is_some_and(|keeping| keeping.has(file));
        if !export.file().is_some_and(is_kept) {
            exports::clear_dead(export);
        }
    }

    fn end_kept_but(&self, awaited: &[ExportSpec]) {
        let files = awaited.iter().filter_map(ExportSpec::file).collect();
        self.keeping.get().into_iter().for_each(|keeping| keeping.end_all_but(&files));
    }

    fn is_kept(&self, export: &ExportSpec) -> bool {
        let keeping = self.keeping.get();
        keeping.zip(export.file()).is_some_and(|(keeping, file)| keeping.has(file))
    }

    fn end_kept(&self, export: &ExportSpec, why: &str) {
        if let (Some(keeping), Some(file)) = (self.keeping.get(), export.file())
            && keeping.has(file)
        {
            keeping.end(file, why);
            exports::clear_dead(export);
        }
    }

    fn keep_nothing(&self) {
        self.keeping.get().into_iter().for_each(|keeping| keeping.stop());
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
