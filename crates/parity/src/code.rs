//! A code: so many data members, so many parity rows.

use crate::decoder::Decoder;
use crate::error::CodeError;
use crate::kernels::{Kernels, Stores, best_kernels};
use crate::locate::{self, Verdict};
use crate::matrix::{self, ROWS_MAX, coefficient};

/// So many data members protected by so many parity rows.
///
/// Members are numbered: data from 0, then the rows, so member `data_count() + r` is row r. All
/// slices of one call are of one length; any length and any alignment will do, multiples of 256
/// bytes at addresses aligned to 64 are fastest. Calls allocate nothing.
#[derive(Clone, Debug)]
pub struct Code {
    data: usize,
    rows: usize,
    /// The coefficients of the rows from the third on, row by row.
    extra: Box<[u8]>,
    kernels: &'static Kernels,
}

impl Code {
    /// A code that runs on the best kernels of this processor.
    pub fn new(data: usize, rows: usize) -> Result<Code, CodeError> {
        Code::with_kernels(data, rows, best_kernels())
    }

    /// A code that runs on a chosen set of kernels.
    pub fn with_kernels(
        data: usize,
        rows: usize,
        kernels: &'static Kernels,
    ) -> Result<Code, CodeError> {
        if !(1..=ROWS_MAX).contains(&rows) {
            return Err(CodeError::Rows { rows });
        }
        if !(1..=Code::data_max(rows)).contains(&data) {
            return Err(CodeError::Data { data, rows });
        }
        let extra = (2..rows).flat_map(|row| (0..data).map(move |column| coefficient(row, column)));
        Ok(Code { data, rows, extra: extra.collect(), kernels })
    }

    /// The most data members that `rows` rows protect: 255 up to two rows, then one less a row.
    pub const fn data_max(rows: usize) -> usize {
        matrix::data_max(rows)
    }

    /// How many data members there are.
    pub fn data_count(&self) -> usize {
        self.data
    }

    /// How many parity rows there are.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Data members and parity rows together.
    pub fn member_count(&self) -> usize {
        self.data + self.rows
    }

    /// The coefficient of data member `member` in parity `row`.
    ///
    /// # Panics
    /// If the code has no such row or data member.
    pub fn coefficient(&self, row: usize, member: usize) -> u8 {
        assert!(row < self.rows && member < self.data, "no row {row} or no data member {member}");
        coefficient(row, member)
    }

    /// Computes all parity rows from all data members, reading the data once.
    ///
    /// # Panics
    /// If the numbers of slices are not those of the code, or their lengths differ.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]], stores: Stores) {
        self.check_counts(data.len(), parity.len());
        self.kernels.encode(&self.extra, data, parity, stores);
    }

    /// Brings parity up to date with a change of one data member, in place.
    ///
    /// Each element of `parity` is a row's number and the same range of bytes of it. Rows that are
    /// lost are left out.
    ///
    /// # Panics
    /// If `member` is not a data member, a row does not exist, there are more than [`ROWS_MAX`] of
    /// them, or lengths differ.
    pub fn update(&self, member: usize, old: &[u8], new: &[u8], parity: &mut [(usize, &mut [u8])]) {
        let rows = parity.len();
        assert!(rows <= self.rows, "{rows} of {} rows", self.rows);
        let mut targets: [(u8, &mut [u8]); ROWS_MAX] = Default::default();
        for ((row, bytes), target) in parity.iter_mut().zip(&mut targets) {
            *target = (self.coefficient(*row, member), bytes);
        }
        self.kernels.update(old, new, &mut targets[..rows]);
    }

    /// Whether the parity rows are those of the data. Stops at the first difference.
    ///
    /// # Panics
    /// If the numbers of slices are not those of the code, or their lengths differ.
    pub fn check(&self, data: &[&[u8]], parity: &[&[u8]]) -> bool {
        self.check_counts(data.len(), parity.len());
        self.kernels.check(&self.extra, data, parity)
    }

    /// Judges from the syndromes of every byte which member is wrong: see [`Verdict`].
    ///
    /// # Panics
    /// If the numbers of slices are not those of the code, or their lengths differ.
    pub fn locate(&self, data: &[&[u8]], parity: &[&[u8]]) -> Verdict {
        if self.check(data, parity) {
            return Verdict::Consistent;
        }
        locate::locate(self.kernels, &self.extra, data, parity)
    }

    /// A plan to compute the `wanted` members when all of `lost` cannot be read; `wanted` is `lost`
    /// or a part of it. To compute some parity rows of a stripe and not all, name all rows as lost.
    pub fn decoder(&self, lost: &[usize], wanted: &[usize]) -> Result<Decoder, CodeError> {
        Decoder::new(self.data, self.rows, self.kernels, lost, wanted)
    }

    fn check_counts(&self, data: usize, rows: usize) {
        assert!(
            data == self.data && rows == self.rows,
            "{data} members and {rows} rows given to a code of {} and {}",
            self.data,
            self.rows
        );
    }
}
