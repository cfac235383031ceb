//! The cases of `cargo xtask bench parity`: one JSON line a case.
//!
//! UNSAFETY: calls into ISA-L, the peer, which is opened at run time: the product neither needs nor
//! links it. Its functions are declared here as its documentation does (`isa-l/erasure_code.h`,
//! `isa-l/raid.h`), and are given pointers into one buffer that outlives the calls.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uchar, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use voltier_block::{Buf, Prng};
use voltier_parity::{Code, Kernels, Stores};

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

struct IsaL {
    pq_gen: PqGen,
    ec_init_tables: InitTables,
    ec_encode_data: EncodeData,
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
                ec_init_tables: std::mem::transmute::<*mut c_void, InitTables>(symbol(
                    c"ec_init_tables",
                )?),
                ec_encode_data: std::mem::transmute::<*mut c_void, EncodeData>(symbol(
                    c"ec_encode_data",
                )?),
            })
        }
    }
}

/// One way to encode a stripe.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Ours(Stores),
    PqGen,
    EcEncode,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Ours(_) => "Voltier",
            Way::PqGen => "ISA-L pq_gen",
            Way::EcEncode => "ISA-L ec_encode_data",
        }
    }
}

/// Stripes of one shape in one buffer, and what it takes to encode them by each way.
struct Stripes<'a> {
    isa_l: &'a IsaL,
    code: Code,
    chunk: usize,
    buf: Buf,
    tables: Vec<u8>,
    next: usize,
}

