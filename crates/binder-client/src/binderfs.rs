//! Adding devices to a binderfs.

use std::os::fd::AsRawFd;
use std::path::Path;

use binder_uapi::ioctl::BINDER_CTL_ADD;
use binder_uapi::{BINDERFS_MAX_NAME, BinderfsDevice};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::ClientError;

/// `BINDER_CTL_ADD` on `control` (`.../binder-control`): adds the device `name`.
///
/// A name that is too long for the structure is truncated, not refused, so that a driver's own
/// limit can be tested: all 256 bytes may be used, without a NUL.
pub fn add_device(control: &Path, name: &[u8]) -> Result<BinderfsDevice, ClientError> {
    let fd = open(control, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| ClientError::Open { path: control.to_owned(), errno })?;
    let mut device = BinderfsDevice { name: [0; BINDERFS_MAX_NAME + 1], major: 0, minor: 0 };
    let len = name.len().min(device.name.len());
    device.name[..len].copy_from_slice(&name[..len]);
    // SAFETY: the request encodes the size of this structure, which holds no pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BINDER_CTL_ADD as _, &mut device) };
    if result < 0 {
        let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        let errno = Errno::from_raw_os_error(code);
        return Err(ClientError::Ioctl { doing: "BINDER_CTL_ADD", errno });
    }
    Ok(device)
}
