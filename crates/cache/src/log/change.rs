//! Changes of the cache's state, as the log makes them durable, and the queues in which they wait for it.

use std::collections::VecDeque;
use std::task::Waker;

use voltier_block::Bytes;

use crate::map::contents::CleanCopy;
use crate::numbers::Line;

/// Where a line's data comes from; decides what happens when the line changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client's write, under the line's lock.
    Write { dirty: bool },
    /// A copy of the origin: dropped if the line is there by now.
    Fill,
}

/// The sender of a change. Changes of each sender keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A request of a client.
    Client,
    /// The cache itself.
    Cache,
}

/// A change of the cache's state, to be made durable by the log.
#[derive(Debug)]
pub(crate) enum Change {
    /// The line's data, one whole line; only the sectors of `mask` count if there is one.
    Data { line: Line, data: Bytes, mask: Option<u128>, source: Source },
    /// The origin has this copy.
    Clean(CleanCopy),
    /// The line is not to be served from the cache any more.
    Drop { line: Line },
    /// Nothing: whoever queued a change here has withdrawn it.
    Withdrawn,
}

/// The numbers of the last changes that records have taken, of both senders.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    client: u64,
    cache: u64,
}

/// The changes of both senders that wait for the log.
#[derive(Default)]
pub(super) struct Queues {
    client: Queue,
    cache: Queue,
}

impl Queues {
    #[inline]
    fn of(&mut self, sender: Sender) -> &mut Queue {
        match sender {
            Sender::Client => &mut self.client,
            Sender::Cache => &mut self.cache,
        }
    }

    /// Queues a change; its number among those of the sender.
    #[inline]
    pub(super) fn push(&mut self, sender: Sender, change: Change) -> u64 {
        self.of(sender).push(change)
    }

    /// Whether the sender's change `number` is acknowledged; if not, `waker` is woken when it is.
    #[inline]
    pub(super) fn is_acked(&mut self, sender: Sender, number: u64, waker: &Waker) -> bool {
        let queue = self.of(sender);
        let is_acked = queue.acked >= number;
        if !is_acked {
            queue.wait(number, waker);
        }
        is_acked
    }

    /// Has `waker` woken when the sender's change `number` is acknowledged, or everybody is.
    pub(super) fn wait(&mut self, sender: Sender, number: u64, waker: &Waker) {
        self.of(sender).wait(number, waker);
    }

    /// Withdraws the client's last `count` changes up to `number`; those that records have taken stay.
    /// Whether any was still there.
    pub(super) fn withdraw(&mut self, number: u64, count: u64) -> bool {
        self.client.withdraw(number, count)
    }

    /// Takes the sender's next change out.
    #[inline]
    pub(super) fn pop(&mut self, sender: Sender) -> Option<Change> {
        self.of(sender).pop()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.client.changes.is_empty() && self.cache.changes.is_empty()
    }

    /// Whether changes of the cache itself wait: they go before those of clients.
    #[inline]
    pub(super) fn has_internal(&self) -> bool {
        !self.cache.changes.is_empty()
    }

    /// How many changes wait, of clients and of the cache itself.
    #[inline]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.client.changes.len(), self.cache.changes.len())
    }

    /// Lines from `first` to `last` that changes of clients bring in which wait.
    pub(super) fn lines_between(&self, first: Line, last: Line) -> impl Iterator<Item = Line> {
        self.client.lines().filter(move |line| (first..=last).contains(line))
    }

    /// Bytes that wait, of both.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.client.bytes + self.cache.bytes
    }

    /// Bytes of clients' changes that wait.
    #[inline]
    pub(super) fn client_bytes(&self) -> usize {
        self.client.bytes
    }

    /// The last changes that records have taken.
    #[inline]
    pub(super) fn taken(&self) -> Taken {
        Taken { client: self.client.taken, cache: self.cache.taken }
    }

    /// Acknowledges everything up to these changes.
    #[inline]
    pub(super) fn ack(&mut self, taken: Taken) {
        self.client.ack(taken.client);
        self.cache.ack(taken.cache);
    }

    /// Acknowledges clients' changes only, as a bug would.
    pub(super) fn ack_client(&mut self, taken: Taken) {
        self.client.ack(taken.client);
    }

    /// Clears the fills that are queued: a cache that stops does not need them.
    pub(super) fn forget_fills(&mut self) {
        self.client.forget_fills();
    }

    /// Drops all changes: the log is given up.
    pub(super) fn clear(&mut self) {
        self.client.clear();
        self.cache.clear();
    }

    /// Wakes everybody who waits for a change.
    pub(super) fn wake_all(&mut self) {
        self.client.wake_all();
        self.cache.wake_all();
    }
}

