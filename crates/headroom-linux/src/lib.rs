//! Interfaces of Linux that neither `rustix` nor `libc` wraps, or only as plain system calls, and
//! that more than one crate needs.
//!
//! * [`clock`]: clocks in nanoseconds, and a timer for an epoll set, by `timerfd_create(2)`;
//! * [`descriptors`]: the table of file descriptors of this process, descriptors that stay open in
//!   the next executed program, memory that is shared by one, Unix sockets that refuse them;
//! * [`folders`]: folders with a mode that does not depend on the umask;
//! * [`machine_memory`]: meminfo, pressure and zram, amounts of memory as text;
//! * [`mountinfo`]: parses `/proc/<pid>/mountinfo`;
//! * [`pidfd`]: facts about a process that its pidfd shows;
//! * [`sched`]: scheduling policy and priority of a thread, by `sched_setattr(2)`.

pub mod clock;
pub mod descriptors;
pub mod machine_memory;
pub mod mountinfo;
pub mod pidfd;
pub mod sched;

/// Folders with a mode that does not depend on the umask, and files in them.
pub mod folders {
    use std::fs::{DirBuilder, File, OpenOptions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    use std::path::Path;

    /// Creates a folder and its missing parents. All users can read them; whatever the umask is,
    /// only their owner can create or replace files in them.
    pub fn create_public(folder: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)
    }

    /// Replaces a file by what `write` appends to an empty one. Readers find the old file or the
    /// new one, and the old one remains if this fails. Returns the new one, open for appending.
    pub fn replace_file(
        path: &Path,
        mode: u32,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let new = path.with_extension("new");
        // A link that somebody has put there is not followed.
        let _ = std::fs::remove_file(&new);
        let mut file = OpenOptions::new().append(true).create_new(true).mode(mode).open(&new)?;
        write(&mut file)?;
        std::fs::rename(&new, path)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::Mode;

    use super::folders::create_public;

    #[test]
    fn missing_folders_are_created_without_write_permission_for_others() {
        let root = tempfile::tempdir().unwrap();
        let (outer, inner) = (root.path().join("outer"), root.path().join("outer/inner"));
        let umask = rustix::process::umask(Mode::empty());
        let created = create_public(&inner);
        rustix::process::umask(umask);
        created.unwrap();
        create_public(&inner).unwrap();
        for folder in [outer, inner] {
            let mode = folder.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o022, 0, "{}: {mode:o}", folder.display());
        }
    }
}
