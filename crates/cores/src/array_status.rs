//! From what an array counts to what `array show` prints.

use voltier_array::{ArrayStatus, Latency, MemberState, Progress, ReshapeWait, StuckRange};
use voltier_control::{
    ArrayDetail, ArrayName, ArrayState, ByteRange, ControlResult, HealthStatus, Identity,
    LatencyStatus, PlaceStatus, ReshapeDetail, StuckStatus, TaskPace, TaskStatus,
};

use crate::array_failure::failure_in_words;
use crate::drives::trouble_of;
use crate::journals;
use crate::table::{self, OpenArray};

/// The status of an array now.
pub(super) fn fill(name: &ArrayName, plain: ArrayDetail) -> ControlResult<ArrayDetail> {
    let open = table::find(name)?;
    open.place_pending();
    let array = &open.array;
    let Some(now) = array.status() else { return Ok(plain) };
    let devices = open.devices.borrow();
    let pending = open.pending.borrow();
    let spares = pending.iter().filter(|it| it.is_spare).map(|it| it.known.device.to_string());
    let (rebuild, scrub) = (array.rebuild_status(), array.scrub_status());
    let members = now.members.iter().enumerate().map(|(index, member)| {
        let known = devices.get(index).and_then(Option::as_ref);
        let recorded = plain.members.get(index).map(|member| member.path.clone());
        PlaceStatus {
            index: index as u32,
            path: known.map(|it| it.device.to_string()).or(recorded).unwrap_or_default(),
            uuid: Identity(member.uuid).to_string(),
            state: word(member.state).to_owned(),
            size_bytes: known.map_or(0, |it| it.size_bytes),
            trouble: trouble_of(member.state, known).to_owned(),
            health: health(&member.health),
            recent: None,
            meter: known.map(|it| Box::new(it.meter.counts())),
            smart: Vec::new(),
        }
    });
    let members = members.collect();
    let journal_device = journals::status(&open, &now, plain.journal_device.as_ref());
    let failure = now.failure.map(|error| failure_in_words(name, error));
    Ok(ArrayDetail {
        state: state_of(&now),
        error: failure.unwrap_or(plain.error),
        size_bytes: now.bytes,
        may_lose: open.may_lose(),
        events: now.event,
        members_awaited: now.is_waiting,
        spares: spares.collect(),
        journal_device,
        rebuild: task(&rebuild.progress, plain.rebuild.pace),
        rebuild_stuck_regions: rebuild.stuck_regions,
        rebuild_stuck: stuck(&open),
        reshape: array.reshape_status().map(|it| reshape(&it, plain.rebuild.pace)),
        scrub: task(&scrub.progress, plain.scrub.pace),
        scrub_found: scrub.counts,
        members,
        counts: now.counts,
        meter: Some(Box::new(array.meter())),
        ..plain
    })
}

/// So many ranges are named.
const STUCK_MAX: usize = 16;

fn stuck(open: &OpenArray) -> Vec<StuckStatus> {
    let ranges = open.array.stuck_ranges(STUCK_MAX).into_iter();
    let status = |StuckRange { sectors, members }| StuckStatus {
        range: ByteRange { offset_bytes: sectors.start.bytes(), length_bytes: sectors.bytes() },
        members: members.into_iter().map(|member| open.name_of(member.0)).collect(),
    };
    ranges.map(status).collect()
}

fn state_of(now: &ArrayStatus) -> ArrayState {
    match (now.failure.is_some(), now.is_degraded) {
        (true, _) => ArrayState::Failed,
        (false, true) => ArrayState::Degraded,
        (false, false) => ArrayState::Running,
    }
}

fn health(health: &voltier_array::MemberHealth) -> HealthStatus {
    let latency = |latency: Latency| LatencyStatus {
        samples: latency.samples,
        p50_us: latency.p50_ns.div_ceil(1000),
        p99_us: latency.p99_ns.div_ceil(1000),
    };
    HealthStatus {
        counts: health.counts,
        too_many_errors: health.has_too_many_errors,
        slow: health.is_slow,
        read_latency: latency(health.reads),
        write_latency: latency(health.writes),
    }
}

fn reshape(now: &voltier_array::ReshapeStatus, pace: TaskPace) -> ReshapeDetail {
    let waits_for = |wait| match wait {
        ReshapeWait::Members => "members",
        ReshapeWait::Resync => "resync",
        ReshapeWait::FailedWrites => "failed_writes",
    };
    ReshapeDetail {
        from_members: now.from_members as u32,
        to_members: now.to_members as u32,
        size_bytes_after: now.bytes_after,
        waits_for: now.waits_for.map(|wait| waits_for(wait).to_owned()),
        error: now.last_error.map(|error| error.to_string()),
        task: task(&now.progress, pace),
    }
}

fn task(progress: &Progress, pace: TaskPace) -> TaskStatus {
    TaskStatus {
        running: progress.is_running,
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
        bytes_per_second: progress.bytes_per_second,
        eta_seconds: progress.eta_ns.map(|eta_ns| eta_ns.div_ceil(1_000_000_000)),
        pace,
    }
}

fn word(state: MemberState) -> &'static str {
    match state {
        MemberState::InService => "online",
        MemberState::Lost => "lost",
        MemberState::Rebuilding => "rebuilding",
        MemberState::Absent => "absent",
    }
}
