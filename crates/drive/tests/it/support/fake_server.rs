//! An NBD server for tests: it keeps what was not flushed in memory, answers in any order, and dies as told.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use voltier_block::Prng;
use voltier_nbd::{ExportUri, Server, proto};

/// What a server says of its export, and how it behaves.
#[derive(Clone, Debug)]
pub(crate) struct Conduct {
    pub(crate) flags: u16,
    pub(crate) blocks: [u32; 3],
    pub(crate) structured: bool,
    /// Every so many requests, by chance, a connection breaks before or after one is carried out, or the server
    /// dies; 0 for never.
    pub(crate) breaks_one_in: u64,
    /// Sent instead of the answer to the next request, if there is any.
    pub(crate) instead: Option<Vec<u8>>,
    /// The error that the next flush ends with.
    pub(crate) flush_error: u32,
    /// Flushes wait.
    pub(crate) holds_flushes: bool,
    /// Nobody is let in.
    pub(crate) is_closed: bool,
    /// Every request ends with this error, and 0 is none.
    pub(crate) error: u32,
    /// Writes wait: they are received, and carried out later.
    pub(crate) holds_writes: bool,
}

pub(crate) const ALL_FLAGS: u16 = proto::FLAG_HAS_FLAGS
    | proto::FLAG_SEND_FLUSH
    | proto::FLAG_SEND_FUA
    | proto::FLAG_SEND_TRIM
    | proto::FLAG_SEND_WRITE_ZEROES
    | proto::FLAG_CAN_MULTI_CONN;

impl Default for Conduct {
    fn default() -> Self {
        Self {
            flags: ALL_FLAGS,
            blocks: [1, 4096, 1 << 20],
            structured: true,
            breaks_one_in: 0,
            instead: None,
            flush_error: 0,
            holds_flushes: false,
            is_closed: false,
            error: 0,
            holds_writes: false,
        }
    }
}

/// The server's state: what it has, and what of that would be left of it.
pub(crate) struct State {
    pub(crate) conduct: Conduct,
    pub(crate) cached: Vec<u8>,
    pub(crate) durable: Vec<u8>,
    /// Grows when the server dies: connections from before are over.
    epoch: u64,
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) flushes: u64,
    pub(crate) deaths: u64,
    /// Requests that wait.
    pub(crate) held: u64,
    prng: Prng,
}

impl State {
    /// Loses what was not flushed, and all connections.
    pub(crate) fn die(&mut self) {
        self.cached.clone_from(&self.durable);
        self.epoch += 1;
        self.deaths += 1;
    }
}

pub(crate) struct FakeServer {
    pub(crate) uri: ExportUri,
    state: Arc<Mutex<State>>,
    _folder: tempfile::TempDir,
}

impl FakeServer {
    pub(crate) fn start(bytes: u64, conduct: Conduct) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let state = Arc::new(Mutex::new(State {
            conduct,
            cached: vec![0; bytes as usize],
            durable: vec![0; bytes as usize],
            epoch: 0,
            connections: 0,
            requests: 0,
            flushes: 0,
            deaths: 0,
            held: 0,
            prng: Prng::new(5),
        }));
        let of = state.clone();
        spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = of.clone();
                spawn(move || drop(serve(stream, &state)));
            }
        });
        let uri = ExportUri { server: Server::Unix(path), export: "disk".to_owned() };
        Self { uri, state, _folder: folder }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    drop(thread::Builder::new().spawn(work).unwrap());
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn read_exact<const BYTES: usize>(stream: &mut UnixStream) -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn option_reply(
    stream: &mut UnixStream,
    option: u64,
    kind: u32,
    data: &[u8],
) -> std::io::Result<()> {
    let mut bytes = proto::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend((option as u32).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes)
}

/// Greets; whether replies are structured.
fn greet(stream: &mut UnixStream, conduct: &Conduct, bytes: u64) -> std::io::Result<bool> {
    let greeting = [proto::MAGIC.to_be_bytes(), proto::OPTION_MAGIC.to_be_bytes()].concat();
    stream.write_all(&[&greeting[..], &3_u16.to_be_bytes()].concat())?;
    read_exact::<4>(stream)?;
    let mut structured = false;
    loop {
        let header = read_exact::<16>(stream)?;
        let (option, length) = (be(&header[8..12]), be(&header[12..]));
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        if option == u64::from(proto::OPT_STRUCTURED_REPLY) {
            structured = conduct.structured;
            let kind = if structured { proto::REP_ACK } else { proto::REP_ERR_UNSUP };
            option_reply(stream, option, kind, &[])?;
            continue;
        }
        let size = [&proto::INFO_EXPORT.to_be_bytes()[..], &bytes.to_be_bytes()];
        let size = [&size.concat()[..], &conduct.flags.to_be_bytes()].concat();
        option_reply(stream, option, proto::REP_INFO, &size)?;
        let blocks = conduct.blocks.map(u32::to_be_bytes).concat();
        let blocks = [&proto::INFO_BLOCK_SIZE.to_be_bytes()[..], &blocks].concat();
        option_reply(stream, option, proto::REP_INFO, &blocks)?;
        option_reply(stream, option, proto::REP_ACK, &[])?;
        return Ok(structured);
    }
}

fn simple(error: u32, cookie: &[u8]) -> Vec<u8> {
    let magic = proto::SIMPLE_REPLY_MAGIC.to_be_bytes();
    [&magic[..], &error.to_be_bytes(), cookie].concat()
}

