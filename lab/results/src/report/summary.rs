//! The first lines of a report: whether the figures can be used, and what they say.

use super::page::{Line, Tone, latency, megabytes};
use super::places::Place;
use super::plan_facts::PlanFacts;
use crate::analysis::{Severity, Verdicts, label};
use crate::result::{Access, Run, Status};
use crate::table::{figure, percent};

/// Answers of one kind that are said; the others stand in their sections.
const SAID_MAX: usize = 3;

/// The names of each status, in the order in which a report tells them.
const STATES: [(&str, &str); 7] = [
    ("failed", "failed and have no figures"),
    ("partial", "were cut short: their figures cover a part of the window"),
    ("invalid", "are invalid and count for no verdict"),
    ("overloaded", "fell behind their schedule"),
    ("not_steady", "are of rounds that did not become steady"),
    ("skipped", "were left out on purpose"),
    ("ok", "are as planned"),
];

/// The name of a status as it is stored.
pub(super) fn state(status: &Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::NotSteady => "not_steady",
        Status::Invalid(_) => "invalid",
        Status::Overloaded(_) => "overloaded",
        Status::Partial(_) => "partial",
        Status::Skipped(_) => "skipped",
        Status::Failed(_) => "failed",
    }
}

/// Why a point is not as planned, in the words of whoever found it.
pub(super) fn why(status: &Status) -> &str {
    match status {
        Status::Ok | Status::NotSteady => "",
        Status::Invalid(why)
        | Status::Overloaded(why)
        | Status::Partial(why)
        | Status::Skipped(why)
        | Status::Failed(why) => why,
    }
}

/// Whether a part of what was planned is not there.
pub(super) fn is_partial(run: &Run) -> bool {
    let is_ours = run.manifest.imported_from.is_none();
    let lacks = |status: &Status| matches!(status, Status::Partial(_) | Status::Failed(_));
    run.is_cut || (is_ours && !run.is_ended) || run.points.iter().any(|p| lacks(&p.status))
}

