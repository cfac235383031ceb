//! Goal: an assertion that fails in the code of one cache is a kill of this cache, at whichever event.
//! A neighbour on the same core serves on ([why](../../../../docs/adr/0043-a-panic-fails-one-volume.md)).
//! Method: two caches in failure domains of their own; the watch of one world panics at an event.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Bytes, Durability};
use voltier_cache::Mode;
use voltier_ring::{Domain, Handle};
use voltier_sim::{Cut, World};

use crate::guarantees::stand::{LINES, Stand, in_virtual_time, line_range, options};

/// The writer writes over each line so much more than the line's number.
const ABOVE: u8 = 100;
/// Events between two moments that are tried.
const STEP: u64 = 11;
/// Longer than anything of a cache rests.
const LONG_NS: u64 = 60_000_000_000;

/// A filled cache whose tasks are of a domain of their own, and the handle of that domain.
async fn filled_in_domain(core: &Handle, seed: u64) -> (Stand, Handle) {
    let domain = core.within(Domain::fresh());
    let world = World::new(&domain, seed);
    (domain.spawn(Stand::filled(world)).await, domain)
}

/// Lines that the writer was told are written, and whether it is through.
#[derive(Clone, Default)]
struct Progress {
    acknowledged: Rc<Cell<u64>>,
    is_through: Rc<Cell<bool>>,
}

/// Begins to write over every line.
fn write_over(stand: &Stand, domain: &Handle, progress: &Progress) {
    let (cache, progress) = (stand.cache.clone(), progress.clone());
    drop(domain.spawn(async move {
        for line in 0..LINES {
            let data = Bytes::copy_of(&vec![ABOVE + line as u8; line_range(line).bytes() as usize]);
            let written = cache.write(line_range(line).start, data.into(), Durability::Cached);
            written.await.expect("a write works");
            progress.acknowledged.set(line + 1);
        }
        cache.drain().await.expect("the origin takes it");
        progress.is_through.set(true);
    }));
}

/// Lets the assertion fail at one event of the writer; false when there is no such event.
async fn try_at(core: Handle, event: u64) -> bool {
    let (mut neighbour, _) = filled_in_domain(&core, 5).await;
    let (mut stand, domain) = filled_in_domain(&core, 7).await;
    let (progress, events_then) = (Progress::default(), Rc::new(Cell::new(None)));
    let (at, world, noted) =
        (stand.world.events() + event, stand.world.clone(), events_then.clone());
    let told = domain.on_failure(move |_| noted.set(Some(world.events())));
    stand.world.watch(move |number| assert_ne!(number, at, "a deliberate failure"));
    write_over(&stand, &domain, &progress);
    while events_then.get().is_none() && !progress.is_through.get() {
        core.sleep(1_000_000).await;
    }
    stand.world.unwatch();
    drop(told);
    let Some(events_then) = events_then.get() else { return false };
    for line in 0..LINES {
        neighbour.write(line_range(line), line as u8).await.expect("the neighbour serves");
    }
    core.sleep(LONG_NS).await;
    assert_eq!(stand.world.events(), events_then, "a drive is used after the failure");
    assert_eq!(neighbour.failing_lines().await, [0_u64; 0]);
    (0..progress.acknowledged.get()).for_each(|line| stand.expect(line, ABOVE + line as u8));
    let media = stand.crash(Cut::Kill);
    stand.world = World::new(&core.within(Domain::fresh()), 9);
    let opened = stand.on(media, options(Mode::WriteBack, 0)).await;
    let (again, _) = opened.expect("a start as after a crash");
    again.ends_well_after_a_crash(ABOVE).await;
    true
}

#[test]
fn a_panic_at_any_event_is_a_kill_of_one_cache_and_its_neighbour_serves_on() {
    let mut tried = 0;
    let has_failed = Rc::new(Cell::new(true));
    while has_failed.get() {
        let (event, outcome) = (tried * STEP, has_failed.clone());
        in_virtual_time(|world| async move {
            outcome.set(try_at(world.handle().clone(), event).await);
        });
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}
