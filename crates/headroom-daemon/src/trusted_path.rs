//! Opens files that only root and the daemon's own user can change or replace.
//!
//! The path is followed one component at a time, and each is checked by its open descriptor:
//! owner and mode are those of the object that is used, also if somebody renames meanwhile.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

/// Maximum number of symbolic links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Why a path was not opened.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another user can change it: the component, its owner and mode, and the remedy.
    #[error("{0}")]
    Untrusted(String),
}

impl From<Errno> for TrustError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// An object that only root and the daemon's own user can change.
#[derive(Debug)]
pub struct Trusted {
    /// Opened with `O_PATH`.
    object: OwnedFd,
    /// Without symbolic links.
    path: PathBuf,
    stat: Stat,
}

impl Trusted {
    /// Opens `path`, if other users can change neither the object nor a component of the path.
    pub fn open(path: &Path) -> Result<Self, TrustError> {
        let absolute = std::path::absolute(path)?;
        let mut rest: VecDeque<OsString> = names(&absolute).collect();
        let mut at = Self::root(path)?;
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let object = openat(&at.object, &name, flags, Mode::empty())?;
            let stat = fstat(&object)?;
            let next = if name == ".." {
                at.path.parent().unwrap_or(Path::new("/")).to_owned()
            } else {
                at.path.join(&name)
            };
            check(&next, &stat, path)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                at = Self { object, path: next, stat };
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = readlinkat(&object, "", Vec::new())?.into_bytes();
            let target = PathBuf::from(OsString::from_vec(target));
            if target.is_absolute() {
                at = Self::root(path)?;
            }
            names(&target).rev().for_each(|name| rest.push_front(name));
        }
        Ok(at)
    }

    fn root(wanted: &Path) -> Result<Self, TrustError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let object = openat(CWD, "/", flags, Mode::empty())?;
        let (stat, path) = (fstat(&object)?, PathBuf::from("/"));
        check(&path, &stat, wanted)?;
        Ok(Self { object, path, stat })
    }

    /// The path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its type.
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Its permission bits.
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// Reads the file.
    pub fn read_to_string(&self) -> io::Result<String> {
        match self.file_type() {
            FileType::RegularFile => {}
            FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
            // It could block.
            _ => return Err(io::Error::other("not a regular file")),
        }
        let mut text = String::new();
        let path = format!("/proc/self/fd/{}", self.object.as_raw_fd());
        File::open(path)?.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// The names in a path. `..` is one, and is followed in the file system.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let names = path.components().filter(|it| {
        matches!(it, std::path::Component::Normal(_) | std::path::Component::ParentDir)
    });
    names.map(|it| AsRef::<OsStr>::as_ref(&it).to_owned())
}

fn check(part: &Path, stat: &Stat, wanted: &Path) -> Result<(), TrustError> {
    let (part, wanted, mode) = (part.display(), wanted.display(), stat.st_mode & 0o7777);
    let (uid, gid) = (stat.st_uid, stat.st_gid);
    let refuse = |message: String| Err(TrustError::Untrusted(message));
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return refuse(format!(
            "{part} belongs to uid {uid} (mode {mode:04o}), which could change {wanted}; change \
             its owner to root"
        ));
    }
    let kind = FileType::from_raw_mode(stat.st_mode);
    // In a folder with the sticky bit, users cannot rename or remove files of other users. The mode
    // of a symbolic link means nothing.
    let sticky = kind == FileType::Directory && mode & 0o1000 != 0;
    if sticky || kind == FileType::Symlink {
        return Ok(());
    }
    let by = if mode & 0o002 != 0 {
        "every user".to_owned()
    } else if mode & 0o020 != 0 && gid != 0 {
        format!("group {gid}")
    } else {
        return Ok(());
    };
    refuse(format!(
        "{part} is writable by {by} (mode {mode:04o}, owner uid {uid}), which could change \
         {wanted}; remove that permission"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(path: &Path) -> String {
        let Err(TrustError::Untrusted(message)) = Trusted::open(path) else { panic!("{path:?}") };
        message
    }

    #[test]
    fn a_file_is_read_unless_others_can_change_it_or_a_folder_above() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, path) = (dir.path().join("folder"), dir.path().join("folder/file"));
        fs::create_dir(&folder).unwrap();
        set(&folder, 0o755);
        fs::write(&path, "text").unwrap();
        for mode in [0o600, 0o644] {
            set(&path, mode);
            assert_eq!(Trusted::open(&path).unwrap().read_to_string().unwrap(), "text");
        }
        set(&path, 0o646);
        let message = refusal(&path);
        assert!(message.contains("file is writable by every user (mode 0646, owner uid "));
        set(&path, 0o644);
        set(&folder, 0o757);
        assert!(refusal(&path).contains("folder is writable by every user (mode 0757"));
        set(&folder, 0o1777);
        assert!(Trusted::open(&path).is_ok(), "as in /tmp");
        if rustix::process::geteuid().is_root() {
            chown(&path, None, Some(62_998)).unwrap();
            set(&path, 0o664);
            assert!(refusal(&path).contains("is writable by group 62998 (mode 0664"));
            chown(&path, Some(62_999), None).unwrap();
            set(&path, 0o600);
            assert!(refusal(&path).contains("belongs to uid 62999 (mode 0600)"));
            chown(&path, Some(0), None).unwrap();
            chown(&folder, Some(62_999), None).unwrap();
            assert!(refusal(&path).contains("folder belongs to uid 62999 (mode 1777)"));
        }
    }

    #[test]
    fn links_are_followed_and_each_folder_on_the_way_counts() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["open", "safe"] {
            fs::create_dir(at(folder)).unwrap();
        }
        set(&at("safe"), 0o755);
        fs::write(at("safe/file"), "text").unwrap();
        symlink("../safe/file", at("open/link")).unwrap();
        symlink(at("open/link"), at("safe/link")).unwrap();
        let found = Trusted::open(&at("safe/link")).unwrap();
        assert_eq!(found.path(), at("safe/file").canonicalize().unwrap());
        // Neither the path as given nor its target passes a folder of others, a link does.
        set(&at("open"), 0o777);
        assert!(refusal(&at("safe/link")).contains("open is writable by every user"));
        symlink("loop", at("safe/loop")).unwrap();
        assert!(matches!(Trusted::open(&at("safe/loop")), Err(TrustError::Io(_))));
    }
}
