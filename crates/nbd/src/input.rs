//! The receive buffer of a connection.

use std::io::IoSliceMut;

use voltier_block::Buf;

use crate::proto::REQUEST_BYTES;

/// Room for received bytes: two of the longest writes that are copied out of it. With one receive come
/// 127 writes of 4 KiB, or thousands of reads.
pub const INPUT_BYTES: usize = 512 << 10;

/// Most that is received while large writes come in. The data of large writes go straight to a buffer of
/// their own, and what was received with the header had to be copied.
const INPUT_BYTES_BEFORE_LARGE: usize = 4096;

/// The shortest and the longest data of a write for which a buffer of their own waits when the next write is expected
/// to have as many. The data of shorter ones are copied: more of them come with one receive. Longer ones have a
/// buffer when they are known.
const AHEAD_BYTES_MIN: usize = 64 << 10;
const AHEAD_BYTES_MAX: usize = 256 << 10;

/// A receive buffer with what is unread in it.
pub struct Input {
    /// Absent while the kernel fills it.
    buf: Option<Buf>,
    start: usize,
    end: usize,
    expects_large: bool,
    /// The data that the next request is expected to have; 0 if none are.
    expected_bytes: usize,
    /// What came behind a request's header, and how many bytes that are: the request's data, if it has as many as
    /// expected.
    ahead: Option<(Buf, usize)>,
}

impl Input {
    /// A buffer for a handshake, whose longest option has so many bytes.
    pub fn for_handshake(longest_bytes: usize) -> Self {
        Self::of(Buf::new(longest_bytes), 0)
    }

    /// A buffer of a connection whose handshake is over, with what was received and is unread.
    pub fn with(unread: &[u8]) -> Self {
        let mut buf = Buf::new(INPUT_BYTES);
        buf[..unread.len()].copy_from_slice(unread);
        Self::of(buf, unread.len())
    }

    fn of(buf: Buf, end: usize) -> Self {
        Self { buf: Some(buf), start: 0, end, expects_large: false, expected_bytes: 0, ahead: None }
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

    /// Says how many bytes of data the last request had: the next one is expected to have as many.
    pub fn expect(&mut self, bytes: usize) {
        let is_worth_it = (AHEAD_BYTES_MIN..=AHEAD_BYTES_MAX).contains(&bytes);
        self.expected_bytes = if is_worth_it { bytes } else { 0 };
    }

    /// Whether the data of the next request are to come into a buffer of their own.
    pub fn expects(&self, bytes: usize) -> bool {
        self.expected_bytes == bytes && bytes > 0
    }

    /// Whether a header with data behind it is what the next receive is to bring.
    pub fn looks_ahead(&self) -> bool {
        self.expected_bytes > 0 && self.ahead.is_none() && self.end - self.start < REQUEST_BYTES
    }

    /// Receives a header into this buffer, and what comes behind it into one of the expected size.
    ///
    /// # Errors
    /// That of `receive`, which says how many bytes it has put into the buffers.
    pub fn receive_ahead<E>(
        &mut self,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let buf = self.buf.as_mut().expect("lent once at a time");
        buf.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let header = &mut buf[self.end..REQUEST_BYTES];
        let header_bytes = header.len();
        let mut data = Buf::new(self.expected_bytes);
        let received = receive(&mut [IoSliceMut::new(header), IoSliceMut::new(&mut data)])?;
        self.end += received.min(header_bytes);
        if received > header_bytes {
            self.ahead = Some((data, received - header_bytes));
        }
        Ok(received)
    }

    /// The data of a request whose header was read, as far as they are here, in a buffer of just their size.
    pub fn take_ahead(&mut self, bytes: usize) -> Option<(Buf, usize)> {
        let is_whole = self.start == self.end;
        self.ahead.take_if(|(data, _)| is_whole && data.len() == bytes)
    }

    /// What came behind a header becomes unread bytes like others; whether there was something.
    pub fn mend_ahead(&mut self) -> bool {
        let Some((data, bytes)) = self.ahead.take() else { return false };
        let buf = self.buf.as_mut().expect("lent once at a time");
        buf.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        buf[self.end..self.end + bytes].copy_from_slice(&data[..bytes]);
        self.end += bytes;
        true
    }

    /// Takes the buffer for a receive: the part to be filled, and the rest.
    pub fn lend(&mut self) -> (Buf, Lent) {
        assert!(self.ahead.is_none(), "there are bytes that were received before");
        let mut buf = self.buf.take().expect("lent once at a time");
        buf.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let unread = buf.split_to(self.end);
        let most = match (self.expected_bytes > 0, self.expects_large) {
            (true, _) if self.end < REQUEST_BYTES => REQUEST_BYTES - self.end,
            (_, true) => INPUT_BYTES_BEFORE_LARGE,
            _ => buf.len(),
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts `bytes` into the buffers, as a receive does.
    fn receive(bytes: &[u8]) -> impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, ()> {
        move |bufs| {
            let mut rest = bytes;
            for buf in bufs {
                let here = rest.len().min(buf.len());
                buf[..here].copy_from_slice(&rest[..here]);
                rest = &rest[here..];
            }
            Ok(bytes.len() - rest.len())
        }
    }

    fn numbered(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn data_as_long_as_expected_have_a_buffer_of_their_own() {
        let mut input = Input::with(&[]);
        input.expect(AHEAD_BYTES_MIN);
        let bytes = numbered(REQUEST_BYTES + 1000);
        assert_eq!(input.receive_ahead(receive(&bytes)), Ok(bytes.len()));
        assert_eq!(input.unread(), &bytes[..REQUEST_BYTES]);
        input.consume(REQUEST_BYTES);
        assert!(input.take_ahead(AHEAD_BYTES_MIN + 512).is_none());
        let (data, here) = input.take_ahead(AHEAD_BYTES_MIN).expect("they came");
        assert_eq!((data.len(), &data[..here]), (AHEAD_BYTES_MIN, &bytes[REQUEST_BYTES..]));
        assert!(!input.mend_ahead());
    }

    #[test]
    fn what_was_not_expected_is_unread_in_its_order() {
        for first in [1, REQUEST_BYTES - 1, REQUEST_BYTES, REQUEST_BYTES + 1, 5000] {
            let mut input = Input::with(&[]);
            input.expect(AHEAD_BYTES_MIN);
            let bytes = numbered(5000);
            let (now, later) = bytes.split_at(first);
            assert_eq!(input.receive_ahead(receive(now)), Ok(first));
            let read = input.unread().len().min(10);
            input.consume(read);
            input.mend_ahead();
            if input.looks_ahead() {
                assert_eq!(input.receive_ahead(receive(later)), Ok(later.len()));
                input.mend_ahead();
            }
            input.expect(0);
            let (mut free, lent) = input.lend();
            let here = later.len().min(if first < REQUEST_BYTES + 10 { 0 } else { later.len() });
            free[..here].copy_from_slice(&later[..here]);
            input.give_back(lent, free, here);
            assert_eq!(input.unread(), &bytes[read..], "first {first}");
        }
    }
}
