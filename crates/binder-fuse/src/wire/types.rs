//! The structures of `linux/fuse.h`, field for field, as zerocopy types.

use binder_uapi::wire;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// The minor version that we support; the kernel uses the lower of its own and ours.
pub const KERNEL_MINOR_VERSION: u32 = 40;
/// The oldest minor version that we accept (Linux 5.4).
pub const OLDEST_MINOR_VERSION: u32 = 31;
/// Minimum size of the buffer for reading requests, bytes; the kernel refuses a smaller one.
pub const MIN_READ_BUFFER: usize = 8192;
/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;

/// INIT: lookups and readdirs of one directory may run in parallel.
pub const INIT_PARALLEL_DIROPS: u64 = 1 << 18;
/// INIT: `flags2` is valid.
pub const INIT_EXT: u64 = 1 << 30;
/// INIT: files may be backed by another file (Linux 6.9).
pub const INIT_PASSTHROUGH: u64 = 1 << 37;
/// Files opened with [`FOPEN_DIRECT_IO`] can be mapped shared (Linux 6.6).
pub const INIT_DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;

/// OPEN: `read(2)` and `write(2)` bypass the page cache and are sent to us.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// OPEN: mappings go to the backing file.
pub const FOPEN_PASSTHROUGH: u32 = 1 << 7;

/// SETATTR: `mode` is valid.
pub const FATTR_MODE: u32 = 1 << 0;
/// SETATTR: `uid` is valid.
pub const FATTR_UID: u32 = 1 << 1;
/// SETATTR: `gid` is valid.
pub const FATTR_GID: u32 = 1 << 2;
/// SETATTR: `size` is valid.
pub const FATTR_SIZE: u32 = 1 << 3;

/// IOCTL: on a directory.
pub const IOCTL_DIR: u32 = 1 << 4;

/// POLL: the caller waits and requests a notification.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;

/// Set in the unique id of an INTERRUPT (and of a reply to one).
pub const INTERRUPT_BIT: u64 = 1;

/// Notification: a polled file became ready.
pub const NOTIFY_POLL: i32 = 1;
/// Notification: drop cached data of a node.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: put data into the page cache of a node.
pub const NOTIFY_STORE: i32 = 4;

