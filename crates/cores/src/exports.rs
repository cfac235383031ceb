//! Open exports: NBD servers live on the volume's core, FUSE files are mounted from the control thread.

use std::net::ToSocketAddrs;

use voltier_control::{ControlError, ControlResult, ExportSpec, NbdAddress, VolumeName};
use voltier_export::ExportError;
use voltier_export::fuse::FuseFile;
use voltier_ring::{Remote, StreamAddress};

use crate::call::call;
use crate::volumes;

/// An open export.
pub(super) enum OpenExport {
    /// An NBD server; the core knows it by the same address.
    Nbd(ExportSpec),
    /// The mounted file.
    Fuse(ExportSpec, FuseFile),
}

/// Opens an export of a volume on the core behind `remote`.
pub(super) fn open(
    remote: &Remote,
    name: &VolumeName,
    export: &ExportSpec,
) -> ControlResult<OpenExport> {
    let volume = name.clone();
    match export {
        ExportSpec::Nbd(address) => {
            let at = resolve(address)?;
            let bound =
                call(
                    remote,
                    move |handle| async move { volumes::serve_nbd(&handle, &volume, &at) },
                )?;
            let real = match (address, bound) {
                (NbdAddress::Tcp { host, .. }, StreamAddress::Tcp(bound)) => {
                    NbdAddress::Tcp { host: host.clone(), port: bound.port() }
                }
                _ => address.clone(),
            };
            Ok(OpenExport::Nbd(ExportSpec::Nbd(real)))
        }
        ExportSpec::Fuse(path) => {
            let file =
                call(remote, move |handle| async move { volumes::serve_file(&handle, &volume) })?;
            let file = FuseFile::mount(file, path).map_err(ControlError::from_error)?;
            Ok(OpenExport::Fuse(export.clone(), file))
        }
    }
}

impl OpenExport {
    pub(super) fn spec(&self) -> &ExportSpec {
        match self {
            OpenExport::Nbd(spec) | OpenExport::Fuse(spec, _) => spec,
        }
    }

    /// Closes the export. A file that somebody has open stays, and that is an error, unless its users are
    /// to be cut off.
    pub(super) fn close(
        &mut self,
        remote: &Remote,
        name: &VolumeName,
        cut_off: bool,
    ) -> ControlResult<()> {
        match self {
            OpenExport::Nbd(ExportSpec::Nbd(address)) => {
                let (volume, at) = (name.clone(), resolve(address)?);
                call(remote, move |_| volumes::stop_nbd(volume, at))
            }
            OpenExport::Nbd(_) => Ok(()),
            OpenExport::Fuse(_, file) => match file.stop() {
                Err(ExportError::FileInUse(_)) if cut_off => {
                    file.cut_off();
                    Ok(())
                }
                stopped => stopped.map_err(ControlError::from_error),
            },
        }
    }

    /// Clients connected now; of a file, how often it is open.
    pub(super) fn clients(&self, remote: &Remote, name: &VolumeName) -> u64 {
        let address = match self {
            OpenExport::Nbd(ExportSpec::Nbd(address)) => address,
            OpenExport::Nbd(_) => return 0,
            OpenExport::Fuse(_, file) => return file.handles(),
        };
        let Ok(at) = resolve(address) else { return 0 };
        let volume = name.clone();
        call(remote, move |_| async move { Ok(volumes::nbd_clients(&volume, &at)) }).unwrap_or(0)
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
