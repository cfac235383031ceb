//! Answers on standard output: text for people, or JSON.

use std::io::{IsTerminal, Write};

use voltier_control::{ControlError, ControlResult};

/// Prints a value as JSON.
///
/// # Errors
/// When the value has no JSON, or standard output cannot be written.
pub fn print_json(value: &impl serde::Serialize) -> ControlResult<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| ControlError::failed(format!("writing JSON: {error}")))?;
    print(&format!("{text}\n"))
}

fn compact(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    format!("{text}\n")
}

/// Prints a value as one line of JSON.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_line(value: &impl serde::Serialize) -> ControlResult<()> {
    print(&compact(value))
}

/// Prints to standard output; a reader that has seen enough (`| head`) ends the command well.
///
/// # Errors
/// When standard output cannot be written.
pub fn print(text: &str) -> ControlResult<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(ControlError::io("writing the answer", &error)),
        Ok(()) => Ok(()),
    }
}

/// Prints what `show` found: as JSON, a line for each look when it is watched, or as text.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_shown<T: serde::Serialize>(
    all: &[T],
    one: bool,
    watch: bool,
    json: bool,
    body: impl FnOnce() -> String,
) -> ControlResult<()> {
    match (json, all) {
        (true, [only]) if one && watch => print(&compact(only)),
        (true, [only]) if one => print_json(only),
        (true, all) if watch => print(&compact(&all)),
        (true, all) => print_json(&all),
        (false, _) => {
            let clear = watch && std::io::stdout().is_terminal();
            print(&format!("{}{}", if clear { "\x1b[H\x1b[2J" } else { "" }, body()))
        }
    }
}
