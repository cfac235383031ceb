//! The promises of a block device to the layer above it.

use crate::time::Nanos;
use crate::{Buf, IoError, IoResult, Lba, Payload, SECTOR_BYTES, SectorRange, UnderWay};

/// The content of a range after a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDiscard {
    /// Zeroes, always.
    Zeroes,
    /// Old data, zeroes or anything: the content is given up.
    Anything,
    /// The device ignores discards: the old content stays.
    Unchanged,
}

/// When a write must be on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// By the next completed flush.
    Cached,
    /// When the write completes (FUA).
    Durable,
}

/// Stripes of a device that keeps parity of what they hold.
///
/// Stripes lie one behind the other from the first sector on. A write of a whole one reads nothing. A
/// write of a part reads either what it replaces and the parities, or what it leaves of the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeShape {
    /// Data of a stripe, in bytes: a multiple of the chunk.
    pub data_bytes: u32,
    /// Bytes that lie together on one drive.
    pub chunk_bytes: u32,
    /// Chunks of parity in each stripe.
    pub parity_chunks: u32,
}

/// Facts about a device, fixed for as long as it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size in sectors.
    pub sectors: u64,
    /// Smallest unit of transfer in bytes: 512 or 4096. Ranges are multiples of it.
    pub block_bytes: u32,
    /// Size the device likes best, in bytes; a power of two, at least `block_bytes`.
    pub preferred_bytes: u32,
    /// Longest single transfer, in bytes.
    pub max_transfer_bytes: u32,
    /// Stripes of the device, if writes of whole ones are cheaper.
    pub stripe: Option<StripeShape>,
    /// The content that a discard leaves behind.
    pub after_discard: AfterDiscard,
    /// Whether zeroes cost the device metadata only. Else they are data like any other.
    pub cheap_zeroes: bool,
    /// Whether completed writes can be lost by a power cut before a flush.
    pub volatile_cache: bool,
    /// Whether writes fail with `ReadOnly`.
    pub read_only: bool,
    /// Whether a transfer may have to wait for a disk that turns; a hint for file systems and clients.
    pub rotational: bool,
}

impl Limits {
    /// Limits of a plain writable device of `bytes` bytes with 512-byte blocks.
    pub fn plain(bytes: u64) -> Self {
        Self {
            sectors: bytes / SECTOR_BYTES,
            block_bytes: 512,
            preferred_bytes: 4096,
            max_transfer_bytes: 32 << 20,
            stripe: None,
            after_discard: AfterDiscard::Zeroes,
            cheap_zeroes: true,
            volatile_cache: false,
            read_only: false,
            rotational: false,
        }
    }

    /// Size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    /// Whether a request of this range is one the device can serve.
    pub const fn accepts(&self, range: SectorRange) -> bool {
        let block_sectors = self.block_bytes as u64 / SECTOR_BYTES;
        range.fits(self.sectors)
            && range.start.0.is_multiple_of(block_sectors)
            && range.count.is_multiple_of(block_sectors)
    }

    /// The range, if the device serves it.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] for a range that is not the device's, or not of whole blocks.
    #[inline]
    pub fn checked(&self, range: SectorRange) -> IoResult<SectorRange> {
        if self.accepts(range) { Ok(range) } else { Err(IoError::OutOfRange) }
    }

    /// The range of a transfer of `bytes` bytes, if the device serves it.
    ///
    /// # Errors
    /// As [`checked`](Self::checked); also when the bytes are no whole sectors.
    #[inline]
    pub fn checked_transfer(&self, at: Lba, bytes: usize) -> IoResult<SectorRange> {
        let bytes = bytes as u64;
        if !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(IoError::OutOfRange);
        }
        self.checked(SectorRange::new(at, bytes / SECTOR_BYTES))
    }

    /// The range of a write, if the device takes writes and serves it.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`], else as [`checked_transfer`](Self::checked_transfer).
    #[inline]
    pub fn checked_write(&self, at: Lba, data: &Payload) -> IoResult<SectorRange> {
        if self.read_only {
            return Err(IoError::ReadOnly);
        }
        self.checked_transfer(at, data.len())
    }

    /// The range of a change without data, if the device takes writes and serves it.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`], else as [`checked`](Self::checked).
    #[inline]
    pub fn checked_change(&self, range: SectorRange) -> IoResult<SectorRange> {
        if self.read_only {
            return Err(IoError::ReadOnly);
        }
        self.checked(range)
    }
}

