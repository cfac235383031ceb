//! A device of large blocks that serves sectors: what it reads, and what neighbours do to each other.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, Lba, MIB, Payload};
use voltier_drive::{AlignDevice, MemoryDevice};
use voltier_filter::{Delay, DelayDevice, IoKind, IoLog, LogDevice};
use voltier_ring::{Executor, Handle, NoFiles};

fn slow_4k(handle: &Handle, log: &IoLog) -> AlignDevice<impl BlockDevice + use<>> {
    let memory = MemoryDevice::with_block_bytes(MIB, 4096);
    let delayed = DelayDevice::new(handle.clone(), memory, Delay::new(70, 110, 130));
    AlignDevice::new(LogDevice::new(handle.clone(), delayed, log.clone()))
}

#[test]
fn neighbours_in_one_block_written_at_once_both_last() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let device = Rc::new(slow_4k(&handle, &IoLog::new(0)));
        let tasks: Vec<_> = (0..32u8)
            .map(|sector| {
                let device = device.clone();
                handle.spawn(async move {
                    let data = Payload::from(Bytes::copy_of(&[sector + 1; 512]));
                    device.write(Lba(sector.into()), data, Durability::Cached).await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let bytes = device.read(Lba(0), Buf::new(32 * 512)).await.unwrap();
        for (sector, content) in bytes.chunks(512).enumerate() {
            assert!(content.iter().all(|&byte| usize::from(byte) == sector + 1), "{sector}");
        }
    });
}

#[test]
fn whole_blocks_pass_straight_through_and_edges_cost_one_read_each() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let log = IoLog::new(0);
        let device = slow_4k(&handle, &log);
        let reads = || log.totals(IoKind::Read).requests;
        let write = async |at, sectors: usize| {
            let data = Payload::from(Buf::zeroed(sectors * 512));
            device.write(Lba(at), data, Durability::Cached).await.unwrap();
        };
        write(8, 16).await;
        assert_eq!(reads(), 0);
        write(9, 2).await;
        assert_eq!(reads(), 1);
        write(15, 20).await;
        assert_eq!(reads(), 3);
        write(16, 9).await;
        assert_eq!(reads(), 4);
        assert_eq!(log.totals(IoKind::Write).requests, 4);
    });
}
