//! Deliberate bugs, one line each at the place it sabotages, to prove that the simulator would find
//! their like. They exist only with the feature `canaries`, which nothing but that proof turns on:
//! without it `is` is a constant `false` and the compiler removes every trace.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Members are written although the journal's records may be in a volatile cache.
    RecordNotDurable,
    /// Members are written while the records are on their way.
    CommitBeforeRecord,
    /// Room in a ring is used again although a replay still needs what is there.
    RoomReusedEarly,
    /// The watermark passes changes that no flush covered.
    WatermarkBeforeFlush,
    /// Requests go on without a member before the others know that it is lost.
    LossNotRecorded,
    /// A replay redoes what it found in volatile caches.
    ReplayBeforeFlush,
    /// A replay redoes changes of which a member that is there has no record.
    IncompleteRedone,
    /// A replay leaves the rings as they are: the next one finds the same records again.
    LifeNotBegun,
    /// Zeroes and discards are not journalled.
    ClearsUnrecorded,
    /// A batch is believed whatever its checksum says.
    BatchChecksumIgnored,
}

#[cfg(feature = "canaries")]
mod chosen {
    use std::cell::Cell;

    use super::Canary;

    thread_local! {
        static CHOSEN: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Has this thread's arrays behave with this bug from now on, or with none.
    pub fn choose(canary: Option<Canary>) {
        CHOSEN.set(canary);
    }

    pub(crate) fn is(canary: Canary) -> bool {
        CHOSEN.get() == Some(canary)
    }
}

#[cfg(feature = "canaries")]
pub use chosen::choose;
#[cfg(feature = "canaries")]
pub(crate) use chosen::is;

#[cfg(not(feature = "canaries"))]
pub(crate) const fn is(_: Canary) -> bool {
    false
}
