//! Everything a person writes on the command line: devices, exports, sizes, names, settings.
//!
//! A spec that the parser takes must come back the same when it is written out and read again. The
//! parser must refuse any other in one line.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{LineSize, Mode};
use voltier_control::{
    ARRAY_KEYS, ArrayLevel, ArrayName, ArraySettings, Consistency, ControlError, ControlResult,
    DeviceSpec, EXPORT_KINDS, ExportSpec, Integrity, KEYS, LINE_BYTES, NbdAddress, Settings,
    StateDir, VolumeName, Word, exact_size, format_size, nearest, parse_chunk_bytes,
    parse_line_bytes, parse_size, parse_word,
};

/// Feeds one text to every parser.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    devices(text);
    exports(text);
    sizes(text);
    names(text);
    levels(text);
    settings(text);
}

fn judged<T>(outcome: ControlResult<T>) -> Option<T> {
    outcome.map_err(|error| one_line(&error)).ok()
}

fn one_line(error: &ControlError) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains(['\n', '\r']), "not one line: {text:?}");
}

/// Reads what was written out; it must be the same.
fn again<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(value: &T) {
    let text = value.to_string();
    let read = text.parse::<T>().unwrap_or_else(|error| panic!("{value:?} as {text:?}: {error:?}"));
    assert_eq!(read, *value, "written as {text:?}");
    assert_eq!(read.to_string(), text);
}

fn devices(text: &str) {
    let Some(device) = judged(text.parse::<DeviceSpec>()) else { return };
    again(&device);
    let json = serde_json::to_string(&device).expect("a device is a text");
    assert_eq!(serde_json::from_str::<DeviceSpec>(&json).expect("its own text"), device);
    if let Some(full) = judged(device.clone().absolute()) {
        again(&full);
        assert!(full.path().is_none_or(Path::is_absolute));
        assert_eq!(full.is_volatile(), device.is_volatile());
        assert_eq!(judged(full.clone().absolute()), Some(full));
    }
}

fn exports(text: &str) {
    if let Ok(export) = serde_json::from_str::<ExportSpec>(text) {
        let json = serde_json::to_string(&export).expect("an export is plain");
        assert_eq!(serde_json::from_str::<ExportSpec>(&json).expect("its own text"), export);
    }
    let name: VolumeName = "disk".parse().expect("a name");
    let state = StateDir::at(Path::new("/run/voltier")).expect("a folder");
    for kind in EXPORT_KINDS {
        let Some(export) = judged((kind.read)(text, &state, &name)) else { continue };
        let option = export.option();
        let value = option.strip_prefix(&format!("--{} ", kind.word)).expect("its option");
        assert_eq!(judged((kind.read)(value, &state, &name)), Some(export));
    }
    let Some(address) = judged(text.parse::<NbdAddress>()) else { return };
    again(&address);
    let uri = ExportSpec::Nbd(address.clone()).uri(&name);
    assert!(!uri.contains(char::is_whitespace) && uri.is_ascii(), "{uri:?}");
    if let Some(full) = judged(address.absolute()) {
        again(&full);
    }
}

fn sizes(text: &str) {
    if let Some(bytes) = judged(parse_size(text)) {
        assert!(bytes <= i64::MAX as u64);
        assert_eq!(judged(parse_size(&exact_size(bytes))), Some(bytes));
        let shown = format_size(bytes);
        let near = judged(parse_size(&shown)).expect("a table's size is a size");
        // Rounded down to three digits or more: never by a tenth or more.
        assert!(near <= bytes && bytes - near <= bytes / 10, "{bytes} shown as {shown}");
    }
    if let Some(bytes) = judged(parse_line_bytes(text)) {
        assert!(LINE_BYTES.contains(&bytes) && LineSize::new(bytes.into()).is_ok());
    }
}

fn names(text: &str) {
    if let Some(name) = judged(text.parse::<VolumeName>()) {
        again(&name);
        assert_eq!(name.as_str(), text);
    }
    if let Some(name) = judged(text.parse::<ArrayName>()) {
        again(&name);
        assert_eq!(name.as_str(), text);
    }
    let _ = nearest(text, &["mode", "policy", "admission"]);
}

fn levels(text: &str) {
    if let Some(level) = judged(text.parse::<ArrayLevel>()) {
        again(&level);
        let shape = ArrayLevel::of_word(&level.word(), level.group(), 8);
        assert_eq!(judged(shape), Some(level));
        for members in [0, 8, usize::MAX] {
            judged(level.check(members, level.default_chunk_bytes()));
        }
    }
    judged(parse_chunk_bytes(text));
    words::<Consistency>(text);
    words::<Integrity>(text);
}

fn words<T: Word>(text: &str) {
    if let Some(kind) = judged(parse_word::<T>(text)) {
        assert!(kind.name().eq_ignore_ascii_case(text));
    }
}

fn settings(text: &str) {
    words::<Mode>(text);
    words::<PolicyKind>(text);
    if let Ok(admission) = text.parse::<AdmissionKind>() {
        again(&admission);
    }
    if let Ok(settings) = serde_json::from_str::<Settings>(text) {
        same_in_json(&settings);
        let _ = settings.for_format([0; 16]).map_err(|error| one_line(&error));
    }
    let mut settings = Settings::default();
    for pair in text.split([' ', '\n']) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let before = settings.clone();
        if judged(settings.apply(key, value)).is_none() {
            assert_eq!(settings, before, "a refused {pair:?} changes nothing");
        }
    }
    same_in_json(&settings);
    let checked = judged(settings.check()).is_some();
    assert_eq!(checked, settings.for_cache().check().is_ok());
    let mut again = Settings::default();
    for key in KEYS {
        judged(again.apply(key.name, &(key.text)(&settings))).expect("what is shown is taken");
    }
    assert_eq!(again, settings);
    array_settings(text);
}

fn array_settings(text: &str) {
    let mut settings = ArraySettings::default();
    for pair in text.split([' ', '\n']) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let before = settings.clone();
        if judged(settings.apply(key, value)).is_none() {
            assert_eq!(settings, before, "a refused {pair:?} changes nothing");
        }
    }
    let mut again = ArraySettings::default();
    for key in ARRAY_KEYS {
        judged(again.apply(key.name, &(key.text)(&settings))).expect("what is shown is taken");
    }
    assert_eq!(again, settings);
}

fn same_in_json(settings: &Settings) {
    let json = serde_json::to_string(settings).expect("settings are plain");
    assert_eq!(serde_json::from_str::<Settings>(&json).expect("its own text"), *settings);
}
