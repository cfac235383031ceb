//! Geometry: every mapping tried on every sector of small shapes, and the tables of Linux md.

use std::collections::BTreeSet;

use voltier_array::{
    Geometry, GeometryError, Layout, Level, MemberIndex, StripeNumber, StripeSlot, VolumePlace,
};
use voltier_block::{Lba, SectorRange};

const CHUNK: u64 = 4096;
const LAYOUTS: [Layout; 4] = [
    Layout::LeftSymmetric,
    Layout::LeftSymmetricFixedParityRows,
    Layout::AddedParityRows { rotating: 1 },
    Layout::AddedParityRows { rotating: 2 },
];

/// Every level on every small number of members.
fn small_shapes() -> Vec<(Level, usize)> {
    let mut shapes = Vec::new();
    for members in 2..=9 {
        let data_and_parity = (1..=7).map(|parity| (members as isize - parity as isize, parity));
        shapes.extend([Level::Raid0, Level::Raid1, Level::Raid10].map(|level| (level, members)));
        shapes.extend([Level::Raid5, Level::Raid6, Level::Raid7_3].map(|level| (level, members)));
        shapes.extend(
            data_and_parity
                .filter(|(data, _)| *data >= 2)
                .map(|(data, parity)| (Level::NPlusM { data: data as usize, parity }, members)),
        );
    }
    for (group, groups) in [(3, 2), (3, 3), (4, 2), (5, 2), (6, 2), (5, 3)] {
        let members = group * groups;
        let levels = [Level::Raid50 { group }, Level::Raid60 { group }, Level::Raid70 { group }];
        shapes.extend(levels.map(|level| (level, members)));
    }
    shapes
}

fn small_geometries() -> Vec<Geometry> {
    let rows = 12;
    let mut all = Vec::new();
    for (level, members) in small_shapes() {
        for layout in LAYOUTS {
            // 7 sectors that do not make a chunk are left alone.
            all.extend(Geometry::new(level, layout, members, CHUNK, rows * 8 + 7));
        }
    }
    assert!(all.len() > 100);
    all
}

fn slots_of(geometry: &Geometry) -> impl Iterator<Item = StripeSlot> + use<> {
    (0..geometry.width()).map(StripeSlot)
}

fn members_of(geometry: &Geometry) -> impl Iterator<Item = MemberIndex> + use<> {
    (0..geometry.member_count()).map(MemberIndex)
}

#[test]
fn each_sector_of_the_volume_has_one_of_the_members_and_back() {
    for geometry in small_geometries() {
        let mut taken = BTreeSet::new();
        for sector in 0..geometry.sectors() {
            let place = geometry.place_of(Lba(sector));
            assert_eq!(geometry.lba_of(place), Lba(sector));
            let slot = geometry.slot_of_column(place.stripe, place.column);
            assert!(slot.0 < geometry.data_chunks(), "data never on parity: {geometry:?}");
            assert_eq!(geometry.column_of_slot(place.stripe, slot), place.column);
            let member = geometry.member_of(place.stripe, slot);
            let at = geometry.member_lba(place.stripe, place.offset);
            assert!(taken.insert((member, at)), "{geometry:?}");
            let back = geometry.member_place(member, at).expect("in use");
            assert_eq!((back.stripe, back.slot, back.offset), (place.stripe, slot, place.offset));
        }
        let parity_sectors =
            geometry.stripe_count() * geometry.parity_chunks() as u64 * geometry.chunk_sectors();
        let all = geometry.member_count() as u64 * geometry.member_sectors();
        assert_eq!(taken.len() as u64 + parity_sectors, all);
    }
}

