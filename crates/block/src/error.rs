//! The one error of the data plane: small, `Copy`, each variant a thing somebody does differently.

/// Why a block request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The request does not lie on the device, or its alignment is not the device's.
    #[error("request outside the device or misaligned")]
    OutOfRange,
    /// The medium could not return or keep the data, or what it returned is provably wrong.
    #[error("medium error")]
    Medium,
    /// The device takes no writes.
    #[error("read-only device")]
    ReadOnly,
    /// No room left where the data should go.
    #[error("no space left")]
    NoSpace,
    /// The device is not there any more; nothing sent to it will succeed.
    #[error("device gone")]
    Gone,
    /// The device cannot do this operation at all.
    #[error("operation not supported")]
    Unsupported,
}

const _: () = assert!(size_of::<IoResult<()>>() == 1);

/// Result of a block request.
pub type IoResult<T> = Result<T, IoError>;

impl IoError {
    /// The Linux error number an export reports for it.
    pub const fn errno(self) -> i32 {
        match self {
            IoError::OutOfRange => 22,
            IoError::Medium => 5,
            IoError::ReadOnly => 30,
            IoError::NoSpace => 28,
            IoError::Gone => 19,
            IoError::Unsupported => 95,
        }
    }

    /// Total mapping from a Linux error number; what has no name of its own is a medium error.
    /// `ETIMEDOUT` is one too: a device that was late once may answer the next request.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            22 => IoError::OutOfRange,
            1 | 13 | 30 => IoError::ReadOnly,
            27 | 28 | 122 => IoError::NoSpace,
            6 | 19 | 32 | 103 | 104 | 107 => IoError::Gone,
            25 | 38 | 95 => IoError::Unsupported,
            _ => IoError::Medium,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_late_is_not_gone() {
        let (etimedout, eio, enodev, enxio) = (110, 5, 19, 6);
        assert_eq!(IoError::from_errno(etimedout), IoError::Medium);
        assert_eq!(IoError::from_errno(eio), IoError::Medium);
        assert_eq!(IoError::from_errno(enodev), IoError::Gone);
        assert_eq!(IoError::from_errno(enxio), IoError::Gone);
    }
}
