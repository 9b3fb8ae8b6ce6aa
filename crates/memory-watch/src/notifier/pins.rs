//! What outlives the daemon: maps and link, pinned in a BPF filesystem.
//!
//! `ROOT/FINGERPRINT/` holds them, where the fingerprint is that of the programs: those of another
//! version are not understood, and removed. While a daemon lives it holds a lock on `ROOT`. It
//! removes everything when it ends; one that is killed leaves its accounts behind, and the program
//! that goes on keeping and enforcing them.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;

use crate::error::NotifierError;

/// The maps that make up the accounts.
pub const MAPS: [&str; 5] = ["accounts", "slot_of_uid", "slots", "scans", "events"];
/// The link of the tracing program.
const LINK: &str = "rss_stat";
/// The same, before it takes the place of the one that is there. The filesystem refuses dots in
/// names.
const NEW_LINK: &str = "rss_stat_new";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// How long somebody else may have the lock: a child of a daemon that is gone holds it until it
/// runs a program of its own.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The folder of one version's pins, locked.
pub struct Pins {
    root: PathBuf,
    folder: PathBuf,
    _lock: File,
    /// Nothing is removed at the end.
    keep: bool,
}

fn wrong(path: &Path, why: impl Into<String>) -> NotifierError {
    NotifierError::Pins { path: path.to_owned(), why: why.into() }
}

impl Pins {
    /// Makes the folder where it is missing, and removes what other versions have left in it.
    pub fn open(root: &Path, fingerprint: u64) -> Result<Self, NotifierError> {
        let lock = lock(root)?;
        let folder = root.join(format!("{fingerprint:016x}"));
        remove_versions(root, Some(&folder));
        make(&folder).map_err(|e| wrong(&folder, format!("cannot make it: {e}")))?;
        Ok(Self { root: root.to_owned(), folder, _lock: lock, keep: false })
    }

    /// Accounts are there to be taken over.
    pub fn are_there(&self) -> bool {
        MAPS.iter().all(|map| self.map(map).exists())
    }

    /// Where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Pins a link in place of the one that may be there, which is then nobody's any more and goes.
    pub fn replace_link(&self, link: &mut libbpf_rs::Link) -> Result<(), NotifierError> {
        let new = self.folder.join(NEW_LINK);
        let _ = std::fs::remove_file(&new);
        link.pin(&new).map_err(|e| NotifierError::bpf("pin the link to rss_stat", e))?;
        std::fs::rename(&new, self.folder.join(LINK))
            .map_err(|e| wrong(&self.folder, format!("cannot put the new link in place: {e}")))
    }

    /// The program goes with the daemon's own link.
    pub fn remove_link(&self) {
        let _ = std::fs::remove_file(self.folder.join(LINK));
    }

    /// Forgets the accounts that are there.
    pub fn clear(&self) {
        remove_pins(&self.folder);
    }

    /// Everything stays when the daemon ends.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.keep {
            remove_versions(&self.root, None);
            // The filesystem's own root stays, and so does what holds anything else.
            let _ = std::fs::remove_dir(&self.root);
        }
    }
}

/// Removes what daemons have left under `root` that are no more. The programs stop with it.
/// Returns whether there was anything.
pub fn remove_left(root: &Path) -> Result<bool, NotifierError> {
    if !root.exists() {
        return Ok(false);
    }
    let _lock = lock(root)?;
    let left = remove_versions(root, None);
    let _ = std::fs::remove_dir(root);
    Ok(left)
}

/// A folder that only we can use; there already is as good.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The root, made where it is missing, as ours alone.
fn lock(root: &Path) -> Result<File, NotifierError> {
    let failed = |doing: &str, e: io::Error| wrong(root, format!("cannot {doing}: {e}"));
    let existing = root.ancestors().find(|path| path.exists()).unwrap_or(root);
    let filesystem = statfs(existing).map_err(|e| failed("look at it", e.into()))?;
    // Of another type on other architectures.
    #[allow(clippy::unnecessary_cast)]
    if filesystem.f_type as i64 != BPF_FS_MAGIC {
        let existing = existing.display();
        let why =
            format!("{existing} is on no BPF filesystem (mount one: mount -t bpf bpf /sys/fs/bpf)");
        return Err(wrong(root, why));
    }
    make(root).map_err(|e| failed("make it", e))?;
    let lock = File::open(root).map_err(|e| failed("open it", e))?;
    let found = lock.metadata().map_err(|e| failed("look at it", e))?;
    // The filesystem's own root may be open to all, sticky; below it nobody but us.
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

/// Links first: nothing runs any more when the maps go.
fn remove_pins(folder: &Path) {
    let names = [NEW_LINK, LINK].into_iter().chain(MAPS);
    for name in names {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

/// Removes the folders of versions, but one. What is not ours by its name stays.
fn remove_versions(root: &Path, but: Option<&Path>) -> bool {
    let is_version = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut any = false;
    for folder in entries.map(|entry| entry.path()) {
        if is_version(&folder) && but.is_none_or(|but| but != folder) {
            remove_pins(&folder);
            any |= std::fs::remove_dir(&folder).is_ok();
        }
    }
    any
}

/// FNV-1a, 64 bits: not to withstand anybody, only to tell versions apart.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_those_of_fnv_1a() {
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn a_folder_on_another_filesystem_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = Pins::open(&folder.path().join("deep/er"), 1).err().unwrap().to_string();
        assert!(error.contains("no BPF filesystem (mount one"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
