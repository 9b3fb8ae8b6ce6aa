//! Queries a binder device for its protocol version.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::Result;
use crate::options::Options;

/// `_IOWR('b', 9, struct binder_version)`, the struct being one `i32`.
const BINDER_VERSION: libc::Ioctl = 0xc004_6209_u32 as libc::Ioctl;

/// Prints the version of the device that the first argument names.
pub fn run(options: &Options) -> Result<()> {
    let path = options.word()?;
    let device =
        File::options().read(true).write(true).open(path).map_err(|e| format!("{path}: {e}"))?;
    let mut version: i32 = -1;
    // SAFETY: the kernel writes one i32, and `version` is one.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), BINDER_VERSION, &mut version) };
    if status != 0 {
        return Err(format!("{path}: BINDER_VERSION: {}", std::io::Error::last_os_error()));
    }
    println!("{version}");
    Ok(())
}
