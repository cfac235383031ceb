//! Results of other programs, whole, cut and broken.

use proptest::prelude::*;
use voltier_results::analysis::judge;
use voltier_results::import::{self, Files};
use voltier_results::result::{Access, Status};

const MIXED: &str = include_str!("../data/fio-3.33-randrw.json");

fn parse(name: &str, text: &str) -> Result<voltier_results::result::Run, String> {
    import::parse(name, &Files::from([(name.to_owned(), text.to_owned())]))
}

#[test]
fn warnings_before_and_between_objects_are_skipped() {
    let text = format!("fio: a warning {{with a brace\n{MIXED}\nfio: and another\n");
    let run = parse("r.json", &text).unwrap();
    let [point] = &run.points[..] else { panic!("one point") };
    let read = point.read.as_ref().unwrap();
    assert_eq!((read.requests, read.bytes), (256_328, 1_049_919_488));
    assert!((read.iops - 127_972.041_937).abs() < 1e-6);
    assert_eq!(read.latency.percentile_ns(99.0), Some(14_876_672));
    assert_eq!(run.manifest.tool, "fio-3.33");
}

#[test]
fn a_cut_result_is_told_and_the_last_whole_interval_is_kept() {
    let half = &MIXED[..MIXED.len() / 2];
    assert!(parse("r.json", half).unwrap_err().contains("cut off"));
    let later = MIXED.replace("256328", "356328");
    let text = format!("{MIXED}\n{later}\n{half}");
    let run = parse("r.json", &text).unwrap();
    let [point] = &run.points[..] else { panic!("states of one job: {}", run.points.len()) };
    assert!(matches!(&point.status, Status::Partial(why) if why.contains("cut off")));
    assert_eq!(point.read.as_ref().unwrap().requests, 356_328);
}

#[test]
fn before_3_0_latencies_are_microseconds_and_bytes_are_kib() {
    let text = r#"{"fio version":"fio-2.15","timestamp":1479710051,"global options":{"rw":"readwrite"},
      "jobs":[{"jobname":"t2","groupid":0,"error":0,
      "job options":{"bs":"512k","iodepth":"8","ioengine":"libaio"},
      "read":{"io_bytes":2552320,"bw":153412,"iops":299.633362,"runtime":16637,"total_ios":4985,
        "clat":{"min":54,"max":135676,"mean":2892.5,"stddev":11199.5,
          "percentile":{"1.000000":56,"99.000000":1048,"0.00":[0,0,0]}}}}]}"#;
    let run = parse("old.json", text).unwrap();
    let point = &run.points[0];
    let read = point.read.as_ref().unwrap();
    assert_eq!(read.bytes, 2_552_320 * 1024);
    assert!((read.bytes_per_second - 153_412.0 * 1024.0).abs() < 1.0);
    assert_eq!(read.latency.percentile_ns(99.0), Some(1_048_000));
    assert!((read.latency.mean_ns - 2_892_500.0).abs() < 1e-6);
    assert_eq!(read.latency.percentiles_ns.len(), 2);
    assert_eq!((point.axes.read_percent, point.axes.block_bytes), (Some(50), Some(512 << 10)));
    assert_eq!((point.axes.depth, point.axes.access), (Some(8), Some(Access::Sequential)));
}

