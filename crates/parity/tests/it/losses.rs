//! Losses up to the number of rows are made up for, wrong members are found, bad arguments refused.

use voltier_block::Prng;
use voltier_parity::{Code, CodeError, ROWS_MAX, Stores, Verdict};

/// A stripe with right parity: all members, data first.
fn stripe(code: &Code, bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut dice = Prng::new(seed);
    let mut members = vec![vec![0; bytes]; code.member_count()];
    let (data, parity) = members.split_at_mut(code.data_count());
    data.iter_mut().for_each(|member| dice.fill(member));
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut parity, Stores::Cached);
    members
}

/// Whether `wanted` comes back right when `lost` is gone.
fn comes_back(code: &Code, members: &[Vec<u8>], lost: &[usize], wanted: &[usize]) -> bool {
    let decoder = code.decoder(lost, wanted).expect("the losses can be made up for");
    assert!(decoder.sources().iter().all(|source| !lost.contains(source)));
    assert_eq!(decoder.targets(), wanted);
    let sources: Vec<&[u8]> =
        decoder.sources().iter().map(|member| &members[*member][..]).collect();
    let mut found = vec![vec![0xee; members[0].len()]; wanted.len()];
    let mut targets: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
    decoder.decode(&sources, &mut targets);
    found.iter().zip(wanted).all(|(found, member)| *found == members[*member])
}

#[test]
fn every_triple_of_losses_comes_back_at_every_width_up_to_32() {
    for data in 1..=32 {
        let code = Code::new(data, 3).unwrap();
        let members = stripe(&code, 16, data as u64);
        for first in 0..members.len() {
            for second in first + 1..members.len() {
                for third in second + 1..members.len() {
                    let lost = [first, second, third];
                    assert!(comes_back(&code, &members, &lost, &lost), "{data}+3 lost {lost:?}");
                }
            }
        }
    }
}

#[test]
fn every_pair_and_every_single_loss_comes_back_with_any_number_of_rows() {
    for (data, rows) in [(1, 1), (4, 1), (2, 2), (10, 2), (32, 2), (8, 3), (10, 5), (12, 8)] {
        let code = Code::new(data, rows).unwrap();
        let members = stripe(&code, 100, 3);
        for first in 0..members.len() {
            assert!(comes_back(&code, &members, &[first], &[first]));
            for second in (first + 1..members.len()).filter(|_| rows > 1) {
                assert!(comes_back(&code, &members, &[second, first], &[first, second]));
                assert!(comes_back(&code, &members, &[first, second], &[second]));
            }
        }
    }
}

#[test]
fn some_rows_of_a_stripe_can_be_computed_alone() {
    let code = Code::new(6, 3).unwrap();
    let members = stripe(&code, 700, 9);
    for wanted in [&[6][..], &[7], &[8], &[6, 8], &[7, 6], &[6, 7, 8]] {
        assert!(comes_back(&code, &members, &[6, 7, 8], wanted), "{wanted:?}");
    }
}

#[test]
fn an_update_leaves_lost_rows_out() {
    let code = Code::new(5, 3).unwrap();
    let mut members = stripe(&code, 300, 11);
    let new = vec![0x5a; 300];
    let old = std::mem::replace(&mut members[4], new.clone());
    let before = members[6].clone();
    let [.., p, _, r] = &mut members[..] else { unreachable!() };
    code.update(4, &old, &new, &mut [(2, r), (0, p)]);
    assert_eq!(members[6], before);
    let (data, parity) = members.split_at(5);
    let expected = {
        let mut rows = vec![vec![0; 300]; 3];
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut targets: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&data, &mut targets, Stores::Cached);
        rows
    };
    assert_eq!([&parity[0], &parity[2]], [&expected[0], &expected[2]]);
}

fn locate(code: &Code, members: &[Vec<u8>]) -> Verdict {
    let slices: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
    let (data, parity) = slices.split_at(code.data_count());
    code.locate(data, parity)
}

#[test]
fn one_wrong_member_is_found_from_two_rows_on() {
    for (data, rows) in [(1, 2), (4, 2), (10, 2), (32, 2), (8, 3), (32, 3), (20, 6), (249, 8)] {
        let code = Code::new(data, rows).unwrap();
        let right = stripe(&code, 1100, 21);
        assert_eq!(locate(&code, &right), Verdict::Consistent);
        for member in 0..right.len() {
            let mut members = right.clone();
            for (at, change) in [(0, 1), (511, 0x80), (512, 0xff), (1099, 0x1d)] {
                members[member][at] ^= change;
            }
            assert_eq!(locate(&code, &members), Verdict::One { member }, "{data}+{rows}");
        }
    }
}

