//! Request numbers, and the errnos of requests that we do not serve.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        $($(#[$doc])* pub const $name: u32 = $value;)*

        /// The opcode's name, for messages.
        pub fn name(opcode: u32) -> &'static str {
            match opcode {
                $($value => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

opcodes! {
    /// Resolves a name to a node.
    LOOKUP = 1,
    /// The kernel dropped lookups of a node; no reply.
    FORGET = 2,
    /// `stat(2)`.
    GETATTR = 3,
    /// `chmod(2)`, `chown(2)`, `truncate(2)`, `utimensat(2)`.
    SETATTR = 4,
    /// `readlink(2)`.
    READLINK = 5,
    /// `symlink(2)`.
    SYMLINK = 6,
    /// `mknod(2)`.
    MKNOD = 8,
    /// `mkdir(2)`.
    MKDIR = 9,
    /// `unlink(2)`.
    UNLINK = 10,
    /// `rmdir(2)`.
    RMDIR = 11,
    /// `rename(2)`.
    RENAME = 12,
    /// `link(2)`.
    LINK = 13,
    /// `open(2)`.
    OPEN = 14,
    /// `read(2)` or a page fault.
    READ = 15,
    /// `write(2)`.
    WRITE = 16,
    /// `statfs(2)`.
    STATFS = 17,
    /// Last close of an open file.
    RELEASE = 18,
    /// `fsync(2)`.
    FSYNC = 20,
    /// `setxattr(2)`.
    SETXATTR = 21,
    /// `getxattr(2)`.
    GETXATTR = 22,
    /// `listxattr(2)`.
    LISTXATTR = 23,
    /// `removexattr(2)`.
    REMOVEXATTR = 24,
    /// Each `close(2)`.
    FLUSH = 25,
    /// Negotiation, first request of a mount.
    INIT = 26,
    /// `opendir(3)`.
    OPENDIR = 27,
    /// `getdents(2)`.
    READDIR = 28,
    /// Last close of an open directory.
    RELEASEDIR = 29,
    /// `fsync(2)` of a directory.
    FSYNCDIR = 30,
    /// `access(2)`.
    ACCESS = 34,
    /// `open(2)` with O_CREAT of a name that does not exist.
    CREATE = 35,
    /// A request's caller has a signal.
    INTERRUPT = 36,
    /// End of the mount.
    DESTROY = 38,
    /// `ioctl(2)`.
    IOCTL = 39,
    /// `poll(2)`.
    POLL = 40,
    /// Many FORGETs; no reply.
    BATCH_FORGET = 42,
    /// `fallocate(2)`.
    FALLOCATE = 43,
    /// READDIR with lookups.
    READDIRPLUS = 44,
    /// `renameat2(2)`.
    RENAME2 = 45,
    /// `lseek(2)` for holes.
    LSEEK = 46,
    /// `copy_file_range(2)`.
    COPY_FILE_RANGE = 47,
    /// `syncfs(2)`.
    SYNCFS = 50,
    /// `open(2)` with O_TMPFILE.
    TMPFILE = 51,
    /// `statx(2)`.
    STATX = 52,
}

/// Errno (positive) for a request that we do not serve. `ENOSYS` makes the kernel use its own
/// default from then on; an operation that a user attempted gets the errno that explains the
/// refusal.
pub fn refusal(opcode: u32) -> i32 {
    match opcode {
        // The tree is fixed except for BINDER_CTL_ADD, rename and unlink.
        SYMLINK | MKNOD | MKDIR | RMDIR | LINK | CREATE => libc::EPERM,
        FALLOCATE | TMPFILE | SETXATTR | REMOVEXATTR | GETXATTR | LISTXATTR => libc::EOPNOTSUPP,
        READLINK => libc::EINVAL,
        _ => libc::ENOSYS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_a_reason_or_is_left_to_the_kernel() {
        assert_eq!(refusal(MKDIR), libc::EPERM);
        assert_eq!(refusal(FALLOCATE), libc::EOPNOTSUPP);
        assert_eq!(refusal(ACCESS), libc::ENOSYS);
        assert_eq!(refusal(4711), libc::ENOSYS);
        assert_eq!(name(RENAME2), "RENAME2");
        assert_eq!(name(4711), "unknown");
    }
}
