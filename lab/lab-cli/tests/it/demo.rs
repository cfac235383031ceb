//! `voltier demo` in its smallest form: the result that it leaves, and the page on a phone and a desk.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::browser::Browser;
use crate::support::{Answer, Instance};
use serde_json::{Value, json};

#[track_caller]
fn is_a_row(row: &Value) {
    for field in ["hdd", "ssd", "accelerated", "ratio"] {
        assert!(row[field].as_f64().is_some_and(|figure| figure > 0.0), "{field} of {row}");
    }
    for field in ["read_hit", "write_hit"] {
        assert!(row[field].as_f64().is_some_and(|rate| (0.0..=1.0).contains(&rate)), "{row}");
    }
    for name in ["hdd", "ssd", "accelerated"] {
        let volume = &row["volumes"][name];
        let latency = |key: &str| volume[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
        assert!(latency("p50_us") <= latency("p99_us"), "{row}");
        assert!(!volume["runs"].as_array().unwrap().is_empty(), "{row}");
    }
}

fn jobs(rows: &Value) -> Vec<&str> {
    let rows = rows.as_array().unwrap();
    rows.iter().map(|row| row["job"].as_str().unwrap()).collect()
}

/// Opens the page, and checks that nothing but a frame that scrolls is wider than the window.
#[track_caller]
fn fits(browser: &mut Browser, page: &Path, width: u32) {
    browser.window(width, 900);
    let url = format!("file://{}", page.display());
    browser.call("Page.navigate", json!({ "url": url }));
    browser.wait_for("location.protocol === 'file:' && document.readyState === 'complete'");
    let wide = browser.value("document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(u64::from(width)), "{wide} wide in a window of {width}");
    // No cell is squeezed to a letter a line, and no chart runs out of the window.
    let squeezed = browser.value(
        "[...document.querySelectorAll('td')].filter(td => {
           const range = document.createRange();
           range.selectNodeContents(td);
           return range.getClientRects().length > 6; }).length",
    );
    assert_eq!(squeezed, 0, "cells of many lines in a window of {width}");
    let right = browser.value(
        "Math.max(...[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right))",
    );
    assert!(right.as_f64() <= Some(f64::from(width)), "a chart ends at {right}");
}

#[test]
fn the_demonstration_leaves_its_result_and_a_page_for_phone_and_desk() {
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("left out: fio is missing");
        return;
    }
    let instance = Instance::new();
    let out = instance.path("out");
    let mut command = instance.command(&["demo", "--out", out.to_str().unwrap()]);
    command.env("DEMO_SIZE", "64M").env("DEMO_SECONDS", "1");
    let answer = Answer::from(command.output().unwrap()).ok();
    for heading in
        ["THE FIVE JOBS", "LATENCY", "OTHER CONDITIONS", "SIMULATION: RAID 6", "OWN FIGURES"]
    {
        assert!(answer.out.contains(heading), "{heading} in {}", answer.out);
    }
    assert!(!answer.out.contains("CHECK FAILED"), "{}", answer.out);

    let text = fs::read_to_string(out.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        jobs(&result["rows"]),
        ["seq_write", "seq_read", "rand_write", "rand_read", "rand_rw"]
    );
    assert_eq!(
        jobs(&result["other_rows"]),
        [
            "seq_write_one_area",
            "seq_read_one_area",
            "seq_read_first_pass",
            "seq_read_second_pass",
            "rand_read_cold",
            "rand_read_small_ssd",
            "rand_write_small_ssd_filling",
            "rand_write_small_ssd",
        ]
    );
    let all = ["rows", "other_rows"].into_iter().flat_map(|key| result[key].as_array().unwrap());
    all.for_each(is_a_row);
    for row in result["rows"].as_array().unwrap() {
        let runs = |name: &str| row["volumes"][name]["runs"].as_array().unwrap().len();
        assert_eq!([runs("hdd"), runs("ssd"), runs("accelerated")], [1, 3, 3]);
    }
    assert_eq!(result["raid6"]["simulation"], true);
    assert_eq!(result["raid6"]["rows"].as_array().unwrap().len(), 2);

    let Some(mut browser) = Browser::start() else { return };
    for width in [390, 1400] {
        fits(&mut browser, &out.join("report.html"), width);
    }
}
