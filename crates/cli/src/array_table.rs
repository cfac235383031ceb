//! State of arrays for people: a table of all, or everything about one.

use std::fmt::Write;

use voltier_control::{
    ArrayDetail, ArrayState, ByteRange, PlaceStatus, PoolStatus, ReshapeDetail, ScrubFound,
    ScrubTimes, Smart, TaskStatus, format_size, seconds_text, wait_text,
};

use crate::rates_table;
use crate::smart_text;
use crate::table::{columns, rows, waits_for};

const HEAD: [&str; 9] =
    ["NAME", "STATE", "HEALTH", "LEVEL", "SIZE", "CHUNK", "MEMBERS", "MAY LOSE", "USED BY"];

/// One row per array.
pub(crate) fn all(arrays: &[ArrayDetail]) -> String {
    if arrays.is_empty() {
        return "no arrays; make one with `voltier array create NAME --level 6 DEV...`\n"
            .to_owned();
    }
    let mut rows: Vec<[String; 9]> = vec![HEAD.map(str::to_owned)];
    rows.extend(arrays.iter().map(row));
    let mut text = columns(&rows);
    for array in arrays {
        for problem in problems(array) {
            let _ = writeln!(text, "{}: {problem}", array.name);
        }
        if !array.under_way.is_empty() {
            let _ = writeln!(text, "{}: under way: {}", array.name, array.under_way);
        }
    }
    text
}

fn row(array: &ArrayDetail) -> [String; 9] {
    let online = array.members.iter().filter(|member| member.state == "online").count();
    [
        array.name.to_string(),
        state_of(array),
        array.health.state.word().to_owned(),
        level(array),
        format_size(array.size_bytes),
        format_size(array.chunk_bytes.into()),
        format!("{online} of {}", array.members.len()),
        array.may_lose.to_string(),
        array.used_by.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
    ]
}

/// Everything about one array.
pub(crate) fn one(array: &ArrayDetail) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<12} {value}");
    };
    line("name", array.name.to_string());
    line("state", state_of(array));
    line("health", array.health.state.word().to_owned());
    for problem in problems(array) {
        line("problem", problem);
    }
    if !array.waits_for.is_empty() {
        line("waits for", waits_for(&array.waits_for, array.waits_seconds));
    }
    if !array.under_way.is_empty() {
        line("under way", array.under_way.clone());
    }
    for found in &array.moved {
        line("moved", found.clone());
    }
    line("size", format!("{} ({} bytes)", format_size(array.size_bytes), array.size_bytes));
    line("level", level(array));
    line("chunk", format_size(array.chunk_bytes.into()));
    line("consistency", array.consistency.to_string());
    line("integrity", array.integrity.to_string());
    line(
        "used by",
        array.used_by.as_ref().map_or_else(|| "no volume".into(), |it| format!("volume {it}")),
    );
    line("may lose", may_lose(array.may_lose));
    for member in &array.members {
        line(&format!("member {}", member.index), member_text(member));
        health_lines(&member.path, &member.smart, &mut line);
    }
    beside_members(array, &mut line);
    line("limits", limits(array));
    line("rebuild", task(&array.rebuild));
    if let Some(reshape) = &array.reshape {
        line("grows", moved(reshape));
    }
    line("scrub", format!("{}; {}", task(&array.scrub), scrub_found(&array.scrub_found)));
    line("scrubs", scrubs(&array.scrub_times));
    if let Some(recent) = &array.recent {
        line("clients", rates_table::in_words(recent));
    }
    let counts = &array.counts;
    line(
        "reads",
        format!("{}, {} computed from other members", counts.reads, counts.degraded_reads),
    );
    line("writes", counts.writes.to_string());
    line(
        "stripes",
        format!(
            "{} full, {} reconstructed, {} modified, {} recovered",
            counts.full_stripe_writes,
            counts.reconstruct_writes,
            counts.modify_writes,
            counts.recover_writes
        ),
    );
    line("merging", merging(array));
    line("member I/O", format!("{} reads, {} writes", counts.member_reads, counts.member_writes));
    rows(counts, &mut line);
    line("uuid", array.uuid.clone());
    text
}

fn may_lose(members: u32) -> String {
    match members {
        0 => "no more members".to_owned(),
        1 => "any 1 more member".to_owned(),
        members => format!("any {members} more members"),
    }
}

