//! Replacement: which cached line leaves when the cache is full.
//!
//! A policy orders cached lines by number and slot, and never sees data. The cache tells it what
//! happens to each line and asks for a victim; the victim is only a choice until the cache calls
//! [`Policy::remove`]. Everything is allocated by [`Policy::new`]; no operation allocates.
//!
//! Lines that cannot go now (dirty, busy) stay in the order and are stepped over. One call of
//! [`Policy::victim`] looks at a bounded number of lines, and the hands of a policy remember where they
//! stopped. So a policy walks a long run of dirty lines once and not once per eviction.

mod fifo;
mod lines;
mod lru;
mod packed;
mod rand;
mod s3_fifo;

use fifo::Fifo;
pub use lines::{FAR_LOOKS_MAX, Lines, NEAR_LOOKS_MAX};
use lru::Lru;
use rand::Rand;
use s3_fifo::S3Fifo;

use crate::memory::NoMemory;
pub use crate::numbers::LINE_LIMIT;
use crate::numbers::{Line, Slot};

voltier_block::words! {
    /// The replacement policies. A place in the list is the policy's number on the SSD (`format::superblock`): a
    /// new one goes to the end.
    pub enum PolicyKind, "not a replacement policy" {
        /// Least recently used, exact. 8 bytes per slot.
        Lru = "lru",
        /// First in, first out, exact: hits and relocations change nothing. Per line of capacity, 1.08
        /// times the bits of a line number: 3.6 bytes with 2^26 lines, 4.4 with 2^32.
        Fifo = "fifo",
        /// Uniformly random. No memory.
        Rand = "rand",
        /// Small probationary queue, main queue with frequency, ghost of what left. 1.2 bytes per slot.
        S3Fifo = "s3fifo",
    }
}

/// The order in which cached lines leave. See the module for the contract.
#[derive(Debug)]
pub struct Policy(Order);

#[derive(Debug)]
enum Order {
    Lru(Lru),
    Fifo(Fifo),
    Rand(Rand),
    S3Fifo(S3Fifo),
}

impl Policy {
    /// A policy that knows no line yet.
    ///
    /// `slots` is the number of slots of the log. `capacity_lines` is how many lines are cached at
    /// most: the cache evicts before it inserts past it. Fifo holds one line in 64 more without
    /// slowing down and one in 32 more at all; past that its `insert` panics. Line numbers are
    /// below `line_count`, at most [`LINE_LIMIT`]. `seed` is all the chance in it.
    ///
    /// # Errors
    /// When the system gives no memory for it.
    pub fn new(
        kind: PolicyKind,
        slots: u32,
        capacity_lines: u64,
        line_count: u64,
        seed: u64,
    ) -> Result<Self, NoMemory> {
        assert!(slots < u32::MAX && capacity_lines <= u64::from(slots));
        Ok(Self(match kind {
            PolicyKind::Lru => Order::Lru(Lru::new(slots)?),
            PolicyKind::Fifo => Order::Fifo(Fifo::new(capacity_lines, line_count)?),
            PolicyKind::Rand => Order::Rand(Rand::new(seed)),
            PolicyKind::S3Fifo => Order::S3Fifo(S3Fifo::new(slots, capacity_lines, line_count)?),
        }))
    }

    /// The memory of a policy for so much, in bytes.
    pub fn bytes_for(kind: PolicyKind, slots: u32, capacity_lines: u64, line_count: u64) -> u64 {
        size_of::<Self>() as u64
            + match kind {
                PolicyKind::Lru => Lru::bytes_for(slots),
                PolicyKind::Fifo => Fifo::bytes_for(capacity_lines, line_count),
                PolicyKind::Rand => 0,
                PolicyKind::S3Fifo => S3Fifo::bytes_for(slots, capacity_lines, line_count),
            }
    }

    /// The kind of this policy.
    pub fn kind(&self) -> PolicyKind {
        match &self.0 {
            Order::Lru(_) => PolicyKind::Lru,
            Order::Fifo(_) => PolicyKind::Fifo,
            Order::Rand(_) => PolicyKind::Rand,
            Order::S3Fifo(_) => PolicyKind::S3Fifo,
        }
    }

    /// A line that was not cached now is, in `slot`.
    #[inline]
    pub fn insert(&mut self, slot: Slot, line: Line) {
        match &mut self.0 {
            Order::Lru(lru) => lru.insert(slot),
            Order::Fifo(fifo) => fifo.insert(line),
            Order::Rand(_) => {}
            Order::S3Fifo(s3) => s3.insert(slot, line),
        }
    }

    /// A cached line was read or written.
    #[inline]
    pub fn touch(&mut self, slot: Slot, _line: Line) {
        match &mut self.0 {
            Order::Lru(lru) => lru.touch(slot),
            Order::Fifo(_) | Order::Rand(_) => {}
            Order::S3Fifo(s3) => s3.touch(slot),
        }
    }

    /// A cached line is in another slot now, because it was overwritten. No touch.
    #[inline]
    pub fn relocate(&mut self, from: Slot, to: Slot, _line: Line) {
        match &mut self.0 {
            Order::Lru(lru) => lru.relocate(from, to),
            Order::Fifo(_) | Order::Rand(_) => {}
            Order::S3Fifo(s3) => s3.relocate(from, to),
        }
    }

    /// A line left the cache: evicted, or invalidated.
    #[inline]
    pub fn remove(&mut self, slot: Slot, line: Line) {
        match &mut self.0 {
            Order::Lru(lru) => lru.remove(slot),
            Order::Fifo(fifo) => fifo.remove(line),
            Order::Rand(_) => {}
            Order::S3Fifo(s3) => s3.remove(slot, line),
        }
    }

    /// Chooses the slot whose line should leave next; it stays until [`Policy::remove`].
    ///
    /// None means that no line among those this call looked at may go now, because they are dirty or
    /// busy: clean some and ask again. Another call looks further.
    pub fn victim(&mut self, lines: &impl Lines) -> Option<Slot> {
        match &mut self.0 {
            Order::Lru(lru) => lru.victim(lines),
            Order::Fifo(fifo) => fifo.victim(lines),
            Order::Rand(rand) => rand.victim(lines),
            Order::S3Fifo(s3) => s3.victim(lines),
        }
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.0 {
                Order::Lru(lru) => lru.heap_bytes(),
                Order::Fifo(fifo) => fifo.heap_bytes(),
                Order::Rand(_) => 0,
                Order::S3Fifo(s3) => s3.heap_bytes(),
            }
    }
}
