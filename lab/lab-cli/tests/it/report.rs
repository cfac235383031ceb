//! `voltier lab report`: pages as a browser shows them, figures as fio has them, bad input.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::browser::Browser;
use crate::support::Instance;
use serde_json::{Value, json};
use voltier_control::{PolicyKind, Word};

const FILES: [&str; 4] = ["report.html", "report.md", "points.csv", "report.json"];

/// A page and what it must show.
struct Page {
    name: &'static str,
    path: PathBuf,
    /// Parts of titles, each of some chart.
    charts: &'static [&'static str],
    surfaces: u64,
}

/// A page's account of each of its charts: its title, whether it was drawn, its marks, its width.
const CHARTS: &str = "[...document.querySelectorAll('figure')].map(figure => {
    const plot = figure.querySelector('.plot');
    const marks = 'path.js-line, path.point, .point > path, .points path, .heatmaplayer image, \
        .barlayer path, canvas, .textpoint';
    return {
      title: figure.querySelector('h3').textContent,
      drawn: plot.dataset.drawn,
      marks: plot.querySelectorAll(marks).length,
      traces: plot.data ? plot.data.length : 0,
      surfaces: plot.querySelectorAll('.gl-container canvas').length,
      caption: figure.querySelector('figcaption p').textContent.length,
      rows: figure.querySelectorAll('details tbody tr').length,
      width: plot.getBoundingClientRect().width,
      wide: Math.max(0, ...[...plot.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().right)),
    };
  })";

#[track_caller]
fn looks_right(browser: &mut Browser, page: &Page) {
    browser.window(1280, 900);
    let seen = browser.open(&page.path);
    assert!(seen.complaints.is_empty(), "{}: {seen:?}", page.name);
    assert!(seen.requests.is_empty(), "{}: {seen:?}", page.name);
    let charts = browser.value(CHARTS);
    let charts = charts.as_array().unwrap();
    for chart in charts {
        let is_drawn = chart["drawn"] == "yes" && chart["marks"].as_u64() > Some(0);
        assert!(is_drawn && chart["traces"].as_u64() > Some(0), "{}: {chart}", page.name);
        let is_told = chart["rows"].as_u64() > Some(0) && chart["caption"].as_u64() > Some(10);
        assert!(is_told, "{}: {chart}", page.name);
    }
    let titles: Vec<&str> = charts.iter().map(|chart| chart["title"].as_str().unwrap()).collect();
    for wanted in page.charts {
        assert!(titles.iter().any(|title| title.contains(wanted)), "{wanted} in {titles:?}");
    }
    let surfaces: u64 =
        charts.iter().filter(|chart| chart["surfaces"].as_u64() > Some(0)).count() as u64;
    assert_eq!(surfaces, page.surfaces, "{}", page.name);
}

/// On a phone nothing is wider than the screen but what scrolls by itself.
#[track_caller]
fn fits_a_phone(browser: &mut Browser, page: &Page) {
    browser.window(390, 844);
    let seen = browser.open(&page.path);
    assert!(seen.complaints.is_empty(), "{}: {seen:?}", page.name);
    let wide = browser.value("document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(390), "{} is {wide} wide", page.name);
    for chart in browser.value(CHARTS).as_array().unwrap() {
        assert!(chart["drawn"] == "yes" && chart["wide"].as_f64() <= Some(390.0), "{chart}");
    }
}

/// Paper: light, everything unfolded, and the charts on it.
#[track_caller]
fn can_be_printed(browser: &mut Browser, page: &Page) {
    browser.window(1280, 900);
    browser.open(&page.path);
    browser.call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    let dark = browser.value(
        "[...document.querySelectorAll('body, table, th, td, li, figure, pre')].filter(e => {
           const c = getComputedStyle(e).backgroundColor.match(/[\\d.]+/g).map(Number);
           return c[3] !== 0 && c[0] + c[1] + c[2] < 600; }).length",
    );
    assert_eq!(dark, 0, "{}", page.name);
    browser.value("dispatchEvent(new Event('beforeprint'))");
    assert_eq!(browser.value("document.querySelectorAll('details:not([open])').length"), 0);
    browser.value("dispatchEvent(new Event('afterprint'))");
    assert_eq!(browser.value("document.querySelectorAll('details[open]').length"), 0);
    browser.call("Emulation.setEmulatedMedia", json!({ "media": "" }));
    let paper = browser.call("Page.printToPDF", json!({ "printBackground": false }));
    assert!(paper["data"].as_str().unwrap().len() > 100_000, "{}", page.name);
}

