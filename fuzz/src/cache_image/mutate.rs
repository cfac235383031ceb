//! Mutations of an image: fields changed, structures moved, bits turned, with and without a checksum
//! that fits.

use voltier_sim::Medium;

use super::base::Base;
use super::layout::{Kind, Layout, Structure, read, seal};
use crate::input::Input;

const STEPS_MAX: usize = 24;

/// An image that is not what it was.
pub(super) struct Mutated {
    pub(super) ssd: Medium,
    /// Something was changed and its checksum made to fit: nobody can tell what is true.
    pub(super) forged: bool,
    /// Lines that a bit of was turned already: one more might lead the short checksum astray.
    with_bit_rot: Vec<u64>,
}

/// Does to the image what the input says.
pub(super) fn mutate(base: &Base, input: &mut Input<'_>) -> Mutated {
    let mut mutated = Mutated { ssd: base.ssd.clone(), forged: false, with_bit_rot: Vec::new() };
    let mut steps = 0;
    while !input.is_empty() && steps < STEPS_MAX {
        mutated.step(&base.layout, input);
        steps += 1;
    }
    mutated
}

impl Mutated {
    fn step(&mut self, layout: &Layout, input: &mut Input<'_>) {
        let what = input.byte();
        let kind = match what % 8 {
            0 | 1 => Kind::Superblock,
            2 => Kind::Intents,
            3 | 4 => Kind::Chunk,
            5 | 6 => Kind::Record,
            _ => Kind::Line,
        };
        if layout.count(kind) == 0 {
            return;
        }
        let pick = |input: &mut Input<'_>| {
            let number = input.below(layout.count(kind));
            layout.all(kind).nth(number).expect("a number below the count")
        };
        let structure = pick(input);
        match what / 8 % 8 {
            0..5 => self.forge(layout, structure, input),
            5 => self.add_bit_rot(structure, input),
            6 => {
                let from = pick(input);
                let bytes = read(&self.ssd, from.at, from.bytes);
                // Of a line the checksum is elsewhere, and misses one wrong one in 16 million.
                self.ssd.overwrite(structure.at, &bytes);
            }
            _ => self.ssd.overwrite(structure.at, &vec![0; structure.bytes]),
        }
    }

    /// Changes fields and seals the structure again.
    fn forge(&mut self, layout: &Layout, structure: Structure, input: &mut Input<'_>) {
        if structure.kind == Kind::Line {
            return self.add_bit_rot(structure, input);
        }
        let mut bytes = read(&self.ssd, structure.at, structure.bytes);
        for _ in 0..=input.byte() % 4 {
            let (at, width) = layout.field(structure.kind, &bytes, usize::from(input.u16()));
            let field = &mut bytes[at..at + width];
            let mut word = [0; 8];
            word[..width].copy_from_slice(field);
            let value = changed(u64::from_le_bytes(word), input);
            field.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        seal(structure.kind, &mut bytes);
        self.ssd.overwrite(structure.at, &bytes);
        self.forged = true;
    }

    /// Turns one bit.
    fn add_bit_rot(&mut self, structure: Structure, input: &mut Input<'_>) {
        let (byte, bit) = (input.u32() as usize % structure.bytes, input.byte() % 8);
        if structure.kind == Kind::Line {
            if self.with_bit_rot.contains(&structure.at) {
                return;
            }
            self.with_bit_rot.push(structure.at);
        }
        self.ssd.flip_bit(structure.at + byte as u64, bit);
    }
}

fn changed(value: u64, input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0 => u64::from(input.byte()),
        1 => value.wrapping_add(u64::from(input.byte()) + 1),
        2 => value.wrapping_sub(u64::from(input.byte()) + 1),
        3 => u64::from(input.u16()),
        4 => u64::from(input.u32()),
        5 => input.u64(),
        6 => u64::MAX >> (input.byte() % 64),
        _ => value ^ 1 << (input.byte() % 64),
    }
}
