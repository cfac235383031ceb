//! Memory that grows with the drives: how much a cache is going to need, and memory that may be refused.
//!
//! Every structure says itself what it needs (`bytes_for`). The sum is told before anything is written to an
//! SSD, and the same structures ask for it with an error for an answer: want of memory for one cache is no end
//! of the process, which serves others.
//!
//! | structure | grows with | told in advance | refused |
//! | --- | --- | --- | --- |
//! | index: words, table, masks, live lines of segments | the SSD | yes | the opening fails |
//! | index: dirty lines of extents, lines of stretches | the origin | yes | the opening fails |
//! | policy, admission | the SSD | yes | the opening, or the change to it, fails |
//! | states of segments | the SSD | yes | the opening fails |
//! | bits of slots while the map is loaded | the SSD | yes | the opening fails |
//! | free slots of prepared segments, a bit each | the SSD | yes | ends the process, a segment's bits at a time |
//! | queue of the ordered mode | dirty lines | no | ends the process |
//! | ranges that clients voided while the map is loaded | such requests | no | ends the process |

use std::fmt;
use std::rc::Rc;

use zerocopy::FromZeros;

/// The system has refused memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives it no {bytes} bytes of memory")]
pub struct NoMemory {
    /// The bytes that were asked for at once.
    pub bytes: u64,
}

/// The question whether a cache may take so many bytes of memory. A refusal is a sentence for the user.
type Question = dyn Fn(u64) -> Result<(), String>;

/// Whoever is asked before a cache takes its memory. By default nobody is.
#[derive(Clone, Default)]
pub struct MemoryGate(Option<Rc<Question>>);

impl fmt::Debug for MemoryGate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("MemoryGate").field(&self.0.is_some()).finish()
    }
}

impl MemoryGate {
    /// Has somebody be asked: the question is how many bytes, and a refusal is a sentence for the user.
    pub fn new(question: impl Fn(u64) -> Result<(), String> + 'static) -> Self {
        Self(Some(Rc::new(question)))
    }

    pub(crate) fn ask(&self, bytes: u64) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |question| question(bytes))
    }
}

/// Bytes of so many elements.
pub(crate) fn bytes_of<T>(length: u64) -> u64 {
    length.saturating_mul(size_of::<T>() as u64)
}

/// A vector of zeroes, of which the kernel gives the pages when they are first written to.
pub(crate) fn zeroes<T: FromZeros>(length: u64) -> Result<Vec<T>, NoMemory> {
    let refused = NoMemory { bytes: bytes_of::<T>(length) };
    let length = usize::try_from(length).map_err(|_| refused)?;
    T::new_vec_zeroed(length).map_err(|_| refused)
}

/// An empty vector with room for so many elements.
pub(crate) fn room_for<T>(length: u64) -> Result<Vec<T>, NoMemory> {
    let refused = NoMemory { bytes: bytes_of::<T>(length) };
    let mut room = Vec::new();
    room.try_reserve_exact(usize::try_from(length).map_err(|_| refused)?).map_err(|_| refused)?;
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_has_is_an_error_and_no_abort() {
        let bytes = u64::MAX / 4;
        assert_eq!(zeroes::<u32>(bytes / 4), Err(NoMemory { bytes: bytes / 4 * 4 }));
        assert_eq!(room_for::<u8>(bytes).map(drop), Err(NoMemory { bytes }));
        assert_eq!(zeroes::<[u32; 2]>(3), Ok(vec![[0; 2]; 3]));
    }
}
