//! The FUSE wire format: numbers, structures, parsing and encoding. No I/O.
//!
//! Only what a binder device needs is here; names and numbers are those of `linux/fuse.h`
//! (protocol 7.31 and later, little endian hosts).
//!
//! * [`types`]: the structures;
//! * [`request`]: request numbers, and the parser of bytes from `/dev/fuse` into an [`Operation`];
//! * [`ReplyBuffer`]: encodes replies and notifications.

pub mod request;
pub mod types;

pub use request::{Operation, ParseError, Request};

use zerocopy::{Immutable, IntoBytes};

use self::types::*;

/// Assembles one reply or notification; reused, so that no memory is allocated once it has grown.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    bytes: Vec<u8>,
}

impl ReplyBuffer {
    /// A successful reply whose body is one structure.
    pub fn body<T: IntoBytes + Immutable>(&mut self, unique: u64, body: &T) -> &[u8] {
        self.assemble(unique, 0, &[body.as_bytes()])
    }

    /// A successful reply whose body is raw bytes (READ, READDIR, or nothing).
    pub fn bytes(&mut self, unique: u64, body: &[u8]) -> &[u8] {
        self.assemble(unique, 0, &[body])
    }

    /// A failure; `errno` is positive.
    pub fn error(&mut self, unique: u64, errno: i32) -> &[u8] {
        self.assemble(unique, -errno, &[])
    }

    /// Reply to IOCTL: `result` is what `ioctl(2)` returns (negative errno included), and `data`
    /// reaches the caller whatever `result` is.
    pub fn ioctl(&mut self, unique: u64, result: i32, data: &[u8]) -> &[u8] {
        let out = IoctlOut { result, ..IoctlOut::default() };
        self.assemble(unique, 0, &[out.as_bytes(), data])
    }

    /// Wakes the pollers of the file with the kernel's poll handle `kh`.
    pub fn notify_poll(&mut self, kh: u64) -> &[u8] {
        self.assemble(0, NOTIFY_POLL, &[NotifyPollOut { kh }.as_bytes()])
    }

    /// Puts `size` bytes, which follow in the same write, into the page cache of `nodeid` at
    /// `offset`.
    pub fn notify_store_header(&mut self, nodeid: u64, offset: u64, size: u32) -> &[u8] {
        let out = NotifyStoreOut { nodeid, offset, size, padding: 0 };
        let len = size_of::<OutHeader>() + size_of::<NotifyStoreOut>() + size as usize;
        self.assemble_len(0, NOTIFY_STORE, len, &[out.as_bytes()])
    }

    /// Drops the page cache of `nodeid` from `offset` on for `len` bytes.
    pub fn notify_inval_inode(&mut self, nodeid: u64, offset: u64, len: u64) -> &[u8] {
        let out = NotifyInvalInodeOut { ino: nodeid, off: offset as i64, len: len as i64 };
        self.assemble(0, NOTIFY_INVAL_INODE, &[out.as_bytes()])
    }

    fn assemble(&mut self, unique: u64, error: i32, parts: &[&[u8]]) -> &[u8] {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        self.assemble_len(unique, error, len, parts)
    }

    /// `len`: bytes of the whole message.
    fn assemble_len(&mut self, unique: u64, error: i32, len: usize, parts: &[&[u8]]) -> &[u8] {
        self.bytes.clear();
        self.bytes.extend_from_slice(OutHeader { len: len as u32, error, unique }.as_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        &self.bytes
    }
}

/// A directory entry of a READDIR reply.
#[derive(Clone, Copy, Debug)]
pub struct Dirent<'a> {
    /// Inode number.
    pub ino: u64,
    /// Offset at which READDIR continues after this entry.
    pub next: u64,
    /// `DT_DIR`, else `DT_REG`.
    pub directory: bool,
    /// File name.
    pub name: &'a str,
}

/// Appends one directory entry to `out` unless that would exceed `room` bytes; returns whether it
/// was appended.
pub fn push_dirent(out: &mut Vec<u8>, room: usize, entry: Dirent<'_>) -> bool {
    let Dirent { ino, next, directory, name } = entry;
    let padded = (size_of::<DirentHeader>() + name.len()).next_multiple_of(8);
    if out.len() + padded > room {
        return false;
    }
    let ty = u32::from(if directory { libc::DT_DIR } else { libc::DT_REG });
    let header = DirentHeader { ino, off: next, namelen: name.len() as u32, ty };
    let end = out.len() + padded;
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(name.as_bytes());
    out.resize(end, 0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_bare_header() {
        let mut reply = ReplyBuffer::default();
        let expected = [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(reply.error(9, libc::ENOENT), expected);
    }

    #[test]
    fn an_ioctl_reply_carries_error_and_data_together() {
        let mut reply = ReplyBuffer::default();
        let bytes = reply.ioctl(5, -libc::EAGAIN, &[1, 2, 3, 4]).to_vec();
        assert_eq!(bytes.len(), 36);
        assert_eq!(bytes[..4], 36_u32.to_le_bytes());
        assert_eq!(bytes[4..8], [0; 4], "the request itself succeeded");
        assert_eq!(bytes[16..20], (-libc::EAGAIN).to_le_bytes());
        assert_eq!(bytes[32..], [1, 2, 3, 4]);
    }

    #[test]
    fn notifications_have_no_unique_and_their_code_as_error() {
        let mut reply = ReplyBuffer::default();
        let bytes = reply.notify_poll(0x77).to_vec();
        assert_eq!(
            bytes,
            [24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0]
        );
        let bytes = reply.notify_store_header(3, 4096, 4).to_vec();
        assert_eq!(bytes.len(), 16 + 24);
        assert_eq!(bytes[..4], (16 + 24 + 4_u32).to_le_bytes());
        assert_eq!(bytes[4], 4);
        assert_eq!(bytes[16..24], 3_u64.to_le_bytes());
        assert_eq!(bytes[24..32], 4096_u64.to_le_bytes());
        assert_eq!(bytes[32..36], 4_u32.to_le_bytes());
    }

    #[test]
    fn directory_entries_are_padded_to_eight_bytes_and_stop_at_the_room() {
        let mut out = Vec::new();
        assert!(push_dirent(
            &mut out,
            100,
            Dirent { ino: 5, next: 1, directory: false, name: "binder" }
        ));
        assert_eq!(out.len(), 32);
        assert_eq!(out[16..20], 6_u32.to_le_bytes());
        assert_eq!(out[20..24], u32::from(libc::DT_REG).to_le_bytes());
        assert_eq!(&out[24..32], b"binder\0\0");
        assert!(push_dirent(
            &mut out,
            100,
            Dirent { ino: 6, next: 2, directory: true, name: "features" }
        ));
        assert!(!push_dirent(
            &mut out,
            100,
            Dirent { ino: 7, next: 3, directory: false, name: "no-room-for-this-any-more" }
        ));
        assert_eq!(out.len(), 64);
    }
}
