//! Keys of `voltier set` and `voltier array set`. Each is one row of a table, which parser, messages, help,
//! dictionaries of the fuzz targets and tests go by; a test holds the guide's tables against it.

use voltier_block::Word;
use voltier_block::size::exact_size;
use voltier_cache::MaxUnshipped as LeastUnshipped;
use voltier_cache::admission::AdmissionKind;

use crate::error::{ControlError, ControlResult};
use crate::max_unshipped::MaxUnshipped;
use crate::name::PoolName;
use crate::suggest;
use crate::units::{parse_duration, parse_size, parse_wait_us, seconds_text, wait_text};
use crate::words::parse_word;

/// Longest window or deadline, in seconds: a month.
pub(crate) const WINDOW_S_MAX: u64 = 31 * 86_400;
/// Longest that a small write waits, in microseconds.
pub(crate) const MERGE_US_MAX: u64 = 100_000;
/// No queue of an SSD in order is longer.
const CONGESTED_US_MAX: u64 = 10_000_000;
/// The words for no cut-off, no deadline, no congestion; and for no pool of spares.
const OFF: &str = "off";
const NO_POOL: &str = "none";

/// One key: a row of the table of all keys of these settings.
#[derive(Debug)]
pub struct Key<S> {
    /// The word before the `=`.
    pub name: &'static str,
    /// The meaning, as help has it.
    pub help: &'static str,
    /// The words behind the `=`, and in capitals what stands for a value, with `|` between them.
    pub values: fn() -> String,
    pub(crate) apply: fn(&mut S, &str) -> ControlResult<()>,
    /// The value of these settings, as the command line takes it.
    pub text: fn(&S) -> String,
}

/// A table of keys: name, form of the value, field of the settings, meaning.
macro_rules! keys {
    ($of:ty: $($name:literal, $form:expr, $($field:ident).+, $help:literal;)+) => {
        &[$($crate::keys::Key {
            name: $name,
            help: $help,
            values: $form.values,
            apply: |settings: &mut $of, text| {
                settings.$($field).+ = ($form.parse)($name, text)?;
                Ok(())
            },
            text: |settings: &$of| ($form.text)(&settings.$($field).+),
        }),+]
    };
}
pub(crate) use keys;

