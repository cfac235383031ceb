//! The FUSE protocol without a kernel: requests as the kernel writes them, and the bytes of the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use voltier_block::{Durability, Prng};
use voltier_export::fuse::abi::{self, InHeader, OutHeader, fattr, fopen, init, opcode, seek};
use voltier_export::fuse::{
    Action, Agreed, FileFacts, Reply, Request, Session, TRANSFER_BYTES_MAX,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SIZE_BYTES: u64 = 1 << 20;
/// Of a request that the kernel sends again.
const RESENT: u64 = 1 << 63;

fn facts() -> FileFacts {
    FileFacts {
        size_bytes: SIZE_BYTES,
        preferred_bytes: 4096,
        read_only: false,
        can_punch: true,
        mode: 0o640,
        owner: (7, 8),
        dated: (1000, 5),
    }
}

fn read_only() -> FileFacts {
    FileFacts { read_only: true, ..facts() }
}

/// A session whose INIT was answered, and its count of open handles.
fn session_of(file: FileFacts) -> (Session, Arc<AtomicU64>) {
    let handles = Arc::<AtomicU64>::default();
    let agreed = Some(Agreed { minor: 40, flags: 0 });
    (Session::new(file, agreed, handles.clone()), handles)
}

/// A request as the kernel writes it: its structure, and what follows that.
fn frame(kind: u32, unique: u64, what: &(impl IntoBytes + Immutable), more: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + what.as_bytes().len() + more.len()) as u32;
    let header = InHeader { len, opcode: kind, unique, nodeid: abi::ROOT, ..InHeader::default() };
    [header.as_bytes(), what.as_bytes(), more].concat()
}

const NOTHING: [u8; 0] = [];

/// Hands a request over as a vectored read brings it.
fn give(session: &mut Session, bytes: &[u8]) -> Action {
    let (head, body) = bytes.split_at(bytes.len().min(abi::WRITE_HEAD_BYTES));
    session.request(head, body)
}

fn ask(session: &mut Session, kind: u32, what: &(impl IntoBytes + Immutable)) -> Action {
    give(session, &frame(kind, 77, what, &[]))
}

/// What a good answer says.
fn said<T: FromBytes>(action: Action) -> T {
    let Action::Reply(reply) = action else { panic!("no answer: {action:?}") };
    let (header, what) = OutHeader::read_from_prefix(reply.bytes()).unwrap();
    assert_eq!((header.len as usize, header.error), (reply.bytes().len(), 0));
    assert_eq!(header.unique, 77);
    T::read_from_bytes(what).expect("an answer of the right length")
}

fn refused(action: Action) -> Errno {
    let (Action::Reply(reply) | Action::End(Some(reply))) = action else {
        panic!("no answer: {action:?}")
    };
    let header = OutHeader::read_from_bytes(reply.bytes()).expect("an error says no more");
    assert_eq!(header.len, 16);
    Errno::from_raw_os_error(-header.error)
}

fn served(action: Action) -> Request {
    let Action::Serve(77, request) = action else { panic!("not served: {action:?}") };
    request
}

fn asked(major: u32, minor: u32, flags: u64) -> abi::InitIn {
    let (flags, flags2) = (flags as u32, (flags >> 32) as u32);
    abi::InitIn { major, minor, max_readahead: 131_072, flags, flags2, ..abi::InitIn::default() }
}

fn fresh() -> Session {
    Session::new(facts(), None, Arc::default())
}

#[test]
fn init_agrees_on_what_both_can_do() {
    let mut session = fresh();
    assert_eq!(session.agreed(), None);
    assert_eq!(refused(ask(&mut session, opcode::GETATTR, &NOTHING)), Errno::IO);
    let every: u64 = u64::MAX;
    let answer: abi::InitOut = said(ask(&mut session, opcode::INIT, &asked(7, 45, every)));
    let flags = init::ASYNC_READ
        | init::ATOMIC_O_TRUNC
        | init::BIG_WRITES
        | init::ASYNC_DIO
        | init::MAX_PAGES
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP
        | init::HAS_RESEND;
    assert_eq!(u64::from(answer.flags) | u64::from(answer.flags2) << 32, flags);
    assert_eq!((answer.major, answer.minor, answer.max_readahead), (7, 40, 131_072));
    assert_eq!((answer.max_background, answer.congestion_threshold), (256, 192));
    assert_eq!((answer.max_write, answer.max_pages, answer.time_gran), (1 << 20, 256, 1));
    assert_eq!(session.agreed(), Some(Agreed { minor: 45, flags }));
    assert_eq!(refused(ask(&mut session, opcode::INIT, &asked(7, 45, every))), Errno::IO);

    let mut older = fresh();
    let few = init::ASYNC_READ | init::DIRECT_IO_ALLOW_MMAP;
    let answer: abi::InitOut = said(ask(&mut older, opcode::INIT, &asked(7, 36, few)));
    assert_eq!(
        (u64::from(answer.flags), answer.flags2),
        (init::ASYNC_READ, 0),
        "without INIT_EXT the other half means nothing"
    );
}

