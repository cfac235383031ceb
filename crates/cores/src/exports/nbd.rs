//! NBD servers: each lives on the volume's core, which knows it by the address where it listens.

use std::fs;
use std::net::ToSocketAddrs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use voltier_block::{BlockDevice, Nanos};
use voltier_control::{ControlError, ControlResult, ExportSpec, NbdAddress, VolumeName};
use voltier_export::nbd::{ExportInfo, NbdServer, Whose};
use voltier_ring::StreamAddress;

use crate::call::Way;
use crate::exports::keeping::Keeping;
use crate::exports::open_export::{OpenExport, Opened, Opener};
use crate::volumes;

/// A server as the control plane knows it: by the address where it listens, for a host name may mean another
/// one by now.
struct Bound {
    way: Way,
    name: VolumeName,
    at: StreamAddress,
    /// The socket file.
    file: Option<FileId>,
}

/// A file, by the numbers of its device and inode.
type FileId = (u64, u64);

fn id_of(path: &Path) -> Option<FileId> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

pub(super) fn open(opener: Opener<'_>, address: &NbdAddress) -> ControlResult<Opened> {
    let Opener { way, name, access, budget, keeping } = opener;
    let (volume, at, budget) = (name.clone(), resolve(address)?, budget.clone());
    let whose = |volume| Whose { volume, at: at.clone() };
    let left = keeping.map(|(keeping, volume)| keeping.sockets(&whose(volume)));
    let left = left.unwrap_or_default();
    let serve = move |handle| async move {
        let resident = volumes::resident(&volume)?;
        let limits = resident.volume.limits().clone();
        let rotational = resident.is_rotational();
        let info = ExportInfo::new(volume.as_str(), "Voltier volume", limits, rotational);
        let exported = resident.exported.clone();
        let server = NbdServer::start_with(&handle, exported, info, &at, access, &budget, left)
            .map_err(ControlError::from_error)?;
        let bound = server.address().clone();
        resident.servers.add(server);
        Ok(bound)
    };
    let at = way.call(serve)?;
    let (real, file) = match (address, &at) {
        (NbdAddress::Tcp { host, .. }, StreamAddress::Tcp(bound)) => {
            (NbdAddress::Tcp { host: host.clone(), port: bound.port() }, None)
        }
        (_, StreamAddress::Unix(path)) => (address.clone(), id_of(path)),
        (_, StreamAddress::Tcp(_)) => (address.clone(), None),
    };
    let export = Box::new(Bound { way: way.clone(), name: name.clone(), at, file });
    Ok(Opened { spec: ExportSpec::Nbd(real), export })
}

impl OpenExport for Bound {
    fn close(&mut self, _cut_off: bool) -> ControlResult<()> {
        let (volume, at) = (self.name.clone(), self.at.clone());
        self.way.call(move |_| async move {
            volumes::resident(&volume)?.servers.stop(&at).await;
            Ok(())
        })
    }

    fn pass_on(&mut self, keeping: &Keeping, volume: [u8; 16]) -> Result<(), String> {
        let (name, at) = (self.name.clone(), self.at.clone());
        let limit_ns = keeping.leave_time().as_nanos() as Nanos;
        let left = self.way.call(move |_| async move {
            Ok(volumes::resident(&name)?.servers.leave(&at, volume, limit_ns).await)
        });
        keeping.pass_sockets(left.map_err(|error| error.message)?);
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        if let StreamAddress::Unix(path) = &self.at
            && id_of(path) != self.file
        {
            let (name, path) = (&self.name, path.display());
            return Some(format!(
                "its socket {path} was removed or replaced; `voltier export {name} --nbd unix:{path}` \
                 opens it again"
            ));
        }
        let (volume, at) = (self.name.clone(), self.at.clone());
        // If the core does not answer, the volume's own error says so.
        let trouble = self.way.ask(move |_| async move {
            let resident = volumes::resident(&volume)?;
            let trouble = resident.servers.look(&at, NbdServer::trouble);
            Ok(trouble.map(|it| it.map(|error| format!("accepting clients fails: {error}"))))
        });
        trouble.ok()?.unwrap_or_else(|| Some("nothing listens there".to_owned()))
    }

    fn clients(&self) -> u64 {
        let (volume, at) = (self.name.clone(), self.at.clone());
        let clients = self.way.ask_or_late(move |_| async move {
            let resident = volumes::resident(&volume)?;
            Ok(resident.servers.look(&at, |server| server.counters().connections_open))
        });
        clients.map_or(1, |clients| clients.ok().flatten().unwrap_or(0))
    }
}

pub(super) fn resolve(address: &NbdAddress) -> ControlResult<StreamAddress> {
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
