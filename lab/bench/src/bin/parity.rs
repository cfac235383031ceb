//! The cases of `cargo xtask bench parity`: one JSON line a case.
//!
//! UNSAFETY: calls into ISA-L, the peer, which is opened at run time: the product neither needs nor
//! links it. ISA-L's functions are declared here as ISA-L's documentation does (`isa-l/erasure_code.h`,
//! `isa-l/raid.h`), and get pointers into one buffer that outlives the calls.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uchar, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use voltier_bench::emit_digits;
use voltier_block::{Buf, Prng};
use voltier_parity::{Code, Decoder, Kernels, ROWS_MAX, Stores, available_kernels, best_kernels};

/// Stripes of at least so many bytes in all are in no cache.
const COLD_BYTES: usize = 512 << 20;

/// The most members of a stripe here, parity included.
const MEMBERS_MAX: usize = 12;

/// One turn of one contender. Turns alternate, so that what else the machine does hits all.
const TURN: Duration = Duration::from_millis(20);

type PqGen = unsafe extern "C" fn(vects: c_int, len: c_int, array: *mut *mut c_void) -> c_int;
type InitTables =
    unsafe extern "C" fn(k: c_int, rows: c_int, a: *mut c_uchar, tables: *mut c_uchar);
type EncodeData = unsafe extern "C" fn(
    len: c_int,
    k: c_int,
    rows: c_int,
    tables: *mut c_uchar,
    data: *mut *mut c_uchar,
    coding: *mut *mut c_uchar,
);

type UpdateData = unsafe extern "C" fn(
    len: c_int,
    k: c_int,
    rows: c_int,
    member: c_int,
    tables: *mut c_uchar,
    data: *mut c_uchar,
    coding: *mut *mut c_uchar,
);
type InvertMatrix = unsafe extern "C" fn(from: *mut c_uchar, to: *mut c_uchar, n: c_int) -> c_int;

struct IsaL {
    pq_gen: PqGen,
    /// Of the same type as `pq_gen`.
    xor_gen: PqGen,
    ec_init_tables: InitTables,
    ec_encode_data: EncodeData,
    ec_encode_data_update: UpdateData,
    gf_invert_matrix: InvertMatrix,
}

impl IsaL {
    fn open() -> Result<IsaL, String> {
        // SAFETY: the library has no conditions on being loaded; it is never unloaded.
        let library = unsafe { libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("ISA-L is missing (libisal.so.2): run scripts/deps.sh bench".to_owned());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library was opened, the name ends with a zero byte.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            if address.is_null() {
                Err(format!("libisal.so.2 has no {name:?}"))
            } else {
                Ok(address)
            }
        };
        // SAFETY: these are the functions' types in the headers of version 2.
        unsafe {
            Ok(IsaL {
                pq_gen: std::mem::transmute::<*mut c_void, PqGen>(symbol(c"pq_gen")?),
                xor_gen: std::mem::transmute::<*mut c_void, PqGen>(symbol(c"xor_gen")?),
                ec_init_tables: std::mem::transmute::<*mut c_void, InitTables>(symbol(
                    c"ec_init_tables",
                )?),
                ec_encode_data: std::mem::transmute::<*mut c_void, EncodeData>(symbol(
                    c"ec_encode_data",
                )?),
                ec_encode_data_update: std::mem::transmute::<*mut c_void, UpdateData>(symbol(
                    c"ec_encode_data_update",
                )?),
                gf_invert_matrix: std::mem::transmute::<*mut c_void, InvertMatrix>(symbol(
                    c"gf_invert_matrix",
                )?),
            })
        }
    }
}

/// The work on a stripe.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    /// All parity from all data.
    Encode,
    /// The parity follows one chunk that changes.
    Update,
    /// As many chunks of data as there are parities are computed from the rest.
    Decode,
}

/// One way to do it.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Ours(Stores),
    PqGen,
    ErasureCode,
}

