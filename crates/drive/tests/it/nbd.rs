//! An export of an NBD server as a drive: servers that break, die, change and lie.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, MIB,
    Payload, SectorRange,
};
use voltier_drive::{Connecting, NbdDevice, NbdNews};
use voltier_nbd::{ExportUri, connect, proto};
use voltier_ring::{Executor, Handle, JoinHandle, join_all};

use crate::support::fake_server::{ALL_FLAGS, Conduct, FakeServer};

const BYTES: u64 = 4 * MIB;
const PATIENCE: Duration = Duration::from_secs(5);
const MS: u64 = 1_000_000;

type News = Rc<RefCell<Vec<NbdNews>>>;

fn connecting(uri: &ExportUri) -> Connecting {
    // The server has threads of its own, and answers at once.
    let outcome = connect(uri, 4, PATIENCE).map_err(|error| error.to_string());
    Box::pin(async move { outcome.map(Into::into) })
}

/// A device over the server, and what it says for the log.
pub(crate) fn open(handle: &Handle, uri: &ExportUri) -> (NbdDevice, News) {
    let (own, news) = (uri.clone(), News::default());
    let told = news.clone();
    let connected = connect(uri, 4, PATIENCE).unwrap();
    let device = NbdDevice::new(
        handle,
        connected.into(),
        move || connecting(&own),
        move |news| told.borrow_mut().push(news),
    );
    (device.unwrap(), news)
}

fn run<T: 'static>(test: impl AsyncFnOnce(Handle) -> T + 'static) -> T {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    executor.block_on(async move { test(handle).await })
}

fn block(byte: u8) -> Payload {
    Payload::from(Bytes::copy_of(&[byte; 4096]))
}

async fn write(device: &NbdDevice, sector: u64, byte: u8, durability: Durability) {
    device.write(Lba(sector), block(byte), durability).await.unwrap();
}

async fn first_byte(device: &NbdDevice, sector: u64) -> u8 {
    let read = device.read(Lba(sector), Buf::new(4096)).await.unwrap();
    assert!(read.iter().all(|byte| *byte == read[0]));
    read[0]
}

#[test]
fn the_limits_are_those_of_the_server() {
    let limits = |conduct: Conduct, bytes| {
        run(async move |handle| {
            let server = FakeServer::start(bytes, conduct);
            let (device, _) = open(&handle, &server.uri);
            (device.limits().clone(), device.unused_tail_bytes(), device.connections())
        })
    };
    let (all, tail, connections) = limits(Conduct::default(), BYTES + 100);
    assert_eq!(
        (all.block_bytes, all.preferred_bytes, all.max_transfer_bytes),
        (512, 4096, 1 << 20)
    );
    assert_eq!((all.bytes(), tail, connections), (BYTES, 100, 4));
    assert!(all.volatile_cache && all.cheap_zeroes && !all.read_only);
    assert_eq!(all.after_discard, AfterDiscard::Anything);
    let flags = proto::FLAG_HAS_FLAGS | proto::FLAG_READ_ONLY | proto::FLAG_ROTATIONAL;
    let blocks = [1024, 1 << 24, u32::MAX];
    let (few, _, connections) = limits(Conduct { flags, blocks, ..Conduct::default() }, BYTES);
    assert_eq!(
        (few.block_bytes, few.preferred_bytes, few.max_transfer_bytes),
        (4096, 1 << 20, 32 << 20)
    );
    assert!(!few.volatile_cache && !few.cheap_zeroes && few.read_only && few.rotational);
    assert_eq!((few.after_discard, connections), (AfterDiscard::Unchanged, 1));
}

#[test]
fn an_export_of_too_large_blocks_or_without_any_is_refused() {
    for (bytes, blocks, words) in [
        (BYTES, [8192, 8192, 1 << 20], "blocks of 8192 bytes"),
        (100, [1, 4096, 4096], "has 100 bytes"),
    ] {
        let server = FakeServer::start(bytes, Conduct { blocks, ..Conduct::default() });
        run(async move |handle| {
            let connected = connect(&server.uri, 1, PATIENCE).unwrap();
            let uri = server.uri.clone();
            let refused =
                NbdDevice::new(&handle, connected.into(), move || connecting(&uri), |_| {});
            let told = refused.err().unwrap().to_string();
            assert!(told.contains(words), "{told}");
        });
    }
}