#[test]
fn each_slot_of_a_stripe_is_on_a_member_of_its_own_and_back() {
    for geometry in small_geometries() {
        for stripe in (0..geometry.stripe_count()).map(StripeNumber) {
            let group = geometry.members_of(geometry.group_of(stripe));
            let group: BTreeSet<MemberIndex> = group.collect();
            let members: BTreeSet<MemberIndex> =
                slots_of(&geometry).map(|slot| geometry.member_of(stripe, slot)).collect();
            assert_eq!(members, group);
            let number = geometry.group_of(stripe);
            assert!(group.iter().all(|member| geometry.group_of_member(*member) == number));
            for slot in slots_of(&geometry) {
                let member = geometry.member_of(stripe, slot);
                assert_eq!(geometry.slot_of(stripe, member), Some(slot));
            }
            for other in members_of(&geometry).filter(|member| !group.contains(member)) {
                assert_eq!(geometry.slot_of(stripe, other), None);
            }
        }
        let (end, members) = (Lba(geometry.member_sectors()), geometry.member_count());
        assert_eq!(geometry.member_place(MemberIndex(0), end), None);
        assert_eq!(geometry.member_place(MemberIndex(members), Lba(0)), None);
    }
}

#[test]
fn with_the_default_layout_each_member_has_as_much_parity_as_the_others() {
    for geometry in small_geometries() {
        if geometry.layout() != Layout::LeftSymmetric || geometry.is_mirror() {
            continue;
        }
        let rounds = (geometry.width() * geometry.group_count()) as u64;
        let is_parity = |stripe, member| {
            geometry.slot_of(stripe, member).is_some_and(|slot| slot.0 >= geometry.data_chunks())
        };
        for member in members_of(&geometry) {
            let count =
                (0..rounds).filter(|stripe| is_parity(StripeNumber(*stripe), member)).count();
            assert_eq!(count, geometry.parity_chunks(), "{geometry:?}");
        }
    }
}

#[test]
fn parts_of_a_range_are_its_sectors_in_order() {
    for geometry in small_geometries() {
        for (start, count) in [(0, geometry.sectors()), (3, 40), (8, 8), (7, 2), (5, 0)] {
            let mut next = start;
            for part in geometry.parts(SectorRange::new(Lba(start), count)) {
                let column = geometry.column_of_slot(part.stripe, part.slot);
                let place = VolumePlace { stripe: part.stripe, column, offset: part.span.start };
                assert_eq!(geometry.lba_of(place), Lba(next));
                assert!(part.span.end <= geometry.chunk_sectors() && !part.span.is_empty());
                next += part.span.count();
            }
            assert_eq!(next, start + count);
        }
    }
}

/// The rows of members as a table: chunks of the volume by number, P and Q.
fn table(level: Level, layout: Layout, members: usize, rows: u64) -> Vec<String> {
    let geometry = Geometry::new(level, layout, members, CHUNK, rows * 8).expect("possible");
    let data = geometry.data_chunks();
    let cell = |row: u64, member: usize| {
        let place = geometry.member_place(MemberIndex(member), Lba(row * 8)).expect("in use");
        match place.slot.0.checked_sub(data) {
            Some(parity) => ["P", "Q", "R"][parity].to_owned(),
            None => {
                let column = geometry.column_of_slot(place.stripe, place.slot);
                (place.stripe.0 * data as u64 + column as u64).to_string()
            }
        }
    };
    let line = |row| (0..members).map(|member| cell(row, member)).collect::<Vec<_>>().join(" ");
    (0..rows).map(line).collect()
}

/// Written out by hand from the rule in md(4) and the layouts of mdadm(8). Parity starts on the last
/// member and goes left, data start behind it and wrap.
#[test]
fn raid_5_is_laid_out_as_by_linux_md() {
    let expected = ["0 1 2 P", "4 5 P 3", "8 P 6 7", "P 9 10 11", "12 13 14 P"];
    for layout in &LAYOUTS[..2] {
        assert_eq!(table(Level::Raid5, *layout, 4, 5), expected);
    }
}

/// As for RAID 5, with Q to the right of P.
#[test]
fn raid_6_is_laid_out_as_by_linux_md() {
    let expected =
        ["Q 0 1 2 P", "3 4 5 P Q", "7 8 P Q 6", "11 P Q 9 10", "P Q 12 13 14", "Q 15 16 17 P"];
    assert_eq!(table(Level::Raid6, Layout::LeftSymmetric, 5, 6), expected);
}

/// `left-symmetric-6` of mdadm(8): a RAID 5 on all members but the last, which has Q.
#[test]
fn raid_6_with_a_fixed_q_is_laid_out_as_by_linux_md() {
    let expected = ["0 1 2 P Q", "4 5 P 3 Q", "8 P 6 7 Q", "P 9 10 11 Q", "12 13 14 P Q"];
    assert_eq!(table(Level::Raid6, Layout::LeftSymmetricFixedParityRows, 5, 5), expected);
}