fn words<'a>(fixed: &[&'a str], more: &'a str) -> Vec<&'a str> {
    fixed.iter().copied().chain(more.split_whitespace()).collect()
}

/// A run of modelled drives with its page.
fn modelled(instance: &Instance, plan: &str, more: &str) -> PathBuf {
    let out = instance.path(&format!("{plan}-run")).display().to_string();
    instance.run(&words(&["lab", "run", plan, "--quick", "--out", &out], more)).ok();
    instance.path(&format!("{plan}-run")).join(FILES[0])
}

/// Miss-ratio curves of a made trace with their page.
fn curves(instance: &Instance) -> PathBuf {
    let [trace, out] = ["trace.log", "mrc"].map(|name| instance.path(name).display().to_string());
    let make = "--requests 20000 --blocks 4000 --writes 30 --output";
    instance.run(&words(&["lab", "trace", "make", "mixed:0.9"], &format!("{make} {trace}"))).ok();
    let curve = format!("--curve exact,shards:0.1,{} --out", PolicyKind::names().join(","));
    let answer =
        instance.run(&words(&["lab", "trace", "mrc", &trace], &format!("{curve} {out}"))).ok();
    let page = instance.path("mrc").join(FILES[0]);
    assert!(answer.out.ends_with(&format!("report: {}\n", page.display())), "{answer:?}");
    page
}

fn published(instance: &Instance, name: &str) -> PathBuf {
    instance.run(&["lab", "report", name]).ok();
    instance.path("voltier-lab").join(name).join(FILES[0])
}

/// A run with passes and clients, as fio would have left it; names and texts are hostile.
fn made_up(instance: &Instance) -> PathBuf {
    let hostile = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>";
    let target =
        |name: &str| json!({ "name": name, "given": hostile, "kind": "file", "size_bytes": 4096 });
    let mut lines = vec![json!({
        "record": "manifest", "version": 1, "features": [], "run": hostile, "plan": hostile, "plan_text": "",
        "plan_crc32c": 0, "started_unix_ms": 1_795_332_493_435_u64, "tool": "t", "is_simulation": false,
        "targets": [target("disk")], "notes": [hostile],
        "environment": { "host": hostile, "cpu": "", "cpus": 0, "memory_bytes": 0, "kernel": "",
                         "system": "" }
    })];
    let flow = |iops: f64| {
        json!({ "requests": 1000, "bytes": 4_096_000, "runtime_ns": 1_000_000_000_u64, "iops": iops,
                "bytes_per_second": iops * 4096.0, "histogram": { "700": 990, "900": 9, "1000": 1 },
                "latency": { "min_ns": 1, "max_ns": 9, "mean_ns": 1e5, "stddev_ns": 1.0 } })
    };
    for phase in ["off", "on"] {
        for pass in 1..=6 {
            let rate = if phase == "off" { 100.0 } else { 100.0 + 60.0 * f64::from(pass.min(4)) };
            lines.push(json!({
                "record": "point", "id": format!("{phase}/{pass}/{hostile}"), "started_unix_ms": 1,
                "axes": { "target": "disk", "phase": phase, "pass": pass, "access": "random",
                          "read_percent": 100, "block_bytes": 65536 },
                "status": { "state": "ok" }, "read": flow(rate), "command": ["fio", hostile],
                "metrics": { "files_per_second": rate },
                "cache": { "read_requests": 100, "read_hits": 10 * pass, "read_bypassed": 0,
                           "write_requests": 0, "write_hits": 0, "write_bypassed": 0,
                           "ssd_bytes_written": 0, "origin_bytes_read": 0, "origin_bytes_written": 0,
                           "dirty_lines": 0 }
            }));
        }
    }
    for clients in [1, 2, 4] {
        let rate = 1000.0 * f64::from(clients).sqrt();
        lines.push(json!({
            "record": "point", "id": format!("clients/{clients}"), "started_unix_ms": 1,
            "axes": { "target": "disk", "phase": hostile, "clients": clients, "jobs": 2,
                      "access": "random", "read_percent": 100, "block_bytes": 4096 },
            "status": { "state": "ok" }, "read": flow(rate)
        }));
    }
    let failed = json!({ "record": "point", "id": "gone", "axes": { "phase": "x", "depth": 1 },
                         "started_unix_ms": 1, "status": { "state": "failed", "why": hostile } });
    lines.push(failed);
    let folder = instance.path("made-up");
    fs::create_dir(&folder).unwrap();
    // The kind of a line stands first.
    let line = |line: &Value| {
        let kind = format!("\"record\":{}", line["record"]);
        let rest = line.to_string().replacen(&kind, "", 1).replace(",,", ",").replace("{,", "{");
        format!("{{{kind},{}\n", rest.trim_start_matches('{').trim_start_matches(','))
    };
    let text: Vec<String> = lines.iter().map(line).collect();
    fs::write(folder.join("run.jsonl"), text.concat()).unwrap();
    let answer = instance.run(&["lab", "report", &folder.display().to_string()]).ok();
    assert!(answer.out.contains("PARTIAL"), "{answer:?}");
    folder.join(FILES[0])
}

