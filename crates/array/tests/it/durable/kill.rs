//! Kills, and power cuts after them: what a start finds in the drives' caches is as good as what it finds
//! on the media.

use voltier_array::{AssembleOptions, Consistency, Level};
use voltier_block::Prng;

use crate::durable::crash::{Facts, boot, check, made, made_facts};
use crate::durable::drive::Medium;
use crate::durable::world::{World, on_media};
use crate::sampled::one_in;

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };

const CASES: [(Level, usize, Consistency); 4] = [
    (Level::Raid5, 3, Consistency::Bitmap),
    (Level::Raid5, 3, Consistency::Journal),
    (Level::Raid1, 2, Consistency::Bitmap),
    (Level::Raid0, 2, Consistency::None),
];

fn after(media: &[Medium], luck: u64, cut: impl Fn(&Medium, &mut Prng) -> Medium) -> Vec<Medium> {
    let dice = &mut Prng::new(luck);
    media.iter().map(|medium| cut(medium, dice)).collect()
}

/// A life that writes a block of each of two regions, and no more.
async fn serve(world: World, facts: Facts, byte: u8) {
    let order: Vec<usize> = (0..world.drives.len()).collect();
    let (array, _) = world.assemble(&order, PLAIN).await.expect("all of them");
    facts.write(&array, 600, byte).await;
    facts.write(&array, 1, byte).await;
}

#[test]
fn dirty_regions_that_were_on_their_way_when_the_process_died_do_not_go_with_the_power_later() {
    for (level, members, consistency) in CASES {
        let media = made(level, members, consistency);
        let (mut kill, mut is_through) = (0, false);
        while !is_through {
            let killed;
            let facts = made_facts();
            (is_through, killed) =
                boot(&media, kill, &facts, |world, facts| serve(world, facts, 1));
            let killed = after(&killed, kill, Medium::after_kill);
            for cut in (kill % 5..).step_by(one_in(11)) {
                let model = facts.model.borrow().clone();
                let facts = made_facts();
                facts.model.replace(model);
                let (is_second_through, left) =
                    boot(&killed, cut, &facts, |world, facts| serve(world, facts, 2));
                let left = after(&left, kill + cut, Medium::after_power_cut);
                check(left, &facts, &format!("{level} {consistency:?}, {kill}, then {cut}"));
                if is_second_through {
                    break;
                }
            }
            kill += 3;
        }
    }
}

#[test]
fn a_start_that_is_cut_off_after_a_kill_leaves_no_member_behind() {
    let media = made(Level::Raid5, 3, Consistency::Journal);
    let facts = Facts::default();
    let start = |world: World, _| async move {
        let _ = world.assemble(&[0, 1, 2], PLAIN).await;
    };
    let (mut kill, mut is_through) = (0, false);
    while !is_through {
        let killed;
        (is_through, killed) = boot(&media, kill, &facts, start);
        for luck in 0..2 {
            let killed = after(&killed, kill + luck, Medium::after_kill);
            let (mut cut, mut is_second_through) = (0, false);
            while !is_second_through {
                let left;
                (is_second_through, left) = boot(&killed, cut, &facts, start);
                on_media(
                    after(&left, cut + luck, Medium::after_power_cut),
                    move |world| async move {
                        let assembled = world.assemble(&[2, 0, 1], PLAIN).await;
                        let (_, report) = assembled.expect("all of them");
                        let is_whole = report.left_out.is_empty() && report.now_lost.is_empty();
                        assert!(is_whole, "killed at {kill}, cut at {cut}: {report:?}");
                    },
                );
                cut += 1;
            }
        }
        kill += 1;
    }
}
