//! The bytes of a medium, shared between copies until they are written.

use std::rc::Rc;

use voltier_block::SECTOR_BYTES;

/// Granule of sharing: the largest block of a drive, so that most writes replace whole ones and copy
/// nothing that was there.
const GRANULE_BYTES: usize = 4 << 10;
/// Granules that are shared together: a copy of a drive is a pointer for each page.
const PAGE_GRANULES: usize = 64;

type Granule = [u8; GRANULE_BYTES];
type Page = [Option<Rc<Granule>>; PAGE_GRANULES];

/// The content of a drive. A clone costs one pointer a page.
#[derive(Clone)]
pub(crate) struct Image {
    /// Pages that were never written are absent and read as zeroes.
    pages: Vec<Option<Rc<Page>>>,
}

impl Image {
    /// An image of zeroes.
    pub(crate) fn zeroed(sectors: u64) -> Self {
        let page_bytes = (PAGE_GRANULES * GRANULE_BYTES) as u64;
        let count = (sectors * SECTOR_BYTES).div_ceil(page_bytes);
        Self { pages: vec![None; count as usize] }
    }

    /// Adds zeroes behind the end.
    pub(crate) fn grow(&mut self, sectors: u64) {
        let longer = Self::zeroed(sectors).pages.len();
        self.pages.resize(longer.max(self.pages.len()), None);
    }

    /// Whether both hold the same bytes.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |(one, two): (&Option<Rc<Page>>, &Option<Rc<Page>>)| match (one, two) {
            (Some(one), Some(two)) => {
                Rc::ptr_eq(one, two) || one.iter().zip(&**two).all(|(one, two)| is_alike(one, two))
            }
            (None, None) => true,
            (Some(page), None) | (None, Some(page)) => page.iter().all(|it| is_alike(it, &None)),
        };
        self.pages.len() == other.pages.len() && self.pages.iter().zip(&other.pages).all(same)
    }

    fn granule(&self, number: usize) -> Option<&Rc<Granule>> {
        self.pages[number / PAGE_GRANULES].as_ref()?[number % PAGE_GRANULES].as_ref()
    }

    /// Copies what starts at byte `at` into `into`.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        for (granule, inside, part) in pieces(at, into.len()) {
            match self.granule(granule) {
                Some(bytes) => into[part].copy_from_slice(&bytes[inside]),
                None => into[part].fill(0),
            }
        }
    }

    /// Writes `from` at byte `at`.
    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        for (granule, inside, part) in pieces(at, from.len()) {
            let from = &from[part];
            if self.granule(granule).is_none() && is_zero(from) {
                continue;
            }
            let page = self.pages[granule / PAGE_GRANULES]
                .get_or_insert_with(|| Rc::new([const { None }; PAGE_GRANULES]));
            let place = &mut Rc::make_mut(page)[granule % PAGE_GRANULES];
            match (place.as_mut().and_then(Rc::get_mut), <&Granule>::try_from(from)) {
                (Some(own), _) => own[inside].copy_from_slice(from),
                (None, Ok(whole)) => *place = Some(Rc::new(*whole)),
                (None, Err(_)) => {
                    let shared = place.get_or_insert_with(|| Rc::new([0; GRANULE_BYTES]));
                    Rc::make_mut(shared)[inside].copy_from_slice(from);
                }
            }
        }
    }
}

fn is_alike(one: &Option<Rc<Granule>>, two: &Option<Rc<Granule>>) -> bool {
    match (one, two) {
        (Some(one), Some(two)) => Rc::ptr_eq(one, two) || one == two,
        (None, None) => true,
        (Some(one), None) | (None, Some(one)) => is_zero(&one[..]),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    static ZEROES: Granule = [0; GRANULE_BYTES];
    *bytes == ZEROES[..bytes.len()]
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
        image.write(2 * GRANULE_BYTES as u64, &[7; GRANULE_BYTES]);
        let mut bytes = [0; 5];
        copy.read(GRANULE_BYTES as u64 - 3, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 4]);
        image.read(GRANULE_BYTES as u64 - 3, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 9, 4]);
        copy.read(2 * GRANULE_BYTES as u64, &mut bytes);
        assert_eq!(bytes, [0; 5]);
        assert!(!image.is_same(&copy) && image.is_same(&image.clone()));
        image.write(2 * GRANULE_BYTES as u64, &[0; GRANULE_BYTES]);
        image.write(GRANULE_BYTES as u64, &[3]);
        assert!(image.is_same(&copy));
    }
}
