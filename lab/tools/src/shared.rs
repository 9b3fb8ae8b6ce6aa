//! A page that the scenario shares with its processes, so that they report without a system call.

use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU64;

use crate::Result;

/// Content of the page. All zero at first; times are `CLOCK_MONOTONIC` nanoseconds.
#[repr(C)]
pub struct Shared {
    /// When the interactive process finished its last round.
    pub last_beat_ns: AtomicU64,
    /// Its longest delay since the scenario last reset it.
    pub max_lag_ns: AtomicU64,
    /// The sum of its delays above 100 ms.
    pub sum_lag_ns: AtomicU64,
    /// Rounds done.
    pub beats: AtomicU64,
    /// Children of the load that were killed by a signal, as their parent noticed.
    pub load_deaths: AtomicU64,
    /// When the first of those was killed.
    pub first_death_ns: AtomicU64,
}

/// Maps the page in `path`, which the scenario created; it stays mapped until the process exits.
pub fn map(path: &str) -> Result<&'static Shared> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|e| format!("{path}: {e}"))?;
    file.set_len(4096).map_err(|e| format!("{path}: {e}"))?;
    // The processes that report belong to other users; only the owner may do this, and once
    // suffices.
    let _ = file.set_permissions(Permissions::from_mode(0o666));
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file, of the file's size.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if page == libc::MAP_FAILED {
        return Err(format!("{path}: cannot map: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the page is never unmapped, is large and aligned enough, and holds only atomics, for
    // which any bytes are valid.
    Ok(unsafe { &*page.cast::<Shared>() })
}
