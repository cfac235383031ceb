//! Every anomaly of the published tables that figures can show is found by a check, and where a
//! document is right nothing is.

use voltier_results::analysis::{Finding, Severity, judge};
use voltier_results::published;

fn findings(document: &str, check: &str) -> Vec<Finding> {
    let run = published::table(document).unwrap();
    judge(&run).findings.into_iter().filter(|finding| finding.check == check).collect()
}

/// The points of one check's findings that begin with a text.
fn points(document: &str, check: &str, part: &str) -> Vec<String> {
    let found = findings(document, check).into_iter().flat_map(|finding| finding.points);
    found.filter(|point| point.contains(part)).collect()
}

fn note(document: &str, id: &str) -> bool {
    let notes = published::table(document).unwrap().manifest.notes;
    notes.iter().any(|note| note.starts_with(&format!("{id}:")))
}

#[test]
fn what_only_a_reader_can_find_is_a_note() {
    for (document, ids) in [
        ("maxio-sata", &["M1", "M9"][..]),
        ("fusionio", &["F1", "F4", "F5", "F6"]),
        ("raidix", &["R4", "R5", "R6", "R10", "R11"]),
        ("maxiq", &["A1", "A2", "A3", "A4", "A5"]),
        ("cubefs", &["C3", "C4", "C5", "C7"]),
        ("cubefs-3.3.1", &["C9"]),
    ] {
        for id in ids {
            assert!(note(document, id), "{document} {id}");
        }
    }
}

#[test]
fn m2_misses_that_the_disk_cannot_serve() {
    let sata = findings("maxio-sata", "miss_bound");
    let random = sata.iter().find(|f| f.points[0] == "accelerated/randread").unwrap();
    assert_eq!(random.severity, Severity::Error);
    assert!(random.text.contains("1989 misses/s"), "{}", random.text);
    assert!(random.text.contains("99.53 %"), "{}", random.text);
    let pcie = findings("maxio-pcie", "miss_bound");
    let random = pcie.iter().find(|f| f.points[0] == "accelerated/randread").unwrap();
    assert!(random.text.contains("1512 misses/s"), "{}", random.text);
    assert!(random.text.contains("99.85 %"), "{}", random.text);
}

#[test]
fn m3_hits_that_an_empty_cache_cannot_have() {
    for document in ["maxio-sata", "maxio-pcie"] {
        let [found] = &findings(document, "fill_bound")[..] else { panic!("one") };
        assert_eq!(found.points[0], "accelerated/randread");
        assert!(found.text.contains("0.57 GB"), "{}", found.text);
    }
}

#[test]
fn m4_ratios_are_of_the_bare_ssd() {
    let found = findings("maxio-sata", "stated_ratio");
    let random = found.iter().find(|f| f.points == ["accelerated/randread"]).unwrap();
    assert!(random.text.contains("213.4 times"), "{}", random.text);
    let found = findings("maxio-pcie", "stated_ratio");
    let random = found.iter().find(|f| f.points == ["accelerated/randread"]).unwrap();
    assert!(random.text.contains("648.9 times"), "{}", random.text);
}

#[test]
fn m5_sequential_jobs_overlap() {
    let found = points("maxio-sata", "streams", "");
    assert!(found.contains(&"accelerated/seqread".to_owned()));
    assert!(found.contains(&"hdd/seqwrite".to_owned()));
    assert!(!found.iter().any(|point| point.contains("rand")));
}

#[test]
fn m6_replacement_is_never_exercised() {
    let [found] = &findings("maxio-pcie", "working_set")[..] else { panic!("one") };
    assert!(found.text.contains("107 GB in a cache of 800 GB"), "{}", found.text);
}

#[test]
fn m7_a_link_of_3_gigabits() {
    let [found] = &findings("maxio-sata", "link")[..] else { panic!("one") };
    assert_eq!(found.points, ["ssd/seqread"]);
    assert!(found.text.contains("SATA at 3 Gb/s"), "{}", found.text);
    assert!(findings("maxio-pcie", "link").is_empty());
}

#[test]
fn m8_cached_is_faster_than_the_ssd() {
    let [found] = &findings("maxio-sata", "cache_ceiling")[..] else { panic!("one") };
    assert_eq!(found.points, ["accelerated/seqread", "ssd/seqread"]);
    assert!(findings("maxio-pcie", "cache_ceiling").is_empty());
}

