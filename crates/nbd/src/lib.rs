//! The Network Block Device protocol: what the server of an export and the client of a drive both speak.
//!
//! | file | content |
//! | --- | --- |
//! | `proto` | the numbers of the protocol |
//! | `input` | a receive buffer with what is unread in it |

mod input;
pub mod proto;

pub use input::{INPUT_BYTES, Input};
