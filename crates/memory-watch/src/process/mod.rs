//! Readers of `/proc/<pid>/*` through one [`Proc`] with reusable buffers: at steady state a read
//! allocates nothing.

mod details;
mod held_files;
mod maps;
mod status;

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

use headroom_linux::machine_memory::ReadError;

pub use self::details::{CgroupPaths, Details};
pub use self::held_files::{FileId, HeldFile, Hold, Storage, TmpfsDevices};
pub use self::maps::{FileRange, SmapsRollup};
pub use self::status::{Stat, Statm, Status};

/// `/proc/<pid>/stat` counts start times in ticks of `USER_HZ`, which is 100 on every architecture
/// that Linux still supports.
pub const NS_PER_TICK: u64 = 10_000_000;

/// No file read here is larger, except `cmdline`, which is truncated.
const BUFFER_BYTES: usize = 64 * 1024;

/// A `/proc` (or a fake tree) and the buffers to read it with.
pub struct Proc {
    root: PathBuf,
    path: String,
    buffer: Vec<u8>,
}

impl Default for Proc {
    fn default() -> Self {
        Self::new("/proc")
    }
}

impl Proc {
    /// Reads the tree at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), path: String::with_capacity(64), buffer: vec![0; BUFFER_BYTES] }
    }

    /// The root of the tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The pids of all processes, in the order of the directory (ascending in a real `/proc`);
    /// clears `out` first.
    pub fn pids(&self, out: &mut Vec<u32>) -> Result<(), ReadError> {
        out.clear();
        let entries = std::fs::read_dir(&self.root).map_err(|e| ReadError::io(&self.root, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| ReadError::io(&self.root, e))?;
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                out.push(pid);
            }
        }
        Ok(())
    }

    /// The content of `/proc/<pid>/<file>`, truncated to the buffer's size.
    fn read(&mut self, pid: u32, file: &str) -> Result<Content<'_>, ReadError> {
        self.path.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.path, "{}/{pid}/{file}", self.root.display());
        let path = Path::new(&self.path);
        match read_up_to(path, &mut self.buffer) {
            Ok(len) => Ok(Content { path, bytes: &self.buffer[..len] }),
            Err(error) => Err(ReadError::io(path, error)),
        }
    }
}

/// Reads until the end of the file or of the buffer.
fn read_up_to(path: &Path, buffer: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// The content of a file, and its path for errors.
struct Content<'p> {
    path: &'p Path,
    bytes: &'p [u8],
}

impl<'p> Content<'p> {
    fn text(&self) -> Result<&'p str, ReadError> {
        std::str::from_utf8(self.bytes).map_err(|_| self.malformed("the file as UTF-8"))
    }

    fn malformed(&self, what: &str) -> ReadError {
        ReadError::parse(self.path, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with one file of one process.
    pub fn fake(pid: u32, file: &str, content: &[u8]) -> (tempfile::TempDir, Proc) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let process = dir.path().join(pid.to_string());
        std::fs::create_dir(&process).expect("a directory for the process");
        std::fs::write(process.join(file), content).expect("its file");
        let proc = Proc::new(dir.path());
        (dir, proc)
    }

    #[test]
    fn lists_processes_and_nothing_else() {
        let (dir, proc) = fake(42, "stat", b"");
        std::fs::write(dir.path().join("meminfo"), b"").unwrap();
        std::fs::create_dir(dir.path().join("7x")).unwrap();
        let mut pids = vec![1];
        proc.pids(&mut pids).unwrap();
        assert_eq!(pids, [42]);
    }

    #[test]
    fn errors_of_exited_processes_are_distinct() {
        let (_dir, mut proc) = fake(42, "stat", b"");
        assert!(proc.stat(43).unwrap_err().is_gone());
        assert!(!proc.stat(42).unwrap_err().is_gone());
    }
}
