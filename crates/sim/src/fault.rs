//! The fault model: every kind of fault that a world can make, and who draws it.
//!
//! `docs/internals/fault-model.md` has a row for each kind: which layer must survive it, and how.

use voltier_block::Prng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// One read fails; the next one of the same place works.
    ReadErrorOnce,
    /// Reads of a range fail until the drive is mended.
    ReadErrorRange,
    /// From now on every read of the drive fails.
    ReadErrorForEver,
    /// One write fails, having changed any part of its blocks.
    WriteErrorOnce,
    /// Writes to a range fail until the drive is mended.
    WriteErrorRange,
    /// From now on every write to the drive fails.
    WriteErrorForEver,
    /// One flush fails and makes nothing durable.
    FlushError,
    /// One flush fails, and any part of what it was for is lost. Later flushes fail until the owner of the
    /// drive has seen to that.
    FlushLoss,
    /// A crash leaves some blocks of a write and not the others.
    TornWrite,
    /// A power cut takes a completed write that no flush covered.
    LostWrite,
    /// A write is answered, but its data go to another place.
    MisdirectedWrite,
    /// A bit on the medium turns over.
    BitRot,
    /// One request takes hundreds of times as long as others.
    LatencySpike,
    /// One read takes hundreds of times as long; writes go on beside it, and the log goes round.
    SlowRead,
    /// A request is not answered until the drive is lost, or the kernel gives it up.
    StuckIo,
    /// A drive answers nothing for a time, then does all that it was asked for, in any order.
    HungDrive,
    /// The drive is gone: every request fails.
    DriveLoss,
    /// A drive that was gone is there again at the next start.
    DriveReturn,
    /// All drives lose their power at once.
    PowerCut,
    /// The process dies, the drives live on.
    DaemonKill,
    /// At a start, the SSD is an older copy of itself.
    StaleSsd,
    /// At a start, SSD and origin have changed places.
    WrongOrder,
    /// At a start, another drive is in the place of the origin, or somebody else wrote to the origin.
    ForeignOrigin,
    /// At a start, the origin has become larger.
    GrownOrigin,
    /// At a start, a drive is not there, and comes within the hold-off.
    LateDrive,
    /// A drive refuses requests for a time, alone or with all others of its adapter.
    Refusal,
    /// The connection to a server breaks, with requests carried out or not.
    BrokenConnection,
    /// A server dies with what was not flushed, and comes back.
    ServerDeath,
    /// A server answers a request twice.
    RepeatedAnswer,
    /// A host does not reach its image for a time, and no answer reaches the host.
    CutOff,
    /// Another host breaks the lock of an image, and serves it.
    Takeover,
}

/// A request, as far as faults are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Read,
    Write,
    Flush,
    /// A discard or a zeroing.
    Give,
}

impl FaultKind {
    /// All kinds, in the order of the tables.
    pub const ALL: [FaultKind; 31] = [
        FaultKind::ReadErrorOnce,
        FaultKind::ReadErrorRange,
        FaultKind::ReadErrorForEver,
        FaultKind::WriteErrorOnce,
        FaultKind::WriteErrorRange,
        FaultKind::WriteErrorForEver,
        FaultKind::FlushError,
        FaultKind::FlushLoss,
        FaultKind::TornWrite,
        FaultKind::LostWrite,
        FaultKind::MisdirectedWrite,
        FaultKind::BitRot,
        FaultKind::LatencySpike,
        FaultKind::SlowRead,
        FaultKind::StuckIo,
        FaultKind::HungDrive,
        FaultKind::DriveLoss,
        FaultKind::DriveReturn,
        FaultKind::PowerCut,
        FaultKind::DaemonKill,
        FaultKind::StaleSsd,
        FaultKind::WrongOrder,
        FaultKind::ForeignOrigin,
        FaultKind::GrownOrigin,
        FaultKind::LateDrive,
        FaultKind::Refusal,
        FaultKind::BrokenConnection,
        FaultKind::ServerDeath,
        FaultKind::RepeatedAnswer,
        FaultKind::CutOff,
        FaultKind::Takeover,
    ];

    /// Kinds that a drive makes at one of its requests, and that a seed draws. A seed has no slow reads
    /// of their own: they are among its latency spikes. Flushes that lose something are drawn apart.
    pub const OF_REQUESTS: [FaultKind; 12] = [
        FaultKind::ReadErrorOnce,
        FaultKind::ReadErrorRange,
        FaultKind::ReadErrorForEver,
        FaultKind::WriteErrorOnce,
        FaultKind::WriteErrorRange,
        FaultKind::WriteErrorForEver,
        FaultKind::FlushError,
        FaultKind::MisdirectedWrite,
        FaultKind::BitRot,
        FaultKind::LatencySpike,
        FaultKind::StuckIo,
        FaultKind::DriveLoss,
    ];