/// The lines of the devices of an array that are no members.
fn beside_members(array: &ArrayDetail, line: &mut impl FnMut(&str, String)) {
    if let Some(journal) = &array.journal_device {
        let size = match journal.size_bytes {
            0 => String::new(),
            bytes => format!(", {}", format_size(bytes)),
        };
        line("journal", format!("{}{size} ({})", journal.path, journal.state));
        health_lines(&journal.path, &journal.smart, line);
    }
    for spare in &array.spares {
        line("spare", spare.clone());
        for it in array.spares_smart.iter().filter(|it| it.path == *spare) {
            health_lines(spare, &it.smart, line);
        }
    }
    if array.spares.is_empty() && array.spare_pool.is_none() {
        line("spare", "none".to_owned());
    }
    for drive in &array.failed_drives {
        let (member, since) = (drive.member, drive.since.to_the_second());
        line("failed drive", format!("{}, member {member}, lost on {since} UTC", drive.path));
    }
    if let Some(pool) = &array.spare_pool {
        let waiting = match array.pool_spares.len() {
            0 => "empty".to_owned(),
            _ => array.pool_spares.join(", "),
        };
        line("spare pool", format!("{pool} ({waiting})"));
    }
}

/// What the drives of the line above say of themselves.
fn health_lines(path: &str, smart: &[Smart], line: &mut impl FnMut(&str, String)) {
    for health in smart_text::lines(path, smart) {
        line("  health", health);
    }
}

fn moved(reshape: &ReshapeDetail) -> String {
    let ReshapeDetail { from_members, to_members, .. } = reshape;
    let after = format_size(reshape.size_bytes_after);
    let mut text =
        format!("{from_members} to {to_members} members, then {after}: {}", task(&reshape.task));
    if let Some(wait) = &reshape.waits_for {
        text += &format!("; waits for {}", wait.replace('_', " "));
    } else if let Some(error) = &reshape.error {
        text += &format!("; {error}");
    }
    text
}

fn task(task: &TaskStatus) -> String {
    let pace = format!(
        "priority {}, floor {}/s",
        task.pace.priority.name(),
        format_size(task.pace.floor_bytes_per_second)
    );
    if !task.running {
        return format!("idle ({pace})");
    }
    let left = task.eta_seconds.map_or_else(|| "?".to_owned(), |seconds| seconds.to_string());
    format!(
        "{} of {}, {}/s, {left} s left ({pace})",
        format_size(task.done_bytes),
        format_size(task.total_bytes),
        format_size(task.bytes_per_second)
    )
}

/// When scrubs begin by themselves, and what the last one found that was complete.
fn scrubs(times: &ScrubTimes) -> String {
    let last = times.last.map_or_else(
        || "none was complete yet".to_owned(),
        |last| {
            format!("the last one ended {}: {}", last.at.to_the_second(), scrub_found(&last.found))
        },
    );
    let next = match times.next {
        Some(next) => format!("; the next one is due {}", next.to_the_second()),
        None => String::new(),
    };
    match times.every_s {
        0 => format!("not by themselves; {last}"),
        every_s => format!("every {}; {last}{next}", seconds_text(every_s)),
    }
}

