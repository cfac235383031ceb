//! Buffers owned by the operation: aligned for direct I/O, pooled per thread, split without copies.
//!
//! A [`Buf`] is the only owner of its bytes and may be written; a [`Bytes`] is a shared, read-only view.
//! Both are ranges of one reference-counted block. So a request for many lines is one block cut into
//! pieces that travel apart and are joined again. A freed block goes to a small pool of the thread that
//! dropped it: the data path does not allocate per I/O.
//!
//! Buffers and the device trait are in this crate and not in `ring` or `drive`: a cache or a filter that
//! knows neither files nor io_uring would have to name both. The price: registered io_uring buffers would
//! need a pool that knows the ring.
//!
//! UNSAFETY: this module is the only unsafe code of the crate. The invariant of every block below is that
//! live `Buf`s over it never overlap each other or any `Bytes`.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of every block: enough for O_DIRECT on 4096-byte devices.
pub const BUF_ALIGN_BYTES: usize = 4096;

/// Size of a huge page; blocks of this size and more are mapped for them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Smallest and largest pooled block, as powers of two: 512 bytes (a record header) to 4 MiB.
const CLASS_MIN_LOG2: u32 = 9;
const CLASS_MAX_LOG2: u32 = 22;
const CLASS_COUNT: usize = (CLASS_MAX_LOG2 - CLASS_MIN_LOG2 + 1) as usize;

/// Bytes kept free per thread, all classes together: what a few clients with deep queues have in
/// flight. With less, every burst returns memory to the system and faults memory in again, which took
/// longer than the drive. (Four jobs of 16 requests of 256 KiB are 16 MiB by themselves.)
const POOL_BYTES_MAX: usize = 128 << 20;

struct Block {
    references: AtomicUsize,
    memory: NonNull<u8>,
    /// The size is a power of two.
    layout: Layout,
}

impl Block {
    /// The list of the pool that takes the block; [`CLASS_COUNT`] and more for none.
    fn class(&self) -> usize {
        (self.layout.size().trailing_zeros() - CLASS_MIN_LOG2) as usize
    }
}

struct Pool {
    free: [Vec<NonNull<Block>>; CLASS_COUNT],
    free_bytes: usize,
}

impl Pool {
    const EMPTY: Pool = Pool { free: [const { Vec::new() }; CLASS_COUNT], free_bytes: 0 };

    fn take(&mut self, class: usize) -> Option<NonNull<Block>> {
        let block = self.free[class].pop()?;
        self.free_bytes -= 1 << (class as u32 + CLASS_MIN_LOG2);
        Some(block)
    }

    /// Keeps a block that nobody owns, if there is room.
    fn keep(&mut self, class: usize, block: NonNull<Block>) -> bool {
        let bytes = 1 << (class as u32 + CLASS_MIN_LOG2);
        let has_room = self.free_bytes + bytes <= POOL_BYTES_MAX;
        if has_room {
            self.free_bytes += bytes;
            self.free[class].push(block);
        }
        has_room
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for block in self.free.iter_mut().flat_map(|class| class.drain(..)) {
            // SAFETY: a pooled block has no owner but the pool.
            unsafe { free_block(block) };
        }
    }
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::EMPTY) };
    static BLOCKS_OUT: Cell<i64> = const { Cell::new(0) };
}

/// Blocks of memory that this thread has taken and not given back: for tests that look for leaks.
///
/// Buffers that change threads are counted off where they end, so with several threads only the sum
/// over all of them tells anything.
pub fn blocks_out() -> i64 {
    BLOCKS_OUT.get()
}

fn class_of(bytes: usize) -> usize {
    let log2 = bytes.next_power_of_two().trailing_zeros().max(CLASS_MIN_LOG2);
    (log2 - CLASS_MIN_LOG2) as usize
}

fn take_block(bytes: usize) -> NonNull<Block> {
    BLOCKS_OUT.set(BLOCKS_OUT.get() + 1);
    let class = class_of(bytes);
    if class < CLASS_COUNT {
        let pooled = POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten();
        if let Some(block) = pooled {
            // SAFETY: a pooled block is valid and unowned: nobody reads its count.
            unsafe { block.as_ref() }.references.store(1, Ordering::Relaxed);
            return block;
        }
    }
    allocate_block(bytes)
}

