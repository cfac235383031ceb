//! The FUSE file, mounted for real: needs /dev/fuse and root, and says so where they are missing.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;
use voltier_block::{
    BlockDevice, Buf, Durability, IoResult, Lba, Limits, MIB, Payload, Prng, SectorRange,
};
use voltier_export::fuse::{FileExport, FuseFile};
use voltier_export::{ByteDevice, ExportError, FileAccess};
use voltier_ring::Core;

use crate::support::memory::Memory;

const SIZE_BYTES: u64 = 64 * MIB;

/// Dropped in this order: the mount, then its folder, then the core that serves it.
struct Mounted {
    file: FuseFile,
    folder: tempfile::TempDir,
    core: Core,
}

fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root()
        && OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !may {
        println!("skipped: needs root and /dev/fuse");
    }
    may
}

fn export(core: &Core, limits: Limits) -> FileExport {
    let open = |handle| async move {
        FileExport::open(&handle, Rc::new(ByteDevice::new(Rc::new(Memory::new(limits)))))
    };
    core.remote().call(open).unwrap()
}

fn mount(limits: Limits) -> Option<Mounted> {
    if !may_mount() {
        return None;
    }
    let core = Core::start("export").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = FuseFile::mount(
        export(&core, limits),
        &folder.path().join("volume.img"),
        FileAccess::default(),
    )
    .unwrap();
    Some(Mounted { file, folder, core })
}

impl Mounted {
    fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path()).unwrap()
    }
}

fn plain() -> Limits {
    Limits::plain(SIZE_BYTES)
}

#[test]
fn the_file_has_the_devices_size_and_goes_away_without_a_trace() {
    let Some(mut mounted) = mount(plain()) else { return };
    let facts = fs::metadata(mounted.path()).unwrap();
    assert!(facts.is_file());
    assert_eq!((facts.len(), facts.blksize(), facts.mode() & 0o777), (SIZE_BYTES, 4096, 0o600));
    mounted.file.stop().unwrap();
    assert!(!mounted.path().exists());
    assert_eq!(mounted.file.counters().connections_open, 0);
}

#[test]
fn bytes_written_anywhere_are_read_back() {
    let Some(mounted) = mount(plain()) else { return };
    let file = mounted.open();
    let mut prng = Prng::new(1);
    let mut model = vec![0; 4 << 20];
    for _ in 0..300 {
        let offset = prng.below(model.len() as u64);
        let most = *prng.pick(&[1, 100, 4096, 200_000, 3_000_000]);
        let length = (1 + prng.below(most)).min(model.len() as u64 - offset);
        let range = offset as usize..(offset + length) as usize;
        if prng.one_in(2) {
            prng.fill(&mut model[range.clone()]);
            file.write_all_at(&model[range], offset).unwrap();
        } else {
            let mut data = vec![0; length as usize];
            file.read_exact_at(&mut data, offset).unwrap();
            assert!(data == model[range]);
        }
    }
    file.sync_all().unwrap();
    assert_eq!(mounted.file.counters().flushes, 1);
}

#[test]
fn the_size_is_fixed_and_the_end_is_the_end() {
    let Some(mounted) = mount(plain()) else { return };
    let file = mounted.open();
    let errno =
        |result: std::io::Result<()>| result.err().and_then(|error| Errno::from_io_error(&error));
    assert_eq!(errno(file.set_len(SIZE_BYTES)), None);
    assert_eq!(errno(file.set_len(SIZE_BYTES - 1)), Some(Errno::PERM));
    assert_eq!(errno(file.set_len(SIZE_BYTES + 1)), Some(Errno::FBIG));
    assert_eq!(errno(file.write_all_at(b"x", SIZE_BYTES)), Some(Errno::NOSPC));
    assert_eq!(file.write_at(&[1; 100], SIZE_BYTES - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut [0; 100], SIZE_BYTES - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut [0; 100], SIZE_BYTES).unwrap(), 0);
    // As for a block device, truncation at open means nothing, so that copying onto it works.
    drop(File::create(mounted.path()).unwrap());
    assert_eq!(fs::metadata(mounted.path()).unwrap().len(), SIZE_BYTES);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(5)), Ok(5));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(5)), Ok(SIZE_BYTES));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(SIZE_BYTES)), Err(Errno::NXIO));
}

