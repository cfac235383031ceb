//! Serves memory over NBD: what the door itself costs, to compare with another server's.
//!
//! ```text
//! cargo run --release -p voltier-export --example serve_memory -- nbd /tmp/memory.sock 1024
//! ```

use std::rc::Rc;

use voltier_block::{Limits, MIB};
use voltier_export::nbd::{ExportInfo, NbdServer};
use voltier_ring::{Executor, StreamAddress};

#[path = "../tests/support/memory.rs"]
mod memory;
use memory::Memory;

const USAGE: &str = "usage: serve_memory nbd SOCKET|ADDRESS:PORT [MIB]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(door), Some(at)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let size_mib: u64 = arguments.next().map_or(Ok(1024), |size| size.parse())?;
    let limits = Limits::plain(size_mib * MIB);
    let mut executor = Executor::real()?;
    let handle = executor.handle();
    match door.as_str() {
        "nbd" => {
            let address = match at.parse() {
                Ok(address) => StreamAddress::Tcp(address),
                Err(_) => StreamAddress::Unix(at.into()),
            };
            let info = ExportInfo::new("memory", "", limits.clone(), false);
            let device = Rc::new(Memory::new(limits));
            let server = NbdServer::start(&handle, device, info, &address)?;
            println!("{}", server.uri());
            executor.block_on(std::future::pending())
        }
        _ => Err(USAGE.into()),
    }
}