/// The findings of a scrub, in words.
pub(crate) fn scrub_found(found: &ScrubFound) -> String {
    let mut text = format!(
        "{} blocks did not match, {} located, {} repaired",
        found.mismatched_blocks, found.located_blocks, found.repaired_blocks
    );
    if found.left_blocks > 0 {
        let _ = write!(text, ", {} left (written since they last matched)", found.left_blocks);
    }
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

fn member_text(member: &PlaceStatus) -> String {
    let path = if member.path.is_empty() { "?" } else { &member.path };
    let mut text = match member.size_bytes {
        0 => format!("{path} ({}", member.state),
        bytes => format!("{path} ({}, {}", format_size(bytes), member.state),
    };
    if !member.trouble.is_empty() {
        let _ = write!(text, ", {}", member.trouble);
    }
    let health = &member.health;
    let counts = &health.counts;
    if health.slow {
        text.push_str(", slow");
    }
    if counts.errors_read + counts.errors_write > 0 {
        let (reads, writes, repaired) = (counts.errors_read, counts.errors_write, counts.repaired);
        let _ = write!(text, ", {reads} read and {writes} write errors, {repaired} repaired");
    }
    if counts.checksum_errors > 0 {
        let (found, mended) = (counts.checksum_errors, counts.checksum_mended);
        let _ = write!(text, ", {found} checksum errors, {mended} repaired");
    }
    rows(counts, &mut |_, figure| {
        let _ = write!(text, ", {figure}");
    });
    let latencies = [("reads", health.read_latency), ("writes", health.write_latency)];
    for (what, latency) in latencies.into_iter().filter(|(_, latency)| latency.samples > 0) {
        let _ = write!(text, ", {what} {}/{} us", latency.p50_us, latency.p99_us);
    }
    text.push(')');
    text
}

/// The troubles of an array: its error, each device that was left out, and members that do badly.
fn problems(array: &ArrayDetail) -> impl Iterator<Item = String> {
    let error = Some(array.error.clone()).filter(|error| !error.is_empty());
    let sick = array.members.iter().flat_map(|member| {
        let PlaceStatus { path, health, .. } = member;
        let errors = health.too_many_errors.then(|| {
            let count = health.counts.errors_recent;
            format!("{path} had {count} errors recently, but the array cannot lose it: replace it")
        });
        let slow = health.slow.then(|| {
            let p50_us = health.read_latency.p50_us.max(health.write_latency.p50_us);
            format!("{path} is slower than the others (half of its I/Os within {p50_us} us)")
        });
        errors.into_iter().chain(slow)
    });
    let awaited = array.members_awaited.then(|| {
        let members = array.members.iter().filter(|member| member.health.counts.unanswered_s > 0);
        let paths: Vec<&str> = members.map(|member| member.path.as_str()).collect();
        format!(
            "no answer from {}; none has been failed, because the array cannot lose them or they \
             have a common cause (adapter, cable, power): requests wait for them",
            paths.join(", ")
        )
    });
    let lost = array.journal_device.as_ref().filter(|journal| journal.state == "lost");
    let lost = lost.map(|journal| {
        let (path, name) = (&journal.path, &array.name);
        format!(
            "its journal device {path} was given up and the journal is on the members; \
             `voltier array set {name} journal=DEV` (or journal=members)"
        )
    });
    let left_out = array.left_out.iter().cloned();
    error.into_iter().chain(left_out).chain(stuck(array)).chain(awaited).chain(lost).chain(sick)
}

/// What cannot be rebuilt: which data of the array, and on which members.
fn stuck(array: &ArrayDetail) -> impl Iterator<Item = String> {
    array.rebuild_stuck.iter().map(|stuck| {
        let ByteRange { offset_bytes, length_bytes } = stuck.range;
        let members = stuck.members.join(", ");
        format!(
            "{length_bytes} bytes of the array from byte {offset_bytes} on cannot be rebuilt on {members}: \
             another member cannot be read there; what is read there may fail until it is written again, then \
             `voltier array rebuild {}`",
            array.name
        )
    })
}

/// How small writes wait for each other, and what that has brought.
fn merging(array: &ArrayDetail) -> String {
    let (merge, counts) = (&array.merge, &array.counts);
    let mut text = merge.mode.name().to_owned();
    if !merge.is_off() {
        let (wait, max) = (wait_text(merge.wait_us), wait_text(merge.max_us));
        text += &format!(" (waits {wait} for the next, {max} at most)");
    }
    if let Some(mean_ns) = counts.held_ns.checked_div(counts.held_writes) {
        let (held, merged, merges) = (counts.held_writes, counts.merged_writes, counts.merges);
        let mean = wait_text(mean_ns / 1000);
        text += &format!("; {held} waited, {mean} on average; {merged} went as {merges}");
    }
    text
}

fn limits(array: &ArrayDetail) -> String {
    let limits = &array.limits;
    let errors = match limits.max_errors {
        0 => "any errors".to_owned(),
        max => format!("{max} errors in {}", seconds_text(limits.error_window_s)),
    };
    let slow = match limits.slow_factor {
        0 => "as slow as it is".to_owned(),
        factor => {
            let for_long = seconds_text(limits.slow_window_s);
            format!("{factor} times as slow as the others for {for_long}: {}", limits.slow_action)
        }
    };
    let deadline = match limits.deadline_s {
        0 => "no answer for ever: deadline off".to_owned(),
        seconds => format!("no answer for {}", seconds_text(seconds)),
    };
    format!("{errors}; {slow}; {deadline}")
}

/// One row per pool of spares, and a line for each spare that was not taken.
pub(crate) fn pools(pools: &[PoolStatus]) -> String {
    let mut rows = vec![["POOL", "SPARES", "ARRAYS"].map(str::to_owned)];
    let joined = |items: Vec<String>| match items.len() {
        0 => "-".to_owned(),
        _ => items.join(", "),
    };
    rows.extend(pools.iter().map(|pool| {
        let arrays = pool.arrays.iter().map(ToString::to_string).collect();
        [pool.name.to_string(), joined(pool.spares.clone()), joined(arrays)]
    }));
    let left_out = pools.iter().flat_map(|pool| pool.left_out.iter().cloned());
    let spares = pools.iter().flat_map(|pool| &pool.spares_smart);
    let health = spares.flat_map(|it| {
        let lines = smart_text::lines(&it.path, &it.smart).into_iter();
        lines.map(|line| format!("{}: {line}", it.path))
    });
    left_out.chain(health).fold(columns(&rows), |text, line| text + &line + "\n")
}

fn level(array: &ArrayDetail) -> String {
    match array.group_members {
        0 => array.level.clone(),
        group => format!("{} in groups of {group}", array.level),
    }
}

fn state_of(array: &ArrayDetail) -> String {
    let read_only = if array.read_only { " read-only" } else { "" };
    format!("{}{read_only}", state(array.state))
}

fn state(state: ArrayState) -> &'static str {
    match state {
        ArrayState::Running => "running",
        ArrayState::Degraded => "degraded",
        ArrayState::Waiting => "waiting",
        ArrayState::Failed => "failed",
        ArrayState::Starting => "starting",
        ArrayState::Stopped => "stopped",
        ArrayState::NotRunning => "not running",
    }
}
