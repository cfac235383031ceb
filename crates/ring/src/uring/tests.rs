//! Tests of a ring whose kernel refuses to be entered.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::pipe::pipe;

use super::*;

const TRANSIENT: [Errno; 5] = [Errno::AGAIN, Errno::BUSY, Errno::NOMEM, Errno::INTR, Errno::TIME];

struct World {
    uring: Uring,
    inbox: std::sync::Arc<Inbox<()>>,
    finished: Vec<(Key, OpOutcome)>,
}

impl World {
    fn new() -> Self {
        let inbox = Inbox::new().unwrap();
        Self { uring: Uring::new(inbox.wake_fd()).unwrap(), inbox, finished: Vec::new() }
    }

    fn refuse(&mut self, refuse: impl FnMut(u32) -> Option<Errno> + 'static) {
        self.uring.refuse = Box::new(refuse);
    }

    fn read(&mut self, key: u64, fd: &Fd) {
        self.uring.submit(Key(key), Op::Read { fd: fd.clone(), offset: 0, buf: Buf::new(4096) });
    }

    /// A look of an idle core, which sleeps for so long at most.
    fn look(&mut self, for_ns: Nanos) {
        let until = self.uring.now() + for_ns;
        self.uring.look(&self.inbox, true, Some(until), &mut self.finished);
    }
}

fn file() -> Fd {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    Fd::from_owned(OwnedFd::from(file))
}

#[test]
fn an_operation_outlives_a_transient_refusal_of_the_kernel() {
    for errno in TRANSIENT {
        let (mut world, file) = (World::new(), file());
        let mut left = 7;
        world.refuse(move |_| {
            left -= 1;
            (left > 0).then_some(errno)
        });
        world.read(1, &file);
        for _ in 0..20 {
            world.look(1_000_000);
        }
        assert_eq!(world.finished.len(), 1, "{errno}");
        assert_eq!(world.finished[0].1.result, Ok(4096), "{errno}");
    }
}

#[test]
fn completions_come_while_the_kernel_takes_no_operation_and_what_waits_goes_after_them() {
    let (mut world, (reads, writes)) = (World::new(), pipe().unwrap());
    let reads = Fd::from_owned(reads);
    world.read(1, &reads);
    world.look(1_000_000);
    let is_short = Rc::new(Cell::new(true));
    let short = is_short.clone();
    world.refuse(move |queued| (queued > 0 && short.get()).then_some(Errno::AGAIN));
    // More than the queue has room for.
    let file = file();
    let count = 3 * u64::from(SUBMISSION_ENTRIES);
    for number in 0..count {
        world.read(2 + number, &file);
    }
    assert!(world.uring.has_submissions());
    rustix::io::write(&writes, b"x").unwrap();
    while world.finished.is_empty() {
        world.look(1_000_000);
    }
    assert_eq!(world.finished.len(), 1);
    assert_eq!(world.finished[0].0, Key(1), "the one before the shortage");
    is_short.set(false);
    while world.finished.len() as u64 <= count {
        world.look(1_000_000_000);
    }
    assert!(world.finished.iter().all(|(_, outcome)| outcome.result.is_ok()));
}

#[test]
fn an_idle_core_rests_while_the_kernel_is_short_of_memory() {
    let (mut world, file) = (World::new(), file());
    let tries = Rc::new(Cell::new(0));
    let counted = tries.clone();
    world.refuse(move |_| {
        counted.set(counted.get() + 1);
        Some(Errno::NOMEM)
    });
    world.read(1, &file);
    let since = world.uring.now();
    for _ in 0..6 {
        world.look(Nanos::from(u32::MAX));
    }
    // 1 + 2 + 4 + 8 + 16 + 16 ms.
    assert!(world.uring.now() - since >= 47_000_000);
    assert_eq!(tries.get(), 12, "one with the operation, one for completions");
    // A timer that is due is not waited past.
    let since = world.uring.now();
    world.look(0);
    assert!(world.uring.now() - since < REST_NS_MAX);
}

#[test]
fn an_idle_core_rests_with_more_entries_than_the_queue_takes_too() {
    let (mut world, file) = (World::new(), file());
    world.refuse(|_| Some(Errno::NOMEM));
    for key in 0..2 * u64::from(SUBMISSION_ENTRIES) {
        world.read(key, &file);
    }
    let since = world.uring.now();
    for _ in 0..6 {
        world.look(Nanos::from(u32::MAX));
    }
    assert!(world.uring.now() - since >= 47_000_000);
}

#[test]
fn the_number_of_a_descriptor_stays_its_own_until_the_kernel_has_the_cancellation() {
    let (mut world, (reads, _writes)) = (World::new(), pipe().unwrap());
    let reads = Fd::from_owned(reads);
    world.read(1, &reads);
    world.look(0);
    world.refuse(|_| Some(Errno::AGAIN));
    let watch = reads.watch();
    let held = watch.holders();
    world.uring.cancel(&reads);
    assert_eq!(watch.holders(), held + 1);
    world.refuse(|_| None);
    while world.finished.is_empty() {
        world.look(1_000_000_000);
    }
    assert_eq!(world.finished[0].1.result, Err(Errno::CANCELED));
    assert_eq!(watch.holders(), held - 1, "nor has the kernel the read");
}

#[test]
#[should_panic(expected = "io_uring_enter")]
fn a_ring_that_is_used_wrongly_is_a_bug() {
    let mut world = World::new();
    world.refuse(|_| Some(Errno::BADF));
    world.look(0);
}

#[test]
fn a_core_that_polls_sees_completions_messages_and_timers() {
    let (mut world, (reads, writes)) = (World::new(), pipe().unwrap());
    // Longer than any test: whatever is not seen is waited for.
    world.uring.set_busy_poll_ns(1 << 50);
    world.uring.busy_poll.slept(0);
    let reads = Fd::from_owned(reads);
    for number in 0..20 {
        world.read(number, &reads);
        std::thread::scope(|scope| {
            scope.spawn(|| rustix::io::write(&writes, b"x").unwrap());
            while world.finished.len() == number as usize {
                world.uring.look(&world.inbox, true, None, &mut world.finished);
            }
        });
        let inbox = world.inbox.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| inbox.push_message(()));
            while inbox.take(&mut VecDeque::new()).is_empty() {
                world.uring.look(&inbox, true, None, &mut world.finished);
            }
        });
        let until = world.uring.now() + 50_000;
        while world.uring.now() < until {
            world.uring.look(&world.inbox, true, Some(until), &mut world.finished);
        }
    }
    assert!(world.finished.iter().all(|(_, outcome)| outcome.result == Ok(1)));
}
