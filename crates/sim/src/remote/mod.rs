//! Origins behind a network: the product's own drive, before a server in virtual time.
//!
//! ```text
//!   cache -> NbdDevice -> wire (pieces of any length) -> server -> SimDisk
//! ```
//!
//! Servers answer late and out of order, break connections with requests carried out or not, refuse them because they
//! end, stand still, and die with what was not flushed. None of it may show: not as an error, nor as a wrong byte, nor
//! as something that comes late over what was written since.
//!
//! Not drawn is what no client can know: a server that closes a connection and goes on with its requests.

mod server;
mod wire;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_drive::NbdDevice;

use self::server::Server;
pub(crate) use self::wire::Wire;
use crate::disk::SimDisk;
use crate::world::World;
/// The servers of a world, one before each drive.
pub(crate) struct Network {
    wire: Wire,
    servers: RefCell<Vec<Rc<Server>>>,
    is_faulty: Cell<bool>,
    /// It is cut for long, and servers answer twice, now and then.
    is_bad: bool,
}

impl Network {
    pub(crate) fn new(wire: Wire, is_bad: bool) -> Rc<Self> {
        Rc::new(Self { wire, servers: RefCell::default(), is_faulty: Cell::default(), is_bad })
    }

    /// The network of a world, if its origins are behind one.
    pub(crate) fn of(world: &World) -> Option<Rc<Self>> {
        world.network()
    }

    fn server_of(&self, world: &World, disk: &SimDisk) -> Rc<Server> {
        let known = self.servers.borrow().iter().find(|it| it.disk.is_same(disk)).cloned();
        known.unwrap_or_else(|| {
            let server = Server::new(world, &self.wire, disk.clone(), world.prng(), self.is_bad);
            self.servers.borrow_mut().push(server.clone());
            if self.is_faulty.get() {
                server.go_wrong();
            }
            server
        })
    }

    /// The drive over the server of this disk.
    pub(crate) fn drive(&self, world: &World, disk: &SimDisk) -> NbdDevice {
        let server = self.server_of(world, disk);
        let (links, telling) = (server.let_in(), world.clone());
        let device = NbdDevice::new(
            world.handle(),
            links,
            move || Box::pin(server.clone().connect()),
            move |news| telling.tell(|| format!("the drive: {news:?}")),
        );
        device.expect("an export that can be a drive")
    }

    /// Whether what a drive has answered and not flushed may be missing there, because its server has died.
    pub(crate) fn has_lost(&self, disk: &SimDisk) -> bool {
        self.servers.borrow().iter().any(|it| it.disk.is_same(disk) && it.has_died())
    }

    /// Has faults happen from now on.
    pub(crate) fn go_wrong(&self) {
        self.is_faulty.set(true);
        self.servers.borrow().iter().for_each(Server::go_wrong);
    }

    /// No further fault happens.
    pub(crate) fn mend(&self) {
        self.is_faulty.set(false);
        self.servers.borrow().iter().for_each(|server| server.mend());
    }

    /// The world ends: servers hold it.
    pub(crate) fn close(&self) {
        self.servers.borrow_mut().clear();
    }
}
