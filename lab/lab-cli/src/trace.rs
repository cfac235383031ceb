//! `voltier lab trace`: traces of others, described, as curves, replayed, written.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use voltier_cli::output::{print, print_json};
use voltier_control::{ControlError, ControlResult, StateDir};
use voltier_lab::plan::{self, Value};
use voltier_lab::run::{RUN_FILE, environment};
use voltier_results::report::{self, ReportFiles};
use voltier_results::result::RunWriter;
use voltier_results::size::format_bytes;
use voltier_results::table::figure;
use voltier_results::{LabError, Stop};
use voltier_trace::convert::Writer;
use voltier_trace::make::{Made, Recipe};
use voltier_trace::mrc::{self, Curves, Question};
use voltier_trace::{Source, stats};

use crate::failure::failed;
use crate::lab_args::LabRun;
use crate::measure::measure;
use crate::trace_args::{TraceConvert, TraceMake, TraceMrc, TraceReplay, TraceVerb};

/// Requests between two looks at the user's wish to stop.
const STOP_EVERY: u64 = 1 << 16;

/// Runs a verb of `lab trace`.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(verb: &TraceVerb, state: &StateDir, json: bool) -> ControlResult<()> {
    match verb {
        TraceVerb::Stats(args) => {
            let (files, options) = (&args.trace.files, args.trace.options());
            let stop = Stop::on_signals().map_err(failed)?;
            let stats = stats::stats(files, &options, args.line, &stop).map_err(failed)?;
            if json { print_json(&stats) } else { print(&stats.text()) }
        }
        TraceVerb::Mrc(args) => curves(args, json),
        TraceVerb::Replay(args) => replay(args, state, json),
        TraceVerb::Convert(args) => convert(args, json),
        TraceVerb::Make(args) => make(args, json),
    }
}

fn curves(args: &TraceMrc, json: bool) -> ControlResult<()> {
    let question = Question {
        line_bytes: args.line,
        mode: args.mode,
        is_reads_only: args.reads_only,
        sizes: args.sizes.clone(),
        methods: args.curves.clone(),
        seed: args.seed,
    };
    question.check().map_err(failed)?;
    if let Some(folder) = args.out.as_deref().filter(|folder| folder.join(RUN_FILE).exists()) {
        let shown = folder.display();
        return Err(ControlError::failed(format!(
            "{shown} already holds a run: give another --out"
        )));
    }
    let stop = Stop::on_signals().map_err(failed)?;
    let curves = mrc::curves(&args.trace.files, &args.trace.options(), &question, &stop);
    let curves = curves.map_err(failed)?;
    let kept = args.out.as_deref().map(|folder| keep(&curves, folder)).transpose()?;
    match (json, args.csv) {
        (true, _) => print_json(&curves),
        (_, true) => print(&curves.csv()),
        _ => {
            let report = kept.map(|files| format!("report: {}\n", files.html.display()));
            print(&(curves.text() + &report.unwrap_or_default()))
        }
    }
}

/// The curves as a run with its report, and as CSV, in a folder.
fn keep(curves: &Curves, folder: &Path) -> ControlResult<ReportFiles> {
    std::fs::create_dir_all(folder)
        .map_err(|error| ControlError::io(format!("making {}", folder.display()), &error))?;
    let name = folder.file_name().map_or_else(|| "mrc".into(), |name| name.to_string_lossy());
    #[expect(clippy::disallowed_methods, reason = "runs are dated by the machine's clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let run = curves.run(&name, now.as_millis() as u64, environment(""));
    let mut writer = RunWriter::create(&folder.join(RUN_FILE), &run.manifest).map_err(failed)?;
    for point in &run.points {
        writer.point(point).map_err(failed)?;
    }
    writer.end().map_err(failed)?;
    let path = folder.join("mrc.csv");
    std::fs::write(&path, curves.csv())
        .map_err(|error| ControlError::io(format!("writing {}", path.display()), &error))?;
    report::write(&run, plan::facts::of(&run).as_ref(), &[], folder).map_err(failed)
}

