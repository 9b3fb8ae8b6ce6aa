//! A mapping of a file whose filesystem never answers a read: FUSE, served by this very process.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

/// Requests that are answered, by their opcodes.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
/// A regular file that everybody may read.
const MODE: u32 = 0o100_444;

/// Maps `len` bytes of such a file, for good. The process must have one thread; it gets mounts of its own.
pub fn map(len: usize) -> Result<u64, String> {
    let text = |error: &dyn std::fmt::Display| format!("no file that hangs: {error}");
    let file = tempfile::NamedTempFile::new().map_err(|error| text(&error))?;
    let device =
        File::options().read(true).write(true).open("/dev/fuse").map_err(|error| text(&error))?;
    // SAFETY: a plain number; the process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(text(&std::io::Error::last_os_error()));
    }
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(|errno| text(&errno))?;
    let options = format!("fd={},rootmode={MODE:o},user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).map_err(|error| text(&error))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("hangs", file.path(), "fuse.hangs", flags, options.as_c_str())
        .map_err(|errno| text(&errno))?;
    thread::spawn(move || serve(device, len as u64));
    let address = map_file(file.path(), len);
    // The mapping keeps what it needs.
    unmount(file.path(), UnmountFlags::DETACH).map_err(|errno| text(&errno))?;
    address.map_err(|error| text(&error))
}

fn map_file(path: &Path, len: usize) -> std::io::Result<u64> {
    let file = File::open(path)?;
    // The kernel asks for the size then; behind the end it would not ask for a page.
    if file.metadata()?.len() < len as u64 {
        return Err(std::io::Error::other("it is too short"));
    }
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, private to us; nothing here refers to it.
    let at = unsafe { mmap(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE, &file, 0)? };
    Ok(at as u64)
}

/// Serves the one file, until nobody has it any more.
fn serve(mut device: File, size: u64) {
    let mut request = vec![0; 128 << 10];
    while let Ok(len) = device.read(&mut request) {
        let Some(header) = request.get(..40).filter(|_| len >= 40) else { continue };
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let body = match word(4) {
            INIT => init(),
            GETATTR => attributes(size),
            OPEN => vec![0; 16],
            READ => continue,
            _ => {
                // Where no answer is expected, this one is refused.
                let _ = device.write(&reply(&header[8..16], -libc::ENOSYS, &[]));
                continue;
            }
        };
        let _ = device.write(&reply(&header[8..16], 0, &body));
    }
}

fn reply(unique: &[u8], error: i32, body: &[u8]) -> Vec<u8> {
    let len = 16 + body.len() as u32;
    [&len.to_ne_bytes()[..], &error.to_ne_bytes(), unique, body].concat()
}

/// `fuse_init_out`: protocol 7.31, and nothing of what it may have.
fn init() -> Vec<u8> {
    let mut body = vec![0; 64];
    body[..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    // `max_write`.
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

/// `fuse_attr_out` of a file of so many bytes.
fn attributes(size: u64) -> Vec<u8> {
    let mut body = vec![0; 104];
    body[..8].copy_from_slice(&3600_u64.to_ne_bytes());
    // `fuse_attr` begins at 16: number and size, further on mode, links and size of a block.
    body[16..24].copy_from_slice(&1_u64.to_ne_bytes());
    body[24..32].copy_from_slice(&size.to_ne_bytes());
    body[76..80].copy_from_slice(&MODE.to_ne_bytes());
    body[80..84].copy_from_slice(&1_u32.to_ne_bytes());
    body[96..100].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}