wire!(
    /// Start of every request.
    InHeader {
        /// Bytes of the whole request.
        len: u32,
        /// Number of the request, of [`request`](super::request).
        opcode: u32,
        /// Unique id of the request, repeated in its reply.
        unique: u64,
        /// Node that the request is about.
        nodeid: u64,
        /// Filesystem uid of the caller.
        uid: u32,
        /// Filesystem gid of the caller.
        gid: u32,
        /// **Thread** id of the caller in the pid namespace of the mounter; 0 if not visible there.
        pid: u32,
        /// Length of extensions, in units of 8 bytes.
        total_extlen: u16,
        /// Unused.
        padding: u16,
    }
);
wire!(
    /// Start of every reply and notification.
    OutHeader {
        /// Bytes of the whole reply.
        len: u32,
        /// 0, a negative errno, or (with `unique` 0) the notification's code.
        error: i32,
        /// The request's unique id; 0 for a notification.
        unique: u64,
    }
);
wire!(
    /// INIT as kernels before 5.17 send it; later ones append `flags2`.
    InitIn {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Readahead that the kernel offers, bytes.
        max_readahead: u32,
        /// `INIT_*`, bits 0-31.
        flags: u32,
    }
);
wire!(
    /// Reply to INIT.
    InitOut {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Readahead that we accept, bytes.
        max_readahead: u32,
        /// `INIT_*`, bits 0-31.
        flags: u32,
        /// Background requests at a time.
        max_background: u16,
        /// Background requests that count as congestion.
        congestion_threshold: u16,
        /// Largest WRITE, bytes.
        max_write: u32,
        /// Timestamp granularity, nanoseconds.
        time_gran: u32,
        /// Largest request, pages (only with its flag).
        max_pages: u16,
        /// DAX only.
        map_alignment: u16,
        /// `INIT_*`, bits 32-63.
        flags2: u32,
        /// How deep filesystems may be stacked on a backing file: 1 allows tmpfs below us.
        max_stack_depth: u32,
        /// Unused.
        unused: [u32; 6],
    }
);
wire!(
    /// Attributes for `stat(2)`.
    Attr {
        /// Inode number.
        ino: u64,
        /// Bytes.
        size: u64,
        /// Units of 512 bytes.
        blocks: u64,
        /// Seconds.
        atime: u64,
        /// Seconds.
        mtime: u64,
        /// Seconds.
        ctime: u64,
        /// Nanoseconds.
        atimensec: u32,
        /// Nanoseconds.
        mtimensec: u32,
        /// Nanoseconds.
        ctimensec: u32,
        /// Type and permissions.
        mode: u32,
        /// Links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number, of device files.
        rdev: u32,
        /// Preferred I/O size.
        blksize: u32,
        /// `FUSE_ATTR_*`.
        flags: u32,
    }
);
wire!(
    /// Reply to LOOKUP.
    EntryOut {
        /// The node.
        nodeid: u64,
        /// With `nodeid` unique for the filesystem's lifetime.
        generation: u64,
        /// How long the name may be cached, seconds.
        entry_valid: u64,
        /// How long the attributes may be cached, seconds.
        attr_valid: u64,
        /// Nanoseconds.
        entry_valid_nsec: u32,
        /// Nanoseconds.
        attr_valid_nsec: u32,
        /// The attributes.
        attr: Attr,
    }
);
wire!(
    /// Reply to GETATTR and SETATTR.
    AttrOut {
        /// How long the attributes may be cached, seconds.
        attr_valid: u64,
        /// Nanoseconds.
        attr_valid_nsec: u32,
        /// Unused.
        dummy: u32,
        /// The attributes.
        attr: Attr,
    }
);
wire!(
    /// SETATTR.
    SetattrIn {
        /// `FATTR_*`.
        valid: u32,
        /// Unused.
        padding: u32,
        /// Open file, with its flag.
        fh: u64,
        /// New size.
        size: u64,
        /// Lock owner.
        lock_owner: u64,
        /// Seconds.
        atime: u64,
        /// Seconds.
        mtime: u64,
        /// Seconds.
        ctime: u64,
        /// Nanoseconds.
        atimensec: u32,
        /// Nanoseconds.
        mtimensec: u32,
        /// Nanoseconds.
        ctimensec: u32,
        /// New mode.
        mode: u32,
        /// Unused.
        unused4: u32,
        /// New owner.
        uid: u32,
        /// New group.
        gid: u32,
        /// Unused.
        unused5: u32,
    }
);
wire!(
    /// FORGET, and the count in front of BATCH_FORGET's list.
    ForgetIn {
        /// Lookups to forget.
        nlookup: u64,
    }
);
wire!(
    /// Head of BATCH_FORGET.
    BatchForgetIn {
        /// Entries that follow.
        count: u32,
        /// Unused.
        dummy: u32,
    }
);
wire!(
    /// Entry of BATCH_FORGET.
    ForgetOne {
        /// The node.
        nodeid: u64,
        /// Lookups to forget.
        nlookup: u64,
    }
);
wire!(
    /// OPEN and OPENDIR.
    OpenIn {
        /// As given to `open(2)`, without O_CREAT, O_EXCL, O_NOCTTY.
        flags: u32,
        /// `FUSE_OPEN_*`.
        open_flags: u32,
    }
);
wire!(
    /// Reply to OPEN and OPENDIR.
    OpenOut {
        /// Our identifier of the open file.
        fh: u64,
        /// `FOPEN_*`.
        open_flags: u32,
        /// With [`FOPEN_PASSTHROUGH`]: the id that the BACKING_OPEN ioctl returned.
        backing_id: i32,
    }
);
wire!(
    /// RELEASE and RELEASEDIR.
    ReleaseIn {
        /// Open file.
        fh: u64,
        /// Flags of the file.
        flags: u32,
        /// `FUSE_RELEASE_*`.
        release_flags: u32,
        /// Lock owner.
        lock_owner: u64,
    }
);
wire!(
    /// FLUSH: one `close(2)`.
    FlushIn {
        /// Open file.
        fh: u64,
        /// Unused.
        unused: u32,
        /// Unused.
        padding: u32,
        /// Lock owner.
        lock_owner: u64,
    }
);
wire!(
    /// READ and READDIR; WRITE has the same shape.
    ReadIn {
        /// Open file.
        fh: u64,
        /// Offset, bytes.
        offset: u64,
        /// Bytes.
        size: u32,
        /// `FUSE_READ_*` / `FUSE_WRITE_*`.
        read_flags: u32,
        /// Lock owner.
        lock_owner: u64,
        /// Flags of the file.
        flags: u32,
        /// Unused.
        padding: u32,
    }
);
wire!(
    /// RENAME, in front of two names.
    RenameIn {
        /// The folder of the new name.
        new_parent: u64,
    }
);
wire!(
    /// RENAME2, in front of two names.
    Rename2In {
        /// The folder of the new name.
        new_parent: u64,
        /// `RENAME_*`.
        flags: u32,
        /// Unused.
        padding: u32,
    }
);
wire!(
    /// INTERRUPT.
    InterruptIn {
        /// The request to interrupt.
        unique: u64,
    }
);
wire!(
    /// IOCTL.
    IoctlIn {
        /// Open file.
        fh: u64,
        /// `IOCTL_*`.
        flags: u32,
        /// The ioctl's number.
        cmd: u32,
        /// Its argument, as the caller gave it.
        arg: u64,
        /// Bytes that follow.
        in_size: u32,
        /// Maximum number of bytes in the reply.
        out_size: u32,
    }
);
wire!(
    /// Reply to IOCTL; data follows.
    IoctlOut {
        /// Return value of `ioctl(2)`: a value, or a negative errno (the data is copied out in both
        /// cases).
        result: i32,
        /// Unused here.
        flags: u32,
        /// Unused here.
        in_iovs: u32,
        /// Unused here.
        out_iovs: u32,
    }
);
wire!(
    /// POLL.
    PollIn {
        /// Open file.
        fh: u64,
        /// The kernel's poll handle for the waiters of this file.
        kh: u64,
        /// [`POLL_SCHEDULE_NOTIFY`].
        flags: u32,
        /// Events of interest.
        events: u32,
    }
);
wire!(
    /// Reply to POLL.
    PollOut {
        /// Events that are ready.
        revents: u32,
        /// Unused.
        padding: u32,
    }
);
wire!(
    /// Payload of [`NOTIFY_POLL`].
    NotifyPollOut {
        /// From [`PollIn::kh`].
        kh: u64,
    }
);
wire!(
    /// Payload of [`NOTIFY_STORE`]; data follows.
    NotifyStoreOut {
        /// The node.
        nodeid: u64,
        /// Offset, bytes.
        offset: u64,
        /// Bytes that follow.
        size: u32,
        /// Unused.
        padding: u32,
    }
);
wire!(
    /// Payload of [`NOTIFY_INVAL_INODE`].
    NotifyInvalInodeOut {
        /// The node.
        ino: u64,
        /// Offset, bytes.
        off: i64,
        /// Bytes; 0 or less: to the end.
        len: i64,
    }
);
wire!(
    /// Reply to STATFS.
    StatfsOut {
        /// Blocks.
        blocks: u64,
        /// Free ones.
        bfree: u64,
        /// Free ones for users.
        bavail: u64,
        /// Files.
        files: u64,
        /// Free ones.
        ffree: u64,
        /// Block size.
        bsize: u32,
        /// Longest name.
        namelen: u32,
        /// Fragment size.
        frsize: u32,
        /// Unused.
        padding: u32,
        /// Unused.
        spare: [u32; 6],
    }
);
wire!(
    /// Head of a directory entry; the name follows, padded to 8 bytes.
    DirentHeader {
        /// Inode number.
        ino: u64,
        /// Offset of the next entry.
        off: u64,
        /// Bytes of the name.
        namelen: u32,
        /// `DT_*`.
        ty: u32,
    }
);
wire!(
    /// Argument of the BACKING_OPEN ioctl on `/dev/fuse`.
    BackingMap {
        /// The backing file.
        fd: i32,
        /// 0.
        flags: u32,
        /// 0.
        padding: u64,
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 16),
            (size_of::<InitOut>(), 64),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<OpenOut>(), 16),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<FlushIn>(), 24),
            (size_of::<ReadIn>(), 40),
            (size_of::<IoctlIn>(), 32),
            (size_of::<IoctlOut>(), 16),
            (size_of::<PollIn>(), 24),
            (size_of::<NotifyStoreOut>(), 24),
            (size_of::<NotifyInvalInodeOut>(), 24),
            (size_of::<StatfsOut>(), 80),
            (size_of::<DirentHeader>(), 24),
            (size_of::<BackingMap>(), 16),
        ];
        for (index, (ours, header)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, header, "structure number {index}");
        }
    }
}
