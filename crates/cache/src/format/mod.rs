//! Structures on the SSD, byte by byte. The tables are in `docs/formats/cache.md`.
//!
//! ```text
//! 0        superblock, copy 0          64 KiB   superblock, copy 1
//! 128 KiB  intent block, two copies    1 MiB    checkpoint area A, then B, then the segments
//! ```
//!
//! Everything is little-endian. Every structure carries a CRC-32C over itself with the CRC field zero,
//! and the uuid of its cache. Enough of its own address is in it to betray a misdirected write.

pub(crate) mod checksum;
pub(crate) mod chunk;
pub(crate) mod geometry;
pub(crate) mod intent;
pub(crate) mod owner;
pub(crate) mod position;
pub(crate) mod record;
pub(crate) mod superblock;
