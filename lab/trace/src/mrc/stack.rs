//! Stack distances of LRU: how many other lines were touched since a line was touched last.
//!
//! After Mattson, Gecsei, Slutz and Traiger (1970). Every touch takes the next place in a row of marks
//! and unmarks the line's last place; the marks behind that place are the distance. Marks are counted by
//! a Fenwick tree over words of 512 of them. When the row ends, the marks are pushed together. A touch
//! takes `O(log lines)`, and 13 to 17 bytes a line are all there is, however long the trace.

/// Marks under one leaf of the tree.
const BLOCK: usize = 512;
const WORDS: usize = BLOCK / 64;

/// The shortest row.
const ROW_MIN: usize = 64 * BLOCK;

/// The place of a line that is not in the stack.
const NOWHERE: u32 = u32::MAX;

/// Lines by small numbers, in the order of their last touch.
#[derive(Debug)]
pub(crate) struct Stack {
    /// The place of each line.
    places: Vec<u32>,
    /// The line of each place; stale where there is no mark.
    lines: Vec<u32>,
    marks: Vec<u64>,
    /// A Fenwick tree: element `i` sums the blocks up to `i` that its lowest bit covers.
    tree: Vec<u32>,
    next: usize,
    live: usize,
}

impl Stack {
    pub(crate) fn new() -> Self {
        let mut stack = Self {
            places: Vec::new(),
            lines: Vec::new(),
            marks: Vec::new(),
            tree: Vec::new(),
            next: 0,
            live: 0,
        };
        stack.resize(ROW_MIN);
        stack
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.places.capacity() + self.lines.capacity() + self.tree.capacity()) * 4
            + self.marks.capacity() * 8
    }

    /// Touches a line: how many others were touched since its last touch, `None` at the first.
    pub(crate) fn touch(&mut self, line: u32) -> Option<u64> {
        if self.next == self.lines.len() {
            self.push_together();
        }
        if self.places.len() <= line as usize {
            self.places.resize(line as usize + 1, NOWHERE);
        }
        let place = self.places[line as usize];
        let distance = (place != NOWHERE).then(|| {
            let distance = self.live - self.marked_up_to(place as usize);
            self.unmark(place as usize);
            distance as u64
        });
        let next = self.next;
        self.next += 1;
        self.mark(next);
        self.lines[next] = line;
        self.places[line as usize] = next as u32;
        distance
    }

    /// Forgets a line.
    pub(crate) fn remove(&mut self, line: u32) {
        let place = std::mem::replace(&mut self.places[line as usize], NOWHERE);
        if place != NOWHERE {
            self.unmark(place as usize);
        }
    }

    fn mark(&mut self, place: usize) {
        self.marks[place / 64] |= 1 << (place % 64);
        self.live += 1;
        let mut index = place / BLOCK + 1;
        while index < self.tree.len() {
            self.tree[index] += 1;
            index += index & index.wrapping_neg();
        }
    }

    fn unmark(&mut self, place: usize) {
        self.marks[place / 64] &= !(1 << (place % 64));
        self.live -= 1;
        let mut index = place / BLOCK + 1;
        while index < self.tree.len() {
            self.tree[index] -= 1;
            index += index & index.wrapping_neg();
        }
    }

    /// Marks at this place and before it.
    fn marked_up_to(&self, place: usize) -> usize {
        let mut index = place / BLOCK;
        let mut count = 0;
        while index > 0 {
            count += self.tree[index] as usize;
            index &= index - 1;
        }
        let (first, last) = (place / BLOCK * WORDS, place / 64);
        let whole = self.marks[first..last].iter().map(|word| word.count_ones() as usize);
        let part = self.marks[last] << (63 - place % 64);
        count + whole.sum::<usize>() + part.count_ones() as usize
    }

    /// Moves the marks to the start of a row of twice as many places as there are marks.
    fn push_together(&mut self) {
        let mut next = 0;
        for place in 0..self.next {
            if self.marks[place / 64] >> (place % 64) & 1 == 1 {
                let line = self.lines[place];
                self.lines[next] = line;
                self.places[line as usize] = next as u32;
                next += 1;
            }
        }
        self.next = next;
        self.resize((2 * next).next_multiple_of(BLOCK).max(ROW_MIN));
    }

    /// A row of `length` places, the first `next` of them marked.
    fn resize(&mut self, length: usize) {
        self.lines.resize(length, 0);
        self.marks.clear();
        self.marks.resize(length / 64, 0);
        self.tree.clear();
        self.tree.resize(length / BLOCK + 1, 0);
        self.live = 0;
        for place in 0..self.next {
            self.marks[place / 64] |= 1 << (place % 64);
        }
        self.live = self.next;
        for index in 1..self.tree.len() {
            let words = &self.marks[(index - 1) * WORDS..index * WORDS];
            self.tree[index] += words.iter().map(|word| word.count_ones()).sum::<u32>();
            let parent = index + (index & index.wrapping_neg());
            if parent < self.tree.len() {
                self.tree[parent] += self.tree[index];
            }
        }
    }
}

/// References by their distance in lines, each distance by itself.
#[derive(Debug, Default)]
pub(crate) struct Distances(Vec<u64>);

impl Distances {
    /// Counts a reference.
    pub(crate) fn record(&mut self, distance: u64) {
        let distance = distance as usize;
        if self.0.len() <= distance {
            self.0.resize(distance + 1, 0);
        }
        self.0[distance] += 1;
    }

    /// References that an LRU cache of so many lines serves.
    pub(super) fn hits(&self, lines: u64) -> u64 {
        self.0[..self.0.len().min(lines as usize)].iter().sum()
    }

    /// The distances within which a tenth, two tenths, ... nine tenths of the references are.
    pub(crate) fn deciles(&self) -> Vec<u64> {
        let total: u64 = self.0.iter().sum();
        let (mut deciles, mut seen) = (Vec::new(), 0);
        for (distance, count) in self.0.iter().enumerate() {
            seen += count;
            while deciles.len() < 9 && total > 0 && seen * 10 >= total * (deciles.len() as u64 + 1)
            {
                deciles.push(distance as u64);
            }
        }
        deciles
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::Prng;

    #[test]
    fn distances_are_those_of_a_list_that_is_searched() {
        let mut prng = Prng::new(3);
        let (mut stack, mut list) = (Stack::new(), Vec::<u32>::new());
        for step in 0..120_000_u32 {
            let line = prng.below(1 + u64::from(step % 97)) as u32;
            let place = list.iter().rposition(|known| *known == line);
            let expected = place.map(|place| (list.len() - 1 - place) as u64);
            if prng.below(50) == 0 && place.is_some() {
                stack.remove(line);
                list.retain(|known| *known != line);
                continue;
            }
            assert_eq!(stack.touch(line), expected, "step {step}");
            list.retain(|known| *known != line);
            list.push(line);
        }
    }

    #[test]
    fn a_row_that_ends_is_begun_again_without_a_change() {
        let mut stack = Stack::new();
        let lines = ROW_MIN as u32 * 3;
        for round in 0..3 {
            for line in 0..lines {
                let expected = (round > 0).then_some(u64::from(lines) - 1);
                assert_eq!(stack.touch(line), expected);
            }
        }
        assert!(stack.memory_bytes() < lines as usize * 18, "{}", stack.memory_bytes());
    }
}
