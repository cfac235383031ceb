//! Open exports. Each kind has a module with the function that opens it: the match in [`open`] is their list.

mod fuse;
pub(crate) mod keeping;
mod loop_device;
mod nbd;
pub(super) mod open_export;
pub(super) mod servers;

use std::sync::Arc;

use voltier_control::{ControlError, ControlResult, ExportAccess, ExportSpec, VolumeName};
use voltier_export::FileAccess;
use voltier_export::fuse::FuseFile;
use voltier_export::loop_device::LoopDevice;
use voltier_export::nbd::Budget;
use voltier_ring::StreamAddress;

use crate::access;
use crate::call::Way;
use crate::exports::keeping::Keeping;
use crate::exports::open_export::{Opened, Opener};

/// Opens an export of a volume on its core.
pub(super) fn open(
    way: &Way,
    name: &VolumeName,
    export: &ExportSpec,
    access: Option<&ExportAccess>,
    budget: &Arc<Budget>,
    keeping: Option<(&Keeping, [u8; 16])>,
) -> ControlResult<Opened> {
    // The user database may be slow: the control thread waits for it, and no core.
    let access = match export.path() {
        Some(path) => access::resolved(access, path)?,
        None => FileAccess::default(),
    };
    let opener = Opener { way, name, access, budget, keeping };
    match export {
        ExportSpec::Nbd(address) => nbd::open(opener, address),
        ExportSpec::Fuse(path) => fuse::open(opener, path),
        ExportSpec::Loop { device, file } => loop_device::open(opener, device, file),
    }
}

/// Where a server of the network listens, as far as its host is known now.
pub(super) fn listens_at(export: &ExportSpec) -> Option<StreamAddress> {
    match export {
        ExportSpec::Nbd(address) => nbd::resolve(address).ok(),
        ExportSpec::Fuse(_) | ExportSpec::Loop { .. } => None,
    }
}

/// Checks what an export needs before anything is changed for it.
pub(super) fn check(export: &ExportSpec) -> ControlResult<()> {
    let checked = match export {
        ExportSpec::Nbd(_) => Ok(()),
        ExportSpec::Fuse(path) => FuseFile::check(path),
        ExportSpec::Loop { device, file } => {
            LoopDevice::check(device, file).and_then(|()| FuseFile::check(file))
        }
    };
    checked.map_err(ControlError::from_error)
}

/// Clears away what a daemon that crashed left where an export is.
pub(super) fn clear_dead(export: &ExportSpec) {
    if let ExportSpec::Loop { device, file } = export {
        voltier_export::loop_device::clear_dead(device, file);
    }
    match export {
        ExportSpec::Nbd(_) => {}
        ExportSpec::Fuse(file) => voltier_export::fuse::clear_dead(file),
        // In the state folder, which this daemon has for itself.
        ExportSpec::Loop { file, .. } => voltier_export::fuse::clear_own(file),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::net::TcpStream;
    use std::path::Path;

    use voltier_control::engine::{CacheStart, Exports, Volumes};
    use voltier_control::{Desired, Identity, NbdAddress, VolumeRecord};

    use super::*;
    use crate::core_engine::CoreEngine;

    /// A volume in memory, open on one core.
    fn engine() -> (CoreEngine, VolumeName) {
        let name: VolumeName = "v".parse().unwrap();
        let record = VolumeRecord {
            name: name.clone(),
            uuid: Identity([1; 16]),
            size_bytes: 1 << 20,
            origin: "mem:1M".parse().unwrap(),
            origin_identity: None,
            cache: None,
            exports: Vec::new(),
            export_access: BTreeMap::new(),
            desired: Desired::Serving,
        };
        let engine = CoreEngine::start(1).unwrap();
        engine.open(&record, CacheStart::Load).unwrap();
        (engine, name)
    }

    #[test]
    fn an_export_whose_host_name_means_nothing_any_more_is_closed_where_it_listens() {
        let (engine, name) = engine();
        let asked = ExportSpec::Nbd("tcp:127.0.0.1:0".parse().unwrap());
        let ExportSpec::Nbd(NbdAddress::Tcp { port, .. }) =
            engine.export(&name, &asked, None).unwrap()
        else {
            panic!("asked for TCP")
        };
        let renamed = NbdAddress::Tcp { host: "gone.invalid".to_owned(), port };
        let renamed = ExportSpec::Nbd(renamed);
        engine.homes.volume(&name).unwrap().exports.get()[0].spec = renamed.clone();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        while engine.clients(&name, &renamed) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(engine.export_trouble(&name, &renamed), None);
        engine.unexport(&name, &renamed, false).unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "somebody listens there still");
        drop(client);
        engine.close(&name).unwrap();
    }

    #[test]
    fn a_socket_that_somebody_removed_is_told() {
        let (engine, name) = engine();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let export = ExportSpec::Nbd(NbdAddress::Unix(path.clone()));
        engine.export(&name, &export, None).unwrap();
        assert_eq!(engine.export_trouble(&name, &export), None);
        fs::remove_file(&path).unwrap();
        let told = engine.export_trouble(&name, &export).unwrap();
        assert!(told.contains("removed or replaced"), "{told}");
        engine.unexport(&name, &export, false).unwrap();
        engine.close(&name).unwrap();
    }

    #[test]
    fn a_file_that_somebody_unmounted_is_told_and_can_be_mounted_again() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            println!("skipped: needs root and /dev/fuse");
            return;
        }
        let (engine, name) = engine();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.img");
        let export = ExportSpec::Fuse(path.clone());
        engine.export(&name, &export, None).unwrap();
        assert_eq!(engine.export_trouble(&name, &export), None);
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
        let told = engine.export_trouble(&name, &export).unwrap();
        assert!(told.contains("unmounted or covered"), "{told}");
        engine.unexport(&name, &export, false).unwrap();
        engine.export(&name, &export, None).unwrap();
        assert_eq!(engine.export_trouble(&name, &export), None);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        engine.unexport(&name, &export, false).unwrap();
        engine.close(&name).unwrap();
    }
}
