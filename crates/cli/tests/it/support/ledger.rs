//! A client that knows what it wrote: every acknowledged write must be there, whole, and nothing else.
#![allow(unreachable_pub, reason = "shared by the modules of the tests")]

use std::io::{ErrorKind, Result};

use super::Instance;
use super::nbd::NbdClient;

pub const BLOCK: usize = 4096;

/// The writes one of which a block holds: from the last one that was acknowledged, or seen, to the last one
/// that was tried.
#[derive(Clone, Copy, Default)]
struct Written {
    certain: u32,
    tried: u32,
}

/// The blocks of a volume, and what was written to them.
pub struct Ledger {
    blocks: Vec<Written>,
    dice: u64,
    pub acknowledged: u64,
    /// Requests that were answered with an error.
    pub refused: u64,
}

/// The bytes of a block after a write to it; zeroes before the first.
pub fn content(block: u64, write: u32) -> Vec<u8> {
    let word = if write == 0 { 0 } else { (block + 1) << 32 | u64::from(write) };
    word.to_le_bytes().repeat(BLOCK / 8)
}

impl Ledger {
    pub fn new(blocks: usize) -> Self {
        let dice = 0x2545_f491_4f6c_dd1d;
        Self { blocks: vec![Written::default(); blocks], dice, acknowledged: 0, refused: 0 }
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % below
    }

    /// Writes a block once more.
    ///
    /// # Errors
    /// The server's. The block then has its old or its new content.
    pub fn write(&mut self, nbd: &mut NbdClient, block: u64) -> Result<()> {
        let written = &mut self.blocks[block as usize];
        written.tried += 1;
        let result = nbd.write(block * BLOCK as u64, &content(block, written.tried));
        match &result {
            Ok(()) => {
                written.certain = written.tried;
                self.acknowledged += 1;
            }
            Err(_) => self.refused += 1,
        }
        result
    }

    /// Reads a block, and holds it to what was written.
    ///
    /// # Errors
    /// The server's.
    #[track_caller]
    pub fn read(&mut self, nbd: &mut NbdClient, block: u64) -> Result<()> {
        let data = nbd.read(block * BLOCK as u64, BLOCK).inspect_err(|_| self.refused += 1)?;
        let Written { certain, tried } = self.blocks[block as usize];
        let found = u32::from_le_bytes(data[..4].try_into().unwrap());
        let range = certain..=tried;
        assert!(range.contains(&found), "block {block} has write {found}, not one of {range:?}");
        assert!(data == content(block, found), "block {block}: torn, or another one");
        self.blocks[block as usize].certain = found;
        Ok(())
    }

    /// So many requests to blocks by chance, three writes to a read, a flush now and then. Errors of the
    /// server are counted, and end nothing. True, but when the connection ended.
    #[track_caller]
    pub fn work(&mut self, nbd: &mut NbdClient, requests: u64) -> bool {
        (0..requests).all(|_| {
            let block = self.roll(self.blocks.len() as u64);
            let result = match self.roll(64) {
                0 => nbd.flush().inspect_err(|_| self.refused += 1),
                1..16 => self.read(nbd, block),
                _ => self.write(nbd, block),
            };
            !result.is_err_and(|error| is_end(error.kind()))
        })
    }

    /// A ledger of blocks that were all [written once](Self::fill).
    #[track_caller]
    pub fn filled(blocks: usize, nbd: &mut NbdClient) -> Self {
        let mut ledger = Self::new(blocks);
        ledger.fill(nbd);
        ledger
    }

    /// Writes every block once, in an order that is no stream, and flushes: nothing may fail.
    #[track_caller]
    pub fn fill(&mut self, nbd: &mut NbdClient) {
        let count = self.blocks.len() as u64;
        (0..count).for_each(|number| self.write(nbd, number * 787 % count).unwrap());
        nbd.flush().unwrap();
    }

    /// Every block has what it must have: nothing may fail. A daemon is started when none runs.
    #[track_caller]
    pub fn check(&mut self, instance: &Instance, volume: &str) {
        instance.serve();
        let mut nbd = instance.connect(volume);
        (0..self.blocks.len() as u64).for_each(|block| self.read(&mut nbd, block).unwrap());
    }
}

/// Whether an error is the end of the connection, or no answer at all.
fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::WouldBlock
    )
}
