//! fio's options as axes of a point.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::result::{Access, Axes};

/// Options by name, a job's own over the global ones.
pub(super) type Options = BTreeMap<String, String>;

/// Engines that have one request in flight, whatever `iodepth` says.
const SYNCHRONOUS: [&str; 8] =
    ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice", "ftruncate"];

pub(super) fn read(global: Option<&Value>, own: Option<&Value>) -> Options {
    let mut options = Options::new();
    for given in [global, own].into_iter().flatten() {
        for (key, value) in given.as_object().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            options.insert(key.clone(), text);
        }
    }
    options
}

fn get<'a>(options: &'a Options, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| options.get(*name)).map(String::as_str)
}

/// Bytes of one size; `None` of ranges and of different sizes for reads and writes.
fn size(text: &str) -> Option<u64> {
    let mut sizes = text.split(',').filter(|part| !part.is_empty());
    let first = sizes.next()?;
    if sizes.any(|other| other != first) {
        return None;
    }
    crate::size::parse_bytes(first).filter(|bytes| *bytes > 0)
}

/// The axes of a point by its options; of a source without options nothing is assumed.
pub(super) fn axes(options: &Options, threads: u32) -> Axes {
    if options.is_empty() {
        return Axes::default();
    }
    let rw = get(options, &["rw", "readwrite"]).unwrap_or("read");
    let rw = rw.split(':').next().unwrap_or(rw);
    let number = |name: &str| options.get(name).and_then(|text| text.parse::<u32>().ok());
    let percent = |name: &str| number(name).and_then(|share| u8::try_from(share).ok());
    let read_percent = match rw {
        "read" | "randread" => Some(100),
        "write" | "randwrite" => Some(0),
        "rw" | "readwrite" | "randrw" => percent("rwmixread")
            .or_else(|| percent("rwmixwrite").and_then(|writes| 100_u8.checked_sub(writes)))
            .or(Some(50)),
        _ => None,
    };
    let is_split = get(options, &["bssplit", "bsrange", "blocksize_range"]).is_some();
    let block_bytes = match get(options, &["bs", "blocksize"]) {
        _ if is_split => None,
        Some(text) => size(text),
        None => Some(4096),
    };
    let is_synchronous = options.get("ioengine").is_none_or(|e| SYNCHRONOUS.contains(&e.as_str()));
    let depth = if is_synchronous { Some(1) } else { Some(number("iodepth").unwrap_or(1)) };
    let jobs = if threads > 1 { threads } else { number("numjobs").unwrap_or(1) };
    Axes {
        access: Some(if rw.starts_with("rand") { Access::Random } else { Access::Sequential }),
        read_percent,
        block_bytes,
        depth,
        jobs: Some(jobs),
        ..Axes::default()
    }
}

/// The target that was measured: the file, device or address that the options name.
pub(super) fn target(options: &Options) -> String {
    let names = ["filename", "uri", "rbdname", "directory", "targetname"];
    get(options, &names).filter(|name| !name.is_empty()).unwrap_or("target").to_owned()
}

/// The options as fio takes them on its command line.
pub(super) fn command(options: &Options) -> Vec<String> {
    if options.is_empty() {
        return Vec::new();
    }
    let word = |(key, value): (&String, &String)| match value.as_str() {
        "" => format!("--{key}"),
        value => format!("--{key}={value}"),
    };
    let name = options.get_key_value("name").map(word);
    let rest = options.iter().filter(|(key, _)| *key != "name").map(word);
    std::iter::once("fio".to_owned()).chain(name).chain(rest).collect()
}
