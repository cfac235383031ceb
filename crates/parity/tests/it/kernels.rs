//! Every set of kernels is held to the scalar one, and the scalar one to the definition.

use std::io::Write;

use voltier_block::Prng;
use voltier_parity::{Code, Kernels, ROWS_MAX, Stores, available_kernels, best_kernels};

/// Bytes of a member; around the blocks of every kernel (16 to 256 bytes), and pages.
const LENGTHS: [usize; 14] = [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096, 4167];

fn find(name: &str) -> Option<&'static Kernels> {
    available_kernels().iter().copied().find(|set| set.name() == name)
}

/// Members that begin at any address: each in its own memory, some bytes in.
struct Members {
    memory: Vec<Vec<u8>>,
    lead: Vec<usize>,
    bytes: usize,
}

impl Members {
    fn random(dice: &mut Prng, count: usize, bytes: usize, lead_max: u64) -> Members {
        let lead: Vec<usize> = (0..count).map(|_| dice.below(lead_max + 1) as usize).collect();
        let memory = lead.iter().map(|lead| {
            let mut memory = vec![0; lead + bytes + 64];
            dice.fill(&mut memory);
            memory
        });
        Members { memory: memory.collect(), lead, bytes }
    }

    fn slices(&self) -> Vec<&[u8]> {
        let each = self.memory.iter().zip(&self.lead);
        each.map(|(memory, lead)| &memory[*lead..lead + self.bytes]).collect()
    }

    fn slices_mut(&mut self) -> Vec<&mut [u8]> {
        let each = self.memory.iter_mut().zip(&self.lead);
        each.map(|(memory, lead)| &mut memory[*lead..lead + self.bytes]).collect()
    }

    /// The bytes around the members.
    fn surroundings(&self) -> Vec<u8> {
        let each = self.memory.iter().zip(&self.lead);
        each.flat_map(|(memory, lead)| [&memory[..*lead], &memory[lead + self.bytes..]].concat())
            .collect()
    }
}

/// Runs all operations of both codes on the same random input and compares everything.
fn compare(dice: &mut Prng, plain: &Code, code: &Code, bytes: usize, lead_max: u64) {
    let what = format!("{code:?}, {bytes} bytes");
    let (data_count, rows) = (code.data_count(), code.row_count());
    let mut data = Members::random(dice, data_count, bytes, lead_max);
    let mut expected = Members::random(dice, rows, bytes, 0);
    plain.encode(&data.slices(), &mut expected.slices_mut(), Stores::Cached);
    let mut parity = Members::random(dice, rows, bytes, lead_max);
    for stores in [Stores::Cached, Stores::Streaming] {
        parity.slices_mut().into_iter().for_each(|row| dice.fill(row));
        let around = parity.surroundings();
        code.encode(&data.slices(), &mut parity.slices_mut(), stores);
        assert_eq!(parity.slices(), expected.slices(), "encode, {what}");
        assert_eq!(parity.surroundings(), around, "encode beyond the end, {what}");
    }
    assert!(code.check(&data.slices(), &parity.slices()), "check, {what}");

    let member = dice.below(data_count as u64) as usize;
    let new = Members::random(dice, 1, bytes, lead_max);
    for (code, parity) in [(plain, &mut expected), (code, &mut parity)] {
        let around = parity.surroundings();
        let mut targets: Vec<_> = parity.slices_mut().into_iter().enumerate().collect();
        targets.rotate_left(1);
        code.update(member, data.slices()[member], new.slices()[0], &mut targets);
        assert_eq!(parity.surroundings(), around, "update beyond the end, {what}");
    }
    assert_eq!(parity.slices(), expected.slices(), "update, {what}");
    data.slices_mut()[member].copy_from_slice(new.slices()[0]);
    assert!(code.check(&data.slices(), &parity.slices()), "updated rows are right, {what}");

    decode_and_compare(dice, code, &data, &parity, lead_max);
    if bytes > 0 {
        let (row, at) = (dice.below(rows as u64) as usize, dice.below(bytes as u64) as usize);
        parity.slices_mut()[row][at] ^= 1 << dice.below(8);
        assert!(!code.check(&data.slices(), &parity.slices()), "one bit of row {row}, {what}");
    }
}

/// Loses as many members as there are rows, and computes them again.
fn decode_and_compare(
    dice: &mut Prng,
    code: &Code,
    data: &Members,
    parity: &Members,
    lead_max: u64,
) {
    let all: Vec<&[u8]> = data.slices().into_iter().chain(parity.slices()).collect();
    let mut lost: Vec<usize> = (0..all.len()).collect();
    while lost.len() > code.row_count() {
        lost.swap_remove(dice.below(lost.len() as u64) as usize);
    }
    let decoder = code.decoder(&lost, &lost).expect("as many are lost as there are rows");
    let sources: Vec<&[u8]> = decoder.sources().iter().map(|member| all[*member]).collect();
    let mut found = Members::random(dice, lost.len(), data.bytes, lead_max);
    let around = found.surroundings();
    decoder.decode(&sources, &mut found.slices_mut());
    let expected: Vec<&[u8]> = lost.iter().map(|member| all[*member]).collect();
    assert_eq!(found.slices(), expected, "decode {lost:?}, {code:?}");
    assert_eq!(found.surroundings(), around, "decode beyond the end, {code:?}");
}

