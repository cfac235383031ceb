//! Doors: NBD servers live on the volume's core, FUSE files are mounted from the control thread.

use std::net::ToSocketAddrs;

use voltier_export::ExportError;
use voltier_export::fuse::FuseFile;
use voltier_ring::{Remote, StreamAddress};

use super::{call, on_core};
use crate::error::{ControlError, ControlResult};
use crate::export_spec::{ExportSpec, NbdAddress};
use crate::name::VolumeName;

/// An open door.
pub(super) enum Door {
    /// Its server is on the core, under the same address.
    Nbd(ExportSpec),
    /// The mounted file.
    Fuse(ExportSpec, FuseFile),
}

/// Opens a door to a volume on the core behind `remote`.
pub(super) fn open(remote: &Remote, name: &VolumeName, export: &ExportSpec) -> ControlResult<Door> {
    let volume = name.clone();
    match export {
        ExportSpec::Nbd(address) => {
            let at = resolve(address)?;
            let bound =
                call(
                    remote,
                    move |handle| async move { on_core::serve_nbd(&handle, &volume, &at) },
                )?;
            let real = match (address, bound) {
                (NbdAddress::Tcp { host, .. }, StreamAddress::Tcp(bound)) => {
                    NbdAddress::Tcp { host: host.clone(), port: bound.port() }
                }
                _ => address.clone(),
            };
            Ok(Door::Nbd(ExportSpec::Nbd(real)))
        }
        ExportSpec::Fuse(path) => {
            let door =
                call(remote, move |handle| async move { on_core::serve_file(&handle, &volume) })?;
            let file = door.mount(path).map_err(refused)?;
            Ok(Door::Fuse(export.clone(), file))
        }
    }
}

impl Door {
    pub(super) fn spec(&self) -> &ExportSpec {
        match self {
            Door::Nbd(spec) | Door::Fuse(spec, _) => spec,
        }
    }

    /// Closes it. A file that somebody has open stays, and that is an error.
    pub(super) fn close(&mut self, remote: &Remote, name: &VolumeName) -> ControlResult<()> {
        match self {
            Door::Nbd(ExportSpec::Nbd(address)) => {
                let (volume, at) = (name.clone(), resolve(address)?);
                call(remote, move |_| on_core::stop_nbd(volume, at))
            }
            Door::Nbd(_) => Ok(()),
            Door::Fuse(_, file) => file.stop().map_err(refused),
        }
    }

    /// Clients connected now. A FUSE file does not count them; it refuses to close while in use.
    pub(super) fn clients(&self, remote: &Remote, name: &VolumeName) -> u64 {
        let Door::Nbd(ExportSpec::Nbd(address)) = self else { return 0 };
        let Ok(at) = resolve(address) else { return 0 };
        let volume = name.clone();
        call(remote, move |_| async move { Ok(on_core::nbd_clients(&volume, &at)) }).unwrap_or(0)
    }
}

pub(super) fn refused(error: ExportError) -> ControlError {
    ControlError::failed(error.to_string())
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
