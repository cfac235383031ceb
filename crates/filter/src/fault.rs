//! Makes a device fail, loudly or silently, as asked at run time.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Limits, Nanos, Payload,
    SECTOR_BYTES, SectorRange,
};
use voltier_ring::Handle;

/// One thing that goes wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads that touch the range fail with a medium error.
    ReadError {
        /// Where.
        range: SectorRange,
        /// How many reads; `u32::MAX` means until cleared.
        times: u32,
    },
    /// Writes, discards and written zeroes that touch the range fail with a medium error and
    /// change nothing.
    WriteError {
        /// Where.
        range: SectorRange,
        /// How many changes; `u32::MAX` means until cleared.
        times: u32,
    },
    /// The next flush fails with a medium error and makes nothing durable.
    FlushError,
    /// A bit on the medium is the wrong way round, silently, until the sector changes.
    BitRot {
        /// The sector.
        at: Lba,
        /// The bit in it: 0 to 4095.
        bit: u16,
    },
    /// From the next request on, nothing is answered for this long.
    Stall {
        /// In nanoseconds.
        for_ns: Nanos,
    },
    /// The next write is acknowledged and never made.
    LostWrite,
    /// The next write is acknowledged, but only its first sectors are made (whole blocks of the
    /// device: a device does not tear a block).
    TornWrite {
        /// Sectors that are written.
        keep_sectors: u64,
    },
    /// The next write is acknowledged, but goes somewhere else.
    MisdirectedWrite {
        /// The place where the request goes instead.
        to: Lba,
    },
    /// The device is gone: everything fails until this is cleared.
    Gone,
}

#[derive(Debug, Default)]
struct FaultState {
    faults: Vec<Fault>,
    stalled_until: Nanos,
}

/// The faults of a [`FaultDevice`]; clones are the same faults.
#[derive(Clone, Debug, Default)]
pub struct Faults(Rc<RefCell<FaultState>>);

impl Faults {
    /// No faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault, beside those there are.
    pub fn inject(&self, fault: Fault) {
        self.0.borrow_mut().faults.push(fault);
    }

    /// Ends all faults. Damage on the medium stays; bit rot ends.
    pub fn clear(&self) {
        *self.0.borrow_mut() = FaultState::default();
    }

    /// Faults that have not run out.
    pub fn active(&self) -> Vec<Fault> {
        self.0.borrow().faults.clone()
    }

    /// Takes the first fault that `matches`, and leaves it there if it has more to give.
    fn take(&self, matches: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let faults = &mut self.0.borrow_mut().faults;
        let index = faults.iter().position(matches)?;
        let fault = faults[index];
        match &mut faults[index] {
            Fault::Gone
            | Fault::BitRot { .. }
            | Fault::ReadError { times: u32::MAX, .. }
            | Fault::WriteError { times: u32::MAX, .. } => {}
            Fault::ReadError { times, .. } | Fault::WriteError { times, .. } if *times > 1 => {
                *times -= 1;
            }
            _ => drop(faults.remove(index)),
        }
        Some(fault)
    }

    fn fails_read(&self, range: SectorRange) -> bool {
        let hit = |fault: &Fault| match fault {
            Fault::ReadError { range: bad, times } => *times > 0 && bad.overlaps(range),
            _ => false,
        };
        self.take(hit).is_some()
    }

    fn fails_write(&self, range: SectorRange) -> bool {
        let hit = |fault: &Fault| match fault {
            Fault::WriteError { range: bad, times } => *times > 0 && bad.overlaps(range),
            _ => false,
        };
        self.take(hit).is_some()
    }