fn chunk(flags: u16, kind: u16, cookie: &[u8], data: &[u8]) -> Vec<u8> {
    let magic = proto::STRUCTURED_REPLY_MAGIC.to_be_bytes();
    let head = [&magic[..], &flags.to_be_bytes(), &kind.to_be_bytes(), cookie].concat();
    [&head[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The data of a read in pieces, holes among them.
fn in_pieces(cookie: &[u8], offset: u64, data: &[u8], prng: &mut Prng) -> Vec<u8> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let taken = (512 * (1 + prng.below(64) as usize)).min(data.len() - at);
        let (part, place) = (&data[at..at + taken], (offset + at as u64).to_be_bytes());
        at += taken;
        if part.iter().all(|byte| *byte == 0) {
            let hole = [&place[..], &(taken as u32).to_be_bytes()].concat();
            bytes.extend(chunk(0, proto::REPLY_TYPE_OFFSET_HOLE, cookie, &hole));
        } else {
            let data = [&place[..], part].concat();
            bytes.extend(chunk(0, proto::REPLY_TYPE_OFFSET_DATA, cookie, &data));
        }
    }
    bytes.extend(chunk(proto::REPLY_FLAG_DONE, proto::REPLY_TYPE_NONE, cookie, &[]));
    bytes
}

/// The state, when a request of this kind is to be carried out.
fn when_let(shared: &Mutex<State>, kind: u16, epoch: u64) -> MutexGuard<'_, State> {
    let mut state = shared.lock().unwrap();
    while kind == proto::CMD_WRITE && state.conduct.holds_writes
        || kind == proto::CMD_FLUSH && state.conduct.holds_flushes && state.epoch == epoch
    {
        state.held += 1;
        drop(state);
        thread::park_timeout(Duration::from_millis(1));
        state = shared.lock().unwrap();
        state.held -= 1;
    }
    state
}

fn serve(mut stream: UnixStream, shared: &Mutex<State>) -> std::io::Result<()> {
    let (conduct, bytes, epoch) = {
        let mut state = shared.lock().unwrap();
        if state.conduct.is_closed {
            return Ok(());
        }
        state.connections += 1;
        (state.conduct.clone(), state.cached.len() as u64, state.epoch)
    };
    let structured = greet(&mut stream, &conduct, bytes)?;
    let mut answers: Vec<Vec<u8>> = Vec::new();
    loop {
        // What is answered may wait for more to answer, and come in another order.
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        let mut header = [0; proto::REQUEST_BYTES];
        let first = match stream.read(&mut header) {
            Ok(0) => return Ok(()),
            Ok(first) => first,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if shared.lock().unwrap().epoch != epoch {
                    return Ok(());
                }
                answers.reverse();
                for answer in answers.drain(..) {
                    stream.write_all(&answer)?;
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        stream.set_read_timeout(None)?;
        stream.read_exact(&mut header[first..])?;
        let (flags, kind) = (be(&header[4..6]) as u16, be(&header[6..8]) as u16);
        let (offset, length) = (be(&header[16..24]), be(&header[24..]) as usize);
        let mut data = vec![0; if kind == proto::CMD_WRITE { length } else { 0 }];
        stream.read_exact(&mut data)?;
        let mut state = when_let(shared, kind, epoch);
        if state.epoch != epoch || kind == proto::CMD_DISC {
            return Ok(());
        }
        state.requests += 1;
        if let Some(instead) = state.conduct.instead.take() {
            stream.write_all(&instead)?;
            continue;
        }
        if state.conduct.error > 0 {
            answers.push(simple(state.conduct.error, &header[8..16]));
            continue;
        }
        let odds = state.conduct.breaks_one_in;
        let breaks = odds > 0 && state.prng.one_in(odds);
        let how = state.prng.below(3);
        if breaks && how == 0 {
            return Ok(());
        }
        let answer = carry_out(&mut state, structured, &header, flags, kind, offset, length, &data);
        if breaks && how == 2 {
            state.die();
        }
        if breaks {
            return Ok(());
        }
        drop(state);
        answers.push(answer);
        if answers.len() > 8 {
            for answer in answers.drain(..) {
                stream.write_all(&answer)?;
            }
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a request")]
fn carry_out(
    state: &mut State,
    structured: bool,
    header: &[u8],
    flags: u16,
    kind: u16,
    offset: u64,
    length: usize,
    data: &[u8],
) -> Vec<u8> {
    let cookie = &header[8..16];
    let place = offset as usize..offset as usize + length;
    let is_too_long = matches!(kind, proto::CMD_READ | proto::CMD_WRITE)
        && length > state.conduct.blocks[2] as usize;
    if place.end > state.cached.len()
        || is_too_long
        || !offset.is_multiple_of(state.conduct.blocks[0].into())
    {
        return simple(22, cookie);
    }
    match kind {
        proto::CMD_READ => {
            let data = state.cached[place].to_vec();
            if structured {
                return in_pieces(cookie, offset, &data, &mut state.prng);
            }
            return [simple(0, cookie), data].concat();
        }
        proto::CMD_WRITE => state.cached[place.clone()].copy_from_slice(data),
        proto::CMD_WRITE_ZEROES => state.cached[place.clone()].fill(0),
        proto::CMD_TRIM => state.cached[place.clone()].fill(0xee),
        proto::CMD_FLUSH => {
            let error = std::mem::take(&mut state.conduct.flush_error);
            if error > 0 {
                return simple(error, cookie);
            }
            state.flushes += 1;
            state.durable.clone_from(&state.cached);
        }
        _ => return simple(22, cookie),
    }
    if flags & proto::CMD_FLAG_FUA != 0 {
        let content = state.cached[place.clone()].to_vec();
        state.durable[place].copy_from_slice(&content);
    }
    simple(0, cookie)
}