#[test]
fn versions_that_cannot_be_served_are_refused_and_newer_ones_asked_again() {
    let mut session = fresh();
    let answer: abi::InitOut = said(ask(&mut session, opcode::INIT, &asked(8, 1, 0)));
    assert_eq!((answer.major, session.agreed()), (7, None));
    let _: abi::InitOut = said(ask(&mut session, opcode::INIT, &asked(7, 40, 0)));
    for (major, minor) in [(7, 35), (6, 99)] {
        let action = ask(&mut fresh(), opcode::INIT, &asked(major, minor, 0));
        assert!(matches!(action, Action::End(Some(_))), "{action:?}");
        assert_eq!(refused(action), Errno::PROTO);
    }
}

#[test]
fn the_file_has_its_attributes_and_its_file_system() {
    let (mut session, _) = session_of(facts());
    for kind in [opcode::GETATTR, opcode::SETATTR] {
        let out: abi::AttrOut = said(ask(&mut session, kind, &abi::SetattrIn::default()));
        let attr = out.attr;
        assert_eq!((out.attr_valid, attr.ino, attr.nlink), (3600, 1, 1));
        assert_eq!((attr.size, attr.blocks, attr.blksize), (SIZE_BYTES, 2048, 4096));
        assert_eq!((attr.mode, attr.uid, attr.gid), (0o100_640, 7, 8));
        assert_eq!((attr.atime, attr.mtime, attr.ctime), (1000, 1000, 1000));
        assert_eq!((attr.atimensec, attr.mtimensec, attr.ctimensec), (5, 5, 5));
    }
    let out: abi::StatfsOut = said(ask(&mut session, opcode::STATFS, &NOTHING));
    assert_eq!((out.blocks, out.bsize, out.frsize, out.files), (256, 4096, 4096, 1));
    let (mut session, _) = session_of(read_only());
    let out: abi::AttrOut = said(ask(&mut session, opcode::GETATTR, &[0u64; 2]));
    assert_eq!(out.attr.mode, 0o100_440);
}

#[test]
fn size_and_owner_cannot_be_changed() {
    let (mut session, _) = session_of(facts());
    let mut set = |valid, size| {
        let change = abi::SetattrIn { valid, size, ..abi::SetattrIn::default() };
        ask(&mut session, opcode::SETATTR, &change)
    };
    let _: abi::AttrOut = said(set(fattr::SIZE, SIZE_BYTES));
    assert_eq!(refused(set(fattr::SIZE, SIZE_BYTES + 1)), Errno::FBIG);
    assert_eq!(refused(set(fattr::SIZE, SIZE_BYTES - 1)), Errno::PERM);
    for valid in [fattr::MODE, fattr::UID, fattr::GID] {
        assert_eq!(refused(set(valid, 0)), Errno::PERM);
    }
}

#[test]
fn opens_and_releases_are_counted() {
    let (mut session, handles) = session_of(facts());
    let open = |flags: OFlags| abi::OpenIn { flags: flags.bits(), open_flags: 0 };
    for flags in [OFlags::RDONLY, OFlags::RDWR | OFlags::DIRECT, OFlags::WRONLY | OFlags::TRUNC] {
        let out: abi::OpenOut = said(ask(&mut session, opcode::OPEN, &open(flags)));
        let how = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH;
        assert_eq!((out.fh, out.open_flags), (0, how));
    }
    assert_eq!(handles.load(Ordering::Relaxed), 3);
    let _: [u8; 0] = said(ask(&mut session, opcode::FLUSH, &[0u64; 3]));
    for left in [2, 1, 0, 0] {
        let _: [u8; 0] = said(ask(&mut session, opcode::RELEASE, &[0u64; 3]));
        assert_eq!(handles.load(Ordering::Relaxed), left);
    }
    let (mut session, handles) = session_of(read_only());
    assert_eq!(refused(ask(&mut session, opcode::OPEN, &open(OFlags::RDWR))), Errno::ROFS);
    assert_eq!(refused(ask(&mut session, opcode::OPEN, &open(OFlags::WRONLY))), Errno::ROFS);
    let _: abi::OpenOut = said(ask(&mut session, opcode::OPEN, &open(OFlags::RDONLY)));
    assert_eq!(handles.load(Ordering::Relaxed), 1);
}

