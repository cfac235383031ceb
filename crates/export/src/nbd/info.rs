//! Facts about an export that a client learns before it begins.

use voltier_block::{AfterDiscard, Limits};
use voltier_nbd::proto;

/// Longest read or write accepted, in bytes: what clients may rely on when nothing was negotiated
/// ("Block size constraints" of the protocol document).
pub(super) const TRANSFER_BYTES_MAX: u32 = 32 << 20;

/// Preferred block size announced when the device likes smaller ones: a page, as the protocol
/// document recommends.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// Facts about one export, fixed while it is served.
#[derive(Clone, Debug)]
pub struct ExportInfo {
    /// The name clients ask for; the empty name always means this export too.
    pub name: String,
    /// A line for people; may be empty.
    pub description: String,
    /// The device's facts.
    pub limits: Limits,
    /// Whether reads mostly cost a rotation of a disk.
    pub rotational: bool,
}

impl ExportInfo {
    /// Facts about a device exported under a name.
    ///
    /// A name longer than the protocol's 4096 bytes is cut at a character boundary, because no
    /// client could ask for it; so is the description.
    pub fn new(name: &str, description: &str, limits: Limits, rotational: bool) -> Self {
        Self {
            name: cut(name).to_owned(),
            description: cut(description).to_owned(),
            limits,
            rotational,
        }
    }

    /// Whether a client that asks for `name` means this export.
    pub(super) fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Whether `CMD_TRIM` is worth sending.
    pub(super) fn serves_trim(&self) -> bool {
        self.limits.after_discard != AfterDiscard::Unchanged
    }

    /// The transmission flags, with or without structured replies.
    pub(super) fn transmission_flags(&self, structured: bool) -> u16 {
        // CAN_MULTI_CONN: a flush of the device covers every completed write, whoever sent it.
        let mut flags = proto::FLAG_HAS_FLAGS | proto::FLAG_SEND_FLUSH | proto::FLAG_CAN_MULTI_CONN;
        if self.limits.read_only {
            flags |= proto::FLAG_READ_ONLY;
        } else {
            flags |= proto::FLAG_SEND_FUA | proto::FLAG_SEND_WRITE_ZEROES;
            if self.serves_trim() {
                flags |= proto::FLAG_SEND_TRIM;
            }
        }
        if self.rotational {
            flags |= proto::FLAG_ROTATIONAL;
        }
        if structured {
            flags |= proto::FLAG_SEND_DF;
        }
        flags
    }

    /// Minimum, preferred and maximum block size, in bytes. Clients that never ask for them may send any
    /// bytes, so those that do ask may as well.
    pub(super) fn block_sizes(&self) -> [u32; 3] {
        let smallest = PREFERRED_BYTES_MIN.max(self.limits.block_bytes);
        [1, self.limits.preferred_bytes.clamp(smallest, TRANSFER_BYTES_MAX), TRANSFER_BYTES_MAX]
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(proto::STRING_BYTES_MAX)]
}
