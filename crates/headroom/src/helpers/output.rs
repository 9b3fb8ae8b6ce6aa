//! Printing in one write; a closed pipe is not an error.

use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;

use anyhow::Context;
use headroom_daemon::message::plain;
use serde::Serialize;
use unicode_truncate::{Alignment, UnicodeTruncateStr};
use unicode_width::UnicodeWidthStr;

/// Version of all JSON output. It changes when a field is removed, is renamed or gets another
/// meaning (docs/stability.md).
pub const JSON_VERSION: u32 = 1;

/// A JSON document: the version beside the fields of the content, which is a struct or a map.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    fn new(content: &'a T) -> Self {
        Self { version: JSON_VERSION, content }
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Human-readable.
    Text,
    /// Machine-readable.
    Json,
}

/// Text followed by spaces, at least `width` columns of a terminal.
pub fn padded(text: &str, width: usize) -> String {
    text.unicode_pad(width, Alignment::Left, false).into_owned()
}

/// Shortens text to `width` columns with a tilde; of a path, the end is kept.
pub fn fit(text: &str, width: usize) -> String {
    let left = width.saturating_sub(1);
    if text.width() <= width {
        text.to_owned()
    } else if text.starts_with('/') {
        format!("~{}", text.unicode_truncate_start(left).0)
    } else {
        format!("{}~", text.unicode_truncate(left).0)
    }
}

/// Prints a warning or error to standard error.
pub fn warn(message: std::fmt::Arguments<'_>) {
    eprintln!("headroom: {}", plain(&message.to_string()));
}

/// Prints `text`. A closed pipe (`headroom why | head -1`) is fine.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a part of a stream; `Break` when the reader has closed the pipe.
pub fn print_on(text: &str) -> anyhow::Result<ControlFlow<()>> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Prints one value of a stream as a line of JSON; `Break` when the reader has closed the pipe.
pub fn print_json_line(value: &impl Serialize) -> anyhow::Result<ControlFlow<()>> {
    let line = serde_json::to_string(&Versioned::new(value)).context("cannot write JSON")?;
    print_on(&(line + "\n"))
}

/// Prints `value` as JSON, or the text.
pub fn print_as(
    format: Format,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if format == Format::Text {
        return print(&text());
    }
    let versioned = Versioned::new(value);
    let mut document = serde_json::to_string_pretty(&versioned).context("cannot write JSON")?;
    document.push('\n');
    print(&document)
}

/// A text from an untrusted source (process names), with all characters escaped that a terminal
/// interprets.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        // Zero-width characters, and those that change the direction of what follows.
        let invisible = ['\u{200b}'..='\u{202e}', '\u{2060}'..='\u{206f}']
            .iter()
            .any(|range| range.contains(&c));
        if c.is_control() || invisible || ['\u{61c}', '\u{feff}'].contains(&c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// "1 process", "2 processes".
pub fn count(number: impl Into<u64>, one: &str, many: &str) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        n => format!("{n} {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_loses_its_end_and_a_path_its_beginning() {
        assert_eq!([fit("alice-and-bob", 6), fit("alice", 5)], ["alice~", "alice"]);
        assert_eq!([fit("/a/ci.service", 8), fit("/abc", 1)], ["~service", "~"]);
    }

    #[test]
    fn a_wide_character_takes_two_columns() {
        assert_eq!([padded("大", 4), padded("大山", 3)], ["大  ", "大山"]);
        assert_eq!([fit("大山", 4), fit("大山田", 5), fit("/大山田", 4)], ["大山", "大山~", "~田"]);
        assert_eq!(fit("大山田", 4), "大~", "no half of a character");
    }

    #[test]
    fn a_process_cannot_draw_on_the_terminal_by_its_name() {
        assert_eq!(printable("bash"), "bash");
        assert_eq!(printable("größe 大"), "größe 大");
        assert_eq!(printable("\x1b[31mroot\n"), "\\u{1b}[31mroot\\n");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(printable("\u{2066}a\u{2069}\u{61c}"), "\\u{2066}a\\u{2069}\\u{61c}");
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(count(1u32, "process", "processes"), "1 process");
        assert_eq!(count(0u32, "process", "processes"), "0 processes");
    }
}
