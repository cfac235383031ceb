//! Sectors that say which they are, and which version of it.

/// The 512 bytes of a version of a sector; never written ones of the origin are zero instead.
pub(super) fn content(sector: u64, version: u64) -> [u8; 512] {
    let mut word = [0; 16];
    word[..8].copy_from_slice(&(!sector).to_le_bytes());
    word[8..].copy_from_slice(&version.to_le_bytes());
    let mut content = [0; 512];
    content.as_chunks_mut().0.fill(word);
    content
}

/// The version of a sector, if `bytes` are one at all.
pub(super) fn version(sector: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    (content(sector, version) == bytes).then_some(version)
}
