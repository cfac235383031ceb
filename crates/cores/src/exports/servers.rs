//! What serves the exports of a volume on its core, and ends with the volume.

use std::cell::RefCell;

use voltier_export::nbd::NbdServer;
use voltier_ring::StreamAddress;

/// The NBD servers of a volume, on its core.
#[derive(Default)]
pub(crate) struct Servers(RefCell<Vec<NbdServer>>);

impl Servers {
    pub(crate) fn add(&self, server: NbdServer) {
        self.0.borrow_mut().push(server);
    }

    /// Looks at the server at an address, if there is one.
    pub(crate) fn look<T>(
        &self,
        at: &StreamAddress,
        look: impl FnOnce(&NbdServer) -> T,
    ) -> Option<T> {
        self.0.borrow().iter().find(|server| server.address() == at).map(look)
    }

    /// Ends the server at an address.
    pub(crate) async fn stop(&self, at: &StreamAddress) {
        let server = {
            let mut servers = self.0.borrow_mut();
            let index = servers.iter().position(|server| server.address() == at);
            index.map(|index| servers.swap_remove(index))
        };
        if let Some(server) = server {
            server.stop().await;
        }
    }

    /// Ends all of them, with the volume.
    pub(crate) async fn stop_all(&self) {
        let servers = self.0.take();
        for server in servers {
            server.stop().await;
        }
    }
}
