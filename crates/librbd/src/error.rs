//! Why an image cannot be used, and how one is lost. Each is one line.

use std::io;
use std::path::PathBuf;

/// Why an image cannot be used, in words that stand behind its name and a colon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There is no librbd.
    #[error("the library {file} cannot be loaded ({why}); install librbd1")]
    NoLibrary {
        /// The file or name that was asked for.
        file: String,
        /// The loader's words.
        why: String,
    },
    /// The configuration of the cluster cannot be read.
    #[error("the configuration {path} cannot be read ({why}); name another one behind an `@`")]
    NoConf {
        /// Its path.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The cluster does not let this user in.
    #[error(
        "the cluster does not let client.{user} in ({why}); check the keyring that {conf} names, or name another \
         user with ?id=USER"
    )]
    NotLetIn {
        /// The user, without `client.`.
        user: String,
        /// The configuration.
        conf: PathBuf,
        /// The system's words.
        why: String,
    },
    /// No monitor answers.
    #[error(
        "no monitor of the cluster answers ({why}); check `ceph -s`, and the addresses in {conf}"
    )]
    NoMonitor {
        /// The configuration.
        conf: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The cluster took too long.
    #[error("the cluster does not answer; check `ceph -s`")]
    Silent,
    /// An earlier call about the same image has not ended.
    #[error(
        "the cluster does not answer: an earlier request about this image has not ended; check `ceph -s`"
    )]
    StillAsked,
    /// An earlier use of the same image by this daemon has not ended.
    #[error("this daemon still has requests of this image under way, from before; check `ceph -s`")]
    StillClosing,
    /// There is no such pool.
    #[error("the cluster has no pool `{0}`; `ceph osd pool ls` lists the pools")]
    NoPool(String),
    /// There is no such namespace.
    #[error(
        "the pool `{pool}` has no namespace `{namespace}`; `rbd namespace ls {pool}` lists them"
    )]
    NoNamespace {
        /// The pool.
        pool: String,
        /// The namespace.
        namespace: String,
    },
    /// There is no such image.
    #[error("there is no image `{0}`; `rbd ls` lists the images of a pool, `rbd create` makes one")]
    NoImage(String),
    /// The user may not do this.
    #[error(
        "client.{user} may not open the image for writing; give it the caps `mon 'profile rbd' osd 'profile rbd \
         pool={pool}'`"
    )]
    NotAllowed {
        /// The user, without `client.`.
        user: String,
        /// The pool.
        pool: String,
    },
    /// The image takes no writes.
    #[error(
        "the image takes no writes (a mirror of one elsewhere?); promote it, or name another one"
    )]
    ReadOnly,
    /// The image has no exclusive lock.
    #[error(
        "the image lacks the feature exclusive-lock, which keeps other hosts from writing to it; \
         `rbd feature enable {0} exclusive-lock`"
    )]
    NoLockFeature(String),
    /// Somebody else has the lock.
    #[error("the image is locked by {0}; have it closed there")]
    Locked(String),
    /// Somebody else has the image open.
    #[error("the image is open by {0}; have it closed there")]
    Watched(String),
    /// Somebody else has the image, and is not cut off.
    #[error("it is used by {0}, which is alive")]
    Alive(String),
    /// The image was to be taken over, and that failed on the way.
    #[error("{from} is shut out already, and then this failed: {why}; try again")]
    HalfTaken {
        /// The clients that are pushed off.
        from: String,
        /// The error.
        why: String,
    },
    /// Nobody has the image, and it was left alone for this reason.
    #[error("it {0}")]
    LeftAlone(String),
    /// This daemon has the image open.
    #[error("this daemon has the image open already")]
    OwnLock,
    /// Somebody else used the image between the look at it and its lock.
    #[error("another host has just used the image; try again")]
    UsedMeanwhile,
    /// The image is too small.
    #[error("the image has {0} bytes, less than one sector; make it larger first")]
    TooSmall(u64),
    /// Another error.
    #[error("{doing} failed: {why}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// The system's words.
        why: String,
    },
}

impl ImageError {
    /// Whether somebody else, or this daemon, has the image now, and it may be free later.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Locked(_) | Self::Watched(_) | Self::OwnLock | Self::StillClosing)
    }

    /// The refusal of a process that can have no more descriptors.
    pub fn descriptors(error: &io::Error) -> Self {
        Self::Failed { doing: "watching for completions", why: error.to_string() }
    }
}

/// How an image that is open was lost, in words that stand behind its name and a colon. It is not used again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// Another host took the lock, and the cluster takes nothing from this client any more.
    #[error(
        "the lock is lost: another host has broken it, and the cluster takes no requests of this one any more"
    )]
    LockBroken,
    /// The lock belongs to somebody else, or nobody.
    #[error("the lock is lost: {0} has it now")]
    LockTaken(String),
    /// The image has no exclusive lock any more.
    #[error(
        "the lock is lost: the image's feature exclusive-lock was disabled, and anybody may write to it now"
    )]
    NoLockFeature,
    /// The image is smaller than it was.
    #[error("the image has {is} bytes now and had {was}: it was made smaller while in use")]
    Smaller {
        /// Bytes before.
        was: u64,
        /// Bytes now.
        is: u64,
    },
    /// The image, its pool or its namespace is gone.
    #[error("the image is gone: it was deleted while in use")]
    Deleted,
}

impl Loss {
    /// Whether others may write to the image now, so that what a cache in front of it holds may be old.
    pub fn is_of_lock(&self) -> bool {
        match self {
            Self::LockBroken | Self::LockTaken(_) | Self::NoLockFeature => true,
            Self::Smaller { .. } | Self::Deleted => false,
        }
    }

    /// The loss that the error number of a request means, if it means one.
    pub fn of_errno(number: i32) -> Option<Self> {
        match number {
            libc::ESHUTDOWN | libc::EROFS => Some(Self::LockBroken),
            libc::ENOENT => Some(Self::Deleted),
            _ => None,
        }
    }
}

/// The system's words for an error number.
pub(crate) fn words(errno: i32) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}