#[test]
fn a_server_that_dies_takes_nothing_acknowledged_along() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, news) = open(&handle, &server.uri);
        write(&device, 0, 1, Durability::Cached).await;
        device.flush().await.unwrap();
        write(&device, 8, 2, Durability::Cached).await;
        // Durable, and over one that is not: the older one must not come back.
        write(&device, 8, 4, Durability::Durable).await;
        write(&device, 0, 3, Durability::Cached).await;
        device.write_zeroes(SectorRange::new(Lba(16), 8), Durability::Cached).await.unwrap();
        server.state().die();
        let read = [first_byte(&device, 0).await, first_byte(&device, 8).await];
        assert_eq!(read, [3, 4]);
        assert_eq!(server.state().durable[0], 1, "the server had lost it");
        device.flush().await.unwrap();
        assert_eq!(server.state().durable[..4096], [3; 4096], "the flush vouches for it");
        let told = news.borrow().clone();
        assert!(matches!(told[..], [NbdNews::Lost(_), NbdNews::Back(2)]), "{told:?}");
        // All of it is covered now.
        server.state().die();
        assert_eq!(first_byte(&device, 8).await, 4);
        assert_eq!(news.borrow().last(), Some(&NbdNews::Back(0)));
    });
}

#[test]
fn requests_wait_for_a_server_that_is_away_and_end_when_the_device_is_given_up() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, news) = open(&handle, &server.uri);
        let device = Rc::new(device);
        server.state().conduct.is_closed = true;
        server.state().die();
        let own = device.clone();
        let written =
            handle.spawn(async move { own.write(Lba(0), block(7), Durability::Cached).await });
        handle.sleep(300 * MS).await;
        assert!(matches!(news.borrow()[..], [NbdNews::Lost(_), NbdNews::StillLost(_)]));
        server.state().conduct.is_closed = false;
        written.await.unwrap();
        assert_eq!(first_byte(&device, 0).await, 7);
        server.state().conduct.is_closed = true;
        server.state().die();
        let own = device.clone();
        let read = handle.spawn(async move { own.read(Lba(0), Buf::new(512)).await.map(drop) });
        handle.sleep(100 * MS).await;
        device.abandon();
        assert_eq!(read.await, Err(IoError::Gone));
        assert_eq!(device.flush().await, Err(IoError::Gone));
        assert_eq!(device.under_way().count(), 0);
    });
}

#[test]
fn an_export_that_has_changed_gets_nothing_until_it_is_as_it_was() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, news) = open(&handle, &server.uri);
        let device = Rc::new(device);
        write(&device, 0, 1, Durability::Cached).await;
        let narrower = [ALL_FLAGS | proto::FLAG_READ_ONLY, ALL_FLAGS & !proto::FLAG_SEND_FLUSH];
        for (bytes, flags, words) in [
            (BYTES - 512, ALL_FLAGS, "bytes now and had"),
            (BYTES + 512, ALL_FLAGS, "bytes now and had"),
            (BYTES, narrower[0], "read-only now"),
            (BYTES, narrower[1], "takes less than before"),
        ] {
            {
                let mut state = server.state();
                state.durable.resize(bytes as usize, 0);
                state.conduct.flags = flags;
                state.die();
            }
            let own = device.clone();
            let read = handle.spawn(async move { first_byte(&own, 0).await });
            let requests = server.state().requests;
            let is_told = || {
                let said =
                    |news: &NbdNews| matches!(news, NbdNews::StillLost(why) if why.contains(words));
                news.borrow().iter().any(said)
            };
            while !is_told() {
                handle.sleep(MS).await;
            }
            assert_eq!(server.state().requests, requests, "nothing is sent to it");
            {
                let mut state = server.state();
                state.durable.resize(BYTES as usize, 0);
                state.conduct.flags = ALL_FLAGS;
                state.die();
            }
            assert_eq!(read.await, 1);
            news.borrow_mut().clear();
        }
    });
}