/// All lines: what keeps from using the figures, the worst first, then the answers, then notes.
pub(super) fn lines(
    run: &Run,
    plan: Option<&PlanFacts>,
    verdicts: &Verdicts,
    places: &[Place<'_>],
) -> Vec<Line> {
    let mut lines = Vec::new();
    reservations(run, plan, verdicts, &mut lines);
    lines.sort_by_key(|line| std::cmp::Reverse(line.tone));
    let notes = lines.split_off(lines.partition_point(|line| line.tone > Tone::Note));
    let before = lines.len();
    answers(run, verdicts, places, &mut lines);
    if lines.len() == before {
        say(&mut lines, Tone::Warning, "There are no figures in this run.".to_owned());
    }
    lines.extend(notes);
    lines
}

fn say(lines: &mut Vec<Line>, tone: Tone, text: String) {
    lines.push(Line { tone, text });
}

fn reservations(run: &Run, plan: Option<&PlanFacts>, verdicts: &Verdicts, lines: &mut Vec<Line>) {
    let manifest = &run.manifest;
    if run.is_cut || (manifest.imported_from.is_none() && !run.is_ended) {
        let cut = if run.is_cut { " Its last line is cut off." } else { "" };
        let how = match manifest.is_simulation {
            true => "begin a new run",
            false => "`voltier lab run --resume` goes on",
        };
        let text = format!(
            "PARTIAL: the run has not completed its plan (it was interrupted, or is still \
             running).{cut} What is missing is not shown; {how}."
        );
        say(lines, Tone::Error, text);
    }
    for (name, what) in STATES {
        let count = run.points.iter().filter(|point| state(&point.status) == name).count();
        let tone = match name {
            "failed" | "partial" | "invalid" => Tone::Error,
            "ok" => Tone::Note,
            _ => Tone::Warning,
        };
        let is_worth_it = name != "ok" || manifest.imported_from.is_none();
        if count > 0 && is_worth_it {
            let all = run.points.len();
            say(lines, tone, format!("{count} of {all} points {what}."));
        }
    }
    say_what_the_checks_found(verdicts, lines);
    if let Some(plan) = plan.filter(|plan| plan.is_quick) {
        let what = if plan.pts_tests.is_some() { " This is not a PTS result." } else { "" };
        let text = format!("Quick profile: times and sizes are too small to judge a drive.{what}");
        say(lines, Tone::Warning, text);
    }
    if let Some(plan) = plan.filter(|plan| !plan.deviations.is_empty()) {
        let text = format!(
            "PTS-like, not PTS. The run differs from SNIA SSS PTS 2.0.2: {}.",
            plan.deviations.join("; ")
        );
        say(lines, Tone::Warning, text);
    }
    if run.lacks_rounds() {
        let text = "The file of the run does not say what was tracked from round to round, nor which \
                    rounds are the measurement window: figures are means of all rounds, and nothing \
                    is said of the steady state.";
        say(lines, Tone::Warning, text.to_owned());
    }
    if manifest.is_simulation {
        let text = "Simulation: the drives are modelled and time was virtual.".to_owned();
        say(lines, Tone::Warning, text);
    }
    if !verdicts.misses.is_empty() {
        let text = "Computed from a trace: no drive was measured, and there are no times.";
        say(lines, Tone::Note, text.to_owned());
    }
    if let Some(source) = &manifest.imported_from {
        say(lines, Tone::Note, format!("The figures were not measured here: {source}."));
    }
}

fn say_what_the_checks_found(verdicts: &Verdicts, lines: &mut Vec<Line>) {
    let count = |of: Severity| verdicts.findings.iter().filter(|f| f.severity == of).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let (tone, text) = match (errors, warnings) {
        (0, 0) => (Tone::Note, "The checks found no contradictions.".to_owned()),
        (0, _) => {
            (Tone::Warning, format!("The checks found {warnings} warnings: see the findings."))
        }
        _ => (
            Tone::Error,
            format!(
                "The checks found {errors} errors and {warnings} warnings: some figures contradict \
                 physics or each other. Read the findings before using them."
            ),
        ),
    };
    say(lines, tone, text);
}

/// Says the first texts of a kind, and how many there are more.
fn some(lines: &mut Vec<Line>, tone: Tone, texts: Vec<String>, where_more: &str) {
    let all = texts.len();
    for text in texts.into_iter().take(SAID_MAX) {
        say(lines, tone, text);
    }
    if all > SAID_MAX {
        say(lines, tone, format!("{} more: see \"{where_more}\".", all - SAID_MAX));
    }
}

fn answers(run: &Run, verdicts: &Verdicts, places: &[Place<'_>], lines: &mut Vec<Line>) {
    accelerated(run, places, lines);
    best(places, lines);
    let tracked = verdicts.steady.iter().filter(|steady| steady.is_tracking);
    let steady = tracked.map(|s| format!("{}: {}.", s.label, s.text)).collect();
    some(lines, Tone::Answer, steady, "Steady state");
    let knees = verdicts.curves.iter().map(|c| format!("{}: {}.", c.label, c.knee.text)).collect();
    some(lines, Tone::Answer, knees, "Load curves and the knee");
    let bounds = verdicts.bounds.iter().map(|b| format!("{}: {}.", b.label, b.text)).collect();
    some(lines, Tone::Answer, bounds, "What limits");
    let limits = verdicts.limits.iter().map(|l| format!("{}: {}.", l.point, l.text)).collect();
    some(lines, Tone::Answer, limits, "What limits");
    let learned = verdicts.warm_up.iter().map(|w| format!("{}: {}.", w.label, w.text)).collect();
    some(lines, Tone::Answer, learned, "Warming up");
    let scaled = verdicts.scaling.iter().map(|s| format!("{}: {}.", s.label, s.text)).collect();
    some(lines, Tone::Answer, scaled, "Scaling with clients");
    let misses = verdicts.misses.iter().map(|m| format!("{}: {}.", m.label, m.text)).collect();
    some(lines, Tone::Answer, misses, "Miss ratios");
    applications(run, lines);
}

/// A cached volume against its tiers, job by job.
fn accelerated(run: &Run, places: &[Place<'_>], lines: &mut Vec<Line>) {
    let of = |target: &str, place: &Place<'_>| {
        let mut axes = place.axes.clone();
        axes.target = target.to_owned();
        places.iter().find(|other| other.axes == axes).and_then(value)
    };
    let cached = run.manifest.targets.iter().find(|target| target.name == "accelerated");
    let Some(cached) = cached else { return };
    let against = |tier: &str| -> Vec<(String, f64)> {
        let mine = places.iter().filter(|place| place.axes.target == cached.name);
        mine.filter_map(|p| Some((p.axes.phase.clone(), value(p)? / of(tier, p)?))).collect()
    };
    let extremes = |mut all: Vec<(String, f64)>| {
        all.sort_by(|one, other| one.1.total_cmp(&other.1));
        Some((all.first()?.clone(), all.last()?.clone()))
    };
    let mut parts = Vec::new();
    if let Some((least, most)) = extremes(against("hdd")) {
        parts.push(format!(
            "is {} ({}) to {} ({}) times as fast as the disk",
            figure(least.1),
            least.0,
            figure(most.1),
            most.0
        ));
    }
    if let Some((least, most)) = extremes(against("ssd")) {
        parts.push(format!(
            "reaches {} ({}) to {} ({}) of the SSD",
            percent(least.1),
            least.0,
            percent(most.1),
            most.0
        ));
    }
    if !parts.is_empty() {
        say(lines, Tone::Answer, format!("The accelerated volume {}.", parts.join(", and ")));
    }
}

/// Of sequential places bytes, of others requests.
fn value(place: &Place<'_>) -> Option<f64> {
    match place.axes.access {
        Some(Access::Sequential) => place.bytes_per_second(),
        _ => place.rate(),
    }
}

/// The greatest of each kind of figure, and where it was reached.
fn best(places: &[Place<'_>], lines: &mut Vec<Line>) {
    let of = |value: &dyn Fn(&Place<'_>) -> Option<f64>| {
        let known = places.iter().filter_map(|place| Some((value(place)?, place)));
        known.max_by(|one, other| one.0.total_cmp(&other.0))
    };
    if let Some((rate, place)) = of(&|place| place.rate()) {
        let wait = place.latency_ns().map(|ns| format!(", {} on average", latency(ns)));
        let tail = place.percentile_ns(99.0).map(|ns| format!(", {} at p99", latency(ns)));
        let text = format!(
            "Most requests: {} /s ({}){}{}.",
            figure(rate),
            label(&place.axes),
            wait.unwrap_or_default(),
            tail.unwrap_or_default()
        );
        say(lines, Tone::Answer, text);
    }
    if let Some((rate, place)) = of(&|place| place.bytes_per_second()) {
        let text = format!("Most throughput: {} MB/s ({}).", megabytes(rate), label(&place.axes));
        say(lines, Tone::Answer, text);
    }
    if let Some((shortest, place)) = of(&|place| place.latency_ns().map(|ns| -ns)) {
        let text =
            format!("Shortest mean latency: {} ({}).", latency(-shortest), label(&place.axes));
        say(lines, Tone::Answer, text);
    }
}

/// Figures that only a document or an application has.
fn applications(run: &Run, lines: &mut Vec<Line>) {
    let mut texts = Vec::new();
    for point in &run.points {
        if let Some(times) = point.metrics.get("speed_up") {
            texts.push(format!(
                "{}: {times} times as fast as without the cache.",
                label(&point.axes)
            ));
        }
    }
    let tps: Vec<f64> = run.points.iter().filter_map(|p| p.metrics.get("tps").copied()).collect();
    if let (Some(first), Some(last)) = (tps.first(), tps.last()) {
        texts.push(format!(
            "Transactions: {} /s in the first run, {} /s in the last.",
            figure(*first),
            figure(*last)
        ));
    }
    some(lines, Tone::Answer, texts, "Every point");
}
