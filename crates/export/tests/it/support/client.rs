//! A small NBD client, blocking, for tests.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use voltier_export::nbd::proto;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    structured: bool,
}

pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    /// Of a structured error.
    pub(crate) error_offset: Option<u64>,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = proto::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

impl Client {
    pub(crate) fn connect(path: &Path, structured: bool) -> Self {
        Self::shake_hands(UnixStream::connect(path).unwrap(), structured)
    }

    /// A client over a connected socket of any family.
    pub(crate) fn shake_hands(stream: UnixStream, structured: bool) -> Self {
        let mut client = Self { stream, structured };
        let mut greeting = [0; 18];
        client.stream.read_exact(&mut greeting).unwrap();
        let mut hello = 3u32.to_be_bytes().to_vec();
        if structured {
            hello.extend(option(proto::OPT_STRUCTURED_REPLY, &[]));
        }
        hello.extend(option(proto::OPT_GO, &[0; 6]));
        client.send(&hello);
        loop {
            let header: [u8; 20] = client.receive();
            let kind = number(&header[12..16]) as u32;
            let mut data = vec![0; number(&header[16..20]) as usize];
            client.stream.read_exact(&mut data).unwrap();
            let option = number(&header[8..12]) as u32;
            match (option, kind) {
                (proto::OPT_GO, proto::REP_ACK) => return client,
                (_, proto::REP_ACK | proto::REP_INFO) => {}
                other => panic!("refused: {other:x?}"),
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn receive<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The next reply; `data_bytes` are those of a simple reply to a read that goes well.
    pub(crate) fn reply(&mut self, data_bytes: impl Fn(u64) -> usize) -> Reply {
        let magic: [u8; 4] = self.receive();
        if magic == proto::SIMPLE_REPLY_MAGIC.to_be_bytes() {
            let header: [u8; 12] = self.receive();
            let (error, cookie) = (number(&header[..4]) as u32, number(&header[4..]));
            let mut data = vec![0; if error == 0 { data_bytes(cookie) } else { 0 }];
            self.stream.read_exact(&mut data).unwrap();
            return Reply { cookie, error, error_offset: None, data };
        }
        assert!(self.structured);
        assert_eq!(magic, proto::STRUCTURED_REPLY_MAGIC.to_be_bytes());
        let header: [u8; 16] = self.receive();
        assert_eq!(number(&header[..2]), 1, "one chunk, with the DONE flag");
        let (kind, cookie) = (number(&header[2..4]) as u16, number(&header[4..12]));
        let mut payload = vec![0; number(&header[12..]) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        if kind == proto::REPLY_TYPE_OFFSET_DATA {
            payload.drain(..8);
            return Reply { cookie, error: 0, error_offset: None, data: payload };
        }
        let text_bytes = number(&payload[4..6]) as usize;
        let error_offset =
            (kind == proto::REPLY_TYPE_ERROR_OFFSET).then(|| number(&payload[6 + text_bytes..]));
        Reply { cookie, error: number(&payload[..4]) as u32, error_offset, data: Vec::new() }
    }

    /// One request and its reply.
    pub(crate) fn ask(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Reply {
        self.send(&request(kind, flags, 77, offset, length));
        let reads = kind == proto::CMD_READ;
        let reply = self.reply(|_| if reads { length as usize } else { 0 });
        assert_eq!(reply.cookie, 77);
        reply
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let mut bytes = request(proto::CMD_WRITE, flags, 78, offset, data.len() as u32);
        bytes.extend(data);
        self.send(&bytes);
        self.reply(|_| 0).error
    }

    /// Whether the server has closed the connection, with nothing more to say.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = proto::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}