fn hold_to_scalar(name: &str) {
    let Some(kernels) = find(name) else {
        // Past the capture of the test's output: a kernel that was not tried must be seen.
        let message =
            format!("SKIPPED: this processor has no {name}, its kernels are unproven here");
        writeln!(std::io::stderr(), "{message}").expect("stderr can be written");
        return;
    };
    let scalar = find("scalar").expect("scalar runs anywhere");
    let mut dice = Prng::new(0x7061_7269);
    for rows in 1..=ROWS_MAX {
        for data in [1, 2, 3, 8, 10, 32] {
            let plain = Code::with_kernels(data, rows, scalar).unwrap();
            let code = Code::with_kernels(data, rows, kernels).unwrap();
            for bytes in LENGTHS {
                compare(&mut dice, &plain, &code, bytes, 63);
            }
            let bytes = dice.below(3000) as usize;
            compare(&mut dice, &plain, &code, bytes, 63);
        }
        let data = Code::data_max(rows);
        let plain = Code::with_kernels(data, rows, scalar).unwrap();
        let code = Code::with_kernels(data, rows, kernels).unwrap();
        compare(&mut dice, &plain, &code, 300, 63);
    }
}

#[test]
fn the_scalar_kernels_decode_what_they_encode() {
    hold_to_scalar("scalar");
}

#[test]
fn the_ssse3_kernels_do_what_the_scalar_ones_do() {
    hold_to_scalar("ssse3");
}

#[test]
fn the_avx2_kernels_do_what_the_scalar_ones_do() {
    hold_to_scalar("avx2");
}

#[test]
fn the_avx512_kernels_do_what_the_scalar_ones_do() {
    hold_to_scalar("avx512");
}

#[test]
fn the_gfni_kernels_do_what_the_scalar_ones_do() {
    hold_to_scalar("gfni");
}

/// Rows aligned to 64 bytes, so that they are streamed.
#[test]
fn aligned_rows_are_streamed_and_are_the_same() {
    #[repr(align(64))]
    struct Aligned([u8; 4224]);
    let mut dice = Prng::new(5);
    let mut data = [const { Aligned([0; 4224]) }; 8];
    data.iter_mut().for_each(|member| dice.fill(&mut member.0));
    let slices: Vec<&[u8]> = data.iter().map(|member| &member.0[..]).collect();
    for kernels in available_kernels() {
        let code = Code::with_kernels(8, 3, kernels).unwrap();
        let mut rows = [const { [const { Aligned([0; 4224]) }; 3] }; 2];
        for (rows, stores) in rows.iter_mut().zip([Stores::Cached, Stores::Streaming]) {
            code.encode(&slices, &mut rows.each_mut().map(|row| &mut row.0[..]), stores);
        }
        let [cached, streamed] = &rows;
        assert!(cached.iter().zip(streamed).all(|(a, b)| a.0 == b.0), "{kernels:?}");
    }
}

/// P and Q as Linux md has them, computed from the definition: no table, no rule of Horner's.
#[test]
fn the_first_two_rows_are_those_of_linux_md() {
    let mut dice = Prng::new(7);
    let data = Members::random(&mut dice, 10, 512, 0);
    let mut expected = [vec![0; 512], vec![0; 512]];
    for (member, bytes) in data.slices().into_iter().enumerate() {
        for (at, byte) in bytes.iter().enumerate() {
            let mut product = u16::from(*byte);
            for _ in 0..member {
                product <<= 1;
                if product > 0xff {
                    product ^= 0x11d;
                }
            }
            expected[0][at] ^= byte;
            expected[1][at] ^= product as u8;
        }
    }
    for kernels in available_kernels() {
        let code = Code::with_kernels(10, 2, kernels).unwrap();
        let mut parity = Members::random(&mut dice, 2, 512, 0);
        code.encode(&data.slices(), &mut parity.slices_mut(), Stores::Cached);
        assert_eq!(parity.slices(), expected, "{kernels:?}");
    }
}

#[test]
fn the_best_kernels_come_first_and_all_have_a_known_name() {
    let names: Vec<&str> = available_kernels().iter().map(|set| set.name()).collect();
    assert_eq!(best_kernels().name(), names[0]);
    let expected: Vec<&str> =
        Kernels::NAMES.into_iter().filter(|name| names.contains(name)).collect();
    assert_eq!(names, expected);
    assert_eq!(names.last(), Some(&"scalar"));
}