impl<'a> Stripes<'a> {
    /// As many stripes as it takes to fill so many bytes.
    fn new(isa_l: &'a IsaL, code: Code, chunk: usize, bytes: usize) -> Stripes<'a> {
        let (data, rows) = (code.data_count(), code.row_count());
        let stripe = (data + rows) * chunk;
        let mut buf = Buf::zeroed(bytes.div_ceil(stripe) * stripe);
        Prng::new(1).fill(&mut buf);
        let mut matrix: Vec<u8> =
            (0..rows * data).map(|index| code.coefficient(index / data, index % data)).collect();
        let mut tables = vec![0; 32 * data * rows];
        let (k, rows) = (data as c_int, rows as c_int);
        // SAFETY: the matrix is of `rows` x `k` bytes, and each of them takes 32 bytes of tables.
        unsafe { (isa_l.ec_init_tables)(k, rows, matrix.as_mut_ptr(), tables.as_mut_ptr()) };
        Stripes { isa_l, code, chunk, buf, tables, next: 0 }
    }

    /// Encodes the next stripe.
    fn encode(&mut self, way: Way) {
        let (data, rows) = (self.code.data_count(), self.code.row_count());
        let stripe = (data + rows) * self.chunk;
        let at = self.next;
        self.next = if at + 2 * stripe <= self.buf.len() { at + stripe } else { 0 };
        match way {
            Way::Ours(stores) => self.encode_here(at, stores),
            Way::PqGen | Way::EcEncode => self.encode_by_isa_l(at, way == Way::PqGen),
        }
    }

    fn encode_here(&mut self, at: usize, stores: Stores) {
        let (data, rows) = (self.code.data_count(), self.code.row_count());
        let (members, parity) =
            self.buf[at..at + (data + rows) * self.chunk].split_at_mut(data * self.chunk);
        let mut sources: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        let mut targets: [&mut [u8]; MEMBERS_MAX] = Default::default();
        for (source, member) in sources.iter_mut().zip(members.chunks_exact(self.chunk)) {
            *source = member;
        }
        for (target, row) in targets.iter_mut().zip(parity.chunks_exact_mut(self.chunk)) {
            *target = row;
        }
        self.code.encode(&sources[..data], &mut targets[..rows], stores);
    }

    fn encode_by_isa_l(&mut self, at: usize, by_pq_gen: bool) {
        let (data, rows) = (self.code.data_count(), self.code.row_count());
        let stripe = &mut self.buf[at..at + (data + rows) * self.chunk];
        let mut pointers = [std::ptr::null_mut::<u8>(); MEMBERS_MAX];
        for (pointer, member) in pointers.iter_mut().zip(stripe.chunks_exact_mut(self.chunk)) {
            *pointer = member.as_mut_ptr();
        }
        let (k, m, length) = (data as c_int, rows as c_int, self.chunk as c_int);
        let array = pointers.as_mut_ptr();
        // SAFETY: the pointers are to as many chunks of this length, aligned to 4096 bytes, and the
        // tables were made for this shape.
        unsafe {
            if by_pq_gen {
                let status = (self.isa_l.pq_gen)(k + m, length, array.cast());
                assert_eq!(status, 0, "pq_gen takes these arguments");
            } else {
                let tables = self.tables.as_mut_ptr();
                (self.isa_l.ec_encode_data)(length, k, m, tables, array, array.add(data));
            }
        }
    }

    /// The parity of the first stripe.
    fn parity(&mut self, way: Way) -> Vec<u8> {
        let (data, rows) = (self.code.data_count(), self.code.row_count());
        self.next = 0;
        self.buf[data * self.chunk..(data + rows) * self.chunk].fill(0xee);
        self.encode(way);
        self.buf[data * self.chunk..(data + rows) * self.chunk].to_vec()
    }

    /// GB/s of data of each way: medians of alternating turns.
    fn measure(&mut self, ways: &[Way], seconds: f64) -> Vec<f64> {
        let expected = self.parity(ways[0]);
        assert!(ways.iter().all(|way| self.parity(*way) == expected), "the peers disagree");
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
        let data_bytes = self.code.data_count() * self.chunk;
        let between_looks = (256 << 10) / data_bytes + 1;
        let begun = cpu_time();
        let mut stripes = 0;
        while cpu_time() - begun < TURN {
            for _ in 0..between_looks {
                black_box(&mut *self).encode(way);
            }
            stripes += between_looks;
        }
        (stripes * data_bytes) as f64 / (cpu_time() - begun).as_secs_f64() / 1e9
    }
}

/// What this thread has used of a processor: what else runs on the machine takes none of it.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "every Linux has this clock");
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn emit(case: &str, ours: f64, peer: &str, theirs: f64) {
    println!(
        "{{\"case\":\"{case}\",\"unit\":\"GB/s\",\"ours\":{ours:.2},\"peer\":\"{peer}\",\
         \"theirs\":{theirs:.2}}}"
    );
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
        let peers: &[Way] = if rows == 2 { &[Way::PqGen, Way::EcEncode] } else { &[Way::EcEncode] };
        for (place, stores, bytes) in
            [("cache", Stores::Cached, 1), ("memory", Stores::Streaming, COLD_BYTES)]
        {
            let ways: Vec<Way> = [Way::Ours(stores)].iter().chain(peers).copied().collect();
            for chunk in [4 << 10, 16 << 10, 64 << 10] {
                let mut stripes = Stripes::new(&isa_l, code.clone(), chunk, bytes);
                let case = format!("encode {data}+{rows}, {} KiB, in {place}", chunk >> 10);
                let figures = stripes.measure(&ways, seconds);
                for (way, theirs) in ways.iter().zip(&figures).skip(1) {
                    emit(&case, figures[0], way.name(), *theirs);
                }
            }
        }
    }
    Ok(())
}

/// The best kernels of this processor, or those that BENCH_KERNELS names.
fn kernels() -> Result<&'static Kernels, String> {
    let Ok(name) = std::env::var("BENCH_KERNELS") else { return Ok(Kernels::best()) };
    let set = Kernels::available().iter().find(|set| set.name() == name);
    set.copied().ok_or_else(|| {
        let names: Vec<&str> = Kernels::available().iter().map(|set| set.name()).collect();
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
