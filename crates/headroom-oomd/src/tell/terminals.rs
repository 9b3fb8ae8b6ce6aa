//! A line where the user sees it: on its terminals, as `wall` does.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use memory_ledger::Uid;

/// Where the terminals are.
pub const FOLDER: &str = "/dev/pts";
/// Most terminals of a user that are written to.
const MOST: usize = 32;

/// Writes a line to each of a user's terminals. Who has said `mesg n` is left alone, and one that does not read is not
/// waited for. Returns how many there were.
pub fn tell(folder: &Path, uid: Uid, line: &str) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let theirs = entries.flatten().filter_map(|entry| open(&entry.path(), uid)).take(MOST);
    theirs.filter_map(|mut terminal| write!(terminal, "\r\n\x07{line}\r\n").ok()).count()
}

fn open(path: &Path, uid: Uid) -> Option<File> {
    let about = path.symlink_metadata().ok()?;
    let wants = about.mode() & 0o020 != 0;
    if about.uid() != uid.0 || !wants || !about.file_type().is_char_device() {
        return None;
    }
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    OpenOptions::new().write(true).custom_flags(flags).open(path).ok()
}