/// Linux md numbers the data for Q from the member behind Q on, past P. With Q on the last member that
/// is the order of the members, whatever the order of the data.
#[test]
fn data_are_numbered_for_q_as_by_linux_md() {
    for layout in LAYOUTS.into_iter().take(2) {
        let geometry = Geometry::new(Level::Raid6, layout, 6, CHUNK, 800).expect("possible");
        for stripe in (0..geometry.stripe_count()).map(StripeNumber) {
            let [p, q] = [4, 5].map(|slot| geometry.member_of(stripe, StripeSlot(slot)).0);
            let behind_q = (1..6).map(|step| (q + step) % 6).filter(|member| *member != p);
            let numbered = (0..4).map(|slot| geometry.member_of(stripe, StripeSlot(slot)).0);
            assert!(numbered.eq(behind_q), "{layout:?}, {stripe:?}");
        }
    }
}

/// A parity added to a RAID 5, and again, moves nothing.
#[test]
fn fixed_parity_rows_keep_a_raid_5_in_place() {
    let five = table(Level::Raid5, Layout::LeftSymmetric, 4, 12);
    let six = table(Level::Raid6, Layout::LeftSymmetricFixedParityRows, 5, 12);
    let seven = table(Level::Raid7_3, Layout::LeftSymmetricFixedParityRows, 6, 12);
    for ((five, six), seven) in five.iter().zip(&six).zip(&seven) {
        assert_eq!((six, seven), (&format!("{five} Q"), &format!("{five} Q R")));
    }
}

/// The geometries that added parity rows give, as long as one can be added.
fn grown(geometry: &Geometry) -> Vec<Geometry> {
    let mut all = vec![geometry.clone()];
    while let Ok(next) = all.last().expect("there is one").with_parity() {
        all.push(next);
    }
    all
}

#[test]
fn a_parity_row_that_is_added_moves_nothing_and_is_whole_on_members_of_its_own() {
    let mut count = 0;
    for geometry in small_geometries() {
        for pair in grown(&geometry).windows(2) {
            let (before, now) = (&pair[0], &pair[1]);
            count += 1;
            assert_eq!(now.sectors(), before.sectors());
            assert_eq!(now.member_sectors(), before.member_sectors());
            assert_eq!(now.member_count(), before.member_count() + before.group_count());
            for stripe in (0..before.stripe_count()).map(StripeNumber) {
                assert_eq!(now.member_lba(stripe, 0), before.member_lba(stripe, 0));
                let member =
                    |of: &Geometry, column| of.member_of(stripe, of.slot_of_column(stripe, column));
                for column in 0..before.data_chunks() {
                    assert_eq!(member(now, column), member(before, column), "{before:?}");
                }
                for slot in slots_of(before).skip(before.data_chunks()) {
                    assert_eq!(now.member_of(stripe, slot), before.member_of(stripe, slot));
                }
                // With one parity, or copies, the numbers of the data are all the same to the code.
                for column in (0..before.data_chunks()).filter(|_| before.parity_chunks() > 1) {
                    let slots = [now, before].map(|of| of.slot_of_column(stripe, column));
                    assert_eq!(slots[0], slots[1], "{before:?}");
                }
                let added = now.member_of(stripe, StripeSlot(before.width()));
                assert_eq!(added.0, before.member_count() + before.group_of(stripe).0);
                assert_eq!(now.holds_data(added), now.is_mirror());
            }
            for member in members_of(before).filter(|member| before.holds_data(*member)) {
                assert!(now.holds_data(member), "{before:?}");
            }
        }
    }
    assert!(count > 300, "{count}");
}