#[test]
fn clients_are_merged_and_fios_own_sum_is_left_out() {
    let client = |host: &str, requests: u64, bins: &str| {
        format!(
            r#"{{"jobname":"j","groupid":0,"error":0,"hostname":"{host}","port":8765,
            "job options":{{"rw":"randread","bs":"4k","iodepth":"4","ioengine":"libaio"}},
            "read":{{"io_bytes":{bytes},"io_kbytes":1,"bw_bytes":1,"iops":1.0,"runtime":10000,
            "total_ios":{requests},"clat_ns":{{"min":1,"max":9,"mean":5.0,"stddev":0.0,"N":{requests},
            "percentile":{{"99.000000":1}},"bins":{{{bins}}}}}}}}}"#,
            bytes = requests * 4096
        )
    };
    let text = format!(
        r#"{{"fio version":"fio-3.36","client_stats":[{},{},{}]}}"#,
        client("a", 30, r#""10":30"#),
        client("b", 10, r#""90":10"#),
        client("a", 999, r#""5":999"#).replacen("\"j\"", "\"All clients\"", 1)
    );
    let run = parse("c.json", &text).unwrap();
    let [point] = &run.points[..] else { panic!("one point") };
    assert_eq!((point.axes.clients, point.axes.jobs, point.clients.len()), (Some(2), Some(1), 2));
    let read = point.read.as_ref().unwrap();
    assert_eq!((read.requests, read.iops), (40, 4.0));
    assert_eq!(read.percentile_ns(50.0), Some(10));
    assert_eq!(read.percentile_ns(80.0), Some(90));
    assert_eq!(read.latency.percentile_ns(99.0), None, "percentiles are not averaged");
}

#[test]
fn jobs_that_failed_are_marked_and_never_zero() {
    let failed = MIXED.replacen("\"error\" : 0", "\"error\" : 5", 1);
    let run = parse("r.json", &failed.replacen("\"error\": 0", "\"error\": 5", 1)).unwrap();
    assert!(matches!(&run.points[0].status, Status::Invalid(why) if why.contains("error 5")));
    let nothing = r#"{"jobs":[{"jobname":"a","read":{"total_ios":0},"write":{"total_ios":0}}]}"#;
    let run = parse("r.json", nothing).unwrap();
    assert!(matches!(run.points[0].status, Status::Failed(_)));
    assert_eq!((run.points[0].iops(), run.points[0].latency_mean_ns()), (None, None));
}

#[test]
fn what_is_no_result_is_refused_in_one_line() {
    for text in ["", "  \n", "hello", "{}", "{\"jobs\":[]}", "{\"jobs\":3}", "{x}", "[1,2]", "{"] {
        for name in ["x.json", "x_bw.1.log", "x_iops.csv", "x_summary.txt", "x.csv"] {
            let Err(why) = parse(name, text) else { panic!("{name} {text:?} was taken") };
            assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
        }
    }
    let message = import::read(std::path::Path::new("/nonexistent/r.json")).unwrap_err();
    assert!(message.to_string().contains("/nonexistent/r.json"));
}

const SUMMARY: &str =
    "ORION VERSION 11.1.0.7.0\n\nCommandline:\n-run simple -testname mytest -num_disks 1\n
This maps to this test:\nTest: mytest\nSmall IO size: 8 KB\nLarge IO size: 1024 KB\n
IO Types: Small Random IOs, Large Random IOs\nSimulated Array Type: CONCAT\nWrite: 0%\n
Cache Size: Not Entered\nDuration for each Data Point: 60 seconds\nTotal Data Points: 8\n
Name: /dev/sda2 Size: 629143441920\n1 FILEs found.\n
Maximum Large MBPS=374.26 @ Small=0 and Large=2\nMaximum Small IOPS=6210 @ Small=5 and Large=0\n
Minimum Small Latency=0.43 @ Small=1 and Large=0\n";

fn orion() -> Files {
    let files = [
        ("t_summary.txt", SUMMARY),
        (
            "t_iops.csv",
            "Large/Small,      1,      2,      3\n          0,   2302,   4398,   5450\n          1\n",
        ),
        ("t_lat.csv", "Large/Small,  1,  2,  3\n  0,   0.43,   0.45,  0.55\n  1\n  2\n"),
        ("t_mbps.csv", "Large/Small,      0,      1\n          1, 271.58\n          2, 374.26\n"),
    ];
    files.map(|(name, text)| (name.to_owned(), text.to_owned())).into()
}

#[test]
fn orions_files_are_a_run_and_a_run_is_orions_files() {
    for name in ["t_summary.txt", "t_iops.csv"] {
        let run = import::parse(name, &orion()).unwrap();
        assert_eq!(run.points.len(), 5);
        let small = run.point("small=2/large=0").unwrap();
        assert_eq!((small.iops(), small.latency_mean_ns()), (Some(4398.0), Some(450_000.0)));
        assert_eq!(small.axes.block_bytes, Some(8192));
        let large = run.point("small=0/large=2").unwrap();
        assert_eq!(large.bytes_per_second(), Some(374.26e6));
        assert_eq!(large.latency_mean_ns(), None);
        assert_eq!(judge(&run).curves.len(), 1);
    }
    let run = import::parse("t_summary.txt", &orion()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let written = import::export_orion(&run, "mine", folder.path()).unwrap();
    assert_eq!(written.len(), 4);
    let again = import::read(&written[0]).unwrap();
    assert_eq!(again.points.len(), run.points.len());
    for point in &run.points {
        let other = again.point(&point.id).unwrap();
        let near = |one: Option<f64>, two: Option<f64>| match (one, two) {
            (Some(one), Some(two)) => (one / two - 1.0).abs() < 0.01,
            (one, two) => one == two,
        };
        assert!(near(point.iops(), other.iops()), "{}", point.id);
        assert!(near(point.latency_mean_ns(), other.latency_mean_ns()), "{}", point.id);
        assert_eq!(point.axes.block_bytes, other.axes.block_bytes);
    }
}

#[test]
fn latencies_of_orion_without_their_unit_are_left_out() {
    let mut files = orion();
    files.remove("t_summary.txt");
    let run = import::parse("t_lat.csv", &files).unwrap();
    assert_eq!(run.point("small=1/large=0").unwrap().latency_mean_ns(), None);
    assert!(run.manifest.notes.iter().any(|note| note.contains("ms or us")));
}

#[test]
fn elbenchos_rows_are_points_and_phases_without_requests_keep_their_figures() {
    let text = "ISO date,label,path type,paths,hosts,threads,dirs,files,file size,block size,direct IO,\
        random,random aligned,IO depth,shared paths,truncate,operation,time ms [first],time ms [last],\
        entries/s [first],entries/s [last],IOPS [first],IOPS [last],MiB/s [first],MiB/s [last],\
        CPU% [first],CPU% [last],entries [first],entries [last],MiB [first],MiB [last],\
        Ent lat us [min],Ent lat us [avg],Ent lat us [max],IO lat us [min],IO lat us [avg],\
        IO lat us [max],version\n\
        2026-05-22T16:09:38,,dir,1,1,8,1,4,268435456,1048576,1,0,,4,1,0,MKDIRS,2,5,3277,1466,,,,,8,7,8,8,,,\
        812,1068,1378,,,,3.1-1\n\
        2026-05-22T16:09:38,,dir,1,1,8,1,4,268435456,1048576,1,0,,4,1,0,WRITE,2134,2784,11,11,3494,2941,\
        3494,2941,10,9,25,32,7460,8192,290635,609112,867164,1661,9383,120903,3.1-1\n";
    let run = parse("e.csv", text).unwrap();
    assert_eq!(run.points.len(), 2);
    assert_eq!(run.points[0].iops(), None);
    assert_eq!(run.points[0].metrics["operations_per_second"], 1466.0);
    let write = &run.points[1];
    assert_eq!(write.iops(), Some(2941.0));
    assert_eq!(write.bytes_per_second(), Some(2941.0 * 1_048_576.0));
    assert_eq!(write.latency_mean_ns(), Some(9_383_000.0));
    assert_eq!((write.axes.jobs, write.axes.depth), (Some(8), Some(4)));
    assert_eq!(run.manifest.tool, "elbencho 3.1-1");
}

#[test]
fn logs_with_a_broken_line_name_it_and_a_cut_one_is_marked() {
    let why = parse("a_iops.1.log", "500, 10, 0, 0, 0\nx, 1\n1000, 10, 0, 0, 0\n").unwrap_err();
    assert!(why.contains("a_iops.1.log, line 2"), "{why}");
    let run = parse("a_iops.1.log", "500, 10, 0, 0, 0\n1000, 20, 0, 0, 0\n15").unwrap();
    assert!(matches!(run.points[0].status, Status::Partial(_)));
    assert_eq!(run.points[0].iops(), Some(15.0));
    assert_eq!(run.points[0].series.len(), 2);
}

#[test]
fn latencies_of_jobs_and_directions_count_by_their_requests() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    // 900 fast reads and 100 slow writes of one job, 1000 fast reads of another, in a second.
    write("a_iops.1.log", "1000, 900, 0, 0, 0\n1000, 100, 1, 0, 0\n");
    write("a_lat.1.log", "1000, 1000, 0, 0, 0\n1000, 21000, 1, 0, 0\n");
    write("a_iops.2.log", "1000, 1000, 0, 0, 0\n");
    write("a_lat.2.log", "1000, 1000, 0, 0, 0\n");
    let run = import::read(&folder.path().join("a_iops.1.log")).unwrap();
    let [sample] = run.points[0].series[..] else { panic!("{:?}", run.points[0].series) };
    assert!((sample.latency_mean_ns - 2000.0).abs() < 1e-9, "{sample:?}");
    assert_eq!(run.points[0].read.as_ref().unwrap().latency.mean_ns, 1000.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_input_panics(text in "\\PC{0,300}", kind in 0..6_usize) {
        let names = ["r.json", "a_bw.1.log", "a_clat_hist.1.log", "t_summary.txt", "t_iops.csv", "e.csv"];
        if let Ok(run) = parse(names[kind], &text) {
            judge(&run);
        }
    }

    #[test]
    fn a_damaged_result_never_panics(at in 0..MIXED.len(), byte in 0..128_u8, cut in 0..MIXED.len()) {
        let mut bytes = MIXED.as_bytes().to_vec();
        bytes[at] = byte;
        bytes.truncate(cut.max(at + 1));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match parse("r.json", &text) {
            Ok(run) => { judge(&run); }
            Err(why) => prop_assert!(!why.contains('\n')),
        }
    }

    #[test]
    fn numbers_of_any_size_do_not_panic(a in any::<u64>(), b in any::<f64>(), c in any::<u64>()) {
        let text = format!(
            r#"{{"jobs":[{{"jobname":"a","job_runtime":{a},"usr_cpu":{c},"sys_cpu":1,
            "job options":{{"iodepth":"{a}","bs":"{c}","numjobs":"{c}"}},
            "read":{{"total_ios":{a},"io_bytes":{c},"io_kbytes":{a},"bw_bytes":{c},
            "iops":{c},"runtime":{c},"clat_ns":{{"min":{a},"max":{c},"mean":{a},"stddev":{c},
            "bins":{{"{a}":{c},"{c}":{a}}}}}}}}}]}}"#
        );
        if let Ok(run) = parse("r.json", &text) {
            judge(&run);
            serde_json::to_string(&judge(&run)).unwrap();
        }
        let log = format!("{a}, {b}, 0, {c}, 0\n{c}, {a}, 1, 0, 0\n");
        for name in ["a_bw.1.log", "a_lat.1.log", "a_iops.1.log"] {
            if let Ok(run) = parse(name, &log) {
                judge(&run);
            }
        }
    }
}
