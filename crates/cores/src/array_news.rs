//! News of an array since the control plane last asked, as lines of the log.

use std::cell::{Cell, RefCell};

use voltier_array::{HealthNews, MemberState, ScrubFound, ScrubStatus};
use voltier_control::engine::ArrayNews;
use voltier_control::{ARRAY_NOTICE, REBUILD_BEGUN, REBUILD_ENDED, SCRUB_BEGUN, SCRUB_ENDED};

use crate::drives::trouble_of;
use crate::table::OpenArray;

/// The news of an array that the lines so far have told.
#[derive(Default)]
pub(super) struct Told {
    /// The members; empty before the first question, which is answered with no line of them.
    members: RefCell<Vec<(MemberState, [u8; 16])>>,
    /// A scrub has begun, and no line has told of its end.
    scrub_begun: Cell<bool>,
    /// A scrub has begun, and no line has told of that.
    is_scrub_new: Cell<bool>,
}

impl Told {
    /// A scrub has begun.
    pub(super) fn scrub_begins(&self) {
        self.scrub_begun.set(true);
        self.is_scrub_new.set(true);
    }
}

/// Takes the lines.
pub(super) fn take(open: &OpenArray) -> Vec<ArrayNews> {
    let health = open.array.take_health_news();
    let health = health.iter().map(|news| {
        let is_warning = !matches!(
            news,
            HealthNews::NotSlow { .. }
                | HealthNews::WaitingEnded
                | HealthNews::Recovered
                | HealthNews::ChecksumsRebuilt { .. }
        );
        let event = is_warning.then_some(&ARRAY_NOTICE);
        ArrayNews { line: open.line_of(news), is_warning, event, scrubbed: None }
    });
    let mut lines: Vec<ArrayNews> = health.collect();
    lines.extend(of_members(open));
    let scrub = open.array.scrub_status();
    if open.told.is_scrub_new.take() {
        let line = "a scrub has begun".to_owned();
        let event = Some(&SCRUB_BEGUN);
        lines.push(ArrayNews { line, is_warning: false, event, scrubbed: None });
    }
    if !scrub.progress.is_running && open.told.scrub_begun.take() {
        lines.push(of_scrub(&scrub));
    }
    lines
}

fn of_members(open: &OpenArray) -> Vec<ArrayNews> {
    let Some(status) = open.array.status() else { return Vec::new() };
    let now = status.members.iter().map(|member| (member.state, member.uuid)).collect();
    let before = open.told.members.replace(now);
    if before.is_empty() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for (place, member) in status.members.iter().enumerate() {
        let was = before.get(place);
        if was == Some(&(member.state, member.uuid)) {
            continue;
        }
        let is_gone = matches!(member.state, MemberState::Lost | MemberState::Absent);
        if is_gone && was.is_some_and(|(state, _)| *state == member.state) {
            continue;
        }
        let device = open.name_of(place);
        let (line, event) = match member.state {
            MemberState::InService => {
                let line = format!("{device} is in service as member {place}: it is complete");
                (line, Some(&REBUILD_ENDED))
            }
            MemberState::Rebuilding => {
                (format!("{device} is being filled as member {place}"), Some(&REBUILD_BEGUN))
            }
            MemberState::Lost | MemberState::Absent => {
                let devices = open.devices.borrow();
                let known = devices.get(place).and_then(Option::as_ref);
                let why = match trouble_of(member.state, known) {
                    "" => String::new(),
                    trouble => format!(" ({trouble})"),
                };
                // It is a condition, too.
                (format!("{device} is lost{why}; {} more may be lost", open.may_lose()), None)
            }
        };
        lines.push(ArrayNews { line, is_warning: is_gone, event, scrubbed: None });
    }
    lines
}

fn of_scrub(scrub: &ScrubStatus) -> ArrayNews {
    let ScrubFound { mismatched_blocks, repaired_blocks, left_blocks, .. } = scrub.counts;
    let ScrubFound { unreadable_stripes, lost_stripes, .. } = scrub.counts;
    let is_whole = scrub.progress.done_bytes == scrub.progress.total_bytes;
    let how = if is_whole { "" } else { " before it was complete" };
    let mut line = format!(
        "a scrub has ended{how}: {mismatched_blocks} blocks did not match, {repaired_blocks} were repaired, \
         {left_blocks} were left"
    );
    if unreadable_stripes > 0 {
        line += &format!(
            "; {unreadable_stripes} stripes had a member that could not be read, and {lost_stripes} of them are lost"
        );
    }
    let is_warning = mismatched_blocks + unreadable_stripes > 0;
    let scrubbed = is_whole.then_some(scrub.counts);
    ArrayNews { line, is_warning, event: Some(&SCRUB_ENDED), scrubbed }
}