#[test]
fn reads_end_with_the_device() {
    let (mut session, _) = session_of(facts());
    let mut read = |offset, size| {
        let asked = abi::ReadIn { offset, size, ..abi::ReadIn::default() };
        ask(&mut session, opcode::READ, &asked)
    };
    assert_eq!(served(read(5, 1000)), Request::Read { offset: 5, length: 1000 });
    let whole = Request::Read { offset: 0, length: SIZE_BYTES };
    assert_eq!(served(read(0, TRANSFER_BYTES_MAX)), whole);
    let offset = SIZE_BYTES - 10;
    assert_eq!(served(read(offset, 100)), Request::Read { offset, length: 10 });
    for (offset, size) in [(SIZE_BYTES, 1), (u64::MAX, 100), (0, 0)] {
        let _: [u8; 0] = said(read(offset, size));
    }
    assert_eq!(refused(read(0, TRANSFER_BYTES_MAX + 1)), Errno::INVAL);
}

fn write(offset: u64, size: u32, flags: OFlags, data: &[u8]) -> Vec<u8> {
    let asked = abi::WriteIn { offset, size, flags: flags.bits(), ..abi::WriteIn::default() };
    frame(opcode::WRITE, 77, &asked, data)
}

#[test]
fn writes_end_with_the_device_and_say_when_they_are_done() {
    let (mut session, _) = session_of(facts());
    let data = [1; 100];
    for (flags, durability) in [
        (OFlags::RDWR, Durability::Cached),
        (OFlags::RDWR | OFlags::DSYNC, Durability::Durable),
        (OFlags::WRONLY | OFlags::SYNC, Durability::Durable),
    ] {
        let request = served(give(&mut session, &write(7, 100, flags, &data)));
        assert_eq!(request, Request::Write { offset: 7, length: 100, durability });
    }
    let offset = SIZE_BYTES - 10;
    let request = served(give(&mut session, &write(offset, 100, OFlags::RDWR, &data)));
    let durability = Durability::Cached;
    assert_eq!(request, Request::Write { offset, length: 10, durability });
    for offset in [SIZE_BYTES, u64::MAX] {
        let beyond = give(&mut session, &write(offset, 100, OFlags::RDWR, &data));
        assert_eq!(refused(beyond), Errno::NOSPC);
    }
    let out: abi::WriteOut = said(give(&mut session, &write(SIZE_BYTES, 0, OFlags::RDWR, &[])));
    assert_eq!(out.size, 0);
    for size in [0, 99, 101] {
        let action = give(&mut session, &write(0, size, OFlags::RDWR, &data));
        assert_eq!(refused(action), Errno::INVAL, "the data are not as long as it says");
    }
}

#[test]
fn holes_zeroes_and_searches() {
    let (mut session, _) = session_of(facts());
    let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    let keep = FallocateFlags::KEEP_SIZE;
    let allocate = |mode: FallocateFlags, offset, length| abi::FallocateIn {
        offset,
        length,
        mode: mode.bits(),
        ..abi::FallocateIn::default()
    };
    let mut ask_for = |mode, offset, length| {
        ask(&mut session, opcode::FALLOCATE, &allocate(mode, offset, length))
    };
    let zeroed = |offset, length, keep_space| Request::Zero { offset, length, keep_space };
    assert_eq!(served(ask_for(punch | keep, 3, 9)), zeroed(3, 9, false));
    assert_eq!(served(ask_for(zero, 3, 9)), zeroed(3, 9, true));
    assert_eq!(served(ask_for(punch | keep, SIZE_BYTES - 4, 9)), zeroed(SIZE_BYTES - 4, 4, false));
    let _: [u8; 0] = said(ask_for(FallocateFlags::empty(), 0, SIZE_BYTES));
    let _: [u8; 0] = said(ask_for(punch | keep, SIZE_BYTES, 9));
    let _: [u8; 0] = said(ask_for(punch | keep, u64::MAX, u64::MAX));
    assert_eq!(refused(ask_for(zero, SIZE_BYTES - 4, 9)), Errno::FBIG);
    assert_eq!(refused(ask_for(zero, u64::MAX, 2)), Errno::FBIG);
    assert_eq!(refused(ask_for(FallocateFlags::COLLAPSE_RANGE, 0, 4096)), Errno::OPNOTSUPP);

    let mut seek_for = |whence, offset| {
        let asked = abi::LseekIn { offset, whence, ..abi::LseekIn::default() };
        ask(&mut session, opcode::LSEEK, &asked)
    };
    assert_eq!(said::<abi::LseekOut>(seek_for(seek::DATA, 5)).offset, 5);
    assert_eq!(said::<abi::LseekOut>(seek_for(seek::HOLE, 5)).offset, SIZE_BYTES);
    assert_eq!(refused(seek_for(seek::DATA, SIZE_BYTES)), Errno::NXIO);
    assert_eq!(refused(seek_for(seek::HOLE, u64::MAX)), Errno::NXIO);
    assert_eq!(refused(seek_for(0, 5)), Errno::INVAL);
    assert_eq!(served(ask(&mut session, opcode::FSYNC, &[0u64; 2])), Request::Flush);

    let (mut session, _) = session_of(FileFacts { can_punch: false, ..facts() });
    let action = ask(&mut session, opcode::FALLOCATE, &allocate(punch | keep, 0, 4096));
    assert_eq!(refused(action), Errno::OPNOTSUPP, "zeroes are data there");
}

