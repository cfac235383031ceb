//! The format of a trace by its content.

use super::format::Format;
use super::record::Record;
use super::{binary, iolog, text};

/// The format of a file that begins so. Formats without a mark of their own are not guessed.
pub(super) fn recognise(start: &[u8]) -> Option<Format> {
    if binary::is_blktrace(start) {
        return Some(Format::Blktrace);
    }
    if iolog::is_iolog(start) {
        return Some(Format::Iolog);
    }
    if binary::vscsi_version(start).is_some() {
        return Some(Format::CloudPhysics);
    }
    let start = String::from_utf8_lossy(start);
    // The last line may be cut.
    let whole = start.rfind('\n').map_or(&*start, |end| &start[..end]);
    let lines: Vec<&str> = whole.lines().take(64).collect();
    let reads = |format: &Format| {
        let is_request =
            |line: &&&str| matches!(text::parse(*format, line), Ok(Record::Request(_)));
        lines.iter().filter(is_request).count()
    };
    let guessed = [Format::Msr, Format::Alibaba, Format::Tencent, Format::Blkparse];
    guessed.into_iter().filter(|format| reads(format) > 0).max_by_key(reads)
}
