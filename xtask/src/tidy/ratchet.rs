//! Rules that the tree does not keep everywhere yet: each area's count may fall and not rise.
//!
//! `xtask/tidy-ratchet.toml` holds the counts. `cargo xtask tidy --lower` writes the counts that fell.
//! The task tells of a fall that was not written and does not refuse it. So people who work side by side
//! do not all edit the file. An area that the file does not name yet (code moved to a new crate) may
//! bring as many as the rule's other areas lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::tree::area;
use xtask::Failure;

/// A rule with a ratchet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rule {
    /// Files in an import circle of more than two.
    Circles,
    /// A file and one of the folder below it that name each other.
    Pairs,
    /// `impl` blocks far from their type.
    Strays,
    /// Sentences that open with a pronoun or a relative.
    Openings,
    /// Sentences of more words than a reader keeps in mind.
    LongSentences,
    /// Words that a standard term replaced.
    Synonyms,
    /// Lines of a page over 120 columns.
    WidePages,
}

impl Rule {
    const ALL: [Rule; 7] = [
        Rule::Circles,
        Rule::Pairs,
        Rule::Strays,
        Rule::Openings,
        Rule::LongSentences,
        Rule::Synonyms,
        Rule::WidePages,
    ];

    fn name(self) -> &'static str {
        match self {
            Rule::Circles => "circles",
            Rule::Pairs => "pairs",
            Rule::Strays => "strays",
            Rule::Openings => "openings",
            Rule::LongSentences => "long-sentences",
            Rule::Synonyms => "synonyms",
            Rule::WidePages => "wide-pages",
        }
    }

    /// The rule of that name.
    pub(super) fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// One place in the tree that does not keep a rule.
#[derive(Clone, Debug)]
pub(super) struct Breach {
    pub(super) rule: Rule,
    pub(super) finding: Finding,
}

impl Breach {
    pub(super) fn new(rule: Rule, path: &Path, line: usize, message: String) -> Breach {
        Breach { rule, finding: Finding::new(path, line, message) }
    }

    /// The crate or folder it counts for.
    pub(super) fn area(&self) -> String {
        area(&self.finding.path)
    }
}

/// The counts of all rules by area; a count of nothing has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Counts(BTreeMap<Rule, BTreeMap<String, usize>>);

/// The file, from the workspace's root.
pub(super) const FILE: &str = "xtask/tidy-ratchet.toml";

const HEADER: &str = "\
# Counts of what `cargo xtask tidy` tolerates, by rule and crate or folder (xtask/src/tidy/ratchet.rs).
# `cargo xtask tidy --lower` writes lower ones; a higher one is written by hand, in a commit that says why.
# `cargo xtask tidy --list RULE [AREA]` shows the places.

";

impl Counts {
    /// The counts of today's places.
    pub(super) fn of(places: &[Breach]) -> Counts {
        let mut counts = Counts::default();
        for place in places {
            *counts.0.entry(place.rule).or_default().entry(place.area()).or_default() += 1;
        }
        counts
    }

    /// The counts that the file holds.
    pub(super) fn read(root: &Path) -> Result<Counts, Failure> {
        let text =
            fs::read_to_string(root.join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
        Ok(toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?)
    }

    /// Replaces the file.
    pub(super) fn write(&self, root: &Path) -> Result<(), Failure> {
        Ok(fs::write(root.join(FILE), format!("{HEADER}{}", toml::to_string(self)?))?)
    }

    fn areas(&self, rule: Rule) -> impl Iterator<Item = (&String, usize)> {
        self.0.get(&rule).into_iter().flatten().map(|(area, count)| (area, *count))
    }

    fn get(&self, rule: Rule, area: &str) -> Option<usize> {
        self.0.get(&rule)?.get(area).copied()
    }

    fn total(&self, rule: Rule) -> usize {
        self.areas(rule).map(|(_, count)| count).sum()
    }

    /// The counts above those of `limit`.
    pub(super) fn rises(&self, limit: &Counts) -> Vec<Finding> {
        let mut found = Vec::new();
        for rule in Rule::ALL {
            let has_room = self.total(rule) <= limit.total(rule);
            for (area, count) in self.areas(rule) {
                let old = limit.get(rule, area);
                let risen = old.map_or(!has_room, |old| count > old);
                if risen {
                    let (name, old) = (rule.name(), old.unwrap_or(0));
                    let message = format!(
                        "{name} of {area}: {count}, and {old} is the most \
                         (`cargo xtask tidy --list {name} {area}` shows them)"
                    );
                    found.push(Finding::new(Path::new(FILE), 0, message));
                }
            }
        }
        found
    }

    /// How far all counts together are below those of `limit`.
    pub(super) fn fallen(&self, limit: &Counts) -> usize {
        let limits = Rule::ALL
            .into_iter()
            .flat_map(|rule| limit.areas(rule).map(move |(area, old)| (rule, area, old)));
        limits.map(|(rule, area, old)| old.saturating_sub(self.get(rule, area).unwrap_or(0))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(Rule, &str, usize)]) -> Counts {
        let mut counts = Counts::default();
        for (rule, area, count) in of {
            counts.0.entry(*rule).or_default().insert((*area).to_owned(), *count);
        }
        counts
    }

    #[test]
    fn a_rise_is_refused_and_a_fall_is_told() {
        let limit = counts(&[(Rule::Openings, "array", 5), (Rule::Strays, "array", 2)]);
        let same = limit.clone();
        assert!(same.rises(&limit).is_empty() && same.fallen(&limit) == 0);
        let lower = counts(&[(Rule::Openings, "array", 3)]);
        assert!(lower.rises(&limit).is_empty() && lower.fallen(&limit) == 4);
        let higher = counts(&[(Rule::Openings, "array", 6)]);
        assert_eq!(higher.rises(&limit).len(), 1);
    }

    #[test]
    fn a_new_area_may_bring_what_the_others_lost() {
        let limit = counts(&[(Rule::Openings, "lab", 5)]);
        let moved = counts(&[(Rule::Openings, "lab", 2), (Rule::Openings, "trace", 3)]);
        assert!(moved.rises(&limit).is_empty());
        let more = counts(&[(Rule::Openings, "lab", 3), (Rule::Openings, "trace", 3)]);
        assert_eq!(more.rises(&limit).len(), 1);
    }

    #[test]
    fn places_are_counted_by_crate_or_folder_and_survive_the_file() {
        let place = |path: &str| Breach::new(Rule::Strays, Path::new(path), 1, String::new());
        let found = Counts::of(&[place("crates/array/src/a.rs"), place("docs/adr/1.md")]);
        assert_eq!(found, counts(&[(Rule::Strays, "array", 1), (Rule::Strays, "docs/adr", 1)]));
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("xtask")).unwrap();
        found.write(folder.path()).unwrap();
        assert_eq!(Counts::read(folder.path()).unwrap(), found);
    }
}