    /// The name in tables, documents and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::ReadErrorOnce => "read-error-once",
            FaultKind::ReadErrorRange => "read-error-range",
            FaultKind::ReadErrorForEver => "read-error-for-ever",
            FaultKind::WriteErrorOnce => "write-error-once",
            FaultKind::WriteErrorRange => "write-error-range",
            FaultKind::WriteErrorForEver => "write-error-for-ever",
            FaultKind::FlushError => "flush-error",
            FaultKind::FlushLoss => "flush-loss",
            FaultKind::TornWrite => "torn-write",
            FaultKind::LostWrite => "lost-write",
            FaultKind::MisdirectedWrite => "misdirected-write",
            FaultKind::BitRot => "bit-rot",
            FaultKind::LatencySpike => "latency-spike",
            FaultKind::SlowRead => "slow-read",
            FaultKind::StuckIo => "stuck-io",
            FaultKind::HungDrive => "hung-drive",
            FaultKind::DriveLoss => "drive-loss",
            FaultKind::DriveReturn => "drive-return",
            FaultKind::PowerCut => "power-cut",
            FaultKind::DaemonKill => "daemon-kill",
            FaultKind::StaleSsd => "stale-ssd",
            FaultKind::WrongOrder => "wrong-order",
            FaultKind::ForeignOrigin => "foreign-origin",
            FaultKind::GrownOrigin => "grown-origin",
            FaultKind::LateDrive => "late-drive",
            FaultKind::Refusal => "refusal",
            FaultKind::BrokenConnection => "broken-connection",
            FaultKind::ServerDeath => "server-death",
            FaultKind::RepeatedAnswer => "repeated-answer",
            FaultKind::CutOff => "cut-off",
            FaultKind::Takeover => "takeover",
        }
    }

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<FaultKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether a client may see an error because of it.
    pub(crate) const fn excuses_errors(self) -> bool {
        !matches!(
            self,
            FaultKind::TornWrite
                | FaultKind::LostWrite
                | FaultKind::LatencySpike
                | FaultKind::SlowRead
                | FaultKind::HungDrive
                | FaultKind::PowerCut
                | FaultKind::DaemonKill
                | FaultKind::LateDrive
                | FaultKind::Refusal
                | FaultKind::BrokenConnection
                | FaultKind::ServerDeath
                | FaultKind::RepeatedAnswer
                | FaultKind::CutOff
                | FaultKind::Takeover
        )
    }

    fn strikes(self, request: Request) -> bool {
        match self {
            FaultKind::ReadErrorOnce
            | FaultKind::ReadErrorRange
            | FaultKind::ReadErrorForEver
            | FaultKind::SlowRead => request == Request::Read,
            FaultKind::WriteErrorOnce
            | FaultKind::WriteErrorRange
            | FaultKind::WriteErrorForEver => matches!(request, Request::Write | Request::Give),
            FaultKind::MisdirectedWrite => request == Request::Write,
            FaultKind::FlushError | FaultKind::FlushLoss => request == Request::Flush,
            _ => true,
        }
    }
}

/// The faults of a drive, and how often each strikes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultMix {
    /// A kind of [`FaultKind::OF_REQUESTS`], slow reads or losing flushes, and that it strikes one in so many
    /// requests.
    pub rates: Vec<(FaultKind, u64)>,
}

impl FaultMix {
    /// Whether nothing can happen.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// Whether this kind can happen.
    pub fn has(&self, kind: FaultKind) -> bool {
        self.rates.iter().any(|rate| rate.0 == kind)
    }

    /// Takes kinds out.
    pub fn without(&mut self, kinds: &[FaultKind]) {
        self.rates.retain(|rate| !kinds.contains(&rate.0));
    }

    pub(crate) fn draw(&self, request: Request, prng: &mut Prng) -> Option<FaultKind> {
        let strikes = |rate: &&(FaultKind, u64)| rate.0.strikes(request) && prng.one_in(rate.1);
        self.rates.iter().find(strikes).map(|rate| rate.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/internals/fault-model.md");

    #[test]
    fn every_kind_has_one_name_and_one_place_in_the_list() {
        for (number, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{kind:?}");
            assert_eq!(FaultKind::of_name(kind.name()), Some(kind));
        }
    }

    #[test]
    fn every_kind_has_a_row_in_the_document_and_every_row_a_kind() {
        let cell = |line: &str| line.split('`').nth(1).map(str::to_owned);
        let rows: Vec<String> =
            PAGE.lines().filter(|line| line.starts_with("| `")).filter_map(cell).collect();
        let kinds: Vec<&str> = FaultKind::ALL.into_iter().map(FaultKind::name).collect();
        assert_eq!(rows, kinds, "docs/internals/fault-model.md has one row a kind, in this order");
    }
}
