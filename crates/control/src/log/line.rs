//! One line of the log: time and level, or the journal's own mark of a level, and text without control
//! characters.

use std::fmt::{self, Write};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::error::is_control;

/// Longest line, in bytes: a message with ten device paths has less.
const LINE_BYTES_MAX: usize = 4096;

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// A terminal, pipe or file: lines say their time and level.
    Stream,
    /// The journal of systemd, which takes the level as a number in front and has the time itself. Not by
    /// `tracing-journald`: that sends from the thread that logs, which may have to wait.
    Journal,
}

/// The form of an event as a line.
pub(super) struct LineFormat(pub(super) Destination);

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        begin(self.0, *event.metadata().level(), &mut writer)?;
        context.format_fields(writer.by_ref(), event)?;
        writer.write_char('\n')
    }
}

/// The line that tells of lines left out.
pub(super) fn of_loss(destination: Destination, count: u64) -> Vec<u8> {
    let mut text = String::new();
    // A string takes everything.
    let _ = begin(destination, Level::WARN, &mut Writer::new(&mut text));
    let lines = if count == 1 { "line was" } else { "lines were" };
    let _ = writeln!(text, "{count} {lines} left out here: the log could not take more");
    text.into_bytes()
}

fn begin(destination: Destination, level: Level, writer: &mut Writer<'_>) -> fmt::Result {
    match destination {
        Destination::Journal => write!(writer, "<{}>", priority(level)),
        Destination::Stream => {
            SystemTime.format_time(writer)?;
            write!(writer, " {level:<5} ")
        }
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// A line as it is written: one line whatever is in it, cut where it is too long.
pub(super) fn printable(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let mut line = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        let before = line.len();
        match is_control(letter) {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
        if line.len() >= LINE_BYTES_MAX {
            line.truncate(before);
            line.push('…');
            break;
        }
    }
    line.push('\n');
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_moves_no_cursor() {
        let text = "v1: /dev/\u{1b}[2J\u{202e}x\ny\u{85}z\n".as_bytes();
        let line = String::from_utf8(printable(text)).unwrap();
        assert_eq!(line, "v1: /dev/\\u{1b}[2J\\u{202e}x\\ny\\u{85}z\n");
    }

    #[test]
    fn a_long_line_is_cut_at_a_letter() {
        let line = String::from_utf8(printable("ä".repeat(LINE_BYTES_MAX).as_bytes())).unwrap();
        assert!(line.len() <= LINE_BYTES_MAX + 4 && line.ends_with("ä…\n"), "{}", line.len());
    }

    #[test]
    fn a_line_of_a_stream_begins_with_time_and_level_and_one_of_the_journal_with_a_number() {
        let line = String::from_utf8(of_loss(Destination::Stream, 2)).unwrap();
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{line}");
        assert_eq!(rest, "WARN  2 lines were left out here: the log could not take more\n");
        let line = String::from_utf8(of_loss(Destination::Journal, 1)).unwrap();
        assert_eq!(line, "<4>1 line was left out here: the log could not take more\n");
    }
}
