//! The data path of tests: one answer to each question of the control plane, where tests say nothing else.
//!
//! A world of a test is a [`FakeEngine`] that says what the world is about, and leaves the rest to the answers
//! here. [`Fake`] makes an engine of it. So this file is the only one of the tests that knows all questions.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use voltier_control::engine::{
    ArrayDevices, Arrays, CacheHealth, CacheLabel, CacheStart, Caches, Drain, Drives, Exports,
    JournalDeviceLabel, Labels, Log, MemberLabel, Members, OpenedArray, OpenedVolume, Passing,
    Replaced, SpareOwner, Volumes, Waker,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::safety::{
    self, DeviceId, DriveIdentity, Examined, Machine, Role, TakenImage, WriteProtection,
};
use voltier_control::{
    ArrayDetail, ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, ExportAccess,
    ExportSpec, Identity, RegisteredArray, Remote, Settings, VolumeName, VolumeRecord,
    VolumeStatus,
};

/// The engine of a world.
#[derive(Clone, Debug, Default)]
pub struct Fake<T>(pub T);

static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::real);

/// Makes a trait of these answers, and an engine of each world that has it.
macro_rules! answers {
    ($($subject:ident {
        $(fn $name:ident(&$own:ident $(, $arg:ident: $type:ty)*) $(-> $answer:ty)? $body:block)*
    })*) => {
        /// A world for the control plane. What a method does unless a world says something else is written
        /// down here; what an engine does is at the trait of the same method.
        #[expect(unused_variables, reason = "most answers are the same whatever is asked for")]
        pub trait FakeEngine: 'static {
            /// Takes a call in words that may fail.
            ///
            /// # Errors
            /// As the world has it.
            fn call(&self, what: &str, detail: &str) -> ControlResult<()> {
                Ok(())
            }

            $($(
                #[doc = concat!("[`", stringify!($subject), "::", stringify!($name), "`].")]
                fn $name(&$own $(, $arg: $type)*) $(-> $answer)? $body
            )*)*
        }

        $(impl<T: FakeEngine> $subject for Fake<T> {
            $(fn $name(&$own $(, $arg: $type)*) $(-> $answer)? {
                $own.0.$name($($arg),*)
            })*
        })*
    };
}

