//! The medium of a drive: content that is safe, content that a power cut may still take, and what a crash
//! leaves.

use std::collections::BTreeMap;

use voltier_block::{Buf, Bytes, Durability, Lba, Prng, SECTOR_BYTES, SectorRange};

use crate::image::Image;

/// How a run ends without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The drives lose power: of what no flush covered any part may be on the medium.
    Power,
    /// The process is killed: what completed stays, what was under way may have happened.
    Kill,
}

impl Cut {
    /// One cut in four is a kill.
    pub(crate) fn draw(prng: &mut Prng) -> Self {
        if prng.one_in(4) { Cut::Kill } else { Cut::Power }
    }
}

/// The damage that a crash did to writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Writes of which some blocks are there and others are not.
    pub(crate) torn: u64,
    /// Completed writes of which nothing is there.
    pub(crate) lost: u64,
}

/// A write as the drive sees it.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) at: u64,
    pub(crate) data: Bytes,
}

impl Written {
    /// The blocks, each of which may be lost for itself.
    pub(crate) fn blocks(&self, block_bytes: u64) -> impl Iterator<Item = Written> {
        let starts = (0..self.data.len() as u64).step_by(block_bytes as usize);
        starts.map(move |from| self.part(from, from + block_bytes))
    }

    pub(crate) fn range(&self) -> SectorRange {
        SectorRange::from_bytes(self.at, self.data.len() as u64)
    }

    fn part(&self, from: u64, to: u64) -> Written {
        Written { at: self.at + from, data: self.data.slice(from as usize..to as usize) }
    }

    fn covers(&self, other: &Written) -> bool {
        self.at <= other.at
            && other.at + other.data.len() as u64 <= self.at + self.data.len() as u64
    }

    /// Takes over the bytes that `newer` has in common with this write.
    fn patch(&mut self, newer: &Written) {
        let start = self.at.max(newer.at);
        let end = (self.at + self.data.len() as u64).min(newer.at + newer.data.len() as u64);
        if start >= end {
            return;
        }
        let mut patched = Buf::copy_of(&self.data);
        let count = (end - start) as usize;
        let (to, from) = ((start - self.at) as usize, (start - newer.at) as usize);
        patched[to..to + count].copy_from_slice(&newer.data[from..from + count]);
        self.data = patched.freeze();
    }

    /// Runs of the blocks that reach the medium: none, all, or any. `odds` 0 loses most, 2 keeps most.
    pub(crate) fn survivors(&self, block_bytes: u64, odds: u64, prng: &mut Prng) -> Vec<Written> {
        let all = self.data.len() as u64;
        match (odds, prng.below(6)) {
            (_, 0) => {
                let mut runs: Vec<(u64, u64)> = Vec::new();
                for at in (0..all).step_by(block_bytes as usize).filter(|_| prng.one_in(2)) {
                    match runs.last_mut().filter(|run| run.1 == at) {
                        Some(run) => run.1 += block_bytes,
                        None => runs.push((at, at + block_bytes)),
                    }
                }
                runs.into_iter().map(|(from, to)| self.part(from, to)).collect()
            }
            (0, 1) | (1, 1..4) | (2, 1..6) => vec![self.clone()],
            _ => Vec::new(),
        }
    }
}

/// The medium of a drive that is not in use: safe content, and content that a power cut may still take.
#[derive(Clone)]
pub struct Medium {
    durable: Image,
    current: Image,
    /// Completed writes that no flush covered, by the order of completion.
    unflushed: BTreeMap<u64, Written>,
}

/// The content of a medium at some moment.
pub(crate) struct Snapshot(Image);

impl Snapshot {
    pub(crate) fn peek(&self, at: Lba, into: &mut [u8]) {
        self.0.read(at.bytes(), into);
    }
}

impl Medium {
    /// A medium of zeroes.
    pub fn zeroed(bytes: u64) -> Self {
        let image = Image::zeroed(bytes / SECTOR_BYTES);
        Self { durable: image.clone(), current: image, unflushed: BTreeMap::new() }
    }

