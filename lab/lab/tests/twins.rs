//! Every twin in its short form. Virtual time is the same every time, so figures may be asserted.

use serde_json::Value;
use voltier_lab::twin::report::Verdict;
use voltier_lab::twin::{Extent, Report, Twin};

/// The most that a model may be off in any cell.
const CALIBRATION_BAR: f64 = 0.05;

fn quick(twin: Twin) -> Report {
    let report = twin.run(Extent::Quick);
    let line = report.calibration.line();
    assert!(report.calibration.error() <= CALIBRATION_BAR, "{twin}: {line}");
    assert!(!report.calibration.cells.is_empty() && !report.rows.is_empty());
    let json: Value = serde_json::from_str(&report.json()).expect("JSON");
    assert!(json["calibration_error"].as_f64().is_some_and(|error| error <= CALIBRATION_BAR));
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), report.rows.len());
    for row in rows {
        assert!(row["case"].as_str().is_some_and(|case| !case.is_empty()));
        for field in ["published", "hardware", "twin_hardware", "voltier", "ratio"] {
            assert!(row[field].as_f64().is_some_and(|figure| figure > 0.0), "{field} of {row}");
        }
        let [twin_hardware, voltier] = ["twin_hardware", "voltier"].map(|it| row[it].as_f64());
        let ratio = voltier.unwrap() / twin_hardware.unwrap();
        assert!((row["ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9);
    }
    let text = report.text();
    assert!(text.contains("This is a simulation") && text.contains("calibration error"), "{text}");
    report
}

fn ratio(report: &Report, case: &str) -> f64 {
    report.rows.iter().find(|row| row.case == case).expect("a row").ratio
}

#[test]
fn maxio_keeps_the_ssds_rates_and_writes_at_random_half_as_fast_again() {
    let report = quick(Twin::Maxio);
    assert_eq!(report.rows.len(), 14);
    for row in &report.rows {
        let least = if row.case.ends_with("jobs apart") { 0.85 } else { 0.97 };
        assert!(row.ratio >= least, "{row:?}");
        assert_ne!(row.verdict, Verdict::Shown, "jobs apart are held to the published figure too");
    }
    let same = report.rows.iter().find(|row| row.case == "rand read, SATA SSD").expect("a row");
    assert_eq!(same.verdict, Verdict::Indistinguishable, "0.4 % is less than the model is off");
    for case in ["rand write, SATA SSD", "rand write, PCIe SSD"] {
        assert!(ratio(&report, case) >= 1.5, "{case}: {}", ratio(&report, case));
    }
}

#[test]
fn era_is_held_against_the_default_and_no_bound_excuses_a_loss() {
    let report = quick(Twin::Era);
    for row in &report.rows {
        assert_eq!(row.consistency, Some("journal"), "the default of `array create`: {row:?}");
        let error = report.calibration.error();
        assert_eq!(row.verdict, Verdict::of(row.ratio, row.published_ratio, error), "{row:?}");
        let bound = row.bound.expect("every cell has a bound");
        assert!(row.ratio <= bound * 1.1, "beyond what is possible: {row:?}");
        assert!(row.note.starts_with("bitmap "), "{row:?}");
    }
    let of = |case: &str| report.rows.iter().find(|row| row.case == case).expect("a row").verdict;
    assert_eq!(of("random 4k, 0 % reads"), Verdict::Lost);
    assert_eq!(of("random 4k, 100 % reads"), Verdict::Won);
    let headline = report.headline();
    assert!(headline.starts_with("won ") && headline.contains("of 5 "), "{headline}");
    assert!(report.text().lines().nth(1) == Some(headline.as_str()), "{}", report.text());
}

#[test]
fn the_demonstration_shows_writes_and_reads_of_era() {
    let report = voltier_lab::twin::era_random_4k();
    let cases: Vec<&str> = report.rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(cases, ["random 4k, 0 % reads", "random 4k, 100 % reads"]);
    for row in &report.rows {
        let bound = row.bound.expect("every cell has a bound");
        assert!(row.ratio <= bound * 1.05, "beyond what is possible: {row:?}");
    }
}

#[test]
fn maxiq_learns_the_hot_files() {
    let report = quick(Twin::Maxiq);
    for row in &report.rows {
        assert_eq!(row.verdict, Verdict::Won, "{row:?}");
    }
}

#[test]
fn fusionio_has_its_knees_where_the_article_sees_them() {
    let report = quick(Twin::Fusionio);
    for row in &report.rows {
        assert_eq!(row.verdict, Verdict::Indistinguishable, "a volume costs nothing: {row:?}");
        let off = row.twin_hardware / row.published - 1.0;
        assert!(off.abs() <= 0.1, "the model of the card: {row:?}");
    }
}

#[test]
fn cubefs_is_bound_by_one_client_and_by_the_nodes_of_many_and_scales_as_published() {
    let report = quick(Twin::Cubefs);
    let rate = |case: &str| report.rows.iter().find(|row| row.case == case).expect("a row").voltier;
    let scaling =
        |work: &str| rate(&format!("{work}, 8 x 64")) / (8.0 * rate(&format!("{work}, 1 x 64")));
    assert!(scaling("seq read 128k") > 0.95);
    assert!((0.35..0.45).contains(&scaling("seq write 128k")), "{}", scaling("seq write 128k"));
    assert!((0.5..0.6).contains(&scaling("rand read 4k")), "{}", scaling("rand read 4k"));
    assert!((0.28..0.34).contains(&scaling("rand write 4k")), "{}", scaling("rand write 4k"));
}

#[test]
fn a_twin_is_the_same_every_time_and_an_unknown_one_lists_those_there_are() {
    assert_eq!(quick(Twin::Maxiq).json(), quick(Twin::Maxiq).json());
    let message = "floppy".parse::<Twin>().unwrap_err();
    assert!(Twin::ALL.iter().all(|(name, _)| message.contains(name)), "{message}");
}
