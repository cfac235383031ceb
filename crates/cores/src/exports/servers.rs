//! What serves the exports of a volume on its core, and ends with the volume.

use std::cell::RefCell;

use voltier_block::Nanos;
use voltier_export::nbd::{NbdServer, Passed};
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
        if let Some(server) = self.take(at) {
            server.stop().await;
        }
    }

    fn take(&self, at: &StreamAddress) -> Option<NbdServer> {
        let mut servers = self.0.borrow_mut();
        let index = servers.iter().position(|server| server.address() == at)?;
        Some(servers.swap_remove(index))
    }

    /// Leaves the clients of the server at an address to the next one.
    pub(crate) async fn leave(
        &self,
        at: &StreamAddress,
        volume: [u8; 16],
        limit_ns: Nanos,
    ) -> Vec<Passed> {
        match self.take(at) {
            Some(server) => server.leave(volume, limit_ns).await,
            None => Vec::new(),
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
