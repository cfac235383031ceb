//! Manual pages, made of what `--help` is made of.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, Args, Command};
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use voltier_control::{ControlError, ControlResult};

/// Where the guide is after `make install`, which puts the path of its own prefix here.
const GUIDE: &str = "/usr/local/share/doc/voltier/docs/guide/README.md";

/// What is asked of the hidden verb that writes the pages.
#[derive(Debug, Args)]
pub struct Manual {
    /// Folder for the pages
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Date of the pages, as 2026-11-29
    #[arg(value_name = "DATE")]
    date: String,
}

/// Writes a page for a command, and one for each verb below it that help lists: `voltier-array-create.1`.
///
/// # Errors
/// When a page cannot be written.
pub fn write(command: Command, args: &Manual) -> ControlResult<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_all(&command, None, args)
}

/// [`write()`] for the verbs below a command alone: the command itself has its page from another program.
///
/// # Errors
/// When a page cannot be written.
pub fn write_verbs(command: Command, args: &Manual) -> ControlResult<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_below(&command, args)
}

fn write_all(command: &Command, above: Option<&str>, args: &Manual) -> ControlResult<()> {
    let name = name_of(command);
    let path = args.folder.join(format!("{name}.1"));
    let text = page(command, above, &args.date);
    let written = text.and_then(|text| fs::write(&path, text));
    written.map_err(|error| ControlError::io(format!("writing {}", path.display()), &error))?;
    write_below(command, args)
}

fn write_below(command: &Command, args: &Manual) -> ControlResult<()> {
    let name = name_of(command);
    let mut verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs.try_for_each(|verb| write_all(verb, Some(name), args))
}

fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command, above: Option<&str>, date: &str) -> std::io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    // Help has its lines wrapped by width; a page has the words alone.
    let shown = command.clone().override_usage(usage).subcommand_help_heading("COMMANDS");
    // What all verbs have comes last.
    let last = |arg: Arg| if arg.is_global_set() { arg.display_order(900) } else { arg };
    let shown = shown.mut_args(last);
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(shown)
        .title(name_of(command).to_uppercase())
        .date(date)
        .source(format!("Voltier {version}"))
        .manual("Voltier");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::default();
    if let Some(notes) = command.get_after_help() {
        rest.control("SH", ["NOTES"]);
        add_notes(&mut rest, &notes.to_string());
    }
    rest.control("SH", ["SEE ALSO"]);
    let mut others: Vec<&str> = above.into_iter().collect();
    if above.is_some_and(|above| above != "voltier") {
        others.push("voltier");
    }
    let others: String = others.iter().map(|other| format!("{other}(1), ")).collect();
    rest.text([roman(format!("{others}and the guide:"))]).control("br", []).text([roman(GUIDE)]);
    rest.to_writer(&mut text)?;
    Ok(text)
}

/// Notes keep their lines. An indented line is an item of a list: what it is about, and behind blanks what to know.
fn add_notes(roff: &mut Roff, notes: &str) {
    for (at, line) in notes.lines().enumerate() {
        let Some(item) = line.strip_prefix(' ').map(str::trim) else {
            if at > 0 {
                roff.control("PP", []);
            }
            roff.text([roman(line)]);
            continue;
        };
        match item.split_once("  ") {
            Some((word, what)) => {
                roff.control("TP", []).text([bold(word)]).text([roman(what.trim())])
            }
            None => roff.control("IP", []).text([roman(item)]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_help_lists_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let args = Manual { folder: dir.path().to_owned(), date: "2026-11-29".to_owned() };
        let verb =
            Command::new("make").about("Makes it").after_help("Keys:\n  a=1  one\n  b=2\nEnd.");
        let program = Command::new("voltier")
            .version("1.2")
            .propagate_version(true)
            .arg(Arg::new("state").long("state").value_name("DIR").help("Folder").global(true))
            .subcommand(verb)
            .subcommand(Command::new("array").subcommand(Command::new("show").about("Shows")))
            .subcommand(Command::new("keeper").hide(true));
        write(program, &args).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        let wanted = ["voltier-array-show.1", "voltier-array.1", "voltier-make.1", "voltier.1"];
        assert_eq!(names, wanted);
        let page = fs::read_to_string(dir.path().join("voltier-make.1")).unwrap();
        for words in [
            ".TH VOLTIER-MAKE 1 2026-11-29 \"Voltier 1.2\" Voltier",
            "voltier\\-make \\- Makes it",
            "\\fBvoltier make\\fR",
            "\\-\\-state",
            ".SH NOTES\nKeys:\n.TP\n\\fBa=1\\fR\none\n.IP\nb=2\n.PP\nEnd.",
            "voltier(1), and the guide:\n.br\n/usr/local/share/doc/voltier",
        ] {
            assert!(page.contains(words), "{words} in\n{page}");
        }
    }
}
