//! The last search for the devices of an array.

use std::path::PathBuf;

use crate::name::ArrayName;
use crate::spec::DeviceSpec;

/// The last search for the devices of an array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// All that was there to be looked at; none of an array that nobody searched for.
    pub(crate) around: Option<Vec<(PathBuf, u64)>>,
    /// Devices with a mark of Voltier's that somebody had, or that did not answer.
    pub(crate) hindered: Vec<DeviceSpec>,
    /// The devices that say they are of the array.
    pub(crate) ours: Vec<DeviceSpec>,
    /// Devices that say they are the same member.
    pub(crate) copies: Vec<Copied>,
    /// Devices that were found under other paths since the daemon started: a line each.
    pub(crate) moved: Vec<String>,
}

/// Two devices that say they are the same member.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    pub(crate) place: u32,
    pub(crate) devices: [DeviceSpec; 2],
    /// The other members that are there.
    pub(crate) others: Vec<DeviceSpec>,
}

impl Copied {
    /// The refusal of both.
    pub(crate) fn line(&self, name: &ArrayName) -> String {
        let (place, [one, other]) = (self.place, &self.devices);
        let others: String = self.others.iter().map(|it| format!(" {it}")).collect();
        format!(
            "{one} and {other} both say that they are member {place} of {name}, so one is a copy, and \
             neither is used; disconnect the copy, or name the right devices: `voltier array assemble \
             {one}{others}` or `voltier array assemble {other}{others}`"
        )
    }
}
