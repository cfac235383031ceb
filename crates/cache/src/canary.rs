//! Deliberate bugs, one line each at the place it sabotages, to prove that the simulator would find
//! their like: see [`canary_switch`](voltier_ring::canary_switch).

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Acknowledged records are called durable without a flush of the SSD.
    FlushSkipped,
    /// A record's head is believed whatever its checksum says.
    RecordChecksumIgnored,
    /// A start takes the last records without looking at the data of their lines.
    TornDataTaken,
    /// Lines read from the SSD are believed whatever their checksum says.
    DataChecksumIgnored,
    /// The superblock names a checkpoint whose body is not durable yet.
    LabelBeforeBody,
    /// News that the origin has a line makes a newer copy of it clean.
    DirtyBitLost,
    /// A start brings back what a record says was dropped.
    DropForgotten,
    /// A line of which only a part was written counts as whole.
    MergeTorn,
    /// A segment is written again although a replay still begins before its records.
    SegmentReusedEarly,
    /// A write past the log begins before its intent bit is on the SSD.
    IntentSkipped,
    /// Ordered mode destages without regard to epochs.
    EpochsMixed,
    /// Writes share their lines with each other.
    LockShared,
    /// A record is acknowledged although an earlier one is still on its way.
    AckOutOfOrder,
    /// A line is called clean before the origin has flushed it.
    CleanBeforeFlush,
    /// A line goes to the origin before it is durable on the SSD.
    DestageBeforeDurable,
    /// A write is answered when a newer one of its range begins in its place.
    OverwrittenAnsweredEarly,
    /// The origin serves lines it does not have as they are on the SSD.
    CongestedUnchecked,
    /// Records that an earlier crash had cut off are taken by the next start.
    GenerationIgnored,
    /// A line that is still on its way to the SSD is read from there.
    PendingRead,
    /// A segment is prepared although reads are under way in it.
    PinIgnored,
    /// One read in some keeps its segment pinned.
    PinLeaked,
    /// A miss keeps its buffer for ever.
    BufferLeaked,
    /// Holes between the dirty lines of a stripe are written back without their locks.
    HolesUnlocked,
    /// A client's write goes to the origin in an evacuation, whatever is dirty there.
    EvacuationPassed,
    /// The same once the dirty lines of its region are there, and nothing is on record.
    PassUnrecorded,
    /// The same when that is on record, whatever is dirty there.
    PassBesideDirty,
    /// Records that a log had not acknowledged when it ended stay in the map.
    RecordNotUndone,
    /// Records that failed are acknowledged when a log ends, whatever the SSD has of them.
    RecordNotReadBack,
    /// Records that failed are undone when a log ends, although the SSD has them.
    WholeRecordUndone,
    /// A failed flush of the SSD makes records durable.
    FailedFlushBelieved,
    /// After a failed flush of the origin another one calls lines clean that nobody has written again.
    FailedFlushForgotten,
    /// An origin is believed whatever the sample of clean lines says.
    SampleIgnored,
    /// An SSD that does not answer is given up although lines are dirty on it.
    SilentSsdGivenUp,
    /// The origin serves dirty lines while the SSD does not answer.
    SilentSsdPassed,
    /// A sample has lines of regions that were being written past the log.
    IntentBitsUnasked,
    /// Zeroes go past the log where the log has the newest copy of a line.
    ZeroesPassDirty,
    /// A stream for which the SSD has no room goes past the log where that has the newest copy of a line.
    StreamsPassDirty,
    /// A long range is locked while requests for its lines are under way.
    LongLockEarly,
    /// A discard drops what is cached, and not what a queued change is to bring in.
    QueuedLinesStay,
    /// Writes do not wait for the bound of what a loss of the SSD would take.
    BoundNotKept,
    /// The newest flush of a client is said to be on the origin, whatever waits to be written there.
    FlushToldEarly,
    /// In ordered mode the cleaner waits for space in the log that only the cleaner can make.
    NewsWaitedFor,
}

voltier_ring::canary_switch!(Canary);
