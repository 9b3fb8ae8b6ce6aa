//! Parses bytes read from `/dev/fuse` into a typed request.

use zerocopy::FromBytes;

use super::opcode;
use super::types::*;

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
    #[error("body of a {} request (unique {unique}) is malformed", opcode::name(*.opcode))]
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
            opcode::IOCTL => {
                let (ioctl, data) = IoctlIn::read_from_prefix(body).ok()?;
                if data.len() != ioctl.in_size as usize {
                    return None;
                }
                Operation::Ioctl(ioctl, data)
            }
            opcode::POLL => Operation::Poll(fixed(body)?),
            opcode::READ => Operation::Read(fixed(body)?),
            opcode::INTERRUPT => {
                Operation::Interrupt { unique: fixed::<InterruptIn>(body)?.unique }
            }
            opcode::LOOKUP => Operation::Lookup { name: name(body)? },
            opcode::FORGET => Operation::Forget { nlookup: fixed::<ForgetIn>(body)?.nlookup },
            opcode::BATCH_FORGET => Operation::BatchForget(batch(body)?),
            opcode::GETATTR => Operation::Getattr,
            opcode::SETATTR => Operation::Setattr(fixed(body)?),
            opcode::OPEN => Operation::Open(fixed(body)?),
            opcode::WRITE => Operation::Write,
            opcode::STATFS => Operation::Statfs,
            opcode::RELEASE => Operation::Release(fixed(body)?),
            opcode::FLUSH => Operation::Flush(fixed(body)?),
            opcode::OPENDIR => Operation::Opendir,
            opcode::READDIR => Operation::Readdir(fixed(body)?),
            opcode::RELEASEDIR => Operation::Releasedir,
            opcode::UNLINK => Operation::Unlink { name: name(body)? },
            opcode::RENAME => {
                let (head, names) = RenameIn::read_from_prefix(body).ok()?;
                rename(head.new_parent, 0, names)?
            }
            opcode::RENAME2 => {
                let (head, names) = Rename2In::read_from_prefix(body).ok()?;
                rename(head.new_parent, head.flags, names)?
            }
            opcode::DESTROY => Operation::Destroy,
            opcode::INIT => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

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
        let bytes = request(opcode::GETATTR, &[0; 16]);
        let parsed = Request::parse(bytes.bytes()).unwrap();
        assert_eq!(parsed.operation, Operation::Getattr);
        assert_eq!(parsed.header.unique, 0x1234);
        assert_eq!(parsed.header.nodeid, 7);
        assert_eq!((parsed.header.uid, parsed.header.gid, parsed.header.pid), (1000, 100, 4242));
    }

    #[test]
    fn init_of_an_old_kernel_has_no_second_flags() {
        let old = [7, 0, 0, 0, 31, 0, 0, 0, 0, 0, 2, 0, 0xfb, 0xff, 0xff, 0x03];
        let bytes = request(opcode::INIT, &old);
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
        let bytes = request(opcode::INIT, &body);
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
        assert_eq!(rename(opcode::RENAME, &[], b"one\0two\0"), expected(0));
        assert_eq!(rename(opcode::RENAME2, &[2, 0, 0, 0, 0, 0, 0, 0], b"one\0two\0"), expected(2));
        for cut in [&b"one\0two"[..], b"one\0", b"one", b"", b"one\0\0"] {
            assert_eq!(rename(opcode::RENAME, &[], cut), None, "{cut:?}");
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
        let bytes = request(opcode::IOCTL, &body);
        let Operation::Ioctl(ioctl, data) = Request::parse(bytes.bytes()).unwrap().operation else {
            panic!("not IOCTL");
        };
        assert_eq!((ioctl.fh, ioctl.cmd, ioctl.arg), (3, 0xc030_6201, 0x7fff_0000));
        assert_eq!(data, [0xab; 48]);

        body.pop();
        let bytes = request(opcode::IOCTL, &body);
        assert_eq!(
            Request::parse(bytes.bytes()).unwrap_err(),
            ParseError::Body { opcode: opcode::IOCTL, unique: 0x1234 }
        );
    }

    #[test]
    fn names_end_at_their_nul_and_are_never_empty() {
        let bytes = request(opcode::LOOKUP, b"hwbinder\0");
        let parsed = Request::parse(bytes.bytes()).unwrap();
        assert_eq!(parsed.operation, Operation::Lookup { name: b"hwbinder" });
        for bad in [&b"no-nul"[..], b"\0", b""] {
            let bytes = request(opcode::UNLINK, bad);
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
        let bytes = request(opcode::BATCH_FORGET, &body);
        let Operation::BatchForget(list) = Request::parse(bytes.bytes()).unwrap().operation else {
            panic!("not BATCH_FORGET");
        };
        assert_eq!(list[1], ForgetOne { nodeid: 11, nlookup: 2 });

        body[0] = 3;
        let bytes = request(opcode::BATCH_FORGET, &body);
        assert!(Request::parse(bytes.bytes()).is_err());
    }

    #[test]
    fn a_request_with_a_wrong_length_is_refused() {
        let bytes = request(opcode::FLUSH, &[0; 24]);
        assert!(matches!(
            Request::parse(&bytes.bytes()[..50]),
            Err(ParseError::Short { need: 64, have: 50 })
        ));
        assert!(matches!(Request::parse(&[1, 2, 3]), Err(ParseError::Short { have: 3, .. })));
        let short = request(opcode::FLUSH, &[0; 8]);
        assert!(matches!(Request::parse(short.bytes()), Err(ParseError::Body { .. })));
    }

    #[test]
    fn an_unknown_opcode_is_a_request_all_the_same() {
        let bytes = request(4711, &[1, 2, 3]);
        assert_eq!(Request::parse(bytes.bytes()).unwrap().operation, Operation::Other);
    }
}
