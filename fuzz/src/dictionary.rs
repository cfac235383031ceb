//! What the product's own tables add to the dictionaries in `dictionaries`: words of choices, keys, and the
//! names of settings in JSON.

use std::collections::BTreeSet;

use serde::Serialize;
use voltier_control::{
    ARRAY_KEYS, ARRAY_KIND, ArrayLevel, ArraySettings, Consistency, DRIVE_KINDS, EXPORT_KINDS,
    Integrity, KEYS, Key, Settings, Word,
};

/// The lines of a target that is fed words: one quoted entry each, as the engine takes them.
pub fn dictionary(target: &str) -> BTreeSet<String> {
    let mut words = Consistency::names();
    words.extend(Integrity::names());
    words.extend(EXPORT_KINDS.iter().map(|kind| kind.word));
    let drives = DRIVE_KINDS.iter().chain([&ARRAY_KIND]);
    words.extend(drives.flat_map(|kind| kind.examples.iter().copied()));
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    words.extend(ArrayLevel::words());
    let mut names = Vec::new();
    add(KEYS, &Settings::default(), &mut words, &mut names);
    add(ARRAY_KEYS, &ArraySettings::default(), &mut words, &mut names);
    let in_json = |word: &String| format!(r#""\"{word}\"""#);
    match target {
        "control" | "registry" => words.iter().chain(&names).map(in_json).collect(),
        "specs" => {
            let keys = KEYS.iter().map(|key| key.name).chain(ARRAY_KEYS.iter().map(|key| key.name));
            let typed = keys.map(|key| format!("{key}=")).chain(words);
            typed.map(|entry| format!("\"{entry}\"")).chain(names.iter().map(in_json)).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// The words that these keys take, and the names of these settings.
fn add<S: Serialize>(keys: &[Key<S>], of: &S, words: &mut Vec<String>, names: &mut Vec<String>) {
    let values: Vec<String> = keys.iter().map(|key| (key.values)()).collect();
    let values = values.iter().flat_map(|values| values.split('|'));
    let is_word = |value: &&str| value.starts_with(|first: char| first.is_ascii_lowercase());
    words.extend(values.filter(is_word).map(|value| value.replace(":N", ":2")));
    names_in(&serde_json::to_value(of).expect("settings are plain"), names);
}

fn names_in(value: &serde_json::Value, names: &mut Vec<String>) {
    for (name, below) in value.as_object().into_iter().flatten() {
        names.push(name.clone());
        names_in(below, names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keys_and_names_are_in_the_form_of_each_target() {
        let has = |target, entry: &str| dictionary(target).contains(entry);
        for word in
            ["lru", "wb", "touches:2", "journal", "7.3", "dirty_high_percent", "slow_factor"]
        {
            assert!(has("control", &format!(r#""\"{word}\"""#)), "{word}");
            assert_eq!(dictionary("control"), dictionary("registry"));
        }
        for entry in ["lru", "touches:2", "policy=", "merge_wait=", r#"\"deadline_s\""#] {
            assert!(has("specs", &format!("\"{entry}\"")), "{entry}");
        }
        assert!(dictionary("results").is_empty());
    }
}
