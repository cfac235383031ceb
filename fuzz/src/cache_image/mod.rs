//! A cache image that is not what was written, opened by the real recovery, then used.
//!
//! These rules hold for any content of the SSD: no panic, no request outside a device, no endless work.
//! Data written after the opening read back. As long as no checksum was forged, every byte that is read
//! is one that was written there, or the loss is reported.

mod base;
mod layout;
mod life;
mod mutate;
mod sectors;

use std::cell::Cell;
use std::rc::Rc;

use voltier_cache::{Mode, OpenOptions, Settings};
use voltier_ring::{Executor, NoFiles};
use voltier_sim::{SimDisk, World};

use crate::input::Input;
use base::Base;
use life::Life;

/// How long an opening, some requests, a drain and a stop may take, in virtual time.
const LIFE_NS: u64 = 600_000_000_000;
const LOOK_NS: u64 = 1_000_000_000;

/// Feeds one image.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let how = input.byte();
    let base = Base::get(usize::from(how));
    let settings = Settings {
        mode: Mode::ALL[usize::from(how / 4) % Mode::ALL.len()],
        ordered: how & 128 != 0,
        ..Settings::default()
    };
    let options = OpenOptions::with(settings);
    let mut profile = base.profile.clone();
    match input.byte() {
        0..240 => {}
        240..252 => profile.ssd.bytes = 512 * (1 + u64::from(input.u16() % 16_384)),
        _ => profile.origin.bytes += 512 * u64::from(input.byte()),
    }
    let resized = profile.ssd.bytes < base.profile.ssd.bytes
        || profile.origin.bytes != base.profile.origin.bytes;
    let mutated = mutate::mutate(&base, &mut input);

    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let world = World::new(&handle, 7);
    let life = Life {
        ssd: SimDisk::new(&world, &profile.ssd, mutated.ssd),
        origin: SimDisk::new(&world, &profile.origin, base.origin.clone()),
        world,
        history: base.history.clone(),
        line_bytes: base.layout.line_bytes as u64,
        forged: mutated.forged,
        resized,
    };
    let over = Rc::new(Cell::new(false));
    let is_over = over.clone();
    executor.block_on(async move {
        handle.clone().spawn(async move {
            life.live(options).await;
            over.set(true);
        });
        while !is_over.get() {
            assert!(handle.now() < LIFE_NS, "it never ends");
            handle.sleep(LOOK_NS).await;
        }
        handle.sleep(LOOK_NS).await;
    });
    assert_eq!(executor.task_count(), 0, "tasks are left");
}
