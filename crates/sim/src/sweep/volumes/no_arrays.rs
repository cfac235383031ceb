//! A world without arrays: every request for one is refused.

use voltier_control::engine::{
    ArrayDevices, ArrayEngine, JournalDeviceLabel, MemberLabel, OpenedArray, Replaced, SpareLabel,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::{
    ArrayDetail, ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, RegisteredArray,
};

use super::engine::SimEngine;

fn refused<T>() -> ControlResult<T> {
    Err(ControlError::failed("this engine has no arrays"))
}

impl ArrayEngine for SimEngine {
    fn label_of(&mut self, _: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        refused()
    }

    fn journal_label_of(&mut self, _: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>> {
        Ok(None)
    }

    fn spare_label_of(&mut self, _: &DeviceSpec) -> ControlResult<Option<SpareLabel>> {
        Ok(None)
    }

    fn label_spare(&mut self, _: &DeviceSpec, _: &SpareLabel, _: bool) -> ControlResult<()> {
        refused()
    }

    fn create_array(&mut self, _: &RegisteredArray) -> ControlResult<OpenedArray> {
        refused()
    }

    fn open_array(
        &mut self,
        _: &RegisteredArray,
        _: &[DeviceSpec],
        _: bool,
    ) -> ControlResult<OpenedArray> {
        refused()
    }

    fn close_array(&mut self, _: &ArrayName) -> ControlResult<()> {
        refused()
    }

    fn erase_label(&mut self, _: &DeviceSpec) -> ControlResult<()> {
        refused()
    }

    fn array_head(&mut self, _: &ArrayName) -> ControlResult<Vec<u8>> {
        refused()
    }

    fn fail_member(&mut self, _: &ArrayName, _: u32) -> ControlResult<()> {
        refused()
    }

    fn replace_member(&mut self, _: &ArrayName, _: u32, _: &DeviceSpec) -> ControlResult<Replaced> {
        refused()
    }

    fn take_back(&mut self, _: &ArrayName, _: u32, _: &DeviceSpec) -> ControlResult<bool> {
        refused()
    }

    fn add_spare(&mut self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        refused()
    }

    fn check_spare(&mut self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        refused()
    }

    fn grow_array(&mut self, _: &ArrayName, _: Growth, _: &[DeviceSpec]) -> ControlResult<()> {
        refused()
    }

    fn set_journal(&mut self, _: &ArrayName, _: Option<&DeviceSpec>) -> ControlResult<()> {
        refused()
    }

    fn start_rebuild(&mut self, _: &ArrayName) -> ControlResult<()> {
        refused()
    }

    fn start_scrub(&mut self, _: &ArrayName, _: Repair) -> ControlResult<()> {
        refused()
    }

    fn configure_array(&mut self, _: &ArrayName, _: &ArraySettings) {}

    fn array_devices(&mut self, _: &ArrayName) -> Option<ArrayDevices> {
        None
    }

    fn fill_array_status(&mut self, _: &ArrayName, _: &mut ArrayDetail) {}
}
