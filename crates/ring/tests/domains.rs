//! A panic fails the tasks of one domain: none of them runs or is dropped after that. Callers that wait
//! are told, and all other tasks go on.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;

use rustix::pipe::pipe;
use voltier_block::Buf;
use voltier_ring::{
    CallError, Core, Domain, Executor, Failure, Fd, Handle, Listener, NoFiles, Remote,
};

/// Counts one every ten nanoseconds, for ever.
async fn tick(handle: Handle, count: Rc<Cell<u32>>) {
    loop {
        handle.sleep(10).await;
        count.set(count.get() + 1);
    }
}

async fn panic_at(handle: Handle, at: u64) {
    handle.sleep_until(at).await;
    panic!("broken at {at}\nin two lines");
}

/// Notes its end.
struct Ending(Rc<Cell<bool>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

fn counters() -> (Rc<Cell<u32>>, Rc<Cell<u32>>) {
    Default::default()
}

fn failure(message: &str) -> Failure {
    Failure { message: message.to_owned(), place: None }
}

#[test]
fn a_panic_stops_the_tasks_of_its_domain_and_no_other() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let (ours, theirs) = counters();
    let (stopped, alive) = (ours.clone(), theirs.clone());
    let (told, is_dropped) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    let (hears, ending) = (told.clone(), Ending(is_dropped.clone()));
    executor.block_on(async move {
        let (one, other) = (handle.within(Domain::fresh()), handle.within(Domain::fresh()));
        drop(one.spawn(tick(one.clone(), ours)));
        drop(other.spawn(tick(other.clone(), theirs)));
        drop(one.spawn(async move {
            let _ending = ending;
            pending::<()>().await;
        }));
        let _told = one.on_failure(move |failure| hears.borrow_mut().push(failure.clone()));
        let unheard = other.on_failure(|_| panic!("the other domain has not failed"));
        drop(one.spawn(panic_at(one.clone(), 55)));
        handle.sleep(200).await;
        drop(unheard);
        // Also what is begun in the domain from outside is not polled.
        drop(one.spawn(async { panic!("a task of a failed domain runs") }));
        handle.sleep(100).await;
    });
    assert_eq!((stopped.get(), alive.get()), (5, 30));
    assert_eq!(*told.borrow(), [failure("broken at 55 in two lines")]);
    assert_eq!(executor.task_count(), 1, "the other domain's");
    drop(executor);
    assert!(!is_dropped.get(), "a task of a failed domain was dropped");
}

#[test]
fn a_task_that_panics_when_it_is_polled_out_of_turn_fails_the_domain_of_both() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let is_dropped = Rc::new(Cell::new(false));
    let (told, ending) = (Rc::new(Cell::new(0)), Ending(is_dropped.clone()));
    let hears = told.clone();
    executor.block_on(async move {
        let (one, other) = (handle.within(Domain::fresh()), handle.within(Domain::fresh()));
        drop(one.spawn(async move {
            let _ending = ending;
            pending::<()>().await;
        }));
        let _told = one.on_failure(move |_| hears.set(hears.get() + 1));
        let mut polls = 0;
        let inner = one.begin(async move {
            poll_fn(|_| {
                polls += 1;
                if polls == 2 {
                    panic!("broken");
                }
                Poll::<()>::Pending
            })
            .await;
        });
        let (inner, calling) = (inner.expect("it has not failed"), one.clone());
        // A task of another domain is not polled out of turn: its panic would be that of the caller.
        drop(other.spawn({
            let calling = other.clone();
            async move {
                calling.poll_now(inner);
                calling.sleep(5).await;
            }
        }));
        drop(one.spawn(async move {
            calling.poll_now(inner);
            unreachable!("the panic is the caller's");
        }));
        handle.sleep(10).await;
    });
    assert_eq!((told.get(), executor.task_count()), (1, 0));
    assert!(!is_dropped.get(), "a task of a failed domain was dropped");
}

#[test]
fn linked_domains_fail_together_and_unlinked_ones_apart() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let failed = Rc::new(RefCell::new(Vec::new()));
    let seen = failed.clone();
    executor.block_on(async move {
        let domains: Vec<Handle> = (0..4).map(|_| handle.within(Domain::fresh())).collect();
        let _told: Vec<_> = domains
            .iter()
            .enumerate()
            .map(|(number, domain)| {
                let seen = seen.clone();
                domain.on_failure(move |_| seen.borrow_mut().push(number))
            })
            .collect();
        let _first = domains[0].fail_with(domains[1].domain());
        let _second = domains[2].fail_with(domains[1].domain());
        drop(domains[3].fail_with(domains[1].domain()));
        drop(domains[2].spawn(panic_at(domains[2].clone(), 10)));
        handle.sleep(20).await;
        // Told at once, for it has failed.
        let seen = seen.clone();
        drop(domains[0].on_failure(move |_| seen.borrow_mut().push(100)));
    });
    failed.borrow_mut().sort_unstable();
    assert_eq!(*failed.borrow(), [0, 1, 2, 100]);
}

