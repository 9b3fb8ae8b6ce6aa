//! A file system with a server that reads requests and never replies: a process that accesses it
//! sleeps uninterruptibly.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tempfile::TempDir;

/// `FUSE_INIT`, the only request that gets a reply.
const INIT: u32 = 26;

/// A mounted file system. Unmounted on drop, which wakes all waiting processes.
pub struct Hung {
    folder: TempDir,
    /// Requests that were read.
    requests: Arc<AtomicUsize>,
    server: Option<JoinHandle<()>>,
}

impl Hung {
    /// Mounts a file system; `None` where that is not possible.
    pub fn mount() -> Option<Self> {
        let mut device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let folder = tempfile::tempdir().expect("a folder");
        let c = |text: String| CString::new(text).unwrap();
        let target = c(folder.path().to_str().unwrap().to_owned());
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let (name, options) = (c("hung".into()), c(options));
        // SAFETY: all strings are terminated and live through the call.
        let mounted = unsafe {
            let kind = c("fuse".into());
            libc::mount(name.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        if mounted != 0 {
            return None;
        }
        let requests = Arc::new(AtomicUsize::new(0));
        let read = requests.clone();
        let server = std::thread::spawn(move || serve(&mut device, &read));
        Some(Self { folder, requests, server: Some(server) })
    }

    /// Whether a process waits for a reply. Until its request has been read, it could still be
    /// interrupted.
    pub fn is_waited_for(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Serves until the file system is unmounted, when the read returns an error.
fn serve(device: &mut File, requests: &AtomicUsize) {
    let mut request = vec![0; 64 << 10];
    while let Ok(len) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        if len >= 16 && word(4) == INIT {
            // A header with the request's number; version 7.31, and zeros.
            let mut reply = [0u8; 80];
            reply[..4].copy_from_slice(&80u32.to_ne_bytes());
            reply[8..16].copy_from_slice(&request[8..16]);
            reply[16..20].copy_from_slice(&7u32.to_ne_bytes());
            reply[20..24].copy_from_slice(&31u32.to_ne_bytes());
            reply[36..40].copy_from_slice(&4096u32.to_ne_bytes());
            device.write_all(&reply).expect("the reply to INIT");
        } else {
            requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let target = CString::new(self.folder.path().to_str().unwrap()).unwrap();
        // SAFETY: a terminated string.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
        let _ = self.server.take().unwrap().join();
    }
}
