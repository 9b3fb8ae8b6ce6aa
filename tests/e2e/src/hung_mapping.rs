//! A file whose filesystem never answers a read: FUSE, served by this very process or by a child of
//! it.
//!
//! An ordinary user mounts it in namespaces of its own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
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

/// Who serves the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// A thread of this process: the filesystem ends with the process.
    Thread,
    /// A child in a session of its own, which outlives this process by a minute.
    Accomplice,
}

/// The file.
pub struct HungFile {
    file: File,
    len: usize,
    /// Pid of the accomplice that serves it. A thread that touches the file cannot be killed before
    /// that has ended.
    pub accomplice: Option<u32>,
}

impl HungFile {
    /// A file of `len` bytes. The process must have one thread; it gets mounts of its own, and
    /// unless it is root a user namespace.
    pub fn new(len: usize, server: Server) -> Result<Self, String> {
        Self::mount(len, server).map_err(|error| format!("no file that hangs: {error}"))
    }

    fn mount(len: usize, server: Server) -> io::Result<Self> {
        let place = tempfile::NamedTempFile::new()?;
        enter_namespaces()?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let options = format!("fd={},rootmode={MODE:o},user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("hangs", place.path(), "fuse.hangs", flags, options.as_c_str())?;
        let accomplice = match server {
            Server::Thread => {
                thread::spawn(move || serve(device, len as u64));
                None
            }
            // SAFETY: this process has one thread, so the child may do whatever we may.
            Server::Accomplice => match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error()),
                0 => accomplice(device, len as u64),
                pid => {
                    drop(device);
                    Some(pid as u32)
                }
            },
        };
        let file = File::open(place.path());
        // The open file keeps what it needs.
        unmount(place.path(), UnmountFlags::DETACH)?;
        let file = file?;
        // The kernel asks for the size then; behind the end it would not ask for a page.
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::other("it is too short"));
        }
        Ok(Self { file, len, accomplice })
    }

    /// Maps the file, private and writable: where the kernel likes, or over what is at `place`.
    pub fn map(&self, place: Option<u64>) -> Result<u64, String> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let fixed = place.map_or(MapFlags::empty(), |_| MapFlags::FIXED);
        let at = std::ptr::with_exposed_provenance_mut(place.unwrap_or(0) as usize);
        // SAFETY: a mapping of our own, at a place that the caller gives up; nothing here refers to
        // it.
        let mapped = unsafe { mmap(at, self.len, flags, MapFlags::PRIVATE | fixed, &self.file, 0) };
        mapped.map(|at| at as u64).map_err(|errno| format!("cannot map a file that hangs: {errno}"))
    }
}

fn enter_namespaces() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let user = if uid.is_root() { 0 } else { libc::CLONE_NEWUSER };
    // SAFETY: a plain number; the process has one thread.
    if unsafe { libc::unshare(user | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if user != 0 {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {} 1", uid.as_raw()))?;
        std::fs::write("/proc/self/gid_map", format!("0 {} 1", gid.as_raw()))?;
    }
    Ok(())
}

/// Serves for a minute at most, whatever becomes of the parent.
fn accomplice(device: File, size: u64) -> ! {
    // SAFETY: plain numbers.
    unsafe {
        libc::setsid();
        libc::alarm(60);
        // Who listens to our parent must hear it hang up.
        libc::close(1);
    }
    serve(device, size);
    std::process::exit(0);
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
