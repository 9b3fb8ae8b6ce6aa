//! A line with the progress of a benchmark, on a terminal only.

use std::io::{IsTerminal, Write, stderr};

/// The line; wiped on drop.
pub struct Progress {
    bench: &'static str,
    steps: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    /// For a benchmark of `steps` steps.
    pub fn new(bench: &'static str, steps: usize) -> Self {
        Self { bench, steps, done: 0, shown: stderr().is_terminal() }
    }

    /// Shows the step that begins now.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        if self.shown {
            let _ =
                write!(stderr(), "\r\x1b[K{}: {} of {}: {what}", self.bench, self.done, self.steps);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