/// The key of this name; none of another name.
pub(crate) fn find<S>(keys: &'static [Key<S>], name: &str) -> Option<&'static Key<S>> {
    keys.iter().find(|key| key.name == name)
}

/// Which keys there are, the nearest one to `name` before all; `more` are keys that are no settings.
pub(crate) fn hint<S>(keys: &[Key<S>], more: &[&str], name: &str) -> String {
    let names: Vec<&str> = keys.iter().map(|key| key.name).chain(more.iter().copied()).collect();
    suggest::hint(name, &names)
}

/// The keys for `--help`, one a line: values, meaning, default.
pub fn keys_help<S: Default>(keys: &[Key<S>]) -> String {
    let defaults = S::default();
    let line = |key: &Key<S>| {
        let (pair, default) = (format!("{}={}", key.name, (key.values)()), (key.text)(&defaults));
        format!("\n  {pair:<37}  {} [default: {default}]", key.help)
    };
    keys.iter().map(line).collect()
}

/// The values of one key for `--help`: `wt, wb, ro, wo, pt [default: wt]`.
pub fn values_help<S: Default>(keys: &'static [Key<S>], name: &str) -> String {
    find(keys, name).map_or_else(String::new, |key| {
        let default = (key.text)(&S::default());
        format!("{} [default: {default}]", (key.values)().replace('|', ", "))
    })
}

/// How the value of a key is written.
pub(crate) struct Form<T> {
    pub(crate) values: fn() -> String,
    pub(crate) parse: fn(key: &str, text: &str) -> ControlResult<T>,
    pub(crate) text: fn(&T) -> String,
}

/// A word of a choice.
pub(crate) const fn one_of<T: Word>() -> Form<T> {
    Form {
        values: || T::names().join("|"),
        parse: |_, text| parse_word(text),
        text: |value| value.name().to_owned(),
    }
}

pub(crate) const ADMISSION: Form<AdmissionKind> = Form {
    values: || AdmissionKind::ALL.map(AdmissionKind::form).join("|"),
    parse: |key, text| {
        text.parse().map_err(|error| {
            ControlError::usage(format!("{key}=`{}`: {error}", text.escape_default()))
        })
    },
    text: ToString::to_string,
};

pub(crate) const SWITCH: Form<bool> = Form {
    values: || "on|off".to_owned(),
    parse: |key, text| match text {
        "on" | "yes" | "true" | "1" => Ok(true),
        OFF | "no" | "false" | "0" => Ok(false),
        _ => {
            Err(ControlError::usage(format!("{key}=`{}`: write on or off", text.escape_default())))
        }
    },
    text: |is_on| if *is_on { "on" } else { OFF }.to_owned(),
};

pub(crate) const SIZE: Form<u64> = Form {
    values: || "SIZE".to_owned(),
    parse: |_, text| parse_size(text),
    text: |bytes| exact_size(*bytes),
};

/// Bytes; 0 is off.
pub(crate) const SIZE_OR_OFF: Form<u64> = Form {
    values: || "SIZE|off".to_owned(),
    parse: |key, text| match text {
        OFF | "none" => Ok(0),
        size => parse_size(size).map_err(|_| {
            let shown = text.escape_default();
            ControlError::usage(format!("{key}=`{shown}`: write a size such as 1M, or off"))
        }),
    },
    text: |bytes| or_off(*bytes, exact_size),
};

/// Least limit in bytes a second: below it the largest lines would go out one by one, seconds apart.
const RATE_MIN: u64 = 64 << 10;

/// Bytes a second; 0 is off.
pub(crate) const RATE_OR_OFF: Form<u64> = Form {
    values: || "SIZE|off".to_owned(),
    parse: |key, text| match (SIZE_OR_OFF.parse)(key, text) {
        Ok(rate) if rate == 0 || rate >= RATE_MIN => Ok(rate),
        _ => Err(ControlError::usage(format!(
            "{key}=`{}`: write bytes a second such as 20M, at least 64K, or off",
            text.escape_default()
        ))),
    },
    text: SIZE_OR_OFF.text,
};

pub(crate) const PERCENT: Form<u8> = Form {
    values: || "PERCENT".to_owned(),
    parse: |key, text| match text.trim_end_matches('%').parse() {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err(ControlError::usage(format!(
            "{key}=`{}`: write a percentage from 0 to 100",
            text.escape_default()
        ))),
    },
    text: ToString::to_string,
};

/// Microseconds of congestion; 0 is off.
pub(crate) const CONGESTED_US: Form<u32> = Form {
    values: || "TIME|off".to_owned(),
    parse: |key, text| match text {
        OFF | "none" => Ok(0),
        time => parse_wait_us(time, CONGESTED_US_MAX).map(|us| us as u32).ok_or_else(|| {
            let shown = text.escape_default();
            ControlError::usage(format!("{key}=`{shown}`: write a time from 1us to 10s, or off"))
        }),
    },
    text: |us| or_off((*us).into(), wait_text),
};

/// Microseconds that a small write waits.
pub(crate) const MERGE_US: Form<u64> = Form {
    values: || "TIME".to_owned(),
    parse: |_, text| {
        parse_wait_us(text, MERGE_US_MAX).ok_or_else(|| {
            let shown = text.escape_default();
            ControlError::usage(format!(
                "`{shown}` is not a time to wait; write 1us to 100ms: 50us"
            ))
        })
    },
    text: |us| wait_text(*us),
};

/// Seconds, from a number with `s`, `m`, `h` or `d` behind it.
pub(crate) const WINDOW_S: Form<u64> = Form {
    values: || "TIME".to_owned(),
    parse: |_, text| {
        window_s(text).ok_or_else(|| {
            let shown = text.escape_default();
            ControlError::usage(format!(
                "`{shown}` is not a window; write 1s to 31d, with s, m, h or d: 90s, 1h"
            ))
        })
    },
    text: |seconds| seconds_text(*seconds),
};

/// Seconds as a window has them; 0 is off.
pub(crate) const DEADLINE_S: Form<u64> = Form {
    values: || "TIME|off".to_owned(),
    parse: |_, text| match text {
        OFF | "0" => Ok(0),
        time => window_s(time).ok_or_else(|| {
            let shown = text.escape_default();
            ControlError::usage(format!(
                "`{shown}` is not a deadline; write 1s to 31d, with s, m, h or d: 75s; or off"
            ))
        }),
    },
    text: |seconds| or_off(*seconds, seconds_text),
};

/// Seconds that something may last; 0 is off.
pub(crate) const AGE_S: Form<u64> = Form {
    values: || "TIME|off".to_owned(),
    parse: |key, text| match text {
        OFF | "0" => Ok(0),
        time => window_s(time).ok_or_else(|| {
            let shown = text.escape_default();
            ControlError::usage(format!(
                "{key}=`{shown}`: write 1s to 31d, with s, m, h or d: 5m; or off"
            ))
        }),
    },
    text: |seconds| or_off(*seconds, seconds_text),
};

/// Longest and shortest time from one scrub to the next one, in seconds: more than a year is as good as never.
const EVERY_S_MAX: u64 = 366 * 86_400;
const EVERY_S_MIN: u64 = 3600;

/// Seconds from one time to the next; 0 is off.
pub(crate) const EVERY_S: Form<u64> = Form {
    values: || "TIME|off".to_owned(),
    parse: |key, text| match text {
        OFF | "0" => Ok(0),
        time => {
            let seconds = parse_duration(time, TIME_UNITS, EVERY_S_MAX);
            seconds.filter(|seconds| *seconds >= EVERY_S_MIN).ok_or_else(|| {
                let shown = text.escape_default();
                ControlError::usage(format!(
                    "{key}=`{shown}`: write 1h to 366d, with h or d: 30d; or off"
                ))
            })
        }
    },
    text: |seconds| or_off(*seconds, seconds_text),
};

/// An age and a size, either or both: see [`MaxUnshipped`].
pub(crate) const UNSHIPPED: Form<MaxUnshipped> = Form {
    values: || "AGE|SIZE|AGE,SIZE|off".to_owned(),
    parse: |key, text| {
        unshipped(text).ok_or_else(|| {
            let (shown, least) = (text.escape_default(), exact_size(LeastUnshipped::BYTES_MIN));
            ControlError::usage(format!(
                "{key}=`{shown}`: write an age of 1s to 31d (5s, 2m), a size of {least} or more (64M), both \
                 (5s,64M), or off"
            ))
        })
    },
    text: |bound| {
        let age = (bound.age_s > 0).then(|| seconds_text(bound.age_s));
        let size = (bound.bytes > 0).then(|| exact_size(bound.bytes));
        let both: Vec<String> = age.into_iter().chain(size).collect();
        if both.is_empty() { OFF.to_owned() } else { both.join(",") }
    },
};

fn unshipped(text: &str) -> Option<MaxUnshipped> {
    let mut bound = MaxUnshipped::default();
    if matches!(text, OFF | "0") {
        return Some(bound);
    }
    for part in text.split(',') {
        // Of a bare number nobody knows which of the two it is.
        if part.ends_with(|last: char| last.is_ascii_digit()) {
            return None;
        }
        let (age_s, bytes) = (window_s(part), voltier_block::size::parse_size(part));
        match (age_s, bytes) {
            (Some(age_s), _) if bound.age_s == 0 => bound.age_s = age_s,
            (None, Some(bytes)) if bound.bytes == 0 && bytes >= LeastUnshipped::BYTES_MIN => {
                bound.bytes = bytes;
            }
            _ => return None,
        }
    }
    Some(bound)
}

pub(crate) const COUNT: Form<u32> = Form {
    values: || "N".to_owned(),
    parse: |key, text| {
        text.parse().map_err(|_| {
            let shown = text.escape_default();
            ControlError::usage(format!("`{shown}` is not a number; write for example {key}=5"))
        })
    },
    text: ToString::to_string,
};

pub(crate) const POOL: Form<Option<PoolName>> = Form {
    values: || "POOL|none".to_owned(),
    parse: |_, text| if text == NO_POOL { Ok(None) } else { text.parse().map(Some) },
    text: |pool| pool.as_ref().map_or_else(|| NO_POOL.to_owned(), ToString::to_string),
};

const TIME_UNITS: &[(&str, u64)] = &[("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];

fn window_s(text: &str) -> Option<u64> {
    parse_duration(text, TIME_UNITS, WINDOW_S_MAX)
}

fn or_off(value: u64, text: fn(u64) -> String) -> String {
    if value == 0 { OFF.to_owned() } else { text(value) }
}
