//! Swap for a test: the machine's own, or a file that is removed when the test is over.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use super::PAGE;

/// More than the tests swap out, bytes.
const BYTES: u64 = 256 << 20;

/// Serializes the tests that use swap.
static ONE: Mutex<()> = Mutex::new(());

/// Swap is on; it is switched off and removed on drop if this test has added it.
pub struct Swap {
    own: Option<(TempDir, CString)>,
    _one: MutexGuard<'static, ()>,
}

impl Swap {
    /// Enables swap, or returns `None` after printing why there is none.
    pub fn on() -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if free_bytes() >= BYTES {
            return Some(Self { own: None, _one: one });
        }
        match make() {
            Ok(own) => Some(Self { own: Some(own), _one: one }),
            Err(error) => {
                test_support::skip(format_args!("no swap: {error}"));
                None
            }
        }
    }

    /// Brings all pages back into memory, if the swap file is the test's own.
    pub fn off(&mut self) -> bool {
        let Some((_, path)) = &self.own else { return false };
        // SAFETY: a string that ends with NUL.
        let failed = unsafe { libc::swapoff(path.as_ptr()) };
        assert_eq!(failed, 0, "swapoff: {}", std::io::Error::last_os_error());
        self.own = None;
        true
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.own {
            // SAFETY: a string that ends with NUL.
            // If this fails, the file stays in use until the next boot, without a name.
            let _ = unsafe { libc::swapoff(path.as_ptr()) };
        }
    }
}

fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeswap * u64::from(info.mem_unit)
}

/// Creates and enables a swap file in the folder of the test programs.
fn make() -> std::io::Result<(TempDir, CString)> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let path = folder.path().join("swap");
    format(&path)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a string that ends with NUL, and flags.
    match unsafe { libc::swapon(path.as_ptr(), 0) } {
        0 => Ok((folder, path)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Writes a swap header like mkswap: the first page has the signature and the number of pages.
fn format(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    // A swap file must not have holes.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES)?;
    let mut first = vec![0; PAGE as usize];
    let (version, last_page) = (1u32, (BYTES / PAGE - 1) as u32);
    first[1024..1028].copy_from_slice(&version.to_ne_bytes());
    first[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    let end = first.len();
    first[end - 10..].copy_from_slice(b"SWAPSPACE2");
    file.write_all(&first)?;
    file.sync_all()
}
