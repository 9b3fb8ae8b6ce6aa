//! Requests: their numbers, the parser of bytes from `/dev/fuse`, and the errnos of those that we
//! do not serve.

use zerocopy::FromBytes;

use super::types::*;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        $($(#[$doc])* pub const $name: u32 = $value;)*

        /// The name of a request number, for messages.
        pub fn opcode_name(opcode: u32) -> &'static str {
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

/// One request, borrowing from the buffer that it was read into.
#[derive(Debug)]
pub struct Request<'a> {
    /// Header, with caller and node.
    pub header: InHeader,
    /// The requested operation.
    pub operation: Operation<'a>,
}

/// The requested operation. Names are without their NUL.
#[derive(Debug, PartialEq)]
pub enum Operation<'a> {
    /// First request of a mount; the second value holds flags 32-63 (0 on kernels before 5.17).
    Init(InitIn, u32),
    /// Resolves a name to a node.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// Lookups were dropped; no reply.
    Forget {
        /// Number of dropped lookups.
        nlookup: u64,
    },
    /// Lookups of many nodes were dropped; no reply.
    BatchForget(&'a [ForgetOne]),
    /// `stat(2)`.
    Getattr,
    /// `chmod(2)` and relatives.
    Setattr(SetattrIn),
    /// `open(2)`.
    Open(OpenIn),
    /// `read(2)` or a page fault.
    Read(ReadIn),
    /// `write(2)`; the data is not used.
    Write,
    /// `statfs(2)`.
    Statfs,
    /// Last close.
    Release(ReleaseIn),
    /// A close.
    Flush(FlushIn),
    /// `opendir(3)`.
    Opendir,
    /// `getdents(2)`.
    Readdir(ReadIn),
    /// Last close of a directory.
    Releasedir,
    /// `unlink(2)`.
    Unlink {
        /// The name.
        name: &'a [u8],
    },
    /// `rename(2)`, `renameat2(2)`.
    Rename {
        /// The old name.
        old: &'a [u8],
        /// The folder of the new name.
        new_parent: u64,
        /// The new name.
        new: &'a [u8],
        /// `RENAME_*`.
        flags: u32,
    },
    /// A request's caller has a signal.
    Interrupt {
        /// Unique id of the interrupted request.
        unique: u64,
    },
    /// `ioctl(2)`, with the bytes that the kernel copied in.
    Ioctl(IoctlIn, &'a [u8]),
    /// `poll(2)`.
    Poll(PollIn),
    /// End of the mount.
    Destroy,
    /// Any other request.
    Other,
}

/// Why a request could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Shorter than a header, or than the length in its header.
    #[error("request of {have} bytes, {need} needed")]
    Short {
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// The body does not fit the opcode.
    #[error("body of a {} request (unique {unique}) is malformed", opcode_name(*.opcode))]
    Body {
        /// The opcode.
        opcode: u32,
        /// Unique id of the request, for an error reply.
        unique: u64,
    },
}

impl<'a> Request<'a> {
    /// Parses one request, which fills `bytes` exactly.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let have = bytes.len();
        let (header, body) = InHeader::read_from_prefix(bytes)
            .map_err(|_| ParseError::Short { need: size_of::<InHeader>(), have })?;
        if header.len as usize != have {
            return Err(ParseError::Short { need: header.len as usize, have });
        }
        let operation = Self::body(header.opcode, body)
            .ok_or(ParseError::Body { opcode: header.opcode, unique: header.unique })?;
        Ok(Self { header, operation })
    }

    fn body(opcode: u32, body: &'a [u8]) -> Option<Operation<'a>> {
        Some(match opcode {
            IOCTL => {
                let (ioctl, data) = IoctlIn::read_from_prefix(body).ok()?;
                if data.len() != ioctl.in_size as usize {
                    return None;
                }
                Operation::Ioctl(ioctl, data)
            }
            POLL => Operation::Poll(fixed(body)?),
            READ => Operation::Read(fixed(body)?),
            INTERRUPT => Operation::Interrupt { unique: fixed::<InterruptIn>(body)?.unique },
            LOOKUP => Operation::Lookup { name: name(body)? },
            FORGET => Operation::Forget { nlookup: fixed::<ForgetIn>(body)?.nlookup },
            BATCH_FORGET => Operation::BatchForget(batch(body)?),
            GETATTR => Operation::Getattr,
            SETATTR => Operation::Setattr(fixed(body)?),
            OPEN => Operation::Open(fixed(body)?),
            WRITE => Operation::Write,
            STATFS => Operation::Statfs,
            RELEASE => Operation::Release(fixed(body)?),
            FLUSH => Operation::Flush(fixed(body)?),
            OPENDIR => Operation::Opendir,
            READDIR => Operation::Readdir(fixed(body)?),
            RELEASEDIR => Operation::Releasedir,
            UNLINK => Operation::Unlink { name: name(body)? },
            RENAME => {
                let (head, names) = RenameIn::read_from_prefix(body).ok()?;
                rename(head.new_parent, 0, names)?
            }
            RENAME2 => {
                let (head, names) = Rename2In::read_from_prefix(body).ok()?;
                rename(head.new_parent, head.flags, names)?
            }
            DESTROY => Operation::Destroy,
            INIT => {
                let (init, rest) = InitIn::read_from_prefix(body).ok()?;
                let flags2 = u32::read_from_prefix(rest).map_or(0, |(flags, _)| flags);
                Operation::Init(init, flags2)
            }
            _ => Operation::Other,
        })
    }
}

/// A body that is one structure; later kernels may append to it.
fn fixed<T: FromBytes>(body: &[u8]) -> Option<T> {
    T::read_from_prefix(body).ok().map(|(value, _)| value)
}

/// A body that is one NUL-terminated name.
fn name(body: &[u8]) -> Option<&[u8]> {
    let end = body.iter().position(|&byte| byte == 0)?;
    (end > 0).then(|| &body[..end])
}

/// Two names, each NUL-terminated.
fn rename(new_parent: u64, flags: u32, names: &[u8]) -> Option<Operation<'_>> {
    let old = name(names)?;
    let new = name(&names[old.len() + 1..])?;
    Some(Operation::Rename { old, new_parent, new, flags })
}

fn batch(body: &[u8]) -> Option<&[ForgetOne]> {
    let (head, rest) = BatchForgetIn::read_from_prefix(body).ok()?;
    <[ForgetOne]>::ref_from_prefix_with_elems(rest, head.count as usize).ok().map(|(list, _)| list)
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
    use zerocopy::IntoBytes;

    use super::*;

    /// A request in the layout of the kernel: header by hand, little endian.
    fn request(opcode: u32, body: &[u8]) -> Aligned {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(40 + body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&opcode.to_le_bytes());
        bytes.extend_from_slice(&0x1234_u64.to_le_bytes()); // unique
        bytes.extend_from_slice(&7_u64.to_le_bytes()); // nodeid
        bytes.extend_from_slice(&1000_u32.to_le_bytes()); // uid
        bytes.extend_from_slice(&100_u32.to_le_bytes()); // gid
        bytes.extend_from_slice(&4242_u32.to_le_bytes()); // pid
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        Aligned::new(&bytes)
    }

    /// The session reads into memory aligned to 8; the fixtures need the same alignment.
    struct Aligned(Vec<u64>, usize);
    impl Aligned {
        fn new(bytes: &[u8]) -> Self {
            let mut words = vec![0_u64; bytes.len().div_ceil(8)];
            words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
            Self(words, bytes.len())
        }
        fn bytes(&self) -> &[u8] {
            &self.0.as_bytes()[..self.1]
        }
    }

    #[test]
    fn a_header_names_the_caller_and_the_node() {
        let bytes = request(GETATTR, &[0; 16]);
        let parsed = Request::parse(bytes.bytes()).unwrap();
        assert_eq!(parsed.operation, Operation::Getattr);
        assert_eq!(parsed.header.unique, 0x1234);
        assert_eq!(parsed.header.nodeid, 7);
        assert_eq!((parsed.header.uid, parsed.header.gid, parsed.header.pid), (1000, 100, 4242));
    }

    #[test]
    fn init_of_an_old_kernel_has_no_second_flags() {
        let old = [7, 0, 0, 0, 31, 0, 0, 0, 0, 0, 2, 0, 0xfb, 0xff, 0xff, 0x03];
        let bytes = request(INIT, &old);
        let Operation::Init(init, flags2) = Request::parse(bytes.bytes()).unwrap().operation else {
            panic!("not INIT");
        };
        assert_eq!((init.major, init.minor, flags2), (7, 31, 0));
        assert_eq!(init.flags, 0x03ff_fffb);
    }

    #[test]
    fn init_of_a_new_kernel_offers_passthrough() {
        let mut body = vec![7, 0, 0, 0, 45, 0, 0, 0, 0, 0, 2, 0, 0xfb, 0xff, 0xff, 0x73];
        body.extend_from_slice(&[0x20, 0, 0, 0]);
        body.extend_from_slice(&[0; 44]);
        let bytes = request(INIT, &body);
        let Operation::Init(init, flags2) = Request::parse(bytes.bytes()).unwrap().operation else {
            panic!("not INIT");
        };
        let flags = u64::from(init.flags) | u64::from(flags2) << 32;
        assert_ne!(flags & INIT_EXT, 0);
        assert_ne!(flags & INIT_PASSTHROUGH, 0);
    }

    #[test]
    fn a_rename_of_either_kind_has_two_names_and_a_folder() {
        let rename = |opcode, flags: &[u8], names: &[u8]| {
            let body = [&1_u64.to_le_bytes()[..], flags, names].concat();
            let bytes = request(opcode, &body);
            let parsed = Request::parse(bytes.bytes()).map(|request| match request.operation {
                Operation::Rename { old, new_parent, new, flags } => {
                    (old.to_vec(), new_parent, new.to_vec(), flags)
                }
                other => panic!("{other:?}"),
            });
            parsed.ok()
        };
        let expected = |flags| Some((b"one".to_vec(), 1, b"two".to_vec(), flags));
        assert_eq!(rename(RENAME, &[], b"one\0two\0"), expected(0));
        assert_eq!(rename(RENAME2, &[2, 0, 0, 0, 0, 0, 0, 0], b"one\0two\0"), expected(2));
        for cut in [&b"one\0two"[..], b"one\0", b"one", b"", b"one\0\0"] {
            assert_eq!(rename(RENAME, &[], cut), None, "{cut:?}");
        }
    }

    #[test]
    fn an_ioctl_carries_its_argument_and_its_bytes() {
        let mut body = Vec::new();
        body.extend_from_slice(&3_u64.to_le_bytes()); // fh
        body.extend_from_slice(&0_u32.to_le_bytes()); // flags
        body.extend_from_slice(&0xc030_6201_u32.to_le_bytes());
        body.extend_from_slice(&0x7fff_0000_u64.to_le_bytes());
        body.extend_from_slice(&48_u32.to_le_bytes());
        body.extend_from_slice(&48_u32.to_le_bytes());
        body.extend_from_slice(&[0xab; 48]);
        let bytes = request(IOCTL, &body);
        let Operation::Ioctl(ioctl, data) = Request::parse(bytes.bytes()).unwrap().operation else {
            panic!("not IOCTL");
        };
        assert_eq!((ioctl.fh, ioctl.cmd, ioctl.arg), (3, 0xc030_6201, 0x7fff_0000));
        assert_eq!(data, [0xab; 48]);

        body.pop();
        let bytes = request(IOCTL, &body);
        assert_eq!(
            Request::parse(bytes.bytes()).unwrap_err(),
            ParseError::Body { opcode: IOCTL, unique: 0x1234 }
        );
    }

    #[test]
    fn names_end_at_their_nul_and_are_never_empty() {
        let bytes = request(LOOKUP, b"hwbinder\0");
        let parsed = Request::parse(bytes.bytes()).unwrap();
        assert_eq!(parsed.operation, Operation::Lookup { name: b"hwbinder" });
        for bad in [&b"no-nul"[..], b"\0", b""] {
            let bytes = request(UNLINK, bad);
            assert!(Request::parse(bytes.bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_batch_of_forgets_has_the_announced_length() {
        let mut body = Vec::new();
        body.extend_from_slice(&2_u32.to_le_bytes());
        body.extend_from_slice(&0_u32.to_le_bytes());
        for value in [10_u64, 1, 11, 2] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        let bytes = request(BATCH_FORGET, &body);
        let Operation::BatchForget(list) = Request::parse(bytes.bytes()).unwrap().operation else {
            panic!("not BATCH_FORGET");
        };
        assert_eq!(list[1], ForgetOne { nodeid: 11, nlookup: 2 });

        body[0] = 3;
        let bytes = request(BATCH_FORGET, &body);
        assert!(Request::parse(bytes.bytes()).is_err());
    }

    #[test]
    fn a_request_with_a_wrong_length_is_refused() {
        let bytes = request(FLUSH, &[0; 24]);
        assert!(matches!(
            Request::parse(&bytes.bytes()[..50]),
            Err(ParseError::Short { need: 64, have: 50 })
        ));
        assert!(matches!(Request::parse(&[1, 2, 3]), Err(ParseError::Short { have: 3, .. })));
        let short = request(FLUSH, &[0; 8]);
        assert!(matches!(Request::parse(short.bytes()), Err(ParseError::Body { .. })));
    }

    #[test]
    fn an_unknown_opcode_is_a_request_all_the_same() {
        let bytes = request(4711, &[1, 2, 3]);
        assert_eq!(Request::parse(bytes.bytes()).unwrap().operation, Operation::Other);
    }

    #[test]
    fn a_refusal_has_a_reason_or_is_left_to_the_kernel() {
        assert_eq!(refusal(MKDIR), libc::EPERM);
        assert_eq!(refusal(FALLOCATE), libc::EOPNOTSUPP);
        assert_eq!(refusal(ACCESS), libc::ENOSYS);
        assert_eq!(refusal(4711), libc::ENOSYS);
        assert_eq!(opcode_name(RENAME2), "RENAME2");
        assert_eq!(opcode_name(4711), "unknown");
    }
}
