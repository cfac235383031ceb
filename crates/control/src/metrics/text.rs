//! The text format of Prometheus: families of samples with their help and type.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What a family measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// Grows from 0 on.
    Counter,
    /// What is true now.
    Gauge,
    /// Times of requests by buckets.
    Histogram,
}

impl FamilyKind {
    /// Its word in the format.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A family as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The name, with the unit and `_total` as the conventions have them.
    pub name: String,
    /// What it measures.
    pub kind: FamilyKind,
    /// What it is, in a sentence.
    pub help: String,
}

/// Samples by family, each family once and in the order of the names.
#[derive(Default)]
pub(crate) struct Text {
    families: BTreeMap<String, (FamilyKind, String, String)>,
}

/// Labels with their values.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    /// Adds a sample of a counter or a gauge.
    pub(crate) fn add(
        &mut self,
        kind: FamilyKind,
        (name, help): (&str, &str),
        labels: Labels<'_>,
        value: f64,
    ) {
        let samples = self.family(kind, name, help);
        let _ = writeln!(samples, "{name}{} {value}", in_braces(labels, None));
    }

    /// Adds a histogram: the ends of its buckets in seconds, each with what took no longer.
    pub(crate) fn add_histogram(
        &mut self,
        (name, help): (&str, &str),
        labels: Labels<'_>,
        buckets: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum_seconds: f64,
    ) {
        let samples = self.family(FamilyKind::Histogram, name, help);
        for (end, below) in buckets {
            let labels = in_braces(labels, Some(&end.to_string()));
            let _ = writeln!(samples, "{name}_bucket{labels} {below}");
        }
        let _ = writeln!(samples, "{name}_bucket{} {count}", in_braces(labels, Some("+Inf")));
        let labels = in_braces(labels, None);
        let _ = writeln!(samples, "{name}_sum{labels} {sum_seconds}\n{name}_count{labels} {count}");
    }

    fn family(&mut self, kind: FamilyKind, name: &str, help: &str) -> &mut String {
        let fresh = || (kind, help.to_owned(), String::new());
        &mut self.families.entry(name.to_owned()).or_insert_with(fresh).2
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        let mut text = String::new();
        for (name, (kind, help, samples)) in self.families {
            let help = help.replace('\\', "\\\\").replace('\n', " ");
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n{samples}", kind.word());
        }
        text
    }
}

fn in_braces(labels: Labels<'_>, le: Option<&str>) -> String {
    let escaped = |it: &str| it.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all = labels.iter().map(|(name, value)| (*name, *value)).chain(le.map(|it| ("le", it)));
    let words: Vec<String> =
        all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if words.is_empty() { String::new() } else { format!("{{{}}}", words.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_whole_and_labels_keep_what_is_in_a_name() {
        let mut text = Text::default();
        let family = ("a_bytes", "Bytes\nof it.");
        text.add(FamilyKind::Gauge, family, &[("drive", "/dev/\"x\\\n")], 1.5);
        let times = ("b_seconds", "Times.");
        text.add_histogram(times, &[], [(0.5, 1)].into_iter(), 2, 0.75);
        text.add(FamilyKind::Gauge, family, &[], 2e9);
        assert_eq!(
            text.finish(),
            "# HELP a_bytes Bytes of it.\n# TYPE a_bytes gauge\na_bytes{drive=\"/dev/\\\"x\\\\\\n\"} 1.5\n\
             a_bytes 2000000000\n# HELP b_seconds Times.\n# TYPE b_seconds histogram\n\
             b_seconds_bucket{le=\"0.5\"} 1\nb_seconds_bucket{le=\"+Inf\"} 2\nb_seconds_sum 0.75\n\
             b_seconds_count 2\n"
        );
    }
}
