//! Wrong usage in one line, as every other error.

use clap::error::{Error, ErrorKind};

/// The message of a clap error as one line with a hint; `None` when it is help, to be printed.
pub(crate) fn one_line(error: &Error) -> Option<String> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return None,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            return Some("no command given; `voltier --help` lists them".to_owned());
        }
        _ => {}
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
        .filter(|word| !word.starts_with('-'))
        .collect();
    let help = if verb.is_empty() { "voltier".to_owned() } else { verb.join(" ") };
    let hint = if tip.is_empty() { String::new() } else { format!("{tip}, or ") };
    Some(format!("{message}; {hint}see `{help} --help`"))
}