    /// Flips the bits that bit rot took of what was read.
    fn flip_bits(&self, range: SectorRange, bytes: &mut [u8]) {
        for fault in &self.0.borrow().faults {
            if let Fault::BitRot { at, bit } = *fault
                && range.contains(SectorRange::new(at, 1))
            {
                let sector = ((at.0 - range.start.0) * SECTOR_BYTES) as usize;
                bytes[sector + usize::from(bit) % 4096 / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// Sectors that were written over have no bit rot any more.
    fn heal(&self, range: SectorRange) {
        let is_bit_rot_in = |fault: &Fault| match fault {
            Fault::BitRot { at, .. } => range.contains(SectorRange::new(*at, 1)),
            _ => false,
        };
        self.0.borrow_mut().faults.retain(|fault| !is_bit_rot_in(fault));
    }
}

/// Does to the device below what its [`Faults`] say.
pub struct FaultDevice<D> {
    handle: Handle,
    below: D,
    faults: Faults,
}

impl<D: BlockDevice> FaultDevice<D> {
    /// A device that works until a fault is injected; keep a clone of `faults` for that.
    pub fn new(handle: Handle, below: D, faults: Faults) -> Self {
        Self { handle, below, faults }
    }

    /// Waits out a stall, and fails when the device is gone.
    async fn alive(&self) -> IoResult<()> {
        while let Some(Fault::Stall { for_ns }) =
            self.faults.take(|fault| matches!(fault, Fault::Stall { .. }))
        {
            let state = &mut self.faults.0.borrow_mut();
            state.stalled_until = state.stalled_until.max(self.handle.now() + for_ns);
        }
        let stalled_until = self.faults.0.borrow().stalled_until;
        if stalled_until > self.handle.now() {
            self.handle.sleep_until(stalled_until).await;
        }
        let gone = self.faults.take(|fault| matches!(fault, Fault::Gone));
        if gone.is_some() { Err(IoError::Gone) } else { Ok(()) }
    }

    async fn changes(&self, range: SectorRange) -> IoResult<()> {
        self.alive().await?;
        if self.faults.fails_write(range) { Err(IoError::Medium) } else { Ok(()) }
    }

    /// Writes, and heals what the write really covered.
    async fn write_below(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = SectorRange::new(at, data.len() as u64 / SECTOR_BYTES);
        self.below.write(at, data, durability).await?;
        self.faults.heal(range);
        Ok(())
    }
}

/// The first `bytes` bytes of a payload.
fn front(data: &Payload, mut bytes: usize) -> Payload {
    let mut kept: Vec<Bytes> = Vec::new();
    for piece in data.pieces() {
        let taken = bytes.min(piece.len());
        bytes -= taken;
        kept.push(piece.slice(0..taken));
    }
    Payload::Many(kept)
}

impl<D: BlockDevice> BlockDevice for FaultDevice<D> {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.alive().await?;
        let range = SectorRange::new(at, into.len() as u64 / SECTOR_BYTES);
        if self.faults.fails_read(range) {
            return Err(IoError::Medium);
        }
        let mut bytes = self.below.read(at, into).await?;
        self.faults.flip_bits(range, &mut bytes);
        Ok(bytes)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = self.limits().checked_write(at, &data)?;
        self.changes(range).await?;
        let silent = |fault: &Fault| {
            matches!(
                fault,
                Fault::LostWrite | Fault::TornWrite { .. } | Fault::MisdirectedWrite { .. }
            )
        };
        match self.faults.take(silent) {
            Some(Fault::LostWrite) => Ok(()),
            Some(Fault::TornWrite { keep_sectors }) => {
                let block_sectors = u64::from(self.limits().block_bytes) / SECTOR_BYTES;
                let kept = keep_sectors.min(range.count) / block_sectors * block_sectors;
                let data = front(&data, (kept * SECTOR_BYTES) as usize);
                self.write_below(at, data, durability).await
            }
            Some(Fault::MisdirectedWrite { to }) => self.write_below(to, data, durability).await,
            _ => self.write_below(at, data, durability).await,
        }
    }

    async fn flush(&self) -> IoResult<()> {
        self.alive().await?;
        if self.faults.take(|fault| matches!(fault, Fault::FlushError)).is_some() {
            return Err(IoError::Medium);
        }
        self.below.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.limits().checked_change(range)?;
        self.changes(range).await?;
        self.below.discard(range).await?;
        if self.limits().after_discard == voltier_block::AfterDiscard::Zeroes {
            self.faults.heal(range);
        }
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits().checked_change(range)?;
        self.changes(range).await?;
        self.below.write_zeroes(range, durability).await?;
        self.faults.heal(range);
        Ok(())
    }
}

voltier_block::pass_control_on!(FaultDevice.below);

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::MIB;
    use voltier_drive::MemoryDevice;
    use voltier_ring::{Executor, NoFiles};

    type Device = FaultDevice<MemoryDevice>;

    fn with_device<F: Future<Output = ()>>(
        body: impl FnOnce(Handle, Device, Faults) -> F + 'static,
    ) {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let faults = Faults::new();
            let device = FaultDevice::new(handle.clone(), MemoryDevice::new(MIB), faults.clone());
            body(handle, device, faults).await;
        });
    }