#[test]
fn holes_and_zeroes_are_exact_to_the_byte() {
    let Some(mounted) = mount(plain()) else { return };
    let file = mounted.open();
    let mut model = vec![0xaa; 1 << 20];
    file.write_all_at(&model, 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (mode, offset, length) in [
        (punch, 100, 5),
        (punch, 1000, 100_000),
        (FallocateFlags::ZERO_RANGE, 200_000, 4096),
        (FallocateFlags::ZERO_RANGE, 300_001, 511),
    ] {
        fallocate(&file, mode, offset, length).unwrap();
        model[offset as usize..(offset + length) as usize].fill(0);
    }
    let mut data = vec![0; model.len()];
    file.read_exact_at(&mut data, 0).unwrap();
    assert!(data == model);
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, SIZE_BYTES), Ok(()));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, SIZE_BYTES + 1), Err(Errno::FBIG));
    let collapse = FallocateFlags::COLLAPSE_RANGE;
    assert_eq!(fallocate(&file, collapse, 0, 4096), Err(Errno::OPNOTSUPP));
}

/// A loop device makes holes of discards, and mkfs and fstrim discard all that is free.
#[test]
fn holes_are_refused_where_zeroes_are_data() {
    let Some(mounted) = mount(Limits { cheap_zeroes: false, ..plain() }) else { return };
    let file = mounted.open();
    let written = vec![0xaa; 8192];
    file.write_all_at(&written, 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&file, punch, 0, SIZE_BYTES), Err(Errno::OPNOTSUPP));
    let mut data = vec![0; 8192];
    file.read_exact_at(&mut data, 0).unwrap();
    assert!(data == written, "nothing is changed");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap();
    file.read_exact_at(&mut data, 0).unwrap();
    assert!(data[..4096] == [0; 4096] && data[4096..] == written[4096..]);
}

#[test]
fn a_read_only_device_is_a_read_only_file() {
    let Some(mounted) = mount(Limits { read_only: true, ..plain() }) else { return };
    assert!(OpenOptions::new().write(true).open(mounted.path()).is_err());
    let file = File::open(mounted.path()).unwrap();
    file.read_exact_at(&mut [0; 512], 0).unwrap();
}

#[test]
fn direct_io_needs_no_alignment_beyond_the_callers() {
    let Some(mounted) = mount(Limits { block_bytes: 4096, ..plain() }) else { return };
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(direct)
        .open(mounted.path())
        .unwrap();
    file.write_all_at(&[9; 512], 512).unwrap();
    let mut data = [1; 2048];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!((data[511], data[512], data[1023], data[1024]), (0, 9, 9, 0));
}

#[test]
fn requests_fail_once_the_core_is_gone() {
    let Some(mounted) = mount(plain()) else { return };
    let open = mounted.open();
    let Mounted { mut file, folder, core } = mounted;
    drop(core);
    let failed = open.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(Errno::from_io_error(&failed), Some(Errno::NOTCONN));
    drop(open);
    file.stop().unwrap();
    drop(folder);
}

#[test]
fn unfit_paths_are_refused_and_left_alone() {
    if !may_mount() {
        return;
    }
    let core = Core::start("export").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mount = |path: &Path| FuseFile::mount(export(&core, plain()), path, FileAccess::default());
    let unfit = |path: &Path| matches!(mount(path), Err(ExportError::MountPointUnfit(..)));
    let data = folder.path().join("data");
    fs::write(&data, "precious").unwrap();
    assert!(unfit(&data) && unfit(folder.path()));
    assert_eq!(fs::read(&data).unwrap(), b"precious");
    let missing = folder.path().join("no/folder/here");
    assert!(matches!(mount(&missing), Err(ExportError::MountPoint(..))));

    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let mut file = mount(&empty).unwrap();
    assert!(unfit(&empty));
    let open = File::open(&empty).unwrap();
    let refused = file.stop();
    assert!(matches!(refused, Err(ExportError::FileInUse(_))), "{refused:?}");
    assert_eq!(fs::metadata(&empty).unwrap().len(), SIZE_BYTES);
    drop(open);
    file.stop().unwrap();
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);
}

