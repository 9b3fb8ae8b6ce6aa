//! Memory that is shared with a process that may be hostile.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

/// A memfd of `bytes` zeros. Its length is sealed, so that a process that obtains the file cannot
/// make our accesses fault; its contents are not.
pub fn sealed_memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, bytes)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memfd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_cannot_change() {
        let memfd = sealed_memfd("test", 4096).unwrap();
        assert_eq!(rustix::fs::fstat(&memfd).unwrap().st_size, 4096);
        for bytes in [0, 8192] {
            assert_eq!(ftruncate(&memfd, bytes), Err(Errno::PERM));
        }
        assert_eq!(fcntl_add_seals(&memfd, SealFlags::WRITE), Err(Errno::PERM));
    }
}