/// A page of every kind.
fn pages(instance: &Instance) -> [Page; 8] {
    let pts = "--target model:ssd-pcie --seconds 0.05 --set tests=[\"iops\",\"lat\",\"dirth\"] \
               --set lat_block_sizes=[\"4K\",\"8K\"]";
    [
        Page {
            name: "mixed",
            path: modelled(instance, "mixed", "--target model:ssd-sata --set depths=[1,2,4,8,16]"),
            charts: &[
                "Load curve",
                "Latency against throughput",
                "Latency percentiles",
                "over time",
            ],
            surfaces: 0,
        },
        Page {
            name: "pts",
            path: modelled(instance, "pts", pts),
            charts: &["Convergence", "Measurement window", "Block size x mix", "Surface", "Demand"],
            surfaces: 3,
        },
        Page {
            name: "orion",
            path: modelled(
                instance,
                "orion",
                "--target model:ssd-iodrive -- -run normal -num_disks 1",
            ),
            charts: &["Small x large requests", "Load curve"],
            surfaces: 0,
        },
        Page {
            name: "maxio",
            path: published(instance, "maxio-pcie"),
            charts: &["of every job"],
            surfaces: 0,
        },
        Page {
            name: "raidix",
            path: published(instance, "raidix"),
            charts: &["Block size x mix"],
            surfaces: 0,
        },
        Page {
            name: "cubefs",
            path: published(instance, "cubefs"),
            charts: &["Clients x processes", "Efficiency over clients", "Throughput over clients"],
            surfaces: 0,
        },
        Page {
            name: "miss ratios",
            path: curves(instance),
            charts: &["Miss ratio: trace, 4K", "Miss ratio of reads", "Miss ratio of writes"],
            surfaces: 0,
        },
        Page {
            name: "made up",
            path: made_up(instance),
            charts: &["Learning curve", "Acceleration", "Hits of each pass", "Efficiency"],
            surfaces: 0,
        },
    ]
}

#[test]
fn every_kind_of_report_is_drawn_in_a_browser_on_a_phone_and_on_paper() {
    let Some(mut browser) = Browser::start() else { return };
    let instance = Instance::new();
    let pages = pages(&instance);
    for page in &pages {
        looks_right(&mut browser, page);
    }
    assert_ne!(browser.value("document.title"), "owned", "a name has become script");
    let strangers = "document.querySelectorAll('img:not(.printed), iframe, object, link').length";
    assert_eq!(browser.value(strangers), 0);
    for page in pages.iter().filter(|page| ["mixed", "miss ratios", "made up"].contains(&page.name))
    {
        fits_a_phone(&mut browser, page);
    }
    can_be_printed(&mut browser, &pages[1]);
}