#[test]
fn a_mount_whose_server_is_gone_is_replaced() {
    let Some(mounted) = mount(plain()) else { return };
    let path = mounted.path();
    let Mounted { file, folder, core } = mounted;
    // Aborting the connection is what the kernel does when the server's process dies.
    let control = tempfile::tempdir().unwrap();
    let control_path = control.path().to_str().unwrap().to_owned();
    if run("mount", &["-t", "fusectl", "none", &control_path]).is_none() {
        return;
    }
    let unmount = Undo("umount", vec![control_path]);
    let device = rustix::fs::minor(fs::metadata(&path).unwrap().dev());
    fs::write(control.path().join(device.to_string()).join("abort"), "1").unwrap();
    drop(unmount);
    assert!(File::open(&path).is_err());
    let mut again = FuseFile::mount(export(&core, plain()), &path, FileAccess::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE_BYTES);
    again.stop().unwrap();
    drop((file, folder));
}

/// Runs a command; `None`, with a word, where it is not installed.
fn run(name: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(name).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {name} is not installed");
            None
        }
        output => {
            let output = output.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {arguments:?}: {errors}");
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
    }
}

struct Undo(&'static str, Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let done = Command::new(self.0).args(&self.1).status();
        assert!(done.is_ok_and(|status| status.success()), "{} {:?}", self.0, self.1);
    }
}

