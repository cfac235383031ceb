//! Tests of the executor in both worlds.

use super::*;
use crate::remote::Remote;
use crate::virtual_time::NoFiles;

fn virtual_world() -> Executor {
    Executor::in_virtual_time(NoFiles)
}

#[test]
fn virtual_time_jumps_to_timers_in_their_order() {
    let mut executor = virtual_world();
    let handle = executor.handle();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = seen.clone();
    executor.block_on(async move {
        let tasks: Vec<_> = [30u64, 10, 20]
            .into_iter()
            .map(|delay| {
                let (handle, log) = (handle.clone(), log.clone());
                handle.clone().spawn(async move {
                    handle.sleep(delay * 1_000_000_000).await;
                    log.borrow_mut().push((delay, handle.now()));
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    let second = 1_000_000_000;
    assert_eq!(*seen.borrow(), [(10, 10 * second), (20, 20 * second), (30, 30 * second)]);
    assert_eq!(executor.task_count(), 0);
}

#[test]
fn a_task_that_nobody_wakes_is_polled_with_all_others() {
    let mut executor = virtual_world();
    let handle = executor.handle();
    let polls = executor.block_on(async move {
        let (polls, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (counted, over) = (polls.clone(), is_over.clone());
        let task = handle.spawn(poll_fn(move |_| {
            counted.set(counted.get() + 1);
            if over.get() { Poll::Ready(()) } else { Poll::Pending }
        }));
        handle.sleep(1).await;
        is_over.set(true);
        handle.poll_all();
        task.await;
        polls.get()
    });
    assert_eq!((polls, executor.task_count()), (2, 0));
}

#[test]
fn a_task_polled_out_of_turn_does_what_it_can_and_goes_on_in_its_turn() {
    let mut executor = virtual_world();
    let handle = executor.handle();
    executor.block_on(async move {
        let log = Rc::new(RefCell::new(Vec::new()));
        let task = {
            let (handle, log) = (handle.clone(), log.clone());
            handle.clone().begin(async move {
                log.borrow_mut().push("begun");
                handle.sleep(10).await;
                log.borrow_mut().push("done");
            })
        };
        let task = task.expect("the executor runs");
        assert!(log.borrow().is_empty());
        handle.poll_now(task);
        assert_eq!(*log.borrow(), ["begun"]);
        handle.poll_now(task);
        handle.sleep(10).await;
        handle.yield_now().await;
        assert_eq!(*log.borrow(), ["begun", "done"]);
        // It is over: there is nothing to poll, and nothing to wake.
        handle.poll_now(task);
        handle.wake(task);
    });
    assert_eq!(executor.task_count(), 0);
}

#[test]
fn a_task_that_ends_when_it_is_polled_out_of_turn_is_gone() {
    let mut executor = virtual_world();
    let handle = executor.handle();
    executor.block_on(async move {
        let dropped = Rc::new(());
        let held = dropped.clone();
        let task = handle.begin(async move { drop(held) }).expect("the executor runs");
        handle.poll_now(task);
        assert_eq!(Rc::strong_count(&dropped), 1);
    });
    assert_eq!(executor.task_count(), 0);
}

#[test]
#[should_panic(expected = "stands still")]
fn a_world_where_nothing_can_happen_is_a_bug() {
    let mut executor = virtual_world();
    executor.block_on(std::future::pending::<()>());
}

#[test]
fn the_real_world_sleeps_and_takes_messages_from_other_threads() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let remote = Remote::to(&handle);
    let answer = std::thread::scope(|scope| {
        let asking = scope.spawn(move || remote.call(|_| async { 6 * 7 }));
        executor.block_on(async move { handle.sleep(50_000_000).await });
        asking.join().unwrap()
    });
    assert_eq!(answer, Ok(42));
}

#[test]
fn the_real_world_writes_and_reads_a_file() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let file = tempfile::tempfile().unwrap();
    let fd = Fd::from_owned(file.into());
    let (buf, result) = executor.block_on(async move {
        let data = Payload::Many(vec![Bytes::copy_of(b"hello "), Bytes::copy_of(b"ring")]);
        assert_eq!(handle.write_at(&fd, 3, data, true).await, Ok(10));
        handle.sync_data(&fd).await.unwrap();
        handle.allocate(&fd, AllocateMode::PunchHole, 3, 5).await.unwrap();
        handle.read_at(&fd, 0, Buf::new(64)).await
    });
    assert_eq!(result, Ok(13));
    assert_eq!(&buf[..13], b"\0\0\0\0\0\0\0\0 ring");
}

#[test]
fn a_wait_for_a_descriptor_ends_when_there_is_something_and_when_it_is_cancelled() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let fd = Fd::from_owned(reader);
    executor.block_on(async move {
        let wait = |handle: &Handle| {
            let (handle, fd) = (handle.clone(), fd.clone());
            handle.clone().spawn(async move { handle.readable(&fd).await })
        };
        let waiting = wait(&handle);
        handle.sleep(1_000_000).await;
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(waiting.await, Ok(()));
        assert_eq!(wait(&handle).await, Ok(()), "it is there still");
        rustix::io::read(&fd, &mut [0; 1]).unwrap();
        let waiting = wait(&handle);
        handle.sleep(1_000_000).await;
        handle.cancel(&fd);
        assert_eq!(waiting.await, Err(Errno::CANCELED));
        drop(writer);
        assert_eq!(wait(&handle).await, Ok(()), "the other end is gone");
    });
}

#[test]
fn an_abandoned_operation_keeps_its_buffer_until_the_kernel_is_done() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    executor.block_on(async move {
        let task = {
            let handle = handle.clone();
            handle.clone().spawn(async move { handle.accept(&listener).await.map(|_| ()) })
        };
        handle.yield_now().await;
        drop(task);
    });
    drop(executor);
}