impl Way {
    fn name(self, op: Op) -> &'static str {
        match (self, op) {
            (Way::Ours(_), _) => "Voltier",
            (Way::PqGen, _) => "ISA-L pq_gen",
            (Way::ErasureCode, Op::Encode | Op::Decode) => "ISA-L ec_encode_data",
            (Way::ErasureCode, Op::Update) => "ISA-L xor_gen, ec_encode_data_update",
        }
    }
}

/// The chunk that an update changes.
const CHANGED: usize = 3;

/// Stripes of one shape in one buffer, and what each way needs to work on them. Behind the members of each
/// is one more chunk: the new content of the one that changes.
struct Stripes<'a> {
    isa_l: &'a IsaL,
    op: Op,
    code: Code,
    decoder: Decoder,
    chunk: usize,
    buf: Buf,
    /// The content that ISA-L's update of a changed chunk starts from.
    delta: Buf,
    tables: Vec<u8>,
    next: usize,
}

impl<'a> Stripes<'a> {
    /// As many stripes as it takes to fill so many bytes.
    fn new(isa_l: &'a IsaL, op: Op, code: Code, chunk: usize, bytes: usize) -> Stripes<'a> {
        let (data, rows) = (code.data_count(), code.row_count());
        let stripe = (data + rows + 1) * chunk;
        let mut buf = Buf::zeroed(bytes.div_ceil(stripe) * stripe);
        Prng::new(1).fill(&mut buf);
        let lost: Vec<usize> = (0..rows).collect();
        let decoder = code.decoder(&lost, &lost).expect("so many may be lost");
        let mut matrix = match op {
            Op::Encode | Op::Update => coefficients(&code, data..data + rows),
            Op::Decode => decoding(isa_l, &code),
        };
        let mut tables = vec![0; 32 * data * rows];
        // SAFETY: the matrix is of `rows` x `data` bytes, and each of them takes 32 bytes of tables.
        unsafe {
            let (k, rows) = (data as c_int, rows as c_int);
            (isa_l.ec_init_tables)(k, rows, matrix.as_mut_ptr(), tables.as_mut_ptr());
        }
        let delta = Buf::zeroed(chunk);
        let mut stripes =
            Stripes { isa_l, op: Op::Encode, code, decoder, chunk, buf, delta, tables, next: 0 };
        for _ in 0..stripes.buf.len() / stripe {
            stripes.run(Way::Ours(Stores::Cached));
        }
        Stripes { op, next: 0, ..stripes }
    }

    fn stripe_bytes(&self) -> usize {
        (self.code.data_count() + self.code.row_count() + 1) * self.chunk
    }

    /// Does it to the next stripe.
    fn run(&mut self, way: Way) {
        let (at, stripe) = (self.next, self.stripe_bytes());
        self.next = if at + 2 * stripe <= self.buf.len() { at + stripe } else { 0 };
        match way {
            Way::Ours(stores) => self.run_here(at, stores),
            Way::PqGen | Way::ErasureCode => self.run_by_isa_l(at, way),
        }
    }

    fn run_here(&mut self, at: usize, stores: Stores) {
        let (data, rows) = (self.code.data_count(), self.code.row_count());
        let stripe = self.stripe_bytes();
        // For a decoder the targets are first, for parity the sources.
        let first = if self.op == Op::Decode { rows } else { data };
        let (before, behind) = self.buf[at..at + stripe].split_at_mut(first * self.chunk);
        let from = before.chunks_exact_mut(self.chunk);
        let to = behind.chunks_exact_mut(self.chunk);
        let mut sources: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        let mut targets: [&mut [u8]; MEMBERS_MAX] = Default::default();
        match self.op {
            Op::Encode => {
                from.zip(&mut sources).for_each(|(member, source)| *source = member);
                to.zip(&mut targets).for_each(|(row, target)| *target = row);
                self.code.encode(&sources[..data], &mut targets[..rows], stores);
            }
            Op::Decode => {
                from.zip(&mut targets).for_each(|(member, target)| *target = member);
                to.zip(&mut sources).for_each(|(member, source)| *source = member);
                self.decoder.decode(&sources[..data], &mut targets[..rows]);
            }
            Op::Update => {
                from.zip(&mut sources).for_each(|(member, source)| *source = member);
                to.zip(&mut targets).for_each(|(row, target)| *target = row);
                let (parity, new) = targets.split_at_mut(rows);
                let mut changed: [(usize, &mut [u8]); ROWS_MAX] = Default::default();
                for (row, (place, bytes)) in changed.iter_mut().zip(parity).enumerate() {
                    *place = (row, bytes);
                }
                self.code.update(CHANGED, sources[CHANGED], new[0], &mut changed[..rows]);
            }
        }
    }

    fn run_by_isa_l(&mut self, at: usize, way: Way) {
        let (data, rows, stripe) =
            (self.code.data_count(), self.code.row_count(), self.stripe_bytes());
        let mut pointers = [std::ptr::null_mut::<u8>(); MEMBERS_MAX + 1];
        let members = self.buf[at..at + stripe].chunks_exact_mut(self.chunk);
        for (pointer, member) in pointers.iter_mut().zip(members) {
            *pointer = member.as_mut_ptr();
        }
        let (k, m, length) = (data as c_int, rows as c_int, self.chunk as c_int);
        let array = pointers.as_mut_ptr();
        let tables = self.tables.as_mut_ptr();
        // SAFETY: the pointers are to as many chunks of this length, aligned to 4096 bytes, and the
        // tables were made for this shape and operation.
        unsafe {
            match (way, self.op) {
                (Way::PqGen, _) => {
                    let status = (self.isa_l.pq_gen)(k + m, length, array.cast());
                    assert_eq!(status, 0, "pq_gen takes these arguments");
                }
                (_, Op::Encode) => {
                    (self.isa_l.ec_encode_data)(length, k, m, tables, array, array.add(data));
                }
                (_, Op::Decode) => {
                    (self.isa_l.ec_encode_data)(length, k, m, tables, array.add(rows), array);
                }
                (_, Op::Update) => {
                    let delta = self.delta.as_mut_ptr();
                    let mut three = [pointers[CHANGED], pointers[data + rows], delta];
                    let status = (self.isa_l.xor_gen)(3, length, three.as_mut_ptr().cast());
                    assert_eq!(status, 0, "xor_gen takes these arguments");
                    let (update, coding) = (self.isa_l.ec_encode_data_update, array.add(data));
                    update(length, k, m, CHANGED as c_int, tables, delta, coding);
                }
            }
        }
    }

    /// The first stripe's content afterwards; the stripe is as before then.
    fn result(&mut self, way: Way) -> Vec<u8> {
        let (data, rows, stripe) =
            (self.code.data_count(), self.code.row_count(), self.stripe_bytes());
        let before = self.buf[..stripe].to_vec();
        match self.op {
            Op::Encode => self.buf[data * self.chunk..(data + rows) * self.chunk].fill(0xee),
            Op::Decode => self.buf[..rows * self.chunk].fill(0xee),
            Op::Update => {}
        }
        self.next = 0;
        self.run(way);
        let after = self.buf[..stripe].to_vec();
        assert!(self.op == Op::Update || after == before, "it is what it was");
        self.buf[..stripe].copy_from_slice(&before);
        after
    }

    /// The bytes that count: data, of an update the chunk that changes.
    fn data_bytes(&self) -> usize {
        match self.op {
            Op::Encode | Op::Decode => self.code.data_count() * self.chunk,
            Op::Update => self.chunk,
        }
    }

    /// GB/s of data of each way: medians of alternating turns.
    fn measure(&mut self, ways: &[Way], seconds: f64) -> Vec<f64> {
        let expected = self.result(ways[0]);
        assert!(ways.iter().all(|way| self.result(*way) == expected), "the peers disagree");
        let turns = (seconds / TURN.as_secs_f64() / ways.len() as f64).ceil().max(3.0) as usize;
        let mut figures = vec![Vec::new(); ways.len()];
        for _ in 0..turns {
            for (way, figures) in ways.iter().zip(&mut figures) {
                figures.push(self.turn(*way));
            }
        }
        figures
            .iter_mut()
            .map(|turns| {
                turns.sort_by(f64::total_cmp);
                turns[turns.len() / 2]
            })
            .collect()
    }

    fn turn(&mut self, way: Way) -> f64 {
        let data_bytes = self.data_bytes();
        let between_looks = (256 << 10) / data_bytes + 1;
        let begun = cpu_time();
        let mut stripes = 0;
        while cpu_time() - begun < TURN {
            for _ in 0..between_looks {
                black_box(&mut *self).run(way);
            }
            stripes += between_looks;
        }
        (stripes * data_bytes) as f64 / (cpu_time() - begun).as_secs_f64() / 1e9
    }
}

/// Rows of the code's matrix: of data members a single one each, of parities what they are made with.
fn coefficients(code: &Code, members: std::ops::Range<usize>) -> Vec<u8> {
    let data = code.data_count();
    let row = |member: usize| {
        (0..data).map(move |column| match member.checked_sub(data) {
            Some(row) => code.coefficient(row, column),
            None => u8::from(member == column),
        })
    };
    members.flat_map(row).collect()
}

/// The coefficients that make the first chunks of data of the others and the parities.
fn decoding(isa_l: &IsaL, code: &Code) -> Vec<u8> {
    let (data, rows) = (code.data_count(), code.row_count());
    let mut known = coefficients(code, rows..data + rows);
    let mut inverse = vec![0; data * data];
    // SAFETY: both are square matrices of `data` rows.
    let status = unsafe {
        (isa_l.gf_invert_matrix)(known.as_mut_ptr(), inverse.as_mut_ptr(), data as c_int)
    };
    assert_eq!(status, 0, "any so many members are enough");
    inverse.truncate(rows * data);
    inverse
}

/// The processor time of this thread: other programs on the machine add nothing.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "every Linux has this clock");
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn run() -> Result<(), String> {
    let isa_l = IsaL::open()?;
    let kernels = kernels()?;
    let seconds = match std::env::var("BENCH_SECONDS") {
        Ok(text) => text.parse().map_err(|_| format!("BENCH_SECONDS={text} is not a number"))?,
        Err(_) => 1.0,
    };
    for (data, rows) in [(8, 2), (10, 2), (8, 3)] {
        let code = Code::with_kernels(data, rows, kernels).expect("a code of this shape");
        for op in [Op::Encode, Op::Update, Op::Decode] {
            measure_op(&isa_l, op, &code, seconds);
        }
    }
    Ok(())
}

fn measure_op(isa_l: &IsaL, op: Op, code: &Code, seconds: f64) {
    let (data, rows) = (code.data_count(), code.row_count());
    let peers: &[Way] = match (op, rows) {
        (Op::Encode, 2) => &[Way::PqGen, Way::ErasureCode],
        _ => &[Way::ErasureCode],
    };
    for (place, stores, bytes) in
        [("cache", Stores::Cached, 1), ("memory", Stores::Streaming, COLD_BYTES)]
    {
        let ways: Vec<Way> = [Way::Ours(stores)].iter().chain(peers).copied().collect();
        for chunk in [4 << 10, 16 << 10, 64 << 10] {
            let mut stripes = Stripes::new(isa_l, op, code.clone(), chunk, bytes);
            let what = match op {
                Op::Encode => "encode",
                Op::Update => "update 1 chunk",
                Op::Decode => "decode all lost",
            };
            let case = format!("{what} {data}+{rows}, {} KiB, in {place}", chunk >> 10);
            let figures = stripes.measure(&ways, seconds);
            for (way, theirs) in ways.iter().zip(&figures).skip(1) {
                emit_digits(2, &case, "GB/s", figures[0], way.name(op), *theirs);
            }
        }
    }
}

/// The best kernels of this processor, or those that BENCH_KERNELS names.
fn kernels() -> Result<&'static Kernels, String> {
    let Ok(name) = std::env::var("BENCH_KERNELS") else { return Ok(best_kernels()) };
    let set = available_kernels().iter().find(|set| set.name() == name);
    set.copied().ok_or_else(|| {
        let names: Vec<&str> = available_kernels().iter().map(|set| set.name()).collect();
        format!("BENCH_KERNELS={name} does not run here: try one of {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
