//! `voltier import`: what the drives say, put on record again.

use voltier_cli::output::{print, print_json};
use voltier_control::{ControlResult, ImportOrder, ImportReport, ImportedArray, ImportedVolume};

use crate::args::Import;
use crate::request::device;
use crate::session::Session;

/// Does what the arguments say.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(args: &Import, session: &Session<'_>) -> ControlResult<()> {
    let order = ImportOrder {
        devices: args.devices.iter().map(|text| device(text)).collect::<ControlResult<_>>()?,
        name: args.name.as_ref().map(|name| name.parse()).transpose()?,
        changed_origin: args.changed_origin,
        dry_run: args.dry_run,
    };
    let report = session.client()?.import(order)?;
    if session.json {
        return print_json(&report);
    }
    print(&text_of(&report))?;
    for note in &report.notes {
        eprintln!("voltier: {note}");
    }
    Ok(())
}

fn text_of(report: &ImportReport) -> String {
    let done = if report.dry_run { "would be imported" } else { "imported" };
    let arrays = report.arrays.iter().map(|array| array_line(array, done));
    let volumes = report.volumes.iter().map(|volume| volume_line(volume, done, report.dry_run));
    arrays.chain(volumes).collect()
}

fn array_line(array: &ImportedArray, done: &str) -> String {
    let ImportedArray { name, level, members, journal, spares, .. } = array;
    let there = members.iter().flatten().count();
    let journal = journal.as_ref().map_or_else(String::new, |it| format!(", journal {it}"));
    let spares = match spares.len() {
        0 => String::new(),
        count => format!(", {count} spare{}", if count == 1 { "" } else { "s" }),
    };
    format!(
        "array {name}: {done} (level {level}, {there} of {} members{journal}{spares})\n",
        members.len()
    )
}

fn volume_line(volume: &ImportedVolume, done: &str, is_dry_run: bool) -> String {
    let ImportedVolume { name, origin, ssd, mode, policy, dirty_lines, .. } = volume;
    let since = match (is_dry_run, volume.stopped_in_order) {
        (false, _) | (true, true) => "",
        (true, false) => " at the last checkpoint, not stopped cleanly since",
    };
    let lines = if *dirty_lines == 1 { "line" } else { "lines" };
    format!(
        "{name}: {done} ({origin}, {mode} {policy} on {ssd}, {dirty_lines} dirty {lines}{since})\n"
    )
}
