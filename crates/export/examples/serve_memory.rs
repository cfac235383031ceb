//! Serves memory over NBD or as a FUSE file: what the exports themselves cost, to compare with another
//! server's.
//!
//! ```text
//! cargo run --release -p voltier-export --example serve_memory -- nbd /tmp/memory.sock 1024
//! cargo run --release -p voltier-export --example serve_memory -- fuse /tmp/memory.img 1024
//! ```

use std::rc::Rc;

use voltier_block::{Limits, MIB};
use voltier_export::fuse::FileExport;
use voltier_export::nbd::{ExportInfo, NbdServer};
use voltier_ring::{Core, Executor, StreamAddress};

#[path = "../tests/support/memory.rs"]
mod memory;
use memory::Memory;

const USAGE: &str = "usage: serve_memory nbd SOCKET|ADDRESS:PORT [MIB]
       serve_memory fuse FILE [MIB]        (ends when its input does)";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(export), Some(at)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let size_mib: u64 = arguments.next().map_or(Ok(1024), |size| size.parse())?;
    let limits = Limits::plain(size_mib * MIB);
    match export.as_str() {
        "nbd" => serve_nbd(&at, limits),
        "fuse" => serve_fuse(&at, limits),
        _ => Err(USAGE.into()),
    }
}

fn serve_nbd(at: &str, limits: Limits) -> Result<(), Box<dyn std::error::Error>> {
    let mut executor = Executor::real()?;
    let address = match at.parse() {
        Ok(address) => StreamAddress::Tcp(address),
        Err(_) => StreamAddress::Unix(at.into()),
    };
    let info = ExportInfo::new("memory", "", limits.clone(), false);
    let device = Rc::new(Memory::new(limits));
    let server = NbdServer::start(&executor.handle(), device, info, &address)?;
    println!("{}", server.uri());
    executor.block_on(std::future::pending())
}

fn serve_fuse(at: &str, limits: Limits) -> Result<(), Box<dyn std::error::Error>> {
    let core = Core::start("memory")?;
    let open = |handle| async move { FileExport::open(&handle, Rc::new(Memory::new(limits))) };
    let export = core.remote().call(open).ok_or("the core has ended")?;
    let mut file = export.mount(at.as_ref())?;
    println!("{at}");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(file.stop()?)
}