#[test]
fn after_a_failed_flush_no_other_one_claims_success_before_the_owner_has_seen_to_it() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, _) = open(&handle, &server.uri);
        write(&device, 0, 1, Durability::Cached).await;
        server.state().conduct.flush_error = 5;
        assert_eq!(device.flush().await, Err(IoError::Medium));
        assert_eq!(device.flush().await, Err(IoError::Medium));
        device.forget_failed_flush();
        assert_eq!(device.flush().await, Ok(()));
    });
}

#[test]
fn a_server_that_lies_is_hung_up_on_and_told_of_in_one_line() {
    let bad_cookie = [&proto::SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &[9; 8]].concat();
    let cases = [
        (vec![0; 16], "wrong number"),
        (bad_cookie, "a reply to no request"),
        (proto::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec(), ""),
    ];
    run(async move |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, news) = open(&handle, &server.uri);
        write(&device, 0, 5, Durability::Cached).await;
        for (instead, words) in cases {
            server.state().conduct.instead = Some(instead);
            if words.is_empty() {
                // A reply that never ends is a server that does not answer.
                let read = handle.timeout(50 * MS, device.read(Lba(0), Buf::new(512))).await;
                assert!(read.is_err());
                continue;
            }
            assert_eq!(first_byte(&device, 0).await, 5);
            let told = news.borrow_mut().drain(..).collect::<Vec<_>>();
            let NbdNews::Lost(why) = &told[0] else { panic!("{told:?}") };
            assert!(why.contains(words) && !why.contains('\n'), "{why}");
        }
    });
}

#[test]
fn what_no_flush_covers_is_bounded_by_flushes_of_the_drive_itself() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, _) = open(&handle, &server.uri);
        let data = Payload::from(Bytes::copy_of(&vec![3; MIB as usize]));
        for at in 0..100 {
            device.write(Lba(at % 4 * 2048), data.clone(), Durability::Cached).await.unwrap();
        }
        assert!(server.state().flushes > 0);
    });
}

#[test]
fn writes_that_overshoot_the_bound_at_once_do_not_wait_for_ever() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, _) = open(&handle, &server.uri);
        let data = Payload::from(Bytes::copy_of(&vec![3; MIB as usize]));
        for _ in 0..2 {
            let writes = (0..160)
                .map(|at| device.write(Lba(at % 4 * 2048), data.clone(), Durability::Cached));
            let all = handle.timeout(60_000 * MS, join_all(writes.collect::<Vec<_>>())).await;
            assert!(all.expect("room is made").into_iter().all(|written| written.is_ok()));
        }
    });
}

#[test]
fn a_durable_change_over_one_that_no_flush_covers_leaves_nothing_to_be_made_again_under_it() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, _) = open(&handle, &server.uri);
        write(&device, 0, 1, Durability::Cached).await;
        write(&device, 9, 1, Durability::Durable).await;
        assert_eq!(server.state().flushes, 0, "other sectors");
        write(&device, 0, 2, Durability::Durable).await;
        assert_eq!(server.state().flushes, 1);
        server.state().die();
        assert_eq!(first_byte(&device, 0).await, 2);
        assert_eq!(server.state().durable[0], 2);
    });
}

#[test]
fn a_request_that_nobody_waits_for_any_more_is_answered_all_the_same() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct { structured: false, ..Conduct::default() });
        let (device, news) = open(&handle, &server.uri);
        for _ in 0..50 {
            let read = device.read(Lba(0), Buf::new(4096));
            let _ = handle.timeout(1, read).await;
        }
        while device.under_way().count() > 0 {
            handle.sleep(MS).await;
        }
        assert_eq!(first_byte(&device, 0).await, 0);
        assert!(news.borrow().is_empty());
    });
}

/// A write that the server has received, and does not carry out for now.
async fn held_write(
    handle: &Handle,
    server: &FakeServer,
    device: &Rc<NbdDevice>,
) -> JoinHandle<IoResult<()>> {
    server.state().conduct.holds_writes = true;
    let own = device.clone();
    let written =
        handle.spawn(async move { own.write(Lba(0), block(1), Durability::Cached).await });
    while server.state().held == 0 {
        handle.sleep(MS).await;
    }
    written
}

