//! Measured cases: read from the lines of an example, reduced to medians, shown, stored.

use serde::{Deserialize, Serialize};
use voltier_results::table::{figure, median, render};

use xtask::Failure;

/// One case. An example prints one a line, as JSON:
/// `{"case":"hit read 4k","unit":"IOPS","ours":1.0,"peer":"Open CAS library","theirs":1.0}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measured {
    /// The case; the same words in every run, so that runs can be compared.
    pub(super) case: String,
    /// Of both figures.
    pub(super) unit: String,
    /// Voltier.
    pub(super) ours: f64,
    /// The peer of the comparison.
    pub(super) peer: String,
    /// The peer, in the same run, or published.
    pub(super) theirs: f64,
}

/// A case of several rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    /// The medians of both figures.
    #[serde(flatten)]
    measured: Measured,
    /// The median of the rounds' own ratios. Measurements one after the other are compared, so that a
    /// machine that is slower for a while does not count.
    ratio: f64,
    /// The least and the greatest of these ratios, if there was more than one round.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<[f64; 2]>,
}

#[derive(Serialize)]
struct Stored<'a> {
    rows: &'a [Row],
}

/// Reads an example's output: one case a line, nothing else.
pub(super) fn parse_lines(text: &str) -> Result<Vec<Measured>, Failure> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|error| format!("not a case: {line}: {error}").into())
        })
        .collect()
}

/// Lines of rounds that were taken case by case: the first of each case, the second of each, and so on.
pub(super) fn rounds_of(lines: Vec<Measured>) -> Vec<Vec<Measured>> {
    let mut rounds: Vec<Vec<Measured>> = Vec::new();
    let mut round = 0;
    let mut before: Option<String> = None;
    for line in lines {
        round = if before.is_some_and(|case| case == line.case) { round + 1 } else { 0 };
        before = Some(line.case.clone());
        if rounds.len() == round {
            rounds.push(Vec::new());
        }
        rounds[round].push(line);
    }
    rounds
}

/// Reduces rounds of the same cases to one.
pub(super) fn medians(rounds: &[Vec<Measured>]) -> Result<Vec<Row>, String> {
    let Some(first) = rounds.first() else { return Ok(Vec::new()) };
    // Not by their places: a round may have them in another order.
    let is_same =
        |row: &Measured, other: &Measured| other.case == row.case && other.peer == row.peer;
    let median_of = |row: &Measured| {
        let find = |round: &'_ Vec<Measured>| round.iter().position(|other| is_same(row, other));
        let same: Option<Vec<&Measured>> =
            rounds.iter().map(|round| find(round).map(|place| &round[place])).collect();
        let same = same.ok_or_else(|| format!("rounds differ in the case {}", row.case))?;
        let median_by =
            |figure: fn(&Measured) -> f64| median(same.iter().map(|other| figure(other)).collect());
        let measured = Measured {
            ours: median_by(|other| other.ours),
            theirs: median_by(|other| other.theirs),
            ..row.clone()
        };
        let ratios = || same.iter().map(|other| other.ours / other.theirs);
        let spread = [ratios().fold(f64::MAX, f64::min), ratios().fold(0.0, f64::max)];
        let spread = (same.len() > 1).then_some(spread);
        Ok(Row { measured, ratio: median(ratios().collect()), spread })
    };
    first.iter().map(median_of).collect()
}

/// Of the cases of each kind and peer the one with the lowest ratio, in the order of the kinds.
pub(super) fn lowest(rows: &[Row], kind: impl Fn(&str) -> &str) -> Vec<Row> {
    let mut lowest: Vec<Row> = Vec::new();
    for row in rows {
        let is_like = |other: &Row| {
            kind(&other.measured.case) == kind(&row.measured.case)
                && other.measured.peer == row.measured.peer
        };
        match lowest.iter_mut().find(|other| is_like(other)) {
            Some(other) if other.ratio <= row.ratio => (),
            Some(other) => *other = row.clone(),
            None => lowest.push(row.clone()),
        }
    }
    lowest
}

/// For each kind of cases how many of them are below a bar, and the lowest, with its spread.
pub(super) fn summary(rows: &[Row], bar: f64, kind: impl Fn(&str) -> &str + Copy) -> String {
    let cells = |row: &Row| {
        let own = kind(&row.measured.case);
        let alike = || rows.iter().filter(|other| kind(&other.measured.case) == own);
        let below = alike().filter(|other| other.ratio < bar).count();
        let place = row.measured.case.strip_prefix(own).unwrap_or_default();
        let spread = row.spread.map(|[least, most]| format!("{least:.2}-{most:.2}"));
        vec![
            own.to_owned(),
            format!("{below} of {}", alike().count()),
            format!("{:.2}", median(alike().map(|other| other.ratio).collect())),
            format!("{:.2}", row.ratio),
            spread.unwrap_or_default(),
            place.trim_start_matches(", ").to_owned(),
        ]
    };
    let cells: Vec<Vec<String>> = lowest(rows, kind).iter().map(cells).collect();
    render(&["kind", &format!("below {bar}"), "median", "lowest", "spread", "where"], &cells)
}

