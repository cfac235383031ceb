//! Figures on their way to users: what JSON and the guide say of them is what their declarations say.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;
use voltier_cache::Mode;
use voltier_control::{
    ArrayDetail, CONDITIONS, Condition, EVENTS, EventKind, Family, FamilyKind, KnownFigures,
    ShownFigure, Smart, SmartFigures, SmartWarning, VolumeStatus, families, of_group,
};

use super::fixture::Fixture;

/// Set to write the tables into the guide.
const WRITE: &str = "VOLTIER_WRITE_GUIDE";

fn volume() -> VolumeStatus {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    let mut volume = fixture.state();
    (volume.lines.loading, volume.reads.hits, volume.writes.bytes) = (1, 2, 3);
    (volume.device_bytes.origin_read, volume.counts.congested_reads) = (4, 5);
    volume.origin.failed_flushes = 6;
    volume.ssd.smart = vec![smart()];
    volume
}

/// A drive that knows two of its figures.
fn smart() -> Smart {
    let figures = KnownFigures {
        percentage_used: Some(3),
        bytes_written: Some(u64::MAX),
        ..KnownFigures::default()
    };
    let warnings = vec![SmartWarning::BackupFailed];
    Smart {
        drive: "/dev/nvme0n1".into(),
        passed: Some(false),
        warnings,
        figures,
        ..Smart::default()
    }
}

fn array() -> ArrayDetail {
    let mut fixture = Fixture::new();
    let (mut array, _) = fixture.ask(fixture.make(&["d1", "d2", "d3"]));
    array.counts.held_ns = 7_000_000;
    array.scrub_found.lost_stripes = 8;
    array.members[1].health.counts.checksum_mended = 9;
    array.members[1].smart = vec![smart()];
    array
}

fn are_shown(figures: impl Iterator<Item = ShownFigure>, json: &Value) {
    for ShownFigure { group, figure, value } in figures {
        let object = if group.is_empty() { json } else { &json[group] };
        let shown = value / figure.unit.counted_per_shown();
        assert_eq!(object[figure.name], shown, "{group} {}: {json:#}", figure.name);
    }
}

#[test]
fn json_has_all_figures_and_brings_them_back() {
    let volume = volume();
    let json = serde_json::to_value(&volume).unwrap();
    are_shown(volume.figures(), &json);
    assert_eq!(
        (&json["hdd_failed_flushes"], &json["device_bytes"]["hdd_read"]),
        (&6.into(), &4.into())
    );
    assert_eq!(json.get("evictions"), None, "it is not listed");
    let drive = &json["ssd"]["smart"][0];
    assert_eq!(
        (&drive["percentage_used"], &drive["warnings"][0]),
        (&3.into(), &"backup_failed".into())
    );
    assert_eq!((drive.get("media_errors"), json["hdd"].get("smart")), (None, None));
    assert_eq!(serde_json::from_value::<VolumeStatus>(json).unwrap(), volume);
    let array = array();
    let json = serde_json::to_value(&array).unwrap();
    are_shown(array.figures(), &json);
    assert_eq!(json["counts"]["held_us"], 7000);
    are_shown(of_group("", &array.members[1].health.counts), &json["members"][1]);
    assert_eq!(serde_json::from_value::<ArrayDetail>(json).unwrap(), array);
}

#[test]
fn a_figure_that_an_older_daemon_lacks_is_zero_and_one_that_is_no_number_an_error() {
    let volume = volume();
    let mut json = serde_json::to_value(&volume).unwrap();
    json.as_object_mut().unwrap().remove("congested_reads");
    json["lines"].as_object_mut().unwrap().remove("loading");
    let old: VolumeStatus = serde_json::from_value(json.clone()).unwrap();
    assert_eq!((old.counts.congested_reads, old.lines.loading), (0, 0));
    json["lines"]["used"] = (-1).into();
    let error = serde_json::from_value::<VolumeStatus>(json).unwrap_err().to_string();
    assert!(error.contains("used is -1, not a number of 0 or more"), "{error}");
}

/// The table of the guide: a row per figure, and one for figures that mean the same in several groups.
fn table(figures: impl Iterator<Item = ShownFigure>) -> String {
    let mut rows: Vec<(String, ShownFigure)> = Vec::new();
    for shown in figures {
        let dot = if shown.group.is_empty() { "" } else { "." };
        let field = format!("`{}{dot}{}`", shown.group, shown.figure.name);
        match rows.iter_mut().find(|(_, row)| row.figure == shown.figure) {
            Some((fields, _)) => *fields += &format!(", {field}"),
            None => rows.push((field, shown)),
        }
    }
    let mut text = "| field | kind | meaning |\n| --- | --- | --- |\n".to_owned();
    for (fields, ShownFigure { figure, .. }) in rows {
        let _ = writeln!(text, "| {fields} | {} | {} |", figure.kind.name(), cell(figure.help));
    }
    text
}

