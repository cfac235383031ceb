//! Descriptors: of the kernel, or of the simulator.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net;
use voltier_block::Bytes;

use crate::descriptor::{Descriptor, DescriptorId};
use crate::op::PIECES_MAX;

/// A descriptor that stays open as long as an operation or an owner holds it.
#[derive(Clone, Debug)]
pub enum Fd {
    /// An open file, device or socket.
    Real(Arc<Descriptor>),
    /// A file of the simulator's, by number.
    Virtual(u32),
}

impl Fd {
    /// Takes over an open descriptor.
    pub fn from_owned(fd: OwnedFd) -> Self {
        Fd::Real(Arc::new(Descriptor::new(fd)))
    }

    /// The kernel's number.
    ///
    /// # Panics
    /// For a virtual descriptor, which only a virtual executor understands.
    pub fn raw(&self) -> RawFd {
        self.real().as_raw_fd()
    }

    /// Watches who has the descriptor, without keeping it open.
    pub fn watch(&self) -> FdWatch {
        FdWatch(match self {
            Fd::Real(fd) => Arc::downgrade(fd),
            Fd::Virtual(_) => Weak::new(),
        })
    }

    /// The descriptor among all that are open now; `None` of a virtual one.
    pub(crate) fn id(&self) -> Option<DescriptorId> {
        match self {
            Fd::Real(descriptor) => Some(DescriptorId::of(descriptor)),
            Fd::Virtual(_) => None,
        }
    }

    pub(crate) fn real(&self) -> &OwnedFd {
        match self {
            Fd::Real(descriptor) => descriptor.fd(),
            Fd::Virtual(number) => panic!("virtual file {number} given to the kernel"),
        }
    }
}

impl AsFd for Fd {
    /// The kernel's descriptor, for calls that do not wait.
    ///
    /// # Panics
    /// For a virtual descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.real().as_fd()
    }
}

/// A look at a descriptor that does not keep it open.
#[derive(Clone, Debug)]
pub struct FdWatch(Weak<Descriptor>);

impl FdWatch {
    /// The owners of the descriptor, and the operations that the kernel has not ended. None when the file was
    /// closed under them.
    pub fn holders(&self) -> usize {
        match self.0.upgrade() {
            Some(descriptor) if descriptor.is_released() => 0,
            Some(descriptor) => Arc::strong_count(&descriptor) - 1,
            None => 0,
        }
    }
}

/// Where a listener can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAddress {
    /// A Unix socket file.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(std::net::SocketAddr),
}

/// A listening socket.
#[derive(Clone, Debug)]
pub struct Listener {
    pub(crate) fd: Fd,
    address: StreamAddress,
}

impl Listener {
    /// Listens on a Unix socket at `path`, which must not exist. The socket file has mode 0600 from its
    /// beginning, and `prepare` may change it: nobody can connect before that has ended.
    pub fn unix(path: &Path, prepare: impl FnOnce() -> Result<(), Errno>) -> Result<Self, Errno> {
        let fd = net::socket_with(
            net::AddressFamily::UNIX,
            net::SocketType::STREAM,
            net::SocketFlags::CLOEXEC,
            None,
        )?;
        // The file takes over the mode of the socket, less the umask: no moment between bind and chmod. A
        // temporary name and a rename would do, too, but `ss` would show that name for the socket's life.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        net::bind(&fd, &net::SocketAddrUnix::new(path)?)?;
        if let Err(errno) = prepare().and_then(|()| net::listen(&fd, 128)) {
            // The file is ours, and nobody listens: it is in nobody's way if it stays.
            let _ = rustix::fs::unlink(path);
            return Err(errno);
        }
        Ok(Self { fd: Fd::from_owned(fd), address: StreamAddress::Unix(path.to_owned()) })
    }

    /// Listens on a TCP address; port 0 asks the kernel for one.
    pub fn tcp(at: std::net::SocketAddr) -> Result<Self, Errno> {
        let family =
            if at.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
        let fd =
            net::socket_with(family, net::SocketType::STREAM, net::SocketFlags::CLOEXEC, None)?;
        net::sockopt::set_socket_reuseaddr(&fd, true)?;
        net::bind(&fd, &at)?;
        net::listen(&fd, 128)?;
        let bound = std::net::SocketAddr::try_from(net::getsockname(&fd)?).unwrap_or(at);
        Ok(Self { fd: Fd::from_owned(fd), address: StreamAddress::Tcp(bound) })
    }

