//! The device of FUSE: its path, and what to do if it does not open.

use rustix::io::Errno;

/// The device.
pub const PATH: &str = "/dev/fuse";

/// What to do if the open has failed.
pub fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "chmod 666 /dev/fuse as root, which is how udev makes it; in a container, allow the \
             device (c 10:229 rw)"
        }
        _ => "modprobe fuse; in a container, let it have the device /dev/fuse",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_follows_from_the_errno() {
        assert!(remedy(Errno::ACCESS).starts_with("chmod 666"));
        assert!(remedy(Errno::NOENT).starts_with("modprobe fuse"));
    }
}
