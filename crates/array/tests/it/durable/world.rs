//! Members and what is needed to make and to check arrays over them.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, AssembleReport, Consistency, CreateOptions, Integrity,
    Layout, Level, MetadataError,
};
use voltier_block::{BlockDevice, Buf, Bytes, DriveControl, Durability, IoResult, Lba, MIB};
use voltier_ring::{Executor, Handle, NoFiles};

use crate::durable::drive::{Drive, Medium, Power};

/// Room for a journal and three regions.
pub(crate) const DRIVE_BYTES: u64 = 5 * MIB + 4096;
pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
pub(crate) const BLOCK: usize = 512;
/// The uuid of a device that has the journal.
pub(crate) const JOURNAL_UUID: [u8; 16] = [0x77; 16];

pub(crate) fn options(level: Level, members: usize, consistency: Consistency) -> CreateOptions {
    CreateOptions {
        name: "box".to_owned(),
        level,
        layout: Layout::default(),
        chunk_bytes: CHUNK_BYTES,
        consistency,
        integrity: Integrity::None,
        uuid: [0xa5; 16],
        member_uuids: (0..members).map(|member| [member as u8 + 1; 16]).collect(),
    }
}

/// The drives of one boot.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) handle: Handle,
    pub(crate) power: Rc<Power>,
    pub(crate) drives: Vec<Drive>,
}

impl World {
    pub(crate) fn new(handle: &Handle, media: Vec<Medium>, cut: Option<u64>, seed: u64) -> Self {
        let power = Power::cut_at(cut);
        let drive = |(index, medium)| {
            Drive::new(handle, &power, DRIVE_BYTES, medium, seed * 100 + index as u64)
        };
        let drives = media.into_iter().enumerate().map(drive).collect();
        Self { handle: handle.clone(), power, drives }
    }

    pub(crate) async fn create(&self, options: &CreateOptions) -> Array<Drive> {
        self.try_create(options).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) async fn try_create(
        &self,
        options: &CreateOptions,
    ) -> Result<Array<Drive>, ArrayError> {
        Array::create(&self.handle, options, self.drives.clone()).await
    }

    /// Of all drives but the last, which has the journal.
    pub(crate) async fn create_with_journal(
        &self,
        options: &CreateOptions,
    ) -> Result<Array<Drive>, ArrayError> {
        let (journal, members) = self.drives.split_last().expect("there are drives");
        let journal = Some((journal.clone(), JOURNAL_UUID));
        Array::create_with_journal(&self.handle, options, members.to_vec(), journal).await
    }

    /// From these drives, in this order.
    pub(crate) async fn assemble(
        &self,
        drives: &[usize],
        options: AssembleOptions,
    ) -> Result<(Array<Drive>, AssembleReport), ArrayError> {
        let drives = drives.iter().map(|drive| self.drives[*drive].clone()).collect();
        Array::assemble(&self.handle, drives, options).await
    }

    pub(crate) fn media(&self) -> Vec<Medium> {
        self.drives.iter().map(|drive| drive.medium.borrow().clone()).collect()
    }
}

/// Runs a test on so many fresh drives.
pub(crate) fn with_drives<F: Future<Output = ()> + 'static>(
    drives: usize,
    test: impl FnOnce(World) -> F + 'static,
) {
    on_media(vec![Medium::default(); drives], test);
}

/// Runs a test on drives that hold this: what it gives back.
pub(crate) fn on_media<T: 'static, F: Future<Output = T> + 'static>(
    media: Vec<Medium>,
    test: impl FnOnce(World) -> F + 'static,
) -> T {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), media, None, 1);
    executor.block_on(test(world))
}

pub(crate) async fn write<D: DriveControl>(array: &Array<D>, block: u64, byte: u8) -> IoResult<()> {
    let data = Bytes::copy_of(&[byte; BLOCK]);
    array.write(Lba(block * 8), data.into(), Durability::Durable).await
}

pub(crate) async fn read<D: DriveControl>(array: &Array<D>, block: u64) -> IoResult<u8> {
    let read = array.read(Lba(block * 8), Buf::new(BLOCK)).await?;
    assert!(read.iter().all(|byte| *byte == read[0]), "block {block} is torn");
    Ok(read[0])
}

/// The refusal of these drives, in one line, with nothing written.
pub(crate) async fn refused(
    world: &World,
    drives: &[usize],
    options: AssembleOptions,
) -> MetadataError {
    let before: Vec<u64> = world.drives.iter().map(|it| it.superblock_writes.get()).collect();
    let error = match world.assemble(drives, options).await {
        Err(ArrayError::Metadata(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{drives:?} is an array"),
    };
    let after: Vec<u64> = world.drives.iter().map(|it| it.superblock_writes.get()).collect();
    assert_eq!(before, after, "a refusal writes nothing");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 160, "{line}");
    error
}

/// Blocks in the first three regions.
pub(crate) fn blocks(level: Level, members: usize) -> [u64; 6] {
    let data = match level {
        Level::Raid1 => 1,
        Level::Raid5 => members - 1,
        Level::Raid6 => members - 2,
        Level::Raid50 { group } => members - members / group,
        _ => members,
    };
    [0, 100, 300, 500, 600, 700].map(|block| block * data as u64)
}

/// An array over the first drives.
pub(crate) async fn made(
    world: &World,
    level: Level,
    members: usize,
    consistency: Consistency,
) -> Array<Drive> {
    let options = options(level, members, consistency);
    let drives = world.drives[..members].to_vec();
    Array::create(&world.handle, &options, drives).await.expect("possible")
}

/// An array with something on it, stopped, and so many drives that were never in it.
pub(crate) fn with_some_over(
    level: Level,
    members: usize,
    count: usize,
    consistency: Consistency,
) -> Vec<Medium> {
    on_media(vec![Medium::default(); members + count], move |world| async move {
        let array = made(&world, level, members, consistency).await;
        for block in blocks(level, members) {
            write(&array, block, 1).await.expect("write");
        }
        array.stop().await.expect("stop");
        world.media()
    })
}

/// The content that blocks may hold: what was acknowledged, and what was on its way since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model(BTreeMap<u64, Vec<u8>>);

impl Model {
    pub(crate) fn begin(&mut self, block: u64, byte: u8) {
        self.0.entry(block).or_insert_with(|| vec![0]).push(byte);
    }

    pub(crate) fn acknowledge(&mut self, block: u64, byte: u8) {
        self.0.insert(block, vec![byte]);
    }

    /// The blocks it speaks of.
    pub(crate) fn blocks(&self) -> std::collections::BTreeSet<u64> {
        self.0.keys().copied().collect()
    }

    /// Holds every block against what it may hold; what they hold.
    pub(crate) async fn check<D: DriveControl>(&self, array: &Array<D>, when: &str) -> Vec<u8> {
        let mut all = Vec::new();
        for (block, allowed) in &self.0 {
            let byte = read(array, *block).await;
            let byte = byte.unwrap_or_else(|error| panic!("{when}: block {block}: {error}"));
            assert!(allowed.contains(&byte), "{when}: block {block} is {byte}, not {allowed:?}");
            all.push(byte);
        }
        all
    }
}
