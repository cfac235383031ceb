//! Memory and connections of all NBD clients of a daemon, and how the clients share them.
//!
//! Each connection has a share of its own, which nobody can take: a request that fits in it never
//! waits for other clients. For more, the connection leases bytes from a pool of the daemon. A peer
//! leases at most as much as is free after that. So one greedy peer gets half of the pool, and there is
//! something left for one more. The clients of an export get three quarters at most. A connection that
//! finds too little waits. A peer also has at most as many connections as are free after that; the
//! server turns further ones away.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use voltier_block::{MIB, Nanos};
use voltier_nbd::INPUT_BYTES;

/// The largest pool of a daemon, in bytes: sixteen of the longest requests.
const POOL_BYTES_MAX: u64 = 512 * MIB;

/// The smallest pool of a daemon, in bytes: one peer can lease for its longest request, and as much is left.
const POOL_BYTES_MIN: u64 = 64 * MIB;

/// The pool's part of the machine's memory, as a divisor.
const MEMORY_PER_POOL: u64 = 8;

/// The clients of an export lease at most so many times what is free after that.
const EXPORT_PER_FREE: u64 = 3;

/// Bounds of what NBD clients hold, and for how long.
#[derive(Clone, Debug)]
pub struct NbdLimits {
    /// Connections to all exports.
    pub connections_max: u64,
    /// Connections to one export.
    pub export_connections_max: u64,
    /// Bytes in flight that a connection has for itself.
    pub own_bytes: u64,
    /// Bytes in flight that all connections share, beyond their own.
    pub pool_bytes: u64,
    /// How long a handshake may take, in nanoseconds.
    pub handshake_ns: Nanos,
    /// How long a peer may take to move one byte of what it has asked for or announced, in nanoseconds.
    pub stall_ns: Nanos,
}

impl NbdLimits {
    /// The limits on a machine of so much memory.
    pub fn for_machine(memory_bytes: u64) -> Self {
        let pool_bytes = (memory_bytes / MEMORY_PER_POOL).clamp(POOL_BYTES_MIN, POOL_BYTES_MAX);
        Self { pool_bytes, ..Self::default() }
    }

    /// The most memory that clients' requests and receive buffers take, in bytes.
    pub fn memory_bytes_max(&self) -> u64 {
        self.pool_bytes + self.connections_max * (self.own_bytes + INPUT_BYTES as u64)
    }
}

impl Default for NbdLimits {
    /// At most 1 GiB: 512 connections with 1 MiB each, and the pool. The own share takes 128 requests of
    /// 4 KiB, the deepest queue that fio is usually run with.
    fn default() -> Self {
        Self {
            connections_max: 512,
            export_connections_max: 256,
            own_bytes: 512 << 10,
            pool_bytes: POOL_BYTES_MAX,
            handshake_ns: 30_000_000_000,
            stall_ns: 60_000_000_000,
        }
    }
}

/// Clients that share a part: as many as one party can make are one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    /// All clients of the Unix socket of the export with this number.
    Unix(u64),
    /// A host: an IPv4 address, or the /64 of an IPv6 address.
    Host(IpAddr),
}

impl Peer {
    fn at(address: Option<IpAddr>, export: u64) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Peer::Unix(export),
            Some(IpAddr::V6(address)) => {
                let network = u128::from(address) >> 64 << 64;
                Peer::Host(IpAddr::V6(network.into()))
            }
            Some(address) => Peer::Host(address),
        }
    }
}

/// Bytes leased by a peer, or by the clients of an export.
#[derive(Debug, Default)]
struct Leased(AtomicU64);

/// Connections of a peer or an export.
#[derive(Debug, Default)]
struct Holder {
    leased: Arc<Leased>,
    connections: u64,
}

#[derive(Debug, Default)]
struct Table {
    connections: u64,
    connections_accepted: u64,
    exports_seen: u64,
    peers: BTreeMap<Peer, Holder>,
    exports: BTreeMap<u64, Holder>,
}