#[test]
fn a_file_system_on_a_loop_device_over_it_keeps_its_files() {
    let Some(mounted) = mount(plain()) else { return };
    let path = mounted.path();
    let path = path.to_str().unwrap();
    if run("losetup", &["--version"]).is_none() || run("mkfs.ext4", &["-V"]).is_none() {
        return;
    }
    for direct in ["--direct-io=off", "--direct-io=on"] {
        let Ok(output) = Command::new("losetup").args(["-f", "--show", direct, path]).output()
        else {
            return;
        };
        if !output.status.success() {
            println!("skipped: no loop device to be had");
            return;
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let _detach = Undo("losetup", vec!["-d".to_owned(), device.clone()]);
        run("mkfs.ext4", &["-q", "-F", &device]);
        let tree = mounted.folder.path().join("tree");
        fs::create_dir_all(&tree).unwrap();
        let tree_text = tree.to_str().unwrap().to_owned();
        let mut data = vec![0; 5 << 20];
        Prng::new(5).fill(&mut data);
        for round in 0..2 {
            run("mount", &[&device, &tree_text]);
            let _unmount = Undo("umount", vec![tree_text.clone()]);
            if round == 0 {
                fs::write(tree.join("file"), &data).unwrap();
            }
            assert!(fs::read(tree.join("file")).unwrap() == data);
        }
        run("e2fsck", &["-fn", &device]);
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(mounted) = mount(plain()) else { return };
    let name = format!("--filename={}", mounted.path().display());
    for engine in ["--ioengine=psync", "--ioengine=libaio"] {
        let job = ["--name=verify", engine, "--direct=1", "--rw=randwrite", "--bsrange=512-128k"];
        let rest = ["--iodepth=16", "--size=16M", "--verify=crc32c", &name];
        let arguments: Vec<&str> = job.iter().chain(&rest).copied().collect();
        if run("fio", &arguments).is_none() {
            return;
        }
    }
    assert!(mounted.file.counters().failures == 0);
}

#[test]
fn a_file_that_somebody_unmounted_is_not_reachable_and_ends_without_a_wait() {
    let Some(mut mounted) = mount(plain()) else { return };
    assert!(mounted.file.is_reachable());
    let path = mounted.path();
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(!mounted.file.is_reachable());
    mounted.file.stop().unwrap();
    assert_eq!(mounted.file.counters().connections_open, 0);
}

/// Goal: nobody waits for users of a file that its path does not lead to any more, and they are told.
/// Method: a lazy unmount while the file is open, and another mount over the path.
#[test]
fn users_of_a_file_that_was_unmounted_lazily_keep_it_until_they_are_cut_off() {
    let Some(mut mounted) = mount(plain()) else { return };
    let file = mounted.open();
    let path = mounted.path();
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(!mounted.file.is_reachable());
    assert!(matches!(mounted.file.stop(), Err(ExportError::FileInUse(_))));
    file.write_all_at(b"still there", 0).unwrap();
    mounted.file.cut_off();
    assert!(file.write_all_at(b"cut off", 0).is_err());
}

#[test]
fn what_somebody_mounted_over_the_file_stays_when_the_file_ends() {
    let Some(mut mounted) = mount(plain()) else { return };
    let path = mounted.path();
    let other = mounted.folder.path().join("other");
    fs::write(&other, b"another file").unwrap();
    rustix::mount::mount_bind(&other, &path).unwrap();
    assert!(!mounted.file.is_reachable());
    mounted.file.stop().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"another file");
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// Memory with two bad places: a read of the one never ends, a read of the other panics.
struct Treacherous(Memory);

const HANGS_AT: u64 = MIB;
const PANICS_AT: u64 = 2 * MIB;

impl BlockDevice for Treacherous {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        match at.bytes() {
            HANGS_AT => std::future::pending().await,
            PANICS_AT => panic!("as the test wants it"),
            _ => self.0.read(at, into).await,
        }
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.0.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.0.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.0.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.0.write_zeroes(range, durability).await
    }
}

fn mount_treacherous() -> Option<Mounted> {
    if !may_mount() {
        return None;
    }
    let core = Core::start("export").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let open = |handle| async move {
        let device = Treacherous(Memory::new(plain()));
        FileExport::open(&handle, Rc::new(ByteDevice::new(Rc::new(device))))
    };
    let export = core.remote().call(open).unwrap();
    let path = folder.path().join("volume.img");
    let file = FuseFile::mount(export, &path, FileAccess::default()).unwrap();
    Some(Mounted { file, folder, core })
}

/// A read on a thread of its own that never ends by itself.
fn hanging_read(file: &File) -> mpsc::Receiver<std::io::Result<usize>> {
    let (done, ends) = mpsc::channel();
    let file = file.try_clone().unwrap();
    #[expect(clippy::disallowed_methods, reason = "a read that may never end outlives the test")]
    std::thread::spawn(move || done.send(file.read_at(&mut [0; 512], HANGS_AT)));
    assert!(ends.recv_timeout(Duration::from_millis(100)).is_err(), "it hangs");
    ends
}

#[test]
fn a_panic_of_the_device_fails_all_who_wait_and_all_who_come() {
    let Some(mut mounted) = mount_treacherous() else { return };
    let file = mounted.open();
    let waiting = hanging_read(&file);
    assert!(file.read_at(&mut [0; 512], PANICS_AT).is_err());
    let ended = waiting.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
    assert!(ended.is_err());
    assert!(file.read_at(&mut [0; 512], 0).is_err());
    assert!(File::open(mounted.path()).is_err());
    assert!(!mounted.file.is_reachable());
    mounted.core.remote().call(|_| async {}).expect("the core serves others");
    mounted.file.stop().unwrap();
    assert!(!mounted.path().exists());
}

#[test]
fn a_file_with_a_request_that_hangs_is_cut_off_at_once() {
    let Some(mut mounted) = mount_treacherous() else { return };
    let file = mounted.open();
    let waiting = hanging_read(&file);
    // Others are served meanwhile, and the file is known to be in use.
    file.read_exact_at(&mut [0; 512], 0).unwrap();
    assert!(matches!(mounted.file.stop(), Err(ExportError::FileInUse(_))));
    mounted.file.cut_off();
    let ended = waiting.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
    assert!(ended.is_err());
    assert!(file.read_at(&mut [0; 512], 0).is_err());
    assert!(!mounted.path().exists());
    let core = &mounted.core;
    assert_eq!(core.remote().call(|_| async { 1 }), Ok(1));
}

/// Goal: the core never waits in a read of `/dev/fuse`. Method: readers that are killed while their requests
/// are on the way, until one of these requests has gone between the wake-up and the read.
#[test]
fn callers_that_are_killed_take_nobody_along() {
    let Some(mounted) = mount(plain()) else { return };
    let input = format!("if={}", mounted.path().display());
    for round in 0..60 {
        let mut reader = Command::new("dd");
        reader.args([&input, "of=/dev/null", "bs=4k", "iflag=direct", "status=none"]);
        let mut readers: Vec<_> = (0..3).map(|_| reader.spawn().unwrap()).collect();
        let (done, ends) = mpsc::channel::<()>();
        // The time that passes before the kill changes from round to round.
        let _ = ends.recv_timeout(Duration::from_micros(1500 + 97 * round));
        drop(done);
        for reader in &mut readers {
            reader.kill().unwrap();
            reader.wait().unwrap();
        }
        let answer =
            mounted.core.remote().ask(Duration::from_secs(20), move |_| async move { round });
        assert_eq!(answer, Ok(round));
    }
    mounted.open().read_exact_at(&mut [0; 4096], 0).unwrap();
}
