//! Tables of the documentation that list kinds or keys, held against those of the code: all are there, in the same
//! order, with their defaults and their words.

use std::fs;
use std::path::Path;

use voltier_array::{Consistency, Integrity};
use voltier_cache::Mode;
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_control::{ARRAY_KEYS, ArrayLevel, ArraySettings, KEYS, Key, Settings, Word};

fn page(path: &str) -> String {
    fs::read_to_string(Path::new("../../docs").join(path)).unwrap()
}

/// The rows of all tables of a page whose header begins with this cell.
fn rows(path: &str, header: &str) -> Vec<Vec<String>> {
    let page = page(path);
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let tables = page.split("\n\n").filter(|block| block.starts_with(&format!("| {header} |")));
    let rows: Vec<_> = tables.flat_map(|table| table.lines().skip(2).map(cells)).collect();
    assert!(!rows.is_empty(), "{path} has no table that begins with {header}");
    rows
}

/// What stands in backticks.
fn words(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A table that lists kinds, one in a row, and says which is the default.
fn lists(path: &str, header: &str, kinds: &[impl AsRef<str>], default: &str) {
    let rows = rows(path, header);
    let listed: Vec<&str> =
        rows.iter().flat_map(|row| words(&row[0]).into_iter().take(1)).collect();
    let kinds: Vec<&str> = kinds.iter().map(AsRef::as_ref).collect();
    assert_eq!(listed, kinds, "{path}, the table of {header}");
    let marked = rows.iter().filter(|row| row.iter().any(|cell| cell.ends_with("(the default)")));
    let marked: Vec<&str> = marked.map(|row| words(&row[0])[0]).collect();
    assert_eq!(marked, [default], "{path}, the default of {header}");
}

#[test]
fn modes_policies_and_admissions_are_those_of_the_guide() {
    let (path, settings) = ("guide/modes-and-policies.md", Settings::default());
    lists(path, "`-t`", &Mode::names(), settings.mode.name());
    lists(path, "`-r`", &PolicyKind::names(), settings.policy.name());
    let admissions = AdmissionKind::ALL.map(AdmissionKind::form);
    lists(path, "`set NAME admission=`", &admissions, &settings.admission.form());
}

#[test]
fn levels_and_the_choices_of_a_new_array_are_those_of_the_guide() {
    let path = "guide/arrays.md";
    let rows = rows(path, "`--level`");
    let listed: Vec<&str> = rows.iter().flat_map(|row| words(&row[0])).collect();
    let levels: Vec<String> = ArrayLevel::words().into_iter().chain(["N+M".into()]).collect();
    assert_eq!(
        listed.iter().filter(|word| !word.starts_with("--")).collect::<Vec<_>>(),
        levels.iter().collect::<Vec<_>>()
    );
    lists(path, "`--consistency`", &Consistency::names(), Consistency::default().name());
    let integrity =
        self::rows(path, "option").into_iter().find(|row| row[0] == "`--integrity`").unwrap();
    assert!(Integrity::ALL.iter().all(|kind| words(&integrity[1]).contains(&kind.name())));
    assert_eq!(words(&integrity[2]), [Integrity::default().name()]);
}

/// Rows of `key, values, default`; a row may have several keys.
fn lists_keys<S: Default>(rows: &[Vec<String>], keys: &[&'static Key<S>]) {
    let listed: Vec<&str> = rows.iter().flat_map(|row| words(&row[0])).collect();
    assert_eq!(listed, keys.iter().map(|key| key.name).collect::<Vec<_>>());
    for key in keys {
        let row = rows.iter().find(|row| words(&row[0]).contains(&key.name)).unwrap();
        let default = (key.text)(&S::default());
        let said = row[2].replace('`', "");
        assert_eq!(said.split(' ').next(), Some(&*default), "the default of {}", key.name);
        // Where a page of its own lists the values, the cell has a link to it.
        for word in (key.values)().split('|').filter(|word| !row[1].contains("](") && *word != "N")
        {
            let is_there = words(&row[1]).contains(&word) || word.chars().all(char::is_uppercase);
            assert!(is_there, "{} has no {word} in the guide", key.name);
        }
    }
}

#[test]
fn keys_of_settings_are_those_of_the_guide() {
    lists_keys(&rows("guide/settings.md", "key"), &KEYS.iter().collect::<Vec<_>>());
    let of_tables = ARRAY_KEYS.iter().filter(|key| key.name != "spare_pool");
    let mut of_tables: Vec<_> = of_tables.collect();
    let rows = rows("guide/arrays.md", "`array set NAME`");
    let place = |key: &&Key<_>| {
        rows.iter().flat_map(|row| words(&row[0])).position(|word| word == key.name)
    };
    of_tables.sort_by_key(place);
    lists_keys::<ArraySettings>(&rows, &of_tables);
    assert!(page("guide/arrays.md").contains("array set NAME spare_pool=POOL"));
}

#[test]
fn the_format_of_the_registry_names_every_setting() {
    let page = page("formats/registry.md");
    let settings = serde_json::to_value(Settings::default()).unwrap();
    let of_arrays = serde_json::to_value(ArraySettings::default()).unwrap();
    let groups = of_arrays.as_object().unwrap();
    let of_groups =
        groups.values().filter_map(|group| group.as_object()).flatten().map(|(name, _)| name);
    for name in settings.as_object().unwrap().keys().chain(groups.keys()).chain(of_groups) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