#[test]
fn with_three_rows_two_wrong_members_are_never_taken_for_one() {
    let code = Code::new(32, 3).unwrap();
    let right = stripe(&code, 255, 22);
    for first in 0..right.len() {
        for second in first + 1..right.len() {
            let mut members = right.clone();
            // Every ratio of two errors is tried, one a byte; each byte must say so by itself.
            for ratio in 1..=255 {
                members[first][usize::from(ratio) - 1] ^= 1;
                members[second][usize::from(ratio) - 1] ^= ratio;
            }
            for at in 0..255 {
                let byte: Vec<Vec<u8>> = members.iter().map(|member| vec![member[at]]).collect();
                assert_eq!(locate(&code, &byte), Verdict::Unknown, "{first}, {second}, byte {at}");
            }
        }
    }
}

#[test]
fn members_wrong_in_different_bytes_are_more_than_one() {
    let code = Code::new(6, 2).unwrap();
    let mut members = stripe(&code, 2000, 23);
    members[1][10] ^= 4;
    members[4][1900] ^= 4;
    assert_eq!(locate(&code, &members), Verdict::Unknown);
}

#[test]
fn one_row_tells_that_something_is_wrong_and_not_what() {
    let code = Code::new(6, 1).unwrap();
    let mut members = stripe(&code, 64, 24);
    assert_eq!(locate(&code, &members), Verdict::Consistent);
    members[1][10] ^= 4;
    assert_eq!(locate(&code, &members), Verdict::Unknown);
}

#[test]
fn impossible_codes_and_plans_are_refused() {
    for rows in [0, ROWS_MAX + 1] {
        assert_eq!(Code::new(4, rows).unwrap_err(), CodeError::Rows { rows });
    }
    for rows in 1..=ROWS_MAX {
        for data in [0, Code::data_max(rows) + 1] {
            assert_eq!(Code::new(data, rows).unwrap_err(), CodeError::Data { data, rows });
        }
        assert!(Code::new(Code::data_max(rows), rows).is_ok());
    }
    let code = Code::new(4, 2).unwrap();
    let refused = |lost: &[usize], wanted: &[usize]| code.decoder(lost, wanted).unwrap_err();
    assert_eq!(refused(&[6], &[6]), CodeError::NoSuchMember { member: 6, members: 6 });
    assert_eq!(refused(&[1, 1], &[1]), CodeError::Twice { member: 1 });
    assert_eq!(refused(&[1, 2], &[2, 2]), CodeError::Twice { member: 2 });
    assert_eq!(refused(&[0, 1, 5], &[0]), CodeError::TooManyLost { lost: 3, rows: 2 });
    assert_eq!(refused(&[1], &[2]), CodeError::NotLost);
    assert_eq!(refused(&[1], &[]), CodeError::NotLost);
    assert_eq!(refused(&[1], &[99]), CodeError::NotLost);
    let message = Code::new(300, 3).unwrap_err().to_string();
    assert_eq!(message, "300 data members with 3 parity rows: give 1 to 254");
}

#[test]
#[should_panic(expected = "members of unequal length")]
fn members_of_unequal_length_are_refused() {
    let code = Code::new(2, 1).unwrap();
    code.encode(&[&[0; 64], &[0; 63]], &mut [&mut [0; 64]], Stores::Cached);
}

#[test]
#[should_panic(expected = "rows of unequal length")]
fn rows_shorter_than_the_members_are_refused() {
    let code = Code::new(2, 1).unwrap();
    code.encode(&[&[0; 64], &[0; 64]], &mut [&mut [0; 63]], Stores::Cached);
}

#[test]
#[should_panic(expected = "1 members and 1 rows given to a code of 2 and 1")]
fn too_few_members_are_refused() {
    let code = Code::new(2, 1).unwrap();
    assert!(code.check(&[&[0; 64]], &[&[0; 64]]));
}

#[test]
#[should_panic(expected = "rows of unequal length")]
fn an_update_of_unequal_length_is_refused() {
    let code = Code::new(2, 1).unwrap();
    code.update(0, &[0; 64], &[0; 64], &mut [(0, &mut [0; 65])]);
}

#[test]
#[should_panic(expected = "no row 1 or no data member 0")]
fn an_update_of_a_row_that_does_not_exist_is_refused() {
    let code = Code::new(2, 1).unwrap();
    code.update(0, &[0; 64], &[0; 64], &mut [(1, &mut [0; 64])]);
}

#[test]
#[should_panic(expected = "targets of unequal length")]
fn a_target_of_unequal_length_is_refused() {
    let code = Code::new(2, 2).unwrap();
    let decoder = code.decoder(&[0, 1], &[0, 1]).unwrap();
    decoder.decode(&[&[0; 64], &[0; 64]], &mut [&mut [0; 64], &mut [0; 60]]);
}
