//! Values of plans: sizes as text, lengths of time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use voltier_control::nearest;
use voltier_results::size::{format_bytes, parse_bytes};

/// A size that is written "4K" in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

impl TryFrom<String> for ByteSize {
    type Error = String;

    fn try_from(text: String) -> Result<ByteSize, String> {
        let bytes = parse_bytes(&text).filter(|bytes| *bytes > 0);
        bytes.map(ByteSize).ok_or_else(|| format!("`{text}` is no size: write 4K, 64M or 2G"))
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> String {
        format_bytes(size.0)
    }
}

/// How much of a target is used: "whole", or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Extent {
    /// All of it.
    Whole,
    /// So many bytes from its start.
    Bytes(u64),
}

impl TryFrom<String> for Extent {
    type Error = String;

    fn try_from(text: String) -> Result<Extent, String> {
        if text == "whole" {
            return Ok(Extent::Whole);
        }
        let ByteSize(bytes) = ByteSize::try_from(text).map_err(|why| format!("{why}, or whole"))?;
        if !bytes.is_multiple_of(4096) {
            return Err(format!("{bytes} bytes are not a multiple of 4096"));
        }
        Ok(Extent::Bytes(bytes))
    }
}

impl From<Extent> for String {
    fn from(extent: Extent) -> String {
        match extent {
            Extent::Whole => "whole".to_owned(),
            Extent::Bytes(bytes) => format_bytes(bytes),
        }
    }
}

/// Seconds of a plan as a time.
pub(super) fn time(seconds: f64) -> Duration {
    Duration::from_millis((seconds * 1000.0).round() as u64)
}

/// Checks the values that every method has: a time that can be measured, sizes that drives take.
pub(super) fn check(seconds: f64, blocks: &[ByteSize]) -> Result<(), String> {
    if !(0.05..=1e7).contains(&seconds) {
        return Err(format!("seconds = {seconds}: give seconds from 0.05"));
    }
    match blocks.iter().find(|block| !block.0.is_multiple_of(512) || block.0 > 64 << 20) {
        Some(block) => {
            Err(format!("a block of {} bytes: give multiples of 512, 64M at most", block.0))
        }
        None => Ok(()),
    }
}

/// Refuses an empty list.
pub(super) fn not_empty<T>(name: &str, list: &[T]) -> Result<(), String> {
    if list.is_empty() { Err(format!("{name} is empty: name at least one")) } else { Ok(()) }
}

/// `unknown key ...` in one line, with the nearest known word.
pub(super) fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("unknown {what} `{word}`: did you mean `{near}`?"),
        None => format!("unknown {what} `{word}`: known are {}", known.join(", ")),
    }
}

/// Refuses words that are not known.
pub(super) fn known_words(name: &str, words: &[String], known: &[&str]) -> Result<(), String> {
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => Err(format!("{name}: {}", unknown("word", word, known))),
        None => Ok(()),
    }
}

/// Refuses an empty list and zeroes in it.
pub(super) fn counts(name: &str, counts: &[u32]) -> Result<(), String> {
    not_empty(name, counts)?;
    match counts.iter().find(|count| !(1..=1 << 20).contains(*count)) {
        Some(count) => Err(format!("{name}: {count} is none, give whole numbers from 1")),
        None => Ok(()),
    }
}

/// Refuses what is more than 100.
pub(super) fn percentages(name: &str, shares: &[u8]) -> Result<(), String> {
    match shares.iter().find(|share| **share > 100) {
        Some(share) => Err(format!("{name}: {share} is no percentage")),
        None => Ok(()),
    }
}