answers! {
    Log {
        fn set_waker(&self, waker: Waker) {}
        fn log(&self, line: &str) {}
        fn warn(&self, line: &str) { self.log(line); }
    }
    // The drives are those of this machine.
    Drives {
        fn machine(&self) -> &Machine { &MACHINE }
        fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64> {
            Ok(if let DeviceSpec::Memory(bytes) = device { *bytes } else { u64::MAX })
        }
        fn examine(&self, path: &Path, role: Role) -> ControlResult<Examined> {
            safety::examine(&MACHINE, path, role)
        }
        // A world has no network.
        fn examine_remote(&self, remote: &Remote, role: Role) -> ControlResult<Examined> {
            Err(ControlError::failed(format!("{remote}: no server is there")))
        }
        fn take_image_over(&self, remote: &Remote, force: bool) -> ControlResult<TakenImage> {
            Err(ControlError::failed(format!("{remote}: no server is there")))
        }
        fn id_of(&self, path: &Path) -> Option<DeviceId> { DeviceId::of_path(&MACHINE, path) }
        fn is_letting_go(&self, path: &Path) -> bool { false }
        fn is_block_device(&self, path: &Path) -> bool {
            path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
        }
        fn drive_identity(&self, path: &Path) -> Option<DriveIdentity> {
            DriveIdentity::of_path(&MACHINE, path)
        }
        fn find_drive(&self, identity: &DriveIdentity, hint: &Path) -> Option<PathBuf> {
            identity.find(&MACHINE, hint)
        }
        fn drives_with(&self, identity: &DriveIdentity, hint: &Path) -> Vec<PathBuf> {
            identity.find_all(&MACHINE, hint)
        }
        fn own_devices(&self) -> Vec<PathBuf> { safety::own_devices(&MACHINE) }
        fn own_files(&self, folder: &Path) -> Vec<PathBuf> { safety::own_files(&MACHINE, folder) }
        fn around(&self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
            safety::around(&MACHINE, folders)
        }
        fn write_protection(&self, path: &Path) -> Option<WriteProtection> {
            WriteProtection::of(&MACHINE, path)
        }
        fn draw_identity(&self) -> ControlResult<Identity> { Identity::random() }
    }
    // No device has a label.
    Labels {
        fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> { Ok(None) }
        fn journal_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>> {
            Ok(None)
        }
        fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>> { Ok(None) }
        fn label_spare(&self, device: &DeviceSpec, label: &SpareOwner, wipe: bool) -> ControlResult<()> {
            self.call("label", "a spare")
        }
        fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()> { self.call("erase", "label") }
        fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> { Ok(None) }
        fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()> {
            self.call("erase", "cache label")
        }
    }
    // Volumes are open when they are to be, and hold nothing.
    Volumes {
        fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume> {
            self.call("open", record.name.as_str())?;
            let size_bytes = record.size_bytes;
            let cache = record.cache.as_ref().filter(|cache| cache.failed.is_none());
            let generation = cache.map_or(0, |cache| cache.generation.saturating_add(1));
            Ok(OpenedVolume { size_bytes, generation, dirty_lines: 0, evacuates: false })
        }
        fn take_fault(&self, name: &VolumeName) -> Option<String> { None }
        fn close(&self, name: &VolumeName) -> ControlResult<()> { self.call("close", name.as_str()) }
        fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus) {}
    }
    // Caches are clean.
    Caches {
        fn begin_evacuation(&self, name: &VolumeName) -> ControlResult<()> {
            self.call("begin_evacuation", name.as_str())
        }
        fn passing(&self, name: &VolumeName) -> Option<Passing> { None }
        fn passing_is_recorded(&self, name: &VolumeName, number: u64) {}
        fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
            let mode = record.cache.as_ref().map(|cache| cache.settings.mode.to_string());
            self.call("attach", &mode.unwrap_or_default()).map(|()| 1)
        }
        fn quiesce(&self, name: &VolumeName) -> ControlResult<()> { self.call("quiesce", name.as_str()) }
        fn resume(&self, name: &VolumeName) {}
        fn detach(&self, name: &VolumeName, write_back: bool) -> ControlResult<()> {
            self.call("detach", if write_back { "clean" } else { "anyhow" })
        }
        fn configure(&self, name: &VolumeName, settings: &Settings) -> ControlResult<()> {
            self.call("configure", &settings.mode.to_string())
        }
        fn start_drain(&self, name: &VolumeName) -> ControlResult<()> { self.call("drain", name.as_str()) }
        fn end_drain(&self, name: &VolumeName) {}
        fn drain(&self, name: &VolumeName) -> Drain { Drain::Done }
        fn health(&self, name: &VolumeName) -> CacheHealth {
            CacheHealth { dirty_lines: Some(0), ..CacheHealth::default() }
        }
        fn failure_is_recorded(&self, name: &VolumeName) {}
    }
    // Exports have no clients.
    Exports {
        fn export(&self, name: &VolumeName, export: &ExportSpec, access: Option<&ExportAccess>)
            -> ControlResult<ExportSpec>
        {
            self.call("export", export.kind().word).map(|()| export.clone())
        }
        fn check_export(&self, export: &ExportSpec) -> ControlResult<()> { Ok(()) }
        fn unexport(&self, name: &VolumeName, export: &ExportSpec, cut_off: bool) -> ControlResult<()> {
            self.call("unexport", export.kind().word)
        }
        fn clear_dead(&self, export: &ExportSpec) {}
        fn end_kept_but(&self, awaited: &[ExportSpec]) {}
        fn is_kept(&self, export: &ExportSpec) -> bool { false }
        fn end_kept(&self, export: &ExportSpec, why: &str) {}
        fn keep_nothing(&self) {}
        fn handover(&self) -> u32 { 0 }
        fn begin_to_pass(&self) {}
        fn pass_on(&self, name: &VolumeName, export: &ExportSpec) {}
        fn passed(&self) -> ControlResult<Vec<(String, Option<String>)>> { Ok(Vec::new()) }
        fn export_trouble(&self, name: &VolumeName, export: &ExportSpec) -> Option<String> { None }
        fn clients(&self, name: &VolumeName, export: &ExportSpec) -> u64 { 0 }
    }
    // There are no arrays.
    Arrays {
        fn has_array(&self, name: &ArrayName) -> bool { true }
        fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> { refused() }
        fn open_array(&self, record: &RegisteredArray, devices: &[DeviceSpec], force: bool)
            -> ControlResult<OpenedArray>
        {
            refused()
        }
        fn close_array(&self, name: &ArrayName) -> ControlResult<u64> { refused() }
        fn take_array_fault(&self, name: &ArrayName) -> Option<String> { None }
        fn array_head(&self, name: &ArrayName) -> ControlResult<Vec<u8>> { Ok(Vec::new()) }
        fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices> { None }
        fn array_recorded(&self, name: &ArrayName, events: u64) {}
        fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail) {}
    }
    Members {
        fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool> { refused() }
        fn replace_member(&self, name: &ArrayName, place: u32, device: &DeviceSpec)
            -> ControlResult<Replaced>
        {
            refused()
        }
        fn restore_member(&self, name: &ArrayName, place: u32, device: &DeviceSpec) -> ControlResult<bool> {
            refused()
        }
        fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> { refused() }
        fn remove_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<bool> { refused() }
        fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> { refused() }
        fn grow_array(&self, name: &ArrayName, by: Growth, devices: &[DeviceSpec]) -> ControlResult<()> {
            refused()
        }
        fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
            refused()
        }
        fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()> { self.call("rebuild", name.as_str()) }
        fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()> {
            self.call("scrub", &format!("{name} {repair:?}"))
        }
        fn configure_array(&self, name: &ArrayName, settings: &ArraySettings) {}
    }
}

fn refused<T>() -> ControlResult<T> {
    Err(ControlError::failed("this engine has no arrays"))
}