/// The memory and the connections of all NBD clients of a daemon; exports on all cores share one.
#[derive(Debug)]
pub struct Budget {
    limits: NbdLimits,
    free_bytes: AtomicU64,
    /// For connects and disconnects.
    table: Mutex<Table>,
    /// Connections that wait for bytes, by their numbers.
    waiting: Mutex<BTreeMap<u64, Waker>>,
    waiting_count: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Budget {
    /// A budget of these limits that nobody uses yet.
    pub fn new(limits: NbdLimits) -> Arc<Self> {
        Arc::new(Self {
            free_bytes: AtomicU64::new(limits.pool_bytes),
            limits,
            table: Mutex::default(),
            waiting: Mutex::default(),
            waiting_count: AtomicU64::new(0),
        })
    }

    /// The limits of the budget.
    pub fn limits(&self) -> &NbdLimits {
        &self.limits
    }

    /// Bytes leased from the pool now.
    pub fn leased_bytes(&self) -> u64 {
        self.limits.pool_bytes - self.free_bytes.load(Ordering::SeqCst)
    }

    /// Connections that wait for bytes of the pool now.
    pub fn waiting(&self) -> u64 {
        self.waiting_count.load(Ordering::SeqCst)
    }

    /// The number of a new export.
    pub(super) fn number_of_export(&self) -> u64 {
        let mut table = lock(&self.table);
        table.exports_seen += 1;
        table.exports_seen
    }

    /// Takes a connection in, or turns it away.
    pub(super) fn admit(self: &Arc<Self>, export: u64, from: Option<IpAddr>) -> Option<Seat> {
        let peer = Peer::at(from, export);
        let mut table = lock(&self.table);
        let connections = |holder: Option<&Holder>| holder.map_or(0, |it| it.connections);
        let of_peer = connections(table.peers.get(&peer)) + 1;
        let of_export = connections(table.exports.get(&export)) + 1;
        let free = self.limits.connections_max.checked_sub(table.connections + 1)?;
        let free_of_export = self.limits.export_connections_max.checked_sub(of_export)?;
        if of_peer > free.min(free_of_export) {
            return None;
        }
        Some(self.seat(&mut table, peer, export))
    }

    /// Takes in a connection that a server before had taken in, however many there are.
    pub(super) fn admit_again(self: &Arc<Self>, export: u64, from: Option<IpAddr>) -> Seat {
        self.seat(&mut lock(&self.table), Peer::at(from, export), export)
    }

    fn seat(self: &Arc<Self>, table: &mut Table, peer: Peer, export: u64) -> Seat {
        table.connections += 1;
        table.connections_accepted += 1;
        let number = table.connections_accepted;
        let take = |holder: &mut Holder| {
            holder.connections += 1;
            holder.leased.clone()
        };
        let of_peer = take(table.peers.entry(peer).or_default());
        let of_export = take(table.exports.entry(export).or_default());
        let budget = self.clone();
        Seat { budget, number, peer, export, of_peer, of_export, leased_bytes: 0 }
    }

    fn dismiss(&self, peer: Peer, export: u64) {
        fn leave<K: Ord>(holders: &mut BTreeMap<K, Holder>, key: &K) {
            let holder = holders.get_mut(key).expect("each connection was counted");
            holder.connections -= 1;
            if holder.connections == 0 {
                holders.remove(key);
            }
        }
        let mut table = lock(&self.table);
        table.connections -= 1;
        leave(&mut table.peers, &peer);
        leave(&mut table.exports, &export);
    }

    /// Takes bytes out of the pool if the rules allow. Connections that take on several cores at once may
    /// pass the part of their peer by one request; the pool is never passed.
    fn try_lease(&self, seat: &Seat, bytes: u64) -> bool {
        let order = Ordering::SeqCst;
        let mut free = self.free_bytes.load(order);
        loop {
            let Some(after) = free.checked_sub(bytes) else { return false };
            let of_export = seat.of_export.0.load(order) + bytes;
            if seat.of_peer.0.load(order) + bytes > after || of_export > EXPORT_PER_FREE * after {
                return false;
            }
            match self.free_bytes.compare_exchange_weak(free, after, order, order) {
                Ok(_) => break,
                Err(now) => free = now,
            }
        }
        seat.of_peer.0.fetch_add(bytes, order);
        seat.of_export.0.fetch_add(bytes, order);
        true
    }

    fn give_back(&self, seat: &Seat, bytes: u64) {
        seat.of_peer.0.fetch_sub(bytes, Ordering::SeqCst);
        seat.of_export.0.fetch_sub(bytes, Ordering::SeqCst);
        self.free_bytes.fetch_add(bytes, Ordering::SeqCst);
        // A waiter is counted before it looks at the pool for the last time.
        if self.waiting() > 0 {
            let waiting = {
                let mut waiting = lock(&self.waiting);
                self.waiting_count.store(0, Ordering::SeqCst);
                std::mem::take(&mut *waiting)
            };
            waiting.into_values().for_each(Waker::wake);
        }
    }

    fn wait(&self, number: u64, waker: Option<Waker>) {
        let mut waiting = lock(&self.waiting);
        match waker {
            Some(waker) => waiting.insert(number, waker),
            None => waiting.remove(&number),
        };
        self.waiting_count.store(waiting.len() as u64, Ordering::SeqCst);
    }
}

/// A connection's hold on the budget; its end gives everything back.
#[derive(Debug)]
pub(super) struct Seat {
    budget: Arc<Budget>,
    number: u64,
    peer: Peer,
    export: u64,
    of_peer: Arc<Leased>,
    of_export: Arc<Leased>,
    leased_bytes: u64,
}

impl Seat {
    /// The limits of the daemon.
    pub(super) fn limits(&self) -> &NbdLimits {
        &self.budget.limits
    }

