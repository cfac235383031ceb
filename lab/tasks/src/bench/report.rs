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

/// Reduces rounds of the same cases to one.
pub(super) fn medians(rounds: &[Vec<Measured>]) -> Result<Vec<Row>, String> {
    let Some(first) = rounds.first() else { return Ok(Vec::new()) };
    let median_of = |index: usize, row: &Measured| {
        let same: Option<Vec<&Measured>> = rounds
            .iter()
            .map(|round| round.get(index).filter(|other| other.case == row.case))
            .collect();
        let same = same.ok_or_else(|| format!("rounds differ in the case {}", row.case))?;
        let median_by =
            |figure: fn(&Measured) -> f64| median(same.iter().map(|other| figure(other)).collect());
        let measured = Measured {
            ours: median_by(|other| other.ours),
            theirs: median_by(|other| other.theirs),
            ..row.clone()
        };
        Ok(Row { measured, ratio: median_by(|other| other.ours / other.theirs) })
    };
    first.iter().enumerate().map(|(index, row)| median_of(index, row)).collect()
}

/// The table that is printed.
pub(super) fn table(rows: &[Row]) -> String {
    let cells = |Row { measured: row, ratio }: &Row| {
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

/// The file that is stored: `{"rows":[{case, unit, ours, peer, theirs, ratio}]}`.
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
    fn one_outlier_does_not_move_the_result() {
        let rounds =
            [vec![row("a", 10.0, 5.0)], vec![row("a", 9999.0, 4.0)], vec![row("a", 9.0, 6.0)]];
        let expected = Row { measured: row("a", 10.0, 5.0), ratio: 2.0 };
        assert_eq!(medians(&rounds).unwrap(), [expected]);
    }

    #[test]
    fn a_ratio_is_of_what_was_measured_in_one_round() {
        // The machine is twice as fast in the second round, and ours was measured first in the third.
        let rounds =
            [vec![row("a", 10.0, 10.0)], vec![row("a", 20.0, 20.0)], vec![row("a", 10.0, 20.0)]];
        let [Row { measured, ratio }] = &medians(&rounds).unwrap()[..] else { panic!("one case") };
        assert_eq!((measured.ours, measured.theirs, *ratio), (10.0, 20.0, 1.0));
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
