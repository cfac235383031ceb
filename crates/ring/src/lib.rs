//! The floor: one executor per core, over io_uring or over virtual time.
//!
//! A [`Handle`] is what every layer above holds: it spawns tasks, tells the time, sleeps, and does
//! I/O on descriptors. The same tasks run in two worlds, chosen when the [`Executor`] is made:
//!
//! ```text
//!                    tasks (async fn, not Send, FIFO)
//!                                |
//!                            Executor
//!                     /                    \
//!        uring: io_uring, the clock    virtual_time: timers jump, files are a trait
//! ```
//!
//! Nothing else in the data path may ask for the time, roll dice or make threads (a lint says so). So a
//! run in virtual time is the same every time. Idle costs nothing: a core without work sleeps in the
//! kernel.
//!
//! A task belongs to a failure domain, or to none. A panic fails the domain: none of its tasks is polled or
//! dropped after that, and the others go on ([why](../../../docs/adr/0043-a-panic-fails-one-volume.md)).
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `executor` | tasks, wakers, timers, the handle; a turn of the executor |
//! | `op`, `ops` | the operations, and who waits for them |
//! | `uring` | the real world: what was queued goes to the kernel with one system call |
//! | `virtual_time` | the other world: the clock jumps to the next event |
//! | `sync`, `join`, `race` | signals, permits, several futures at once, a future and what ends it |
//! | `range_locks` | order among requests to the same sectors |
//! | `finish`, `flush_once` | work that outlives its caller; one flush for all who wait |
//! | `domain`, `contain` | failure domains: the tasks that fail together when one panics, and how |
//! | `remote`, `inbox` | messages from other threads |
//! | `nvme` | what an NVMe drive says of itself; never asked by a core |
//!
//! To drop a future does not cancel its I/O: the operation owns its buffers until the kernel gives them back.
//!
//! UNSAFETY: this crate hands pointers of owned buffers to io_uring (`uring.rs`), and polls futures where
//! they are pinned (`join.rs`). `descriptor.rs` adopts and replaces descriptors, and `nvme.rs` has the kernel fill a
//! buffer; nothing else is unsafe.

mod busy_poll;
mod canary;
mod contain;
mod descriptor;
mod domain;
mod drain_rounds;
mod executor;
mod fd;
mod finish;
mod flush_once;
mod inbox;
mod join;
mod nvme;
mod op;
mod ops;
mod race;
mod range_locks;
mod remote;
mod slab;
mod sync;
mod timers;
mod uring;
mod virtual_time;

pub use contain::is_contained;
pub use descriptor::Descriptor;
pub use domain::{Domain, FailsWith, Failure, OnFailure};
pub use drain_rounds::{DrainRounds, Round};
pub use executor::{Executor, Handle, JoinHandle, TaskId};
pub use fd::{Fd, FdWatch, KeepAlive, Listener, Shutdown, Stream, StreamAddress};
pub use finish::Finish;
pub use flush_once::FlushOnce;
pub use join::{JoinAll, join_all, join_at_most};
pub use nvme::{NVME_CONTROLLER_BYTES, NVME_HEALTH_BYTES, nvme_controller, nvme_health_log};
pub use op::{AllocateMode, Op, OpOutcome};
pub use race::{Race, race};
pub use range_locks::{RangeGuard, RangeLocks, RangeMode};
pub use remote::{CallError, Core, Remote};
pub use rustix::io::Errno;
pub use sync::{OneshotReceiver, OneshotSender, Permit, Semaphore, Signal, WakerCell, oneshot};
pub use virtual_time::{NoFiles, VirtualFiles};