/// Memory of the system, for a buffer that the pool has no block for.
#[cold]
fn allocate_block(bytes: usize) -> NonNull<Block> {
    let capacity = bytes.next_power_of_two().max(1 << CLASS_MIN_LOG2);
    let align = if capacity >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { BUF_ALIGN_BYTES };
    let layout = Layout::from_size_align(capacity, align).expect("size fits an isize");
    let memory = if capacity >= HUGE_PAGE_BYTES {
        map_huge(capacity)
    } else {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    };
    let Some(memory) = memory else { handle_alloc_error(layout) };
    let block = Block { references: AtomicUsize::new(1), memory, layout };
    NonNull::from(Box::leak(Box::new(block)))
}

/// Maps zeroed memory that the kernel may back with huge pages: random access to gigabytes of lines
/// misses the TLB at every line without them.
fn map_huge(capacity: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let padded = capacity + HUGE_PAGE_BYTES;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), padded, access, MapFlags::PRIVATE) }.ok()?;
    let lead = mapped.align_offset(HUGE_PAGE_BYTES);
    // SAFETY: what is cut off lies in the mapping, before and behind the part that is kept, and
    // nobody has a pointer to it.
    unsafe {
        let start = mapped.byte_add(lead);
        if lead > 0 {
            munmap(mapped, lead).ok()?;
        }
        if lead < HUGE_PAGE_BYTES {
            munmap(start.byte_add(capacity), HUGE_PAGE_BYTES - lead).ok()?;
        }
        // Advice only: without huge pages it is slower and as right.
        let _ = madvise(start, capacity, Advice::LinuxHugepage);
        NonNull::new(start.cast())
    }
}

/// Frees a block for good.
///
/// # Safety
/// Nobody else may hold the block.
unsafe fn free_block(block: NonNull<Block>) {
    // SAFETY: every block was leaked from a box by `take_block`, and the caller is its last owner.
    let block = unsafe { Box::from_raw(block.as_ptr()) };
    let memory = block.memory.as_ptr();
    if block.layout.size() >= HUGE_PAGE_BYTES {
        // SAFETY: `map_huge` made this mapping, of this size. Unmapping a whole mapping cannot fail.
        let _ = unsafe { rustix::mm::munmap(memory.cast(), block.layout.size()) };
    } else {
        // SAFETY: `memory` was allocated with this very layout.
        unsafe { dealloc(memory, block.layout) };
    }
}

#[inline]
fn give_back(block: NonNull<Block>) {
    // SAFETY: the caller holds a reference, so the block is alive.
    let shared = unsafe { block.as_ref() };
    // The only reference is ours, and nobody can make another. So no locked instruction is needed, which
    // would wait for all that was written before, often a whole line.
    let is_last = shared.references.load(Ordering::Acquire) == 1;
    if !is_last && shared.references.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    retire_block(block);
}

/// Keeps a block whose last owner is gone in the pool, or frees the block.
fn retire_block(block: NonNull<Block>) {
    BLOCKS_OUT.set(BLOCKS_OUT.get() - 1);
    // SAFETY: the caller was the last owner, so the block is alive and nobody else reads it.
    let class = unsafe { block.as_ref() }.class();
    let pooled = class < CLASS_COUNT
        && POOL.try_with(|pool| pool.borrow_mut().keep(class, block)).unwrap_or(false);
    if !pooled {
        // SAFETY: the count reached zero: this was the last owner.
        unsafe { free_block(block) };
    }
}

