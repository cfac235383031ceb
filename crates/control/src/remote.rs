//! Drives beyond this machine: an export of an NBD server, a Ceph RBD image.

use std::fmt;

use voltier_librbd::ImageName;
use voltier_nbd::{ExportUri, Server};

use crate::error::{ControlError, ControlResult};
use crate::export_spec::absolute;

/// A drive behind a server, or a cluster of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// An export of an NBD server.
    Nbd(ExportUri),
    /// A Ceph RBD image.
    Rbd(ImageName),
}

impl Remote {
    /// Reads the name of an export.
    ///
    /// # Errors
    /// When it names none.
    pub(crate) fn nbd(text: &str) -> ControlResult<Self> {
        let uri = text.parse();
        uri.map(Self::Nbd).map_err(|error| ControlError::usage(format!("`{text}`: {error}")))
    }

    /// Reads the name of an image.
    ///
    /// # Errors
    /// When it names none.
    pub(crate) fn rbd(text: &str) -> ControlResult<Self> {
        let name = text.parse();
        name.map(Self::Rbd).map_err(|error| ControlError::usage(format!("`{text}`: {error}")))
    }

    /// The same drive with every path in its name made absolute.
    ///
    /// # Errors
    /// When the current folder is gone, or the path of a socket is too long then.
    pub(crate) fn absolute(self) -> ControlResult<Self> {
        match self {
            Self::Nbd(ExportUri { server: Server::Unix(socket), export }) => {
                let server = Server::Unix(absolute(&socket)?);
                Self::nbd(&ExportUri { server, export }.to_string())
            }
            Self::Rbd(ImageName { conf: Some(conf), pool, namespace, image, user }) => {
                let conf = Some(absolute(&conf)?);
                // One that is the usual one is left out.
                Self::rbd(&ImageName { conf, pool, namespace, image, user }.to_string())
            }
            other => Ok(other),
        }
    }

    /// The server of an export.
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Self::Nbd(uri) => Some(&uri.server),
            Self::Rbd(_) => None,
        }
    }

    /// What a user does about one that is another than before.
    pub(crate) fn way_back(&self) -> &'static str {
        match self {
            Self::Nbd(_) => "have the server serve the export that it served before",
            Self::Rbd(_) => "bring the image back that it was before",
        }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nbd(uri) => write!(out, "{uri}"),
            Self::Rbd(name) => write!(out, "{name}"),
        }
    }
}