    /// Adds zeroes behind the end, as a larger drive with the same content has them.
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.current.grow(bytes / SECTOR_BYTES);
        self.durable.grow(bytes / SECTOR_BYTES);
    }

    /// Reads without a drive.
    pub fn peek(&self, at: Lba, into: &mut [u8]) {
        self.current.read(at.bytes(), into);
    }

    /// A copy of what reads return now, apart from later writes. The copy costs little.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.current.clone())
    }

    /// Whether nothing is in the drive's volatile cache: no buffer is held there either.
    pub fn is_flushed(&self) -> bool {
        self.unflushed.is_empty()
    }

    /// Whether reads of both return the same.
    pub fn reads_like(&self, other: &Self) -> bool {
        self.current.is_same(&other.current)
    }

    /// Turns one bit over, on the medium and in the drive's cache alike.
    pub fn flip_bit(&mut self, byte: u64, bit: u8) {
        let mut value = [0];
        self.current.read(byte, &mut value);
        value[0] ^= 1 << bit;
        self.overwrite(byte, &value);
    }

    /// Writes past every drive, as a foreign machine would.
    pub fn overwrite(&mut self, byte: u64, data: &[u8]) {
        self.current.write(byte, data);
        self.durable.write(byte, data);
    }

    pub(crate) fn complete(&mut self, order: u64, written: Written, durability: Durability) {
        self.current.write(written.at, &written.data);
        match durability {
            Durability::Cached => drop(self.unflushed.insert(order, written)),
            Durability::Durable => {
                self.durable.write(written.at, &written.data);
                self.unflushed.retain(|_, older| !written.covers(older));
                // A write that is covered in part only is older as well: it must not come back on top.
                for older in self.unflushed.values_mut() {
                    older.patch(&written);
                }
            }
        }
    }

    /// A write reaches the drive's cache, block by block: the power may take each away by itself.
    pub(crate) fn take_in(&mut self, order: &mut u64, written: &Written, block_bytes: u64) {
        for block in written.blocks(block_bytes) {
            self.complete(*order, block, Durability::Cached);
            *order += 1;
        }
    }

    /// Makes writes that completed before `order` durable; their number.
    pub(crate) fn flush(&mut self, order: u64) -> usize {
        let rest = self.unflushed.split_off(&order);
        let flushed = std::mem::replace(&mut self.unflushed, rest);
        for written in flushed.values() {
            self.durable.write(written.at, &written.data);
        }
        flushed.len()
    }

    /// Loses any part of what is in the drive's cache, and has the rest on the medium; the writes in
    /// question.
    pub(crate) fn lose_unflushed(&mut self, block_bytes: u64, prng: &mut Prng) -> Vec<Written> {
        let odds = prng.below(3);
        let unflushed: Vec<Written> = std::mem::take(&mut self.unflushed).into_values().collect();
        for written in &unflushed {
            for run in written.survivors(block_bytes, odds, prng) {
                self.durable.write(run.at, &run.data);
            }
        }
        self.current = self.durable.clone();
        unflushed
    }

    /// Behind every number that a write left in the drive's cache has.
    pub(crate) fn next_order(&self) -> u64 {
        self.unflushed.last_key_value().map_or(0, |last| last.0 + 1)
    }

    /// Everything that `cut` leaves, with these writes under way and submissions numbered up to `order`.
    pub(crate) fn after(
        &self,
        cut: Cut,
        in_flight: &BTreeMap<u64, Written>,
        (block_bytes, mut order): (u64, u64),
        prng: &mut Prng,
    ) -> (Medium, Damage) {
        let mut damage = Damage::default();
        let mut note = |written: &Written, left: &[Written], completed: bool| {
            let is_whole = matches!(left, [one] if one.data.len() == written.data.len());
            damage.torn += u64::from(!left.is_empty() && !is_whole);
            damage.lost += u64::from(left.is_empty() && completed);
        };
        let medium = match cut {
            Cut::Power => {
                let mut image = self.durable.clone();
                let odds = prng.below(3);
                let completed = self.unflushed.values().map(|written| (written, true));
                let under_way = in_flight.values().map(|written| (written, false));
                for (written, completed) in completed.chain(under_way) {
                    let left = written.survivors(block_bytes, odds, prng);
                    note(written, &left, completed);
                    for Written { at, data } in left {
                        image.write(at, &data);
                    }
                }
                Medium { current: image.clone(), durable: image, unflushed: BTreeMap::new() }
            }
            Cut::Kill => {
                let mut medium = self.clone();
                for written in in_flight.values() {
                    let left = written.survivors(block_bytes, 1, prng);
                    note(written, &left, false);
                    left.iter().for_each(|run| medium.take_in(&mut order, run, block_bytes));
                }
                medium
            }
        };
        (medium, damage)
    }
}
