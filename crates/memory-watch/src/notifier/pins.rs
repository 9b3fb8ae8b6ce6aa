//! State that outlives the daemon: maps and link, pinned in a BPF filesystem.
//!
//! The pins are in `ROOT/FINGERPRINT/`. The fingerprint is that of the programs: pins of another
//! version cannot be read; they are removed when their limits have been set again. A running daemon
//! holds a lock on `ROOT`. It removes all pins when it exits; a daemon that is killed leaves its
//! accounts behind, and the program that continues to update and enforce them.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;

use crate::NotifierError;

/// The maps that make up the accounts.
pub const MAPS: [&str; 6] = ["accounts", "slot_of_uid", "slots", "limited_uids", "scans", "events"];
/// The maps that the elements of `slots` refer to, before their index.
pub const CHUNK: &str = "slot_chunk_";
/// The link of the tracing program.
const LINK: &str = "rss_stat";
/// The name of the link before it replaces the present one. The filesystem refuses dots in names.
const NEW_LINK: &str = "rss_stat_new";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Maximum wait for another holder of the lock: a child of a daemon that has exited holds it until
/// it executes a program of its own.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The folder of one version's pins, locked.
pub struct Pins {
    root: PathBuf,
    folder: PathBuf,
    _lock: File,
    /// Keep the pins on drop.
    keep: bool,
}

fn wrong(path: &Path, why: impl Into<String>) -> NotifierError {
    NotifierError::Pins { path: path.to_owned(), why: why.into() }
}

impl Pins {
    /// Creates the folder if it is missing.
    pub fn open(root: &Path, fingerprint: u64) -> Result<Self, NotifierError> {
        let lock = lock(root)?;
        let folder = root.join(format!("{fingerprint:016x}"));
        make(&folder).map_err(|e| wrong(&folder, format!("cannot create it: {e}")))?;
        Ok(Self { root: root.to_owned(), folder, _lock: lock, keep: false })
    }

    /// Pins exist that can be taken over.
    pub fn are_there(&self) -> bool {
        MAPS.iter().all(|map| self.map(map).exists())
    }

    /// The folder of all pins of this version.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Pins a link in place of the present one, which is unlinked and released.
    pub fn replace_link(&self, link: &mut libbpf_rs::Link) -> Result<(), NotifierError> {
        let new = self.folder.join(NEW_LINK);
        let _ = std::fs::remove_file(&new);
        link.pin(&new).map_err(|e| NotifierError::bpf("pin the link to rss_stat", e))?;
        std::fs::rename(&new, self.folder.join(LINK))
            .map_err(|e| wrong(&self.folder, format!("cannot put the new link in place: {e}")))
    }

    /// Removes the pin: the program is detached when the daemon's own link is closed.
    pub fn remove_link(&self) {
        let _ = std::fs::remove_file(self.folder.join(LINK));
    }

    /// Removes the pinned accounts.
    pub fn clear(&self) {
        remove_pins(&self.folder);
    }

    /// Removes the pins of other versions, whose programs enforce limits until then.
    pub fn remove_other_versions(&self) {
        remove_versions(&self.root, Some(&self.folder));
    }

    /// Keeps all pins when the daemon exits.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.keep {
            remove_versions(&self.root, None);
            // The root of the filesystem cannot be removed, nor can a folder with other files.
            let _ = std::fs::remove_dir(&self.root);
        }
    }
}

/// Removes the pins under `root` that earlier daemons have left. Their programs stop. Returns
/// whether there were any.
pub fn remove_left(root: &Path) -> Result<bool, NotifierError> {
    // A folder that this user may not look into is no absence of pins.
    if !root.try_exists().map_err(|e| wrong(root, format!("cannot look for it: {e}")))? {
        return Ok(false);
    }
    let _lock = lock(root)?;
    let left = remove_versions(root, None);
    let _ = std::fs::remove_dir(root);
    Ok(left)
}

/// Whether a program is pinned under `root` that enforces limits; only if no daemon runs, these are
/// limits of an earlier one.
pub fn enforces(root: &Path) -> bool {
    versions(root).iter().any(|folder| folder.join(LINK).exists())
}

/// Creates a folder with access for its owner only; an existing one is kept.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Opens and locks the root folder, which is created if missing and must belong to this user.
fn lock(root: &Path) -> Result<File, NotifierError> {
    let failed = |doing: &str, e: io::Error| wrong(root, format!("cannot {doing}: {e}"));
    let existing = root.ancestors().find(|path| path.exists()).unwrap_or(root);
    let filesystem = statfs(existing).map_err(|e| failed("look at it", e.into()))?;
    // The field has another type on other architectures.
    #[allow(clippy::unnecessary_cast)]
    if filesystem.f_type as i64 != BPF_FS_MAGIC {
        let existing = existing.display();
        let why = format!(
            "{existing} is not on a BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf"
        );
        return Err(wrong(root, why));
    }
    make(root).map_err(|e| failed("create it", e))?;
    let lock = File::open(root).map_err(|e| failed("open it", e))?;
    let found = lock.metadata().map_err(|e| failed("look at it", e))?;
    // The root of the filesystem may be writable for all users if it is sticky; a folder below it
    // must not.
    let foreign = found.uid() != rustix::process::geteuid().as_raw();
    if foreign || found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
        return Err(wrong(root, "others may write to it; remove it"));
    }
    let begun = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCK_PATIENCE => sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(wrong(root, "another daemon uses it")),
            Err(errno) => return Err(failed("lock it", errno.into())),
        }
    }
}

/// Links first: no program runs any more when the maps are removed.
fn remove_pins(folder: &Path) {
    let names = [NEW_LINK, LINK].into_iter().chain(MAPS);
    for name in names {
        let _ = std::fs::remove_file(folder.join(name));
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_bytes().starts_with(CHUNK.as_bytes()))
    {
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Removes the folders of all versions but one. Files with other names are kept.
fn remove_versions(root: &Path, but: Option<&Path>) -> bool {
    let mut any = false;
    for folder in versions(root).iter().filter(|folder| but.is_none_or(|but| but != *folder)) {
        remove_pins(folder);
        any |= std::fs::remove_dir(folder).is_ok();
    }
    any
}

/// The folders of all versions.
fn versions(root: &Path) -> Vec<PathBuf> {
    let is_version = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_version).collect()
}

/// FNV-1a, 64 bits: only distinguishes versions, not collision-resistant.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn fingerprints_are_those_of_fnv_1a() {
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn limits_are_enforced_while_the_link_of_a_version_is_pinned() {
        let root = tempfile::tempdir().unwrap();
        let version = root.path().join("0123456789abcdef");
        std::fs::create_dir(&version).unwrap();
        assert!(!enforces(root.path()), "accounts without a program");
        std::fs::write(version.join(LINK), "").unwrap();
        assert!(enforces(root.path()));
        assert!(!enforces(&root.path().join("missing")));
    }

    #[test]
    fn pins_that_a_user_may_not_see_are_an_error() {
        if !test_support::privileged() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let root = folder.path().join("headroom");
        assert!(!remove_left(&root).unwrap(), "there are none");
        let nobody = owners::Uid(65534);
        let done =
            test_support::spawn_as(nobody, move || remove_left(&root).map_err(|e| e.to_string()));
        let error = done.join().unwrap().unwrap_err();
        assert!(error.contains("cannot look for it: Permission denied"), "{error}");
    }

    #[test]
    fn a_folder_on_another_filesystem_is_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let error = Pins::open(&folder.path().join("deep/er"), 1).err().unwrap().to_string();
        assert!(error.contains("is not on a BPF file system; mount one"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
