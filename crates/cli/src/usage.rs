//! Wrong usage in one line, as every other error.

use std::io::Write;
use std::process::{ExitCode, Termination};

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Command, Parser};
use voltier_control::{ControlResult, nearest};

/// The message of a clap error as one line with a hint; `None` when it is help, to be printed.
/// `program` is the command line that was not understood.
pub fn one_line(error: &Error, program: &Command) -> Option<String> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return None;
    }
    let text = error.render().to_string();
    let mut message = String::new();
    let mut tip = String::new();
    let mut usage = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(given) = line.strip_prefix("tip: ") {
            tip = given.to_owned();
        } else if let Some(given) = line.strip_prefix("Usage: ") {
            usage = given.to_owned();
        } else if line.is_empty() || line.starts_with("For more information") {
            continue;
        } else if usage.is_empty() {
            message.push_str(if message.is_empty() { "" } else { " " });
            message.push_str(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let verb: Vec<&str> = usage
        .split(' ')
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        .filter(|word| !word.is_empty() && !word.starts_with('-'))
        .collect();
    let help = if verb.is_empty() { "voltier".to_owned() } else { verb.join(" ") };
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        return Some(format!("no command given; `{help} --help` lists them"));
    }
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(meant) = meant_verb(program, &verb, given)
    {
        return Some(format!("`{help}` has no `{given}`; {meant}"));
    }
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && given.starts_with('-')
    {
        // Clap's own tip, to write it behind `--`, is never what was meant here.
        tip = meant_option(program, given, verb.get(1..).unwrap_or_default())
            .map_or_else(String::new, |option| format!("did you mean `{option}`?"));
    }
    let hint = if tip.is_empty() { String::new() } else { format!("{tip}, or ") };
    Some(format!("{message}; {hint}see `{help} --help`"))
}

/// What stands for verbs of other programs that take away or add something: the user decides, as it cannot be undone,
/// or there is more than one.
const VERBS: [(&[&str], &[&str], &str); 5] = [
    (
        &["voltier"],
        &["destroy", "remove", "rm"],
        "`voltier delete NAME` forgets a volume, `voltier detach NAME` its SSD alone",
    ),
    (
        &["voltier"],
        &["add"],
        "`voltier create NAME -p DISK -s SSD` makes a volume, `voltier attach NAME -s SSD` gives one an SSD",
    ),
    (
        &["voltier", "array"],
        &["destroy", "remove", "rm"],
        "`voltier array delete NAME` forgets an array, `voltier array fail NAME DEV` takes a member out, \
         `voltier array remove-spare NAME DEV` a spare",
    ),
    (
        &["voltier", "array"],
        &["add"],
        "`voltier array add-spare NAME DEV` adds a spare, `voltier array replace NAME OLD NEW` puts a drive in the \
         place of a member, `voltier array grow NAME ...` adds parity or capacity",
    ),
    (
        &["voltier", "array", "spare-pool"],
        &["destroy", "delete", "rm"],
        "`voltier array spare-pool remove POOL [DEV...]` removes drives, or the pool",
    ),
];

/// What to write instead of a verb that the program does not have.
fn meant_verb(program: &Command, verbs: &[&str], given: &str) -> Option<&'static str> {
    let is_ours = program.get_name() == "voltier";
    let mut known = VERBS.iter().filter(|(path, _, _)| is_ours && *path == verbs);
    known.find(|(_, words, _)| words.contains(&given)).map(|(_, _, meant)| *meant)
}

/// The long option of a verb, or of a verb below one, that is nearest to an unknown one.
fn meant_option(program: &Command, given: &str, verbs: &[&str]) -> Option<String> {
    let command = verbs.iter().try_fold(program, |command, verb| command.find_subcommand(verb));
    let command = command.unwrap_or(program);
    let options: Vec<String> = command
        .get_arguments()
        .chain(program.get_arguments())
        .filter_map(|argument| argument.get_long().map(|long| format!("--{long}")))
        .collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    nearest(given, &options).map(str::to_owned)
}

/// Reads the command line and does what it says. Help and wrong usage are answered here, and the error of
/// `run` becomes one line and an exit code.
pub fn main_of<C: Parser, T: Termination>(run: impl FnOnce(&C) -> ControlResult<T>) -> ExitCode {
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let Some(message) = one_line(&error, &C::command()) else {
                // Help and version go to standard output; a closed one is nobody's loss.
                let _ = error.print();
                return ExitCode::SUCCESS;
            };
            say(&message);
            return ExitCode::from(2);
        }
    };
    exit_code(run(&cli))
}

/// The exit code of a command, its error told in one line.
pub fn exit_code<T: Termination>(result: ControlResult<T>) -> ExitCode {
    match result {
        Ok(ended) => ended.report(),
        Err(error) => {
            say(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Writes a line to standard error; a closed one is nobody's loss, and the exit code says the same.
fn say(line: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "voltier: {line}");
}
