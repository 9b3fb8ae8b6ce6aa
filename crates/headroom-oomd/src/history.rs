//! The decisions on disk, as JSON lines: one line for the decision and another for its outcome.
//!
//! A dedicated thread writes, so a slow disk does not delay a kill. If the queue is full, lines are
//! dropped and logged. The file is bounded: when it reaches `MOST_LINES`, it is rewritten with the
//! latest `KEPT / 2` decisions.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use control::oomd::{AccountKind, Why};
use headroom_linux::folders;

use crate::clock::end_thread;
use crate::records::Partitioned;

/// File name in the state directory.
const NAME: &str = "history";
/// Maximum number of decisions kept, in the file and in memory.
pub const KEPT: usize = 1000;
/// Number of lines at which the file is rewritten: twice two lines (decision and outcome) per kept
/// decision.
const MOST_LINES: usize = 4 * KEPT;
/// Bytes. A longer line was not written by the daemon.
const MAX_LINE: usize = 64 * 1024;
/// Capacity of the queue to the thread, lines.
const QUEUE: usize = 64;
/// Timeout for writing the last lines at exit.
const PATIENCE: Duration = Duration::from_secs(1);

enum HistoryMessage {
    Line(Vec<u8>),
    End,
}

/// The sender's end: appends to the file.
#[derive(Debug)]
pub struct History {
    lines: SyncSender<HistoryMessage>,
    thread: Option<JoinHandle<()>>,
}

/// The file, owned by the thread.
struct Book {
    path: PathBuf,
    file: File,
    /// Number of lines in the file.
    lines: usize,
}

impl History {
    /// Reads the existing file and appends to it from now on. Creates the directory if it is
    /// missing. Lines that cannot be parsed are dropped.
    pub fn open(folder: &Path) -> io::Result<(Self, Partitioned)> {
        folders::create_public(folder)?;
        let path = folder.join(NAME);
        let kept = match open_file(&path) {
            Ok(file) => read(file, KEPT),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Partitioned::new(KEPT),
            Err(e) => return Err(e),
        };
        let before = kept.clone();
        let (lines, queue) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("history".into())
            .stack_size(128 * 1024)
            .spawn(move || match Book::write_anew(path.clone(), &kept) {
                Ok(book) => book.serve(&queue),
                Err(e) => {
                    tracing::warn!(
                        "{}: {e}; decisions are lost when the daemon stops",
                        path.display()
                    );
                }
            })?;
        Ok((Self { lines, thread: Some(thread) }, before))
    }

    /// Appends a decision or its new state. Never blocks.
    pub fn write(&self, why: &Why) {
        let Ok(mut line) = serde_json::to_vec(why) else { return };
        line.push(b'\n');
        if let Err(TrySendError::Full(_)) = self.lines.try_send(HistoryMessage::Line(line)) {
            tracing::warn!(id = why.id, "a decision is not written down: the disk is too slow");
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        end_thread(&self.lines, [HistoryMessage::End], self.thread.take(), PATIENCE);
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}

/// Reads the decisions in the file, the last line of each, and keeps at most `most`.
fn read(file: File, most: usize) -> Partitioned {
    let mut found = Partitioned::new(most);
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = io::Read::take(&mut reader, MAX_LINE as u64).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            break;
        }
        if let Ok(why) = serde_json::from_slice::<Why>(&line) {
            found.insert(why);
        }
    }
    for why in found.iter_mut() {
        // Records of earlier versions lack the kind of the account.
        if why.group.is_some() {
            why.account.kind = AccountKind::Group;
        }
    }
    found
}

impl Book {
    /// Replaces the file atomically. The old file remains if this fails.
    fn write_anew(path: PathBuf, kept: &Partitioned) -> io::Result<Self> {
        let file = folders::replace_file(&path, 0o600, |file| {
            kept.iter().try_for_each(|why| {
                let mut line = serde_json::to_vec(why).map_err(io::Error::other)?;
                line.push(b'\n');
                file.write_all(&line)
            })
        })?;
        Ok(Self { path, file, lines: kept.len() })
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.write_all(line)?;
        self.lines += 1;
        Ok(())
    }

    fn serve(mut self, queue: &Receiver<HistoryMessage>) {
        let mut failed = false;
        while let Ok(HistoryMessage::Line(line)) = queue.recv() {
            let done = self.add(&line).and_then(|()| self.bound());
            match done {
                Ok(()) => failed = false,
                Err(error) if !failed => {
                    let path = self.path.display();
                    tracing::warn!("{path}: {error}; decisions are not written down meanwhile");
                    failed = true;
                }
                Err(_) => {}
            }
        }
    }

    fn bound(&mut self) -> io::Result<()> {
        if self.lines < MOST_LINES {
            return Ok(());
        }
        // Drops the oldest decisions of each account that has more than its share of half the
        // capacity.
        let kept = read(open_file(&self.path)?, KEPT / 2);
        *self = Self::write_anew(self.path.clone(), &kept)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use control::Uid;
    use control::oomd::{AccountRef, Outcome};
    use test_support::decision;

    use super::*;

    fn why(id: u64, outcome: Outcome) -> Why {
        Why { state: "a\nb".to_owned(), outcome, ..decision(id) }
    }

    fn back() -> Outcome {
        Outcome::Reclaimed { bytes_back: 1, micros: 2, mreleased: false }
    }

    #[test]
    fn decisions_are_read_back_with_their_outcomes() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (history, before) = History::open(&state).unwrap();
        assert!(before.is_empty());
        history.write(&why(1, Outcome::Dying));
        history.write(&why(2, Outcome::Dying));
        history.write(&why(1, back()));
        drop(history);
        let expected = [why(1, back()), why(2, Outcome::Dying)];
        for _ in 0..2 {
            let (_history, before) = History::open(&state).unwrap();
            assert!(before.iter().eq(&expected));
        }
        let mode = std::fs::metadata(state.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn foreign_lines_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = vec![0xff, b'\n'];
        text.extend(vec![b'x'; 3 * MAX_LINE]);
        text.push(b'\n');
        text.extend(serde_json::to_vec(&why(4, back())).unwrap());
        text.extend(b"\n{\"id\":5");
        std::fs::write(folder.path().join(NAME), text).unwrap();
        let (_history, before) = History::open(folder.path()).unwrap();
        assert!(before.iter().eq([&why(4, back())]));
    }

    #[test]
    fn the_file_stays_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let none = Partitioned::new(KEPT);
        let mut book = Book::write_anew(folder.path().join(NAME), &none).unwrap();
        for id in 1..=3 * MOST_LINES as u64 {
            // Another user's first decisions are kept although many follow.
            let account = AccountRef::user(Uid(if id <= 5 { 8 } else { 7 }));
            let mut line = serde_json::to_vec(&Why { account, ..why(id, back()) }).unwrap();
            line.push(b'\n');
            book.add(&line).unwrap();
            book.bound().unwrap();
            assert!(book.lines <= MOST_LINES);
        }
        let kept = read(open_file(&book.path).unwrap(), KEPT);
        assert_eq!(kept.last_id(), 3 * MOST_LINES as u64);
        assert!((1..=5).all(|id| kept.get(id).is_some()));
        assert!(kept.len() >= KEPT / 2 && kept.len() <= KEPT, "{}", kept.len());
    }

    #[test]
    fn a_link_in_place_of_the_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(NAME)).unwrap();
        assert!(History::open(folder.path()).is_err());
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"");
    }
}