#[test]
fn f2_the_summary_contradicts_the_test() {
    let [found] = &findings("fusionio", "restated")[..] else { panic!("one") };
    assert_eq!(found.points, ["summary/8k-read", "1/knee"]);
}

#[test]
fn f3_requests_and_bandwidth_do_not_agree() {
    let [found] = &findings("fusionio", "units")[..] else { panic!("one") };
    assert_eq!((found.points[0].as_str(), found.severity), ("3/most", Severity::Error));
}

#[test]
fn r1_the_conclusion_restates_the_hardware_wrongly() {
    let found = findings("raidix", "restated");
    let hardware: Vec<&Finding> =
        found.iter().filter(|f| f.points[0].starts_with("summary/12_nvme_raw")).collect();
    assert_eq!((found.len(), hardware.len()), (3, 3), "{found:#?}");
}

#[test]
fn r2_twelve_drives_are_more_than_twelve_times_one() {
    let raw = points("raidix", "additivity", "12_nvme_raw/iops/4k");
    for mix in ["r0_w100", "r5_w95", "r35_w65", "r50_w50"] {
        assert!(raw.contains(&format!("12_nvme_raw/iops/4k/{mix}")), "{mix}");
    }
    assert_eq!(raw.len(), 4);
    let found = findings("raidix", "additivity");
    let first = found.iter().find(|f| f.points[0] == "12_nvme_raw/iops/4k/r0_w100").unwrap();
    assert!(first.text.contains("135 %"), "{}", first.text);
}

#[test]
fn r3_sequential_is_half_of_random() {
    let [found] = &findings("raidix", "sequential")[..] else { panic!("one") };
    assert_eq!(found.points[0], "mdraid_raid6/throughput/read_128k");
    assert!(found.text.contains("fewer requests in flight"), "{}", found.text);
}

#[test]
fn r7_megabytes_are_mebibytes() {
    let [found] = &findings("raidix", "units")[..] else { panic!("one") };
    assert!(found.text.contains("MiB/s"));
    assert!(found.points.contains(&"single_nvme/throughput/read_128k".to_owned()));
}

#[test]
fn r8_small_writes_of_the_zvol_are_slower_than_large_ones() {
    let [found] = &findings("raidix", "small_requests")[..] else { panic!("one") };
    assert_eq!(found.points[0], "zvol_raidz2/latency/4k/r0_w100");
}

#[test]
fn r9_the_claim_was_not_measured() {
    assert_eq!(findings("raidix", "claim").len(), 1);
}

#[test]
fn c1_thousands_were_multiplied_by_1024() {
    let found = findings("cubefs", "units");
    let [high, unit] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(high.severity, Severity::Error);
    assert_eq!(high.points.len(), 21, "{:?}", high.points);
    assert!(high.points.iter().all(|point| point.starts_with("rand_")));
    assert_eq!(unit.severity, Severity::Warning);
    // Little's law says so too, where nothing else hides it.
    let little = points("cubefs", "little", "");
    assert!(little.contains(&"rand_read_4k/8x64".to_owned()), "{little:?}");
    assert!(little.iter().all(|point| high.points.contains(point)), "{little:?}");
}

#[test]
fn c2_megabytes_are_mebibytes() {
    let unit = findings("cubefs", "units").into_iter().find(|f| f.severity == Severity::Warning);
    let points = unit.unwrap().points;
    let sequential = points.iter().filter(|point| point.starts_with("seq_")).count();
    assert_eq!(sequential, 32);
}

#[test]
fn c6_one_client_measures_its_network() {
    let verdicts = judge(&published::table("cubefs").unwrap());
    let one = verdicts.limits.iter().find(|limit| limit.point == "seq_read_128k/1x64").unwrap();
    assert!(one.text.contains("9.48 Gb/s"), "{}", one.text);
    let all = verdicts.limits.iter().find(|limit| limit.point == "seq_write_128k/8x64").unwrap();
    assert!(all.text.contains("90.8 Gb/s of the 100"), "{}", all.text);
    assert!(points("cubefs", "network", "").contains(&"seq_read_128k/1x16".to_owned()));
}

#[test]
fn c8_a_typing_error_is_found_twice() {
    for check in ["units", "little"] {
        let found = points("cubefs-3.3.1", check, "rand_write_4k/8x1");
        assert!(found.contains(&"rand_write_4k/8x1".to_owned()), "{check}");
    }
}

#[test]
fn c9_the_clients_cache_was_measured() {
    let found = points("cubefs-3.3.1", "scaling", "mdtest/dir_stat/8x64");
    assert!(!found.is_empty());
}
