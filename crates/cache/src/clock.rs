//! Two clocks: that of the ring, which never goes back, and that of the wall, which tells times to the next start.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use voltier_block::Nanos;
use voltier_ring::Handle;

/// Nanoseconds since 1970; 0 where nobody knows the time.
pub type WallNanos = u64;

/// Where a cache gets the wall time from. By default nobody knows it.
#[derive(Clone, Default)]
pub struct WallClock(Option<Rc<dyn Fn() -> WallNanos>>);

impl fmt::Debug for WallClock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("WallClock").field(&self.0.is_some()).finish()
    }
}

impl WallClock {
    /// A clock of the caller's.
    pub fn new(clock: impl Fn() -> WallNanos + 'static) -> Self {
        Self(Some(Rc::new(clock)))
    }

    /// The clock of the system.
    #[expect(
        clippy::disallowed_methods,
        reason = "a date for the next start; the simulator has its own"
    )]
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
        })
    }

    fn now(&self) -> WallNanos {
        self.0.as_ref().map_or(0, |clock| clock())
    }
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) ns: Nanos,
    pub(crate) wall_ns: WallNanos,
}

/// Both clocks of one cache. A wall clock that is set back stands still until it has caught up.
pub(crate) struct Clock {
    handle: Handle,
    wall: WallClock,
    latest_wall_ns: Cell<WallNanos>,
}

impl Clock {
    pub(crate) fn new(handle: Handle, wall: WallClock) -> Rc<Self> {
        Rc::new(Self { handle, wall, latest_wall_ns: Cell::new(0) })
    }

    pub(crate) fn now(&self) -> Moment {
        let wall_ns = self.wall.now().max(self.latest_wall_ns.get());
        self.latest_wall_ns.set(wall_ns);
        Moment { ns: self.handle.now(), wall_ns }
    }
}

#[cfg(test)]
mod tests {
    use voltier_ring::{Executor, NoFiles};

    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_back_stands_still() {
        let executor = Executor::in_virtual_time(NoFiles);
        let shown = Rc::new(Cell::new(0));
        let own = shown.clone();
        let clock = Clock::new(executor.handle(), WallClock::new(move || own.get()));
        let mut look = |wall_ns| {
            shown.set(wall_ns);
            clock.now().wall_ns
        };
        assert_eq!([5, 9, 3, 8, 10].map(&mut look), [5, 9, 9, 9, 10]);
        let nobody = Clock::new(executor.handle(), WallClock::default());
        assert_eq!(nobody.now().wall_ns, 0);
        assert!(WallClock::system().now() > 0);
    }
}
