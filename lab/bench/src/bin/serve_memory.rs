//! Serves memory over NBD or as a FUSE file: what the exports themselves cost, to compare with another
//! server's.
//!
//! ```text
//! cargo run --release -p voltier-bench --bin serve_memory -- nbd /tmp/memory.sock 1024
//! cargo run --release -p voltier-bench --bin serve_memory -- fuse /tmp/memory.img 1024
//! ```

use std::rc::Rc;

use voltier_block::MIB;
use voltier_drive::MemoryDevice;
use voltier_export::fuse::{FileExport, FuseFile};
use voltier_export::nbd::{Budget, ExportInfo, NbdLimits, NbdServer};
use voltier_export::{ByteDevice, FileAccess};
use voltier_ring::{Core, Executor, StreamAddress};

/// As the daemon has it.
const BUSY_POLL_NS: u64 = 100_000;

const USAGE: &str = "usage: serve_memory nbd SOCKET|ADDRESS:PORT [MIB]
       serve_memory fuse FILE [MIB]        (ends when its input does)";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(kind), Some(at)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let size_mib: u64 = arguments.next().map_or(Ok(1024), |size| size.parse())?;
    let bytes = size_mib * MIB;
    match kind.as_str() {
        "nbd" => serve_nbd(&at, bytes),
        "fuse" => serve_fuse(&at, bytes),
        _ => Err(USAGE.into()),
    }
}

fn serve_nbd(at: &str, bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut executor = Executor::real()?;
    let address = match at.parse() {
        Ok(address) => StreamAddress::Tcp(address),
        Err(_) => StreamAddress::Unix(at.into()),
    };
    executor.handle().set_busy_poll_ns(BUSY_POLL_NS);
    let memory = Rc::new(ByteDevice::new(Rc::new(MemoryDevice::new(bytes))));
    let info = ExportInfo::new("memory", "", memory.limits().clone(), false);
    let budget = Budget::new(NbdLimits::default());
    let server = NbdServer::start(
        &executor.handle(),
        memory,
        info,
        &address,
        FileAccess::default(),
        &budget,
    )?;
    println!("{}", server.uri());
    executor.block_on(std::future::pending())
}

fn serve_fuse(at: &str, bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    let core = Core::start("memory")?;
    let open = move |handle| async move {
        FileExport::open(&handle, Rc::new(ByteDevice::new(Rc::new(MemoryDevice::new(bytes)))))
    };
    core.remote().run(|handle| handle.set_busy_poll_ns(BUSY_POLL_NS));
    let export = core.remote().call(open).map_err(|_| "the core has ended")?;
    let mut file = FuseFile::mount(export, at.as_ref(), FileAccess::default())?;
    println!("{at}");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(file.stop()?)
}