    async fn write(device: &Device, at: u64, sectors: usize, value: u8) -> IoResult<()> {
        let data = Payload::from(Bytes::copy_of(&vec![value; sectors * 512]));
        device.write(Lba(at), data, Durability::Cached).await
    }

    async fn first_bytes(device: &Device, at: u64, sectors: usize) -> Vec<u8> {
        let bytes = device.read(Lba(at), Buf::new(sectors * 512)).await.unwrap();
        bytes.chunks(512).map(|sector| sector[0]).collect()
    }

    #[test]
    fn errors_hit_their_range_as_often_as_asked() {
        with_device(async |_, device, faults| {
            let range = SectorRange::new(Lba(10), 1);
            faults.inject(Fault::ReadError { range, times: 2 });
            faults.inject(Fault::WriteError { range, times: 1 });
            faults.inject(Fault::FlushError);
            for _ in 0..2 {
                let result = device.read(Lba(8), Buf::new(4096)).await;
                assert_eq!(result.unwrap_err(), IoError::Medium);
            }
            device.read(Lba(8), Buf::new(4096)).await.unwrap();
            write(&device, 11, 1, 1).await.unwrap();
            assert_eq!(write(&device, 10, 1, 1).await, Err(IoError::Medium));
            write(&device, 10, 1, 2).await.unwrap();
            assert_eq!(device.flush().await, Err(IoError::Medium));
            device.flush().await.unwrap();
            assert_eq!(faults.active(), []);
        });
    }

    #[test]
    fn silent_faults_acknowledge_what_they_do_not_do() {
        with_device(async |_, device, faults| {
            write(&device, 0, 4, 1).await.unwrap();
            faults.inject(Fault::LostWrite);
            write(&device, 0, 4, 2).await.unwrap();
            assert_eq!(first_bytes(&device, 0, 4).await, [1, 1, 1, 1]);
            faults.inject(Fault::TornWrite { keep_sectors: 3 });
            write(&device, 0, 4, 3).await.unwrap();
            assert_eq!(first_bytes(&device, 0, 4).await, [3, 3, 3, 1]);
            faults.inject(Fault::MisdirectedWrite { to: Lba(100) });
            write(&device, 0, 1, 4).await.unwrap();
            assert_eq!(first_bytes(&device, 0, 1).await, [3]);
            assert_eq!(first_bytes(&device, 100, 2).await, [4, 0]);
        });
    }

    #[test]
    fn bit_rot_stays_until_its_sector_is_written() {
        with_device(async |_, device, faults| {
            faults.inject(Fault::BitRot { at: Lba(1), bit: 2 });
            assert_eq!(first_bytes(&device, 0, 3).await, [0, 4, 0]);
            assert_eq!(first_bytes(&device, 1, 1).await, [4]);
            write(&device, 1, 1, 9).await.unwrap();
            assert_eq!(first_bytes(&device, 0, 3).await, [0, 9, 0]);
        });
    }

    #[test]
    fn a_stall_holds_every_request_and_a_gone_device_fails_them_until_cleared() {
        with_device(async |handle, device, faults| {
            faults.inject(Fault::Stall { for_ns: 3_000 });
            write(&device, 0, 1, 1).await.unwrap();
            assert_eq!(handle.now(), 3_000);
            write(&device, 0, 1, 1).await.unwrap();
            assert_eq!(handle.now(), 3_000);
            faults.inject(Fault::Gone);
            assert_eq!(device.flush().await, Err(IoError::Gone));
            assert_eq!(write(&device, 0, 1, 1).await, Err(IoError::Gone));
            faults.clear();
            write(&device, 0, 1, 1).await.unwrap();
        });
    }
}