    /// Leases what the connection needs to have `used_bytes` in flight; waits until it may.
    pub(super) fn poll_lease(&mut self, used_bytes: u64, context: &Context<'_>) -> Poll<()> {
        let needed = used_bytes.saturating_sub(self.limits().own_bytes);
        let Some(more) = needed.checked_sub(self.leased_bytes).filter(|more| *more > 0) else {
            return Poll::Ready(());
        };
        if !self.budget.try_lease(self, more) {
            self.budget.wait(self.number, Some(context.waker().clone()));
            if !self.budget.try_lease(self, more) {
                return Poll::Pending;
            }
            self.budget.wait(self.number, None);
        }
        self.leased_bytes = needed;
        Poll::Ready(())
    }

    /// Gives back what the connection does not need to have `used_bytes` in flight.
    pub(super) fn shrink(&mut self, used_bytes: u64) {
        let needed = used_bytes.saturating_sub(self.limits().own_bytes);
        if let Some(less) = self.leased_bytes.checked_sub(needed).filter(|less| *less > 0) {
            self.leased_bytes = needed;
            self.budget.give_back(self, less);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shrink(0);
        self.budget.wait(self.number, None);
        self.budget.dismiss(self.peer, self.export);
    }
}

/// A seat that its connection shares with whoever gives it back when the connection's tasks fail.
#[derive(Clone)]
pub(super) struct SharedSeat(Rc<RefCell<Option<Seat>>>);

impl SharedSeat {
    pub(super) fn new(seat: Seat) -> Self {
        Self(Rc::new(RefCell::new(Some(seat))))
    }

    /// How long the handshake may take, in nanoseconds.
    pub(super) fn handshake_ns(&self) -> Nanos {
        self.0.borrow().as_ref().map_or(0, |seat| seat.limits().handshake_ns)
    }

    /// [`Seat::poll_lease`]; waits for ever once the seat is given back.
    pub(super) fn poll_lease(&self, used_bytes: u64, context: &Context<'_>) -> Poll<()> {
        let mut seat = self.0.borrow_mut();
        seat.as_mut().map_or(Poll::Pending, |seat| seat.poll_lease(used_bytes, context))
    }

