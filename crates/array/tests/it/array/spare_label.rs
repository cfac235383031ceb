//! The label of a spare: whose the spare is, also when the program died while the spare changed hands.

use voltier_array::{
    MemberLayout, SUPERBLOCK_BYTES, SpareLabel, read_spare_label, write_spare_label,
};
use voltier_block::{BlockDevice, Buf, Durability, MIB};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, NoFiles};

fn label(owner: u8) -> SpareLabel {
    SpareLabel { owner: [owner; 16], name: "p".to_owned(), device_sectors: 0 }
}

#[test]
fn a_spare_between_two_owners_is_the_newer_ones_and_one_that_was_written_over_is_nobodys() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    executor.block_on(async {
        let device = MemoryDevice::new(MIB);
        let [first, last] = MemberLayout::superblock_lbas(device.limits().sectors);
        let copy_of =
            async |at| device.read(at, Buf::new(SUPERBLOCK_BYTES as usize)).await.unwrap();
        let put = async |at, block: Buf| {
            device.write(at, block.freeze().into(), Durability::Durable).await.unwrap();
        };
        write_spare_label(&device, label(1), true).await.unwrap();
        let old_last = copy_of(last).await;
        write_spare_label(&device, label(2), false).await.unwrap();
        // The second copy of the new label was not written.
        put(last, old_last).await;
        assert_eq!(read_spare_label(&device).await.unwrap().unwrap().owner, [2; 16]);
        for at in [first, last] {
            let whole = copy_of(at).await;
            put(at, Buf::zeroed(SUPERBLOCK_BYTES as usize)).await;
            assert_eq!(read_spare_label(&device).await.unwrap(), None);
            put(at, whole).await;
        }
    });
}