/// The rows of a CSV file by the names of their columns; quoted cells have no line ends here.
fn rows(path: &Path) -> Vec<std::collections::BTreeMap<String, String>> {
    let text = fs::read_to_string(path).unwrap();
    let cells = |line: &str| -> Vec<String> {
        let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ',' if !quoted => cells.push(std::mem::take(&mut cell)),
                c => cell.push(c),
            }
        }
        cells.push(cell);
        cells
    };
    let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
    let header = cells(lines.next().unwrap());
    lines.map(|line| header.iter().cloned().zip(cells(line)).collect()).collect()
}

#[test]
fn totals_rates_and_percentiles_are_those_of_fios_own_json() {
    if Command::new("fio").arg("--version").output().is_err() {
        return eprintln!("left out: fio is missing");
    }
    let instance = Instance::new();
    let file = instance.path("disk").display().to_string();
    let out = instance.path("run").display().to_string();
    let more = format!(
        "--target {file} --size 16M --seconds 1 --set depths=[4] --set reads=[100,50] --out {out}"
    );
    let answer = instance.run(&words(&["lab", "run", "mixed", "--quick"], &more)).ok();
    assert!(answer.out.contains("report.html"), "{answer:?}");
    let folder = instance.path("run");
    let report: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!((&report["version"], &report["features"]), (&json!(1), &json!([])));
    assert_eq!(report["is_partial"], json!(false));
    let rows = rows(&folder.join("points.csv"));
    for (read, directions) in [(100, &["read"][..]), (50, &["read", "write"])] {
        let id = format!("target/mixed/read={read}/bs=4096/jobs=1/depth=4");
        let raw = folder.join("raw").join(format!("{}.json", id.replace('/', ",")));
        let raw: Value = serde_json::from_str(&fs::read_to_string(raw).unwrap()).unwrap();
        let all = report["points"].as_array().unwrap();
        let point = all.iter().find(|point| point["id"] == *id).unwrap();
        let row = rows.iter().find(|row| row["id"] == id).unwrap();
        let mut rate = 0.0;
        for direction in directions {
            let fios = &raw["jobs"][0][direction];
            rate += fios["iops"].as_f64().unwrap();
            let mut pairs = vec![
                ("requests".to_owned(), &fios["total_ios"]),
                ("bytes".to_owned(), &fios["io_bytes"]),
                ("requests_per_second".to_owned(), &fios["iops"]),
                ("latency_min_ns".to_owned(), &fios["lat_ns"]["min"]),
                ("latency_mean_ns".to_owned(), &fios["lat_ns"]["mean"]),
                ("latency_max_ns".to_owned(), &fios["lat_ns"]["max"]),
                ("latency_stddev_ns".to_owned(), &fios["lat_ns"]["stddev"]),
            ];
            for percent in ["50", "90", "99", "99.9", "99.99", "99.999"] {
                let name = format!("{:.6}", percent.parse::<f64>().unwrap());
                let value = &fios["lat_ns"]["percentile"][name.as_str()];
                assert!(value.is_u64(), "{name}: {value}");
                pairs.push((format!("latency_p{percent}_ns"), value));
            }
            for (name, value) in pairs {
                let ours = &point[direction][&name];
                let (mine, theirs) = (ours.as_f64().unwrap(), value.as_f64().unwrap());
                assert!(mine.to_bits() == theirs.to_bits(), "{direction} {name}: {ours} {value}");
                let cell: f64 = row[&format!("{direction}_{name}")].parse().unwrap();
                assert!(cell.to_bits() == mine.to_bits(), "{direction} {name}: {cell} {ours}");
            }
        }
        let total = point["total"]["requests_per_second"].as_f64().unwrap();
        assert!((total / rate - 1.0).abs() < 1e-12, "{total} {rate}");
    }
    let text = fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(text.starts_with("# mixed (quick profile) on "), "{}", &text[..200]);
}