/// A sentence as it is in a table: in lower case, without a full stop.
fn cell(sentence: &str) -> String {
    let sentence = sentence.trim_end_matches('.');
    let is_word = sentence.chars().nth(1).is_some_and(|second| !second.is_uppercase());
    let (first, rest) = sentence.split_at(if is_word { 1 } else { 0 });
    first.to_lowercase() + rest
}

/// Holds a page of the guide to the tables that are made from declarations, or writes them into it.
fn the_page_has(page: &str, test: &str, tables: &[(&str, String)]) {
    let path = Path::new("../../docs/guide").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut right = text.clone();
    for (begin, table) in tables {
        let (before, rest) = right.split_once(begin).expect("the guide has the table");
        let (_, after) = rest.split_once("<!-- end -->").expect("each has an end");
        right = format!("{before}{begin}{table}<!-- end -->{after}");
    }
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(path, &right).unwrap();
        return;
    }
    assert!(
        text == right,
        "docs/guide/{page} does not list all as it is declared: write it with \
         `{WRITE}=1 cargo test -p voltier-control --test it {test}`"
    );
}

#[test]
fn the_guide_lists_all_figures() {
    let array = array();
    let members = of_group("members[]", &array.members[1].health.counts);
    let tables = [
        ("<!-- figures of volumes -->\n", table(volume().figures())),
        ("<!-- figures of arrays -->\n", table(members.chain(array.figures()))),
        ("<!-- figures of drives -->\n", table(of_group("", &SmartFigures::default()))),
    ];
    the_page_has("show.md", "the_guide_lists_all_figures", &tables);
}

#[test]
fn the_guide_lists_all_conditions_and_events() {
    let mut table =
        "| of | condition | state | meaning | next |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for condition in CONDITIONS {
        let Condition { word, part, state, meaning, next } = condition;
        let (part, state) = (part.word(), state.word());
        let _ = writeln!(table, "| {part} | `{word}` | {state} | {meaning} | {next} |");
    }
    let mut events = "| of | kind | severity | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for EventKind { word, part, severity, meaning } in EVENTS {
        let (part, severity) = (part.word(), severity.word());
        let _ = writeln!(events, "| {part} | `{word}` | {severity} | {meaning} |");
    }
    let tables = [("<!-- conditions -->\n", table), ("<!-- events -->\n", events)];
    the_page_has("monitoring.md", "the_guide_lists_all_conditions_and_events", &tables);
}

#[test]
fn the_guide_lists_all_metrics() {
    let mut table = "| metric | type | meaning |\n| --- | --- | --- |\n".to_owned();
    for Family { name, kind, help } in families(&volume(), &array()) {
        let _ = writeln!(table, "| `{name}` | {} | {help} |", kind.word());
    }
    the_page_has("monitoring.md", "the_guide_lists_all_metrics", &[("<!-- metrics -->\n", table)]);
}

/// The words of a text that begin as the names of metrics do.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = text.split(|it| !is_of_name(it));
    words.filter(|word| word.starts_with("voltier_")).collect()
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_exist() {
    let mut names = BTreeSet::new();
    for Family { name, kind, .. } in families(&volume(), &array()) {
        if kind == FamilyKind::Histogram {
            names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
        } else {
            names.insert(name);
        }
    }
    for (file, least) in [("grafana/voltier.json", 20), ("prometheus/voltier.rules.yml", 3)] {
        let text = std::fs::read_to_string(Path::new("../../packaging").join(file)).unwrap();
        let asked = metrics_in(&text);
        let unknown: Vec<_> = asked.iter().filter(|name| !names.contains(**name)).collect();
        assert!(unknown.is_empty(), "packaging/{file} asks for {unknown:?}, which do not exist");
        assert!(asked.len() >= least, "packaging/{file} asks for {asked:?} alone");
    }
}

#[test]
fn the_dashboard_is_whole() {
    let text = std::fs::read_to_string("../../packaging/grafana/voltier.json").unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let variables = list(&dashboard["templating"]["list"]);
    let variables: Vec<_> = variables.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "instance", "volume"]);
    let mut ids = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        assert!(ids.insert(panel["id"].to_string()), "{} is there twice", panel["id"]);
        let title = panel["title"].as_str().unwrap();
        for target in list(&panel["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let asked = target["expr"].as_str().unwrap();
            assert!(asked.contains("$instance"), "{title} shows instances that are not chosen");
        }
    }
}