#[test]
fn requests_that_a_server_has_count_beyond_the_drive_until_the_server_has_ended_them() {
    run(async |handle| {
        for gives_up in [true, false] {
            let server = FakeServer::start(BYTES, Conduct::default());
            let device = Rc::new(open(&handle, &server.uri).0);
            let written = held_write(&handle, &server, &device).await;
            let (under_way, held) = (device.under_way(), device.held());
            if gives_up {
                device.abandon();
                assert_eq!(written.await, Err(IoError::Gone));
            } else {
                drop(written);
            }
            drop(device);
            for _ in 0..20 {
                handle.sleep(MS).await;
                assert_eq!((under_way.count(), held.count()), (1, 1));
            }
            server.state().conduct.holds_writes = false;
            while under_way.count() > 0 {
                handle.sleep(MS).await;
            }
            assert_eq!(server.state().cached[0], 1, "it was carried out");
        }
    });
}

#[test]
fn nothing_goes_to_a_server_that_has_requests_of_a_broken_session() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let (device, news) = open(&handle, &server.uri);
        let device = Rc::new(device);
        let written = held_write(&handle, &server, &device).await;
        server.state().conduct.instead = Some(vec![0; 16]);
        let own = device.clone();
        let read = handle.spawn(async move { first_byte(&own, 8).await });
        while server.state().connections < 8 {
            handle.sleep(MS).await;
        }
        assert!(matches!(news.borrow()[..], [NbdNews::Lost(_)]));
        let requests = server.state().requests;
        for _ in 0..50 {
            handle.sleep(10 * MS).await;
            assert_eq!((server.state().requests, device.under_way().count()), (requests, 1));
        }
        server.state().conduct.holds_writes = false;
        assert_eq!((written.await, read.await), (Ok(()), 0));
        assert_eq!((first_byte(&device, 0).await, device.under_way().count()), (1, 0));
    });
}

#[test]
fn a_server_that_lets_the_drive_in_and_drops_it_is_told_of_once_and_asked_ever_less_often() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct { structured: false, ..Conduct::default() });
        let (device, news) = open(&handle, &server.uri);
        let device = Rc::new(device);
        write(&device, 0, 1, Durability::Durable).await;
        server.state().conduct.error = proto::SHUTDOWN;
        let own = device.clone();
        let read = handle.spawn(async move { first_byte(&own, 0).await });
        while server.state().connections < 4 * 5 {
            handle.sleep(MS).await;
        }
        let told = news.borrow_mut().drain(..).collect::<Vec<_>>();
        let [NbdNews::Lost(lost), NbdNews::Back(0), NbdNews::StillLost(why)] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(lost.contains("is ending") && why.contains("lets us in, and then"), "{told:?}");
        server.state().conduct.error = 0;
        assert_eq!(read.await, 1);
        assert_eq!(*news.borrow(), [NbdNews::Back(0)]);
        // The next outage is another one.
        server.state().die();
        assert_eq!(first_byte(&device, 0).await, 1);
        assert!(matches!(news.borrow()[1..], [NbdNews::Lost(_), NbdNews::Back(0)]));
    });
}

#[test]
fn a_durable_change_that_is_made_again_is_durable_again() {
    run(async |handle| {
        let server = FakeServer::start(BYTES, Conduct::default());
        let device = Rc::new(open(&handle, &server.uri).0);
        write(&device, 0, 1, Durability::Cached).await;
        // Over one that no flush covers: it is kept, and the flush that is to follow meets a dead server.
        server.state().conduct.holds_flushes = true;
        let own = device.clone();
        let written =
            handle.spawn(async move { own.write(Lba(0), block(2), Durability::Durable).await });
        while server.state().held == 0 {
            handle.sleep(MS).await;
        }
        assert_eq!(server.state().durable[0], 2);
        server.state().durable.fill(0);
        server.state().die();
        let requests = server.state().requests;
        while server.state().requests < requests + 2 {
            handle.sleep(MS).await;
        }
        assert_eq!(server.state().durable[0], 2, "no flush was needed");
        server.state().conduct.holds_flushes = false;
        written.await.unwrap();
    });
}
