//! Requests as references to cache lines, and lines as small numbers.

use voltier_results::LabError;

use super::{Op, Request};

/// Bits of a key that are the line; above them is the volume. 8 PiB in lines of 512 bytes fit.
const LINE_BITS: u32 = 44;

/// Different lines at most: a place in a stack of twice as many has 32 bits.
const LINES_MAX: usize = 1 << 30;

/// One line that a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// Volume and line in one word.
    pub key: u64,
    /// Whether all of the line is meant.
    pub is_whole: bool,
}

/// The lines of a request, in order.
pub(super) fn references(request: &Request, line_bytes: u64) -> impl Iterator<Item = Reference> {
    let (begin, end) = (request.offset, request.offset + request.bytes);
    let volume = u64::from(request.volume) << LINE_BITS;
    (begin / line_bytes..end.div_ceil(line_bytes)).map(move |line| Reference {
        key: volume | line,
        is_whole: line * line_bytes >= begin && (line + 1) * line_bytes <= end,
    })
}

/// Whether a request touches lines: a discard does not.
pub(super) fn is_data(request: &Request) -> bool {
    request.op != Op::Discard
}

/// Spreads a key over 64 bits (the finalizer of splitmix64).
#[inline]
pub(super) fn spread(key: u64) -> u64 {
    let z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Numbers for lines, from 0 in the order in which they were met: 24 bytes a line, or less.
#[derive(Debug)]
pub(super) struct Numbering {
    /// Key plus one; zero where there is none. A power of two of them, at most two thirds full.
    keys: Vec<u64>,
    numbers: Vec<u32>,
    count: usize,
}

impl Numbering {
    pub(super) fn new() -> Self {
        Self { keys: vec![0; 1024], numbers: vec![0; 1024], count: 0 }
    }

    /// Lines that have a number.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.keys.capacity() * 8 + self.numbers.capacity() * 4
    }

    /// Where a key is, or where it belongs.
    #[inline]
    fn place(&self, key: u64) -> usize {
        let mask = self.keys.len() - 1;
        let mut place = spread(key) as usize & mask;
        while self.keys[place] != 0 && self.keys[place] != key + 1 {
            place = (place + 1) & mask;
        }
        place
    }

    /// The number of a line that was met before.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let place = self.place(key);
        (self.keys[place] != 0).then(|| self.numbers[place])
    }

    /// The number of a line, a new one when it was not met before.
    ///
    /// # Errors
    /// When there are too many lines.
    #[inline]
    pub(super) fn number(&mut self, key: u64) -> Result<u32, LabError> {
        let mut place = self.place(key);
        if self.keys[place] != 0 {
            return Ok(self.numbers[place]);
        }
        if self.count == LINES_MAX {
            return Err(LabError::Failed {
                what: "reading the trace".to_owned(),
                detail: format!(
                    "it touches more than {LINES_MAX} lines: give a larger --line, or a --limit"
                ),
            });
        }
        if (self.count + 1) * 3 > self.keys.len() * 2 {
            self.grow();
            place = self.place(key);
        }
        let number = self.count as u32;
        (self.keys[place], self.numbers[place]) = (key + 1, number);
        self.count += 1;
        Ok(number)
    }

    fn grow(&mut self) {
        let length = self.keys.len() * 2;
        let keys = std::mem::replace(&mut self.keys, vec![0; length]);
        let numbers = std::mem::replace(&mut self.numbers, vec![0; length]);
        for (key, number) in keys.into_iter().zip(numbers).filter(|(key, _)| *key != 0) {
            let place = self.place(key - 1);
            (self.keys[place], self.numbers[place]) = (key, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(volume: u32, offset: u64, bytes: u64) -> Request {
        Request { at_ns: 0, op: Op::Read, volume, offset, bytes }
    }

    #[test]
    fn a_request_touches_every_line_it_overlaps() {
        let lines: Vec<Reference> = references(&request(3, 4095, 4098), 4096).collect();
        let key = |line: u64| 3 << LINE_BITS | line;
        assert_eq!(lines.iter().map(|line| line.key).collect::<Vec<_>>(), [key(0), key(1), key(2)]);
        assert_eq!(
            lines.iter().map(|line| line.is_whole).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(references(&request(0, 8192, 4096), 4096).count(), 1);
        let last =
            references(&request(1, super::super::read::ADDRESS_LIMIT - 512, 512), 512).last();
        assert_eq!(last.unwrap().key, (2 << LINE_BITS) - 1, "the last line of volume 1");
    }

    #[test]
    fn numbers_are_given_once_and_kept() {
        let mut numbering = Numbering::new();
        for key in (0..100_000).chain(50_000..60_000) {
            assert_eq!(numbering.number(key * 7).unwrap(), key as u32);
        }
        assert_eq!(
            (numbering.count(), numbering.get(7), numbering.get(8)),
            (100_000, Some(1), None)
        );
    }
}
