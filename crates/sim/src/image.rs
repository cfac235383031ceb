//! The bytes of a medium, shared between copies until they are written.

use std::rc::Rc;

use voltier_block::SECTOR_BYTES;

/// Granule of sharing: small enough that a write copies little, large enough that taking a copy of
/// a drive is a few thousand pointers.
const GRANULE_BYTES: usize = 16 << 10;

type Granule = [u8; GRANULE_BYTES];

/// The content of a drive. A clone costs one pointer a granule.
#[derive(Clone)]
pub(crate) struct Image {
    /// What was never written is absent and reads as zeroes.
    granules: Vec<Option<Rc<Granule>>>,
}

impl Image {
    /// An image of zeroes.
    pub(crate) fn zeroed(sectors: u64) -> Self {
        let count = (sectors * SECTOR_BYTES).div_ceil(GRANULE_BYTES as u64);
        Self { granules: vec![None; count as usize] }
    }

    /// Whether both hold the same bytes.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let zeroes = [0; GRANULE_BYTES];
        let same = |(one, two): (&Option<Rc<Granule>>, &Option<Rc<Granule>>)| match (one, two) {
            (Some(one), Some(two)) => Rc::ptr_eq(one, two) || one == two,
            (None, None) => true,
            (Some(one), None) | (None, Some(one)) => **one == zeroes,
        };
        self.granules.len() == other.granules.len()
            && self.granules.iter().zip(&other.granules).all(same)
    }

    /// Copies what starts at byte `at` into `into`.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        for (granule, inside, part) in pieces(at, into.len()) {
            match &self.granules[granule] {
                Some(bytes) => into[part].copy_from_slice(&bytes[inside]),
                None => into[part].fill(0),
            }
        }
    }

    /// Writes `from` at byte `at`.
    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        for (granule, inside, part) in pieces(at, from.len()) {
            let place = &mut self.granules[granule];
            if place.is_none() && from[part.clone()].iter().all(|byte| *byte == 0) {
                continue;
            }
            let bytes = place.get_or_insert_with(|| Rc::new([0; GRANULE_BYTES]));
            Rc::make_mut(bytes)[inside].copy_from_slice(&from[part]);
        }
    }
}

type Piece = (usize, std::ops::Range<usize>, std::ops::Range<usize>);

/// The granules under a run of bytes: number, the part of the granule, the part of the run.
fn pieces(at: u64, bytes: usize) -> impl Iterator<Item = Piece> {
    let start = at as usize;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes {
            return None;
        }
        let (granule, inside) = ((start + done) / GRANULE_BYTES, (start + done) % GRANULE_BYTES);
        let count = (GRANULE_BYTES - inside).min(bytes - done);
        let part = done..done + count;
        done += count;
        Some((granule, inside..inside + count, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes_when_the_original_is_written() {
        let mut image = Image::zeroed(100);
        image.write(GRANULE_BYTES as u64 - 2, &[1, 2, 3, 4]);
        let copy = image.clone();
        image.write(GRANULE_BYTES as u64, &[9]);
        let mut bytes = [0; 5];
        copy.read(GRANULE_BYTES as u64 - 3, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 4]);
        image.read(GRANULE_BYTES as u64 - 3, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 9, 4]);
    }
}