    /// [`Seat::shrink`].
    pub(super) fn shrink(&self, used_bytes: u64) {
        if let Some(seat) = &mut *self.0.borrow_mut() {
            seat.shrink(used_bytes);
        }
    }

    /// Gives the seat back, with all that its connection holds.
    pub(super) fn leave(&self) {
        drop(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn lease(seat: &mut Seat, used_bytes: u64) -> bool {
        seat.poll_lease(used_bytes, &Context::from_waker(Waker::noop())).is_ready()
    }

    fn budget() -> Arc<Budget> {
        let limits = NbdLimits {
            connections_max: 8,
            export_connections_max: 8,
            own_bytes: 10,
            pool_bytes: 100,
            ..NbdLimits::default()
        };
        Budget::new(limits)
    }

    #[test]
    fn a_greedy_peer_gets_half_and_the_next_one_gets_its_part_of_the_rest() {
        let budget = budget();
        let mut greedy = budget.admit(1, host(1)).unwrap();
        let mut accomplice = budget.admit(2, host(1)).unwrap();
        assert!(lease(&mut greedy, 60));
        assert!(!lease(&mut accomplice, 11), "another connection of the same peer");
        let mut honest = budget.admit(1, host(2)).unwrap();
        assert!(lease(&mut honest, 35));
        assert!(!lease(&mut honest, 36));
        let mut third = budget.admit(1, host(3)).unwrap();
        assert!(!lease(&mut third, 11), "the export has three quarters");
        drop(third);
        let mut third = budget.admit(3, host(3)).unwrap();
        assert!(lease(&mut third, 11));
        drop(third);
        assert!(!lease(&mut honest, 36) && !lease(&mut accomplice, 11));
        assert_eq!((budget.leased_bytes(), budget.waiting()), (75, 2));
        drop(greedy);
        assert_eq!((budget.leased_bytes(), budget.waiting()), (25, 0));
        assert!(lease(&mut accomplice, 11));
        drop((accomplice, honest));
        assert_eq!((budget.leased_bytes(), lock(&budget.table).connections), (0, 0));
        assert!(lock(&budget.table).peers.is_empty() && lock(&budget.table).exports.is_empty());
    }

    #[test]
    fn the_own_share_is_nobody_elses() {
        let budget = budget();
        let mut seats: Vec<Seat> = (1..=4).map(|at| budget.admit(at, host(1)).unwrap()).collect();
        assert!(lease(&mut seats[0], 60));
        for seat in &mut seats[1..] {
            assert!(lease(seat, 10));
            assert!(!lease(seat, 11));
        }
        assert_eq!(budget.waiting(), 3);
        seats[0].shrink(59);
        assert_eq!((budget.waiting(), budget.leased_bytes()), (0, 49));
        assert!(lease(&mut seats[3], 11));
    }

    #[test]
    fn a_peer_with_half_of_the_connections_is_turned_away_and_others_are_not() {
        let budget = budget();
        let seats: Vec<Seat> = (0..4).map(|at| budget.admit(at, host(1)).unwrap()).collect();
        assert!(budget.admit(9, host(1)).is_none());
        let other = budget.admit(9, host(2)).unwrap();
        let unix = budget.admit(9, None).unwrap();
        drop((seats, other, unix));
        assert!(budget.admit(9, host(1)).is_some());
    }

    #[test]
    fn addresses_that_one_host_can_choose_are_one_peer() {
        let peer = |text: &str| Peer::at(Some(text.parse().unwrap()), 1);
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        assert_ne!(Peer::at(None, 1), Peer::at(None, 2));
    }

    #[test]
    fn the_usual_limits_are_at_most_a_gibibyte_and_less_on_small_machines() {
        assert_eq!(NbdLimits::default().memory_bytes_max(), 1 << 30);
        assert_eq!(NbdLimits::for_machine(1 << 40).pool_bytes, 512 << 20);
        assert_eq!(NbdLimits::for_machine(1 << 30).pool_bytes, 128 << 20);
        assert_eq!(NbdLimits::for_machine(1 << 20).pool_bytes, 64 << 20);
    }
}
