//! Runs the commands shown in README.md and docs/guide as a reader would. One shell runs each page's
//! `sh run` blocks in order, in an empty folder, with the freshly built binary on PATH.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use voltier_lab::process::{self, Stop};
use voltier_lab::voltier::stop_daemon;

use xtask::fences::{Fence, fences, guide_pages};
use xtask::{Failure, workspace};

/// A page that takes longer is not a page a reader would follow.
const PAGE_LIMIT: Duration = Duration::from_secs(300);

/// Runs every page; fails with the line of the first block that fails on each.
pub(crate) fn run() -> Result<(), Failure> {
    let root = workspace::root();
    let binary = workspace::build_voltier(false)?;
    let folder = binary.parent().ok_or("the binary is in a folder")?;
    let stop = Stop::on_signals()?;
    let (mut blocks, mut failures, mut left_out) = (0, 0, 0);
    let can_open = |path| fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let has_devices = can_open("/dev/fuse") && can_open("/dev/loop-control");
    let pages = guide_pages(root)?;
    for page in &pages {
        let text = fs::read_to_string(page)?;
        let shown = page.strip_prefix(root)?.display().to_string();
        let mut run: Vec<Fence> = fences(&text).into_iter().filter(Fence::is_run).collect();
        let all = run.len();
        run.retain(|fence| has_devices || !fence.needs_devices());
        left_out += all - run.len();
        blocks += run.len();
        if let Err(failure) = run_page(&shown, &run, folder, &stop) {
            eprintln!("{failure}");
            failures += 1;
        }
        stop.check()?;
    }
    if failures > 0 {
        return Err(format!("doc-test: {failures} of {} pages failed", pages.len()).into());
    }
    println!("doc-test: {blocks} blocks of {} pages ran", pages.len());
    if left_out > 0 {
        println!("left out: {left_out} blocks that need root, FUSE and loop devices");
    }
    Ok(())
}

fn run_page(shown: &str, blocks: &[Fence], binaries: &Path, stop: &Stop) -> Result<(), Failure> {
    if blocks.is_empty() {
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("voltier-doc-").tempdir()?;
    let (state, run) = (folder.path().join("state"), folder.path().join("run"));
    fs::create_dir(&state)?;
    fs::create_dir(&run)?;
    let (script, at) = (folder.path().join("page.sh"), folder.path().join("at"));
    fs::write(&script, script_of(blocks, &at))?;
    let mut path = binaries.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    let mut command = Command::new("sh");
    command.arg(&script).current_dir(&run).env("PATH", path).env("VOLTIER_STATE", &state);
    let result = process::run(&mut command, shown, PAGE_LIMIT, stop);
    stop_daemon(&state);
    let finished = result?;
    if finished.status.success() {
        return Ok(());
    }
    let line = fs::read_to_string(&at).unwrap_or_default();
    let mut said = finished.stdout + &finished.stderr;
    said.truncate(said.trim_end().len());
    Err(format!(
        "{shown}:{}: the block that starts here failed ({}):\n{said}",
        line.trim(),
        finished.status
    )
    .into())
}

/// The blocks as one script that notes in the file `at` which of them it has reached.
fn script_of(blocks: &[Fence], at: &Path) -> String {
    let mut script = String::from("set -eu\n");
    for block in blocks {
        script.push_str(&format!("echo {} > '{}'\n{}", block.line, at.display(), block.body));
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Result<(), String> {
        let blocks: Vec<Fence> = fences(text).into_iter().filter(Fence::is_run).collect();
        run_page("page.md", &blocks, Path::new("/nowhere"), &Stop::default())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn blocks_of_a_page_share_one_shell() {
        page("```sh run\nx=1\ntouch made\n```\n```sh run\ntest $x = 1\ntest -e made\n```\n")
            .unwrap();
    }

    #[test]
    fn a_failing_block_is_named_by_its_line() {
        let failure = page("```sh run\ntrue\n```\n```sh run\necho no >&2\nfalse\ntrue\n```\n");
        let failure = failure.unwrap_err();
        assert!(failure.starts_with("page.md:5: "), "{failure}");
        assert!(failure.ends_with("\nno"), "{failure}");
    }

    #[test]
    fn an_unset_variable_is_a_failure() {
        assert!(page("```sh run\necho $NOT_SHOWN_ON_THE_PAGE\n```\n").is_err());
    }
}