#[test]
fn what_the_unwinding_spawns_does_not_run() {
    struct Spawns(Handle, Rc<Cell<bool>>);
    impl Drop for Spawns {
        fn drop(&mut self) {
            let ran = self.1.clone();
            drop(self.0.spawn(async move { ran.set(true) }));
        }
    }
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let ran = Rc::new(Cell::new(false));
    let is_set = ran.clone();
    executor.block_on(async move {
        let domain = handle.within(Domain::fresh());
        let spawns = Spawns(domain.clone(), ran);
        drop(domain.spawn(async move {
            let _spawns = spawns;
            panic!("broken");
        }));
        handle.sleep(10).await;
    });
    assert!(!is_set.get());
    assert_eq!(executor.task_count(), 0);
}

#[test]
#[should_panic(expected = "of no domain")]
fn a_panic_of_no_domain_leaves_the_executor() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        drop(handle.spawn(async { panic!("of no domain") }));
        handle.sleep(10).await;
    });
}

#[test]
fn a_file_is_closed_when_the_kernel_has_ended_what_was_under_way() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let (reads, writes) = pipe().unwrap();
    let fd = Fd::from_owned(reads);
    let watch = fd.watch();
    executor.block_on(async move {
        let domain = handle.within(Domain::fresh());
        domain.close_on_failure(&fd);
        let own = domain.clone();
        drop(domain.spawn(async move {
            // Nothing is in the pipe yet.
            let _ = own.read_at(&fd, 0, Buf::new(4096)).await;
            panic!("the read comes back to a failed domain");
        }));
        handle.sleep(1_000_000).await;
        drop(domain.spawn(async { panic!("broken") }));
        handle.sleep(1_000_000).await;
        assert!(watch.holders() > 0, "the kernel has the read still");
        rustix::io::write(&writes, b"late").unwrap();
        while watch.holders() > 0 {
            handle.sleep(1_000_000).await;
        }
        assert_eq!(rustix::io::write(&writes, b"x"), Err(rustix::io::Errno::PIPE));
    });
}

#[test]
fn a_file_that_hangs_keeps_no_other_file_of_its_domain_open() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let (hangs, writes) = pipe().unwrap();
    let (rests, _other_end) = pipe().unwrap();
    let (hangs, rests) = (Fd::from_owned(hangs), Fd::from_owned(rests));
    let (hung, rested) = (hangs.watch(), rests.watch());
    executor.block_on(async move {
        let domain = handle.within(Domain::fresh());
        domain.close_on_failure(&hangs);
        domain.close_on_failure(&rests);
        let own = domain.clone();
        drop(domain.spawn(async move {
            let _rests = rests;
            // Nothing is in the pipe yet.
            let _ = own.read_at(&hangs, 0, Buf::new(4096)).await;
        }));
        handle.sleep(1_000_000).await;
        drop(domain.spawn(async { panic!("broken") }));
        while rested.holders() > 0 {
            handle.sleep(1_000_000).await;
        }
        assert!(hung.holders() > 0, "the kernel has the read still");
        rustix::io::write(&writes, b"late").unwrap();
        while hung.holders() > 0 {
            handle.sleep(1_000_000).await;
        }
    });
}

#[test]
fn connections_of_a_failed_domain_end_and_nobody_listens_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let core = Core::start("test").unwrap();
    let (domain, at) = (Domain::fresh(), path.clone());
    let listen = core.remote().within(domain).call(move |handle| async move {
        let listener = Listener::unix(&at, || Ok(())).unwrap();
        handle.close_on_failure(listener.fd());
        drop(handle.clone().spawn(async move {
            let mut streams = Vec::new();
            loop {
                streams.push(handle.accept(&listener).await.unwrap());
            }
        }));
    });
    listen.unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    let _ = core.remote().within(domain).call(|_| async { panic!("broken") });
    assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0, "the end of the stream");
    assert!(client.write_all(&[0; 1]).is_err() || client.read(&mut [0; 1]).unwrap_or(0) == 0);
    assert!(UnixStream::connect(&path).is_err());
}

#[test]
fn calls_into_a_failed_domain_are_answered_and_others_served() {
    let core = Core::start("test").unwrap();
    let (domain, broken) = (Domain::fresh(), Err(CallError::Failed(failure("broken"))));
    let within = |core: &Core| -> Remote { core.remote().within(domain) };
    let (sender, has_begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let remote = within(&core);
        let waits = scope.spawn(move || {
            remote.call(move |_| async move {
                sender.send(()).unwrap();
                pending::<()>().await;
            })
        });
        has_begun.recv().unwrap();
        assert_eq!(within(&core).call(|_| async { panic!("broken") }), broken);
        assert_eq!(waits.join().unwrap(), broken, "the one that waited");
    });
    assert_eq!(within(&core).call(|_| async {}), broken, "a later one");
    assert_eq!(core.remote().call(|_| async { 42 }), Ok(42));
    // Without a domain of its own a call fails alone.
    let alone = core.remote().call(|_| async { panic!("another") });
    assert_eq!(alone, Err::<(), _>(CallError::Failed(failure("another"))));
    assert_eq!(core.remote().call(|_| async { 43 }), Ok(43));
}