/// The plan `trace` with what the command line says.
fn replay(args: &TraceReplay, state: &StateDir, json: bool) -> ControlResult<()> {
    let text = |text: &str| Value::String(text.to_owned()).to_string();
    let files = args
        .trace
        .files
        .iter()
        .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let files: Vec<Value> =
        files.map(|path| Value::String(path.to_string_lossy().into_owned())).collect();
    let mut settings = vec![
        format!("files={}", Value::Array(files)),
        format!("speed={:?}", args.speed),
        format!("fit={}", text(&args.fit)),
        format!("depth={}", args.depth),
        format!("reads_only={}", args.reads_only),
        format!("max_broken={:?}", args.trace.max_broken),
        format!("block={}", text(&format_bytes(args.trace.block))),
        format!("mode={}", text(&args.mode)),
        format!("policy={}", text(&args.policy)),
        format!("line={}", text(&args.line)),
    ];
    settings.extend(args.trace.format.map(|format| format!("format={}", text(format.name()))));
    settings.extend(args.trace.volume.as_ref().map(|name| format!("volume={}", text(name))));
    settings.extend(args.trace.limit.map(|limit| format!("limit={limit}")));
    settings.extend(args.cache.as_ref().map(|cache| format!("cache={}", text(cache))));
    let run = LabRun {
        plan: Some("trace".to_owned()),
        targets: vec![args.target.clone()],
        quick: false,
        size: args.size.clone(),
        seconds: None,
        settings,
        out: args.out.clone(),
        resume: None,
        destroy: args.destroy.clone(),
        lun: None,
        orion: Vec::new(),
    };
    measure(&run, state, json)
}

fn convert(args: &TraceConvert, json: bool) -> ControlResult<()> {
    let stop = Stop::on_signals().map_err(failed)?;
    let mut source = Source::open(&args.trace.files, &args.trace.options()).map_err(failed)?;
    let writer = Writer::create(&args.output, args.to).map_err(failed)?;
    let written = copy(&mut source, writer, &stop);
    let (requests, left_out) = written.map_err(|error| discard(&args.output, error))?;
    let broken = source.broken();
    if json {
        return print_json(&json!({
            "file": args.output, "requests": requests, "left_out": left_out, "broken": broken
        }));
    }
    let mut text = format!("{} requests: {}\n", figure(requests as f64), args.output.display());
    if left_out > 0 {
        text.push_str(&format!("{left_out} discards were left out, because the format has none\n"));
    }
    if let Some(first) = broken.first {
        text.push_str(&format!(
            "{} broken records were skipped; the first: {first}\n",
            broken.records
        ));
    }
    print(&text)
}

/// Takes away what was written of a trace that turned out to be unusable.
fn discard(path: &Path, error: LabError) -> ControlError {
    // The file is ours: this command made the file a moment ago.
    std::fs::remove_file(path).ok();
    failed(error)
}

fn copy(source: &mut Source, mut writer: Writer, stop: &Stop) -> Result<(u64, u64), LabError> {
    let mut first_ns = None;
    let mut count = 0_u64;
    while let Some(mut request) = source.next_request()? {
        count += 1;
        if count.is_multiple_of(STOP_EVERY) {
            stop.check()?;
        }
        let begin = *first_ns.get_or_insert(request.at_ns);
        request.at_ns = request.at_ns.saturating_sub(begin);
        writer.add(&request, &source.volumes()[request.volume as usize])?;
    }
    writer.finish()
}

fn make(args: &TraceMake, json: bool) -> ControlResult<()> {
    let recipe = Recipe {
        pattern: args.pattern,
        requests: args.requests,
        blocks: args.blocks,
        write_percent: args.writes,
        rate: args.rate,
        seed: args.seed,
    };
    let stop = Stop::on_signals().map_err(failed)?;
    let mut writer = Writer::create(&args.output, args.to).map_err(failed)?;
    let written = (|| {
        for (count, request) in Made::new(recipe).enumerate() {
            if (count as u64).is_multiple_of(STOP_EVERY) {
                stop.check()?;
            }
            writer.add(&request, "trace")?;
        }
        writer.finish()
    })();
    let (requests, _) = written.map_err(|error| discard(&args.output, error))?;
    if json {
        return print_json(&json!({ "file": args.output, "requests": requests }));
    }
    print(&format!("{} requests: {}\n", figure(requests as f64), args.output.display()))
}