#[test]
fn a_report_of_the_same_run_is_the_same_and_references_stand_beside_it() {
    let instance = Instance::new();
    let more = "--target model:ssd-sata --set depths=[1,4,16] --set repeats=3";
    modelled(&instance, "mixed", more);
    let folder = instance.path("mixed-run");
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let before = FILES.map(read);
    instance.run(&["lab", "report", "mixed-run"]).ok();
    assert!(before == FILES.map(read), "two reports of one run differ");
    let other =
        ["lab", "report", "mixed-run/run.jsonl", "mixed-run", "maxio-sata", "--out", "new/beside"];
    let answer = instance.run(&[&other[..], &["--json"]].concat()).json();
    assert_eq!(answer["is_partial"], false);
    let report = fs::read_to_string(instance.path("new/beside/report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let comparisons = report["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 2);
    let against = &comparisons[0]["rows"][0]["cells"][1]["against"];
    assert_eq!((&against["ratio"], &against["difference"]), (&json!(1.0), &json!("same")));
    let text = fs::read_to_string(instance.path("new/beside/report.md")).unwrap();
    assert!(text.contains("## Against mixed-run") && text.contains("95 % interval"), "{text}");
}

#[test]
fn an_interrupted_or_half_written_run_is_called_partial_and_failed_points_have_no_figures() {
    let instance = Instance::new();
    modelled(&instance, "mixed", "--target model:ssd-sata --set depths=[1,4]");
    let whole = fs::read_to_string(instance.path("mixed-run/run.jsonl")).unwrap();
    assert!(whole.ends_with("{\"record\":\"end\"}\n"), "the run says that it ended");
    let is_partial = |text: &str| {
        let folder = instance.path("half");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("run.jsonl"), text).unwrap();
        let answer = instance.run(&["lab", "report", "half"]).ok();
        let page = fs::read_to_string(folder.join("report.html")).unwrap();
        assert_eq!(answer.out.contains("PARTIAL"), page.contains("PARTIAL: the run has not"));
        answer.out.contains("PARTIAL")
    };
    assert!(!is_partial(&whole));
    let lines: Vec<&str> = whole.lines().collect();
    assert!(is_partial(&format!("{}\n{}\n", lines[0], lines[1])), "interrupted between points");
    assert!(is_partial(&whole[..whole.len() / 2]), "cut in a line");
    assert!(is_partial(&format!("{}\n", lines[0])), "no point yet");
    let failed =
        lines[2].replace("{\"state\":\"ok\"}", "{\"state\":\"failed\",\"why\":\"fio died\"}");
    assert_ne!(failed, lines[2]);
    assert!(is_partial(&format!("{}\n{failed}\n", lines[0])));
    let row = &rows(&instance.path("half/points.csv"))[0];
    assert_eq!((row["status"].as_str(), row["total_requests_per_second"].as_str()), ("failed", ""));
}

#[test]
fn bad_input_is_one_line_and_leaves_nothing_half_written() {
    let instance = Instance::new();
    instance.run(&["lab", "report", "nothing"]).refused(1, "nothing");
    fs::write(instance.path("text"), "no result\n").unwrap();
    instance.run(&["lab", "report", "text"]).refused(1, "text");
    instance.run(&["lab", "report", "maxio-sata", "nothing"]).refused(1, "nothing");
    assert!(!instance.path("voltier-lab").exists());

    let folder = instance.path("full");
    fs::create_dir(&folder).unwrap();
    fs::write(instance.path("file"), "").unwrap();
    instance.run(&["lab", "report", "maxio-sata", "--out", "file/x"]).refused(1, "--out");
    fs::create_dir_all(instance.path("voltier-lab/maxio-sata")).unwrap();
    fs::write(instance.path("voltier-lab/maxio-sata/run.jsonl"), "").unwrap();
    instance.run(&["lab", "report", "maxio-sata"]).refused(2, "--out");

    if rustix::process::geteuid().is_root() {
        // A file system of 1 MiB: too small for the page.
        let at = folder.display().to_string();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none", &at]).status();
        if mounted.is_ok_and(|status| status.success()) {
            let answer = instance.run(&["lab", "report", "maxio-sata", "--out", "full"]);
            let left = fs::read_dir(&folder).unwrap().count();
            Command::new("umount").arg(&at).status().unwrap();
            answer.refused(1, "no space for the report");
            assert_eq!(left, 0, "nothing is left behind");
        } else {
            eprintln!("left out: nothing can be mounted here");
        }
    } else {
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
        instance.run(&["lab", "report", "maxio-sata", "--out", "full"]).refused(1, "--out");
    }
}
