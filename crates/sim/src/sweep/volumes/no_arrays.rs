//! A world without arrays: every request for one is refused.

use voltier_control::engine::{ArrayDevices, Arrays, Members, OpenedArray, Replaced};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::{
    ArrayDetail, ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, RegisteredArray,
};

use super::engine::SimEngine;

fn refused<T>() -> ControlResult<T> {
    Err(ControlError::failed("this engine has no arrays"))
}

impl Arrays for SimEngine {
    fn create_array(&self, _: &RegisteredArray) -> ControlResult<OpenedArray> {
        refused()
    }

    fn open_array(
        &self,
        _: &RegisteredArray,
        _: &[DeviceSpec],
        _: bool,
    ) -> ControlResult<OpenedArray> {
        refused()
    }

    fn close_array(&self, _: &ArrayName) -> ControlResult<u64> {
        refused()
    }

    fn array_head(&self, _: &ArrayName) -> ControlResult<Vec<u8>> {
        refused()
    }

    fn array_devices(&self, _: &ArrayName) -> Option<ArrayDevices> {
        None
    }

    fn array_recorded(&self, _: &ArrayName, _: u64) {}

    fn fill_array_status(&self, _: &ArrayName, _: &mut ArrayDetail) {}
}

impl Members for SimEngine {
    fn fail_member(&self, _: &ArrayName, _: u32) -> ControlResult<bool> {
        refused()
    }

    fn replace_member(&self, _: &ArrayName, _: u32, _: &DeviceSpec) -> ControlResult<Replaced> {
        refused()
    }

    fn restore_member(&self, _: &ArrayName, _: u32, _: &DeviceSpec) -> ControlResult<bool> {
        refused()
    }

    fn add_spare(&self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        refused()
    }

    fn check_spare(&self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        refused()
    }

    fn grow_array(&self, _: &ArrayName, _: Growth, _: &[DeviceSpec]) -> ControlResult<()> {
        refused()
    }

    fn set_journal(&self, _: &ArrayName, _: Option<&DeviceSpec>) -> ControlResult<()> {
        refused()
    }

    fn start_rebuild(&self, _: &ArrayName) -> ControlResult<()> {
        refused()
    }

    fn start_scrub(&self, _: &ArrayName, _: Repair) -> ControlResult<()> {
        refused()
    }

    fn configure_array(&self, _: &ArrayName, _: &ArraySettings) {}
}
