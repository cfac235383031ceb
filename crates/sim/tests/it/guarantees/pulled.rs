//! Goal: an SSD that goes away with dirty lines and comes back loses nothing that was acknowledged, at
//! whichever moment it goes ([why](../../../../docs/adr/0048-a-pulled-ssd-is-awaited.md)).
//! Method: the SSD goes while a writer and a destage are under way, and nobody records the loss. The cache is
//! stopped, and opened again on what the drives have.

use std::cell::Cell;
use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, Nanos};
use voltier_cache::{Health, Mode};
use voltier_sim::{Cut, World};

use crate::guarantees::stand::{LINES, Stand, in_virtual_time, line_range, options};

/// The writer writes over each line so much more than the line's number.
const ABOVE: u8 = 100;
/// The time between two moments that are tried.
const STEP_NS: Nanos = 150_000;

/// Writes over every line, flushes and destages; the lines that were acknowledged, and whether it has ended.
fn write_over(stand: &Stand) -> (Rc<Cell<u64>>, Rc<Cell<bool>>) {
    let (cache, written, ended) = (stand.cache.clone(), Rc::new(Cell::new(0)), Rc::default());
    let (told, over): (_, Rc<Cell<bool>>) = (written.clone(), Rc::clone(&ended));
    drop(stand.world.handle().spawn(async move {
        for line in 0..LINES {
            let data = Bytes::copy_of(&vec![ABOVE + line as u8; line_range(line).bytes() as usize]);
            let at = line_range(line).start;
            if cache.write(at, data.into(), Durability::Cached).await.is_err() {
                break;
            }
            told.set(line + 1);
        }
        let _ = cache.drain().await;
        over.set(true);
    }));
    (written, ended)
}

/// Pulls the SSD at a moment; false when the writer was through before.
async fn pull_at(world: World, moment: Nanos, cut: Cut) -> bool {
    let mut stand = Stand::filled(world).await;
    let clock = stand.world.handle().clone();
    let never = || -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(pending()) };
    stand.cache.on_failure(never, || {});
    let (written, ended) = write_over(&stand);
    clock.sleep(moment).await;
    if ended.get() {
        return false;
    }
    let ssd = stand.ssd.after(cut, &mut stand.world.prng());
    stand.ssd.lose();
    // Somebody notices.
    for line in 0..LINES {
        let _ = stand.cache.read(line_range(line).start, Buf::new(4096)).await;
    }
    clock.sleep(10 * STEP_NS).await;
    assert_eq!(stand.cache.status().health, Health::Failed);
    assert!(stand.cache.ssd_is_gone());
    let released = stand.cache.release_waits();
    while !ended.get() {
        clock.sleep(STEP_NS).await;
    }
    drop(released);
    stand.cache.stop().await.expect("it ends in order");
    stand.cache.audit().expect("nothing is held");
    if cut == Cut::Kill {
        (0..written.get()).for_each(|line| stand.expect(line, ABOVE + line as u8));
    }
    let origin = stand.origin.after(Cut::Kill, &mut stand.world.prng());
    let opened = stand.on((ssd, origin), options(Mode::WriteBack, 0)).await;
    let (again, _) = opened.expect("a start with the SSD that is back");
    again.ends_well_after_a_crash(ABOVE).await;
    true
}

#[test]
fn an_ssd_that_is_pulled_at_any_moment_and_comes_back_has_lost_nothing() {
    for cut in [Cut::Kill, Cut::Power] {
        let is_under_way = Rc::new(Cell::new(true));
        let mut tried = 0;
        while is_under_way.get() {
            let (moment, outcome) = (tried * STEP_NS, is_under_way.clone());
            in_virtual_time(|world| async move {
                outcome.set(pull_at(world, moment, cut).await);
            });
            tried += 1;
        }
        assert!(tried > 20, "{tried}");
    }
}
