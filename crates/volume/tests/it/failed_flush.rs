//! Goal: a drive that fails one flush and works again costs one failed flush, also when it is modelled or a member
//! of an array. Nothing that was acknowledged is lost.
//! Method: files in virtual time. A flush that fails drops all that it was to keep and is told once, as by the
//! kernel. In the end all that no flush covered goes, as in a power cut.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::support::{read, write};
use voltier_array::{Consistency, CreateOptions, Integrity, Layout, Level};
use voltier_block::{BlockDevice, IoError, KIB, Limits, MIB, SECTOR_BYTES};
use voltier_drive::model::Profile;
use voltier_drive::{FileDevice, MemoryDevice, ModelDevice};
use voltier_ring::{Errno, Executor, Fd, Handle, Op, OpOutcome, VirtualFiles};
use voltier_volume::{
    Array, Drive, FormatOptions, Leaf, LeafKind, LineSize, Mode, OpenOptions, PolicyKind, Settings,
    Volume,
};

const SECOND_NS: u64 = 1_000_000_000;
const FILE_BYTES: u64 = 32 * MIB;
const LINES: u64 = 64;

/// An array that can lose no member: it keeps one that fails a flush.
const STRIPED: (Level, Consistency) = (Level::Raid0, Consistency::Bitmap);
const MIRRORED: (Level, Consistency) = (Level::Raid1, Consistency::Journal);

type Sectors = BTreeMap<u64, [u8; SECTOR_BYTES as usize]>;

/// The sectors of a file: on the medium, and over them those that no flush covered.
#[derive(Default)]
struct File {
    durable: Sectors,
    cached: Sectors,
}

impl File {
    fn sync(&mut self) {
        self.durable.append(&mut self.cached);
    }
}

/// The files of a world, by number. Clones are the same files.
#[derive(Clone, Default)]
struct Files {
    files: Rc<RefCell<BTreeMap<u32, File>>>,
    /// Files whose next flush fails.
    failing: Rc<RefCell<BTreeSet<u32>>>,
}

impl Files {
    /// The next flush fails of each of the first files.
    fn fail_flushes(&self, files: u32) {
        self.failing.borrow_mut().extend(0..files);
    }

    /// Whether a flush that is to fail has not come yet.
    fn are_any_failing(&self) -> bool {
        !self.failing.borrow().is_empty()
    }

    /// Only what a flush covered is left.
    fn lose_unflushed(&self) {
        self.files.borrow_mut().values_mut().for_each(|file| file.cached.clear());
    }

    fn sync(&self, number: u32) -> Result<u32, Errno> {
        let mut files = self.files.borrow_mut();
        let file = files.entry(number).or_default();
        if self.failing.borrow_mut().remove(&number) {
            file.cached.clear();
            return Err(Errno::IO);
        }
        file.sync();
        Ok(0)
    }

    fn read(&self, number: u32, offset: u64, into: &mut [u8]) {
        let mut files = self.files.borrow_mut();
        let file = files.entry(number).or_default();
        for (index, bytes) in into.chunks_mut(SECTOR_BYTES as usize).enumerate() {
            let sector = offset / SECTOR_BYTES + index as u64;
            match file.cached.get(&sector).or_else(|| file.durable.get(&sector)) {
                Some(content) => bytes.copy_from_slice(content),
                None => bytes.fill(0),
            }
        }
    }

    fn write(&self, number: u32, offset: u64, data: &[u8], is_durable: bool) {
        let mut files = self.files.borrow_mut();
        let file = files.entry(number).or_default();
        for (index, bytes) in data.chunks(SECTOR_BYTES as usize).enumerate() {
            let sector = offset / SECTOR_BYTES + index as u64;
            let content = bytes.try_into().expect("whole sectors");
            if is_durable {
                file.cached.remove(&sector);
                file.durable.insert(sector, content);
            } else {
                file.cached.insert(sector, content);
            }
        }
    }
}

fn number(fd: &Fd) -> u32 {
    let Fd::Virtual(number) = fd else { unreachable!("all files are virtual") };
    *number
}

impl VirtualFiles for Files {
    fn submit(&mut self, now: u64, op: Op) -> (u64, OpOutcome) {
        let mut outcome = OpOutcome { result: Ok(0), buf: None, bufs: Vec::new() };
        match op {
            Op::Read { fd, offset, mut buf } => {
                self.read(number(&fd), offset, &mut buf);
                outcome.result = Ok(buf.len() as u32);
                outcome.buf = Some(buf);
            }
            Op::ReadVectored { fd, mut offset, mut bufs } => {
                let begin = offset;
                for buf in &mut bufs {
                    self.read(number(&fd), offset, buf);
                    offset += buf.len() as u64;
                }
                outcome.result = Ok((offset - begin) as u32);
                outcome.bufs = bufs;
            }
            Op::Write { fd, offset, data, dsync } => {
                let mut bytes = vec![0; data.len()];
                data.copy_to(0, &mut bytes);
                self.write(number(&fd), offset, &bytes, dsync);
                outcome.result = Ok(bytes.len() as u32);
            }
            Op::Sync { fd } => outcome.result = self.sync(number(&fd)),
            Op::Allocate { fd, offset, bytes, .. } => {
                self.write(number(&fd), offset, &vec![0; bytes as usize], false);
            }
            other => unreachable!("nobody asks for {other:?}"),
        }
        (now, outcome)
    }
}

