//! The ends of a connection that the server decides on.

/// Why a session ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client said goodbye: finish what is in flight, then close.
    ClientLeft,
    /// A wrong magic number: the peer does not speak NBD, or lost its place.
    BadMagic,
    /// Handshake flags this server did not offer.
    UnknownClientFlags,
    /// An option other than the one an old newstyle client may send.
    NotFixedNewstyle,
    /// Option data beyond every bound.
    OptionTooLong,
    /// Options without end.
    TooManyOptions,
    /// `OPT_EXPORT_NAME` for an export that is not here.
    UnknownExport,
    /// A write whose announced data are beyond every bound.
    WriteTooLong,
}