/// The table that is printed.
pub(super) fn table(rows: &[Row]) -> String {
    let cells = |Row { measured: row, ratio, .. }: &Row| {
        vec![
            row.case.clone(),
            row.unit.clone(),
            figure(row.ours),
            row.peer.clone(),
            figure(row.theirs),
            figure(*ratio),
        ]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    render(&["case", "unit", "ours", "peer", "theirs", "ratio"], &cells)
}

/// The file that is stored: `{"rows":[{case, unit, ours, peer, theirs, ratio, spread}]}`.
pub(super) fn json(rows: &[Row]) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(&Stored { rows })? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, ours: f64, theirs: f64) -> Measured {
        Measured { case: case.into(), unit: "IOPS".into(), ours, peer: "p".into(), theirs }
    }

    #[test]
    fn the_stored_file_has_exactly_the_documented_fields() {
        let rows = medians(&[vec![row("a", 90.0, 100.0)]]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json(&rows).unwrap()).unwrap();
        let expected = serde_json::json!({"rows": [{
            "case": "a", "unit": "IOPS", "ours": 90.0, "peer": "p", "theirs": 100.0, "ratio": 0.9
        }]});
        assert_eq!(value, expected);
    }

    #[test]
    fn the_lowest_of_each_kind_and_peer_is_found() {
        let other = |row: Measured| Measured { peer: "q".into(), ..row };
        let rows = [row("a 1", 2.0, 1.0), row("b 1", 4.0, 1.0), row("a 2", 1.0, 1.0)];
        let rows = medians(&[[&rows[..], &[other(row("a 1", 3.0, 1.0))]].concat()]).unwrap();
        let lowest = lowest(&rows, |case| &case[..1]);
        let shown: Vec<_> = lowest.iter().map(|row| (&*row.measured.case, row.ratio)).collect();
        assert_eq!(shown, [("a 2", 1.0), ("b 1", 4.0), ("a 1", 3.0)]);
    }

    #[test]
    fn one_outlier_does_not_move_the_result() {
        let rounds =
            [vec![row("a", 10.0, 5.0)], vec![row("a", 9999.0, 4.0)], vec![row("a", 9.0, 6.0)]];
        let spread = Some([1.5, 9999.0 / 4.0]);
        let expected = Row { measured: row("a", 10.0, 5.0), ratio: 2.0, spread };
        assert_eq!(medians(&rounds).unwrap(), [expected]);
    }

    #[test]
    fn a_ratio_is_of_what_was_measured_in_one_round() {
        // The machine is twice as fast in the second round, and ours was measured first in the third.
        let rounds =
            [vec![row("a", 10.0, 10.0)], vec![row("a", 20.0, 20.0)], vec![row("a", 10.0, 20.0)]];
        let [Row { measured, ratio, .. }] = &medians(&rounds).unwrap()[..] else {
            panic!("one case")
        };
        assert_eq!((measured.ours, measured.theirs, *ratio), (10.0, 20.0, 1.0));
    }

    #[test]
    fn rounds_may_have_their_cases_in_another_order() {
        let rounds = [
            vec![row("a", 1.0, 1.0), row("b", 4.0, 1.0)],
            vec![row("b", 4.0, 1.0), row("a", 1.0, 1.0)],
        ];
        let rows = medians(&rounds).unwrap();
        assert_eq!(rows.iter().map(|row| row.ratio).collect::<Vec<_>>(), [1.0, 4.0]);
    }

    #[test]
    fn rounds_taken_case_by_case_are_put_apart_and_summed_up_by_kind() {
        let lines =
            [("a 1", 9.0), ("a 1", 7.0), ("a 1", 8.0), ("a 2", 5.0), ("a 2", 5.0), ("a 2", 6.0)];
        let lines = lines.map(|(case, ours)| row(case, ours, 10.0));
        let rows = medians(&rounds_of(lines.to_vec())).unwrap();
        let summary = summary(&rows, 0.9, |case| &case[..1]);
        let words: Vec<&str> = summary.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words.join(" "), "a 2 of 2 0.65 0.50 0.50-0.60 2");
    }

    #[test]
    fn rounds_that_measured_different_things_are_not_mixed() {
        assert!(medians(&[vec![row("a", 1.0, 1.0)], vec![row("b", 1.0, 1.0)]]).is_err());
    }

    #[test]
    fn lines_are_read_and_anything_else_is_refused() {
        let line = r#"{"case":"a","unit":"IOPS","ours":1.0,"peer":"p","theirs":2.0}"#;
        assert_eq!(parse_lines(&format!("{line}\n\n")).unwrap(), [row("a", 1.0, 2.0)]);
        assert!(parse_lines("warming up\n").is_err());
    }
}
