//! Pages of checksums that cannot be stored, or whose copies are lost.

use std::rc::Rc;

use super::*;

/// A page that cannot be stored costs neither the member nor the array. The old page accuses no block after a
/// restart.
#[test]
fn a_page_that_cannot_be_stored_costs_its_checksums_alone() {
    for consistency in [Consistency::Journal, Consistency::Bitmap] {
        for (is_cut, copies) in [(false, 0..2), (true, 0..2), (false, 0..1), (false, 1..2)] {
            let media = unstored_page(consistency, is_cut, copies);
            on_media(media, move |world| async move {
                let degraded = AssembleOptions { degraded: true, ..PLAIN };
                let (array, _) = world.assemble(&[0, 1], degraded).await.expect("two");
                for block in 0..8 {
                    assert_eq!(read(&array, block).await, Ok(0x62), "{consistency} {is_cut}");
                }
                write(&array, 1, 0x63).await;
                array.flush().await.expect("flush");
                assert_eq!((found(&array), read(&array, 1).await), ((0, 0), Ok(0x63)));
            });
        }
    }
}

/// Members of which the first does not take its first page of checksums, as a stop or a power cut leaves
/// them.
fn unstored_page(
    consistency: Consistency,
    is_cut: bool,
    copies: std::ops::Range<u64>,
) -> Vec<Medium> {
    let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
    let media = kept.clone();
    with_drives(3, move |world| async move {
        let array = world.create(&with_sums(Level::Raid5, 3, consistency)).await;
        for byte in [0x60, 0x61] {
            for block in 0..8 {
                write(&array, block, byte).await;
            }
            array.flush().await.expect("flush");
            rest(&world, 12).await;
        }
        for copy in copies {
            world.drives[0].unwritable.borrow_mut().extend(copy_of_page(consistency, copy));
        }
        for _ in 0..2 {
            for block in 0..8 {
                write(&array, block, 0x62).await;
                write(&array, block, 0x61).await;
                write(&array, block, 0x62).await;
            }
            array.flush().await.expect("the page alone fails");
            rest(&world, 12).await;
            array.flush().await.expect("again");
        }
        assert_eq!((lost(&array), unprotected(&array)), (0, 1));
        if !is_cut {
            // The journal, which a cut needs, would turn over as well.
            rot(&world, member_of_block_1(&array).0, 0x62);
            assert_eq!(read(&array, 1).await, Ok(0x62), "it is protected while it runs");
        }
        for block in 0..8 {
            write(&array, block, 0x62).await;
        }
        array.flush().await.expect("flush");
        rest(&world, 12).await;
        if is_cut {
            let mut dice = Prng::new(7);
            let media = world.drives.iter().map(|it| it.medium.borrow().after_power_cut(&mut dice));
            kept.replace(media.collect());
        } else {
            array.stop().await.expect("stop");
            kept.replace(world.media());
        }
    });
    media.take()
}

#[test]
fn a_page_that_can_be_stored_again_is_protected_again() {
    let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
    let media = kept.clone();
    with_drives(3, move |world| async move {
        let array = world.create(&with_sums(Level::Raid5, 3, Consistency::Bitmap)).await;
        write(&array, 1, 0x41).await;
        array.flush().await.expect("flush");
        world.drives[0].unwritable.borrow_mut().extend(whole_page(Consistency::Bitmap));
        for block in 0..8 {
            write(&array, block, 0x42).await;
        }
        array.flush().await.expect("the page alone fails");
        assert_eq!(unprotected(&array), 1);
        world.drives[0].unwritable.borrow_mut().clear();
        rest(&world, 70).await;
        array.flush().await.expect("flush");
        assert_eq!(unprotected(&array), 0);
        array.stop().await.expect("stop");
        rot(&world, 0, 0x42);
        kept.replace(world.media());
    });
    on_media(media.take(), |world| async move {
        let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all");
        for block in 0..8 {
            assert_eq!(read(&array, block).await, Ok(0x42));
        }
        assert!(found(&array).0 > 0, "the page of the first member counts");
    });
}

#[test]
fn a_page_waits_for_room() {
    with_drives(3, |world| async move {
        let array = world.create(&with_sums(Level::Raid5, 3, Consistency::Bitmap)).await;
        write(&array, 1, 0x41).await;
        world.drives[0].is_full.set(true);
        let (drive, handle) = (world.drives[0].clone(), world.handle.clone());
        drop(world.handle.spawn(async move {
            handle.sleep(1_000_000_000).await;
            drive.is_full.set(false);
        }));
        array.flush().await.expect("there is room by then");
        assert_eq!((lost(&array), unprotected(&array)), (0, 0));
    });
}

/// The older copy of a page knows nothing of what was written since.
#[test]
fn a_page_whose_newest_copy_is_lost_accuses_nobody() {
    for consistency in [Consistency::Journal, Consistency::Bitmap] {
        for (copy, is_torn) in [(0, false), (1, false), (0, true), (1, true)] {
            let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
            let media = kept.clone();
            with_drives(3, move |world| async move {
                let array = world.create(&with_sums(Level::Raid5, 3, consistency)).await;
                for byte in 0x51..0x56 {
                    for block in 0..8 {
                        write(&array, block, byte).await;
                    }
                    array.flush().await.expect("flush");
                    rest(&world, 12).await;
                }
                array.stop().await.expect("stop");
                kept.replace(world.media());
            });
            on_media(media.take(), move |world| async move {
                let lost = copy_of_page(consistency, copy);
                for drive in &world.drives {
                    if is_torn {
                        drive.medium.borrow_mut().overwrite(lost.start * SECTOR_BYTES, &[9; 512]);
                    } else {
                        drive.unreadable.borrow_mut().extend(lost.clone());
                    }
                }
                let degraded = AssembleOptions { degraded: true, ..PLAIN };
                let (array, _) = world.assemble(&[0, 1], degraded).await.expect("two");
                for round in 0..3 {
                    for block in 0..8 {
                        assert_eq!(read(&array, block).await, Ok(0x55 + round), "{copy} {is_torn}");
                        write(&array, block, 0x56 + round).await;
                    }
                    array.flush().await.expect("flush");
                    rest(&world, 12).await;
                }
                assert_eq!(found(&array), (0, 0));
            });
        }
    }
}