/// Changes of one sender, numbered in order.
#[derive(Default)]
struct Queue {
    changes: VecDeque<Change>,
    bytes: usize,
    /// Number of the last change queued, taken into a record, and acknowledged.
    queued: u64,
    taken: u64,
    acked: u64,
    waiting: VecDeque<(u64, Waker)>,
}

impl Queue {
    fn push(&mut self, change: Change) -> u64 {
        if let Change::Data { data, .. } = &change {
            self.bytes += data.len();
        }
        self.changes.push_back(change);
        self.queued += 1;
        self.queued
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        self.changes.iter().filter_map(|change| match change {
            Change::Data { line, .. } => Some(*line),
            _ => None,
        })
    }

    fn clear(&mut self) {
        self.changes.clear();
        self.bytes = 0;
    }

    fn forget_fills(&mut self) {
        for change in &mut self.changes {
            if let Change::Data { data, source: Source::Fill, .. } = change {
                self.bytes -= data.len();
                *change = Change::Withdrawn;
            }
        }
        self.forget_withdrawn();
    }

    /// Forgets what was withdrawn, but for that which keeps the numbers of changes behind it.
    fn forget_withdrawn(&mut self) {
        while let Some(Change::Withdrawn) = self.changes.back() {
            self.queued -= 1;
            self.changes.pop_back();
        }
    }

    fn withdraw(&mut self, number: u64, count: u64) -> bool {
        if number <= self.taken {
            return false;
        }
        let first = (number - count).max(self.taken);
        let places = (first - self.taken) as usize..(number - self.taken) as usize;
        for change in self.changes.range_mut(places) {
            if let Change::Data { data, .. } = std::mem::replace(change, Change::Withdrawn) {
                self.bytes -= data.len();
            }
        }
        self.forget_withdrawn();
        true
    }

    fn wait(&mut self, number: u64, waker: &Waker) {
        // Numbers grow, so waiters mostly arrive in order; a re-poll may not.
        let at = self.waiting.partition_point(|waiter| waiter.0 <= number);
        let mut same = self.waiting.range(..at).rev().take_while(|waiter| waiter.0 == number);
        if !same.any(|waiter| waiter.1.will_wake(waker)) {
            self.waiting.insert(at, (number, waker.clone()));
        }
    }

    fn pop(&mut self) -> Option<Change> {
        let change = self.changes.pop_front()?;
        if let Change::Data { data, .. } = &change {
            self.bytes -= data.len();
        }
        self.taken += 1;
        Some(change)
    }

    fn ack(&mut self, number: u64) {
        self.acked = self.acked.max(number);
        while self.waiting.front().is_some_and(|waiter| waiter.0 <= self.acked) {
            let (_, waker) = self.waiting.pop_front().expect("has a front");
            waker.wake();
        }
    }

    fn wake_all(&mut self) {
        for (_, waker) in self.waiting.drain(..) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_are_withdrawn_leave_those_of_others_and_no_bytes() {
        let mut queue = Queue::default();
        let data = |line| Change::Data {
            line: Line(line),
            data: Bytes::copy_of(&[1; 512]),
            mask: None,
            source: Source::Write { dirty: true },
        };
        let numbers: Vec<u64> = (0..6).map(|line| queue.push(data(line))).collect();
        queue.pop();
        assert!(!queue.withdraw(numbers[0], 1), "a record has it");
        assert!(queue.withdraw(numbers[2], 3), "two of three were there");
        assert!(queue.withdraw(numbers[5], 2));
        let left: Vec<bool> =
            queue.changes.iter().map(|it| matches!(it, Change::Withdrawn)).collect();
        assert_eq!((left, queue.bytes), (vec![true, true, false], 512));
        assert!(queue.withdraw(numbers[3], 1));
        assert_eq!((queue.changes.len(), queue.bytes, queue.queued), (0, 0, 1));
        assert_eq!(queue.push(data(7)), 2, "numbers go on behind the last that is there");
    }

    #[test]
    fn a_wait_that_is_polled_again_is_one_waiter() {
        let mut queue = Queue::default();
        let numbers = [1, 2].map(|line| queue.push(Change::Drop { line: Line(line) }));
        for _ in 0..100 {
            numbers.iter().for_each(|number| queue.wait(*number, Waker::noop()));
        }
        assert_eq!(queue.waiting.len(), 2);
        queue.ack(numbers[0]);
        assert_eq!(queue.waiting.len(), 1);
    }
}
