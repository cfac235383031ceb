//! The server on its wire, with a hostile client and a good one behind it.

use std::rc::Rc;

use voltier_block::Limits;
use voltier_drive::MemoryDevice;
use voltier_export::nbd::{Budget, ExportInfo, NbdLimits, NbdServer};
use voltier_export::{ByteDevice, FileAccess};
use voltier_ring::{Executor, StreamAddress};
use voltier_volume::Volume;

use super::exported::{DESCRIPTION, NAME, VOLUME_BYTES};
use super::good;
use super::wire::{Outputs, Script, Wire};

/// How often the server is looked at, and how often before it counts as hung: the wire's silent
/// clients hang up after an hour.
const LOOK_NS: u64 = 200_000_000_000;
const LOOKS_MAX: u32 = 100;

/// Serves the hostile client, then a good one; what the hostile one was sent.
pub(super) fn serve(hostile: Script, read_only: bool) -> Vec<u8> {
    let pace = hostile.pace;
    let good = good::Client::new(read_only);
    let outputs = Outputs::default();
    let scripts = vec![hostile, good.script(pace)];
    let mut executor = Executor::in_virtual_time(Wire::new(scripts, outputs.clone()));
    let handle = executor.handle();
    executor.block_on(async move {
        let volume = Volume::plain(&handle, MemoryDevice::new(VOLUME_BYTES));
        let limits = Limits { read_only, ..Limits::plain(VOLUME_BYTES) };
        let info = ExportInfo::new(NAME, DESCRIPTION, limits, false);
        let any_port = StreamAddress::Tcp(([127, 0, 0, 1], 0).into());
        let budget = Budget::new(NbdLimits::default());
        let server = NbdServer::start(
            &handle,
            Rc::new(ByteDevice::new(Rc::new(volume.clone()))),
            info,
            &any_port,
            FileAccess::default(),
            &budget,
        );
        let server = server.expect("a loopback port to listen on");
        for look in 0.. {
            handle.sleep(LOOK_NS).await;
            let counters = server.counters();
            if counters.connections == 2 && counters.connections_open == 0 {
                break;
            }
            assert!(look < LOOKS_MAX, "a client was never done with: {counters:?}");
        }
        server.stop().await;
        volume.stop().await.expect("memory stops");
    });
    // The accept that waits for a third client is all that may be left.
    assert!(executor.task_count() <= 1, "{} tasks are left", executor.task_count());
    drop(executor);
    let mut outputs = outputs.take();
    good.check(&outputs.pop().expect("the good client was served"));
    outputs.pop().expect("the hostile client was served")
}
