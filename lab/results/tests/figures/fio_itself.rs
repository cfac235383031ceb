//! Against fio itself: what is imported equals what fio says, merged parts equal the whole, and
//! clean runs have no findings.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use voltier_results::analysis::{Severity, judge, latency};
use voltier_results::import;
use voltier_results::result::{Flow, Histogram, Run, Status};

/// Runs fio in a folder; it is installed by `make test`.
fn fio(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("timeout");
    command.arg("60").arg("fio").args(arguments).current_dir(folder);
    let output = command.output().expect("fio is installed: run scripts/deps.sh test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn no_findings(run: &Run) {
    let findings = judge(run).findings;
    let bad = findings.iter().find(|finding| finding.severity > Severity::Note);
    assert_eq!(bad, None);
}

/// fio's own figures of one direction.
fn same_as_fio(flow: &Flow, fio: &Value) {
    assert_eq!(flow.requests, fio["total_ios"].as_u64().unwrap());
    assert_eq!(flow.bytes, fio["io_bytes"].as_u64().unwrap());
    assert_eq!(flow.iops, fio["iops"].as_f64().unwrap());
    assert_eq!(flow.bytes_per_second, fio["bw_bytes"].as_f64().unwrap());
    assert_eq!(flow.latency.mean_ns, fio["clat_ns"]["mean"].as_f64().unwrap());
    assert_eq!(flow.latency.max_ns, fio["clat_ns"]["max"].as_u64().unwrap());
    let bins = flow.histogram.as_ref().unwrap();
    assert_eq!(bins.total(), flow.requests);
    let percentiles = fio["clat_ns"]["percentile"].as_object().unwrap();
    assert!(percentiles.len() > 10);
    for (percent, ns) in percentiles {
        let ours = bins.percentile_ns(percent.parse().unwrap());
        assert_eq!(ours, ns.as_u64(), "percentile {percent}");
    }
}

#[test]
fn totals_rates_and_percentiles_equal_fios_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    let arguments = [
        "--name=mixed",
        "--filename=data",
        "--ioengine=psync",
        "--size=4m",
        "--rw=randrw",
        "--rwmixread=70",
        "--bs=4k",
        "--numjobs=2",
        "--thread=1",
        "--group_reporting",
        "--time_based",
        "--runtime=1",
        "--output-format=json+",
        "--output=result.json",
    ];
    fio(folder.path(), &arguments);
    assert!(file.exists());
    let path = folder.path().join("result.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let json: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let run = import::read(&path).unwrap();
    let [point] = &run.points[..] else { panic!("one point") };
    same_as_fio(point.read.as_ref().unwrap(), &json["jobs"][0]["read"]);
    same_as_fio(point.write.as_ref().unwrap(), &json["jobs"][0]["write"]);
    assert_eq!((point.axes.jobs, point.axes.depth), (Some(2), Some(1)));
    assert_eq!((point.axes.read_percent, point.axes.block_bytes), (Some(70), Some(4096)));
    assert_eq!(point.axes.target, "data");
    assert!(point.metrics["cpu_process_us_per_request"] > 0.0);
    no_findings(&run);
}

#[test]
fn merged_percentiles_equal_those_of_one_big_run() {
    let folder = tempfile::tempdir().unwrap();
    // The same threads: each for itself, with a log of every latency, so that the whole is known
    // apart from the parts.
    let arguments = [
        "--name=part",
        "--ioengine=null",
        "--size=16m",
        "--rw=randread",
        "--bs=4k",
        "--numjobs=3",
        "--thread=1",
        "--output-format=json+",
        "--output=parts.json",
        "--write_lat_log=whole",
    ];
    fio(folder.path(), &arguments);
    let run = import::read(&folder.path().join("parts.json")).unwrap();
    let [point] = &run.points[..] else { panic!("three threads are one point") };
    assert_eq!(point.axes.jobs, Some(3));
    let merged = latency::merged(point.flows()).unwrap();
    let mut whole = Histogram::default();
    for thread in 1..=3 {
        let log = folder.path().join(format!("whole_clat.{thread}.log"));
        for line in std::fs::read_to_string(log).unwrap().lines() {
            whole.record(line.split(',').nth(1).unwrap().trim().parse().unwrap());
        }
    }
    assert_eq!(whole.total(), 3 * 4096);
    assert_eq!(merged, whole);
    for percent in [50.0, 90.0, 99.0, 99.9, 99.99] {
        assert_eq!(latency::percentile_ns(point, percent), whole.percentile_ns(percent));
    }
    no_findings(&run);
}

#[test]
fn intervals_are_one_point_with_a_time_line() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--name=line",
        "--ioengine=null",
        "--size=1g",
        "--rw=randread",
        "--bs=4k",
        "--time_based",
        "--runtime=3",
        "--rate_iops=2000",
        "--status-interval=1",
        "--output-format=json+",
        "--output=line.json",
    ];
    fio(folder.path(), &arguments);
    let path = folder.path().join("line.json");
    let run = import::read(&path).unwrap();
    let [point] = &run.points[..] else { panic!("one point, {} read", run.points.len()) };
    assert!(point.series.len() >= 2, "{:?}", point.series);
    assert_eq!(point.status, Status::Ok);
    no_findings(&run);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 200]).unwrap();
    let cut = import::read(&path).unwrap();
    assert!(matches!(cut.points[0].status, Status::Partial(_)));
    std::fs::write(&path, &text[..200]).unwrap();
    let message = import::read(&path).unwrap_err().to_string();
    assert!(message.contains("cut off") && message.lines().count() == 1, "{message}");
}

#[test]
fn logs_say_what_the_result_says() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--name=logged",
        "--ioengine=null",
        "--size=1g",
        "--rw=randread",
        "--bs=4k",
        "--time_based",
        "--runtime=2",
        "--rate_iops=5000",
        "--numjobs=2",
        "--thread=1",
        "--group_reporting",
        "--log_avg_msec=250",
        "--write_bw_log=l",
        "--write_iops_log=l",
        "--write_lat_log=l",
        "--write_hist_log=l",
        "--log_hist_msec=250",
        "--output-format=json+",
        "--output=logged.json",
    ];
    fio(folder.path(), &arguments);
    let result = import::read(&folder.path().join("logged.json")).unwrap();
    let logs = import::read(&folder.path().join("l_iops.1.log")).unwrap();
    let (whole, logged) = (&result.points[0], &logs.points[0]);
    let near = |one: Option<f64>, two: Option<f64>| {
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!((one / two - 1.0).abs() < 0.25, "{one} {two}");
    };
    near(logged.iops(), whole.iops());
    near(logged.bytes_per_second(), whole.bytes_per_second());
    let bins = logged.read.as_ref().unwrap().histogram.as_ref().unwrap();
    let all = whole.read.as_ref().unwrap().histogram.as_ref().unwrap();
    // The rest of the last window may not be logged.
    assert!(bins.total() <= all.total() && bins.total() * 2 > all.total());
    assert!(logged.series.len() >= 4);
}
