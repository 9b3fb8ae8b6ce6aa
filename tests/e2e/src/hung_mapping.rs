//! A file whose filesystem answers reads late or never: FUSE, served by this process or by a child
//! of it.
//!
//! An ordinary user mounts it in private namespaces.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

/// Requests that are answered, by their opcodes.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
/// At each close of a descriptor.
const FLUSH: u32 = 25;
const INIT: u32 = 26;
/// A regular file that all users may read.
const MODE: u32 = 0o100_444;
const PAGE: usize = 4096;

/// The server of the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// A thread of this process: the filesystem ends with the process.
    Thread,
    /// A child in a separate session, which outlives this process by at most a minute.
    Accomplice,
    /// Such a child, which does not answer closes either.
    SilentAccomplice,
    /// A thread of this process that answers reads.
    Late(LateContent),
}

/// Content of a file whose reads are answered late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateContent {
    /// Time until the answer to a read.
    pub after: Duration,
    /// The file consists of this word, repeated.
    pub word: u32,
}

/// The file.
pub struct HungFile {
    file: File,
    len: usize,
    /// Pid of the accomplice that serves the file. A thread that accesses the file cannot be killed
    /// before the accomplice has exited.
    pub accomplice: Option<u32>,
}

impl AsFd for HungFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl HungFile {
    /// A file of `len` bytes. The process must have one thread; it gets private mounts and, unless
    /// it is root, a user namespace.
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
            Server::Thread | Server::Late(_) => {
                thread::spawn(move || serve(device, len as u64, server));
                None
            }
            // SAFETY: this process has one thread, so the child may do whatever the parent may.
            Server::Accomplice | Server::SilentAccomplice => match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error()),
                0 => accomplice(device, len as u64, server),
                pid => {
                    drop(device);
                    Some(pid as u32)
                }
            },
        };
        let file = File::open(place.path());
        // The open file keeps the mount alive.
        unmount(place.path(), UnmountFlags::DETACH)?;
        let file = file?;
        // Makes the kernel request the size: behind the end of the file it would not request a
        // page.
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::other("it is too short"));
        }
        Ok(Self { file, len, accomplice })
    }

    /// Maps the file, private and writable: at an address of the kernel's choice, or replacing what
    /// is at `place`.
    pub fn map(&self, place: Option<u64>) -> Result<u64, String> {
        self.map_range(0, self.len, place)
    }

    /// Maps one page of the file, replacing what is at `place`.
    pub fn map_page(&self, page: usize, place: u64) -> Result<(), String> {
        self.map_range((page * PAGE) as u64, PAGE, Some(place)).map(drop)
    }

    fn map_range(&self, offset: u64, len: usize, place: Option<u64>) -> Result<u64, String> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let fixed = place.map_or(MapFlags::empty(), |_| MapFlags::FIXED);
        let flags = MapFlags::PRIVATE | fixed;
        let at = std::ptr::with_exposed_provenance_mut(place.unwrap_or(0) as usize);
        // SAFETY: a new mapping, at a place that the caller gives up; no reference to it exists
        // here.
        let mapped = unsafe { mmap(at, len, access, flags, &self.file, offset) };
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

/// Serves for a minute at most, even if the parent exits.
fn accomplice(device: File, size: u64, server: Server) -> ! {
    // SAFETY: plain numbers.
    unsafe {
        libc::setsid();
        libc::alarm(60);
        // A reader of the parent's output must see end of file when the parent exits.
        libc::close(1);
    }
    serve(device, size, server);
    std::process::exit(0);
}

/// Serves the one file, until the filesystem is not in use any more.
fn serve(mut device: File, size: u64, server: Server) {
    let mut request = vec![0; 128 << 10];
    while let Ok(len) = device.read(&mut request) {
        let Some(header) = request.get(..40).filter(|_| len >= 40) else { continue };
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let body = match word(4) {
            INIT => init(),
            GETATTR => attributes(size),
            OPEN => vec![0; 16],
            READ => {
                let Server::Late(LateContent { after, word: content }) = server else { continue };
                thread::sleep(after);
                // `size` of `fuse_read_in`, which begins at 40.
                let size = request
                    .get(56..60)
                    .map_or(0, |size| u32::from_ne_bytes([0, 1, 2, 3].map(|i| size[i])) as usize);
                content.to_ne_bytes().repeat(size / 4)
            }
            FLUSH if server == Server::SilentAccomplice => continue,
            _ => {
                // If no answer is expected, the kernel refuses this one.
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

/// `fuse_init_out`: protocol 7.31, without optional features.
fn init() -> Vec<u8> {
    let mut body = vec![0; 64];
    body[..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    // `max_write`.
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

/// `fuse_attr_out` of a file of `size` bytes.
fn attributes(size: u64) -> Vec<u8> {
    let mut body = vec![0; 104];
    body[..8].copy_from_slice(&3600_u64.to_ne_bytes());
    // `fuse_attr` begins at 16: number and size, later mode, links and block size.
    body[16..24].copy_from_slice(&1_u64.to_ne_bytes());
    body[24..32].copy_from_slice(&size.to_ne_bytes());
    body[76..80].copy_from_slice(&MODE.to_ne_bytes());
    body[80..84].copy_from_slice(&1_u32.to_ne_bytes());
    body[96..100].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}
