//! Messages for users: errors without their numbers, and standard error whose reader cannot block
//! the daemon.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

const MARK: &str = " (os error ";

/// The message without each ` (os error N)` that `io::Error` and `Errno` append to their text.
pub fn plain(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find(MARK) {
        let (before, number) = (&rest[..at], &rest[at + MARK.len()..]);
        text.push_str(before);
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        rest = match number[digits..].strip_prefix(')') {
            Some(after) if digits > 0 => after,
            _ => {
                text.push_str(MARK);
                number
            }
        };
    }
    text.push_str(rest);
    text
}

/// Writes log lines through [`plain`].
pub struct PlainWriter<W>(pub W);

impl<W: Write> Write for PlainWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(plain(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Bytes that a pipe which is ready takes without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Writes log lines to a file descriptor, through [`plain`], as far as that does not block. A
/// writer without a thread of its own: it also works before and after a fork or an upgrade. Another
/// process that fills the same pipe meanwhile can block a write.
pub struct PromptWriter<'a, F> {
    file: F,
    /// Lines left out since the last one that was written.
    lost: &'a AtomicU64,
}

/// Lines of this process that were left out.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Standard error.
pub fn prompt_stderr() -> PromptWriter<'static, io::Stderr> {
    PromptWriter { file: io::stderr(), lost: &LOST }
}

impl<F: AsFd> Write for PromptWriter<'_, F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let file = self.file.as_fd();
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let note = format!("{lost} log lines were left out: standard error was not read\n");
        let written = (lost == 0 || write_all(file, note.as_bytes()))
            && write_all(file, plain(&String::from_utf8_lossy(line)).as_bytes());
        if !written {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `false`: the rest was left out.
fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = match rustix::net::send(file, piece, flags) {
            Err(Errno::NOTSOCK) if is_ready(file) => rustix::io::write(file, piece),
            Err(Errno::NOTSOCK) => Err(Errno::AGAIN),
            sent => sent,
        };
        match sent {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // If standard error is closed, there is no other place to report that.
            Err(_) => return false,
        }
    }
    true
}

fn is_ready(file: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut files = [PollFd::from_borrowed_fd(file, PollFlags::OUT)];
    matches!(poll(&mut files, Some(&now)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn numbers_of_errors_are_removed_and_nothing_else() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(
            plain(&format!("/a: {error}; retrying")),
            "/a: No such file or directory; retrying"
        );
        assert_eq!(plain("a (os error 2) (os error 13)."), "a.");
        for text in ["", " (os error", " (os error )", " (os error 2", " (os error x)"] {
            assert_eq!(plain(text), text);
        }
        let mut written = Vec::new();
        assert_eq!(PlainWriter(&mut written).write(b"x (os error 2)\n").unwrap(), 15);
        assert_eq!(written, b"x\n");
    }

    /// Writes lines until some are left out, reads all, and writes another one.
    fn fill_and_read(mut reader: impl Read, file: impl AsFd) -> String {
        let lost = AtomicU64::new(0);
        let mut writer = PromptWriter { file, lost: &lost };
        let line = [[b'x'; 999].as_slice(), b"\n"].concat();
        for _ in 0..10_000 {
            writer.write_all(&line).unwrap();
        }
        assert!(lost.load(Ordering::Relaxed) > 1000);
        let mut unread = vec![0; 1 << 20];
        let count = reader.read(&mut unread).unwrap();
        assert!(count >= line.len());
        writer.write_all(b"last (os error 2)\n").unwrap();
        assert_eq!(lost.load(Ordering::Relaxed), 0);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_reader_that_does_not_read_blocks_no_write() {
        let (pipe_reader, pipe) = std::io::pipe().unwrap();
        let (socket_reader, socket) = UnixStream::pair().unwrap();
        let texts = [fill_and_read(pipe_reader, pipe), fill_and_read(socket_reader, socket)];
        for text in texts {
            assert!(text.contains(" log lines were left out"), "{text}");
            assert!(text.ends_with("\nlast\n"), "{text}");
        }
    }
}
