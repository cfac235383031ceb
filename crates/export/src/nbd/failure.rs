//! Why a request failed, as a client is told.

use voltier_nbd::proto::ErrorCode;

/// Why a request failed, as the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The error number.
    pub(super) code: ErrorCode,
    /// A short text, sent with structured replies; at most 64 bytes.
    pub(super) message: &'static str,
    /// The byte of the export at fault, when it is known.
    pub(super) offset: Option<u64>,
}

impl Failure {
    /// A failure at no particular byte.
    pub(super) const fn new(code: ErrorCode, message: &'static str) -> Self {
        Self { code, message, offset: None }
    }
}