/// What the volume stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    ModelledDrive,
    ArrayOfFiles,
    ArrayOfModelledDrives,
    MirrorOfModelledDrives,
}

fn file(handle: &Handle, number: u32) -> FileDevice {
    FileDevice::over(handle.clone(), Fd::Virtual(number), Limits::plain(FILE_BYTES))
}

fn modelled(handle: &Handle, number: u32) -> Leaf {
    let profile = Profile::find("ssd-sata").expect("it is known");
    let model = ModelDevice::new(handle.clone(), profile, file(handle, number));
    Leaf::new(handle, LeafKind::ModelOverFile(Box::new(model)))
}

async fn array(
    handle: &Handle,
    (level, consistency): (Level, Consistency),
    leaf: impl Fn(u32) -> Leaf,
) -> Drive {
    let options = CreateOptions {
        name: "box".to_owned(),
        level,
        layout: Layout::default(),
        chunk_bytes: 16 * KIB,
        consistency,
        integrity: Integrity::None,
        uuid: [0xa5; 16],
        member_uuids: vec![[1; 16], [2; 16]],
    };
    let members = vec![leaf(0), leaf(1)];
    Drive::origin_array(Array::create(handle, &options, members).await.expect("an array"))
}

impl Below {
    async fn open(self, handle: &Handle) -> Drive {
        match self {
            Self::ModelledDrive => Drive::origin(modelled(handle, 0)),
            Self::ArrayOfFiles => {
                array(handle, STRIPED, |number| {
                    Leaf::new(handle, LeafKind::File(file(handle, number)))
                })
                .await
            }
            Self::ArrayOfModelledDrives => {
                array(handle, STRIPED, |number| modelled(handle, number)).await
            }
            Self::MirrorOfModelledDrives => {
                array(handle, MIRRORED, |number| modelled(handle, number)).await
            }
        }
    }

    /// Runs a test of a volume over this whose lines are 1, durably.
    fn with_volume<F: Future<Output = ()> + 'static>(
        self,
        test: impl FnOnce(Handle, Volume<Drive>, Files) -> F + 'static,
    ) {
        let files = Files::default();
        let mut executor = Executor::in_virtual_time(files.clone());
        let handle = executor.handle();
        executor.block_on(async move {
            let volume = Volume::plain(&handle, self.open(&handle).await);
            write_all(&volume, 1).await;
            volume.flush().await.expect("the drives work");
            test(handle.clone(), volume, files).await;
        });
    }
}

async fn write_all(volume: &Volume<Drive>, byte: u8) {
    for line in 0..LINES {
        write(volume, line, byte).await.expect("a write works");
    }
}

async fn check_all(volume: &Volume<Drive>, byte: u8) {
    for line in 0..LINES {
        assert_eq!(read(volume, line).await, Ok(byte), "line {line}");
    }
}

#[test]
fn a_cache_writes_back_what_a_failed_flush_below_has_dropped() {
    for below in [Below::ModelledDrive, Below::ArrayOfFiles, Below::ArrayOfModelledDrives] {
        below.with_volume(move |handle, volume, files| async move {
            let ssd = Drive::ssd(Leaf::new(&handle, LeafKind::Memory(MemoryDevice::new(8 * MIB))));
            let format = FormatOptions {
                line_size: LineSize::DEFAULT,
                policy: PolicyKind::Lru,
                uuid: [7; 16],
            };
            let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
            let options = OpenOptions::with(settings);
            volume.attach_new(ssd, &format, options).await.expect("the SSD takes a cache");
            write_all(&volume, 2).await;
            volume.flush().await.expect("the SSD has it");
            files.fail_flushes(1);
            for tries in 0.. {
                if volume.drain().await.is_ok() {
                    break;
                }
                assert!(tries < 10, "{below:?}: no flush succeeds any more");
                handle.sleep(SECOND_NS).await;
            }
            assert!(!files.are_any_failing(), "{below:?}: nobody has flushed");
            check_all(&volume, 2).await;
            volume.detach(true).await.expect("all is written back");
            files.lose_unflushed();
            check_all(&volume, 2).await;
        });
    }
}

#[test]
fn a_plain_volume_over_an_array_tells_once_of_what_a_failed_flush_has_dropped() {
    for below in [Below::ArrayOfFiles, Below::ArrayOfModelledDrives] {
        below.with_volume(move |_, volume, files| async move {
            write_all(&volume, 2).await;
            files.fail_flushes(1);
            assert_eq!(volume.flush().await, Err(IoError::Medium), "{below:?}");
            write_all(&volume, 3).await;
            volume.flush().await.unwrap_or_else(|error| panic!("{below:?}: {error}"));
            files.lose_unflushed();
            check_all(&volume, 3).await;
        });
    }
}

#[test]
fn a_flush_that_all_members_of_an_array_with_a_journal_fail_costs_clients_nothing() {
    Below::MirrorOfModelledDrives.with_volume(|handle, volume, files| async move {
        files.fail_flushes(2);
        let mut byte = 1;
        while files.are_any_failing() {
            byte += 1;
            assert!(byte < 200, "nobody has flushed");
            write_all(&volume, byte).await;
            volume.flush().await.expect("the journal has it");
        }
        // The array has failed, and replays its journal.
        handle.sleep(60 * SECOND_NS).await;
        check_all(&volume, byte).await;
        write_all(&volume, byte + 1).await;
        volume.flush().await.expect("the array serves again");
        check_all(&volume, byte + 1).await;
    });
}
