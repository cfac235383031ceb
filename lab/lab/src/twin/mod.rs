//! Twins: the real engine on modelled drives, beside published measurements of other products.
//!
//! A twin takes the drives of a published test bed as models, calibrated on what was measured on each
//! drive alone. The twin puts Voltier's engine in the place of the product, and repeats the published
//! load in virtual time. Everything here is a simulation: a twin says what the engine makes of the
//! drives, not what processor time that takes.
//!
//! [`load`] drives any device, [`calibration`] holds a model against what was measured, [`report`]
//! is the table that every twin ends in. One file for each twin.

pub mod calibration;
mod cubefs;
mod era;
mod extent;
mod fusionio;
pub mod load;
mod maxio;
mod maxiq;
pub mod published;
pub mod report;

use std::fmt;
use std::str::FromStr;

pub use extent::Extent;
pub use report::Report;

/// A published test bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// MaxIO: an SSD cache before a disk.
    Maxio,
    /// RAIDIX ERA: RAID 6 over twelve NVMe drives.
    Era,
    /// Adaptec MaxIQ: a learning read cache before two striped disks.
    Maxiq,
    /// Fusion-io ioDrive under Oracle Orion.
    Fusionio,
    /// CubeFS: clients, links and storage nodes.
    Cubefs,
}

impl Twin {
    /// All of them, with their names on the command line.
    pub const ALL: [(&'static str, Twin); 5] = [
        ("maxio", Twin::Maxio),
        ("era", Twin::Era),
        ("maxiq", Twin::Maxiq),
        ("fusionio", Twin::Fusionio),
        ("cubefs", Twin::Cubefs),
    ];

    /// Runs it.
    ///
    /// # Panics
    /// If an engine fails on drives that do not fail: a bug.
    pub fn run(self, extent: Extent) -> Report {
        match self {
            Twin::Maxio => maxio::run(extent),
            Twin::Era => era::run(extent),
            Twin::Maxiq => maxiq::run(extent),
            Twin::Fusionio => fusionio::run(extent),
            Twin::Cubefs => cubefs::run(extent),
        }
    }
}

/// Two cells of [`Twin::Era`]: writes and reads of 4 KiB at random, with the windows of the full form.
///
/// # Panics
/// If an engine fails on drives that do not fail: a bug.
pub fn era_random_4k() -> Report {
    era::random_4k()
}

impl fmt::Display for Twin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|entry| entry.1 == *self).expect("all are named").0;
        out.pad(name)
    }
}

impl FromStr for Twin {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|entry| entry.0 == name);
        known.map(|entry| entry.1).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|entry| entry.0).collect();
            format!("no twin is named '{name}': use one of {}", names.join(", "))
        })
    }
}
