//! State of arrays for people: a table of all, or everything about one.

use std::fmt::Write;

use voltier_control::{ArrayState, ArrayStatus, MemberStatus, TaskStatus, format_size};

use crate::table::columns;

const HEAD: [&str; 8] =
    ["NAME", "STATE", "LEVEL", "SIZE", "CHUNK", "MEMBERS", "MAY LOSE", "USED BY"];

/// One row per array.
pub(crate) fn all(arrays: &[ArrayStatus]) -> String {
    if arrays.is_empty() {
        return "no arrays; make one with `voltier array create NAME --level 6 DEV...`\n"
            .to_owned();
    }
    let mut rows: Vec<[String; 8]> = vec![HEAD.map(str::to_owned)];
    rows.extend(arrays.iter().map(row));
    let mut text = columns(&rows);
    for array in arrays {
        for problem in problems(array) {
            let _ = writeln!(text, "{}: {problem}", array.name);
        }
    }
    text
}

fn row(array: &ArrayStatus) -> [String; 8] {
    let online = array.members.iter().filter(|member| member.state == "online").count();
    [
        array.name.to_string(),
        state(array.state).to_owned(),
        level(array),
        format_size(array.size_bytes),
        format_size(array.chunk_bytes.into()),
        format!("{online} of {}", array.members.len()),
        array.may_lose.to_string(),
        array.used_by.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
    ]
}

/// Everything about one array.
pub(crate) fn one(array: &ArrayStatus) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<12} {value}");
    };
    line("name", array.name.to_string());
    line("state", state(array.state).to_owned());
    for problem in problems(array) {
        line("problem", problem.to_owned());
    }
    line("size", format!("{} ({} bytes)", format_size(array.size_bytes), array.size_bytes));
    line("level", level(array));
    line("chunk", format_size(array.chunk_bytes.into()));
    line("consistency", array.consistency.to_string());
    line(
        "used by",
        array.used_by.as_ref().map_or_else(|| "nobody".into(), |it| format!("volume {it}")),
    );
    line("may lose", format!("{} more member(s), whichever they are", array.may_lose));
    for member in &array.members {
        line(&format!("member {}", member.index), member_text(member));
    }
    if let Some(journal) = &array.journal_device {
        let size = match journal.size_bytes {
            0 => String::new(),
            bytes => format!(", {}", format_size(bytes)),
        };
        line("journal", format!("{}{size} ({})", journal.path, journal.state));
    }
    for spare in &array.spares {
        line("spare", spare.clone());
    }
    line("rebuild", task(&array.rebuild));
    line("scrub", format!("{}; {}", task(&array.scrub), scrub_found(array)));
    let counts = &array.counts;
    line(
        "reads",
        format!("{}, {} computed from other members", counts.reads, counts.degraded_reads),
    );
    line("writes", counts.writes.to_string());
    line(
        "stripes",
        format!(
            "{} whole, {} reconstructed, {} modified, {} recovered",
            counts.full_stripe_writes,
            counts.reconstruct_writes,
            counts.modify_writes,
            counts.recover_writes
        ),
    );
    line("member I/O", format!("{} reads, {} writes", counts.member_reads, counts.member_writes));
    line("repairs", counts.repairs.to_string());
    line("uuid", array.uuid.clone());
    text
}

fn task(task: &TaskStatus) -> String {
    let pace = format!(
        "priority {}, floor {}/s",
        task.pace.priority.name(),
        format_size(task.pace.floor_bytes_per_second)
    );
    if !task.running {
        return format!("at rest ({pace})");
    }
    let left = task.eta_seconds.map_or_else(|| "?".to_owned(), |seconds| seconds.to_string());
    format!(
        "{} of {}, {}/s, {left} s left ({pace})",
        format_size(task.done_bytes),
        format_size(task.total_bytes),
        format_size(task.bytes_per_second)
    )
}

/// What the last scrub found.
pub(crate) fn scrub_found(array: &ArrayStatus) -> String {
    let found = &array.scrub_found;
    let mut text = format!(
        "{} blocks did not match, {} located, {} repaired",
        found.mismatched_blocks, found.located_blocks, found.repaired_blocks
    );
    if found.unreadable_stripes > 0 {
        let _ = write!(
            text,
            ", {} stripes with medium errors, {} of them lost",
            found.unreadable_stripes, found.lost_stripes
        );
    }
    if found.skipped_bytes > 0 {
        let _ = write!(text, ", {} left out", format_size(found.skipped_bytes));
    }
    text
}

fn member_text(member: &MemberStatus) -> String {
    let path = if member.path.is_empty() { "?" } else { &member.path };
    if member.size_bytes == 0 {
        return format!("{path} ({})", member.state);
    }
    format!("{path} ({}, {})", format_size(member.size_bytes), member.state)
}

/// What is wrong: the error, and each device that was left out.
fn problems(array: &ArrayStatus) -> impl Iterator<Item = String> {
    let error = Some(array.error.clone()).filter(|error| !error.is_empty());
    let lost = array.journal_device.as_ref().filter(|journal| journal.state == "lost");
    let lost = lost.map(|journal| {
        let (path, name) = (&journal.path, &array.name);
        format!(
            "its journal device {path} was given up and the journal is on the members; \
             `voltier array set {name} journal=DEV` (or journal=members)"
        )
    });
    error.into_iter().chain(array.left_out.iter().cloned()).chain(lost)
}

fn level(array: &ArrayStatus) -> String {
    match array.group_members {
        0 => array.level.clone(),
        group => format!("{} in groups of {group}", array.level),
    }
}

fn state(state: ArrayState) -> &'static str {
    match state {
        ArrayState::Running => "running",
        ArrayState::Degraded => "degraded",
        ArrayState::Failed => "failed",
    }
}
