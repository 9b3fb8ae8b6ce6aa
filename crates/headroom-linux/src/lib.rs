//! Interfaces of Linux that neither `rustix` nor `libc` wraps, or only as plain system calls, and
//! that more than one crate needs.
//!
//! * [`clock`]: clocks in nanoseconds, and a timer for an epoll set, by `timerfd_create(2)`;
//! * [`descriptors`]: the table of file descriptors of this process, descriptors that stay open in
//!   the next executed program, memory that is shared by one, Unix sockets that refuse them;
//! * [`features`]: what the kernel has and this process may do;
//! * [`folders`]: folders with a mode that does not depend on the umask;
//! * [`machine_memory`]: meminfo, pressure and zram, amounts of memory as text;
//! * [`mountinfo`]: parses `/proc/<pid>/mountinfo`;
//! * [`pidfd`]: facts about a process that its pidfd shows;
//! * [`sched`]: scheduling policy and priority of a thread, by `sched_setattr(2)`;
//! * [`task_status`]: facts about a process or thread as text.

pub mod clock;
pub mod descriptors;
pub mod machine_memory;
pub mod mountinfo;
pub mod pidfd;
pub mod sched;

/// The `status` file of a process or thread, which `task` names in `/proc`. It does not wait for an
/// `execve(2)`. A process may have any bytes as its name, and a long name ends within a character.
pub fn task_status(task: impl std::fmt::Display) -> std::io::Result<String> {
    /// Longer than the file, which is read by one system call then.
    const STATUS_BYTES: usize = 4096;
    let mut text = Vec::with_capacity(STATUS_BYTES);
    let mut file = std::fs::File::open(format!("/proc/{task}/status"))?;
    std::io::Read::read_to_end(&mut file, &mut text)?;
    let lossy =
        |error: std::string::FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
    Ok(String::from_utf8(text).unwrap_or_else(lossy))
}

/// Features of the kernel and rights of this process that daemons do without, and that `headroom
/// doctor` reports.
pub mod features {
    use rustix::thread::CapabilitySet;

    /// One of these capabilities is effective in the calling thread.
    pub fn has_capability(any_of: CapabilitySet) -> bool {
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.intersects(any_of))
    }

    /// The kernel has this version or a later one, for features without a harmless test. A release
    /// that has no version counts as a later one. The text is for operators.
    pub fn since(major: u32, minor: u32) -> Result<String, String> {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        match version(&release) {
            Some(version) if version < (major, minor) => Err(format!("kernel {release} has none")),
            _ => Ok(format!("kernel {release} has it")),
        }
    }

    /// The first two numbers of a kernel release.
    pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// `kernel.yama.ptrace_scope`; 0: no restriction, or no Yama.
    pub fn ptrace_scope() -> u32 {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        scope.ok().and_then(|scope| scope.trim().parse().ok()).unwrap_or(0)
    }

    /// `futex_waitv(2)` (Linux 5.16). It refuses to wait for no words, before it reads them.
    pub fn has_futex_waitv() -> bool {
        // SAFETY: no words, so no memory of ours.
        unsafe { libc::syscall(libc::SYS_futex_waitv, 0, 0, 0, 0, 0) };
        std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }

    /// Pidfds of threads (Linux 6.9).
    pub fn has_thread_pidfds() -> bool {
        crate::pidfd::open_thread(rustix::thread::gettid().as_raw_nonzero().get() as u32).is_ok()
    }
}

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

    use super::features::{has_futex_waitv, since, version};
    use super::folders::create_public;
    use super::machine_memory::value_of;
    use super::task_status;

    #[test]
    fn kernel_releases_have_a_version() {
        assert_eq!(version("5.10.0-32-amd64"), Some((5, 10)));
        assert!(version("5.9.1") < version("5.10.0-32-amd64"));
        assert_eq!(version("7.2-rc1"), Some((7, 2)));
        assert_eq!(version("strange"), None);
        assert!(since(2, 6).is_ok() && since(999, 0).is_err_and(|text| text.ends_with("has none")));
        assert_eq!(has_futex_waitv(), since(5, 16).is_ok());
    }

    #[test]
    fn a_thread_whose_name_is_no_text_has_a_status() {
        let named = std::thread::spawn(|| {
            rustix::thread::set_name(c"a\xff").unwrap();
            task_status("thread-self").unwrap()
        });
        let status = named.join().unwrap();
        assert!(status.starts_with("Name:\ta\u{fffd}\n"), "{status}");
        assert_eq!(value_of(&status, "Tgid"), Some(&*std::process::id().to_string()));
    }

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