#[test]
fn levels_grow_into_the_next_and_at_last_into_n_plus_m() {
    let levels = |level, members| {
        let first = Geometry::new(level, Layout::default(), members, CHUNK, 80).expect("possible");
        let all = grown(&first).into_iter().map(|it| (it.level(), it.member_count()));
        all.collect::<Vec<_>>()
    };
    let n_plus_m = |data, parity| (Level::NPlusM { data, parity }, data + parity);
    let mut expected = vec![(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid7_3, 6)];
    expected.extend((4..=8).map(|parity| n_plus_m(3, parity)));
    assert_eq!(levels(Level::Raid5, 4), expected);
    let groups = [
        (Level::Raid50 { group: 3 }, 9),
        (Level::Raid60 { group: 4 }, 12),
        (Level::Raid70 { group: 5 }, 15),
    ];
    assert_eq!(levels(Level::Raid50 { group: 3 }, 9), groups);
    let mirrors: Vec<_> = (2..=9).map(|members| (Level::Raid1, members)).collect();
    assert_eq!(levels(Level::Raid1, 2), mirrors);
    assert_eq!(levels(Level::Raid0, 3).len() + levels(Level::Raid10, 4).len(), 2);
}

/// A RAID 6 of the default layout keeps P and Q where they turn; what comes stands still.
#[test]
fn parity_rows_added_to_two_parities_stand_behind_them() {
    let six = table(Level::Raid6, Layout::LeftSymmetric, 5, 12);
    let layout = Layout::AddedParityRows { rotating: 2 };
    let seven = table(Level::Raid7_3, layout, 6, 12);
    for (six, seven) in six.iter().zip(&seven) {
        assert_eq!(seven, &format!("{six} R"));
    }
    // Groups keep their members' numbers: those that come are behind all others.
    let level = Level::Raid60 { group: 4 };
    let sixty = table(level, Layout::AddedParityRows { rotating: 1 }, 8, 3);
    assert_eq!(sixty, ["0 1 P 2 3 P Q Q", "5 P 4 7 P 6 Q Q", "P 8 9 P 10 11 Q Q"]);
}

/// md's near=2 on an even number of members.
#[test]
fn raid_10_has_copies_side_by_side() {
    let geometry = Geometry::new(Level::Raid10, Layout::default(), 4, CHUNK, 80).expect("possible");
    let members = |chunk: u64| {
        let stripe = geometry.place_of(Lba(chunk * 8)).stripe;
        let [one, other] = [0, 1].map(|slot| geometry.member_of(stripe, StripeSlot(slot)).0);
        (one, other, geometry.row_of(stripe).0)
    };
    assert_eq!([0, 1, 2, 3].map(members), [(0, 1, 0), (2, 3, 0), (0, 1, 1), (2, 3, 1)]);
}

#[test]
fn what_is_not_possible_is_refused_with_what_is() {
    let new = |level, members, chunk, sectors| {
        let refused = Geometry::new(level, Layout::default(), members, chunk, sectors);
        refused.expect_err("refused").to_string()
    };
    assert_eq!(
        new(Level::Raid6, 3, CHUNK, 80),
        "RAID 6 on 3 members is not possible: it takes 4 or more"
    );
    assert_eq!(
        new(Level::Raid10, 5, CHUNK, 80),
        "RAID 10 on 5 members is not possible: it takes an even number, 4 or more"
    );
    assert_eq!(
        new(Level::Raid50 { group: 3 }, 7, CHUNK, 80),
        "RAID 50 in groups of 3 on 7 members is not possible: it takes 2 or more groups of 3 or more"
    );
    for chunk in [0, 2048, 12288, 2 << 20, u64::MAX] {
        assert!(new(Level::Raid5, 3, chunk, 1 << 20).contains("power of two from 4K to 1M"));
    }
    assert!(new(Level::Raid5, 3, CHUNK, 7).ends_with("too small"));
    assert!(new(Level::Raid5, 3, CHUNK, u64::MAX / 512).ends_with("too large"));
    assert!(new(Level::Raid5, 300, CHUNK, 80).contains("at most 255"));
    assert!(new(Level::NPlusM { data: 4, parity: 9 }, 13, CHUNK, 80).contains("give 1 to 8"));
    let huge = Level::NPlusM { data: usize::MAX, parity: 2 };
    let refused = Geometry::new(huge, Layout::default(), 1, CHUNK, 80);
    assert!(matches!(refused, Err(GeometryError::Members { .. })));
    assert!(new(Level::Raid60 { group: 0 }, 6, CHUNK, 80).contains("groups of 4 or more"));
}
