//! The cross-check against md: what our array leaves on its members, byte for byte against Linux md.
//!
//! `scripts/cross-check-md.sh` runs this: `cases` and `prepare` before a guest with md is started, `write`
//! inside it, `compare` behind it. See docs/internals/testing.md.

mod cases;
mod compare;
mod md;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use voltier_array::Geometry;
use voltier_block::{KIB, SECTOR_BYTES};

use cases::{Case, DATA_BYTES, DATA_OFFSET_BYTES, Start};

const USAGE: &str = "\
usage: cross_check_md cases             a line an array: name, level, layout, KiB of a chunk, members, start
       cross_check_md prepare FOLDER    a folder for each of them with a file for each member
       cross_check_md write NAME DEVICE the requests of that array, to md's device
       cross_check_md compare FOLDER    what md left against what our array leaves";

fn print_cases() {
    for case in cases::all() {
        let (level, layout) = case.md_names();
        let start = match case.start {
            Start::AssumeClean => "clean",
            Start::Resync => "resync",
        };
        let chunk_kib = case.chunk_bytes / KIB;
        println!("{case} {level} {layout} {chunk_kib} {} {start}", case.members);
    }
}

fn prepare(folder: &Path) -> std::io::Result<()> {
    for case in cases::all() {
        let folder = folder.join(case.to_string());
        std::fs::create_dir_all(&folder)?;
        for member in 0..case.members {
            let file = File::create(folder.join(format!("member{member}")))?;
            file.set_len(DATA_OFFSET_BYTES + DATA_BYTES)?;
            if case.start == Start::Resync {
                file.write_all_at(&case.noise(member), DATA_OFFSET_BYTES)?;
            }
        }
    }
    Ok(())
}

/// Chunks of data in a stripe of the case.
fn data_chunks(case: &Case) -> usize {
    let sectors = DATA_BYTES / SECTOR_BYTES;
    let geometry = Geometry::new(case.level, case.layout, case.members, case.chunk_bytes, sectors);
    geometry.expect("every case is possible").data_chunks()
}

fn write(name: &str, device: &Path) -> Result<(), String> {
    let case = cases::all().into_iter().find(|case| case.to_string() == name);
    let case = case.ok_or_else(|| format!("there is no case {name}"))?;
    let failed = |error: std::io::Error| format!("{}: {error}", device.display());
    let mut file = OpenOptions::new().read(true).write(true).open(device).map_err(failed)?;
    // A device's length is where its end is.
    let bytes = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(failed)?;
    for request in case.requests(data_chunks(&case), bytes) {
        file.write_all_at(&request.data(), request.offset_bytes).map_err(failed)?;
        // Each by itself: the kernel would make whole stripes of neighbours.
        file.sync_data().map_err(failed)?;
    }
    Ok(())
}

fn compare(folder: &Path) -> Result<(), String> {
    println!(
        "{:<36} {:>4} {:>8} {:>10} {:>10} {:>9} {:>7}",
        "array", "rows", "requests", "bytes", "of parity", "differing", "losses"
    );
    let (mut bytes, mut parity, mut differing, mut losses) = (0, 0, 0, 0);
    let cases = cases::all();
    for case in &cases {
        let outcome = compare::compare(case, &folder.join(case.to_string()));
        let outcome = outcome.map_err(|why| format!("{case}: {why}"))?;
        println!(
            "{:<36} {:>4} {:>8} {:>10} {:>10} {:>9} {:>7}",
            case.to_string(),
            outcome.rows,
            outcome.requests,
            outcome.bytes,
            outcome.parity_bytes,
            outcome.differing,
            outcome.losses
        );
        bytes += outcome.bytes;
        parity += outcome.parity_bytes;
        differing += outcome.differing;
        losses += outcome.losses;
    }
    let noticed = compare::notices_a_flipped_bit(&cases[0], &folder.join(cases[0].to_string()))?;
    println!(
        "{} arrays, {bytes} bytes of which {parity} of parity or copies: {differing} differ; md's \
         members read through our array with {losses} sets of losses; a flipped bit is {}",
        cases.len(),
        if noticed { "noticed" } else { "NOT noticed" }
    );
    if differing > 0 || !noticed {
        return Err("what our array writes is not what md writes".to_owned());
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["cases"] => {
            print_cases();
            Ok(())
        }
        ["prepare", folder] => prepare(Path::new(folder)).map_err(|error| error.to_string()),
        ["write", name, device] => write(name, Path::new(device)),
        ["compare", folder] => compare(Path::new(folder)),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cross_check_md: {why}");
            ExitCode::FAILURE
        }
    }
}
