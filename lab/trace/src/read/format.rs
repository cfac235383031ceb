//! The formats, by name and by content.

use std::fmt;
use std::str::FromStr;

/// A format of block traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MSR Cambridge CSV.
    Msr,
    /// CloudPhysics, binary records of 32 bytes (version 1) or 40 (version 2).
    CloudPhysics,
    /// Alibaba block traces CSV.
    Alibaba,
    /// Tencent block traces CSV.
    Tencent,
    /// fio's log, version 2 or 3.
    Iolog,
    /// blktrace, binary, of one processor or merged.
    Blktrace,
    /// The text that blkparse prints.
    Blkparse,
    /// Text of `start count ignored sequence`, blocks.
    Lis,
    /// One block number after the other, 32 bits, little endian.
    U32,
    /// libCacheSim's oracleGeneral.
    OracleGeneral,
}

impl Format {
    /// Every format: its name and what it is.
    pub const ALL: [(Format, &'static str, &'static str); 10] = [
        (Format::Msr, "msr", "MSR Cambridge: CSV, Windows time in 100 ns, bytes"),
        (Format::CloudPhysics, "cloudphysics", "CloudPhysics: vscsi records, us, sectors"),
        (Format::Alibaba, "alibaba", "Alibaba: CSV device,R|W,offset,length,us"),
        (Format::Tencent, "tencent", "Tencent: CSV seconds,sector,sectors,0|1,volume"),
        (Format::Iolog, "iolog", "fio's log, versions 2 and 3"),
        (
            Format::Blktrace,
            "blktrace",
            "blktrace: binary, per processor or merged; queued requests",
        ),
        (Format::Blkparse, "blkparse", "the text of blkparse; queued requests"),
        (
            Format::Lis,
            "lis",
            "text: start count ignored sequence, in blocks; no times; by name only",
        ),
        (Format::U32, "u32", "block numbers of 32 bits; no times; by name only"),
        (
            Format::OracleGeneral,
            "oracle-general",
            "libCacheSim: seconds, block, bytes; by name only",
        ),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|known| known.0 == self).expect("all are named").1
    }

    /// All names, for messages.
    pub fn names() -> String {
        Self::ALL.map(|known| known.1).join(", ")
    }

    /// Whether requests carry the time at which they were made.
    pub fn has_times(self) -> bool {
        !matches!(self, Format::Lis | Format::U32)
    }

    /// Whether the format's records are lines of text.
    pub(super) fn is_text(self) -> bool {
        use Format::{Alibaba, Blkparse, Iolog, Lis, Msr, Tencent};
        matches!(self, Msr | Alibaba | Tencent | Iolog | Blkparse | Lis)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|known| known.1 == name);
        let unknown = || format!("no trace format is named `{name}`: known are {}", Self::names());
        known.map(|known| known.0).ok_or_else(unknown)
    }
}