    /// Takes over a socket that listens at `address`.
    pub fn from_owned(fd: OwnedFd, address: StreamAddress) -> Self {
        Self { fd: Fd::from_owned(fd), address }
    }

    /// The address it really listens on.
    pub fn address(&self) -> &StreamAddress {
        &self.address
    }

    /// The socket.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Ends the listening: a pending accept fails.
    pub fn shutdown(&self) {
        // A socket that is already shut down answers an error, which changes nothing.
        let _ = net::shutdown(self.fd.real().as_fd(), net::Shutdown::Both);
    }
}

/// When the kernel asks a silent peer whether it is there.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// Seconds of silence before the first question.
    pub idle_s: u64,
    /// Seconds between two questions.
    pub interval_s: u64,
    /// Questions without an answer after which the connection ends.
    pub questions: u32,
}

/// What of a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Nothing more is sent: the peer sees the end of the stream, and may still answer.
    Sending,
    /// Both directions: pending receives see the end of the stream.
    Both,
}

/// A connected socket.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(crate) fd: Fd,
}

impl Stream {
    /// Takes over a connected socket.
    pub fn from_owned(fd: OwnedFd) -> Self {
        Self { fd: Fd::from_owned(fd) }
    }

    /// A connection of a simulator's, or one whose descriptor others hold, too.
    pub fn over(fd: Fd) -> Self {
        Self { fd }
    }

    /// The socket.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Sends what goes out without waiting: how many bytes of the pieces, in their order. `AGAIN` when there is no
    /// room.
    pub(crate) fn send_now(&self, pieces: &[Bytes]) -> Result<usize, Errno> {
        let pieces: Vec<IoSlice<'_>> =
            pieces.iter().take(PIECES_MAX).map(|piece| IoSlice::new(piece)).collect();
        let flags = net::SendFlags::DONTWAIT | net::SendFlags::NOSIGNAL;
        net::sendmsg(self.fd.real(), &pieces, &mut net::SendAncillaryBuffer::default(), flags)
    }

    /// Receives what is there already, into one buffer after the other: how many bytes; 0 when the peer is done.
    /// `AGAIN` when there is nothing.
    pub(crate) fn recv_now(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let flags = net::RecvFlags::DONTWAIT;
        if let [buf] = bufs {
            return net::recv(self.fd.real(), &mut **buf, flags).map(|(bytes, _)| bytes);
        }
        let mut no_descriptors = net::RecvAncillaryBuffer::default();
        net::recvmsg(self.fd.real(), bufs, &mut no_descriptors, flags).map(|message| message.bytes)
    }

    /// Sends small packets at once (TCP only; an error on other sockets).
    pub fn set_nodelay(&self) -> Result<(), Errno> {
        net::sockopt::set_tcp_nodelay(self.fd.real(), true)
    }

    /// Asks for socket buffers of this many bytes in both directions.
    pub fn set_buffer_bytes(&self, bytes: usize) -> Result<(), Errno> {
        net::sockopt::set_socket_send_buffer_size(self.fd.real(), bytes)?;
        net::sockopt::set_socket_recv_buffer_size(self.fd.real(), bytes)
    }

    /// The address of the peer's host; none for a Unix socket.
    pub fn peer_address(&self) -> Option<std::net::IpAddr> {
        let address = net::getpeername(self.fd.real()).ok().flatten()?;
        std::net::SocketAddr::try_from(address).ok().map(|address| address.ip())
    }

    /// Has the kernel find out whether a silent peer is still there (TCP only; an error on other sockets).
    pub fn set_keep_alive(&self, how: KeepAlive) -> Result<(), Errno> {
        let (fd, seconds) = (self.fd.real(), |count| Duration::from_secs(count));
        net::sockopt::set_socket_keepalive(fd, true)?;
        net::sockopt::set_tcp_keepidle(fd, seconds(how.idle_s))?;
        net::sockopt::set_tcp_keepintvl(fd, seconds(how.interval_s))?;
        net::sockopt::set_tcp_keepcnt(fd, how.questions)
    }

    /// Ends both directions: pending receives see the end of the stream.
    pub fn shutdown(&self) {
        self.shutdown_as(Shutdown::Both);
    }

    pub(crate) fn shutdown_as(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Sending => net::Shutdown::Write,
            Shutdown::Both => net::Shutdown::Both,
        };
        // A peer that is already gone makes this fail, which changes nothing.
        let _ = net::shutdown(self.fd.real().as_fd(), how);
    }
}
