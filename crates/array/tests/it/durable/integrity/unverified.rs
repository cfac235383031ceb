//! Pages of checksums that cannot be read: their blocks are held against the other members.

use std::ops::Range;

use voltier_array::HealthNews;

use super::*;

/// The member whose page cannot be read, if the news are of that.
fn lost_page_of(news: &HealthNews) -> Option<usize> {
    if let HealthNews::ChecksumsLost { member, .. } = news { Some(*member) } else { None }
}

/// The member with blocks that nothing can be held against, if the news are of that.
fn unchecked_of(news: &HealthNews) -> Option<usize> {
    if let HealthNews::BlocksUnchecked { member, .. } = news { Some(*member) } else { None }
}

/// How a page of checksums is damaged.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// A copy has something else than was written.
    Torn(u64),
    /// A copy gives a medium error.
    Unreadable(u64),
    /// Both copies are zeroes.
    Blank,
    /// Both copies of the list of void pages are.
    ListLost,
}

const DAMAGES: [Damage; 6] = [
    Damage::Torn(0),
    Damage::Torn(1),
    Damage::Unreadable(0),
    Damage::Unreadable(1),
    Damage::Blank,
    Damage::ListLost,
];

/// Damages the first page of a drive's checksums.
fn damage(world: &World, drive: usize, consistency: Consistency, damage: Damage) {
    let drive = &world.drives[drive];
    let overwrite = |sectors: Range<u64>, byte| {
        let bytes = (sectors.end - sectors.start) * SECTOR_BYTES;
        let medium = &mut drive.medium.borrow_mut();
        medium.overwrite(sectors.start * SECTOR_BYTES, &vec![byte; bytes as usize]);
    };
    match damage {
        Damage::Torn(copy) => {
            let start = copy_of_page(consistency, copy).start;
            overwrite(start + 3..start + 4, 9);
        }
        Damage::Unreadable(copy) => {
            drive.unreadable.borrow_mut().extend(copy_of_page(consistency, copy));
        }
        Damage::Blank => overwrite(whole_page(consistency), 0),
        Damage::ListLost => {
            let start = whole_page(consistency).start;
            overwrite(start - 16..start, 0);
        }
    }
}

/// Members with eight blocks of numbers from 0x50 on, as a stop leaves them, and which one has block 1.
fn stopped(level: Level, members: usize, consistency: Consistency) -> (Vec<Medium>, usize) {
    on_media(vec![Medium::default(); members], move |world| async move {
        let array = world.create(&with_sums(level, members, consistency)).await;
        // Twice: each page has two copies.
        for byte in [0x30, 0x50] {
            for block in 0..8 {
                write(&array, block, byte + block as u8).await;
            }
            array.flush().await.expect("flush");
            rest(&world, 12).await;
        }
        let member = member_of_block_1(&array).0;
        array.stop().await.expect("stop");
        (world.media(), member)
    })
}

/// The array over all members.
async fn assembled(world: &World) -> Array<Drive> {
    let all: Vec<usize> = (0..world.drives.len()).collect();
    let (array, report) = world.assemble(&all, PLAIN).await.expect("all");
    assert!(report.was_clean);
    array
}

async fn holds(array: &Array<Drive>, but: &[(u64, u8)], why: &str) {
    for block in 0..8 {
        let other = but.iter().find(|(at, _)| *at == block).map(|(_, byte)| *byte);
        let expected = other.unwrap_or(0x50 + block as u8);
        assert_eq!(read(array, block).await, Ok(expected), "block {block}, {why}");
    }
}

#[test]
fn rot_under_a_page_that_cannot_be_read_is_not_answered_but_mended() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 5)] {
        for consistency in [Consistency::Journal, Consistency::Bitmap] {
            let (media, member) = stopped(level, members, consistency);
            for harm in DAMAGES {
                let why = format!("{level} {consistency} {harm:?}");
                let again = on_media(media.clone(), move |world| async move {
                    damage(&world, member, consistency, harm);
                    rot(&world, member, 0x51);
                    let array = assembled(&world).await;
                    holds(&array, &[], &why).await;
                    let news = array.take_health_news();
                    let is_told = news.iter().any(|it| lost_page_of(it) == Some(member));
                    assert!(is_told, "{why}: {news:?}");
                    rest(&world, 2).await;
                    let news = [news, array.take_health_news()].concat();
                    let is_end =
                        |it: &HealthNews| matches!(it, HealthNews::ChecksumsRebuilt { .. });
                    assert!(news.iter().any(is_end), "{why}: {news:?}");
                    assert_eq!((unprotected(&array), lost(&array)), (0, 0), "{why}");
                    assert_eq!(found(&array), (1, 1), "{why}");
                    array.scrub(ScrubRepair::Nothing).expect("none runs");
                    array.ended(BackgroundTask::Scrub).await;
                    assert_eq!(array.scrub_status().counts.mismatched_blocks, 0, "{why}");
                    array.stop().await.expect("stop");
                    world.drives[member].unreadable.borrow_mut().clear();
                    world.media()
                });
                // The page counts again, and the block is right.
                on_media(again, move |world| async move {
                    let array = assembled(&world).await;
                    holds(&array, &[], "later").await;
                    assert_eq!((found(&array), unprotected(&array)), ((0, 0), 0));
                    rot(&world, member, 0x51);
                    holds(&array, &[], "with new rot").await;
                    assert_eq!(found(&array), (1, 1));
                });
            }
        }
    }
}

