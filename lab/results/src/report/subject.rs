//! The subject of a report: the plan, the targets, the machine; of the standard's tests the heads that
//! the standard asks for.

use super::page::{Block, Section, Table, or_dash};
use super::plan_facts::{PlanFacts, PtsTest};
use crate::analysis::Verdicts;
use crate::date::Moment;
use crate::result::{Point, Role, Run, Status, TargetInfo, Test};
use crate::size::format_bytes;

/// The text for a fact that the system or the source does not tell.
const NOT_TOLD: &str = "not told";

/// The heading of a report.
pub(super) fn title(run: &Run, plan: Option<&PlanFacts>) -> String {
    let manifest = &run.manifest;
    let plan = plan.map_or_else(|| manifest.plan.clone(), |plan| plan.title.clone());
    let given = manifest.targets.iter().map(|target| match target.name.as_str() {
        "" | "target" => target.given.clone(),
        name if name == target.given => name.to_owned(),
        name => format!("{name} = {}", target.given),
    });
    let given: Vec<String> = given.filter(|text| !text.is_empty()).collect();
    match (manifest.imported_from.is_some(), given.is_empty()) {
        (true, _) => manifest.run.clone(),
        (false, true) => plan,
        (false, false) => format!("{plan} on {}", given.join(", ")),
    }
}

/// When, where and by what.
pub(super) fn subtitle(run: &Run) -> String {
    let manifest = &run.manifest;
    let mut parts = vec![format!("Run {}", manifest.run)];
    if manifest.started_unix_ms > 0 {
        parts.push(Moment::of(manifest.started_unix_ms).in_words());
    }
    if !manifest.environment.host.is_empty() {
        parts.push(format!("host {}", manifest.environment.host));
    }
    match manifest.tool.as_str() {
        "" => {}
        "published" => parts.push("a published table".to_owned()),
        tool => parts.push(format!("measured by {tool}")),
    }
    parts.join(" · ")
}

/// Targets, machine, plan and notes.
pub(super) fn section(run: &Run) -> Section {
    let manifest = &run.manifest;
    let mut section = Section::new("What was measured, on what");
    if !manifest.notes.is_empty() {
        section.blocks.push(Block::List(manifest.notes.clone()));
    }
    section.blocks.push(Block::Heading("Targets".to_owned()));
    section.table(targets(&manifest.targets));
    let environment = &manifest.environment;
    let mut machine = Table::new(["machine", ""]);
    let mut say = |name: &str, value: String| {
        if !value.is_empty() && value != "0" {
            machine.row(vec![name.to_owned(), value]);
        }
    };
    say("host", environment.host.clone());
    say("processor", environment.cpu.clone());
    say("processors", environment.cpus.to_string());
    say("memory", memory(environment.memory_bytes));
    say("kernel", environment.kernel.clone());
    say("system", environment.system.clone());
    say("fio", environment.fio.clone());
    environment.facts.iter().for_each(|(name, value)| say(&words(name), value.clone()));
    if !machine.rows.is_empty() {
        section.blocks.push(Block::Heading("Machine, as reported by the system".to_owned()));
    }
    section.table(machine);
    if !manifest.plan_text.is_empty() {
        section.blocks.push(Block::Heading("Plan, with all its defaults".to_owned()));
        section.blocks.push(Block::Code(manifest.plan_text.clone()));
        section.text(format!("CRC-32C of the plan: {:08x}.", manifest.plan_crc32c));
    }
    section
}

/// Names of facts are words with underscores.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn bytes(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format_bytes(bytes) }
}

/// The memory of a machine in words. The memory that the kernel leaves is no round number.
fn memory(bytes: u64) -> String {
    if bytes == 0 {
        String::new()
    } else {
        format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64)
    }
}

fn targets(targets: &[TargetInfo]) -> Table {
    let mut table = Table::new(["target", "given", "kind", "used", "facts"]);
    for target in targets {
        let facts = target.facts.iter().map(|(name, value)| format!("{}: {value}", words(name)));
        let facts: Vec<String> = facts.collect();
        let used = bytes(target.size_bytes);
        table.row(vec![
            target.name.clone(),
            target.given.clone(),
            target.kind.clone(),
            or_dash((!used.is_empty()).then_some(used)),
            or_dash((!facts.is_empty()).then(|| facts.join("; "))),
        ]);
    }
    table
}

/// One head for each test and target that the standard asks for; `None` for other plans.
pub(super) fn heads(run: &Run, plan: Option<&PlanFacts>, verdicts: &Verdicts) -> Option<Section> {
    let plan = plan?;
    let tests = plan.pts_tests.as_ref()?;
    let mut section = Section::new(match plan.is_quick {
        true => "Heads of the tests (quick profile: not a PTS result)",
        false => "Heads of the tests",
    });
    section.text(
        "What the standard requires at the head of every test. The full text of the standard was \
         not at hand when this was written: numbers of sections, the depth of the throughput \
         test and what is marked [unchecked] are from secondary sources.",
    );
    for target in &run.manifest.targets {
        for test in tests {
            if of_test(run, target, test.test).next().is_some() {
                let title = format!("{}, {}", name(test.test), target.name);
                section.blocks.push(Block::Heading(title));
                section.table(head(run, verdicts, plan.is_quick, target, test));
            }
        }
    }
    Some(section)
}

