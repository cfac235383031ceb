//! The receive buffer of a connection.

use voltier_block::Buf;

/// Room for received bytes: two of the longest writes that are copied out of it. With one receive come
/// 127 writes of 4 KiB, or thousands of reads.
pub const INPUT_BYTES: usize = 512 << 10;

/// Most that is received while large writes come in. The data of large writes go straight to a buffer of
/// their own, and what was received with the header had to be copied.
const INPUT_BYTES_BEFORE_LARGE: usize = 4096;

/// A receive buffer with what is unread in it.
pub struct Input {
    /// Absent while the kernel fills it.
    buf: Option<Buf>,
    start: usize,
    end: usize,
    expects_large: bool,
}

impl Input {
    /// A buffer for a handshake, whose longest option has so many bytes.
    pub fn for_handshake(longest_bytes: usize) -> Self {
        Self { buf: Some(Buf::new(longest_bytes)), start: 0, end: 0, expects_large: false }
    }

    /// A buffer of a connection whose handshake is over, with what was received and is unread.
    pub fn with(unread: &[u8]) -> Self {
        let mut buf = Buf::new(INPUT_BYTES);
        buf[..unread.len()].copy_from_slice(unread);
        Self { buf: Some(buf), start: 0, end: unread.len(), expects_large: false }
    }

    /// Makes room for requests and their data.
    pub fn grow(&mut self) {
        *self = Self::with(self.unread());
    }

    /// The unread bytes.
    pub fn unread(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.start..self.end])
    }

    /// Marks the first `bytes` as read.
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "more consumed than is there");
        self.start += bytes;
    }

    /// Says whether the last request was a write too large to wait for in here.
    pub fn expect_large(&mut self, large: bool) {
        self.expects_large = large;
    }

    /// Takes the buffer for a receive: the part to be filled, and the rest.
    pub fn lend(&mut self) -> (Buf, Lent) {
        let mut buf = self.buf.take().expect("lent once at a time");
        buf.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let unread = buf.split_to(self.end);
        let most = if self.expects_large { INPUT_BYTES_BEFORE_LARGE } else { buf.len() };
        let free = buf.split_to(most.min(buf.len()));
        (free, Lent { unread, tail: buf })
    }

    /// Takes the buffer back with what was received into its free part.
    pub fn give_back(&mut self, lent: Lent, free: Buf, received_bytes: usize) {
        self.buf = Some(lent.unread.join(free).join(lent.tail));
        self.end += received_bytes;
    }
}

/// The parts of a lent buffer around the one that is filled, its neighbours in memory.
pub struct Lent {
    unread: Buf,
    tail: Buf,
}
