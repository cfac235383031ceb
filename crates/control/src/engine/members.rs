//! Members and spares of open arrays, their journals and background tasks.

use crate::array_settings::ArraySettings;
use crate::error::ControlResult;
use crate::name::ArrayName;
use crate::protocol::{Growth, Repair};
use crate::spec::DeviceSpec;

/// How a device came into the place of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The member is lost: all is computed from the others.
    Rebuild,
    /// The device is the lost member itself: only changes since are computed.
    Return,
    /// The member serves until all is copied.
    Copy,
}

/// Changes open arrays.
pub trait Members {
    /// Takes a member out of service, at once and whatever the member does. Whether the other members say so
    /// durably already: they may be waited for themselves.
    ///
    /// # Errors
    /// When the level cannot lose it, or the device is no member.
    fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool>;

    /// Puts a device in the place of a member and begins to fill it. A member in service stays that
    /// until all is copied.
    ///
    /// # Errors
    /// The array is as before then.
    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced>;

    /// Puts a lost member back into its place, if the device is that member and was not used elsewhere
    /// since: what changed meanwhile is computed. `false` of any other device, which is not written to.
    ///
    /// # Errors
    /// The array is as before then.
    fn restore_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool>;

    /// Keeps a device for the next member that is lost, or takes it for one that is.
    ///
    /// # Errors
    /// When the device does not suit.
    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()>;

    /// Takes a spare back from an open array, which closes it; whether the array had it. Nothing is written.
    ///
    /// # Errors
    /// When the device is a member by now, or is about to be one.
    fn remove_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<bool>;

    /// Whether a device suits an open array as a spare; nothing is changed.
    ///
    /// # Errors
    /// The reason why the device does not suit.
    fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()>;

    /// Adds a parity row on these devices, one for each group, and begins to fill it. A member for
    /// capacity is added the same way, and the data begin to move.
    ///
    /// # Errors
    /// The array is as before then, unless a device failed while it was taken in.
    fn grow_array(&self, name: &ArrayName, by: Growth, devices: &[DeviceSpec])
    -> ControlResult<()>;

    /// Puts the journal of an open array on another device, or back on the members.
    ///
    /// # Errors
    /// The array serves on; the journal is where it was, or on the members.
    fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()>;

    /// Starts a rebuild that was cut off.
    ///
    /// # Errors
    /// When nothing is to be rebuilt.
    fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()>;

    /// Starts a scrub.
    ///
    /// # Errors
    /// When a scrub is running.
    fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()>;

    /// Gives an open array its settings.
    fn configure_array(&self, name: &ArrayName, settings: &ArraySettings);
}