/// The points of a test of the standard on one target.
fn of_test<'a>(
    run: &'a Run,
    target: &'a TargetInfo,
    test: Test,
) -> impl Iterator<Item = &'a Point> {
    let points = run.points.iter().filter(move |point| point.test == Some(test));
    points.filter(move |point| point.axes.target == target.name)
}

fn name(test: Test) -> &'static str {
    match test {
        Test::Iops => "IOPS test",
        Test::Tp => "Throughput test",
        Test::Lat => "Latency test",
        Test::Wsat => "Write saturation test",
        Test::Hir => "Host idle recovery test",
        Test::Xsr => "Cross stimulus recovery test",
        Test::Ecw => "Enterprise composite workload test",
        Test::Dirth => "Demand intensity and response time histogram test",
        Test::Wipc => "Workload-independent preconditioning",
    }
}

fn head(
    run: &Run,
    verdicts: &Verdicts,
    is_quick: bool,
    target: &TargetInfo,
    test: &PtsTest,
) -> Table {
    let manifest = &run.manifest;
    let environment = &manifest.environment;
    let mut table = Table::new(["head", ""]);
    let mut say = |what: &str, value: String| {
        let value = if value.is_empty() { NOT_TOLD.to_owned() } else { value };
        table.row(vec![what.to_owned(), value]);
    };
    let fact = |names: &[&str]| {
        let found = names.iter().find_map(|name| target.facts.get(*name));
        found.cloned().unwrap_or_default()
    };
    let specification = match is_quick {
        true => "none: the order of SNIA SSS PTS 2.0.2, shortened".to_owned(),
        false => "SNIA SSS PTS 2.0.2 [unchecked], with the differences given in the first lines"
            .to_owned(),
    };
    say("date", Moment::of(manifest.started_unix_ms).in_words());
    say("operator", String::new());
    say("specification", specification);
    say("test", name(test.test).to_owned());
    say("vendor", fact(&["vendor"]));
    say("model", fact(&["model"]));
    say("serial number", fact(&["serial"]));
    say("firmware", fact(&["firmware"]));
    say("capacity used", format_bytes(target.size_bytes));
    say("interface", fact(&["interface", "link_speed"]));
    say("form factor, media", fact(&["form_factor", "rotational"]));
    let machine = [&environment.host, &environment.cpu, &memory(environment.memory_bytes)];
    say("server, processor, memory", machine.map(String::as_str).join(", "));
    say("host bus adapter", fact(&["hba"]));
    say("system", format!("{}, kernel {}", environment.system, environment.kernel));
    say("test tool", format!("{}, {}", manifest.tool, environment.fio));
    say("volatile write cache", fact(&["write_cache"]));
    say("purge", purge(run, target, test.test));
    say("active range", test.active_range.clone());
    say("data pattern", "random".to_owned());
    say("preconditioning 1 (workload-independent)", test.preconditioning[0].clone());
    say("preconditioning 2 (workload-dependent)", test.preconditioning[1].clone());
    say("stimulus", test.stimulus.clone());
    say("steady state", steady(verdicts, target, test.test));
    let unclean = of_test(run, target, test.test).filter(|point| point.status != Status::Ok);
    say(
        "notes",
        match unclean.count() {
            0 => manifest.notes.join("; "),
            n => format!(
                "{n} points are not as planned: see the points. {}",
                manifest.notes.join("; ")
            ),
        },
    );
    table
}

fn purge(run: &Run, target: &TargetInfo, test: Test) -> String {
    match of_test(run, target, test).find(|point| point.role == Role::Purge) {
        None => "none is recorded".to_owned(),
        Some(point) => {
            let state = super::summary::state(&point.status);
            let how = match point.command.first() {
                Some(program) => format!("by {program}"),
                None => "a discard of the used range, or zeroes where there is none".to_owned(),
            };
            format!("{how} ({state}); no secure erase, no format")
        }
    }
}

fn steady(verdicts: &Verdicts, target: &TargetInfo, test: Test) -> String {
    let found = verdicts.steady.iter().filter(|steady| {
        steady.is_tracking && steady.target == target.name && steady.test == Some(test)
    });
    let said: Vec<String> = found
        .map(|steady| match steady.window {
            Some(window) if window.is_steady => {
                format!("rounds {} - {} ({})", window.first_round, window.last_round, steady.label)
            }
            _ => format!("NOT ACHIEVED ({})", steady.label),
        })
        .collect();
    if said.is_empty() { "the test has none".to_owned() } else { said.join("; ") }
}
