//! The differences of a run of the plan `pts` from the SNIA standard.
//!
//! The differences that every run of the plan has come first, then those that the settings make, then
//! those that were found on the targets.

use voltier_results::result::{Role, Run, Status, Test};

use super::{Extent, Pts};

/// Settings that only make a test longer, or are the operator's choice and recorded.
const FREE: [&str; 4] = ["tests", "size", "threads", "depth"];

/// Every difference, a clause each.
pub(super) fn of(pts: &Pts, run: &Run) -> Vec<String> {
    let mut found = vec![
        "the text of the standard was not at hand: what the heads mark [unchecked] is from secondary \
         sources"
            .to_owned(),
    ];
    let has = |tests: &[Test]| pts.tests().any(|test| tests.contains(&test));
    found.push(purge(run));
    if has(&[Test::Wsat, Test::Hir, Test::Ecw, Test::Dirth]) {
        found.push(
            "continuous writing is a row of runs of fio with a fraction of a second between them"
                .to_owned(),
        );
    }
    found.extend(settings(pts));
    found.extend(targets(run));
    found
}

fn purge(run: &Run) -> String {
    let is_overwrite = |point: &voltier_results::result::Point| {
        point.role == Role::Purge && point.command.first().is_some_and(|word| word != "discard")
    };
    match run.points.iter().any(is_overwrite) {
        true => "a purge is zeroes over the used range, not a secure erase, sanitize or format",
        false => "a purge is a discard of the used range, not a secure erase, sanitize or format",
    }
    .to_owned()
}

/// Settings that are not those of the standard.
fn settings(pts: &Pts) -> Vec<String> {
    let table = |pts: &Pts| toml::Table::try_from(pts).unwrap_or_default();
    let (given, standard) = (table(pts), table(&Pts::full()));
    let mut found = Vec::new();
    if let Extent::Bytes(bytes) = pts.size {
        let part = voltier_results::size::format_bytes(bytes);
        found.push(format!("the active range is the first {part} of the target, not all of it"));
    }
    for (key, value) in given.iter().filter(|(key, _)| !FREE.contains(&key.as_str())) {
        if let Some(wanted) = standard.get(key).filter(|wanted| *wanted != value) {
            found.push(format!("{key} is {value}, the standard has {wanted}"));
        }
    }
    found
}

/// The differences that the targets make: by what they are, and could not do.
fn targets(run: &Run) -> Vec<String> {
    let mut found = Vec::new();
    for target in &run.manifest.targets {
        match target.facts.get("write_cache").map(String::as_str) {
            Some("write through") => {}
            Some(cache) => found.push(format!(
                "the write cache of {} is \"{cache}\", the standard wants it off",
                target.name
            )),
            None => found.push(format!(
                "the state of the write cache of {} is not known, the standard wants it off",
                target.name
            )),
        }
    }
    let skipped = run.points.iter().filter(|point| matches!(point.status, Status::Skipped(_)));
    match skipped.count() {
        0 => {}
        count => found.push(format!("{count} points were left out: see their reasons")),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_results::result::TargetInfo;

    fn run(write_cache: &str) -> Run {
        let facts = [("write_cache".to_owned(), write_cache.to_owned())].into();
        let target = TargetInfo { name: "ssd".to_owned(), facts, ..TargetInfo::default() };
        let mut run = Run::default();
        run.manifest.targets = vec![target];
        run
    }

    #[test]
    fn every_setting_that_is_not_the_standards_is_told() {
        let full = Pts::full();
        let always = of(&full, &run("write through"));
        assert_eq!(always.len(), 3, "{always:?}");
        assert_eq!(of(&full, &run("write back")).len(), 4);
        let mut short = Pts { seconds: 15.0, rounds_max: 10, ..Pts::full() };
        short.size = Extent::Bytes(1 << 30);
        short.tests = vec!["iops".to_owned()];
        let told = of(&short, &run("write through"));
        assert_eq!(told.len(), 5, "{told:?}");
        for part in
            ["seconds is 15.0, the standard has 60.0", "rounds_max is 10", "1G of the target"]
        {
            assert!(told.iter().any(|clause| clause.contains(part)), "{part}: {told:?}");
        }
        // Thread count and depth are the operator's.
        let own = Pts { threads: 2, depth: 16, ..Pts::full() };
        assert_eq!(of(&own, &run("write through")), always);
    }
}
