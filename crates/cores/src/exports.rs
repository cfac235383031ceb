//! Open exports: NBD servers live on the volume's core, FUSE files are mounted from the control thread.

use std::fs;
use std::net::ToSocketAddrs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use voltier_control::{
    ControlError, ControlResult, ExportAccess, ExportSpec, NbdAddress, VolumeName,
};
use voltier_export::fuse::FuseFile;
use voltier_export::nbd::Budget;
use voltier_export::{ExportError, FileAccess};
use voltier_ring::StreamAddress;

use crate::access;
use crate::call::Way;
use crate::volumes;

/// An open export.
pub(super) enum OpenExport {
    /// An NBD server.
    Nbd(ExportSpec, Bound),
    /// The mounted file.
    Fuse(ExportSpec, FuseFile),
}

/// Where an NBD server listens. The core knows the server by that address: a host name may mean another one
/// by now.
pub(super) struct Bound {
    at: StreamAddress,
    /// The socket file.
    file: Option<FileId>,
}

/// A file, by the numbers of its device and inode.
type FileId = (u64, u64);

fn id_of(path: &Path) -> Option<FileId> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Opens an export of a volume on its core.
pub(super) fn open(
    way: &Way,
    name: &VolumeName,
    export: &ExportSpec,
    access: Option<&ExportAccess>,
    budget: &Arc<Budget>,
) -> ControlResult<OpenExport> {
    let volume = name.clone();
    // The user database may be slow: the control thread waits for it, and no core.
    let access = match export.path() {
        Some(path) => access::resolved(access, path)?,
        None => FileAccess::default(),
    };
    match export {
        ExportSpec::Nbd(address) => {
            let (at, budget) = (resolve(address)?, budget.clone());
            let serve = move |handle| async move {
                volumes::serve_nbd(&handle, &volume, &at, access, &budget)
            };
            let bound = way.call(serve)?;
            let real = match (address, &bound) {
                (NbdAddress::Tcp { host, .. }, StreamAddress::Tcp(bound)) => {
                    NbdAddress::Tcp { host: host.clone(), port: bound.port() }
                }
                _ => address.clone(),
            };
            let file = match &bound {
                StreamAddress::Unix(path) => id_of(path),
                StreamAddress::Tcp(_) => None,
            };
            Ok(OpenExport::Nbd(ExportSpec::Nbd(real), Bound { at: bound, file }))
        }
        ExportSpec::Fuse(path) => {
            let file =
                way.call(move |handle| async move { volumes::serve_file(&handle, &volume) })?;
            let file = FuseFile::mount(file, path, access).map_err(ControlError::from_error)?;
            Ok(OpenExport::Fuse(export.clone(), file))
        }
    }
}

impl OpenExport {
    pub(super) fn spec(&self) -> &ExportSpec {
        match self {
            OpenExport::Nbd(spec, _) | OpenExport::Fuse(spec, _) => spec,
        }
    }

    /// Closes the export. A file that somebody has open stays, and that is an error, unless its users are
    /// to be cut off.
    pub(super) fn close(
        &mut self,
        way: &Way,
        name: &VolumeName,
        cut_off: bool,
    ) -> ControlResult<()> {
        match self {
            OpenExport::Nbd(_, bound) => {
                let (volume, at) = (name.clone(), bound.at.clone());
                way.call(move |_| volumes::stop_nbd(volume, at))
            }
            OpenExport::Fuse(_, file) => match file.stop() {
                Err(ExportError::FileInUse(_)) if cut_off => {
                    file.cut_off();
                    Ok(())
                }
                stopped => stopped.map_err(ControlError::from_error),
            },
        }
    }

    /// Why clients cannot come through it any more, if that is so.
    pub(super) fn trouble(&self, way: &Way, name: &VolumeName) -> Option<String> {
        let bound = match self {
            OpenExport::Nbd(_, bound) => bound,
            OpenExport::Fuse(_, file) if file.is_reachable() => return None,
            OpenExport::Fuse(_, file) => {
                let path = file.path().display();
                return Some(format!(
                    "its file {path} was unmounted or covered; `voltier export {name} --fuse {path}` \
                     mounts it again"
                ));
            }
        };
        if let StreamAddress::Unix(path) = &bound.at
            && id_of(path) != bound.file
        {
            let path = path.display();
            return Some(format!(
                "its socket {path} was removed or replaced; `voltier export {name} --nbd unix:{path}` \
                 opens it again"
            ));
        }
        let (volume, at) = (name.clone(), bound.at.clone());
        // If the core does not answer, the volume's own error says so.
        way.ask(move |_| async move { Ok(volumes::nbd_trouble(&volume, &at)) }).unwrap_or_default()
    }

    /// Clients connected now; of a file, how often it is open. A core that does not answer counts as a
    /// client: nobody knows that there is none.
    pub(super) fn clients(&self, way: &Way, name: &VolumeName) -> u64 {
        let bound = match self {
            OpenExport::Nbd(_, bound) => bound,
            OpenExport::Fuse(_, file) => return file.handles(),
        };
        let (volume, at) = (name.clone(), bound.at.clone());
        let clients = move |_| async move { Ok(volumes::nbd_clients(&volume, &at)) };
        way.ask_or_late(clients).map_or(1, |clients| clients.unwrap_or(0))
    }
}

fn resolve(address: &NbdAddress) -> ControlResult<StreamAddress> {
    match address {
        NbdAddress::Unix(path) => Ok(StreamAddress::Unix(path.clone())),
        NbdAddress::Tcp { host, port } => {
            let found =
                (host.as_str(), *port).to_socket_addrs().ok().and_then(|mut all| all.next());
            found.map(StreamAddress::Tcp).ok_or_else(|| {
                ControlError::failed(format!(
                    "`{host}` is not a name or address of this machine; write for example \
                     tcp:127.0.0.1:{port}"
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpStream;

    use voltier_control::engine::{CacheStart, Exports, Volumes};
    use voltier_control::{Desired, Identity, VolumeRecord};

    use super::*;
    use crate::CoreEngine;

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
        match &mut engine.homes.volume(&name).unwrap().exports.get()[0] {
            OpenExport::Nbd(spec, _) => *spec = renamed.clone(),
            OpenExport::Fuse(..) => panic!("asked for NBD"),
        }
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