#[test]
fn what_has_no_answer_gets_none_and_what_is_unknown_gets_one() {
    let (mut session, _) = session_of(facts());
    let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT, opcode::NOTIFY_REPLY];
    for kind in silent {
        assert!(matches!(ask(&mut session, kind, &[0u64; 2]), Action::Nothing));
    }
    // LOOKUP, GETXATTR, ACCESS, IOCTL, and numbers that nobody has given out.
    for kind in [0, 1, 22, 34, 39, 4096, u32::MAX] {
        assert_eq!(refused(ask(&mut session, kind, &[0u64; 2])), Errno::NOSYS);
    }
    let ended = ask(&mut session, opcode::DESTROY, &NOTHING);
    assert!(matches!(ended, Action::End(Some(_))), "{ended:?}");
}

#[test]
fn a_request_that_was_sent_again_is_answered_by_its_whole_number() {
    let (mut session, _) = session_of(facts());
    let unique = RESENT | 0x1234_5678_9abc;
    let asked = abi::ReadIn { size: 512, ..abi::ReadIn::default() };
    let action = give(&mut session, &frame(opcode::READ, unique, &asked, &[]));
    assert!(matches!(action, Action::Serve(it, _) if it == unique), "{action:?}");
    let replies = [
        Reply::done(unique).bytes().to_vec(),
        Reply::error(unique, Errno::IO).bytes().to_vec(),
        Reply::written(unique, 512).bytes().to_vec(),
        Reply::before_data(unique, 512).as_bytes().to_vec(),
    ];
    for (reply, (len, error)) in replies.iter().zip([(16, 0), (16, -5), (24, 0), (528, 0)]) {
        let (header, _) = OutHeader::read_from_prefix(reply).unwrap();
        assert_eq!((header.len, header.error, header.unique), (len, error, unique));
    }
}

#[test]
fn requests_that_are_cut_short_are_answered_as_long_as_they_have_a_number() {
    let (mut session, _) = session_of(facts());
    let setattr = abi::SetattrIn::default();
    let whole = frame(opcode::SETATTR, 77, &setattr, &[]);
    for bytes in 0..whole.len() {
        let mut cut = whole[..bytes].to_vec();
        let action = give(&mut session, &cut);
        if bytes < size_of::<InHeader>() {
            assert!(matches!(action, Action::End(None)), "{action:?}");
            continue;
        }
        assert_eq!(refused(action), Errno::IO, "shorter than it says");
        cut[..4].copy_from_slice(&(bytes as u32).to_ne_bytes());
        assert_eq!(refused(give(&mut session, &cut)), Errno::INVAL, "shorter than its structure");
    }
    let _: abi::AttrOut = said(give(&mut session, &whole));
}

#[test]
fn no_bytes_make_a_session_panic_or_leave_the_device() {
    let mut prng = Prng::new(3);
    for round in 0..20_000 {
        let agreed = (round % 8 > 0).then_some(Agreed { minor: 40, flags: 0 });
        let mut session = Session::new(facts(), agreed, Arc::default());
        for _ in 0..3 {
            let mut bytes = vec![0; prng.below(200) as usize];
            prng.fill(&mut bytes);
            if bytes.len() >= 8 && !prng.one_in(4) {
                let (len, kind) = (bytes.len() as u32, prng.below(50) as u32);
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
            }
            match give(&mut session, &bytes) {
                Action::Serve(
                    _,
                    Request::Read { offset, length } | Request::Zero { offset, length, .. },
                ) => {
                    assert!(length > 0 && offset + length <= SIZE_BYTES);
                }
                Action::Serve(_, Request::Write { offset, length, .. }) => {
                    assert!(length > 0 && offset + length as u64 <= SIZE_BYTES);
                    assert!(abi::WRITE_HEAD_BYTES + length <= bytes.len());
                }
                _ => {}
            }
        }
    }
}
