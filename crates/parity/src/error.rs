//! Why a code or a decoder is refused.

use crate::matrix::{ROWS_MAX, data_max};

/// Why a code or a decoder is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// No rows, or more than [`ROWS_MAX`].
    #[error("{rows} parity rows: give 1 to {ROWS_MAX}")]
    Rows {
        /// The number of rows that the caller asked for.
        rows: usize,
    },
    /// No data members, or more than so many rows can protect.
    #[error("{data} data members with {rows} parity rows: give 1 to {}", data_max(*rows))]
    Data {
        /// The number of data members that the caller asked for.
        data: usize,
        /// The rows, which are possible.
        rows: usize,
    },
    /// A member that the code does not have.
    #[error("member {member} does not exist: there are {members}")]
    NoSuchMember {
        /// The number given.
        member: usize,
        /// Data members and rows together.
        members: usize,
    },
    /// A member was named twice.
    #[error("member {member} is named twice")]
    Twice {
        /// The number given.
        member: usize,
    },
    /// More members are lost than there are rows: the data are not determined.
    #[error("{lost} members are lost and {rows} parity rows can make up for {rows}")]
    TooManyLost {
        /// How many are lost.
        lost: usize,
        /// The rows of the code.
        rows: usize,
    },
    /// A member is wanted that is not lost, or none is wanted.
    #[error("only what is lost can be wanted, and something must be")]
    NotLost,
}
