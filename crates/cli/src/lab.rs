//! `voltier lab`: the laboratory.

use voltier_control::ControlResult;
use voltier_lab::twin::Extent;

use crate::lab_args::{LabVerb, TwinArgs};
use crate::run::print;

/// Runs a verb of the laboratory.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(verb: &LabVerb, json: bool) -> ControlResult<()> {
    match verb {
        LabVerb::Twin(args) => twin(args, json),
    }
}

fn twin(args: &TwinArgs, json: bool) -> ControlResult<()> {
    let extent = if args.quick { Extent::Quick } else { Extent::Full };
    let report = args.name.run(extent);
    print(&if json { report.json() } else { report.text() })
}