/// An owned, writable run of bytes.
///
/// The start of a fresh buffer is aligned to 4096. The content is zero or what an earlier owner left:
/// whoever takes one fills it.
pub struct Buf {
    block: NonNull<Block>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buf` is the only owner of its range; the shared count is atomic.
unsafe impl Send for Buf {}
// SAFETY: `&Buf` gives only `&[u8]`.
unsafe impl Sync for Buf {}

impl Buf {
    /// A buffer of `len` bytes with unspecified (but initialised) content.
    #[inline]
    pub fn new(len: usize) -> Self {
        let block = take_block(len);
        // SAFETY: the block is alive; reading its field needs only a shared reference.
        let start = unsafe { block.as_ref() }.memory;
        Self { block, start, len }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// A buffer holding a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Cuts the first `at` bytes off and returns them; `self` keeps the rest.
    pub fn split_to(&mut self, at: usize) -> Buf {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        // SAFETY: we hold a reference, so the block is alive.
        unsafe { self.block.as_ref() }.references.fetch_add(1, Ordering::Relaxed);
        let front = Buf { block: self.block, start: self.start, len: at };
        // SAFETY: `at` is at most `len`, so the sum stays inside the block or one past its end.
        self.start = unsafe { self.start.add(at) };
        self.len -= at;
        front
    }

    /// Puts back together what `split_to` cut: `self` must end where `next` begins.
    ///
    /// # Panics
    /// When the two are not neighbours in one block.
    #[must_use]
    pub fn join(self, next: Buf) -> Buf {
        assert!(self.is_followed_by(&next), "buffers are not neighbours");
        let joined = Buf { block: self.block, start: self.start, len: self.len + next.len };
        std::mem::forget(self);
        drop(next); // one reference for two
        joined
    }

    /// Whether `next` begins where this one ends, in the same block: then [`join`](Self::join)
    /// puts them together.
    pub fn is_followed_by(&self, next: &Buf) -> bool {
        // SAFETY: the end of a range of a block is inside it or one past its end.
        self.block == next.block && unsafe { self.start.add(self.len) } == next.start
    }

    /// One buffer from the parts of a request: joined where they were cut, copied where a device
    /// gave its part back in another buffer.
    ///
    /// No parts give an empty buffer.
    pub fn put_together(parts: Vec<Buf>) -> Buf {
        if parts.windows(2).all(|pair| pair[0].is_followed_by(&pair[1])) {
            return parts.into_iter().reduce(Buf::join).unwrap_or_else(|| Buf::new(0));
        }
        let mut whole = Buf::new(parts.iter().map(|part| part.len()).sum());
        let mut at = 0;
        for part in parts {
            whole[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        whole
    }

    /// Takes what [`split_to`](Self::split_to) cut off this buffer last back to its front, once nobody else has
    /// any of the block.
    pub fn take_back(&mut self, front: Bytes) {
        // SAFETY: we hold a reference, so the block is alive.
        let references = unsafe { self.block.as_ref() }.references.load(Ordering::Acquire);
        // SAFETY: the end of a range of a block is inside it or one past its end.
        let is_next = unsafe { front.start.add(front.len) } == self.start;
        // Two references are this buffer's and that of `front`: nobody reads these bytes after this.
        if self.block == front.block && is_next && references == 2 {
            self.start = front.start;
            self.len += front.len;
        }
    }

    /// Drops everything behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Gives up writing: the bytes become shareable.
    pub fn freeze(self) -> Bytes {
        let bytes = Bytes { block: self.block, start: self.start, len: self.len };
        std::mem::forget(self);
        bytes
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside a live, initialised block that nobody else writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else reads it: live `Buf`s do not overlap anything.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        give_back(self.block);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Buf({} bytes)", self.len)
    }
}

/// A shared, read-only run of bytes; cloning and slicing copy nothing.
pub struct Bytes {
    block: NonNull<Block>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are immutable while any `Bytes` over them lives; the count is atomic.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// A copy of `bytes` in a block of its own.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Buf::copy_of(bytes).freeze()
    }

    /// The part `range` of these bytes, shared.
    #[must_use]
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let mut part = self.clone();
        // SAFETY: the new start is at most the old end.
        part.start = unsafe { self.start.add(range.start) };
        part.len = range.end - range.start;
        part
    }
}

impl Clone for Bytes {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: we hold a reference, so the block is alive.
        unsafe { self.block.as_ref() }.references.fetch_add(1, Ordering::Relaxed);
        Self { block: self.block, start: self.start, len: self.len }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside a live, initialised block that nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Bytes {
    #[inline]
    fn drop(&mut self) {
        give_back(self.block);
    }
}

impl From<Buf> for Bytes {
    fn from(buf: Buf) -> Self {
        buf.freeze()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Bytes({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_buffer_cut_into_pieces_and_joined_again_is_the_same_buffer() {
        let mut rest = Buf::zeroed(3 * 4096);
        let start = rest.as_ptr();
        let mut first = rest.split_to(4096);
        let mut second = rest.split_to(4096);
        first.fill(1);
        second.fill(2);
        rest.fill(3);
        let whole = first.join(second).join(rest);
        assert_eq!(whole.as_ptr(), start);
        assert_eq!((whole[0], whole[4096], whole[3 * 4096 - 1]), (1, 2, 3));
    }

    #[test]
    fn what_was_cut_off_comes_back_when_nobody_else_has_it() {
        let mut rest = Buf::zeroed(3 * 4096);
        let start = rest.as_ptr();
        let cut = |rest: &mut Buf| rest.split_to(4096).freeze();
        let front = cut(&mut rest);
        let read = front.clone();
        rest.take_back(front);
        assert_eq!(rest.len(), 2 * 4096, "somebody reads it");
        drop(read);
        let front = cut(&mut rest);
        rest.take_back(front);
        assert_eq!((rest.len(), rest.as_ptr()), (2 * 4096, start.wrapping_add(4096)));
        let (first, second) = (cut(&mut rest), cut(&mut rest));
        drop(second);
        rest.take_back(first);
        assert_eq!(rest.len(), 0, "it is no neighbour");
        rest.take_back(Bytes::copy_of(&[0; 4096]));
        assert_eq!(rest.len(), 0, "it is of another block");
    }

    #[test]
    fn parts_in_another_buffer_are_put_together_too() {
        let mut rest = Buf::new(3 * 512);
        let (mut first, mut last) = (rest.split_to(512), Buf::new(512));
        let mut middle = rest.split_to(512);
        for (part, byte) in [(&mut first, 1), (&mut middle, 2), (&mut last, 3)] {
            part.fill(byte);
        }
        let whole = Buf::put_together(vec![first, middle, last]);
        assert_eq!((whole.len(), whole[0], whole[512], whole[1535]), (1536, 1, 2, 3));
        assert!(Buf::put_together(Vec::new()).is_empty());
    }

    #[test]
    #[should_panic(expected = "not neighbours")]
    fn buffers_of_different_blocks_do_not_join() {
        let _ = Buf::new(512).join(Buf::new(512));
    }

    #[test]
    fn shared_bytes_outlive_the_slice_they_came_from() {
        let whole = Bytes::copy_of(&[1, 2, 3, 4]);
        let part = whole.slice(1..3);
        drop(whole);
        assert_eq!(&part[..], &[2, 3]);
    }

    #[test]
    fn blocks_are_aligned_and_come_back_from_the_pool() {
        let first = Buf::new(4096).as_ptr();
        assert_eq!(first as usize % BUF_ALIGN_BYTES, 0);
        assert_eq!(Buf::new(4000).as_ptr(), first);
    }

    #[test]
    fn what_deep_queues_had_in_flight_is_taken_from_the_pool_again() {
        let in_flight = || (0..160).map(|_| Buf::new(256 << 10)).collect::<Vec<_>>();
        let addresses = |bufs: &[Buf]| bufs.iter().map(|buf| buf.as_ptr()).collect::<BTreeSet<_>>();
        let first = in_flight();
        let taken = addresses(&first);
        drop(first);
        assert_eq!(addresses(&in_flight()), taken);
    }

    #[test]
    fn the_pool_of_all_sizes_together_is_bounded() {
        for log2 in CLASS_MIN_LOG2..=CLASS_MAX_LOG2 {
            drop((0..(64 << 20) >> log2).map(|_| Buf::new(1 << log2)).collect::<Vec<_>>());
        }
        POOL.with_borrow(|pool| {
            let kept = pool.free.iter().flatten().map(|block| {
                // SAFETY: a pooled block is valid.
                unsafe { block.as_ref() }.layout.size()
            });
            assert_eq!(kept.sum::<usize>(), pool.free_bytes);
            assert!(pool.free_bytes <= POOL_BYTES_MAX);
        });
    }

    #[test]
    fn every_block_taken_is_counted_until_its_last_owner_is_gone() {
        let before = blocks_out();
        let mut rest = Buf::new(8 << 20);
        let front = rest.split_to(512).freeze();
        let shared = front.slice(1..9);
        assert_eq!(blocks_out(), before + 1);
        drop((rest, front));
        assert_eq!(blocks_out(), before + 1);
        drop(shared);
        assert_eq!(blocks_out(), before);
    }

    #[test]
    fn buffers_may_be_dropped_on_another_thread() {
        let bytes = Buf::zeroed(8192).freeze();
        let clone = bytes.clone();
        std::thread::scope(|scope| scope.spawn(move || assert_eq!(clone.len(), 8192)).join())
            .unwrap();
        assert_eq!(bytes[8191], 0);
    }
}
