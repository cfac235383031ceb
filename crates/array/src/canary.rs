//! Deliberate bugs, one line each at the place it sabotages, to prove that the simulator would find
//! their like: see [`canary_switch`](voltier_ring::canary_switch).

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

voltier_ring::canary_switch!(Canary);
