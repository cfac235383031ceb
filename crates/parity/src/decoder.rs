//! Reconstruction: a plan for a set of losses, used for as many stripes as have it.

use crate::error::CodeError;
use crate::field::multiply;
use crate::kernels::{Kernels, Stores};
use crate::matrix::{ROWS_MAX, coefficient, inverse};

/// A plan that computes lost members from others. Made once, it is good for any number of stripes.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Members to read, ascending.
    sources: Box<[usize]>,
    /// Members to compute, in the order they were wanted.
    targets: Box<[usize]>,
    /// For each target the factor of each source.
    coefficients: Box<[u8]>,
    /// The coefficients are those of so many first rows over the sources, and these their part from the
    /// third on. Then the faster kernel of encoding does it.
    as_rows: Option<Box<[u8]>>,
    kernels: &'static Kernels,
}

impl Decoder {
    /// For a code of `data` members and `rows` rows: see [`Code::decoder`](crate::Code::decoder).
    pub(crate) fn new(
        data: usize,
        rows: usize,
        kernels: &'static Kernels,
        lost: &[usize],
        wanted: &[usize],
    ) -> Result<Decoder, CodeError> {
        let is_lost = lost_members(data, rows, lost)?;
        let mut is_wanted = vec![false; data + rows];
        for &member in wanted {
            if !is_lost.get(member).is_some_and(|lost| *lost) {
                return Err(CodeError::NotLost);
            }
            if std::mem::replace(&mut is_wanted[member], true) {
                return Err(CodeError::Twice { member });
            }
        }
        if wanted.is_empty() {
            return Err(CodeError::NotLost);
        }
        let lost_data: Vec<usize> = (0..data).filter(|&member| is_lost[member]).collect();
        // As many rows as data members are lost, the cheapest first.
        let rows: Vec<usize> =
            (0..rows).filter(|&row| !is_lost[data + row]).take(lost_data.len()).collect();
        let kept = (0..data).filter(|&member| !is_lost[member]);
        let sources: Box<[usize]> = kept.chain(rows.iter().map(|row| data + row)).collect();
        let solved = solve(data, &lost_data, &rows, &sources);
        let mut coefficients = Vec::with_capacity(wanted.len() * sources.len());
        for &target in wanted {
            match lost_data.iter().position(|&member| member == target) {
                Some(index) => coefficients.extend(&solved[index]),
                None => {
                    let row = target - data;
                    coefficients.extend((0..sources.len()).map(|index| {
                        let direct = match sources[index] {
                            source if source < data => coefficient(row, source),
                            _ => 0,
                        };
                        let through = lost_data.iter().zip(&solved);
                        through.fold(direct, |sum, (&member, factors)| {
                            sum ^ multiply(coefficient(row, member), factors[index])
                        })
                    }));
                }
            }
        }
        let as_rows = as_rows(&coefficients, sources.len());
        Ok(Decoder {
            sources,
            targets: wanted.into(),
            coefficients: coefficients.into(),
            as_rows,
            kernels,
        })
    }

    /// The members to read, ascending: as many as the code has data members.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// The members that are computed, in the order in which they were wanted.
    pub fn targets(&self) -> &[usize] {
        &self.targets
    }

    /// Computes the targets from the sources, each in the order of [`Decoder::sources`] and
    /// [`Decoder::targets`].
    ///
    /// # Panics
    /// If the numbers of slices are not those of the plan, or their lengths differ.
    pub fn decode(&self, sources: &[&[u8]], targets: &mut [&mut [u8]]) {
        assert_eq!(sources.len(), self.sources.len(), "one slice for each source");
        assert_eq!(targets.len(), self.targets.len(), "one slice for each target");
        match &self.as_rows {
            Some(extra) => self.kernels.encode(extra, sources, targets, Stores::Cached),
            None => self.kernels.combine(&self.coefficients, sources, targets),
        }
    }
}

/// For each member whether it is lost, if the losses make sense and can be made up for.
fn lost_members(data: usize, rows: usize, lost: &[usize]) -> Result<Vec<bool>, CodeError> {
    let members = data + rows;
    let mut is_lost = vec![false; members];
    for &member in lost {
        if member >= members {
            return Err(CodeError::NoSuchMember { member, members });
        }
        if std::mem::replace(&mut is_lost[member], true) {
            return Err(CodeError::Twice { member });
        }
    }
    if lost.len() > rows {
        return Err(CodeError::TooManyLost { lost: lost.len(), rows });
    }
    Ok(is_lost)
}

/// The factors of the sources for each lost data member. The content of the rows beyond the kept data is
/// a square system in the lost members.
fn solve(data: usize, lost: &[usize], rows: &[usize], sources: &[usize]) -> Vec<Vec<u8>> {
    let mut system = [[0; ROWS_MAX]; ROWS_MAX];
    for (cells, &row) in system.iter_mut().zip(rows) {
        for (cell, &member) in cells.iter_mut().zip(lost) {
            *cell = coefficient(row, member);
        }
    }
    let inverse = inverse(system, lost.len()).expect("every square part of the code is regular");
    let factor = |index: usize, source: usize| {
        let mut used = rows.iter().zip(inverse[index]);
        if source >= data {
            let own = used.find(|(row, _)| data + **row == source);
            return own.map_or(0, |(_, factor)| factor);
        }
        used.fold(0, |sum, (&row, factor)| sum ^ multiply(factor, coefficient(row, source)))
    };
    let factors = |index: usize| sources.iter().map(|&source| factor(index, source)).collect();
    (0..lost.len()).map(factors).collect()
}

/// The part from the third row on, if the matrix is that of the first rows of a code.
fn as_rows(coefficients: &[u8], columns: usize) -> Option<Box<[u8]>> {
    let mut rows = coefficients.chunks_exact(columns).enumerate();
    let is_code = rows.all(|(row, factors)| {
        factors.iter().enumerate().all(|(column, factor)| *factor == coefficient(row, column))
    });
    is_code.then(|| coefficients.iter().copied().skip(2 * columns).collect())
}