/// A block device, as a layer sees the layer below it.
///
/// - Between two flushes, completed writes may reach the medium in any order, or not at all. Each
///   `block_bytes` block is written whole or not at all.
/// - A write with [`Durability::Durable`] is on the medium when it completes. A completed `flush`
///   covers every write that had completed before the flush was *submitted*, and no other.
/// - Overlapping requests in flight have no order: a reader may see either content, sector by sector.
///   Clients of a plain volume get just this. A cache orders writes of the same lines by locks on its
///   lines. An array with redundancy orders writes of the same stripes by locks on its stripes. A torn
///   line, a torn parity or copies that differ would outlive the race.
/// - Dropping a future does not cancel the I/O: buffers stay owned until the completion.
/// - The export refuses ranges beyond the device, in the words of its protocol, and makes whole blocks of
///   parts of blocks. The volume refuses what [`Limits::accepts`] does not, for callers without a protocol.
///   Layers between may assert. The drive checks once more ([`Limits::checked`]), because a wrong address
///   there destroys data of others.
///
/// Devices belong to one core and their futures are not `Send`.
#[allow(async_fn_in_trait)]
pub trait BlockDevice: 'static {
    /// Facts that do not change while the device is open.
    fn limits(&self) -> &Limits;

    /// Fills `into` with the data that start at `at`, and returns the buffer. The buffer's length is the
    /// request's.
    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf>;

    /// Fills buffers with what lies behind one another from `at` on, as one request, and gives them back
    /// in their order.
    async fn read_vectored(&self, at: Lba, mut into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let whole = self.read(at, Buf::new(into.iter().map(|buf| buf.len()).sum())).await?;
        let mut taken = 0;
        for buf in &mut into {
            let bytes = buf.len();
            buf.copy_from_slice(&whole[taken..taken + bytes]);
            taken += bytes;
        }
        Ok(into)
    }

    /// Writes the payload, one contiguous run on the device, starting at `at`.
    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()>;

    /// Makes every write completed so far durable.
    async fn flush(&self) -> IoResult<()>;

    /// Gives the content of a range up; `Limits::after_discard` says what it reads as then.
    async fn discard(&self, range: SectorRange) -> IoResult<()>;

    /// Makes a range read as zeroes.
    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()>;

    /// Makes a range read as zeroes, at the cost of metadata, and keeps its space: a later write finds it.
    ///
    /// # Errors
    /// `Unsupported` where that is not to be had. The caller then writes the zeroes, as data.
    async fn zero_in_place(&self, _range: SectorRange, _durability: Durability) -> IoResult<()> {
        Err(IoError::Unsupported)
    }
}

/// Passes the control of a wrapper on to the device that it holds, all of it:
/// `pass_control_on!(Wrapper.below)`, where `Wrapper` is generic over the device alone.
#[macro_export]
macro_rules! pass_control_on {
    ($wrapper:ident.$below:ident) => {
        impl<D: $crate::DriveControl> $crate::DriveControl for $wrapper<D> {
            fn under_way(&self) -> $crate::UnderWay {
                self.$below.under_way()
            }

            fn abandon(&self) {
                self.$below.abandon();
            }

            fn forget_failed_flush(&self) {
                self.$below.forget_failed_flush();
            }

            fn patience_ns(&self) -> $crate::Nanos {
                self.$below.patience_ns()
            }
        }
    };
}

/// A block device that may hang, and that may fail a flush: what arrays and caches stand on.
///
/// No method has a body here: a wrapper that forgets to pass one on does not compile. A device of whose kind
/// nothing of this can be expected says so with [`InMemory`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be controlled as a drive",
    note = "a wrapper passes each method of `DriveControl` on to the device that it holds (`pass_control_on!`)",
    note = "`InMemory` is for devices without a drive, and for no wrapper"
)]
pub trait DriveControl: BlockDevice {
    /// Requests that the drive was given and has not ended, also those whose futures were dropped. The
    /// count goes on when the device is dropped. A device whose requests end with their futures has none.
    fn under_way(&self) -> UnderWay;

    /// Cancels requests under way as far as possible: nobody waits for them any more.
    fn abandon(&self);

    /// Lets flushes succeed again after one that failed. The failed one may have lost any write that no flush
    /// had covered. The caller writes all of these again, or has told those who rely on them.
    ///
    /// The kernel drops dirty pages after a failed fsync and says so once, so a device fails every flush
    /// after that. A cache that could not end this would call no line clean until the next start.
    fn forget_failed_flush(&self);

    /// How long the device waits for a drive below that does not answer, before the device goes on without
    /// that drive. A device that waits as long as its drive takes has no patience of its own: 0.
    fn patience_ns(&self) -> Nanos;
}

/// A device without a drive: its requests end with their futures, and a flush that fails has lost nothing that
/// the next one would not cover. Not for what holds a drive.
pub trait InMemory: BlockDevice {}

impl<D: InMemory> DriveControl for D {
    fn under_way(&self) -> UnderWay {
        UnderWay::default()
    }

    fn abandon(&self) {}

    fn forget_failed_flush(&self) {}

    fn patience_ns(&self) -> Nanos {
        0
    }
}

/// A device held by several layers of one core.
impl<D: BlockDevice> BlockDevice for std::rc::Rc<D> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        (**self).read(at, into).await
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        (**self).read_vectored(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        (**self).write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        (**self).flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        (**self).discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        (**self).write_zeroes(range, durability).await
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        (**self).zero_in_place(range, durability).await
    }
}

impl<D: DriveControl> DriveControl for std::rc::Rc<D> {
    fn under_way(&self) -> UnderWay {
        (**self).under_way()
    }

    fn abandon(&self) {
        (**self).abandon();
    }

    fn forget_failed_flush(&self) {
        (**self).forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        (**self).patience_ns()
    }
}
