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
    /// A start goes on from what it found in volatile caches.
    ReplayBeforeFlush,
    /// A replay redoes changes of which a member that is there has no record.
    IncompleteRedone,
    /// A replay leaves the rings as they are: the next one finds the same records again.
    LifeNotBegun,
    /// Zeroes and discards are not journalled.
    ClearsUnrecorded,
    /// A batch is believed whatever its checksum says.
    BatchChecksumIgnored,
    /// A loss is no new event: superblocks speak of it with the old number.
    EventNotRaised,
    /// A change is acknowledged before the loss that it met is on record.
    AnswerBeforeRecord,
    /// A member that the others went on without is taken for one in service.
    StaleBelieved,
    /// Rebuilt content is on record before it is durable.
    PositionBeforeFlush,
    /// A member is called in service before what it has is durable.
    ServiceBeforeFlush,
    /// A member is called rebuilding before it is on record what it lacks.
    JoinBeforeMap,
    /// A member comes into service without a ring of its own.
    RingNotMade,
    /// A device that is filled beside a member takes no writes of requests.
    CopyMissesWrites,
    /// When a member is lost, what it may have missed just before is not called dirty.
    DirtyForgotten,
    /// A scrub takes the data for right where it knows which block is wrong.
    ScrubRewritesParity,
    /// The superblocks say that a window was moved before that is durable.
    MovedBeforeFlush,
    /// Content that is moved over itself is kept nowhere meanwhile.
    MovedWithoutBackup,
    /// A start takes what members keep of a move for what is in place.
    BackupNotRestored,
    /// Requests go on in what is being moved.
    MoveUnfenced,
    /// Requests for what was moved last go to where it was.
    MovedPartMissed,
    /// A start redoes changes of the journal that were made before their rows were moved.
    MovedRedone,
    /// A small write that waits for others is acknowledged while it waits.
    HeldAcknowledged,
    /// A drive comes back while it has requests from when it was a member.
    UndrainedTakenBack,
    /// One write of a chunk goes over gaps between its parts.
    GapsBridged,
    /// A stop in order calls stripes clean in which a write failed.
    HalfWrittenForgotten,
    /// Regions are called clean before the checksums of their blocks are on the medium.
    ChecksumsNotFlushed,
    /// Nothing says which pages of checksums could not be stored.
    VoidPagesForgotten,
    /// A read-modify-write holds none of the blocks that it reads against their checksums.
    ModifyUnverified,
    /// A block whose page of checksums cannot be read is believed.
    UnverifiedBelieved,
    /// A member that refuses a change is given up at once.
    RefusalNotAwaited,
    /// Members that refuse changes together are given up like one that is alone with it.
    CommonRefusalIgnored,
    /// A flush that failed is forgotten: what members dropped is neither kept in the journal nor written anew.
    FailedFlushForgotten,
    /// A stop is one event: a copy of a member that was made before is one event behind, as the member may be.
    CopyNotOutdated,
    /// A device that comes keeps the labels of an earlier use until its own ones are over them.
    OldLabelsKept,
}

voltier_ring::canary_switch!(Canary);
