//! Parity over GF(2^8): what lets an array lose members.
//!
//! A [`Code`] is so many data members and so many parity rows. Each byte of a row is a sum of the bytes
//! at the same place of all data members, each multiplied with a coefficient. A code encodes rows from
//! data, and brings them up to date with a change of one member. A code also makes [`Decoder`]s that
//! compute what is lost, and says which member is wrong ([`Verdict`]).
//!
//! ```
//! use voltier_parity::{Code, Stores};
//!
//! let code = Code::new(3, 2)?;
//! let data: [&[u8]; 3] = [b"one.", b"two.", b"six."];
//! let (mut p, mut q) = ([0; 4], [0; 4]);
//! code.encode(&data, &mut [&mut p, &mut q], Stores::Cached);
//!
//! // Members 0 and 2 are lost. Members 3 and 4 are the rows.
//! let decoder = code.decoder(&[0, 2], &[0, 2])?;
//! assert_eq!(decoder.sources(), [1, 3, 4]);
//! let (mut first, mut third) = ([0; 4], [0; 4]);
//! decoder.decode(&[data[1], &p, &q], &mut [&mut first, &mut third]);
//! assert_eq!((&first, &third), (b"one.", b"six."));
//! # Ok::<(), voltier_parity::CodeError>(())
//! ```
//!
//! # The field
//!
//! Bytes are polynomials over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), the field of Linux md,
//! ZFS, SnapRAID and ISA-L. Sums are exclusive or; 2 generates all elements but zero.
//!
//! # The rows
//!
//! With `i` the number of a data member, from 0:
//!
//! | row | coefficient of member i | |
//! | --- | --- | --- |
//! | 0, P | 1 | RAID 5 |
//! | 1, Q | 2^i | RAID 6, byte for byte that of Linux md, with md's numbering of members |
//! | r from 2 | (x + 1) / (x + 2^-i), x = 2^(r-1) | RAID 7.3 and N+M |
//!
//! A row does not depend on how many other rows there are, nor on how many members. So an array adds a
//! row or a member without touching parity that is already written.
//!
//! # Why any losses up to the number of rows can be made up for
//!
//! With y = 2^-i the columns are points of the field, all different for up to 255 members, and none of
//! them 0. Row 1 is 1 / (0 + y), and row r is 1 / (x + y) but for a factor, so with x = 0, 2, 4, 8, ... the
//! rows are those of a Cauchy matrix, extended by a row of ones, as long as no y is one of the x. Take any n
//! of the rows and n of the columns. If the rows were dependent, some sum a + b / (x1 + y) + c / (x2 + y),
//! and so on, would vanish at n different y. Over its common denominator its numerator has a degree below n,
//! hence n roots only if it is zero, and then so are all factors. So every square part of the matrix
//! is regular, which is what solving for n lost data members from any n rows takes.
//!
//! The condition that no y is an x bounds the width ([`Code::data_max`]): 255 data members with one or
//! two rows, 254, 253, 252, 251, 250, 249 with three to eight. Beside the proof, tests try all square
//! parts of three rows at full width and of five rows up to 32 members. Tests also try the
//! reconstruction of every triple of losses at every width up to 32 data members and three rows.
//!
//! # Wrong members
//!
//! An error e in data member i adds e times the member's coefficient to the syndrome of every row. (The
//! syndrome is stored parity plus parity of the stored data.) Two rows give the member as the logarithm
//! of the quotient of their syndromes; further rows must agree. Any n columns of n rows and the columns
//! of the rows themselves are independent. Hence with three rows no two wrong members look like one.
//!
//! # Speed
//!
//! The kernels compute all rows in one pass: they read a block of every member once, and all rows stay
//! in registers. P is a sum. Q is summed by Horner's rule, where doubling takes one addition, one
//! look-up and one sum of three. Further rows multiply by looking up both nibbles of a byte in tables
//! of sixteen. Kernels for SSSE3, AVX2 and AVX-512 are one source compiled three times, chosen once at
//! start ([`best_kernels`]), and held to a scalar one by tests. Figures: `docs/benchmarks.md`.
//!
//! # Sources
//!
//! - H. P. Anvin, "The mathematics of RAID-6", 2004: P, Q, the field, recovery, finding a wrong member.
//! - J. S. Plank, "A Tutorial on Reed-Solomon Coding for Fault-Tolerance in RAID-like Systems", 1997,
//!   with the correction of 2003 by Plank and Ding. Powers alone do not give more than two rows in
//!   general.
//! - J. Blömer et al., "An XOR-Based Erasure-Resilient Coding Scheme", 1995: Cauchy matrices as codes.
//! - A. Mazzoleni, SnapRAID: a Cauchy matrix extended and scaled so that its first rows are RAID 5 and 6.
//! - J. S. Plank, K. M. Greenan, E. L. Miller, "Screaming Fast Galois Field Arithmetic Using Intel SIMD
//!   Instructions", 2013: products by shuffles of nibble tables.
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `code`, `matrix` | a code and its coefficients |
//! | `decoder` | reconstruction of what is lost |
//! | `locate` | which member is wrong |
//! | `field`, `kernels` | arithmetic of single bytes; the same of whole blocks, with vector instructions |

mod code;
mod decoder;
mod error;
mod field;
mod kernels;
mod locate;
mod matrix;

pub use code::Code;
pub use decoder::Decoder;
pub use error::CodeError;
pub use kernels::{Kernels, Stores, available_kernels, best_kernels};
pub use locate::Verdict;
pub use matrix::ROWS_MAX;