#[test]
fn a_write_computes_nothing_from_rot_under_a_page_that_cannot_be_read() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 6), (Level::Raid6, 8)] {
        for consistency in [Consistency::Journal, Consistency::Bitmap] {
            let (media, member) = stopped(level, members, consistency);
            for written in [0, 1, 2] {
                let why = format!("{level} of {members} {consistency}, block {written}");
                on_media(media.clone(), move |world| async move {
                    damage(&world, member, consistency, Damage::Torn(1));
                    rot(&world, member, 0x51);
                    let array = assembled(&world).await;
                    write(&array, written, 0x70).await;
                    holds(&array, &[(written, 0x70)], &why).await;
                    array.scrub(ScrubRepair::Nothing).expect("none runs");
                    array.ended(BackgroundTask::Scrub).await;
                    assert_eq!(array.scrub_status().counts.mismatched_blocks, 0, "{why}");
                    array.fail(MemberIndex((member + 1) % members)).expect("it can be spared");
                    holds(&array, &[(written, 0x70)], &why).await;
                });
            }
        }
    }
}

/// With two parities two members may have lost their pages, one of them with rot. With one nothing tells
/// which is right: both are read as they are, and counted.
#[test]
fn pages_of_two_members_are_made_good_where_others_are_enough_and_counted_elsewhere() {
    for (level, members, is_enough) in [(Level::Raid6, 5, true), (Level::Raid5, 3, false)] {
        let consistency = Consistency::Bitmap;
        let (media, member) = stopped(level, members, consistency);
        on_media(media, move |world| async move {
            for drive in [member, (member + 1) % members] {
                damage(&world, drive, consistency, Damage::Blank);
            }
            rot(&world, member, 0x51);
            let array = assembled(&world).await;
            let rotten = array.read(Lba(8), Buf::new(KEPT)).await.expect("it is read in any case");
            assert_eq!(rotten[..] == [0x51; KEPT], is_enough, "{level}");
            rest(&world, 2).await;
            let news = array.take_health_news();
            let is_unchecked = news.iter().any(|it| unchecked_of(it).is_some());
            assert_eq!(is_unchecked, !is_enough, "{level}: {news:?}");
            assert_eq!(unprotected(&array) > 0, !is_enough, "{level}");
            // What is right stays so when the rot is written over.
            write(&array, 1, 0x61).await;
            holds(&array, &[(1, 0x61)], "when the rot is written over").await;
            array.scrub(ScrubRepair::Nothing).expect("none runs");
            array.ended(BackgroundTask::Scrub).await;
            assert_eq!(array.scrub_status().counts.mismatched_blocks, 0, "{level}");
            rest(&world, 70).await;
            assert_eq!(unprotected(&array), 0, "{level}");
        });
    }
}

/// Without redundancy a page cannot be made good. It counts until the array is whole again.
#[test]
fn blocks_that_nothing_can_be_held_against_are_counted_until_there_is_something() {
    let consistency = Consistency::Journal;
    let (media, member) = stopped(Level::Raid5, 3, consistency);
    on_media(media, move |world| async move {
        damage(&world, member, consistency, Damage::Torn(0));
        let degraded = AssembleOptions { degraded: true, ..PLAIN };
        let (other, away) = ((member + 1) % 3, (member + 2) % 3);
        let (array, _) = world.assemble(&[member, other], degraded).await.expect("two");
        holds(&array, &[], "degraded").await;
        rest(&world, 2).await;
        let news = array.take_health_news();
        assert!(news.iter().any(|it| unchecked_of(it) == Some(member)), "{news:?}");
        assert_eq!((unprotected(&array), found(&array)), (1, (0, 0)));
        let back = array.restore_member(MemberIndex(away), world.drives[away].clone()).await;
        back.expect("it suits");
        array.ended(BackgroundTask::Rebuild).await;
        rest(&world, 70).await;
        assert_eq!((unprotected(&array), found(&array)), (0, (0, 0)));
        holds(&array, &[], "whole").await;
    });
}

/// The power is cut at every step while a page is made anew: no cut has the rot taken for what was written.
#[test]
fn no_cut_while_a_page_is_made_anew_makes_rot_good() {
    for consistency in [Consistency::Journal, Consistency::Bitmap] {
        let (media, member) = stopped(Level::Raid5, 3, consistency);
        let media = on_media(media, move |world| async move {
            damage(&world, member, consistency, Damage::Torn(1));
            rot(&world, member, 0x51);
            world.media()
        });
        for cut in (0..).step_by(one_in(2)) {
            let facts = Facts::default();
            let (is_through, left) = boot(&media, cut, &facts, |world, _| async move {
                let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all");
                holds(&array, &[], "before the cut").await;
                for byte in [0x33, 0x34] {
                    write(&array, 16, byte).await;
                    array.flush().await.expect("flush");
                }
            });
            let again = left.iter().map(|it| it.after_power_cut(&mut Prng::new(cut))).collect();
            on_media(again, move |world| async move {
                let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all");
                // Of a region that was being written nothing is known without a journal.
                if array.status().expect("durable").regions_to_resync == 0
                    || consistency == Consistency::Journal
                {
                    holds(&array, &[], &format!("{consistency} cut at {cut}")).await;
                }
            });
            if is_through {
                break;
            }
        }
    }
}
