//! Every file of the corpus, replayed: what a fuzz run found stays found, on machines without the
//! engine too.

use std::fs;
use std::path::Path;

use voltier_fuzz::{TARGETS, dictionary, find};

/// Small enough to be read by every test run.
const FILES_MAX: usize = 60;
const FILE_BYTES_MAX: u64 = 16 << 10;

fn replay(name: &str) {
    let target = find(name).expect("a target of this name");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()).collect();
    files.sort_by_key(fs::DirEntry::file_name);
    assert!((1..=FILES_MAX).contains(&files.len()), "{} files", files.len());
    for file in files {
        assert!(file.metadata().unwrap().len() <= FILE_BYTES_MAX, "{:?} is too long", file.path());
        // Shown only when the test fails: the last one is the culprit.
        eprintln!("{}", file.path().display());
        (target.run)(&fs::read(file.path()).unwrap());
    }
    (target.run)(&[]);
}

#[test]
fn the_words_of_exports_and_drives_are_in_the_dictionaries() {
    let (specs, control) = (dictionary("specs"), dictionary("control"));
    for (plain, quoted) in [("fuse", r#"\"fuse\""#), ("mem:1G", r#"\"mem:1G\""#)] {
        assert!(specs.contains(&format!("\"{plain}\"")), "{specs:?}");
        assert!(control.contains(&format!("\"{quoted}\"")), "{control:?}");
    }
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.name), replayed);
        }
    };
}

replays! { nbd_negotiation nbd_requests fuse_requests cache_image registry control specs results }
