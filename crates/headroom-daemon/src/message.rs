//! Messages for users: errors without their numbers.

use std::io::{self, Write};

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

#[cfg(test)]
mod tests {
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
}
