//! The smallest NBD client: one connection, one request at a time, simple replies.
#![allow(dead_code, unreachable_pub, reason = "the tests of cores use a part of it")]

use std::io::{Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub struct NbdClient {
    stream: UnixStream,
    pub size_bytes: u64,
    next_handle: u64,
}

/// No answer takes so long, not even of an array that gives a member up first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(240);

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

impl NbdClient {
    pub fn connect(socket: &Path, name: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Client flags: fixed newstyle, no zeroes after the export's facts.
        stream.write_all(&3_u32.to_be_bytes())?;
        stream.write_all(b"IHAVEOPT")?;
        stream.write_all(&1_u32.to_be_bytes())?;
        stream.write_all(&(name.len() as u32).to_be_bytes())?;
        stream.write_all(name.as_bytes())?;
        let mut facts = [0; 10];
        stream.read_exact(&mut facts)?;
        let size_bytes = u64::from_be_bytes(facts[..8].try_into().unwrap());
        Ok(Self { stream, size_bytes, next_handle: 1 })
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.request(READ, offset, length as u32, &[])?;
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(WRITE, offset, data.len() as u32, data)
    }

    /// Asks for a write, and goes away without the answer.
    pub fn write_and_leave(mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(WRITE, offset, data.len() as u32, data).map(drop)
    }

    pub fn flush(&mut self) -> Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }

    /// Sends a request; its handle.
    fn send(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> Result<u64> {
        let handle = self.next_handle;
        self.next_handle += 1;
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(0_u16.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend(handle.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(length.to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)?;
        Ok(handle)
    }

    /// Sends a request and reads the head of its reply.
    fn request(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> Result<()> {
        let handle = self.send(kind, offset, length, data)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], handle.to_be_bytes());
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            error => Err(Error::from_raw_os_error(error.cast_signed())),
        }
    }
}
