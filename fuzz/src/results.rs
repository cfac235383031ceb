//! Results of other programs: fio, Orion, elbencho, and the file of a run.
//!
//! The first byte chooses the name, and with it the format. The import judges a result that it takes
//! without a panic, with findings about the result's own points only. The import refuses any other
//! result in one line.

use std::collections::BTreeSet;

use voltier_results::analysis::judge;
use voltier_results::import::{self, Files};

const NAMES: [&str; 8] = [
    "r.json",
    "r_bw.1.log",
    "r_lat.1.log",
    "r_clat_hist.1.log",
    "r_summary.txt",
    "r_iops.csv",
    "r_lat.csv",
    "e.csv",
];

/// Reads one text as every kind of result that its first byte names.
pub(crate) fn run(input: &[u8]) {
    let Some((kind, text)) = input.split_first() else { return };
    let name = NAMES[usize::from(*kind) % NAMES.len()];
    let text = String::from_utf8_lossy(text).into_owned();
    match import::parse(name, &Files::from([(name.to_owned(), text)])) {
        Ok(run) => {
            let ids: BTreeSet<&str> = run.points.iter().map(|point| point.id.as_str()).collect();
            assert_eq!(ids.len(), run.points.len(), "ids are unique");
            let verdicts = judge(&run);
            for point in verdicts.findings.iter().flat_map(|finding| &finding.points) {
                assert!(ids.contains(point.as_str()), "a finding about {point:?}");
            }
            serde_json::to_string(&verdicts).expect("verdicts are plain");
        }
        Err(why) => {
            assert!(!why.is_empty() && !why.contains(['\n', '\r']), "not one line: {why:?}")
        }
    }
}
