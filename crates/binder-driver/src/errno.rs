//! Errors that the driver returns to its clients.

/// An errno of the driver; the numbers are those of the generic Linux ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Errno {
    /// Not allowed for this caller.
    #[error("operation not permitted (EPERM)")]
    EPERM,
    /// No such object.
    #[error("no such entry (ENOENT)")]
    ENOENT,
    /// The target process has no mapping, or is gone.
    #[error("no such process (ESRCH)")]
    ESRCH,
    /// A signal ended the wait.
    #[error("interrupted (EINTR)")]
    EINTR,
    /// The open is not known to the driver (any more).
    #[error("unknown open of the device (EBADF)")]
    EBADF,
    /// No work to read, and the caller does not wait.
    #[error("nothing to read (EAGAIN)")]
    EAGAIN,
    /// A quota or the memory is exhausted.
    #[error("out of memory or over a quota (ENOMEM)")]
    ENOMEM,
    /// Client memory could not be read or written.
    #[error("bad address (EFAULT)")]
    EFAULT,
    /// The context has a manager already.
    #[error("the context has a manager already (EBUSY)")]
    EBUSY,
    /// Malformed or unsupported request.
    #[error("invalid argument (EINVAL)")]
    EINVAL,
    /// A user has too many rings.
    #[error("too many rings of one user (EMFILE)")]
    EMFILE,
    /// The receiver's buffer space is exhausted.
    #[error("no buffer space left in the receiver (ENOSPC)")]
    ENOSPC,
    /// The ioctl is to be repeated, as client memory is late. No client gets it.
    #[error("to be repeated (ERESTART)")]
    ERESTART,
    /// The call breaks the order of calls and replies.
    #[error("call stack violated (EPROTO)")]
    EPROTO,
}

impl Errno {
    /// The positive error number.
    pub const fn code(self) -> i32 {
        match self {
            Errno::EPERM => 1,
            Errno::ENOENT => 2,
            Errno::ESRCH => 3,
            Errno::EINTR => 4,
            Errno::EBADF => 9,
            Errno::EAGAIN => 11,
            Errno::ENOMEM => 12,
            Errno::EFAULT => 14,
            Errno::EBUSY => 16,
            Errno::EINVAL => 22,
            Errno::EMFILE => 24,
            Errno::ENOSPC => 28,
            Errno::EPROTO => 71,
            Errno::ERESTART => 85,
        }
    }
}
